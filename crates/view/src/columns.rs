//! Typed columns as bytes: what the page reads into typed arrays without a copy.
//!
//! ```text
//! "RSC1"  length of the head, u32
//! head    JSON {"meta": …, "columns": {name: [kind, first byte, entries]}}, filled up with blanks to 8 bytes
//! data    the columns one after the other, little-endian, each begun at a multiple of 8 bytes
//! ```
//!
//! Kinds are those of `Column`; a first byte counts from the begin of the data.

use std::collections::BTreeMap;

use serde::Serialize;

const MAGIC: [u8; 4] = *b"RSC1";
/// Typed arrays want their elements at multiples of their size.
const ALIGNMENT: usize = 8;

/// One column.
#[derive(Debug)]
pub(crate) enum Column {
    F64(Vec<f64>),
    F32(Vec<f32>),
    I32(Vec<i32>),
    U32(Vec<u32>),
    U8(Vec<u8>),
}

/// A table in the making.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    heads: BTreeMap<&'static str, (&'static str, usize, usize)>,
    data: Vec<u8>,
}

#[derive(Serialize)]
struct Head<'a, M> {
    meta: &'a M,
    columns: &'a BTreeMap<&'static str, (&'static str, usize, usize)>,
}

// === impl Columns ===

impl Columns {
    pub(crate) fn put(&mut self, name: &'static str, column: &Column) {
        let first = self.data.len();
        let (kind, entries) = match column {
            Column::F64(values) => ("f64", self.extend(values, f64::to_le_bytes)),
            Column::F32(values) => ("f32", self.extend(values, f32::to_le_bytes)),
            Column::I32(values) => ("i32", self.extend(values, i32::to_le_bytes)),
            Column::U32(values) => ("u32", self.extend(values, u32::to_le_bytes)),
            Column::U8(values) => ("u8", self.extend(values, |value| [value])),
        };
        self.data.resize(self.data.len().next_multiple_of(ALIGNMENT), 0);
        self.heads.insert(name, (kind, first, entries));
    }

    pub(crate) fn into_bytes(self, meta: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
        let mut head = serde_json::to_vec(&Head { meta, columns: &self.heads })?;
        head.resize(head.len().next_multiple_of(ALIGNMENT), b' ');
        let mut bytes = Vec::with_capacity(ALIGNMENT + head.len() + self.data.len());
        bytes.extend(MAGIC);
        bytes.extend((head.len() as u32).to_le_bytes());
        bytes.extend(head);
        bytes.extend(self.data);
        Ok(bytes)
    }

    fn extend<T: Copy, const N: usize>(&mut self, values: &[T], bytes_of: fn(T) -> [u8; N]) -> usize {
        self.data.reserve(values.len() * N + ALIGNMENT);
        for value in values {
            self.data.extend(bytes_of(*value));
        }
        values.len()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Reads a table back: its meta and its columns.
    pub(crate) fn read(bytes: &[u8]) -> (Value, BTreeMap<String, Vec<f64>>) {
        assert_eq!(bytes[..4], MAGIC);
        let length = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let mut head: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let data = &bytes[8 + length..];
        let columns = head["columns"].take();
        let columns = columns.as_object().unwrap().iter().map(|(name, of)| {
            let (first, entries) = (of[1].as_u64().unwrap() as usize, of[2].as_u64().unwrap() as usize);
            assert_eq!(first % ALIGNMENT, 0);
            let size = match of[0].as_str().unwrap() {
                "f64" => 8,
                "u8" => 1,
                _ => 4,
            };
            let value = |at: usize| {
                let bytes = &data[first + at * size..first + (at + 1) * size];
                match of[0].as_str().unwrap() {
                    "f64" => f64::from_le_bytes(bytes.try_into().unwrap()),
                    "f32" => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
                    "i32" => i32::from_le_bytes(bytes.try_into().unwrap()).into(),
                    "u32" => u32::from_le_bytes(bytes.try_into().unwrap()).into(),
                    _ => bytes[0].into(),
                }
            };
            (name.clone(), (0..entries).map(value).collect())
        });
        (head["meta"].take(), columns.collect())
    }

    #[test]
    fn what_is_put_is_read_back() {
        let mut table = Columns::default();
        table.put("bytes", &Column::U8(vec![1, 2, 255]));
        table.put("times", &Column::F64(vec![-1.5, 1e18]));
        table.put("indices", &Column::I32(vec![-1, 7, 8]));
        table.put("none", &Column::U32(vec![]));
        let (meta, columns) = read(&table.into_bytes(&json!({"step": 4})).unwrap());
        assert_eq!(meta, json!({"step": 4}));
        assert_eq!(columns["bytes"], [1.0, 2.0, 255.0]);
        assert_eq!(columns["times"], [-1.5, 1e18]);
        assert_eq!(columns["indices"], [-1.0, 7.0, 8.0]);
        assert!(columns["none"].is_empty());
    }
}
