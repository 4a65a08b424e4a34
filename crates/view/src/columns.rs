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

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

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
    heads: Heads<&'static str>,
    data: Vec<u8>,
}

/// A table that was made.
#[derive(Debug)]
pub(crate) struct Table<'a, M> {
    meta: M,
    heads: Heads<String>,
    data: &'a [u8],
}

/// By the name of a column its kind, first byte and entries.
type Heads<T> = BTreeMap<String, (T, usize, usize)>;

#[derive(Serialize)]
struct Head<'a, M> {
    meta: &'a M,
    columns: &'a Heads<&'static str>,
}

#[derive(Deserialize)]
struct ReadHead<M> {
    meta: M,
    columns: Heads<String>,
}

// === impl Columns ===

impl Columns {
    /// With room for so many bytes of columns and of what stands beside them.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { data: Vec::with_capacity(bytes), ..Self::default() }
    }

    pub(crate) fn put(&mut self, name: &str, column: &Column) {
        let first = self.data.len();
        let (kind, entries) = match column {
            Column::F64(values) => ("f64", self.extend(values, f64::to_le_bytes)),
            Column::F32(values) => ("f32", self.extend(values, f32::to_le_bytes)),
            Column::I32(values) => ("i32", self.extend(values, i32::to_le_bytes)),
            Column::U32(values) => ("u32", self.extend(values, u32::to_le_bytes)),
            Column::U8(values) => ("u8", self.extend(values, |value| [value])),
        };
        self.data.resize(self.data.len().next_multiple_of(ALIGNMENT), 0);
        self.heads.insert(name.to_owned(), (kind, first, entries));
    }

    pub(crate) fn into_bytes(self, meta: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
        let mut head = serde_json::to_vec(&Head { meta, columns: &self.heads })?;
        head.resize(head.len().next_multiple_of(ALIGNMENT), b' ');
        let begin = MAGIC.into_iter().chain((head.len() as u32).to_le_bytes()).chain(head);
        let begin: Vec<u8> = begin.collect();
        let mut bytes = self.data;
        // There may be room behind them, where all would have to be copied to a new place otherwise.
        bytes.splice(0..0, begin);
        Ok(bytes)
    }

    fn extend<T: Copy, const N: usize>(&mut self, values: &[T], bytes_of: fn(T) -> [u8; N]) -> usize {
        let first = self.data.len();
        self.data.reserve(values.len() * N + ALIGNMENT);
        self.data.resize(first + values.len() * N, 0);
        for (bytes, value) in self.data[first..].as_chunks_mut().0.iter_mut().zip(values) {
            *bytes = bytes_of(*value);
        }
        values.len()
    }
}

// === impl Table ===

impl<'a, M: DeserializeOwned> Table<'a, M> {
    /// Reads what [`Columns`] wrote; nothing where it is something else.
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        let (length, rest) = bytes.strip_prefix(&MAGIC)?.split_first_chunk()?;
        let (head, data) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let ReadHead { meta, columns } = serde_json::from_slice(head).ok()?;
        Some(Self { meta, heads: columns, data })
    }
}

impl<M> Table<'_, M> {
    pub(crate) fn meta(&self) -> &M {
        &self.meta
    }

    pub(crate) fn into_meta(self) -> M {
        self.meta
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.heads.keys().map(String::as_str)
    }

    pub(crate) fn entries(&self, name: &str) -> Option<usize> {
        self.heads.get(name).map(|(_, _, entries)| *entries)
    }

    pub(crate) fn column(&self, name: &str) -> Option<Column> {
        Self::gathered(&[self], name, (0..self.entries(name)?).map(|entry| (0, entry)))
    }

    /// Entries of a column of several tables, each by the number of its table and its place there; nothing where one of them is
    /// not there, or the tables have columns of different kinds.
    pub(crate) fn gathered(
        tables: &[&Self],
        name: &str,
        at: impl Iterator<Item = (usize, usize)>,
    ) -> Option<Column> {
        let (kind, ..) = tables.first()?.heads.get(name)?;
        Some(match kind.as_str() {
            "f64" => Column::F64(gathered(tables, (name, kind), at, f64::from_le_bytes)?),
            "f32" => Column::F32(gathered(tables, (name, kind), at, f32::from_le_bytes)?),
            "i32" => Column::I32(gathered(tables, (name, kind), at, i32::from_le_bytes)?),
            "u32" => Column::U32(gathered(tables, (name, kind), at, u32::from_le_bytes)?),
            "u8" => Column::U8(gathered(tables, (name, kind), at, u8::from_le_bytes)?),
            _ => return None,
        })
    }

    fn values<const N: usize>(&self, (name, kind): (&str, &str)) -> Option<&[[u8; N]]> {
        let (found, first, entries) = self.heads.get(name)?;
        let (values, _) = self.data.get(*first..)?.as_chunks();
        values.get(..*entries).filter(|_| found == kind)
    }
}

fn gathered<M, T, const N: usize>(
    tables: &[&Table<'_, M>],
    of: (&str, &str),
    at: impl Iterator<Item = (usize, usize)>,
    value: fn([u8; N]) -> T,
) -> Option<Vec<T>> {
    let columns: Vec<&[[u8; N]]> = tables.iter().map(|table| table.values(of)).collect::<Option<_>>()?;
    at.map(|(table, entry)| columns.get(table)?.get(entry).map(|bytes| value(*bytes))).collect()
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
        let bytes = table.into_bytes(&json!({"step": 4})).unwrap();
        let (meta, columns) = read(&bytes);
        assert_eq!(meta, json!({"step": 4}));
        assert_eq!(columns["bytes"], [1.0, 2.0, 255.0]);
        assert_eq!(columns["times"], [-1.5, 1e18]);
        assert_eq!(columns["indices"], [-1.0, 7.0, 8.0]);
        assert!(columns["none"].is_empty());
        let table: Table<'_, Value> = Table::of(&bytes).unwrap();
        assert_eq!(table.names().collect::<Vec<_>>(), ["bytes", "indices", "none", "times"]);
        assert_eq!((table.entries("times"), table.entries("nothing")), (Some(2), None));
        let Some(Column::I32(indices)) = table.column("indices") else { panic!("{table:?}") };
        assert_eq!(indices, [-1, 7, 8]);
        // The last column ends with four bytes that fill it up.
        for cut in 0..bytes.len() - 4 {
            let table: Option<Table<'_, Value>> = Table::of(&bytes[..cut]);
            assert!(table.is_none_or(|table| table.column("indices").is_none()), "{cut}");
        }
    }
}
