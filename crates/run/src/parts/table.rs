//! Flat typed tables written as Parquet: the little of the format that parts need.
//!
//! A column is a truth, a whole number, a number, a text or the id of a request, required or optional. What a table consists
//! of is said by the code that fills it, a column after the other for some rows at a time: a loop over one column is short,
//! and the rows are still in the processor's cache when the next one is filled. A large table is written in pieces.
//!
//! Values are written as what costs least: whole numbers by their differences, texts that repeat by a dictionary (to build
//! one of values that do not costs more than all else), and only what can become much smaller is compressed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::iter;
use std::mem;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use crc32fast::Hasher;
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type};
use rollscope_trace::{RequestId, SampleName};

use crate::error::RunError;
use crate::files;
use crate::version::FORMAT;

/// Key under which a file tells its version.
pub(crate) const VERSION_KEY: &str = "rollscope.version";

/// By so many of a column's first values it is told whether they repeat.
const LOOKED_AT: usize = 256;

/// Texts that do not repeat and are no longer than this are not compressed.
const SHORT_BYTES: usize = 40;

/// Rows that are filled in at once.
const ROWS_AT_ONCE: usize = 128;

/// A table, or a piece of one.
#[derive(Debug, Default)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: usize,
    /// Rows that it will have.
    expected: usize,
}

/// What was written, for telling it from what a disk made of it.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) crc32: u32,
}

/// Rows that are being filled in.
#[derive(Debug)]
pub(crate) struct Filling<'a, R> {
    table: &'a mut Table,
    rows: &'a [R],
    next: usize,
}

/// A file that adds up what is written to it.
struct SummedFile {
    file: File,
    bytes: u64,
    hasher: Hasher,
}

#[derive(Debug)]
struct Column {
    name: &'static str,
    required: bool,
    values: Values,
    /// Per row 1 for a value and 0 for none; not used by a required column.
    levels: Vec<i16>,
}

#[derive(Debug)]
enum Values {
    Bool(Vec<bool>),
    Int(Vec<i64>),
    Double(Vec<f64>),
    Text(Texts),
    /// Texts of which no two are alike, and which nobody looks for by their order.
    Id(Texts),
}

