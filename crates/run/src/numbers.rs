//! The numbers of a step: stats.json of each step, and metrics.jsonl, which has what trackers were sent.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, BufRead as _, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rollscope_trace::StepNumber;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::RunError;
use crate::files;
use crate::run::Run;

const METRICS_NAME: &str = "metrics.jsonl";
pub(crate) const STATS_NAME: &str = "stats.json";
/// The member of stats.json that trackers are sent.
const SENT_MEMBER: &str = "metrics";

/// What trackers were sent of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct SentMetrics {
    /// The step.
    pub step: StepNumber,
    /// The how manieth time it was sent: 1, and more where its numbers changed afterwards. The last one holds.
    pub time: u64,
    /// Numbers by name.
    pub data: Map<String, Value>,
}

/// Reads metrics.jsonl line by line: of a file that grows with every step each is read once.
#[derive(Debug)]
pub struct MetricsFollow {
    path: PathBuf,
    /// Lines up to here have been taken.
    taken_bytes: u64,
    /// How many of each step.
    taken: BTreeMap<u64, u64>,
}

/// Appends to metrics.jsonl, and knows what it has: of a file that grows with every step only what is new is read.
#[derive(Debug)]
pub struct MetricsLog {
    run: Run,
    path: PathBuf,
    /// A hash of the last line of each step.
    sent: BTreeMap<u64, u64>,
    /// Whole lines up to here have been read.
    read_bytes: u64,
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

    /// What trackers were sent, in the order of sending; of a step whose numbers changed afterwards the last holds. Lines that
    /// cannot be read are passed over.
    pub fn metrics(&self) -> Result<Vec<SentMetrics>, RunError> {
        let mut sent = Vec::new();
        self.follow_metrics().each_new(|metrics| {
            sent.push(metrics);
            Ok::<_, RunError>(())
        })?;
        Ok(sent)
    }

    /// metrics.jsonl for whoever goes on reading it, from its begin.
    pub fn follow_metrics(&self) -> MetricsFollow {
        MetricsFollow { path: self.metrics_path(), taken_bytes: 0, taken: BTreeMap::new() }
    }

    /// metrics.jsonl for whoever appends to it. The file is first read when something is appended.
    pub fn metrics_log(&self) -> MetricsLog {
        let (run, path) = (self.clone(), self.metrics_path());
        MetricsLog { run, path, sent: BTreeMap::new(), read_bytes: 0 }
    }

    pub(crate) fn stats_path(&self, step: StepNumber) -> PathBuf {
        self.step_folder(step).join(STATS_NAME)
    }

    pub(crate) fn metrics_path(&self) -> PathBuf {
        self.dir().join(METRICS_NAME)
    }
}

// === impl MetricsFollow ===

impl MetricsFollow {
    /// Hands on what was added since, in the order of sending. A line counts as taken when `take` says so; after an
    /// error the same one comes again. Lines that cannot be read are passed over, and one without an end is waited for.
    pub fn each_new<E: From<RunError>>(
        &mut self,
        mut take: impl FnMut(SentMetrics) -> Result<(), E>,
    ) -> Result<(), E> {
        let cannot = |source| RunError::io("read", &self.path)(source);
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(cannot(source).into()),
        };
        // A shorter one was put in its place.
        if file.metadata().map_err(cannot)?.len() < self.taken_bytes {
            self.taken_bytes = 0;
            self.taken.clear();
        }
        let mut file = BufReader::new(file);
        file.seek(SeekFrom::Start(self.taken_bytes)).map_err(cannot)?;
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = file.read_until(b'\n', &mut line).map_err(cannot)?;
            if line.last() != Some(&b'\n') {
                return Ok(());
            }
            if let Ok(Line { step, data }) = serde_json::from_slice::<Line<Map<String, Value>>>(&line) {
                let time = self.taken.get(&step).map_or(1, |taken| taken + 1);
                take(SentMetrics { step: StepNumber(step), time, data })?;
                self.taken.insert(step, time);
            }
            self.taken_bytes += length as u64;
        }
    }
}

// === impl MetricsLog ===

