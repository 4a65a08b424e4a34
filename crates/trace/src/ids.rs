//! The names of things: requests, steps, samples, workers.

use std::fmt;
use std::sync::Arc;

/// One call through the gateway; unique over all writers of a run. Shown as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u128);

/// One rollout step: everything sampled between two weight updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepNumber(pub u64);

/// A sample within a step: one training sample, whatever number of requests and attempts it took.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SampleKey {
    /// The step it was sampled in.
    pub step: StepNumber,
    /// The prompt group, where the rollout code named one.
    pub group: Option<Box<str>>,
    /// The sample's own name, unique within its group (within the step where there is no group).
    pub sample: Box<str>,
}

/// The name of a sample, which is a request's id where nobody has given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SampleName<'a> {
    /// As the request's id is shown.
    Id(RequestId),
    /// Any other.
    Text(&'a str),
}

/// A worker as the gateway knew it when it chose it: the instance, not merely the address. Its names are shared by all
/// calls that were made to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerRef {
    /// Base URL, as registered.
    pub url: Arc<str>,
    /// The registration's own id; a worker that is registered anew at the same URL gets another.
    pub instance: Arc<str>,
}

// === impl RequestId ===

impl RequestId {
    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }

    /// What `Display` writes.
    pub fn digits(self) -> [u8; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // Of the formatter's own way there are several for each request of a step that is sealed, and it is slow.
        let mut digits = [0; 32];
        for (pair, byte) in digits.as_chunks_mut().0.iter_mut().zip(self.0.to_be_bytes()) {
            *pair = [byte >> 4, byte & 15].map(|half| DIGITS[usize::from(half)]);
        }
        digits
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.digits()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl StepNumber ===

impl StepNumber {
    /// Steps are below this: what a double cannot hold exactly is a mistake, after which all that follow would be
    /// earlier ones.
    const END: u64 = 1 << 53;

    /// A step that somebody tells; nothing when it cannot be one.
    pub fn new(number: u64) -> Option<Self> {
        (number < Self::END).then_some(Self(number))
    }
}

impl fmt::Display for StepNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl SampleName ===

impl<'a> SampleName<'a> {
    /// Reads a name: the same text is always the same name.
    pub fn of(text: &'a str) -> Self {
        let id = RequestId::parse(text).filter(|id| id.digits() == text.as_bytes());
        id.map_or(Self::Text(text), Self::Id)
    }
}

// === impl WorkerRef ===

impl WorkerRef {
    /// Whether both are the same worker. Each gateway of a run registers it by an id of its own, so that its URL tells; only
    /// where that is not known the id does.
    pub fn is(&self, other: &Self) -> bool {
        let same = |a: &Arc<str>, b: &Arc<str>| Arc::ptr_eq(a, b) || a == b;
        same(&self.url, &other.url) && (!self.url.is_empty() || same(&self.instance, &other.instance))
    }

    /// The server's URL and the rank in a worker's, which ends with `@RANK` where ranks are workers of their own.
    pub fn server_and_rank(url: &str) -> (&str, Option<u32>) {
        // A number may be parsed with a sign too; a rank has none.
        let is_number = |rank: &str| rank.bytes().all(|byte| byte.is_ascii_digit());
        let ranked = url.rsplit_once('@').filter(|(_, rank)| is_number(rank));
        let ranked = ranked.and_then(|(server, rank)| Some((server, rank.parse().ok()?)));
        ranked.map_or((url, None), |(server, rank)| (server, Some(rank)))
    }
}

// === impl SampleKey ===

impl fmt::Display for SampleKey {
    /// `group/sample`, or the sample alone. The step is left to the context.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            Some(group) => write!(f, "{group}/{}", self.sample),
            None => f.write_str(&self.sample),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_digits_behind_the_last_at() {
        for (url, server, rank) in [
            ("http://a:1@3", "http://a:1", Some(3)),
            ("http://[::1]:1@0", "http://[::1]:1", Some(0)),
            ("http://a:1@2@03", "http://a:1@2", Some(3)),
            ("http://a:1", "http://a:1", None),
            ("http://a:1@", "http://a:1@", None),
            ("http://a:1@+1", "http://a:1@+1", None),
            ("http://user@b:1", "http://user@b:1", None),
            ("http://a:1@4294967296", "http://a:1@4294967296", None),
        ] {
            assert_eq!(WorkerRef::server_and_rank(url), (server, rank), "{url}");
        }
    }

    #[test]
    fn a_name_is_an_id_where_it_is_spelled_as_one() {
        let id = RequestId(0x0fed_cba9 << 96 | 7);
        assert_eq!(SampleName::of(&id.to_string()), SampleName::Id(id));
        let uppercase = id.to_string().to_uppercase();
        let signed = format!("+{}", &id.to_string()[1..]);
        for other in ["", "sample-7", &uppercase, &signed] {
            assert_eq!(SampleName::of(other), SampleName::Text(other));
        }
    }
}
