//! Where a container ends, found 64 bytes at a time.
//!
//! A container ends at the bracket that balances it, whatever brackets of the other kind stand between; brackets
//! inside of strings do not count. Large replies are lists of token log-probabilities, so most of a body passes
//! through here, and it is the one place that must not look at bytes one by one.
//!
//! Each of the four bytes that matter becomes a mask of where it stands in a block of 64. Three steps follow:
//!
//! 1. Quotes that a backslash escapes are taken out of their mask.
//! 2. The parity of the quotes up to a byte tells whether it is inside of a string; brackets there are taken out.
//! 3. The container can not end in a block with fewer closing brackets than it is deep, nor, unless it is but one
//!    deep, in one whose brackets take turns, as in `],[`: the depth then never falls by more than one. Only in what
//!    remains, its last block as a rule, are the brackets gone through.
//!
//! Most of a list of log-probabilities is one `],[` after the other, without a string. There counting is enough, in rows
//! of 128 bytes: if every closing bracket of a row has a comma and an opening one behind it, and every opening one comes
//! from there, the depth is the same behind the row, and was never less by more than one.
//!
//! All of this is plain code that the compiler makes vector instructions of; it is compiled a second time for processors
//! with wider ones.
//!
//! A mask holds its bits by columns: bit 8 c + r stands for byte 8 r + c. The compiler makes vector instructions of
//! and-ing comparisons with a table of weights and or-ing the rows together, which gives this order; the order of
//! the bytes themselves would cost twice as much, and only escapes and the last block need it.

#![expect(clippy::inline_always, reason = "what is compiled a second time is what is inlined there")]

/// A container that is being passed, bracket by bracket and from piece to piece of its body.
#[derive(Debug)]
pub(crate) struct Nesting {
    open: u8,
    close: u8,
    /// Containers that are open.
    depth: usize,
    /// All bits, if what comes is inside of a string.
    in_string: u64,
    /// Whether the next byte is escaped.
    is_escaped: bool,
}

/// [`Nesting::pass`], to be compiled for processors with wider vectors.
#[cfg(target_arch = "x86_64")]
struct Passage<'a> {
    nesting: &'a mut Nesting,
    bytes: &'a [u8],
}

const BLOCK_BYTES: usize = 64;
/// Counts of a row have room in a byte.
const ROW_BYTES: usize = 128;
/// A row, and where the bracket stands that its last byte calls for.
const ROW_AND_NEXT_BYTES: usize = ROW_BYTES + 2;

/// The bit of its column that a byte has.
const WEIGHTS: [u8; BLOCK_BYTES] = {
    let mut weights = [0; BLOCK_BYTES];
    let mut at = 0;
    while at < BLOCK_BYTES {
        weights[at] = 1 << (at / 8);
        at += 1;
    }
    weights
};

// === impl Nesting ===

impl Nesting {
    /// A container with these brackets, the first of which is still to come.
    pub(crate) fn new(open: u8, close: u8) -> Self {
        Self { open, close, depth: 0, in_string: 0, is_escaped: false }
    }

    /// Containers with these brackets, so many of which have been opened.
    pub(crate) fn within(open: u8, close: u8, depth: usize) -> Self {
        Self { depth, ..Self::new(open, close) }
    }

    /// Passes over bytes; up to where, if the container ends in them.
    pub(crate) fn end_in(&mut self, bytes: &[u8]) -> Option<usize> {
        #[cfg(target_arch = "x86_64")]
        if let Some(wide) = pulp::x86::V3::try_new() {
            return wide.vectorize(Passage { nesting: self, bytes });
        }
        self.pass(bytes)
    }

    #[inline(always)]
    fn pass(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut passed = 0;
        while passed < bytes.len() {
            passed += self.pass_rows(&bytes[passed..]);
            let rest = &bytes[passed..];
            let length = rest.len().min(BLOCK_BYTES);
            let mut padded = [0; BLOCK_BYTES];
            let block = rest.first_chunk().unwrap_or_else(|| {
                padded[..length].copy_from_slice(rest);
                &padded
            });
            if let Some(end) = self.end_in_block(block, length) {
                return Some(passed + end);
            }
            passed += length;
        }
        None
    }

    /// Passes over rows of `],[` and of what is neither a bracket nor a string; how many bytes that are.
    #[inline(always)]
    fn pass_rows(&mut self, bytes: &[u8]) -> usize {
        // The first two bytes could only be called for by what is gone.
        let is_apart = bytes.iter().take(2).all(|byte| *byte != self.open);
        if self.depth < 2 || self.in_string != 0 || self.is_escaped || !is_apart {
            return 0;
        }
        let mut passed = 0;
        while let Some(row) = bytes[passed..].first_chunk()
            && self.takes_turns(row)
        {
            passed += ROW_BYTES;
        }
        if passed > 0 {
            // What the last row calls for has been taken to be there, and is looked at again.
            self.depth -= bytes[passed..].iter().take(2).filter(|byte| **byte == self.open).count();
        }
        passed
    }

