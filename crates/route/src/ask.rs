//! What a policy may go by.

use std::borrow::Cow;

use crate::moment::Moment;

/// A request, as far as choosing a worker is concerned. Plain data: the same ask, put to a policy in the same state,
/// gives the same choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// `X-SMG-Routing-Key`: the session.
    pub routing_key: Option<&'a [u8]>,
    /// The sample's group.
    pub group: Option<&'a [u8]>,
    /// The prompt, if it is known. Only what a policy for which [`PolicyKind::reads_prompt`] is true has to be given.
    ///
    /// [`PolicyKind::reads_prompt`]: crate::PolicyKind::reads_prompt
    pub prompt: Prompt<'a>,
    /// The data-parallel rank that the request asks for itself.
    pub rank: Option<u32>,
    /// Names of workers at whose servers the request has been already, in vain: they are not to be chosen.
    pub avoided: &'a [String],
    /// When.
    pub now: Moment,
    /// Randomness, to be drawn for each choice: two choices with one seed are made alike.
    pub seed: u64,
}

/// The bytes of a prompt, in pieces: text, or token ids in any spelling that is the same for the same ids, such as the
/// JSON array that they came in. Empty if it is not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prompt<'a>(pub &'a [&'a [u8]]);

/// By what a request keeps to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// `X-SMG-Routing-Key`.
    RoutingKey,
    /// The sample's group.
    Group,
}

// === impl Ask ===

impl<'a> Ask<'a> {
    /// What the request keeps to a worker by: its routing key, or else its group. An empty one is none: all requests
    /// with it would go to one worker.
    pub(crate) fn key(&self) -> Option<(KeyKind, &'a [u8])> {
        let some = |key: Option<&'a [u8]>| key.filter(|key| !key.is_empty());
        let routing_key = some(self.routing_key).map(|key| (KeyKind::RoutingKey, key));
        routing_key.or_else(|| some(self.group).map(|key| (KeyKind::Group, key)))
    }
}

// === impl Prompt ===

impl<'a> Prompt<'a> {
    /// Its first bytes.
    pub(crate) fn head(self, limit_bytes: usize) -> Cow<'a, [u8]> {
        let mut left = limit_bytes;
        let mut pieces = self.0.iter().map(|piece| {
            let (head, _) = piece.split_at(piece.len().min(left));
            left -= head.len();
            head
        });
        let Some(first) = pieces.next() else { return Cow::default() };
        let mut head = Cow::Borrowed(first);
        for piece in pieces.filter(|piece| !piece.is_empty()) {
            head.to_mut().extend_from_slice(piece);
        }
        head
    }
}

// === impl KeyKind ===

impl KeyKind {
    /// For texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::RoutingKey => "routing key",
            Self::Group => "group",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_routing_key_goes_before_the_group() {
        let key = |routing_key, group| Ask { routing_key, group, ..Ask::default() }.key();
        for (routing_key, group, expected) in [
            (None, None, None),
            (Some("s"), Some("g"), Some((KeyKind::RoutingKey, "s"))),
            (None, Some("g"), Some((KeyKind::Group, "g"))),
            (Some(""), Some("g"), Some((KeyKind::Group, "g"))),
            (Some(""), Some(""), None),
        ] {
            let expected = expected.map(|(kind, key): (_, &str)| (kind, key.as_bytes()));
            assert_eq!(key(routing_key.map(str::as_bytes), group.map(str::as_bytes)), expected);
        }
    }

    #[test]
    fn a_head_does_not_depend_on_the_pieces() {
        let pieces: [&[&[u8]]; 4] =
            [&[b"abcdef"], &[b"", b"abc", b"def"], &[b"a", b"b", b"c", b"d", b"e", b"f"], &[b"abcdef", b""]];
        for pieces in pieces {
            for limit in 0..9 {
                assert_eq!(*Prompt(pieces).head(limit), b"abcdef"[..limit.min(6)]);
            }
        }
        assert!(Prompt::default().head(9).is_empty());
    }
}
