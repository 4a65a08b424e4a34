//! Columns of a table: how their values are held, and as what they are written.
//!
//! Values are written as what costs least: whole numbers by their differences, texts that repeat by a dictionary (to build
//! one of values that do not costs more than all else), and only what can become much smaller is compressed.

use std::io::Write;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterPropertiesBuilder};
use parquet::file::writer::SerializedRowGroupWriter;
use parquet::schema::types::{ColumnPath, Type};

/// By so many of a column's first values it is told whether they repeat.
const LOOKED_AT: usize = 256;

/// So few different ones are names of a closed set, or of the workers.
const FEW: usize = 4;

/// Texts that do not repeat and are no longer than this are not compressed.
const SHORT_BYTES: usize = 40;

/// Texts that are handed to the encoder at once.
const TEXTS_AT_ONCE: usize = 512;

/// No more room is made at once for values, and for bytes of texts: the first ones may be far longer than those that follow.
const MOST_RESERVED: usize = 16 << 20;

/// A column of a table.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) required: bool,
    pub(super) values: Values,
    /// Per row 1 for a value and 0 for none; not used by a required column.
    pub(super) levels: Vec<i16>,
}

#[derive(Debug)]
pub(super) enum Values {
    Bool(Vec<bool>),
    Int(Vec<i64>),
    Double(Vec<f64>),
    Text(Texts),
    /// Texts of any length, of which the first ones do not tell how long the others are: always compressed.
    Long(Texts),
    /// Texts of which no two are alike, and which nobody looks for by their order.
    Id(Texts),
}

/// Texts, one after the other: an allocation for each would cost more than all else.
#[derive(Debug, Default)]
pub(super) struct Texts {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

// === impl Column ===

impl Column {
    pub(super) fn schema(&self) -> Result<Arc<Type>, ParquetError> {
        let (physical, logical) = match self.values {
            Values::Bool(_) => (Physical::BOOLEAN, None),
            Values::Int(_) => (Physical::INT64, None),
            Values::Double(_) => (Physical::DOUBLE, None),
            Values::Text(_) | Values::Long(_) | Values::Id(_) => {
                (Physical::BYTE_ARRAY, Some(LogicalType::String))
            }
        };
        let repetition = if self.required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
        let builder = Type::primitive_type_builder(self.name, physical).with_repetition(repetition);
        builder.with_logical_type(logical).build().map(Arc::new)
    }

    /// Says how it is to be written, by its first values.
    pub(super) fn choose(&self, properties: WriterPropertiesBuilder) -> WriterPropertiesBuilder {
        let path = ColumnPath::from(self.name);
        match &self.values {
            Values::Int(_) => properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED),
            Values::Double(values) if do_repeat(distinct(values.iter().map(|value| value.to_bits()))) => {
                properties.set_column_compression(path, Compression::SNAPPY)
            }
            Values::Text(texts) | Values::Long(texts) if do_repeat(texts.distinct()) => {
                let (different, _) = texts.distinct();
                // Bounds of a few names tell nothing that the names, which stand in the dictionary, do not.
                let bounds =
                    if different <= FEW { EnabledStatistics::None } else { EnabledStatistics::Chunk };
                properties
                    .set_column_dictionary_enabled(path.clone(), true)
                    .set_column_statistics_enabled(path.clone(), bounds)
                    .set_column_compression(path, Compression::SNAPPY)
            }
            Values::Text(texts) if !texts.are_short() => {
                properties.set_column_compression(path, Compression::SNAPPY)
            }
            Values::Long(_) => properties.set_column_compression(path, Compression::SNAPPY),
            Values::Id(_) => properties.set_column_statistics_enabled(path, EnabledStatistics::None),
            Values::Bool(_) | Values::Double(_) | Values::Text(_) => properties,
        }
    }

    pub(super) fn encode_into<W: Write + Send>(
        self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        let levels = (!self.required).then_some(&self.levels[..]);
        match self.values {
            Values::Bool(values) => encode::<BoolType, _>(group, &values, levels),
            Values::Int(values) => encode::<Int64Type, _>(group, &values, levels),
            Values::Double(values) => encode::<DoubleType, _>(group, &values, levels),
            Values::Text(texts) | Values::Long(texts) | Values::Id(texts) => {
                encode_texts(group, texts, levels)
            }
        }
    }
}

// === impl Values ===

