//! Numbers of steps that another program's recorder has computed, to trackers of one's own.

use std::collections::BTreeMap;
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
    /// What metrics.jsonl did not take: the last numbers of each step.
    unwritten: BTreeMap<StepNumber, Map<String, Value>>,
    on_trouble: OnTrouble,
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
            unwritten: BTreeMap::new(),
            on_trouble,
        })
    }

    /// Sends the numbers of a step without waiting for a tracker; what was sent of it last is not sent again. What cannot be
    /// written, which is an error, is tried again with the next step and at the end.
    pub fn send(&mut self, step: StepNumber, numbers: &Map<String, Value>) -> Result<(), RecordError> {
        self.unwritten.insert(step, numbers.clone());
        self.write()
    }

    fn write(&mut self) -> Result<(), RecordError> {
        while let Some(first) = self.unwritten.first_entry() {
            self.metrics.append(*first.key(), first.get())?;
            first.remove();
            self.tracking.tell();
        }
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Err(error) = self.write() {
            (self.on_trouble)(&error);
        }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("metrics", &self.metrics).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use parking_lot::Mutex;
    use rollscope_run::RunInfo;
    use rollscope_trace::UnixNs;
    use serde_json::json;

    use super::*;

    fn run() -> (tempfile::TempDir, Run) {
        let dir = tempfile::tempdir().unwrap();
        let info = RunInfo { producer: "test".into(), created: UnixNs(0), config: json!({}) };
        let run = Run::create(&dir.path().join("run"), &info).unwrap();
        (dir, run)
    }

    fn numbers(value: f64) -> Map<String, Value> {
        Map::from_iter([("perf/number".to_owned(), json!(value))])
    }

    fn start(run: &Run, trackers: &[Target]) -> (Relay, Arc<Mutex<Vec<String>>>) {
        let troubles = Arc::<Mutex<Vec<String>>>::default();
        let told = Arc::clone(&troubles);
        (Relay::start(run, trackers, move |error| told.lock().push(error.to_string())).unwrap(), troubles)
    }

    fn sent(run: &Run) -> Vec<u64> {
        run.metrics().unwrap().into_iter().map(|sent| sent.step.0).collect()
    }

    #[test]
    fn what_cannot_be_written_is_written_with_the_next_step_or_at_the_end() {
        let (_dir, run) = run();
        let in_the_way = run.dir().join("metrics.jsonl");
        let (mut relay, troubles) = start(&run, &[]);
        fs::create_dir(&in_the_way).unwrap();
        for (step, value) in [(1, 1.0), (2, 2.0), (1, 3.0)] {
            relay.send(StepNumber(step), &numbers(value)).unwrap_err();
        }
        fs::remove_dir(&in_the_way).unwrap();
        relay.send(StepNumber(3), &numbers(4.0)).unwrap();
        assert_eq!(sent(&run), [1, 2, 3]);
        assert_eq!(run.metrics().unwrap()[0].data, numbers(3.0), "the last ones of the step");

        let aside = run.dir().join("aside");
        fs::rename(&in_the_way, &aside).unwrap();
        fs::create_dir(&in_the_way).unwrap();
        relay.send(StepNumber(4), &numbers(5.0)).unwrap_err();
        fs::remove_dir(&in_the_way).unwrap();
        fs::rename(&aside, &in_the_way).unwrap();
        drop(relay);
        assert_eq!((sent(&run), troubles.lock().clone()), (vec![1, 2, 3, 4], vec![]));

        let (mut relay, troubles) = start(&run, &[]);
        fs::remove_file(&in_the_way).unwrap();
        fs::create_dir(&in_the_way).unwrap();
        relay.send(StepNumber(5), &numbers(6.0)).unwrap_err();
        drop(relay);
        assert_eq!(troubles.lock().len(), 1, "{troubles:?}");
    }
}
