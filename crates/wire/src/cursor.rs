//! A pull scanner over a body: enters the containers it is asked to enter and skips everything else.
//!
//! Within what is skipped only the ends of strings and the brackets of the outermost container are looked at:
//! an array ends at the bracket that balances it, whatever braces stand between. So a skip needs a counter
//! and no stack, and garbage inside a skipped value is left for whoever wrote it. What is entered is checked
//! token by token.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr2;

use crate::chunks::Chunks;
use crate::error::{Malformed, Problem};
use crate::nesting::Nesting;
use crate::scalar::{self, Scalar};

/// A place in a body.
pub(crate) struct Cursor<'a> {
    source: &'a Chunks,
    /// Number of the piece after the current.
    next: usize,
    piece: &'a [u8],
    /// Place in the piece.
    at: usize,
    /// Offset of the piece in the body.
    base: usize,
}

/// A member of an object that is being walked over; the cursor stands before its value.
#[derive(Debug)]
pub(crate) struct Member<'a> {
    /// Unescaped.
    pub(crate) name: Cow<'a, [u8]>,
    /// Where the space between the brace or the former value and this name begins.
    pub(crate) separator: usize,
    /// The comma in that space.
    pub(crate) comma: Option<usize>,
    /// The opening quote of the name.
    pub(crate) key: usize,
}

/// What a value is, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    Text,
    /// A number, `true`, `false`, `null`, or something that is not JSON.
    Literal,
}

/// Bytes that can not be of a number, `true`, `false` or `null`.
const ENDS_WORD: [bool; 256] = {
    let mut ends = [false; 256];
    let mut at = 0;
    let bytes = b",]}:\"[{ \t\n\r\x0c";
    while at < bytes.len() {
        ends[bytes[at] as usize] = true;
        at += 1;
    }
    ends
};

/// What a value is by its first byte, if one can begin with it.
const KINDS: [Option<Kind>; 256] = {
    let mut kinds = [Some(Kind::Literal); 256];
    (kinds[b'{' as usize], kinds[b'[' as usize]) = (Some(Kind::Object), Some(Kind::Array));
    kinds[b'"' as usize] = Some(Kind::Text);
    (kinds[b',' as usize], kinds[b':' as usize]) = (None, None);
    (kinds[b']' as usize], kinds[b'}' as usize]) = (None, None);
    kinds
};

/// A longer string is no measurement and is not copied out of the body.
pub(crate) const MAX_SCALAR_BYTES: usize = 4096;

// === impl Cursor ===

impl<'a> Cursor<'a> {
    /// At the first byte.
    pub(crate) fn new(source: &'a Chunks) -> Self {
        Self { source, next: 0, piece: &[], at: 0, base: 0 }
    }

    /// At an offset.
    pub(crate) fn at(source: &'a Chunks, offset: usize) -> Self {
        let (number, base) = source.locate(offset);
        let piece = source.piece(number).unwrap_or_default();
        Self { source, next: number + 1, piece, at: (offset - base).min(piece.len()), base }
    }

