//! Flat typed tables written as Parquet: the little of the format that parts need.
//!
//! A column is a truth, a whole number, a number or a text, required or optional. What a table consists of is
//! said by the code that fills it, cell by cell, in the same order for every row.

use std::fs::{self, File};
use std::io::{self, Write};
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
use parquet::schema::types::Type;

use crate::error::RunError;
use crate::files;
use crate::version::FORMAT;

/// Key under which a file tells its version.
pub(crate) const VERSION_KEY: &str = "rollscope.version";

/// Rows that are written as one; query engines prune by the bounds of each.
const ROW_GROUP_ROWS: usize = 122_880;

/// A table being filled.
#[derive(Debug, Default)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: usize,
}

/// What was written, for telling it from what a disk made of it.
#[derive(Debug)]
pub(crate) struct Written {
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
    /// Begins a row.
    pub(crate) fn row(&mut self) -> Row<'_> {
        self.rows += 1;
        Row { table: self, next: 0 }
    }

    /// Rows so far.
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// Writes the table; readers see the file whole or not at all, and it survives a loss of power.
    pub(crate) fn write(&self, path: &Path) -> Result<Written, RunError> {
        let temporary = files::temporary_beside(path);
        let written = self.write_to(&temporary, path).and_then(|written| {
            let placed = fs::rename(&temporary, path).and_then(|()| files::sync_folder_of(path));
            placed.map_err(RunError::io("write", path))?;
            Ok(written)
        });
        if written.is_err() {
            fs::remove_file(&temporary).ok();
        }
        written
    }

    fn write_to(&self, temporary: &Path, path: &Path) -> Result<Written, RunError> {
        let file = File::create_new(temporary).map_err(RunError::io("create", temporary))?;
        let summed = SummedFile { file, bytes: 0, hasher: Hasher::new() };
        let summed = self.encode_into(summed).map_err(|source| RunError::Part {
            action: "write",
            path: path.to_owned(),
            source,
        })?;
        summed.file.sync_all().map_err(RunError::io("sync", temporary))?;
        Ok(Written { bytes: summed.bytes, crc32: summed.hasher.finalize() })
    }

    fn encode_into(&self, file: SummedFile) -> Result<SummedFile, ParquetError> {
        let fields = self.columns.iter().map(Column::schema).collect::<Result<Vec<_>, _>>()?;
        let schema = Arc::new(Type::group_type_builder("row").with_fields(fields).build()?);
        let version = KeyValue::new(VERSION_KEY.to_owned(), FORMAT.to_string());
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by(concat!("rollscope ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(vec![version]))
            .build();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
        // Values of each column that are in the row groups before.
        let mut taken = vec![0; self.columns.len()];
        for start in (0..self.rows).step_by(ROW_GROUP_ROWS) {
            let rows = start..self.rows.min(start + ROW_GROUP_ROWS);
            let mut group = writer.next_row_group()?;
            for (column, taken) in self.columns.iter().zip(&mut taken) {
                *taken = column.encode_into(&mut group, rows.clone(), *taken)?;
            }
            group.close()?;
        }
        writer.into_inner()
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
        let columns = &mut self.table.columns;
        if self.table.rows == 1 {
            columns.push(Column { name, required, values: empty, levels: Vec::new() });
        }
        let column = &mut columns[self.next];
        debug_assert_eq!((column.name, column.required), (name, required), "every row has the same cells");
        self.next += 1;
        if !required {
            column.levels.push(i16::from(value.is_some()));
        }
        match (&mut column.values, value) {
            (Values::Bool(values), Some(Value::Bool(value))) => values.push(value),
            (Values::Int(values), Some(Value::Int(value))) => values.push(value),
            (Values::Double(values), Some(Value::Double(value))) => values.push(value),
            (Values::Text(values), Some(Value::Text(value))) => values.push(value),
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

    /// Writes some rows, whose values begin at `start`; gives where the values of the next rows begin.
    fn encode_into(
        &self,
        group: &mut SerializedRowGroupWriter<'_, SummedFile>,
        rows: Range<usize>,
        start: usize,
    ) -> Result<usize, ParquetError> {
        let levels = (!self.required).then(|| &self.levels[rows.clone()]);
        let count = levels.map_or(rows.len(), |levels| levels.iter().filter(|level| **level == 1).count());
        let values = start..start + count;
        match &self.values {
            Values::Bool(all) => encode::<BoolType>(group, &all[values], levels)?,
            Values::Int(all) => encode::<Int64Type>(group, &all[values], levels)?,
            Values::Double(all) => encode::<DoubleType>(group, &all[values], levels)?,
            Values::Text(all) => encode::<ByteArrayType>(group, &all.shared(values), levels)?,
        }
        Ok(start + count)
    }
}

// === impl Texts ===

impl Texts {
    fn push(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.ends.push(self.bytes.len());
    }

    /// Some of the texts, which share one copy of their bytes.
    fn shared(&self, range: Range<usize>) -> Vec<ByteArray> {
        let begin = self.begin(range.start);
        let bytes = Bytes::copy_from_slice(&self.bytes[begin..self.begin(range.end)]);
        let text = |at| bytes.slice(self.begin(at) - begin..self.ends[at] - begin).into();
        range.map(text).collect()
    }

    fn begin(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.ends[before])
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
