//! Reading the tables of parts, column by column.
//!
//! A column is asked for by name and type. One that is not there reads as missing in every row, and one that
//! nobody asks for is passed over, so a later version may add columns.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::vec;

use bytes::Bytes;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::error::RunError;
use crate::parts::Part;
use crate::parts::table::VERSION_KEY;
use crate::version::Version;

/// A table on disk.
pub(crate) struct Rows {
    path: PathBuf,
    reader: SerializedFileReader<Bytes>,
}

/// The cells of a column, from the first row to the last.
#[derive(Debug)]
pub(crate) struct Cells<T> {
    values: vec::IntoIter<T>,
    /// Per row 1 for a value and 0 for none; without it every row has a value.
    levels: Option<vec::IntoIter<i16>>,
}

// === impl Rows ===

impl Rows {
    /// Opens a table, which must be the file that was written.
    pub(crate) fn open(path: PathBuf, part: &Part) -> Result<Self, RunError> {
        let damaged = |what| RunError::DamagedPart { path: path.clone(), what };
        let bytes = fs::read(&path).map_err(RunError::io("read", &path))?;
        if !part.is_written_as(&bytes) {
            return Err(damaged("its length or checksum is not as written"));
        }
        let reader = decoding(&path, || SerializedFileReader::new(Bytes::from(bytes)))?;
        let in_groups = reader.metadata().row_groups().iter().map(|group| i128::from(group.num_rows())).sum();
        // Room is made for as many: a file without a checksum may claim any number.
        if [i128::from(reader.metadata().file_metadata().num_rows()), in_groups] != [i128::from(part.rows); 2]
        {
            return Err(damaged("its number of rows is not as written"));
        }
        let metadata = reader.metadata().file_metadata();
        let version = metadata
            .key_value_metadata()
            .and_then(|pairs| pairs.iter().find(|pair| pair.key == VERSION_KEY))
            .and_then(|pair| pair.value.as_deref()?.parse::<Version>().ok())
            .ok_or_else(|| damaged("it tells no version"))?;
        version.check(&path)?;
        Ok(Self { path, reader })
    }

    /// Its number of rows.
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.reader.metadata().file_metadata().num_rows()).unwrap_or(0)
    }

    /// A column of truths.
    pub(crate) fn bools(&self, name: &str) -> Result<Cells<bool>, RunError> {
        self.cells::<BoolType>(name)
    }

    /// A column of whole numbers.
    pub(crate) fn ints(&self, name: &str) -> Result<Cells<i64>, RunError> {
        self.cells::<Int64Type>(name)
    }

    /// A column of numbers.
    pub(crate) fn doubles(&self, name: &str) -> Result<Cells<f64>, RunError> {
        self.cells::<DoubleType>(name)
    }

    /// A column of texts.
    pub(crate) fn texts(&self, name: &str) -> Result<Cells<ByteArray>, RunError> {
        self.cells::<ByteArrayType>(name)
    }

    /// For a table that does not hold what it must.
    pub(crate) fn damaged(&self, what: &'static str) -> RunError {
        RunError::DamagedPart { path: self.path.clone(), what }
    }

    fn cells<T: DataType>(&self, name: &str) -> Result<Cells<T::T>, RunError> {
        decoding(&self.path, || self.decode::<T>(name))
    }

    fn decode<T: DataType>(&self, name: &str) -> Result<Cells<T::T>, ParquetError> {
        let schema = self.reader.metadata().file_metadata().schema_descr_ptr();
        let is_wanted = |index: &usize| {
            let column = schema.column(*index);
            column.name() == name && column.physical_type() == T::get_physical_type()
        };
        let Some(index) = (0..schema.num_columns()).find(is_wanted) else {
            let none = vec![0; self.len()].into_iter();
            return Ok(Cells { values: Vec::new().into_iter(), levels: Some(none) });
        };
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        for group in 0..self.reader.num_row_groups() {
            let group = self.reader.get_row_group(group)?;
            let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
            let mut column = get_typed_column_reader::<T>(group.get_column_reader(index)?);
            let (records, ..) = column.read_records(rows, Some(&mut levels), None, &mut values)?;
            if records != rows {
                return Err(ParquetError::EOF(format!("column {name} ends before its row group does")));
            }
        }
        let optional = schema.column(index).max_def_level() > 0;
        Ok(Cells { values: values.into_iter(), levels: optional.then(|| levels.into_iter()) })
    }
}

/// Lets the decoder work. It takes much of a file on trust and panics where a damaged one breaks it; a checksum
/// keeps most of those away, but older parts have none, and one bad file must not end whoever reads the run.
/// What it was working on is dropped, so nothing half done is seen. Its message still goes to the panic hook,
/// which belongs to the program.
fn decoding<T>(path: &Path, decode: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, RunError> {
    match panic::catch_unwind(AssertUnwindSafe(decode)) {
        Ok(decoded) => {
            decoded.map_err(|source| RunError::Part { action: "read", path: path.to_owned(), source })
        }
        Err(_) => Err(RunError::DamagedPart { path: path.to_owned(), what: "it breaks the decoder" }),
    }
}

// === impl Cells ===

impl<T> Cells<T> {
    /// The cell of the next row; nothing when it is missing.
    pub(crate) fn next(&mut self) -> Option<T> {
        let present = self.levels.as_mut().is_none_or(|levels| levels.next() == Some(1));
        if present { self.values.next() } else { None }
    }
}

impl<T: Default> Cells<T> {
    /// The cell of the next row, where the model has no missing value.
    pub(crate) fn next_or_default(&mut self) -> T {
        self.next().unwrap_or_default()
    }
}

impl Cells<ByteArray> {
    /// The text of the next row.
    pub(crate) fn next_text(&mut self) -> Option<Box<str>> {
        self.next().map(|bytes| String::from_utf8_lossy(bytes.data()).into())
    }

    /// The text of the next row, where the model has no missing value.
    pub(crate) fn next_text_or_empty(&mut self) -> Box<str> {
        self.next_text().unwrap_or_default()
    }
}
