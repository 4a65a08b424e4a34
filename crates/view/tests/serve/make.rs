//! Runs and records made for the tests.

use rollscope_run::{LogOptions, LogWriter, Run, RunInfo};
use rollscope_trace::{
    Attr, ForwardPass, Join, Leg, LegRole, Nanos, PassLoad, Profile, Record, Report, RequestId, SampleKey,
    SampleMark, Scalar, StepNumber, UnixNs, UserSpan, WorkerRef,
};
use tempfile::TempDir;

const MS: u64 = 1_000_000;
const BASE_NS: i64 = 1_700_000_000_000_000_000;

/// An empty run with a writer; the folder lives as long as the first of the three.
pub(crate) fn run() -> (TempDir, Run, LogWriter) {
    let dir = TempDir::new().unwrap();
    let info =
        RunInfo { producer: "a test".into(), created: UnixNs(BASE_NS), config: serde_json::Value::Null };
    let run = Run::create(&dir.path().join("run"), &info).unwrap();
    let writer = run.writer("gateway", LogOptions::default()).unwrap();
    (dir, run, writer)
}

/// A request of `id` × 20 ms in decode, and 5 ms more in the gateway.
pub(crate) fn call(step: u64, sample: &str, id: u64) -> Record {
    let length = Nanos(id * 20 * MS);
    let decode = Leg {
        report: Report::from_pairs([("pd_decode_forward_duration", Scalar::Number(length.as_secs_f64()))]),
        ..Leg::new(
            LegRole::Decode,
            WorkerRef { url: "http://127.0.0.1:1".into(), instance: "w".into() },
            Nanos(0),
            length,
        )
    };
    Record::Profile(Box::new(Profile {
        join: Join {
            step: Some(StepNumber(step)),
            group: Some("g".into()),
            sample: Some(sample.into()),
            ..Join::default()
        },
        legs: vec![decode],
        ..Profile::new(RequestId(u128::from(id)), UnixNs(BASE_NS), length.plus(Nanos(5 * MS)))
    }))
}

pub(crate) fn span(step: u64, sample: &str, attrs: Vec<(Box<str>, Attr)>) -> Record {
    let (start, end) = (UnixNs(BASE_NS), Some(UnixNs(BASE_NS + 1000)));
    Record::Span(UserSpan { key: key(step, sample), attempt: 0, name: "reward".into(), start, end, attrs })
}

pub(crate) fn mark(step: u64, sample: &str, reward: f64) -> Record {
    let mut mark = SampleMark::new(key(step, sample));
    mark.reward = Some(reward);
    Record::Sample(mark)
}

fn key(step: u64, sample: &str) -> SampleKey {
    SampleKey { step: StepNumber(step), group: Some("g".into()), sample: sample.into() }
}

/// A forward pass of the worker of [`call`], heard of so many milliseconds after the first request.
pub(crate) fn pass(step: u64, counter_id: u64, after_ms: u64) -> Record {
    let decode = PassLoad { decode_requests: 3, decode_kv_tokens: 900, ..PassLoad::default() };
    Record::ForwardPass(Box::new(ForwardPass {
        step: Some(StepNumber(step)),
        worker: Some(WorkerRef { url: "http://127.0.0.1:1".into(), instance: "w".into() }),
        uncertainty: Nanos(MS),
        wall: Nanos(5 * MS),
        scheduled: decode,
        ..ForwardPass::new("ipc:///tmp/passes.0", counter_id, UnixNs(BASE_NS).after(Nanos(after_ms * MS)))
    }))
}
