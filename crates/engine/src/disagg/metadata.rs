//! Metadata rows: what a prefill server tells of the first token, one fixed-size row a request.
//!
//! The columns have the names, the order and the widths of SGLang's metadata buffers with slime's. Those that this engine has no
//! use for (speculation, hidden states) are left out; a further column is a further entry in [`COLUMNS`], before the room.
//! Numbers are little-endian. A row may end with the prefill side's durations, if both servers are told to.

use std::time::Duration;

use bytes::Bytes;

/// The first token and what is known of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FirstToken {
    /// The request that the row is of; 0 in a row that was not written.
    pub(crate) room: u64,
    pub(crate) token: u32,
    pub(crate) logprob: f32,
    /// The most likely tokens with their log-probabilities, at most [`MAX_TOP_LOGPROBS`].
    pub(crate) top: Vec<(f32, u32)>,
    /// The tokens that the filters kept, at most [`MAX_KEPT`]; empty if that was not asked for.
    pub(crate) kept: Vec<u32>,
    /// Tokens of the prompt that a prefix cache held.
    pub(crate) cached_tokens: u32,
    /// Durations on the prefill side; all zero in a row that has no place for them.
    pub(crate) timing: PrefillTiming,
}

/// Durations on the prefill side: those that are over when the row is written, so that both servers tell the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefillTiming {
    pub(crate) bootstrap_queue: Duration,
    pub(crate) bootstrap: Duration,
    pub(crate) alloc_wait: Duration,
}

/// Rows of one size, free or taken.
#[derive(Debug)]
pub(crate) struct MetadataBuffers {
    rows: Vec<u8>,
    free: Vec<Slot>,
    total: usize,
    row_bytes: usize,
}

/// A row that was taken. Not `Clone`: it comes back once.
#[derive(Debug)]
pub(crate) struct Slot(usize);

/// Where a column begins in a row. Its elements have four bytes; the room's have eight.
struct Column {
    offset: usize,
}

/// Most likely tokens that fit a row.
pub(crate) const MAX_TOP_LOGPROBS: usize = 128;
/// Kept tokens that fit a row.
pub(crate) const MAX_KEPT: usize = 4096;

/// Narrow columns are 16 elements wide: RDMA wants 64 bytes and more.
const NARROW_BYTES: usize = 16 * 4;
const TOP_BYTES: usize = MAX_TOP_LOGPROBS * 4;
const ROOM_BYTES: usize = 8 * 8;

const COLUMNS: [(&str, usize); 10] = [
    ("output_ids", NARROW_BYTES),
    ("cached_tokens", NARROW_BYTES),
    ("output_token_logprobs_val", NARROW_BYTES),
    ("output_token_logprobs_idx", NARROW_BYTES),
    ("output_top_logprobs_val", TOP_BYTES),
    ("output_top_logprobs_idx", TOP_BYTES),
    ("output_top_p_token_ids_len", NARROW_BYTES),
    ("output_top_p_token_ids", MAX_KEPT * 4),
    ("bootstrap_room", ROOM_BYTES),
    ("prefill_timing", NARROW_BYTES),
];

const OUTPUT_IDS: Column = column("output_ids");
const CACHED_TOKENS: Column = column("cached_tokens");
const LOGPROBS_VAL: Column = column("output_token_logprobs_val");
const LOGPROBS_IDX: Column = column("output_token_logprobs_idx");
const TOP_VAL: Column = column("output_top_logprobs_val");
const TOP_IDX: Column = column("output_top_logprobs_idx");
const KEPT_LEN: Column = column("output_top_p_token_ids_len");
const KEPT_IDS: Column = column("output_top_p_token_ids");
const ROOM: Column = column("bootstrap_room");
const TIMING: Column = column("prefill_timing");
/// Values that the column has places for.
const TIMING_VALUES: usize = 8;

/// What a row tells of the tokens that were kept: all of them, or the sampled one alone where they do not fit. Some of them
/// would be taken for all.
pub(crate) fn kept_that_fit(kept: &[u32], sampled: u32) -> Vec<u32> {
    if kept.len() > MAX_KEPT { vec![sampled] } else { kept.to_vec() }
}

/// Bytes of a row, with or without the durations.
pub(crate) const fn row_bytes(with_timing: bool) -> usize {
    if with_timing { TIMING.offset + NARROW_BYTES } else { TIMING.offset }
}

/// Marks a place among the most likely tokens that is not taken.
const NO_TOKEN: u32 = u32::MAX;

// === impl Column ===