impl MetricsLog {
    /// Appends what trackers are sent of a step, unless it is what they were sent of it last; says whether it was not. Others
    /// may append beside.
    pub fn append(&mut self, step: StepNumber, data: &Map<String, Value>) -> Result<bool, RunError> {
        let mut line = serde_json::to_vec(&Line { step: step.0, data })
            .map_err(|source| RunError::EncodeJson { what: METRICS_NAME, source })?;
        let open = OpenOptions::new().read(true).append(true).create(true).open(&self.path);
        let mut file = open.map_err(RunError::io("open", &self.path))?;
        // Until it is closed, so that no other reads and appends between.
        file.lock().map_err(RunError::io("lock", &self.path))?;
        let is_cut = self.catch_up(&mut file).map_err(RunError::io("read", &self.path))?;
        if self.sent.get(&step.0) == Some(&hash(&line)) {
            return Ok(false);
        }
        // A line that a crash has cut must not swallow this one.
        if is_cut {
            line.insert(0, b'\n');
        }
        line.push(b'\n');
        let written = file.write_all(&line).and_then(|()| file.sync_data());
        written.map_err(RunError::io("write", &self.path))?;
        Ok(true)
    }

    /// Appends the numbers of steps that were computed and not sent, since whoever computed them was killed before they were in
    /// the file, and gives the steps: those without a line, and those whose numbers are younger than the file and other than
    /// their last line. A line that somebody has amended in the file stays. What cannot be read or written is passed over,
    /// and the first such error comes back.
    pub fn make_up(&mut self, made_up: &mut BTreeSet<StepNumber>) -> Result<(), RunError> {
        let mut sent = BTreeMap::new();
        // Asked before it is read: what is added meanwhile is not taken for older than it is.
        let sent_at = modified(&self.path)?;
        // By what is read of both, since a number may be read as another than was written.
        let seen = |data: &Map<String, Value>| hash(Value::from(data.clone()).to_string().as_bytes());
        self.run.follow_metrics().each_new(|metrics| {
            sent.insert(metrics.step, seen(&metrics.data));
            Ok::<_, RunError>(())
        })?;
        let mut outcome = Ok(());
        for step in self.run.steps_with_folders()? {
            let computed = self.computed_since(step, sent_at.filter(|_| sent.contains_key(&step)));
            let appended = computed.and_then(|data| match data {
                Some(data) if sent.get(&step) != Some(&seen(&data)) => self.append(step, &data),
                _ => Ok(false),
            });
            match appended {
                Ok(is_new) => made_up.extend(is_new.then_some(step)),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// What trackers are to be sent of a step, unless it was computed before then.
    fn computed_since(
        &self,
        step: StepNumber,
        time: Option<SystemTime>,
    ) -> Result<Option<Map<String, Value>>, RunError> {
        if time.is_some() && modified(&self.run.stats_path(step))? < time {
            return Ok(None);
        }
        let stats = self.run.stats(step)?;
        Ok(stats.and_then(|mut stats| stats.remove(SENT_MEMBER)).and_then(|data| match data {
            Value::Object(data) => Some(data),
            _ => None,
        }))
    }

    /// Takes note of the lines that were added since, by whomever; says whether the last of them has no end.
    fn catch_up(&mut self, file: &mut File) -> io::Result<bool> {
        let mut added = Vec::new();
        // A shorter one was put in its place.
        if file.metadata()?.len() < self.read_bytes {
            self.read_bytes = 0;
            self.sent.clear();
        }
        file.seek(SeekFrom::Start(self.read_bytes))?;
        file.read_to_end(&mut added)?;
        let whole = added.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        for line in added[..whole].split(|byte| *byte == b'\n') {
            let read = serde_json::from_slice::<Line<IgnoredAny>>(line);
            self.sent.extend(read.map(|read| (read.step, hash(line))));
        }
        self.read_bytes += whole as u64;
        Ok(whole < added.len())
    }
}

/// When a file was last written; nothing of one that is not there.
fn modified(path: &Path) -> Result<Option<SystemTime>, RunError> {
    match fs::metadata(path).and_then(|metadata| metadata.modified()) {
        Ok(time) => Ok(Some(time)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RunError::io("read", path)(source)),
    }
}

/// Of a line without its end. The same numbers are always written the same.
fn hash(line: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}
