//! A body as it was received: byte strings in order, never copied together.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

/// Consecutive pieces of one body. Cloning and slicing share the bytes.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    /// The first piece, apart from the rest because most bodies have but one.
    first: Bytes,
    rest: Vec<Bytes>,
    len: usize,
}

// === impl Chunks ===

impl Chunks {
    /// No bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a piece; an empty one leaves no trace.
    pub fn push(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        self.len += piece.len();
        if self.first.is_empty() {
            self.first = piece;
        } else {
            self.rest.push(piece);
        }
    }

    /// Appends all pieces of another body.
    pub fn append(&mut self, other: &Self) {
        for piece in other.pieces() {
            self.push(piece.clone());
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces in order, none of them empty.
    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        Some(&self.first).filter(|first| !first.is_empty()).into_iter().chain(&self.rest)
    }

    /// The bytes of a range, shared; what lies beyond the end is left out.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let mut out = Self::new();
        self.copy_range_to(range, &mut out);
        out
    }

    /// Takes the first `at` bytes off.
    #[must_use]
    pub fn split_to(&mut self, at: usize) -> Self {
        if self.rest.is_empty() {
            let first = self.first.split_to(at.min(self.len));
            self.len -= first.len();
            return first.into();
        }
        let head = self.slice(0..at);
        *self = self.slice(at..self.len);
        head
    }

    /// All bytes as one piece; copied only when there are several.
    pub fn to_bytes(&self) -> Bytes {
        if self.rest.is_empty() { self.first.clone() } else { self.gather(0..self.len).into_owned().into() }
    }

    /// A piece by its number.
    pub(crate) fn piece(&self, number: usize) -> Option<&[u8]> {
        match number.checked_sub(1) {
            None => Some(&self.first[..]).filter(|first| !first.is_empty()),
            Some(number) => self.rest.get(number).map(|piece| &piece[..]),
        }
    }

    /// Appends the bytes of a range to another body, shared.
    pub(crate) fn copy_range_to(&self, range: Range<usize>, out: &mut Self) {
        self.for_each_in(range, |piece, within| out.push(piece.slice(within)));
    }

    /// The bytes of a range; copied only when they lie in several pieces.
    pub(crate) fn gather(&self, range: Range<usize>) -> Cow<'_, [u8]> {
        let mut gathered: Cow<'_, [u8]> = Cow::Borrowed(&[]);
        self.for_each_in(range, |piece, within| {
            if gathered.is_empty() {
                gathered = Cow::Borrowed(&piece[within]);
            } else {
                gathered.to_mut().extend_from_slice(&piece[within]);
            }
        });
        gathered
    }

    fn for_each_in<'a>(&'a self, range: Range<usize>, mut take: impl FnMut(&'a Bytes, Range<usize>)) {
        let mut base = 0;
        for piece in self.pieces() {
            let start = range.start.max(base);
            let end = range.end.min(base + piece.len());
            if start < end {
                take(piece, start - base..end - base);
            }
            base += piece.len();
            if base >= range.end {
                break;
            }
        }
    }
}

impl From<Bytes> for Chunks {
    fn from(piece: Bytes) -> Self {
        Self { len: piece.len(), first: piece, rest: Vec::new() }
    }
}

impl From<Vec<u8>> for Chunks {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<&'static str> for Chunks {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl FromIterator<Bytes> for Chunks {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let mut chunks = Self::new();
        for piece in pieces {
            chunks.push(piece);
        }
        chunks
    }
}

impl IntoIterator for Chunks {
    type Item = Bytes;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Bytes>, std::vec::IntoIter<Bytes>>;

    fn into_iter(self) -> Self::IntoIter {
        Some(self.first).filter(|first| !first.is_empty()).into_iter().chain(self.rest)
    }
}

impl PartialEq for Chunks {
    /// Equal bytes, however they are cut.
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.pieces().flatten().eq(other.pieces().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&'static str]) -> Chunks {
        pieces.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect()
    }

    #[test]
    fn any_range_is_the_range_of_the_joined_bytes() {
        let whole = b"abcdefgh";
        for pieces in [&["abcdefgh"][..], &["a", "bcd", "", "efg", "h"], &["abcd", "efgh"]] {
            let chunks = cut(pieces);
            assert_eq!(chunks.len(), 8);
            for start in 0..=8 {
                for end in start..=8 {
                    assert_eq!(&chunks.gather(start..end)[..], &whole[start..end]);
                    assert_eq!(&chunks.slice(start..end).to_bytes()[..], &whole[start..end]);
                }
                let mut tail = chunks.clone();
                let head = tail.split_to(start);
                assert_eq!((&head.to_bytes()[..], &tail.to_bytes()[..]), whole.split_at(start));
                assert_eq!((head.len(), tail.len()), (start, 8 - start));
            }
        }
    }

    #[test]
    fn cuts_do_not_matter_for_equality() {
        assert_eq!(cut(&["ab", "c"]), cut(&["a", "bc"]));
        assert_ne!(cut(&["ab", "c"]), cut(&["a", "bd"]));
    }
}
