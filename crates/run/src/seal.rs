//! Sealing: a stretch of a writer's log becomes parts of its steps.
//!
//! A stretch holds records of every step that was going on meanwhile, and each step gets a part of it, whether
//! it was closed or not; so one position per writer says what has been sealed. Sealing reads the log back and
//! touches nothing that the writer writes, so it can be done beside it in another thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use rollscope_trace::{DropCount, Record, StepNumber, StepTrace};

use crate::error::RunError;
use crate::log::cursor::LogCursor;
use crate::log::mirror::{CloseMirror, DroppedMirror};
use crate::log::writer::LOCK_NAME;
use crate::log::{LogPosition, LogStretch};
use crate::manifest::{self, Manifest, Newest, Seal, SealedDamage};
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

/// What a stretch of a log holds.
struct Contents {
    watch: LateWatch,
    steps: BTreeMap<StepNumber, StepRows>,
    closes: Vec<CloseMirror>,
    dropped: Option<DropCount>,
    /// How far it goes.
    to: LogPosition,
    unknown: u64,
    damage: Vec<SealedDamage>,
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
    /// Seals everything before `up_to`, a [`crate::LogWriter::position`], as it reads it from the log. What has been sealed before is left;
    /// after an error nothing has changed, and it may be tried again.
    pub fn seal(&self, up_to: LogPosition) -> Result<Sealed, RunError> {
        Ok(self.seal_and_gather(LogStretch::up_to(up_to), &BTreeSet::new())?.0)
    }

    /// Seals a stretch, and gives those of the wanted steps of which everything has been read thereby, as [`Run::step`] would read
    /// them from their parts again.
    pub fn seal_and_gather(
        &self,
        stretch: LogStretch,
        wanted: &BTreeSet<StepNumber>,
    ) -> Result<(Sealed, BTreeMap<StepNumber, StepTrace>), RunError> {
        let manifest = Newest::read(&self.run)?.manifest;
        let from = manifest.sealed_up_to(&self.writer);
        let mut contents = Contents::after(&manifest, from);
        match stretch.records {
            Some((begin, records)) if begin == from => contents.take(records, stretch.up_to),
            _ => {
                let log = self.run.log_folder(&self.writer);
                contents.read(LogCursor::new(log, from).up_to(stretch.up_to))?;
            }
        }
        let (mut sealed, mut traces) = (Sealed::default(), BTreeMap::new());
        if contents.is_empty() {
            return Ok((sealed, traces));
        }
        let is_alone = !wanted.is_empty() && self.run.writer_names()?.len() == 1;
        let before: BTreeSet<u64> =
            manifest.seals().flat_map(|seal| &seal.steps).map(|parts| parts.step).collect();
        let number = manifest.seals_of(&self.writer).count() + 1;
        let name = format!("{}-{number:06}", self.writer);
        let mut steps = Vec::new();
        for (step, rows) in contents.steps {
            steps.push(rows.write(self.run.dir(), step, &name)?);
            sealed.steps.insert(step);
            if rows.late {
                sealed.late.insert(step);
            }
            if wanted.contains(&step) && is_alone && !before.contains(&step.0) {
                let told = contents.closes.iter().filter_map(CloseMirror::close);
                let closes = manifest.closes().chain(told).filter(|close| close.step == step);
                let closes: Vec<Record> = closes.map(Record::Close).collect();
                traces.insert(step, StepTrace::gather(step, rows.into_records().chain(closes)));
            }
        }
        let seal = Seal {
            writer: self.writer.to_string(),
            from,
            to: contents.to,
            steps,
            closes: contents.closes,
            dropped: contents.dropped.as_ref().map(DroppedMirror::of),
            unknown: contents.unknown,
            damage: contents.damage,
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

// === impl Contents ===

impl Contents {
    fn after(manifest: &Manifest, from: LogPosition) -> Self {
        Self {
            watch: LateWatch::new(manifest.closed_steps()),
            steps: BTreeMap::new(),
            closes: Vec::new(),
            dropped: None,
            to: from,
            unknown: 0,
            damage: Vec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        let has_records = !self.steps.is_empty() || !self.closes.is_empty() || self.dropped.is_some();
        !has_records && self.unknown == 0 && self.damage.is_empty()
    }

    fn take(&mut self, records: Vec<Record>, to: LogPosition) {
        for record in records {
            self.add(record);
        }
        self.to = to;
    }

    fn read(&mut self, mut cursor: LogCursor) -> Result<(), RunError> {
        while let Some(record) = cursor.next()? {
            self.add(record);
        }
        (self.to, self.unknown) = (cursor.position(), cursor.unknown());
        self.damage = cursor.damage_passed().iter().filter_map(SealedDamage::of).collect();
        Ok(())
    }

    fn add(&mut self, record: Record) {
        let late = self.watch.is_late(&record);
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
