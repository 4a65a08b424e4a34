//! Parts: the records of a step as tables, made from the log when a step is closed.
//!
//! `forward_passes` holds what the workers' schedulers did meanwhile; it is read by whoever asks for it and not with
//! the step. `requests` and `legs` hold the profiles without loss, a column for each stage, `spans` and `samples` the user's
//! spans and marks. For whoever queries the files, `samples` also has when a sample began and ended and what it consists
//! of. Derived columns are never read back.
//!
//! Names of columns are part of the format: a column may be added, none is renamed or given another meaning.
//! Times are nanoseconds since the Unix epoch; `…_after_ns` are nanoseconds elapsed since the request's arrival.
//! A request that names no sample is a sample of its own, named by its id.

mod attrs;
mod column;
mod legs;
mod passes;
mod requests;
mod rows;
pub(crate) mod samples;
mod spans;
mod table;

use std::path::{Path, PathBuf};

use rollscope_trace::{ForwardPass, Record, StepNumber, StepRecords};
use serde::{Deserialize, Serialize};

use crate::error::RunError;
use crate::files;
use crate::parts::rows::Rows;
use crate::parts::table::Table;

/// The folder of the steps' folders.
pub(crate) const STEPS_NAME: &str = "steps";
/// The table of forward passes.
const PASSES: &str = "forward_passes";

/// The records of a step that one seal found in a log, in their order.
#[derive(Debug, Default)]
pub(crate) struct StepRows {
    /// Without what was said of its end, which stands in the manifest.
    pub(crate) records: StepRecords,
    pub(crate) passes: Vec<ForwardPass>,
    /// Records came after the step had been closed.
    pub(crate) late: bool,
    /// What the records take in the log, but for those that were read from it.
    pub(crate) bytes: usize,
}

/// The parts of a step that one seal made; stands in manifests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StepParts {
    pub(crate) step: u64,
    pub(crate) late: bool,
    pub(crate) requests: u64,
    pub(crate) samples: u64,
    pub(crate) user_spans: u64,
    pub(crate) parts: Vec<Part>,
}

/// A file; stands in manifests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Part {
    pub(crate) table: String,
    /// From the run's folder, with slashes.
    pub(crate) path: String,
    pub(crate) rows: u64,
    /// Its length; earlier writers did not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// CRC-32 of the file; earlier writers did not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) crc32: Option<u32>,
}

/// Where the parts of a step that one seal makes are written.
struct Place<'a> {
    run: &'a Path,
    step: StepNumber,
    /// Of each table's file.
    name: &'a str,
}

/// What can be read of the parts of a step.
#[derive(Debug, Default)]
pub(crate) struct PartsRead {
    pub(crate) records: Vec<Record>,
    /// Parts that cannot be read.
    pub(crate) damaged: Vec<PathBuf>,
}

/// Records, or samples, that are written as one row group. Query engines prune by the bounds of each; while it is filled it is in memory,
/// a column beside the other, and so few that the memory of one serves the next: fresh memory costs more than what is done in it.
const ROW_GROUP_ROWS: usize = 4096;

// === impl StepRows ===

impl StepRows {
    /// Takes a record of the step.
    pub(crate) fn add(&mut self, record: Record) {
        match record {
            Record::ForwardPass(pass) => self.passes.push(*pass),
            record => self.records.add(record),
        }
    }

    /// Whether there is more than forward passes.
    pub(crate) fn has_records(&self) -> bool {
        let StepRecords { profiles, spans, marks, .. } = &self.records;
        !profiles.is_empty() || !spans.is_empty() || !marks.is_empty()
    }

    /// Takes what came later, but for forward passes, which are no part of a step's trace.
    pub(crate) fn append(&mut self, later: Self) {
        self.records.append(later.records);
        self.bytes += later.bytes;
    }

    /// Writes the parts of a step below the run's folder. Readers do not know of them until a manifest does.
    pub(crate) fn write(&self, run: &Path, step: StepNumber, name: &str) -> Result<StepParts, RunError> {
        let StepRecords { profiles, spans, .. } = &self.records;
        let mut parts = StepParts {
            step: step.0,
            late: self.late,
            requests: profiles.len() as u64,
            user_spans: spans.len() as u64,
            ..StepParts::default()
        };
        let place = Place { run, step, name };
        let written = [
            place.write("requests", profiles.chunks(ROW_GROUP_ROWS).map(requests::table))?,
            place.write("legs", profiles.chunks(ROW_GROUP_ROWS).map(legs::table))?,
            place.write("spans", spans.chunks(ROW_GROUP_ROWS).map(spans::table))?,
            place.write(PASSES, self.passes.chunks(ROW_GROUP_ROWS).map(passes::table))?,
            place.write(
                "samples",
                samples::tallies(&self.records).chunks(ROW_GROUP_ROWS).map(samples::table),
            )?,
        ];
        parts.parts = written.into_iter().flatten().collect();
        parts.samples = parts.parts.iter().find(|part| part.table == "samples").map_or(0, |part| part.rows);
        Ok(parts)
    }
}