/// The column of this name. A name that is not in the table does not compile.
const fn column(name: &'static str) -> Column {
    let mut offset = 0;
    let mut index = 0;
    while !same(COLUMNS[index].0, name) {
        offset += COLUMNS[index].1;
        index += 1;
    }
    Column { offset }
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut index = 0;
    while index < a.len() && index < b.len() && a[index] == b[index] {
        index += 1;
    }
    index == a.len() && index == b.len()
}

impl Column {
    fn put(&self, row: &mut [u8], index: usize, value: [u8; 4]) {
        row[self.offset + index * 4..][..4].copy_from_slice(&value);
    }

    fn get(&self, row: &[u8], index: usize) -> [u8; 4] {
        let mut value = [0; 4];
        value.copy_from_slice(&row[self.offset + index * 4..][..4]);
        value
    }
}

// === impl FirstToken ===

impl FirstToken {
    /// Fills a row of zeros.
    fn write(&self, row: &mut [u8]) {
        OUTPUT_IDS.put(row, 0, self.token.to_le_bytes());
        // The total, then what was on this device: there is nowhere else.
        CACHED_TOKENS.put(row, 0, self.cached_tokens.to_le_bytes());
        CACHED_TOKENS.put(row, 1, self.cached_tokens.to_le_bytes());
        LOGPROBS_VAL.put(row, 0, self.logprob.to_le_bytes());
        LOGPROBS_IDX.put(row, 0, self.token.to_le_bytes());
        for index in 0..MAX_TOP_LOGPROBS {
            let (logprob, token) = self.top.get(index).copied().unwrap_or((0.0, NO_TOKEN));
            TOP_VAL.put(row, index, logprob.to_le_bytes());
            TOP_IDX.put(row, index, token.to_le_bytes());
        }
        let kept = &self.kept[..self.kept.len().min(MAX_KEPT)];
        KEPT_LEN.put(row, 0, (kept.len() as u32).to_le_bytes());
        for (index, token) in kept.iter().enumerate() {
            KEPT_IDS.put(row, index, token.to_le_bytes());
        }
        if row.len() > TIMING.offset {
            self.timing.write(row);
        }
        row[ROOM.offset..][..8].copy_from_slice(&self.room.to_le_bytes());
    }

    /// Reads a row; `None` if it has not the size of one.
    pub(crate) fn read(row: &[u8]) -> Option<Self> {
        if row.len() != row_bytes(false) && row.len() != row_bytes(true) {
            return None;
        }
        let mut room = [0; 8];
        room.copy_from_slice(&row[ROOM.offset..][..8]);
        let top = (0..MAX_TOP_LOGPROBS)
            .map(|index| {
                (f32::from_le_bytes(TOP_VAL.get(row, index)), u32::from_le_bytes(TOP_IDX.get(row, index)))
            })
            .take_while(|(_, token)| *token != NO_TOKEN);
        let kept = (u32::from_le_bytes(KEPT_LEN.get(row, 0)) as usize).min(MAX_KEPT);
        Some(Self {
            room: u64::from_le_bytes(room),
            token: u32::from_le_bytes(OUTPUT_IDS.get(row, 0)),
            logprob: f32::from_le_bytes(LOGPROBS_VAL.get(row, 0)),
            top: top.collect(),
            kept: (0..kept).map(|index| u32::from_le_bytes(KEPT_IDS.get(row, index))).collect(),
            cached_tokens: u32::from_le_bytes(CACHED_TOKENS.get(row, 0)),
            timing: if row.len() > TIMING.offset {
                PrefillTiming::read(row)
            } else {
                PrefillTiming::default()
            },
        })
    }
}

// === impl PrefillTiming ===

impl PrefillTiming {
    /// Writes the values to their places in the column, seconds. The places between are of durations that the transfer is part
    /// of. What a value loses as an f32 is in the column's second half, so that it comes out to the nanosecond.
    fn write(&self, row: &mut [u8]) {
        for (index, duration) in [(0, self.bootstrap_queue), (3, self.bootstrap), (4, self.alloc_wait)] {
            let seconds = duration.as_secs_f64();
            let rest = seconds - f64::from(seconds as f32);
            TIMING.put(row, index, (seconds as f32).to_le_bytes());
            TIMING.put(row, index + TIMING_VALUES, (rest as f32).to_le_bytes());
        }
    }

    fn read(row: &[u8]) -> Self {
        let part = |index| f64::from(f32::from_le_bytes(TIMING.get(row, index)));
        let slot = |index| {
            let seconds = part(index) + part(index + TIMING_VALUES);
            Duration::try_from_secs_f64(seconds).unwrap_or_default()
        };
        Self { bootstrap_queue: slot(0), bootstrap: slot(3), alloc_wait: slot(4) }
    }
}

// === impl MetadataBuffers ===

