//! The numbers of a step: stats.json of each step, and metrics.jsonl, which has what trackers were sent.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use rollscope_trace::StepNumber;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::RunError;
use crate::files;
use crate::run::Run;

const METRICS_NAME: &str = "metrics.jsonl";

/// What trackers were sent of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct SentMetrics {
    /// The step.
    pub step: StepNumber,
    /// Numbers by name.
    pub data: Map<String, Value>,
}

/// A line of metrics.jsonl.
#[derive(Serialize, Deserialize)]
struct Line<D> {
    step: u64,
    data: D,
}

// === impl Run ===

impl Run {
    /// All numbers of a step, as they were last computed.
    pub fn stats(&self, step: StepNumber) -> Result<Option<Map<String, Value>>, RunError> {
        let bytes = files::read_if_there(&self.stats_path(step))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Sets the numbers of a step.
    pub fn put_stats(&self, step: StepNumber, stats: &Map<String, Value>) -> Result<(), RunError> {
        let path = self.stats_path(step);
        files::create_folders(&self.step_folder(step))?;
        let mut bytes = serde_json::to_vec_pretty(stats)
            .map_err(|source| RunError::EncodeJson { what: "stats.json", source })?;
        bytes.push(b'\n');
        files::replace(&path, &bytes)
    }

    /// What trackers were sent, in the order of sending. Lines that cannot be read are passed over.
    pub fn metrics(&self) -> Result<Vec<SentMetrics>, RunError> {
        let bytes = files::read_if_there(&self.metrics_path())?.unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n');
        let read = lines.filter_map(|line| serde_json::from_slice::<Line<Map<String, Value>>>(line).ok());
        Ok(read.map(|line| SentMetrics { step: StepNumber(line.step), data: line.data }).collect())
    }

    /// Appends what trackers are sent of a step, once: says whether it was the first time.
    pub fn append_metrics(&self, step: StepNumber, data: &Map<String, Value>) -> Result<bool, RunError> {
        let path = self.metrics_path();
        let there = files::read_if_there(&path)?.unwrap_or_default();
        let mut lines = there.split(|byte| *byte == b'\n');
        let is_of_step = |line: &[u8]| {
            serde_json::from_slice::<Line<serde::de::IgnoredAny>>(line).is_ok_and(|line| line.step == step.0)
        };
        if lines.any(is_of_step) {
            return Ok(false);
        }
        // A line that a crash has cut must not swallow this one.
        let mut bytes = Vec::new();
        if there.last().is_some_and(|last| *last != b'\n') {
            bytes.push(b'\n');
        }
        serde_json::to_writer(&mut bytes, &Line { step: step.0, data })
            .map_err(|source| RunError::EncodeJson { what: METRICS_NAME, source })?;
        bytes.push(b'\n');
        let mut file =
            OpenOptions::new().append(true).create(true).open(&path).map_err(RunError::io("open", &path))?;
        file.write_all(&bytes).and_then(|()| file.sync_data()).map_err(RunError::io("write", &path))?;
        Ok(true)
    }

    fn stats_path(&self, step: StepNumber) -> PathBuf {
        self.step_folder(step).join("stats.json")
    }

    fn metrics_path(&self) -> PathBuf {
        self.dir().join(METRICS_NAME)
    }
}