impl Values {
    /// Makes room for values of so many rows, which come behind those of others; once the first are there for as many as are
    /// likely to come. There are columns that stay empty.
    pub(super) fn reserve(&mut self, rows: usize, before: usize, expected: usize) {
        let left = expected.saturating_sub(before);
        let likely = |first: usize| {
            if before == rows { (first * left / rows).min(MOST_RESERVED) } else { 0 }
        };
        match self {
            Self::Bool(values) => values.reserve(likely(values.len()).max(rows)),
            Self::Int(values) => values.reserve(likely(values.len()).max(rows)),
            Self::Double(values) => values.reserve(likely(values.len()).max(rows)),
            Self::Text(texts) | Self::Long(texts) | Self::Id(texts) => {
                texts.bytes.reserve(likely(texts.bytes.len()));
                texts.ends.reserve(likely(texts.ends.len()).max(rows));
            }
        }
    }
}

/// How many of the first values are different, and of how many.
fn distinct<V: Ord>(values: impl Iterator<Item = V>) -> (usize, usize) {
    let mut seen: Vec<V> = values.take(LOOKED_AT).collect();
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    (seen.len(), count)
}

/// Whether most values are likely to be among those before them.
fn do_repeat((different, count): (usize, usize)) -> bool {
    count > 0 && 2 * different <= count
}

// === impl Texts ===

impl Texts {
    pub(super) fn push(&mut self, text: &str) {
        self.push_bytes(text.as_bytes());
    }

    pub(super) fn push_bytes(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    fn distinct(&self) -> (usize, usize) {
        distinct((0..self.ends.len()).map(|at| &self.bytes[self.range(at)]))
    }

    /// Whether they are as names and ids are: few of their bytes would be found to repeat.
    fn are_short(&self) -> bool {
        !self.ends.is_empty() && self.bytes.len() / self.ends.len() <= SHORT_BYTES
    }

    fn range(&self, at: usize) -> Range<usize> {
        at.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[at]
    }
}

fn encode<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else { return Err(no_column()) };
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

/// The same of texts. Each becomes a handle of its own, so that is done with some at a time.
fn encode_texts<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    mut texts: Texts,
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let bytes = Bytes::from(mem::take(&mut texts.bytes));
    let mut shared = (0..texts.ends.len()).map(|at| ByteArray::from(bytes.slice(texts.range(at))));
    let mut some: Vec<ByteArray> = Vec::with_capacity(TEXTS_AT_ONCE);
    let Some(mut column) = group.next_column()? else { return Err(no_column()) };
    let typed = column.typed::<ByteArrayType>();
    if let Some(levels) = levels {
        for levels in levels.chunks(TEXTS_AT_ONCE) {
            let count = levels.iter().filter(|level| **level == 1).count();
            some.extend(shared.by_ref().take(count));
            typed.write_batch(&some, Some(levels), None)?;
            some.clear();
        }
    } else {
        loop {
            some.extend(shared.by_ref().take(TEXTS_AT_ONCE));
            if some.is_empty() {
                break;
            }
            typed.write_batch(&some, None, None)?;
            some.clear();
        }
    }
    column.close()
}

fn no_column() -> ParquetError {
    ParquetError::General("more columns than the schema has".to_owned())
}

#[cfg(test)]
mod tests {
    use parquet::file::properties::WriterProperties;

    use super::*;

    fn texts(length: usize) -> Texts {
        Texts { bytes: vec![b'x'; length], ends: vec![length] }
    }

    #[test]
    fn long_first_texts_do_not_take_room_as_if_all_were_so() {
        let mut values = Values::Text(texts(1 << 20));
        values.reserve(1, 1, 1 << 40);
        let Values::Text(texts) = values else { unreachable!() };
        assert!((17 << 20..64 << 20).contains(&texts.bytes.capacity()), "{}", texts.bytes.capacity());
    }

    #[test]
    fn what_may_be_long_is_compressed_be_it_short_at_first_or_not_there() {
        let path = ColumnPath::from("x");
        for (values, expected) in [
            (Values::Long(texts(1)), Compression::SNAPPY),
            (Values::Long(Texts::default()), Compression::SNAPPY),
            (Values::Text(texts(1)), Compression::UNCOMPRESSED),
        ] {
            let column = Column { name: "x", required: false, values, levels: Vec::new() };
            let properties = column.choose(WriterProperties::builder()).build();
            assert_eq!(properties.compression(&path), expected, "{column:?}");
        }
    }
}
