//! Reading what was sealed: from its parts, and where one is damaged from the log again.

use std::collections::BTreeSet;

use rollscope_trace::{ForwardPass, Record, StepNumber};

use crate::error::RunError;
use crate::log::cursor::LogCursor;
use crate::log::mirror::CloseMirror;
use crate::manifest::Seal;
use crate::parts::StepParts;
use crate::parts::samples::Key;
use crate::run::Run;

/// The sample that a record belongs to; nothing for the end of a step and for losses.
pub(crate) fn sample_key(record: &Record) -> Option<Key> {
    let key = record.sample_key()?;
    Some((key.group, key.sample))
}

// === impl Seal ===

impl Seal {
    /// The records that the stretch held, those of each step in their order.
    pub(crate) fn read(&self, run: &Run) -> Result<Vec<Record>, RunError> {
        let mut records = Vec::new();
        for parts in &self.steps {
            records.extend(self.read_step(run, parts)?);
            let passes = self.passes(run, parts)?.into_iter();
            records.extend(passes.map(|pass| Record::ForwardPass(Box::new(pass))));
        }
        records.extend(self.closes.iter().filter_map(CloseMirror::close).map(Record::Close));
        records.extend(self.dropped.map(|dropped| Record::Dropped(dropped.drop_count())));
        Ok(records)
    }

    /// The records of a step of the stretch. Where neither a part nor the log has them, the run is told, and what
    /// the other parts have is all there is.
    pub(crate) fn read_step(&self, run: &Run, parts: &StepParts) -> Result<Vec<Record>, RunError> {
        let read = parts.read(run.dir())?;
        if read.damaged.is_empty() {
            return Ok(read.records);
        }
        if let Some(records) = self.read_step_from_log(run, parts)? {
            return Ok(records);
        }
        for part in read.damaged {
            run.note_lost_part(&self.writer, part);
        }
        Ok(read.records)
    }

    /// The forward passes of a step of the stretch. Where neither the part nor the log has them, the run is told.
    pub(crate) fn passes(&self, run: &Run, parts: &StepParts) -> Result<Vec<ForwardPass>, RunError> {
        let part = match parts.passes(run.dir()) {
            Ok(passes) => return Ok(passes),
            Err(error) => error.unreadable_part()?,
        };
        let mut cursor = LogCursor::new(run.log_folder(&self.writer), self.from).up_to(self.to);
        let mut passes = Vec::new();
        while let Some(record) = cursor.next()? {
            match record {
                Record::ForwardPass(pass) if pass.step == Some(StepNumber(parts.step)) => passes.push(*pass),
                _ => {}
            }
        }
        if cursor.position() < self.to {
            run.note_lost_part(&self.writer, part);
        }
        Ok(passes)
    }

    /// The samples of a step of the stretch, as (group, sample); nothing where neither the part nor the log has
    /// them, which the run is told.
    pub(crate) fn sample_keys(&self, run: &Run, parts: &StepParts) -> Result<Option<Vec<Key>>, RunError> {
        let part = match parts.sample_keys(run.dir()) {
            Ok(keys) => return Ok(Some(keys)),
            Err(error) => error.unreadable_part()?,
        };
        let records = self.read_step_from_log(run, parts)?;
        if records.is_none() {
            run.note_lost_part(&self.writer, part);
        }
        Ok(records.map(|records| records.iter().filter_map(sample_key).collect()))
    }

    /// Reads the stretch of the log again; nothing where the log does not have all that was sealed.
    fn read_step_from_log(&self, run: &Run, parts: &StepParts) -> Result<Option<Vec<Record>>, RunError> {
        let mut cursor = LogCursor::new(run.log_folder(&self.writer), self.from).up_to(self.to);
        let mut records = Vec::new();
        while let Some(record) = cursor.next()? {
            if record.step() == Some(StepNumber(parts.step)) && sample_key(&record).is_some() {
                records.push(record);
            }
        }
        let count =
            |wanted: fn(&Record) -> bool| records.iter().filter(|record| wanted(record)).count() as u64;
        let samples: BTreeSet<Key> = records.iter().filter_map(sample_key).collect();
        let is_whole = cursor.position() >= self.to
            && count(|record| matches!(record, Record::Profile(_))) == parts.requests
            && count(|record| matches!(record, Record::Span(_))) == parts.user_spans
            && samples.len() as u64 == parts.samples;
        Ok(is_whole.then_some(records))
    }
}
