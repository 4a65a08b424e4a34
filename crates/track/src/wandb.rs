//! Weights & Biases: an offline run, as its own program writes one, for `wandb sync`.
//!
//! ```text
//! wandb/offline-run-YYYYMMDD_HHMMSS-ID/run-ID.wandb
//! ```
//!
//! The file is a log as `LevelDB` has: blocks of 32 KiB counted from the file's begin, whose first seven bytes are the
//! format's mark; chunks of `crc32 u32 · length u16 · type u8 · bytes`, where the type says whether a record is whole
//! or its first, middle or last part. A record is a message of `wandb/proto/wandb_internal.proto`. In order: who wrote
//! it, the run, its metrics, then a summary and a row of the history for each step, at last the exit.
//!
//! Rows have the step under its own name, and `perf/*`, `rollout/*` and `eval/*` are defined over it, so that none is
//! refused for coming later than another writer's. A history is only added to: a step that is sent again is one more row of it
//! over the same step, which a chart shows behind the first.
//!
//! A file without a name for its run says nothing of that run but rows: it may be synced into the run that another program
//! writes, of which a name, a configuration or a runtime would take the place.

use std::path::Path;

use prost::Message;

use crate::STEP_NAME;
use crate::error::TrackError;
use crate::records::RecordFile;
use crate::tracker::{Numbers, Origin, Times, create_folder, now_s};

mod log;
mod message;

use message::{
    Config, Exit, Header, History, HistoryStep, Item, Metric, MetricOptions, Record, RunInfo, Summary,
};

#[derive(Debug)]
pub(crate) struct Wandb {
    pub(crate) times: Times,
    file: RecordFile,
    /// Whether the run is another's, or may be.
    is_nameless: bool,
    /// Number of the next record.
    next: i64,
    /// Rows of the history so far.
    rows: i64,
    started_s: f64,
}

/// What a file holds.
#[derive(Default)]
struct Content {
    /// Where the last record ends that is to stay.
    whole: usize,
    times: Times,
    records: i64,
    rows: i64,
}

// === impl Wandb ===

impl Wandb {
    pub(crate) fn open(origin: &Origin, project: &str, name: Option<&str>) -> Result<Self, TrackError> {
        let id = origin.id(&format!("wandb:{project}/{}", name.unwrap_or_default()));
        let folder = format!("offline-run-{}-{id}", compact_utc(origin.created.as_secs()));
        let dir = origin.dir.join("wandb").join(folder);
        create_folder(&dir.join("files"))?;
        let path = dir.join(format!("run-{id}.wandb"));
        let mut found = Content::default();
        let file = RecordFile::open(&path, |content| {
            found = Content::of(content);
            if found.whole == 0
                && !content.is_empty()
                && !log::MARK.starts_with(content)
                && !content.starts_with(&log::MARK)
            {
                return Err(TrackError::Foreign { path: path.clone() });
            }
            Ok(found.whole)
        })?;
        let started_s = origin.created.as_secs_f64();
        let Content { times, records, rows, .. } = found;
        let is_nameless = name.is_none();
        let mut wandb = Self { times, file, is_nameless, next: records + 1, rows, started_s };
        if wandb.file.end() == 0 {
            wandb.begin(origin, &id, project, name)?;
        }
        Ok(wandb)
    }

    fn begin(
        &mut self,
        origin: &Origin,
        id: &str,
        project: &str,
        name: Option<&str>,
    ) -> Result<(), TrackError> {
        let folder = Item::text("rollscope_run", &origin.name())?;
        let run = RunInfo {
            run_id: id.to_owned(),
            project: project.to_owned(),
            config: name.map(|_| Config { update: vec![folder] }),
            display_name: name.unwrap_or_default().to_owned(),
            start_time: Some(message::Timestamp {
                seconds: origin.created.as_secs() as i64,
                nanos: origin.created.subsec_nanos() as i32,
            }),
            ..RunInfo::default()
        };
        let over_step = |glob: &str| Metric {
            glob_name: glob.to_owned(),
            step_metric: STEP_NAME.to_owned(),
            options: Some(MetricOptions { step_sync: true, hidden: false, defined: true }),
            ..Metric::default()
        };
        let step = Metric {
            name: STEP_NAME.to_owned(),
            options: Some(MetricOptions { step_sync: false, hidden: false, defined: true }),
            ..Metric::default()
        };
        let metrics = [step].into_iter().chain(["perf/*", "rollout/*", "eval/*"].map(over_step));
        let mut records = vec![
            Record { header: Some(Header::new()), ..Record::default() },
            Record { run: Some(run), ..Record::default() },
        ];
        records.extend(metrics.map(|metric| Record { metric: Some(metric), ..Record::default() }));
        self.append(records)
    }

