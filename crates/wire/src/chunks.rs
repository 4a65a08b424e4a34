//! A body as it was received: byte strings in order, of which only tiny ones are copied together.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

/// Consecutive pieces of one body. Cloning and slicing share the bytes.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    /// The first piece, apart from the rest because most bodies have but one.
    first: Bytes,
    rest: Vec<Bytes>,
    /// Where each of the rest begins, so that a place is found without a walk through all that precede it.
    starts: Vec<usize>,
    len: usize,
}

/// Shorter pieces are joined with those before them. A body sent byte by byte would cost 40 times its size.
const MIN_PIECE_BYTES: usize = 512;

// === impl Chunks ===

impl Chunks {
    /// No bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a piece; an empty one leaves no trace.
    pub fn push(&mut self, mut piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        // Only what is no longer than the new piece is copied, so that no byte is copied more often than ten times.
        while piece.len() < MIN_PIECE_BYTES
            && let Some(shorter) = self.pop_up_to(piece.len())
        {
            piece = [shorter, piece].concat().into();
        }
        self.keep(piece);
    }

    fn keep(&mut self, piece: Bytes) {
        let start = self.len;
        self.len += piece.len();
        if start == 0 {
            self.first = piece;
        } else {
            self.rest.push(piece);
            self.starts.push(start);
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
        if self.rest.is_empty() {
            return self.first.slice(self.clamp(range)).into();
        }
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

    /// Number of the piece that holds the byte at an offset, the last one's beyond the end; and where it begins.
    pub(crate) fn locate(&self, offset: usize) -> (usize, usize) {
        let number = self.starts.partition_point(|start| *start <= offset);
        (number, number.checked_sub(1).map_or(0, |before| self.starts[before]))
    }

    /// Appends the bytes of a range to another body, shared.
    pub(crate) fn copy_range_to(&self, range: Range<usize>, out: &mut Self) {
        self.for_each_in(range, |piece, within| out.push(piece.slice(within)));
    }

    /// The bytes of a range; copied only when they lie in several pieces.
    pub(crate) fn gather(&self, range: Range<usize>) -> Cow<'_, [u8]> {
        if self.rest.is_empty() {
            return Cow::Borrowed(&self.first[self.clamp(range)]);
        }
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

    /// What of a range there is.
    fn clamp(&self, range: Range<usize>) -> Range<usize> {
        let end = range.end.min(self.len);
        range.start.min(end)..end
    }

    /// Shows each piece that has some of a range, and what of it.
    pub(crate) fn for_each_in<'a>(
        &'a self,
        range: Range<usize>,
        mut take: impl FnMut(&'a Bytes, Range<usize>),
    ) {
        let (number, mut base) = self.locate(range.start);
        for piece in self.pieces().skip(number) {
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

    /// Takes the last piece off if it is no longer than this.
    fn pop_up_to(&mut self, length: usize) -> Option<Bytes> {
        let last = match self.rest.pop_if(|last| last.len() <= length) {
            Some(last) => {
                self.starts.pop();
                last
            }
            None if self.rest.is_empty() && (1..=length).contains(&self.first.len()) => {
                std::mem::take(&mut self.first)
            }
            None => return None,
        };
        self.len -= last.len();
        Some(last)
    }
}

impl From<Bytes> for Chunks {
    fn from(piece: Bytes) -> Self {
        Self { len: piece.len(), first: piece, ..Self::default() }
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
    /// A body of these pieces, none of them joined.
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let mut chunks = Self::new();
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            chunks.keep(piece);
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

    fn pieces(whole: &[u8], sizes: &[usize]) -> Vec<Bytes> {
        let mut rest = Bytes::copy_from_slice(whole);
        sizes.iter().map(|size| rest.split_to(*size)).collect()
    }

    fn cut(whole: &[u8], sizes: &[usize]) -> Chunks {
        pieces(whole, sizes).into_iter().collect()
    }

    fn joined(whole: &[u8], sizes: &[usize]) -> Chunks {
        let mut chunks = Chunks::new();
        for piece in pieces(whole, sizes) {
            chunks.push(piece);
        }
        chunks
    }

    #[test]
    fn any_range_is_the_range_of_the_whole() {
        let whole: Vec<u8> = (0..1600_u32).map(|at| (at * 7 % 251) as u8).collect();
        let places = [0, 1, 2, 511, 512, 513, 599, 600, 1000, 1023, 1024, 1025, 1598, 1599, 1600];
        for sizes in [&[1600][..], &[600, 0, 1000], &[512, 512, 576], &[1, 599, 424, 576], &[1; 1600]] {
            for chunks in [cut(&whole, sizes), joined(&whole, sizes)] {
                assert_eq!(chunks.len(), 1600);
                for start in places {
                    for end in places.into_iter().filter(|end| *end >= start) {
                        assert_eq!(&chunks.gather(start..end)[..], &whole[start..end]);
                        assert_eq!(&chunks.slice(start..end).to_bytes()[..], &whole[start..end]);
                    }
                    let mut tail = chunks.clone();
                    let head = tail.split_to(start);
                    assert_eq!((&head.to_bytes()[..], &tail.to_bytes()[..]), whole.split_at(start));
                    assert_eq!((head.len(), tail.len()), (start, 1600 - start));
                }
            }
        }
    }

    #[test]
    fn what_comes_byte_by_byte_is_kept_in_few_pieces() {
        for size in [1, 2, 3, 100, 511] {
            let count = 100 * MIN_PIECE_BYTES;
            let chunks = joined(&vec![b'x'; count * size], &vec![size; count]);
            let pieces = chunks.pieces().count();
            assert!(pieces <= 2 * chunks.len() / MIN_PIECE_BYTES + 10, "{pieces} pieces of {size} bytes");
        }
        assert_eq!(joined(&[b'x'; 2000], &[1000, 1000]).pieces().count(), 2, "what is large is not copied");
    }

    #[test]
    fn cuts_do_not_matter_for_equality() {
        let whole = [b'a'; 2000];
        assert_eq!(cut(&whole, &[1000, 1000]), cut(&whole, &[600, 1400]));
        assert_ne!(cut(&whole, &[1000, 1000]), cut(&whole, &[600, 1399]));
        let other = [&whole[..1999], b"b"].concat();
        assert_ne!(cut(&whole, &[1000, 1000]), cut(&other, &[600, 1400]));
    }
}
