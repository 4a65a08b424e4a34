//! Flat typed tables written as Parquet: the little of the format that parts need.
//!
//! A column is a truth, a whole number, a number, a text or the id of a request, required or optional. What a table consists
//! of is said by the code that fills it, a column after the other for some rows at a time: a loop over one column is short,
//! and the rows are still in the processor's cache when the next one is filled. A large table is written in pieces.

use std::fs::{self, File};
use std::io::{self, Write};
use std::iter;
use std::path::Path;
use std::sync::Arc;

use crc32fast::Hasher;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use rollscope_trace::{RequestId, SampleName};

use crate::error::RunError;
use crate::files;
use crate::parts::column::{Column, Texts, Values};
use crate::version::FORMAT;

/// Key under which a file tells its version.
pub(crate) const VERSION_KEY: &str = "rollscope.version";

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

impl<'a, R> Filling<'a, R> {
    pub(crate) fn rows(&self) -> &'a [R] {
        self.rows
    }

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

    /// As many times none where a number could be.
    pub(crate) fn no_doubles(&mut self, name: &'static str) {
        let rows = self.rows.len();
        let Column { levels, .. } = self.column(name, false, Values::Double(Vec::new()));
        levels.resize(levels.len() + rows, 0);
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

    /// Texts of any length, or none.
    pub(crate) fn long_texts_or_none(&mut self, name: &'static str, of: impl Fn(&R) -> Option<&str>) {
        let rows = self.rows;
        let column = self.column(name, false, Values::Long(Texts::default()));
        if let Column { values: Values::Long(texts), levels, .. } = column {
            levels.extend(rows.iter().map(|row| level_of(of(row), |text| texts.push(text))));
        }
    }

    /// Texts of any length that are made for it, or none.
    pub(crate) fn made_texts_or_none(&mut self, name: &'static str, of: impl Fn(&R) -> Option<String>) {
        let rows = self.rows;
        let column = self.column(name, false, Values::Long(Texts::default()));
        if let Column { values: Values::Long(texts), levels, .. } = column {
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
