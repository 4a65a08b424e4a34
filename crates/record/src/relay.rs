//! Numbers of steps that another program's recorder has computed, to trackers of one's own.

use std::fmt;
use std::sync::Arc;

use rollscope_run::{MetricsLog, Run};
use rollscope_trace::StepNumber;
use rollscope_track::Target;
use serde_json::{Map, Value};

use crate::tracking::Tracking;
use crate::{OnTrouble, RecordError};

/// Sends what it is given, and keeps it in the metrics.jsonl of a run, from which it is tried again and made up for later.
/// Dropped, it sends what is left, for as long as a recorder's end waits for its trackers.
pub struct Relay {
    metrics: MetricsLog,
    tracking: Tracking,
}

// === impl Relay ===

impl Relay {
    /// Starts a thread for each tracker, which begins with what the run has.
    pub fn start(
        run: &Run,
        trackers: &[Target],
        on_trouble: impl Fn(&RecordError) + Send + Sync + 'static,
    ) -> Result<Self, RecordError> {
        let on_trouble: OnTrouble = Arc::new(on_trouble);
        Ok(Self {
            metrics: run.metrics_log(),
            tracking: Tracking::spawn(run, trackers, &on_trouble, &Arc::default())?,
        })
    }

    /// Sends the numbers of a step without waiting for a tracker; what was sent of it last is not sent again.
    pub fn send(&mut self, step: StepNumber, numbers: &Map<String, Value>) -> Result<(), RecordError> {
        self.metrics.append(step, numbers)?;
        self.tracking.tell();
        Ok(())
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("metrics", &self.metrics).finish_non_exhaustive()
    }
}
