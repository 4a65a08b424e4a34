//! The samples of a step as columns, one entry a row: what is sorted, filtered, counted and charted.
//!
//! Times are nanoseconds from the origin, durations seconds. What is missing is NaN, or −1 where an index is.

use rollscope_stats::reached;
use rollscope_trace::{Leg, Measure, Outcome, Profile, SampleTrace, Stage, UnixNs};
use serde::Serialize;

use crate::columns::{Column, Columns};
use crate::places::{LANES, track_counts};
use crate::step::StepView;
use crate::strings::Strings;
use crate::tile::TILE_ROWS;

/// What stands beside the columns.
#[derive(Serialize)]
struct Meta<'a> {
    step: u64,
    /// Nanoseconds since the Unix epoch, as text: it does not fit a double.
    origin_unix_ns: String,
    /// What to show first, from the origin. Nothing when nothing has happened.
    extent_ns: Option<[f64; 2]>,
    /// Rows of a tile of spans.
    tile_rows: u32,
    strings: Strings<'a>,
    workers: Vec<WorkerMeta<'a>>,
    /// Versions of the weights in order of their first answers, and when the first of each arrived.
    versions: Vec<VersionMeta<'a>>,
}

#[derive(Serialize)]
struct WorkerMeta<'a> {
    url: &'a str,
    role: &'static str,
    rank: Option<u32>,
    legs: usize,
    tracks: u32,
}

#[derive(Serialize)]
struct VersionMeta<'a> {
    name: &'a str,
    first_ns: f64,
}

/// Bits of the column `flags`.
#[derive(Clone, Copy)]
enum Flag {
    Evaluation = 1,
    Truncated = 2,
    /// A request that did not complete.
    Bad = 4,
    /// A span of the user's without an end.
    Open = 8,
    /// A value that cannot be true.
    Anomaly = 16,
}

/// The columns in the making.
#[derive(Default)]
struct Rows {
    name: Vec<u32>,
    group: Vec<i32>,
    start_ns: Vec<f64>,
    end_ns: Vec<f64>,
    reward: Vec<f64>,
    tokens: Vec<f64>,
    prompt_tokens: Vec<f64>,
    requests: Vec<u32>,
    attempts: Vec<u32>,
    flags: Vec<u8>,
    worker: Vec<i32>,
    prefill_worker: Vec<i32>,
    version: Vec<i32>,
    e2e_latency: Vec<f64>,
    queue_time: Vec<f64>,
    user_time: Vec<f64>,
    stages: [Vec<f64>; Stage::ALL.len()],
    tracks: [Vec<u32>; LANES],
}

/// What a row takes, with its name.
const ROW_BYTES: usize = 256;
/// What stands beside the rows, as a rule.
const HEAD_BYTES: usize = 16 << 10;

/// Names of the columns of the stages, in their order.
const STAGE_COLUMNS: [&str; Stage::ALL.len()] = [
    "prefill_bootstrap_queue",
    "prefill_bootstrap",
    "prefill_alloc_wait",
    "prefill_forward",
    "prefill_transfer_queue",
    "decode_prealloc",
    "decode_bootstrap",
    "decode_alloc_wait",
    "decode_transfer",
    "decode_forward",
];

const TRACK_COLUMNS: [&str; LANES] =
    ["tracks_request", "tracks_regular", "tracks_prefill", "tracks_decode", "tracks_user"];

/// The table of a step.
pub(crate) fn answer(step: &StepView) -> Result<Vec<u8>, serde_json::Error> {
    let samples: Vec<_> = step.samples().collect();
    // Nearly all names of samples differ.
    let mut strings = Strings::with_capacity(samples.len());
    let versions = versions(step);
    let mut rows = Rows::with_capacity(samples.len());
    for sample in reached(&samples) {
        rows.sample(step, sample, &mut strings, &versions);
    }
    let workers = step.workers().list.iter().map(|worker| WorkerMeta {
        url: &worker.url,
        role: worker.role.name(),
        rank: worker.rank,
        legs: worker.legs.len(),
        tracks: worker.tracks,
    });
    let meta = Meta {
        step: step.trace().step.0,
        origin_unix_ns: step.origin().0.to_string(),
        extent_ns: step.extent().map(|(start, end)| [step.since_origin(start), step.since_origin(end)]),
        tile_rows: TILE_ROWS,
        strings,
        workers: workers.collect(),
        versions: versions
            .iter()
            .map(|(name, at)| VersionMeta { name, first_ns: step.since_origin(*at) })
            .collect(),
    };
    rows.into_columns().into_bytes(&meta)
}

/// The versions of the weights, in order of the first request that each answered.
fn versions(step: &StepView) -> Vec<(&str, UnixNs)> {
    let mut first: Vec<(&str, UnixNs)> = Vec::new();
    for request in step.trace().requests() {
        let Some(version) = request.weight_version() else { continue };
        match first.iter_mut().find(|(name, _)| *name == version) {
            Some((_, at)) => *at = request.arrival.min(*at),
            None => first.push((version, request.arrival)),
        }
    }
    first.sort_by_key(|(_, at)| *at);
    first
}

// === impl Rows ===

impl Rows {
    fn with_capacity(rows: usize) -> Self {
        let (u32s, i32s, f64s) =
            (|| Vec::with_capacity(rows), || Vec::with_capacity(rows), || Vec::with_capacity(rows));
        Self {
            name: u32s(),
            group: i32s(),
            start_ns: f64s(),
            end_ns: f64s(),
            reward: f64s(),
            tokens: f64s(),
            prompt_tokens: f64s(),
            requests: u32s(),
            attempts: u32s(),
            flags: Vec::with_capacity(rows),
            worker: i32s(),
            prefill_worker: i32s(),
            version: i32s(),
            e2e_latency: f64s(),
            queue_time: f64s(),
            user_time: f64s(),
            stages: std::array::from_fn(|_| f64s()),
            tracks: std::array::from_fn(|_| u32s()),
        }
    }