impl MetadataBuffers {
    /// Rows of so many bytes ([`row_bytes`]).
    pub(crate) fn new(slots: usize, row_bytes: usize) -> Self {
        let free = (0..slots).rev().map(Slot).collect();
        Self { rows: vec![0; slots * row_bytes], free, total: slots, row_bytes }
    }

    /// Takes a row of zeros, if one is free.
    pub(crate) fn alloc(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Gives a row back, zeroed.
    pub(crate) fn release(&mut self, slot: Slot) {
        self.row_mut(&slot).fill(0);
        self.free.push(slot);
    }

    pub(crate) fn write(&mut self, slot: &Slot, first: &FirstToken) {
        let row = self.row_mut(slot);
        row.fill(0);
        first.write(row);
    }

    /// The row's bytes, to be sent.
    pub(crate) fn copy(&self, slot: &Slot) -> Bytes {
        Bytes::copy_from_slice(&self.rows[slot.0 * self.row_bytes..][..self.row_bytes])
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Rows taken.
    pub(crate) fn taken(&self) -> usize {
        self.total - self.free.len()
    }

    /// Whether each free row is zero.
    pub(crate) fn free_rows_are_zero(&self) -> bool {
        static ZEROS: [u8; row_bytes(true)] = [0; row_bytes(true)];
        self.free
            .iter()
            .all(|slot| self.rows[slot.0 * self.row_bytes..].starts_with(&ZEROS[..self.row_bytes]))
    }

    /// The row itself.
    pub(crate) fn row_mut(&mut self, slot: &Slot) -> &mut [u8] {
        &mut self.rows[slot.0 * self.row_bytes..][..self.row_bytes]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn first(room: u64) -> FirstToken {
        FirstToken {
            room,
            token: 1,
            logprob: -1.0,
            top: vec![],
            kept: vec![],
            cached_tokens: 0,
            timing: PrefillTiming::default(),
        }
    }

    proptest! {
        #[test]
        fn rows_come_back_as_they_were_written(
            (room, token, cached_tokens, with_timing) in (any::<u64>(), 0..NO_TOKEN, any::<u32>(), any::<bool>()),
            logprob in prop::num::f32::ANY,
            top in prop::collection::vec((-100.0_f32..0.0, 0..NO_TOKEN), 0..=MAX_TOP_LOGPROBS),
            kept in prop::collection::vec(any::<u32>(), 0..=MAX_KEPT),
            times_ns in prop::array::uniform3(0_u64..86_400_000_000_000),
        ) {
            let [bootstrap_queue, bootstrap, alloc_wait] = times_ns.map(Duration::from_nanos);
            let timing = if with_timing {
                PrefillTiming { bootstrap_queue, bootstrap, alloc_wait }
            } else {
                PrefillTiming::default()
            };
            let first = FirstToken { room, token, logprob, top, kept, cached_tokens, timing };
            let mut buffers = MetadataBuffers::new(1, row_bytes(with_timing));
            let slot = buffers.alloc().unwrap();
            buffers.write(&slot, &first);
            let read = FirstToken::read(&buffers.copy(&slot)).unwrap();
            prop_assert_eq!(read.logprob.to_bits(), first.logprob.to_bits());
            prop_assert_eq!(FirstToken { logprob: 0.0, ..read }, FirstToken { logprob: 0.0, ..first });
        }
    }

    #[test]
    fn more_kept_tokens_than_fit_are_the_sampled_one() {
        let kept: Vec<u32> = (0..=MAX_KEPT as u32).collect();
        assert_eq!(kept_that_fit(&kept[1..], 7), kept[1..]);
        assert_eq!(kept_that_fit(&kept, 7), [7]);
    }

    #[test]
    fn the_layout_is_the_one_agreed_on() {
        assert_eq!(row_bytes(false), 5 * 64 + 2 * 512 + 4096 * 4 + 64);
        assert_eq!(row_bytes(true), row_bytes(false) + 64);
        assert_eq!((OUTPUT_IDS.offset, LOGPROBS_VAL.offset, KEPT_LEN.offset), (0, 128, 1280));
        assert_eq!((ROOM.offset, TIMING.offset), (row_bytes(false) - 64, row_bytes(false)));
    }

    #[test]
    fn a_released_row_is_zero_and_free_again() {
        let mut buffers = MetadataBuffers::new(1, row_bytes(false));
        let slot = buffers.alloc().unwrap();
        assert!(buffers.alloc().is_none());
        buffers.write(&slot, &first(5));
        assert_eq!(FirstToken::read(&buffers.copy(&slot)).unwrap().room, 5);
        buffers.release(slot);
        assert!(buffers.taken() == 0 && buffers.free_rows_are_zero());
        assert_eq!(FirstToken::read(&[0; 8]), None);
    }
}
