//! Recording what has already happened: a file of others becomes a run, with every step closed and sealed.

use std::collections::BTreeMap;

use rollscope_run::{LogOptions, LogWriter, Run};
use rollscope_trace::{CloseReason, Record, StepClose, StepNumber, UnixNs};

use crate::sealing::put_numbers;
use crate::{MakeGlance, RecordError, StepClosed, StepEnd};

/// Writes records into a run, without a queue and without losses: whoever has them waits for the disk.
#[derive(Debug)]
pub struct OfflineRecorder {
    run: Run,
    log: LogWriter,
    /// When the last of a step's records was.
    steps: BTreeMap<StepNumber, UnixNs>,
}

// === impl OfflineRecorder ===

impl OfflineRecorder {
    /// Begins a log in a run.
    pub fn start(run: Run, writer: &str) -> Result<Self, RecordError> {
        let log = run.writer(writer, LogOptions::default())?;
        Ok(Self { run, log, steps: BTreeMap::new() })
    }

    /// Writes a record; one that belongs to no step is an error of the run's.
    pub fn put(&mut self, record: &Record) -> Result<(), RecordError> {
        if let Some(step) = record.step() {
            let at = match record {
                Record::Profile(profile) => profile.ended_at(),
                Record::Span(span) => span.end.unwrap_or(span.start),
                _ => UnixNs::default(),
            };
            let last = self.steps.entry(step).or_default();
            *last = at.max(*last);
        }
        Ok(self.log.append(record)?)
    }

    /// Closes every step and leaves all of it in the log: for a run that is read once.
    pub fn close(mut self, end: StepEnd) -> Result<(), RecordError> {
        self.close_steps(end)?;
        Ok(self.log.end()?)
    }

    /// Closes every step, seals them and computes their numbers. `end` is what is known of each; a viewer's first sight
    /// of each is made by `glance`.
    pub fn finish(
        mut self,
        end: StepEnd,
        glance: Option<&MakeGlance>,
    ) -> Result<Vec<StepClosed>, RecordError> {
        self.close_steps(end)?;
        let name = self.log.name().to_owned();
        self.run.sealer(&name).seal(self.log.position())?;
        self.log.end()?;
        let mut metrics = self.run.metrics_log();
        let closed = self.steps.into_keys().map(|step| {
            let closed = put_numbers(&self.run, step, glance)?;
            metrics.append(step, &closed.metrics)?;
            Ok(closed)
        });
        closed.collect()
    }

    fn close_steps(&mut self, end: StepEnd) -> Result<(), RecordError> {
        for (step, at) in &self.steps {
            let (rollout_time, gpus) = (end.rollout_time, end.gpus);
            let close = StepClose { step: *step, at: *at, reason: CloseReason::Told, rollout_time, gpus };
            self.log.append(&Record::Close(close))?;
        }
        Ok(self.log.flush()?)
    }
}