    /// What it goes over.
    pub(crate) fn source(&self) -> &'a Chunks {
        self.source
    }

    /// Bytes before the cursor.
    pub(crate) fn offset(&self) -> usize {
        self.base + self.at
    }

    /// Skips space and tells what begins there.
    #[inline]
    pub(crate) fn kind(&mut self) -> Result<Kind, Malformed> {
        let first = self.token()?;
        KINDS[usize::from(first)].ok_or_else(|| self.fail(Problem::Unexpected))
    }

    /// Walks over an object. `visit` must consume the value of each member. Returns where the object stands.
    pub(crate) fn members(
        &mut self,
        mut visit: impl FnMut(&mut Self, Member<'a>) -> Result<(), Malformed>,
    ) -> Result<Range<usize>, Malformed> {
        if self.token()? != b'{' {
            return Err(self.fail(Problem::NotAnObject));
        }
        let start = self.offset();
        self.at += 1;
        let (mut separator, mut comma) = (self.offset(), None);
        let mut first = self.token()?;
        if first == b'}' {
            self.at += 1;
            return Ok(start..self.offset());
        }
        loop {
            if first != b'"' {
                return Err(self.fail(Problem::Unexpected));
            }
            let key = self.offset();
            let name = self.text()?;
            self.expect(b':')?;
            visit(self, Member { name, separator, comma, key })?;
            separator = self.offset();
            match self.token()? {
                b',' => {
                    comma = Some(self.offset());
                    self.at += 1;
                    first = self.token()?;
                }
                b'}' => {
                    self.at += 1;
                    return Ok(start..self.offset());
                }
                _ => return Err(self.fail(Problem::Unexpected)),
            }
        }
    }

    /// Walks over an array. `visit` must consume each element. Returns where the array stands.
    pub(crate) fn elements(
        &mut self,
        mut visit: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<Range<usize>, Malformed> {
        self.token()?;
        let start = self.offset();
        self.expect(b'[')?;
        if self.token()? == b']' {
            self.at += 1;
            return Ok(start..self.offset());
        }
        loop {
            visit(self)?;
            match self.token()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(start..self.offset());
                }
                _ => return Err(self.fail(Problem::Unexpected)),
            }
        }
    }

    /// Goes behind the bracket that opens an array, if there is one.
    pub(crate) fn enter_list(&mut self) -> bool {
        self.expect(b'[').is_ok()
    }

    /// Skips a value. Returns where it stands.
    pub(crate) fn skip(&mut self) -> Result<Range<usize>, Malformed> {
        let kind = self.kind()?;
        let start = self.offset();
        self.pass(kind)?;
        Ok(start..self.offset())
    }

    /// Skips a value that begins at the cursor, which has told its kind.
    #[inline]
    pub(crate) fn pass(&mut self, kind: Kind) -> Result<(), Malformed> {
        match kind {
            Kind::Object => self.skip_container(b'{', b'}'),
            Kind::Array => self.skip_container(b'[', b']'),
            Kind::Text => self.skip_string(),
            Kind::Literal => self.skip_literal(),
        }
    }

    /// Reads a scalar; a container or an overlong string is skipped and gives nothing.
    pub(crate) fn scalar(&mut self) -> Result<Option<Scalar<'a>>, Malformed> {
        match self.kind()? {
            Kind::Literal => self.literal().map(Some),
            Kind::Text => {
                let range = self.skip()?;
                if range.len() > MAX_SCALAR_BYTES {
                    return Ok(None);
                }
                let text = match self.unquote(range)? {
                    Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
                    Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
                };
                Ok(Some(Scalar::Text(text)))
            }
            Kind::Object | Kind::Array => self.skip().map(|_| None),
        }
    }

    /// Makes sure that nothing but space follows.
    pub(crate) fn end(&mut self) -> Result<(), Malformed> {
        match self.token() {
            Ok(_) => Err(self.fail(Problem::Trailing)),
            Err(_) => Ok(()),
        }
    }

    /// An error at the cursor.
    #[cold]
    pub(crate) fn fail(&self, problem: Problem) -> Malformed {
        Malformed { offset: self.offset(), problem }
    }

    /// Reads the string at whose quote the cursor stands, unescaped.
    #[inline]
    pub(crate) fn text(&mut self) -> Result<Cow<'a, [u8]>, Malformed> {
        let inside = &self.piece[self.at + 1..];
        // As a rule a name lies in one piece and is written as it is read.
        if let Some(length) = string_end(inside).filter(|end| inside[*end] == b'"') {
            self.at += length + 2;
            return Ok(Cow::Borrowed(&inside[..length]));
        }
        let start = self.offset();
        self.skip_string()?;
        self.unquote(start..self.offset())
    }

    /// The contents of a string that stands at `range`, quotes included.
    fn unquote(&self, range: Range<usize>) -> Result<Cow<'a, [u8]>, Malformed> {
        let inner = range.start + 1..range.end - 1;
        let start = inner.start;
        scalar::unescape(self.source.gather(inner), start)
    }

    /// Skips space; the next byte.
    #[inline]
    pub(crate) fn token(&mut self) -> Result<u8, Malformed> {
        loop {
            match self.peek() {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(byte) => return Ok(byte),
                None => return Err(self.fail(Problem::End)),
            }
        }
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.token()? != byte {
            return Err(self.fail(Problem::Unexpected));
        }
        self.at += 1;
        Ok(())
    }

    #[inline]
    fn peek(&mut self) -> Option<u8> {
        match self.piece.get(self.at) {
            Some(byte) => Some(*byte),
            None => self.peek_beyond(),
        }
    }

    /// The first byte of the next piece, where this one has been passed.
    #[cold]
    fn peek_beyond(&mut self) -> Option<u8> {
        if self.advance() { self.peek() } else { None }
    }

    /// Goes to the next piece, if there is one.
    fn advance(&mut self) -> bool {
        let Some(piece) = self.source.piece(self.next) else { return false };
        self.next += 1;
        self.base += self.piece.len();
        (self.piece, self.at) = (piece, 0);
        true
    }

    fn skip_string(&mut self) -> Result<(), Malformed> {
        self.at += 1;
        loop {
            let rest = &self.piece[self.at..];
            let Some(distance) = string_end(rest) else {
                self.at = self.piece.len();
                if self.advance() {
                    continue;
                }
                return Err(self.fail(Problem::End));
            };
            self.at += distance + 1;
            if self.piece[self.at - 1] == b'"' {
                return Ok(());
            }
            self.peek().ok_or(self.fail(Problem::End))?;
            self.at += 1;
        }
    }

    fn skip_container(&mut self, open: u8, close: u8) -> Result<(), Malformed> {
        let mut nesting = Nesting::new(open, close);
        loop {
            if let Some(length) = nesting.end_in(&self.piece[self.at..]) {
                self.at += length;
                return Ok(());
            }
            self.at = self.piece.len();
            if !self.advance() {
                return Err(self.fail(Problem::End));
            }
        }
    }

    fn skip_literal(&mut self) -> Result<(), Malformed> {
        let rest = self.piece.get(self.at..).unwrap_or_default();
        // As a rule it is a number in one piece, which is checked while its end is looked for.
        if let Some(length) = scalar::number_length(rest)
            && rest.get(length).is_some_and(|next| ENDS_WORD[usize::from(*next)])
        {
            self.at += length;
            return Ok(());
        }
        let start = self.offset();
        let word = self.word();
        if !scalar::is_literal(&word) {
            return Err(Malformed { offset: start, problem: Problem::Literal });
        }
        Ok(())
    }

    fn literal(&mut self) -> Result<Scalar<'a>, Malformed> {
        let start = self.offset();
        let word = self.word();
        scalar::literal(&word).ok_or(Malformed { offset: start, problem: Problem::Literal })
    }

    /// What comes up to space, a quote or a sign of JSON.
    fn word(&mut self) -> Cow<'a, [u8]> {
        let (start, begin) = (self.offset(), self.at);
        let is_end = |byte: &u8| ENDS_WORD[usize::from(*byte)];
        let rest = self.piece.get(begin..).unwrap_or_default();
        if let Some(length) = rest.iter().position(is_end) {
            self.at += length;
            return Cow::Borrowed(&rest[..length]);
        }
        while self.peek().is_some_and(|byte| !is_end(&byte)) {
            self.at += 1;
        }
        self.source.gather(start..self.offset())
    }
}

