//! Following a run while it is being recorded.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollscope_trace::{Record, StepNumber};

use crate::error::RunError;
use crate::log::cursor::LogCursor;
use crate::log::{Damage, LogPosition};
use crate::manifest::{Manifest, Newest};
use crate::read::{Drops, StepSummary};
use crate::run::Run;

/// About so many records in one poll.
const BATCH_RECORDS: usize = 16_384;

/// Reads a run from its begin and then whatever is added, every record exactly once.
///
/// What had been sealed at the first poll is read from the parts; from there on only the logs are read, which
/// hold everything, so sealing meanwhile changes nothing. Losses that were sealed come as one record a seal. A part
/// that is damaged is made up for from the log, and where that is gone told by [`Follow::damage`] and passed over; so are
/// records of steps that were no longer kept at the first poll.
#[derive(Debug)]
pub struct Follow {
    run: Run,
    /// What had been sealed when following began; nothing before the first poll.
    start: Option<Arc<Manifest>>,
    /// How many of its seals have been read.
    seals_read: usize,
    cursors: BTreeMap<String, LogCursor>,
    /// Of each step that was read of in the logs, by writer where the last record of it but forward passes ends.
    last: BTreeMap<StepNumber, BTreeMap<String, LogPosition>>,
}

// === impl Follow ===

impl Run {
    /// A follower that has read nothing yet.
    pub fn follow(&self) -> Follow {
        let (cursors, last) = (BTreeMap::new(), BTreeMap::new());
        Follow { run: self.clone(), start: None, seals_read: 0, cursors, last }
    }
}

impl Follow {
    /// What has been added since the last poll, in batches of bounded size; empty when there is nothing new.
    /// After an error the next poll tries the same place again.
    pub fn poll(&mut self) -> Result<Vec<Record>, RunError> {
        let mut records = Vec::new();
        match self.read_into(&mut records) {
            Err(error) if records.is_empty() => Err(error),
            // What was read before an error is handed out; the error comes again.
            _ => Ok(records),
        }
    }

    /// Passes over what has been sealed by now and tells its steps and losses, for which no part is read but where
    /// several hold the samples of a step. From here on [`Self::poll`] gives what the logs hold beyond it. After the
    /// first poll there is nothing to pass over, and nothing is told.
    pub fn skip_sealed(&mut self) -> Result<(Vec<StepSummary>, Drops), RunError> {
        let mut drops = Drops::default();
        if self.start.is_some() {
            return Ok((Vec::new(), drops));
        }
        let manifest = Newest::read(&self.run)?.manifest;
        let steps = self.run.sealed_steps(&manifest)?;
        for sealed in manifest.seals().filter_map(|seal| seal.dropped) {
            drops.profiles += sealed.profiles;
            drops.user_records += sealed.user_records;
        }
        self.seals_read = manifest.seals().count();
        self.start = Some(manifest);
        Ok((steps, drops))
    }

    fn read_into(&mut self, records: &mut Vec<Record>) -> Result<(), RunError> {
        let start = match &self.start {
            Some(start) => start,
            None => self.start.insert(Newest::read(&self.run)?.manifest),
        };
        for seal in start.seals().skip(self.seals_read) {
            if records.len() >= BATCH_RECORDS {
                return Ok(());
            }
            records.extend(seal.read(&self.run)?);
            self.seals_read += 1;
        }
        for writer in self.run.writer_names()? {
            let (folder, from) = (self.run.log_folder(&writer), start.sealed_up_to(&writer));
            self.cursors.entry(writer).or_insert_with(|| LogCursor::new(folder, from));
        }
        for (writer, cursor) in &mut self.cursors {
            while records.len() < BATCH_RECORDS
                && let Some(record) = cursor.next()?
            {
                if record.step().is_some_and(|step| start.forgotten().contains(&step)) {
                    continue;
                }
                if !matches!(record, Record::ForwardPass(_))
                    && let Some(step) = record.step()
                {
                    let ends = self.last.entry(step).or_default();
                    match ends.get_mut(writer) {
                        Some(end) => *end = cursor.position(),
                        None => _ = ends.insert(writer.clone(), cursor.position()),
                    }
                }
                records.push(record);
            }
        }
        Ok(())
    }

    /// Whether all that was read of a step has been sealed by now, but for its forward passes.
    pub fn is_sealed(&self, step: StepNumber) -> Result<bool, RunError> {
        let Some(ends) = self.last.get(&step) else { return Ok(true) };
        let manifest = Newest::read(&self.run)?.manifest;
        Ok(ends.iter().all(|(writer, end)| *end <= manifest.sealed_up_to(writer)))
    }

    /// What could not be read so far.
    pub fn damage(&self) -> impl Iterator<Item = Damage> {
        let sealed = self.start.iter().flat_map(|start| start.damage(&self.run));
        let logged = self.cursors.values().flat_map(LogCursor::damage).cloned();
        let parts = self.run.lost_parts().into_iter().map(|(_, damage)| damage);
        sealed.chain(logged).chain(parts).chain(self.run.lost_manifests())
    }
}
