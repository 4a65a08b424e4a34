//! Writes a small run in the present format: the one that is kept, for each version, below `tests/data`.
//!
//! `cargo run -p rollscope-run --example sample_run -- DIR`

use std::error::Error;
use std::fs;
use std::path::Path;

use rollscope_run::{LogOptions, Run, RunInfo};
use rollscope_trace::{
    Attr, CloseReason, DropCount, Fault, Finish, FinishKind, Join, Leg, LegRole, Measure, Nanos, Outcome,
    Profile, Reading, Record, Report, RequestId, SampleKey, SampleMark, StepClose, StepNumber, UnixNs,
    UserSpan, WorkerRef,
};

const BEGIN: UnixNs = UnixNs(1_760_000_000_000_000_000);

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("a directory is needed")?;
    let config = serde_json::json!({"pd_disaggregation": true, "port": 30_000});
    let info = RunInfo { producer: "rollscope sample".to_owned(), created: BEGIN, config };
    let run = Run::create(Path::new(&dir), &info)?;

    // Step 1 is closed and sealed, and one of its requests comes late; step 2 is open.
    let mut writer = run.writer("gateway", LogOptions::default())?;
    let mut sealer = run.sealer(writer.name());
    let mut log = |records: &[Record]| {
        records.iter().try_for_each(|record| writer.append(record))?;
        writer.flush().map(|()| writer.position())
    };
    log(&[
        request(1, 0),
        request(1, 1),
        retried(1, 2),
        reward_span(1, 0),
        mark(1, 0, 1.0),
        mark(1, 1, f64::NAN),
    ])?;
    sealer.seal(log(&[request(2, 3), close(1)])?)?;
    let lost = DropCount { at: at(7_000_000_000), profiles: 2, user_records: 1 };
    sealer.seal(log(&[request(1, 4), Record::Dropped(lost)])?)?;
    log(&[request(2, 5), mark(2, 3, 0.5)])?;
    let stats = serde_json::json!({"metrics": {"perf/request/count": 3.0}});
    if let serde_json::Value::Object(stats) = stats {
        run.put_stats(StepNumber(1), &stats)?;
        run.metrics_log().append(StepNumber(1), &stats)?;
    }
    writer.end()?;

    // A second writer was killed within a record.
    let mut killed = run.writer("rollout", LogOptions::default())?;
    killed.append(&reward_span(2, 3))?;
    killed.append(&reward_span(2, 5))?;
    killed.flush()?;
    let length = killed.position().offset - 9;
    drop(killed);
    let torn = run.dir().join("log/rollout/000001.seg");
    fs::OpenOptions::new().write(true).open(torn)?.set_len(length)?;
    Ok(())
}

fn at(elapsed_ns: u64) -> UnixNs {
    BEGIN.after(Nanos(elapsed_ns))
}

fn key(step: u64, number: u64) -> SampleKey {
    let group = Some(format!("g{}", number / 2).into());
    SampleKey { step: StepNumber(step), group, sample: format!("s{number}").into() }
}

fn profile(step: u64, number: u64) -> Profile {
    let SampleKey { group, sample, .. } = key(step, number);
    let prefill = [
        (Measure::PrefillBootstrapQueue, 0.003),
        (Measure::PrefillBootstrap, 0.001),
        (Measure::PrefillForward, 0.020),
        (Measure::TransferTotal, 1.5),
        (Measure::PromptTokens, 28.0),
    ];
    let decode = [
        (Measure::DecodePrealloc, 0.004),
        (Measure::DecodeTransfer, 0.019),
        (Measure::DecodeForward, 0.150),
        (Measure::E2eLatency, 0.180),
        (Measure::CompletionTokens, 12.0),
    ];
    Profile {
        join: Join { step: Some(StepNumber(step)), group, sample: Some(sample), ..Join::default() },
        stream: number % 2 == 1,
        first_byte: Some(Nanos(50_000_000)),
        decision: "random of 1 prefill, random of 1 decode".into(),
        legs: vec![leg(LegRole::Prefill, &prefill), leg(LegRole::Decode, &decode)],
        ..Profile::new(
            RequestId(u128::from(step) << 64 | u128::from(number)),
            at(number * 10_000_000),
            Nanos(190_000_000),
        )
    }
}

fn leg(role: LegRole, readings: &[(Measure, f64)]) -> Leg {
    Leg {
        first_byte: Some(Nanos(45_000_000)),
        report: Report {
            measures: readings
                .iter()
                .map(|(m, value)| (*m, Reading { value: *value, fault: None }))
                .collect(),
            finish: Some(Finish { kind: FinishKind::Stop, message: None, status_code: None }),
            weight_version: Some("v1".into()),
            worker_request_id: Some("r1".into()),
        },
        ..Leg::new(
            role,
            WorkerRef { url: format!("http://{}:30000", role.name()).into(), instance: "w1".into() },
            Nanos(1_000_000),
            Nanos(185_000_000),
        )
    }
}

fn request(step: u64, number: u64) -> Record {
    Record::Profile(Box::new(profile(step, number)))
}

/// The first decode worker aborted; the second reported a negative queue time.
fn retried(step: u64, number: u64) -> Record {
    let mut profile = profile(step, number);
    let mut second = profile.legs.clone();
    let decode = &mut profile.legs[1];
    (decode.status, decode.outcome) = (Some(503), Outcome::Failed);
    decode.error = Some("worker ran out of memory".into());
    decode.report.finish = Some(Finish {
        kind: FinishKind::Abort,
        message: Some("out of memory".into()),
        status_code: Some(503),
    });
    let negative = Reading { value: -0.25, fault: Some(Fault::Negative) };
    second[1].report.measures.set(Measure::QueueTime, negative);
    profile.legs.append(&mut second);
    profile.retries = 1;
    Record::Profile(Box::new(profile))
}

fn reward_span(step: u64, number: u64) -> Record {
    Record::Span(UserSpan {
        key: key(step, number),
        attempt: 0,
        name: "reward".into(),
        start: at(200_000_000),
        end: Some(at(200_500_000)),
        attrs: vec![
            ("correct".into(), Attr::Bool(true)),
            ("terms".into(), Attr::Int(3)),
            ("score".into(), Attr::Float(f64::INFINITY)),
            ("checker".into(), Attr::from("exact")),
        ],
    })
}

fn mark(step: u64, number: u64, reward: f64) -> Record {
    let mut mark = SampleMark::new(key(step, number));
    (mark.reward, mark.truncated, mark.response_tokens) = (Some(reward), Some(false), Some(12));
    Record::Sample(mark)
}

fn close(step: u64) -> Record {
    let (at, reason) = (at(6_000_000_000), CloseReason::Told);
    Record::Close(StepClose {
        step: StepNumber(step),
        at,
        reason,
        rollout_time: Some(Nanos(5_500_000_000)),
        gpus: Some(8),
    })
}