// === impl Place ===

impl Place<'_> {
    /// Writes a table, each piece of it as a row group; nothing when it has no rows. One piece is in memory at a time.
    fn write(&self, table: &str, pieces: impl Iterator<Item = Table>) -> Result<Option<Part>, RunError> {
        let mut pieces = pieces.filter(|piece| piece.len() > 0);
        let Some(first) = pieces.next() else { return Ok(None) };
        let folder = format!("{}/{table}", step_folder(self.step));
        files::create_folders(&self.run.join(&folder))?;
        let path = format!("{folder}/{}.parquet", self.name);
        let written = first.write(pieces, &self.run.join(&path))?;
        let (table, rows) = (table.to_owned(), written.rows);
        Ok(Some(Part { table, path, rows, bytes: Some(written.bytes), crc32: Some(written.crc32) }))
    }
}

/// The folder of a step, from the run's.
pub(crate) fn step_folder(step: StepNumber) -> String {
    format!("{STEPS_NAME}/step={:06}", step.0)
}

/// Reads the name of a step's folder.
pub(crate) fn step_of_folder(name: &str) -> Option<StepNumber> {
    name.strip_prefix("step=")?.parse().ok().map(StepNumber)
}

// === impl StepParts ===

impl StepParts {
    /// Forward passes in them.
    pub(crate) fn passes_count(&self) -> u64 {
        self.parts.iter().filter(|part| part.is_of_passes()).map(|part| part.rows).sum()
    }

    /// The records that the parts were made from; a part that is damaged takes nothing from the others.
    pub(crate) fn read(&self, run: &Path) -> Result<PartsRead, RunError> {
        let step = StepNumber(self.step);
        let mut read = PartsRead::default();
        read.add(self.profiles(run))?;
        read.add(self.records(run, "spans", |rows| spans::read(step, rows)))?;
        read.add(self.records(run, "samples", |rows| samples::read(step, rows)))?;
        Ok(read)
    }

    fn profiles(&self, run: &Path) -> Result<Vec<Record>, RunError> {
        let legs = self.open(run, "legs")?;
        self.records(run, "requests", |rows| requests::read(StepNumber(self.step), rows, legs.as_ref()))
    }

    fn records(
        &self,
        run: &Path,
        table: &str,
        read: impl FnOnce(&Rows) -> Result<Vec<Record>, RunError>,
    ) -> Result<Vec<Record>, RunError> {
        self.open(run, table)?.map_or(Ok(Vec::new()), |rows| read(&rows))
    }

    /// The forward passes, in the order in which they were heard of.
    pub(crate) fn passes(&self, run: &Path) -> Result<Vec<ForwardPass>, RunError> {
        let step = StepNumber(self.step);
        self.open(run, PASSES)?.map_or(Ok(Vec::new()), |rows| passes::read(step, &rows))
    }

    /// Whether each is the file that was written, as far as that is known without reading it.
    pub(crate) fn is_written_as(&self, run: &Path) -> bool {
        self.parts.iter().all(|part| Rows::open(path_of(run, &part.path), part).is_ok())
    }

    /// The names of the samples, as (group, sample).
    pub(crate) fn sample_keys(&self, run: &Path) -> Result<Vec<samples::Key>, RunError> {
        self.open(run, "samples")?.map_or(Ok(Vec::new()), |rows| samples::keys(&rows))
    }

    fn open(&self, run: &Path, table: &str) -> Result<Option<Rows>, RunError> {
        let part = self.parts.iter().find(|part| part.table == table);
        part.map(|part| Rows::open(path_of(run, &part.path), part)).transpose()
    }
}

// === impl Part ===

impl Part {
    pub(crate) fn is_of_passes(&self) -> bool {
        self.table == PASSES
    }

    /// Whether the content of a file is what was written, as far as the manifest tells.
    fn is_written_as(&self, content: &[u8]) -> bool {
        self.bytes.is_none_or(|bytes| bytes == content.len() as u64)
            && self.crc32.is_none_or(|crc32| crc32 == crc32fast::hash(content))
    }
}

// === impl PartsRead ===

impl PartsRead {
    fn add(&mut self, records: Result<Vec<Record>, RunError>) -> Result<(), RunError> {
        match records {
            Ok(records) => self.records.extend(records),
            Err(error) => self.damaged.push(error.unreadable_part()?),
        }
        Ok(())
    }
}

/// A path from the run's folder, written with slashes.
pub(crate) fn path_of(run: &Path, slashed: &str) -> PathBuf {
    slashed.split('/').fold(run.to_owned(), |path, name| path.join(name))
}