    /// Whether every closing bracket of a row has a comma and an opening one behind it, every opening one comes from there,
    /// and there is no string.
    #[inline(always)]
    fn takes_turns(&self, row: &[u8; ROW_AND_NEXT_BYTES]) -> bool {
        let (mut opened, mut closed, mut turned, mut others) = (0_u8, 0_u8, 0_u8, 0_u8);
        for at in 0..ROW_BYTES {
            let (close, open) = (u8::from(row[at] == self.close), u8::from(row[at + 2] == self.open));
            opened += open;
            closed += close;
            turned += close & open & u8::from(row[at + 1] == b',');
            others |= u8::from(row[at] == b'"') | u8::from(row[at] == b'\\');
        }
        others == 0 && opened == turned && closed == turned
    }

    /// Passes over the first `length` bytes of a block; what follows them is zero.
    #[inline(always)]
    fn end_in_block(&mut self, block: &[u8; BLOCK_BYTES], length: usize) -> Option<usize> {
        let mut quotes = mask(block, b'"');
        let has_backslash = block.iter().fold(0, |has, byte| has | u8::from(*byte == b'\\')) > 0;
        if has_backslash || self.is_escaped {
            quotes &= !self.escaped(block, length);
        }
        let inside = if quotes > 0 { parity(quotes) ^ self.in_string } else { self.in_string };
        // The sign bit is the last byte's in any order.
        self.in_string = ((inside as i64) >> 63) as u64;
        let opening = mask(block, self.open) & !inside;
        let closing = mask(block, self.close) & !inside;
        if opening | closing == 0 {
            return None;
        }
        let (opened, closed) = (opening.count_ones() as usize, closing.count_ones() as usize);
        let odd = parity(opening | closing) & (opening | closing);
        let is_within =
            closed < self.depth || (odd == opening && self.depth >= 1) || (odd == closing && self.depth >= 2);
        if is_within {
            self.depth = self.depth + opened - closed;
            return None;
        }
        self.end_among(in_order(opening), in_order(closing))
    }

    /// Goes through brackets one by one; the end is behind the bracket that balances the first.
    fn end_among(&mut self, opening: u64, closing: u64) -> Option<usize> {
        let mut brackets = opening | closing;
        while brackets != 0 {
            let bracket = brackets & brackets.wrapping_neg();
            if opening & bracket != 0 {
                self.depth += 1;
            } else {
                self.depth -= 1;
            }
            if self.depth == 0 {
                return Some(bracket.trailing_zeros() as usize + 1);
            }
            brackets ^= bracket;
        }
        None
    }

    /// The bytes that stand behind a backslash which is not behind one itself.
    fn escaped(&mut self, block: &[u8; BLOCK_BYTES], length: usize) -> u64 {
        let mut escaped = u64::from(std::mem::take(&mut self.is_escaped));
        let mut backslashes = in_order(mask(block, b'\\')) & !escaped;
        while backslashes != 0 {
            let backslash = backslashes & backslashes.wrapping_neg();
            self.is_escaped = backslash.trailing_zeros() as usize + 1 == length;
            escaped |= backslash << 1;
            backslashes &= !(backslash | backslash << 1);
        }
        in_order(escaped)
    }
}

// === impl Passage ===

#[cfg(target_arch = "x86_64")]
impl pulp::NullaryFnOnce for Passage<'_> {
    type Output = Option<usize>;

    #[inline(always)]
    fn call(self) -> Option<usize> {
        self.nesting.pass(self.bytes)
    }
}

/// Where a byte stands in a block.
#[inline(always)]
fn mask(block: &[u8; BLOCK_BYTES], byte: u8) -> u64 {
    let hit = |at: usize| u8::from(block[at] == byte).wrapping_neg() & WEIGHTS[at];
    let mut rows = [0; 16];
    for (at, rows) in rows.iter_mut().enumerate() {
        *rows = hit(at) | hit(at + 16) | hit(at + 32) | hit(at + 48);
    }
    let rows = u128::from_le_bytes(rows);
    (rows | rows >> 64) as u64
}

/// Of each byte whether it and those before it have an odd number of bits in the mask.
#[inline(always)]
fn parity(mask: u64) -> u64 {
    let mut within_row = mask ^ (mask << 8);
    within_row ^= within_row << 16;
    within_row ^= within_row << 32;
    let rows = within_row >> 56;
    let mut up_to_row = rows ^ (rows << 1);
    up_to_row ^= up_to_row << 2;
    up_to_row ^= up_to_row << 4;
    let before_row = (up_to_row << 1) & 0xFF;
    within_row ^ before_row.wrapping_mul(0x0101_0101_0101_0101)
}

