//! Metadata rows: what a prefill server tells of the first token, one fixed-size row a request.
//!
//! The columns have the names, the order and the widths of SGLang's metadata buffers. Those that this engine has no use for
//! are left out; a further column is a further entry in [`COLUMNS`], before the room. Numbers are little-endian.

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
    /// Tokens of the prompt that a prefix cache held.
    pub(crate) cached_tokens: u32,
}

/// Rows of one size, free or taken.
#[derive(Debug)]
pub(crate) struct MetadataBuffers {
    rows: Vec<u8>,
    free: Vec<Slot>,
    total: usize,
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

/// Narrow columns are 16 elements wide: RDMA wants 64 bytes and more.
const NARROW_BYTES: usize = 16 * 4;
const TOP_BYTES: usize = MAX_TOP_LOGPROBS * 4;
const ROOM_BYTES: usize = 8 * 8;

const COLUMNS: [(&str, usize); 7] = [
    ("output_ids", NARROW_BYTES),
    ("cached_tokens", NARROW_BYTES),
    ("output_token_logprobs_val", NARROW_BYTES),
    ("output_token_logprobs_idx", NARROW_BYTES),
    ("output_top_logprobs_val", TOP_BYTES),
    ("output_top_logprobs_idx", TOP_BYTES),
    ("bootstrap_room", ROOM_BYTES),
];

const OUTPUT_IDS: Column = column("output_ids");
const CACHED_TOKENS: Column = column("cached_tokens");
const LOGPROBS_VAL: Column = column("output_token_logprobs_val");
const LOGPROBS_IDX: Column = column("output_token_logprobs_idx");
const TOP_VAL: Column = column("output_top_logprobs_val");
const TOP_IDX: Column = column("output_top_logprobs_idx");
const ROOM: Column = column("bootstrap_room");

/// Bytes of a row.
pub(crate) const ROW_BYTES: usize = {
    let mut bytes = 0;
    let mut index = 0;
    while index < COLUMNS.len() {
        bytes += COLUMNS[index].1;
        index += 1;
    }
    bytes
};

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
    /// Fills a row of [`ROW_BYTES`].
    fn write(&self, row: &mut [u8]) {
        row.fill(0);
        OUTPUT_IDS.put(row, 0, self.token.to_le_bytes());
        CACHED_TOKENS.put(row, 0, self.cached_tokens.to_le_bytes());
        LOGPROBS_VAL.put(row, 0, self.logprob.to_le_bytes());
        LOGPROBS_IDX.put(row, 0, self.token.to_le_bytes());
        for index in 0..MAX_TOP_LOGPROBS {
            let (logprob, token) = self.top.get(index).copied().unwrap_or((0.0, NO_TOKEN));
            TOP_VAL.put(row, index, logprob.to_le_bytes());
            TOP_IDX.put(row, index, token.to_le_bytes());
        }
        row[ROOM.offset..][..8].copy_from_slice(&self.room.to_le_bytes());
    }

    /// Reads a row; `None` if it has not [`ROW_BYTES`].
    pub(crate) fn read(row: &[u8]) -> Option<Self> {
        if row.len() != ROW_BYTES {
            return None;
        }
        let mut room = [0; 8];
        room.copy_from_slice(&row[ROOM.offset..][..8]);
        let top = (0..MAX_TOP_LOGPROBS)
            .map(|index| {
                (f32::from_le_bytes(TOP_VAL.get(row, index)), u32::from_le_bytes(TOP_IDX.get(row, index)))
            })
            .take_while(|(_, token)| *token != NO_TOKEN);
        Some(Self {
            room: u64::from_le_bytes(room),
            token: u32::from_le_bytes(OUTPUT_IDS.get(row, 0)),
            logprob: f32::from_le_bytes(LOGPROBS_VAL.get(row, 0)),
            top: top.collect(),
            cached_tokens: u32::from_le_bytes(CACHED_TOKENS.get(row, 0)),
        })
    }
}

// === impl MetadataBuffers ===

impl MetadataBuffers {
    pub(crate) fn new(slots: usize) -> Self {
        Self { rows: vec![0; slots * ROW_BYTES], free: (0..slots).rev().map(Slot).collect(), total: slots }
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
        first.write(self.row_mut(slot));
    }

    /// The row's bytes, to be sent.
    pub(crate) fn copy(&self, slot: &Slot) -> Bytes {
        Bytes::copy_from_slice(&self.rows[slot.0 * ROW_BYTES..][..ROW_BYTES])
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Rows taken.
    pub(crate) fn taken(&self) -> usize {
        self.total - self.free.len()
    }

    /// The row itself.
    pub(crate) fn row_mut(&mut self, slot: &Slot) -> &mut [u8] {
        &mut self.rows[slot.0 * ROW_BYTES..][..ROW_BYTES]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_come_back_as_they_were_written(
            (room, token, cached_tokens) in (any::<u64>(), 0..NO_TOKEN, any::<u32>()),
            logprob in prop::num::f32::ANY,
            top in prop::collection::vec((-100.0_f32..0.0, 0..NO_TOKEN), 0..=MAX_TOP_LOGPROBS),
        ) {
            let first = FirstToken { room, token, logprob, top, cached_tokens };
            let mut row = vec![7; ROW_BYTES];
            first.write(&mut row);
            let read = FirstToken::read(&row).unwrap();
            prop_assert_eq!(read.logprob.to_bits(), first.logprob.to_bits());
            prop_assert_eq!(FirstToken { logprob: 0.0, ..read }, FirstToken { logprob: 0.0, ..first });
        }
    }

    #[test]
    fn the_layout_is_the_one_agreed_on() {
        assert_eq!(ROW_BYTES, 4 * 64 + 2 * 512 + 64);
        assert_eq!((OUTPUT_IDS.offset, LOGPROBS_VAL.offset, ROOM.offset), (0, 128, ROW_BYTES - 64));
    }

    #[test]
    fn a_released_row_is_zero_and_free_again() {
        let mut buffers = MetadataBuffers::new(1);
        let slot = buffers.alloc().unwrap();
        assert!(buffers.alloc().is_none());
        buffers.write(&slot, &FirstToken { room: 5, token: 1, logprob: -1.0, top: vec![], cached_tokens: 0 });
        assert_eq!(FirstToken::read(&buffers.copy(&slot)).unwrap().room, 5);
        buffers.release(slot);
        assert_eq!(buffers.taken(), 0);
        let slot = buffers.alloc().unwrap();
        assert_eq!(FirstToken::read(&buffers.copy(&slot)).unwrap().room, 0);
        assert_eq!(FirstToken::read(&[0; 8]), None);
    }
}
