//! What a stretch of a writer's log holds, step by step: put together as it is written, or read again.

use std::collections::BTreeMap;

use rollscope_trace::{DropCount, Record, StepNumber, UnixNs};

use crate::error::RunError;
use crate::log::LogPosition;
use crate::log::cursor::LogCursor;
use crate::log::mirror::CloseMirror;
use crate::manifest::SealedDamage;
use crate::parts::StepRows;
use crate::step_set::StepSet;

/// Tells which records come after the end of their step.
#[derive(Clone, Debug, Default)]
pub(crate) struct LateWatch(StepSet);

/// What a stretch of a log holds.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) from: LogPosition,
    /// How far it goes.
    pub(crate) to: LogPosition,
    pub(crate) steps: BTreeMap<StepNumber, StepRows>,
    pub(crate) closes: Vec<CloseMirror>,
    pub(crate) dropped: Option<DropCount>,
    pub(crate) unknown: u64,
    pub(crate) damage: Vec<SealedDamage>,
    /// Of the ends in it.
    watch: LateWatch,
}

// === impl LateWatch ===

impl LateWatch {
    pub(crate) fn new(closed: StepSet) -> Self {
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
    /// Nothing yet.
    pub(crate) fn since(from: LogPosition) -> Self {
        Self {
            from,
            to: from,
            steps: BTreeMap::new(),
            closes: Vec::new(),
            dropped: None,
            unknown: 0,
            damage: Vec::new(),
            watch: LateWatch::default(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let has_records = !self.steps.is_empty() || !self.closes.is_empty() || self.dropped.is_some();
        !has_records && self.unknown == 0 && self.damage.is_empty()
    }

    /// Reads what a log holds from where the cursor stands.
    pub(crate) fn read(mut cursor: LogCursor) -> Result<Self, RunError> {
        let mut contents = Self::since(cursor.position());
        while let Some(record) = cursor.next()? {
            contents.add(record, 0);
        }
        (contents.to, contents.unknown) = (cursor.position(), cursor.unknown());
        contents.damage = cursor.damage_passed().iter().filter_map(SealedDamage::of).collect();
        Ok(contents)
    }

    /// Takes the next record, and what it takes in the log.
    pub(crate) fn add(&mut self, record: Record, bytes: usize) {
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
                rows.bytes += bytes;
                rows.add(record);
            }
            (None, _) => {}
        }
    }

    /// What comes after the end of a step that was closed before the stretch is late, too.
    pub(crate) fn flag_late(&mut self, closed: &StepSet) {
        for (_, rows) in self.steps.iter_mut().filter(|(step, _)| closed.contains(step)) {
            rows.late |= rows.has_records();
        }
    }

    /// Leaves out what is not to be kept: ends of steps that were forgotten, and their records, which are lost thereby.
    pub(crate) fn leave_out(&mut self, forgotten: &StepSet) {
        for (_, rows) in self.steps.extract_if(.., |step, _| forgotten.contains(step)) {
            let records = &rows.records;
            let (profiles, user_records) =
                (records.profiles.len(), records.spans.len() + records.marks.len());
            if profiles + user_records > 0 {
                // No clock is at hand: the loss is dated by what is lost.
                let last = records.profiles.iter().map(|profile| profile.ended_at()).max();
                let none = DropCount { at: last.unwrap_or(UnixNs(0)), profiles: 0, user_records: 0 };
                let sum = self.dropped.get_or_insert(none);
                sum.profiles += profiles as u64;
                sum.user_records += user_records as u64;
            }
        }
        self.closes.retain(|close| !forgotten.contains(&close.step()));
    }
}