/// Texts, one after the other: an allocation for each would cost more than all else.
#[derive(Debug, Default)]
struct Texts {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

// === impl Table ===

impl Table {
    /// Of some rows; `fill` says for each column what it holds of a row, always in the same order.
    pub(crate) fn of<R>(rows: &[R], fill: impl Fn(&mut Filling<'_, R>)) -> Self {
        let mut table = Self { expected: rows.len(), ..Self::default() };
        for rows in rows.chunks(ROWS_AT_ONCE) {
            fill(&mut Filling { table: &mut table, rows, next: 0 });
            table.rows += rows.len();
        }
        table
    }

    /// Rows so far.
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// Writes the table, which this is the first piece of; readers see the file whole or not at all, and it survives a loss
    /// of power.
    pub(crate) fn write(self, further: impl Iterator<Item = Self>, path: &Path) -> Result<Written, RunError> {
        let temporary = files::temporary_beside(path);
        let written = self.write_to(&temporary, further, path).and_then(|written| {
            let placed = fs::rename(&temporary, path).and_then(|()| files::sync_folder_of(path));
            placed.map_err(RunError::io("write", path))?;
            Ok(written)
        });
        if written.is_err() {
            fs::remove_file(&temporary).ok();
        }
        written
    }

    fn write_to(
        self,
        temporary: &Path,
        further: impl Iterator<Item = Self>,
        path: &Path,
    ) -> Result<Written, RunError> {
        let file = File::create_new(temporary).map_err(RunError::io("create", temporary))?;
        let summed = SummedFile { file, bytes: 0, hasher: Hasher::new() };
        let encoded = self.encode_into(summed, further).map_err(|source| RunError::Part {
            action: "write",
            path: path.to_owned(),
            source,
        });
        let (rows, summed) = encoded?;
        summed.file.sync_all().map_err(RunError::io("sync", temporary))?;
        Ok(Written { rows, bytes: summed.bytes, crc32: summed.hasher.finalize() })
    }

    fn encode_into(
        self,
        file: SummedFile,
        further: impl Iterator<Item = Self>,
    ) -> Result<(u64, SummedFile), ParquetError> {
        let mut writer = SerializedFileWriter::new(file, self.schema()?, Arc::new(self.properties()))?;
        let mut rows = 0;
        for piece in iter::once(self).chain(further) {
            rows += piece.rows as u64;
            piece.encode_group(&mut writer)?;
        }
        Ok((rows, writer.into_inner()?))
    }

    fn encode_group(self, writer: &mut SerializedFileWriter<SummedFile>) -> Result<(), ParquetError> {
        let mut group = writer.next_row_group()?;
        for column in self.columns {
            column.encode_into(&mut group)?;
        }
        group.close().map(drop)
    }

    fn schema(&self) -> Result<Arc<Type>, ParquetError> {
        let fields = self.columns.iter().map(Column::schema).collect::<Result<Vec<_>, _>>()?;
        Type::group_type_builder("row").with_fields(fields).build().map(Arc::new)
    }

    fn properties(&self) -> WriterProperties {
        let version = KeyValue::new(VERSION_KEY.to_owned(), FORMAT.to_string());
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_compression(Compression::UNCOMPRESSED)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by(concat!("rollscope ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(vec![version]));
        self.columns.iter().fold(properties, |properties, column| column.choose(properties)).build()
    }
}

// === impl SummedFile ===

impl Write for SummedFile {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let taken = self.file.write(buffer)?;
        self.bytes += taken as u64;
        self.hasher.update(&buffer[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

// === impl Filling ===

impl<R> Filling<'_, R> {
    /// Truths.
    pub(crate) fn bools(&mut self, name: &'static str, of: impl Fn(&R) -> bool) {
        let rows = self.rows;
        if let Column { values: Values::Bool(values), .. } = self.column(name, true, Values::Bool(Vec::new()))
        {
            values.extend(rows.iter().map(of));
        }
    }

    /// Truths, or none.
    pub(crate) fn bools_or_none(&mut self, name: &'static str, of: impl Fn(&R) -> Option<bool>) {
        let rows = self.rows;
        let column = self.column(name, false, Values::Bool(Vec::new()));
        if let Column { values: Values::Bool(values), levels, .. } = column {
            levels.extend(rows.iter().map(|row| level_of(of(row), |value| values.push(value))));
        }
    }

    /// Whole numbers.
    pub(crate) fn ints(&mut self, name: &'static str, of: impl Fn(&R) -> i64) {
        let rows = self.rows;
        if let Column { values: Values::Int(values), .. } = self.column(name, true, Values::Int(Vec::new())) {
            values.extend(rows.iter().map(of));
        }
    }

    /// Whole numbers, or none.
    pub(crate) fn ints_or_none(&mut self, name: &'static str, of: impl Fn(&R) -> Option<i64>) {
        let rows = self.rows;
        let column = self.column(name, false, Values::Int(Vec::new()));
        if let Column { values: Values::Int(values), levels, .. } = column {
            levels.extend(rows.iter().map(|row| level_of(of(row), |value| values.push(value))));
        }
    }

    /// Numbers, or none.
    pub(crate) fn doubles_or_none(&mut self, name: &'static str, of: impl Fn(&R) -> Option<f64>) {
        let rows = self.rows;
        let column = self.column(name, false, Values::Double(Vec::new()));
        if let Column { values: Values::Double(values), levels, .. } = column {
            levels.extend(rows.iter().map(|row| level_of(of(row), |value| values.push(value))));
        }
    }

    /// Texts.
    pub(crate) fn texts(&mut self, name: &'static str, of: impl Fn(&R) -> &str) {
        let rows = self.rows;
        if let Column { values: Values::Text(texts), .. } =
            self.column(name, true, Values::Text(Texts::default()))
        {
            for row in rows {
                texts.push(of(row));
            }
        }
    }

    /// Texts, or none.
    pub(crate) fn texts_or_none(&mut self, name: &'static str, of: impl Fn(&R) -> Option<&str>) {
        let rows = self.rows;
        let column = self.column(name, false, Values::Text(Texts::default()));
        if let Column { values: Values::Text(texts), levels, .. } = column {
            levels.extend(rows.iter().map(|row| level_of(of(row), |text| texts.push(text))));
        }
    }

    /// Texts that are made for it, or none.
    pub(crate) fn made_texts_or_none(&mut self, name: &'static str, of: impl Fn(&R) -> Option<String>) {
        let rows = self.rows;
        let column = self.column(name, false, Values::Text(Texts::default()));
        if let Column { values: Values::Text(texts), levels, .. } = column {
            levels.extend(rows.iter().map(|row| level_of(of(row), |text| texts.push(&text))));
        }
    }

    /// Names of samples.
    pub(crate) fn names<'r>(&mut self, name: &'static str, of: impl Fn(&R) -> SampleName<'r>) {
        let rows = self.rows;
        if let Column { values: Values::Text(texts), .. } =
            self.column(name, true, Values::Text(Texts::default()))
        {
            for row in rows {
                match of(row) {
                    SampleName::Text(text) => texts.push(text),
                    SampleName::Id(id) => texts.push_bytes(&id.digits()),
                }
            }
        }
    }

    /// Ids of requests.
    pub(crate) fn ids(&mut self, name: &'static str, of: impl Fn(&R) -> RequestId) {
        let rows = self.rows;
        if let Column { values: Values::Id(texts), .. } =
            self.column(name, true, Values::Id(Texts::default()))
        {
            for row in rows {
                texts.push_bytes(&of(row).digits());
            }
        }
    }

    /// The next column; the first rows make them.
    fn column(&mut self, name: &'static str, required: bool, empty: Values) -> &mut Column {
        let Table { columns, rows, expected } = &mut *self.table;
        if *rows == 0 {
            // There is room for all from the beginning, as it is costly for many columns to grow.
            let levels = Vec::with_capacity(if required { 0 } else { *expected });
            columns.push(Column { name, required, values: empty, levels });
        }
        let column = &mut columns[self.next];
        debug_assert_eq!((column.name, column.required), (name, required), "all rows have the same cells");
        self.next += 1;
        column.values.reserve(self.rows.len(), *rows, *expected);
        column
    }
}

/// Hands on a value; gives the level of the cell.
fn level_of<V>(value: Option<V>, take: impl FnOnce(V)) -> i16 {
    let level = i16::from(value.is_some());
    value.map(take);
    level
}

// === impl Column ===

impl Column {
    fn schema(&self) -> Result<Arc<Type>, ParquetError> {
        let (physical, logical) = match self.values {
            Values::Bool(_) => (Physical::BOOLEAN, None),
            Values::Int(_) => (Physical::INT64, None),
            Values::Double(_) => (Physical::DOUBLE, None),
            Values::Text(_) | Values::Id(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let repetition = if self.required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
        let builder = Type::primitive_type_builder(self.name, physical).with_repetition(repetition);
        builder.with_logical_type(logical).build().map(Arc::new)
    }

    /// Says how it is to be written, by its first values.
    fn choose(&self, properties: WriterPropertiesBuilder) -> WriterPropertiesBuilder {
        let path = ColumnPath::from(self.name);
        match &self.values {
            Values::Int(_) => properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED),
            Values::Double(values) if do_repeat(values.iter().map(|value| value.to_bits())) => {
                properties.set_column_compression(path, Compression::SNAPPY)
            }
            Values::Text(texts) if do_repeat((0..texts.ends.len()).map(|at| texts.get(at))) => properties
                .set_column_dictionary_enabled(path.clone(), true)
                .set_column_compression(path, Compression::SNAPPY),
            Values::Text(texts) if !texts.are_short() => {
                properties.set_column_compression(path, Compression::SNAPPY)
            }
            Values::Id(_) => properties.set_column_statistics_enabled(path, EnabledStatistics::None),
            Values::Bool(_) | Values::Double(_) | Values::Text(_) => properties,
        }
    }

    fn encode_into(self, group: &mut SerializedRowGroupWriter<'_, SummedFile>) -> Result<(), ParquetError> {
        let levels = (!self.required).then_some(&self.levels[..]);
        match self.values {
            Values::Bool(values) => encode::<BoolType>(group, &values, levels),
            Values::Int(values) => encode::<Int64Type>(group, &values, levels),
            Values::Double(values) => encode::<DoubleType>(group, &values, levels),
            Values::Text(texts) | Values::Id(texts) => {
                encode::<ByteArrayType>(group, &texts.into_shared(), levels)
            }
        }
    }
}

// === impl Values ===

impl Values {
    /// Makes room for values of so many rows, which come behind those of others; with the first values for as many as are
    /// still to come.
    fn reserve(&mut self, rows: usize, before: usize, expected: usize) {
        let left = expected.saturating_sub(before).max(rows);
        match self {
            Self::Bool(values) => reserve(values, rows, left),
            Self::Int(values) => reserve(values, rows, left),
            Self::Double(values) => reserve(values, rows, left),
            Self::Text(texts) | Self::Id(texts) => {
                if before == rows {
                    texts.bytes.reserve(texts.bytes.len() * left / rows);
                }
                reserve(&mut texts.ends, rows, left);
            }
        }
    }
}

fn reserve<V>(values: &mut Vec<V>, rows: usize, left: usize) {
    if values.capacity() == 0 {
        values.reserve_exact(left);
    }
    values.reserve(rows);
}

/// Whether most values are likely to be among those before them.
fn do_repeat<V: Ord>(values: impl Iterator<Item = V>) -> bool {
    let mut seen: Vec<V> = values.take(LOOKED_AT).collect();
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    count > 0 && 2 * seen.len() <= count
}

// === impl Texts ===

impl Texts {
    fn push(&mut self, text: &str) {
        self.push_bytes(text.as_bytes());
    }

    fn push_bytes(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    fn get(&self, at: usize) -> &[u8] {
        &self.bytes[self.range(at)]
    }

    /// Whether they are as names and ids are: few of their bytes would be found to repeat.
    fn are_short(&self) -> bool {
        !self.ends.is_empty() && self.bytes.len() / self.ends.len() <= SHORT_BYTES
    }

    /// The texts, which share their bytes.
    fn into_shared(mut self) -> Vec<ByteArray> {
        let bytes = Bytes::from(mem::take(&mut self.bytes));
        (0..self.ends.len()).map(|at| bytes.slice(self.range(at)).into()).collect()
    }

    fn range(&self, at: usize) -> Range<usize> {
        at.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[at]
    }
}

fn encode<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, SummedFile>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("more columns than the schema has".to_owned()));
    };
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}