    pub(crate) fn send(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackError> {
        let now_s = now_s();
        let mut row = vec![
            Item::number("_step", self.rows as f64)?,
            Item::number("_timestamp", now_s)?,
            Item::number("_runtime", (now_s - self.started_s).max(0.0))?,
        ];
        let mut told = vec![Item::number(STEP_NAME, step as f64)?];
        for (name, value) in numbers {
            told.push(Item::number(name, *value)?);
        }
        row.extend_from_slice(&told);
        let mut records = Vec::new();
        // The summary is of the latest step, also where an earlier one is sent again.
        if self.times.from(step.saturating_add(1)).next().is_none() {
            let summary = Summary { update: if self.is_nameless { told } else { row.clone() } };
            records.push(Record { summary: Some(summary), ..Record::default() });
        }
        let history = History { item: row, step: Some(HistoryStep { num: self.rows }) };
        records.push(Record { history: Some(history), ..Record::default() });
        self.append(records)?;
        self.rows += 1;
        self.times.add(step);
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<(), TrackError> {
        let runtime = (now_s() - self.started_s).max(0.0) as i32;
        self.append(vec![Record { exit: Some(Exit { exit_code: 0, runtime }), ..Record::default() }])
    }

    pub(crate) fn dir(&self) -> &Path {
        self.file.path().parent().unwrap_or_else(|| self.file.path())
    }

    /// Appends records in one write, so that a reader beside never sees a half of one for long.
    fn append(&mut self, records: Vec<Record>) -> Result<(), TrackError> {
        let count = records.len() as i64;
        let mut at = self.file.end();
        let mut bytes = if at == 0 { log::MARK.to_vec() } else { Vec::new() };
        at += bytes.len() as u64;
        for (number, record) in (self.next..).zip(records) {
            let record = Record { num: number, ..record };
            let chunks = log::chunks(at, &record.encode_to_vec());
            at += chunks.len() as u64;
            bytes.extend(chunks);
        }
        self.file.append(&bytes)?;
        self.next += count;
        Ok(())
    }
}

// === impl Content ===

impl Content {
    /// Reads whole records up to the exit, which a run that goes on takes back. A summary stays only with its row.
    fn of(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        let mut pending = 0;
        for (end, record) in log::read(bytes) {
            let Ok(record) = Record::decode(&*record) else { break };
            if record.exit.is_some() {
                break;
            }
            pending += 1;
            if record.summary.is_some() {
                continue;
            }
            if let Some(history) = &record.history {
                let step = history.item.iter().find(|item| item.key == STEP_NAME);
                if let Some(step) = step.and_then(|item| item.value_json.parse::<f64>().ok()) {
                    content.times.add(step as u64);
                }
                content.rows += 1;
            }
            content.records += std::mem::take(&mut pending);
            content.whole = end;
        }
        // A run without its metrics is begun anew.
        if content.records < 6 { Self::default() } else { content }
    }
}

/// `20261130_031415`, as wandb's folders are named. Days by the Gregorian calendar, in cycles of 400 years counted
/// from March.
fn compact_utc(unix_s: u64) -> String {
    let (days, of_day) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}_{:02}{:02}{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What a file of a step says: of its run, and in its summary.
    fn written(name: Option<&str>) -> (RunInfo, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let origin =
            Origin { dir: folder.path().join("grpo-7"), created: Duration::from_secs(1_760_000_000) };
        let mut wandb = Wandb::open(&origin, "p", name).unwrap();
        wandb.send(7, &Numbers::from([("perf/rollout_time".to_owned(), 0.5)])).unwrap();
        let bytes = std::fs::read(wandb.file.path()).unwrap();
        let records = log::read(&bytes).into_iter();
        let records: Vec<_> = records.map(|(_, record)| Record::decode(&*record).unwrap()).collect();
        let run = records.iter().find_map(|record| record.run.clone()).unwrap();
        let summary = records.into_iter().find_map(|record| record.summary).unwrap();
        (run, summary.update.into_iter().map(|item| item.key).collect())
    }

    #[test]
    fn only_a_run_with_a_name_of_ours_is_told_of() {
        let (run, summary) = written(None);
        assert_eq!((&*run.display_name, run.config), ("", None));
        assert_eq!(summary, ["rollout/step", "perf/rollout_time"]);

        let (run, summary) = written(Some("night"));
        let config = run.config.unwrap().update.remove(0);
        assert_eq!((&*run.display_name, &*config.key), ("night", "rollscope_run"));
        assert_eq!(config.value_json, "\"grpo-7\"");
        assert_eq!(summary, ["_step", "_timestamp", "_runtime", "rollout/step", "perf/rollout_time"]);
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(compact_utc(951_782_400), "20000229_000000");
        assert_eq!(compact_utc(1_796_009_655), "20261130_033415");
    }
}