    fn sample<'a>(
        &mut self,
        step: &StepView,
        sample: &'a SampleTrace,
        strings: &mut Strings<'a>,
        versions: &[(&str, UnixNs)],
    ) {
        let mark = &sample.mark;
        let time = |at: Option<UnixNs>| at.map_or(f64::NAN, |at| step.since_origin(at));
        self.name.push(strings.index(&sample.key.sample));
        self.group.push(sample.key.group.as_deref().map_or(-1, |group| strings.index(group) as i32));
        self.start_ns.push(time(sample.start()));
        self.end_ns.push(time(sample.end().or_else(|| sample.start())));
        self.reward.push(mark.reward.unwrap_or(f64::NAN));
        let requests = &sample.requests;
        let (mut generated, mut prompt, mut queued) = (f64::NAN, f64::NAN, f64::NAN);
        let mut stages = [f64::NAN; Stage::ALL.len()];
        for request in requests {
            let measured = request.measured();
            add(&mut generated, measured(Measure::CompletionTokens));
            add(&mut prompt, measured(Measure::PromptTokens));
            for (stage, seconds) in Stage::ALL.into_iter().zip(&mut stages) {
                add(seconds, measured(stage.measure()));
            }
            for leg in &request.legs {
                add(&mut queued, leg.report.measures.good(Measure::QueueTime));
            }
        }
        self.tokens.push(mark.response_tokens.map_or(generated, |tokens| tokens as f64));
        self.prompt_tokens.push(prompt);
        self.requests.push(requests.len() as u32);
        let attempts = requests.iter().map(|request| request.join.attempt);
        let attempts = attempts.chain(sample.spans.iter().map(|span| span.attempt));
        self.attempts.push(attempts.max().map_or(0, |last| last.saturating_add(1)));
        self.flags.push(flags(sample));

        let longest = requests.iter().max_by_key(|request| request.end);
        self.e2e_latency.push(longest.map_or(f64::NAN, |request| request.end.as_secs_f64()));
        self.worker.push(step.workers().number_of(longest.and_then(Profile::answer)));
        self.prefill_worker.push(step.workers().number_of(longest.and_then(Profile::prefill)));
        let version = requests.iter().rev().find_map(Profile::weight_version);
        let version = version.and_then(|version| versions.iter().position(|(name, _)| *name == version));
        self.version.push(version.map_or(-1, |version| version as i32));

        self.queue_time.push(queued);
        for (seconds, column) in stages.into_iter().zip(&mut self.stages) {
            column.push(seconds);
        }
        let own = sample.spans.iter().filter_map(|span| Some(span.end?.since(span.start).as_secs_f64()));
        self.user_time.push(own.reduce(|sum, seconds| sum + seconds).unwrap_or(f64::NAN));
        for (count, column) in track_counts(sample).into_iter().zip(&mut self.tracks) {
            column.push(count);
        }
    }

    fn into_columns(self) -> Columns {
        let mut columns = Columns::with_capacity(self.name.len() * ROW_BYTES + HEAD_BYTES);
        for (name, column) in [
            ("name", Column::U32(self.name)),
            ("group", Column::I32(self.group)),
            ("start_ns", Column::F64(self.start_ns)),
            ("end_ns", Column::F64(self.end_ns)),
            ("reward", Column::F64(self.reward)),
            ("tokens", Column::F64(self.tokens)),
            ("prompt_tokens", Column::F64(self.prompt_tokens)),
            ("requests", Column::U32(self.requests)),
            ("attempts", Column::U32(self.attempts)),
            ("flags", Column::U8(self.flags)),
            ("worker", Column::I32(self.worker)),
            ("prefill_worker", Column::I32(self.prefill_worker)),
            ("version", Column::I32(self.version)),
            ("e2e_latency", Column::F64(self.e2e_latency)),
            ("queue_time", Column::F64(self.queue_time)),
            ("user_time", Column::F64(self.user_time)),
        ] {
            columns.put(name, &column);
        }
        for (name, column) in STAGE_COLUMNS.into_iter().zip(self.stages) {
            columns.put(name, &Column::F64(column));
        }
        for (name, column) in TRACK_COLUMNS.into_iter().zip(self.tracks) {
            columns.put(name, &Column::U32(column));
        }
        columns
    }
}

fn flags(sample: &SampleTrace) -> u8 {
    let legs = || sample.requests.iter().flat_map(|request| &request.legs);
    let is_odd = |leg: &Leg| !leg.report.measures.faults().is_empty();
    let bad = |request: &Profile| request.outcome != Outcome::Completed;
    let set = [
        (Flag::Evaluation, sample.mark.is_evaluation()),
        (Flag::Truncated, sample.mark.truncated == Some(true)),
        (Flag::Bad, sample.requests.iter().any(bad)),
        (Flag::Open, sample.spans.iter().any(|span| span.end.is_none())),
        (Flag::Anomaly, legs().any(is_odd)),
    ];
    set.into_iter().filter(|(_, is_set)| *is_set).fold(0, |flags, (flag, _)| flags | flag as u8)
}

/// Adds to a sum, which is NaN while there is nothing to add up.
fn add(sum: &mut f64, value: Option<f64>) {
    if let Some(value) = value {
        *sum = if sum.is_nan() { value } else { *sum + value };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_stages_are_named_as_the_stages() {
        for (stage, name) in Stage::ALL.into_iter().zip(STAGE_COLUMNS) {
            assert_eq!(stage.measure().name(), format!("pd_{name}_duration"));
        }
    }
}
