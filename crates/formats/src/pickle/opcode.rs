//! The opcodes: how long each is, and so where a pickle ends.

use memchr::memchr;

use super::{PickleError, PickleFault};

/// An opcode with its argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op<'a> {
    pub(super) code: u8,
    /// Without its length or the newline behind it; of a pair of lines both, with the newline between them.
    pub(super) argument: &'a [u8],
    /// Offset of the opcode.
    pub(super) at: usize,
}

/// Goes through a pickle opcode by opcode.
#[derive(Clone, Debug)]
pub(super) struct Ops<'a> {
    bytes: &'a [u8],
    at: usize,
}

pub(super) const MARK: u8 = b'(';
pub(super) const STOP: u8 = b'.';
pub(super) const MEMOIZE: u8 = 0x94;

/// The end of the pickle that begins at `start`: behind its STOP.
pub(crate) fn end_of(bytes: &[u8], start: usize) -> Result<usize, PickleError> {
    let mut ops = Ops::new(bytes, start);
    while ops.next()?.code != STOP {}
    Ok(ops.at)
}

/// A whole number of bytes that is not negative.
pub(super) fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

// === impl Ops ===

impl<'a> Ops<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    #[inline]
    pub(super) fn next(&mut self) -> Result<Op<'a>, PickleError> {
        let at = self.at;
        let cut = PickleError { offset: at, fault: PickleFault::Cut };
        let Some((&code, rest)) = self.bytes.get(at..).and_then(<[u8]>::split_first) else {
            return Err(cut);
        };
        let (argument, used) = match code {
            b'K' | b'h' | b'q' | 0x80 | 0x82 => (rest.get(..1), 1),
            b'M' | 0x83 => (rest.get(..2), 2),
            b'J' | b'j' | b'r' | 0x84 => (rest.get(..4), 4),
            b'G' | 0x95 => (rest.get(..8), 8),
            b'U' | b'C' | 0x8a | 0x8c => counted::<1>(rest),
            b'X' | b'T' | b'B' | 0x8b => counted::<4>(rest),
            0x8d | 0x8e | 0x96 => counted::<8>(rest),
            b'F' | b'I' | b'L' | b'P' | b'S' | b'V' | b'g' | b'p' => lines(rest, 1),
            b'c' | b'i' => lines(rest, 2),
            b'('
            | b'.'
            | b'0'
            | b'1'
            | b'2'
            | b'N'
            | b'Q'
            | b'R'
            | b'a'
            | b'b'
            | b'd'
            | b'}'
            | b'e'
            | b'l'
            | b']'
            | b'o'
            | b's'
            | b't'
            | b')'
            | b'u'
            | 0x81
            | 0x85..=0x89
            | 0x8f..=0x94
            | 0x97
            | 0x98 => (Some(&rest[..0]), 0),
            _ => return Err(PickleError { offset: at, fault: PickleFault::UnknownOpcode(code) }),
        };
        let argument = argument.ok_or(cut)?;
        self.at = at + 1 + used;
        Ok(Op { code, argument, at })
    }

    /// Offset of the next opcode.
    pub(super) fn position(&self) -> usize {
        self.at
    }
}

/// Bytes behind their number, little-endian in `N` bytes.
#[inline]
fn counted<const N: usize>(rest: &[u8]) -> (Option<&[u8]>, usize) {
    let Some(digits) = rest.first_chunk::<N>() else {
        return (None, 0);
    };
    let length = little_endian(digits);
    let end = usize::try_from(length).ok().and_then(|length| length.checked_add(N));
    (end.and_then(|end| rest.get(N..end)), end.unwrap_or(0))
}

fn lines(rest: &[u8], count: usize) -> (Option<&[u8]>, usize) {
    let mut end = 0;
    for _ in 0..count {
        match memchr(b'\n', &rest[end..]) {
            Some(length) => end += length + 1,
            None => return (None, 0),
        }
    }
    (Some(&rest[..end - 1]), end)
}