/// Where the first quote or backslash stands. Most strings are short, and a search that is built for long ones costs
/// more than they do: it begins only where they would have ended.
#[inline]
fn string_end(text: &[u8]) -> Option<usize> {
    const SHORT_WORDS: usize = 6;
    const LOW: u64 = 0x0101_0101_0101_0101;
    // A byte that is equal becomes zero, and its highest bit is set when one is taken from it. The lowest of these bits
    // is where it stands first; those above it may be wrong.
    let find = |word: u64, byte: u8| (word ^ (LOW * u64::from(byte))).wrapping_sub(LOW);
    let words = &text.as_chunks::<8>().0;
    let words = &words[..words.len().min(SHORT_WORDS)];
    for (number, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = (find(word, b'"') | find(word, b'\\')) & !word & (LOW << 7);
        if found != 0 {
            return Some(number * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let passed = words.len() * 8;
    memchr2(b'"', b'\\', &text[passed..]).map(|distance| passed + distance)
}

impl std::fmt::Debug for Cursor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor").field("offset", &self.offset()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_ends_where_a_walk_byte_by_byte_finds_it() {
        for (count, end) in (0..70).flat_map(|count| [b'"', b'\\'].map(|end| (count, end))) {
            for byte in 0..=u8::MAX {
                let text = [&vec![byte; count][..], &[end], &[byte; 9]].concat();
                let expected = text.iter().position(|byte| [b'"', b'\\'].contains(byte));
                assert_eq!(string_end(&text), expected, "{count} times {byte}, {end}");
                assert_eq!(string_end(&text[..count]), expected.filter(|at| *at < count));
            }
        }
    }
}
