//! What a run knows: its steps, its writers, its losses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};

use rollscope_trace::{Record, SampleKey, StepClose, StepNumber, StepTrace};

use crate::error::RunError;
use crate::log::cursor::LogCursor;
use crate::log::writer::LOCK_NAME;
use crate::log::{Damage, LogPosition, segment_number};
use crate::run::Run;

/// A step of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSummary {
    /// Which step.
    pub step: StepNumber,
    /// The last word on its end; nothing while it is open.
    pub close: Option<StepClose>,
    /// Records have come after it was closed, which the numbers sent to trackers do not have.
    pub late: bool,
    /// Requests recorded.
    pub requests: u64,
    /// Samples that they, the user's spans and marks belong to.
    pub samples: u64,
    /// Spans of the user's own code.
    pub user_spans: u64,
}

/// A writer of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterSummary {
    /// The name of its folder.
    pub name: Box<str>,
    /// Whether it is still writing.
    pub state: WriterState,
    /// Segments of its log.
    pub segments: u32,
    /// Size of its log.
    pub bytes: u64,
    /// Records of later versions that this program passed over.
    pub unknown: u64,
    /// What cannot be read of its log.
    pub damage: Vec<Damage>,
}

/// Whether a writer is still writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterState {
    /// It holds its log open.
    Live,
    /// It closed its log in order.
    Ended,
    /// It is gone and has not closed its log: it was killed, or the run was copied meanwhile.
    Interrupted,
}

/// Records lost before they reached a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Profiles.
    pub profiles: u64,
    /// Spans and marks of the user's.
    pub user_records: u64,
}

/// Adds up what is known of a step.
#[derive(Default)]
struct StepTally {
    close: Option<StepClose>,
    late: bool,
    requests: u64,
    user_spans: u64,
    samples: BTreeSet<SampleKey>,
}

// === impl Run ===

impl Run {
    /// The steps, by number.
    pub fn steps(&self) -> Result<Vec<StepSummary>, RunError> {
        let mut tallies: BTreeMap<StepNumber, StepTally> = BTreeMap::new();
        self.for_each_record(|record| {
            if let Some(step) = record.step() {
                tallies.entry(step).or_default().add(step, record);
            }
        })?;
        Ok(tallies.into_iter().map(|(step, tally)| tally.summary(step)).collect())
    }

    /// Everything known of a step.
    pub fn step(&self, step: StepNumber) -> Result<StepTrace, RunError> {
        let mut records = Vec::new();
        self.for_each_record(|record| {
            if record.step() == Some(step) {
                records.push(record);
            }
        })?;
        if records.is_empty() {
            return Err(RunError::NoSuchStep { step });
        }
        Ok(StepTrace::gather(step, records))
    }

    /// The writers, by name.
    pub fn writers(&self) -> Result<Vec<WriterSummary>, RunError> {
        let names = self.writer_names()?;
        names.into_iter().map(|name| self.writer_summary(name.into())).collect()
    }

    /// Losses over all writers.
    pub fn dropped(&self) -> Result<Drops, RunError> {
        let mut drops = Drops::default();
        self.for_each_record(|record| {
            if let Record::Dropped(count) = record {
                drops.profiles += count.profiles;
                drops.user_records += count.user_records;
            }
        })?;
        Ok(drops)
    }

    /// Every record of the logs, one writer after the other.
    fn for_each_record(&self, mut take: impl FnMut(Record)) -> Result<(), RunError> {
        for writer in self.writer_names()? {
            let mut cursor = LogCursor::new(self.log_folder(&writer), LogPosition::START);
            while let Some(record) = cursor.next()? {
                take(record);
            }
        }
        Ok(())
    }

    fn writer_summary(&self, name: Box<str>) -> Result<WriterSummary, RunError> {
        let folder = self.log_folder(&name);
        // Asked before the log is read: a writer that ends meanwhile has set its mark by then.
        let live = match File::open(folder.join(LOCK_NAME)).map(|lock| lock.try_lock_shared()) {
            Ok(Err(TryLockError::WouldBlock)) => true,
            Ok(Ok(()) | Err(TryLockError::Error(_))) | Err(_) => false,
        };
        let mut cursor = LogCursor::new(folder.clone(), LogPosition::START);
        while cursor.next()?.is_some() {}
        let state = match (cursor.ended(), live) {
            (true, _) => WriterState::Ended,
            (false, true) => WriterState::Live,
            (false, false) => WriterState::Interrupted,
        };
        let (mut segments, mut bytes) = (0, 0);
        for file in crate::files::names_in(&folder)? {
            if segment_number(&file).is_some() {
                segments += 1;
                bytes += fs::metadata(folder.join(file)).map_or(0, |metadata| metadata.len());
            }
        }
        let damage = cursor.damage().cloned().collect();
        Ok(WriterSummary { name, state, segments, bytes, unknown: cursor.unknown(), damage })
    }
}

// === impl StepTally ===

impl StepTally {
    fn add(&mut self, step: StepNumber, record: Record) {
        self.late |= self.close.is_some();
        match record {
            Record::Profile(profile) => {
                self.requests += 1;
                self.samples.insert(profile.sample_key(step));
            }
            Record::Span(span) => {
                self.user_spans += 1;
                self.samples.insert(span.key);
            }
            Record::Sample(mark) => {
                self.samples.insert(mark.key);
            }
            Record::Close(close) => self.close = Some(close),
            Record::Dropped(_) => {}
        }
    }

    fn summary(self, step: StepNumber) -> StepSummary {
        StepSummary {
            step,
            close: self.close,
            late: self.late,
            requests: self.requests,
            samples: self.samples.len() as u64,
            user_spans: self.user_spans,
        }
    }
}
