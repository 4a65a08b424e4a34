//! Sealing: a stretch of a writer's log becomes parts of its steps.
//!
//! A stretch holds records of every step that was going on meanwhile, and each step gets a part of it, whether
//! it was closed or not; so one position per writer says what has been sealed. Sealing reads the log back and
//! touches nothing that the writer writes, so it can be done beside it in another thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use rollscope_trace::{DropCount, Record, StepNumber, StepTrace};

use crate::error::RunError;
use crate::log::LogPosition;
use crate::log::cursor::LogCursor;
use crate::log::mirror::{CloseMirror, DroppedMirror};
use crate::log::writer::LOCK_NAME;
use crate::manifest::{self, Newest, Seal, SealedDamage};
use crate::parts::StepRows;
use crate::run::Run;

/// Seals the log of one writer. There is one for each writer, which alone names its parts.
#[derive(Debug)]
pub struct Sealer {
    run: Run,
    writer: Box<str>,
}

/// What was sealed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sealed {
    /// Steps that got a part.
    pub steps: BTreeSet<StepNumber>,
    /// Those of them that had been closed before.
    pub late: BTreeSet<StepNumber>,
}

/// Tells which records come after the end of their step.
#[derive(Clone, Debug, Default)]
pub(crate) struct LateWatch(BTreeSet<StepNumber>);

/// A stretch of a log, by step.
#[derive(Default)]
struct Stretch {
    steps: BTreeMap<StepNumber, StepRows>,
    closes: Vec<CloseMirror>,
    dropped: Option<DropCount>,
}

// === impl Sealer ===

impl Run {
    /// For sealing the log of a writer of this name, as [`crate::LogWriter::name`] gives it.
    pub fn sealer(&self, writer: &str) -> Sealer {
        Sealer { run: self.clone(), writer: writer.into() }
    }
}

impl Run {
    /// Seals what killed writers have left in their logs; gives their names. A writer that lives holds its log locked, and
    /// is left to itself, and so is one that another process is sealing at present.
    pub fn seal_interrupted(&self) -> Result<Vec<Box<str>>, RunError> {
        let mut sealed = Vec::new();
        for writer in self.writer_names()? {
            let lock = File::open(self.log_folder(&writer).join(LOCK_NAME));
            // Locked for as long as it takes, so that nobody else seals it meanwhile.
            if !lock.as_ref().is_ok_and(|lock| lock.try_lock().is_ok()) {
                continue;
            }
            let everything = LogPosition { segment: u32::MAX, offset: u64::MAX };
            if !self.sealer(&writer).seal(everything)?.steps.is_empty() {
                sealed.push(writer.into());
            }
        }
        Ok(sealed)
    }
}

impl Sealer {
    /// Seals everything before `up_to`, a [`crate::LogWriter::position`]. What has been sealed before is left;
    /// after an error nothing has changed, and it may be tried again.
    pub fn seal(&self, up_to: LogPosition) -> Result<Sealed, RunError> {
        Ok(self.seal_and_gather(up_to, &BTreeSet::new())?.0)
    }

    /// The same, and gives those of the wanted steps of which everything has been read thereby, as [`Run::step`] would read
    /// them from their parts again.
    pub fn seal_and_gather(
        &self,
        up_to: LogPosition,
        wanted: &BTreeSet<StepNumber>,
    ) -> Result<(Sealed, BTreeMap<StepNumber, StepTrace>), RunError> {
        let manifest = Newest::read(&self.run)?.manifest;
        let from = manifest.sealed_up_to(&self.writer);
        let mut cursor = LogCursor::new(self.run.log_folder(&self.writer), from).up_to(up_to);
        let mut watch = LateWatch::new(manifest.closed_steps());
        let mut stretch = Stretch::default();
        while let Some(record) = cursor.next()? {
            stretch.add(&mut watch, record);
        }
        let (mut sealed, mut traces) = (Sealed::default(), BTreeMap::new());
        if stretch.is_empty() && cursor.unknown() == 0 && cursor.damage_passed().is_empty() {
            return Ok((sealed, traces));
        }
        let is_alone = self.run.writer_names()?.len() == 1;
        let before: BTreeSet<u64> =
            manifest.seals().flat_map(|seal| &seal.steps).map(|parts| parts.step).collect();
        let number = manifest.seals_of(&self.writer).count() + 1;
        let name = format!("{}-{number:06}", self.writer);
        let mut steps = Vec::new();
        for (step, rows) in stretch.steps {
            steps.push(rows.write(self.run.dir(), step, &name)?);
            sealed.steps.insert(step);
            if rows.late {
                sealed.late.insert(step);
            }
            if wanted.contains(&step) && is_alone && !before.contains(&step.0) {
                let told = stretch.closes.iter().filter_map(CloseMirror::close);
                let closes = manifest.closes().chain(told).filter(|close| close.step == step);
                let closes: Vec<Record> = closes.map(Record::Close).collect();
                traces.insert(step, StepTrace::gather(step, rows.into_records().chain(closes)));
            }
        }
        let seal = Seal {
            writer: self.writer.to_string(),
            from,
            to: cursor.position(),
            steps,
            closes: stretch.closes,
            dropped: stretch.dropped.as_ref().map(DroppedMirror::of),
            unknown: cursor.unknown(),
            damage: cursor.damage_passed().iter().filter_map(SealedDamage::of).collect(),
        };
        manifest::publish(&self.run, &seal)?;
        Ok((sealed, traces))
    }
}

// === impl LateWatch ===

impl LateWatch {
    pub(crate) fn new(closed: BTreeSet<StepNumber>) -> Self {
        Self(closed)
    }

    /// Whether a record comes after the end of its step. To be asked for each record in the log's order.
    pub(crate) fn is_late(&mut self, record: &Record) -> bool {
        match record {
            Record::Close(close) => {
                self.0.insert(close.step);
                false
            }
            // The workers go on between two steps.
            Record::ForwardPass(_) => false,
            _ => record.step().is_some_and(|step| self.0.contains(&step)),
        }
    }
}

// === impl Stretch ===

impl Stretch {
    fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.closes.is_empty() && self.dropped.is_none()
    }

    fn add(&mut self, watch: &mut LateWatch, record: Record) {
        let late = watch.is_late(&record);
        match (record.step(), record) {
            (_, Record::Close(close)) => self.closes.push(CloseMirror::of(&close)),
            (_, Record::Dropped(count)) => {
                let sum =
                    self.dropped.get_or_insert(DropCount { at: count.at, profiles: 0, user_records: 0 });
                sum.at = count.at;
                sum.profiles += count.profiles;
                sum.user_records += count.user_records;
            }
            (Some(step), record) => {
                let rows = self.steps.entry(step).or_default();
                rows.late |= late;
                rows.add(record);
            }
            (None, _) => {}
        }
    }
}
