//! Flat typed tables written as Parquet: the little of the format that parts need.
//!
//! A column is a truth, a whole number, a number or a text, required or optional. What a table consists of is
//! said by the code that fills it, cell by cell, in the same order for every row. A large one is written in pieces. A column
//! gets a dictionary where its values repeat: to build one of values that do not costs more than all else.

use std::fs::{self, File};
use std::io::{self, Write};
use std::iter;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use crc32fast::Hasher;
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type};

use crate::error::RunError;
use crate::files;
use crate::version::FORMAT;

/// Key under which a file tells its version.
pub(crate) const VERSION_KEY: &str = "rollscope.version";

/// By so many of a column's first values it is told whether they repeat.
const LOOKED_AT: usize = 64;

/// A table being filled, or a piece of one.
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

/// A row being filled.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    table: &'a mut Table,
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
}

/// Texts, one after the other: an allocation for each would cost more than all else.
#[derive(Debug, Default)]
struct Texts {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

#[derive(Clone, Copy)]
enum Value<'a> {
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(&'a str),
}

// === impl Table ===

impl Table {
    /// One that will have so many rows: there is room for them from the beginning, as it is costly for many columns to grow.
    pub(crate) fn for_rows(expected: usize) -> Self {
        Self { expected, ..Self::default() }
    }

    /// Begins a row.
    pub(crate) fn row(&mut self) -> Row<'_> {
        self.rows += 1;
        Row { table: self, next: 0 }
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

    fn encode_group(&self, writer: &mut SerializedFileWriter<SummedFile>) -> Result<(), ParquetError> {
        let mut group = writer.next_row_group()?;
        for column in &self.columns {
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
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by(concat!("rollscope ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(vec![version]));
        let repeating = self.columns.iter().filter(|column| column.values.repeat());
        let properties = repeating.fold(properties, |properties, column| {
            properties.set_column_dictionary_enabled(ColumnPath::from(column.name), true)
        });
        properties.build()
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

// === impl Row ===

impl Row<'_> {
    /// A truth.
    pub(crate) fn bool(&mut self, name: &'static str, value: bool) {
        self.cell(name, true, Values::Bool(Vec::new()), Some(Value::Bool(value)));
    }

    /// A truth, or none.
    pub(crate) fn bool_or_none(&mut self, name: &'static str, value: Option<bool>) {
        self.cell(name, false, Values::Bool(Vec::new()), value.map(Value::Bool));
    }

    /// A whole number.
    pub(crate) fn int(&mut self, name: &'static str, value: i64) {
        self.cell(name, true, Values::Int(Vec::new()), Some(Value::Int(value)));
    }

    /// A whole number, or none.
    pub(crate) fn int_or_none(&mut self, name: &'static str, value: Option<i64>) {
        self.cell(name, false, Values::Int(Vec::new()), value.map(Value::Int));
    }

    /// A number, or none.
    pub(crate) fn double_or_none(&mut self, name: &'static str, value: Option<f64>) {
        self.cell(name, false, Values::Double(Vec::new()), value.map(Value::Double));
    }

    /// A text.
    pub(crate) fn text(&mut self, name: &'static str, value: &str) {
        self.cell(name, true, Values::Text(Texts::default()), Some(Value::Text(value)));
    }

    /// A text, or none.
    pub(crate) fn text_or_none(&mut self, name: &'static str, value: Option<&str>) {
        self.cell(name, false, Values::Text(Texts::default()), value.map(Value::Text));
    }

    /// The next cell; the first row makes the columns.
    fn cell(&mut self, name: &'static str, required: bool, empty: Values, value: Option<Value<'_>>) {
        let Table { columns, rows, expected } = &mut *self.table;
        if *rows == 1 {
            let levels = Vec::with_capacity(if required { 0 } else { *expected });
            columns.push(Column { name, required, values: empty, levels });
        }
        let column = &mut columns[self.next];
        debug_assert_eq!((column.name, column.required), (name, required), "every row has the same cells");
        self.next += 1;
        if !required {
            column.levels.push(i16::from(value.is_some()));
        }
        let left = expected.saturating_sub(*rows) + 1;
        match (&mut column.values, value) {
            (Values::Bool(values), Some(Value::Bool(value))) => push(values, value, left),
            (Values::Int(values), Some(Value::Int(value))) => push(values, value, left),
            (Values::Double(values), Some(Value::Double(value))) => push(values, value, left),
            (Values::Text(texts), Some(Value::Text(value))) => texts.push(value, left),
            (_, value) => debug_assert!(value.is_none(), "{name} is of another type in the first row"),
        }
    }
}

// === impl Column ===

impl Column {
    fn schema(&self) -> Result<Arc<Type>, ParquetError> {
        let (physical, logical) = match self.values {
            Values::Bool(_) => (Physical::BOOLEAN, None),
            Values::Int(_) => (Physical::INT64, None),
            Values::Double(_) => (Physical::DOUBLE, None),
            Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let repetition = if self.required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
        let builder = Type::primitive_type_builder(self.name, physical).with_repetition(repetition);
        builder.with_logical_type(logical).build().map(Arc::new)
    }

    fn encode_into(&self, group: &mut SerializedRowGroupWriter<'_, SummedFile>) -> Result<(), ParquetError> {
        let levels = (!self.required).then_some(&self.levels[..]);
        match &self.values {
            Values::Bool(values) => encode::<BoolType>(group, values, levels),
            Values::Int(values) => encode::<Int64Type>(group, values, levels),
            Values::Double(values) => encode::<DoubleType>(group, values, levels),
            Values::Text(texts) => encode::<ByteArrayType>(group, &texts.shared(), levels),
        }
    }
}

// === impl Values ===

impl Values {
    /// Whether most values are likely to be among those before them.
    fn repeat(&self) -> bool {
        match self {
            Self::Bool(_) => false,
            Self::Int(values) => do_repeat(values.iter().copied()),
            Self::Double(values) => do_repeat(values.iter().map(|value| value.to_bits())),
            Self::Text(texts) => do_repeat((0..texts.ends.len()).map(|at| texts.get(at))),
        }
    }
}

fn do_repeat<V: Ord>(values: impl Iterator<Item = V>) -> bool {
    let mut seen: Vec<V> = values.take(LOOKED_AT).collect();
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    2 * seen.len() <= count
}

/// Puts the first value in with room for as many as are left with it.
fn push<V>(values: &mut Vec<V>, value: V, left: usize) {
    if values.is_empty() {
        values.reserve_exact(left);
    }
    values.push(value);
}

// === impl Texts ===

impl Texts {
    fn push(&mut self, text: &str, left: usize) {
        self.bytes.extend_from_slice(text.as_bytes());
        push(&mut self.ends, self.bytes.len(), left);
    }

    fn get(&self, at: usize) -> &[u8] {
        &self.bytes[self.range(at)]
    }

    /// The texts, which share one copy of their bytes.
    fn shared(&self) -> Vec<ByteArray> {
        let bytes = Bytes::copy_from_slice(&self.bytes);
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