/// The mask with its bits in the order of the bytes, or back: an 8 by 8 matrix of bits transposed, in three steps
/// that exchange single bits, pairs and fours across the diagonal.
fn in_order(mut mask: u64) -> u64 {
    for (distance, upper) in
        [(7, 0x00AA_00AA_00AA_00AA), (14, 0x0000_CCCC_0000_CCCC), (28, 0x0000_0000_F0F0_F0F0_u64)]
    {
        let exchanged = (mask ^ (mask >> distance)) & upper;
        mask ^= exchanged ^ (exchanged << distance);
    }
    mask
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Byte by byte.
    fn expected(bytes: &[u8], open: u8, close: u8) -> Option<usize> {
        let (mut depth, mut in_string, mut is_escaped) = (0, false, false);
        for (at, byte) in bytes.iter().enumerate() {
            let was_escaped = std::mem::take(&mut is_escaped);
            match byte {
                b'\\' => is_escaped = !was_escaped,
                b'"' if !was_escaped => in_string = !in_string,
                byte if *byte == open && !in_string => depth += 1,
                byte if *byte == close && !in_string => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(at + 1);
            }
        }
        None
    }

    fn check(bytes: &[u8], pieces: &[usize]) {
        for (open, close) in [(b'[', b']'), (b'{', b'}')] {
            let bytes = [&[open], bytes].concat();
            let mut nesting = Nesting::new(open, close);
            let (mut rest, mut passed, mut end) = (&bytes[..], 0, None);
            for size in pieces.iter().cycle() {
                let (piece, after) = rest.split_at((*size).min(rest.len()));
                end = nesting.end_in(piece).map(|end| passed + end);
                (rest, passed) = (after, passed + piece.len());
                if end.is_some() || rest.is_empty() {
                    break;
                }
            }
            assert_eq!(end, expected(&bytes, open, close), "{:?}", String::from_utf8_lossy(&bytes));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn the_end_is_where_a_walk_byte_by_byte_finds_it(
            bytes in "([\\[\\]{},1]|(-0.12345,1,null\\],\\[){0,30}|\"[\\[\\]{}a]{0,3}\"|\"(\\\\\\\\|\\\\\"|[a\\[\\]]){0,70}\"|\\],\\[){0,80}[\\]\"]{0,4}",
            pieces in prop::collection::vec(1_usize..200, 1..6),
        ) {
            check(bytes.as_bytes(), &pieces);
        }

        #[test]
        fn no_order_of_brackets_quotes_and_backslashes_is_special(
            bytes in prop::collection::vec(prop::sample::select(&b"[[[]]{}\"\"a\\"[..]), 0..300),
            pieces in prop::collection::vec(1_usize..80, 1..6),
        ) {
            check(&bytes, &pieces);
        }
    }

    #[test]
    fn deep_nesting_and_long_lists_end_where_they_end() {
        for text in [
            format!("{}{}x", "[".repeat(1000), "]".repeat(1001)),
            format!("{}]]", "[0.1,2,null],".repeat(500)),
            format!("[{}1]]]x", "[0.1,2,null],".repeat(500)),
            format!("[{}[1]]]x", "[-0.25,2,null],".repeat(100)),
            format!("[[{}1]]]]x", "[1],".repeat(100)),
            format!("[{}]]x", "1],[".repeat(100)),
            format!("[{}]]]]]]", "1]],[[".repeat(100)),
            format!("[{}", "],1]".repeat(100)),
            format!("{}]]", "[0.1,2,\"\\\\\"],[0.1,3,\"\\\"]\"], ".repeat(500)),
            "]".to_owned(),
            String::new(),
        ] {
            for pieces in [&[1][..], &[63, 64, 65], &[7], &[100_000]] {
                check(text.as_bytes(), pieces);
            }
        }
    }

    #[test]
    fn a_mask_in_order_has_the_bits_of_its_bytes() {
        let block = std::array::from_fn(|at| if at % 3 == 0 || at > 60 { b'x' } else { b'.' });
        let bits = (0..64).filter(|at| block[*at] == b'x').fold(0, |bits, at| bits | 1 << at);
        assert_eq!(in_order(mask(&block, b'x')), bits);
        assert_eq!(in_order(bits), mask(&block, b'x'));
        let odd = (0..64).filter(|at| (bits & (u64::MAX >> (63 - at))).count_ones() % 2 == 1);
        assert_eq!(in_order(parity(mask(&block, b'x'))), odd.fold(0, |odd, at| odd | 1 << at));
    }
}
