//! Measures how fast profiles are logged, read back and sealed, on one core.
//!
//! `cargo run --release -p rollscope-run --example log_rate -- [PROFILES] [DIR]`

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use rollscope_run::{LogOptions, Run, RunInfo};
use rollscope_trace::{
    Finish, FinishKind, Join, Leg, LegRole, Measure, Nanos, Outcome, Profile, Reading, Record, Report,
    RequestId, StepNumber, UnixNs, WorkerRef,
};

#[expect(clippy::print_stdout, reason = "it is the result")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let count: u64 = match args.next() {
        Some(count) => count.to_str().ok_or("not a number")?.parse()?,
        None => 200_000,
    };
    let dir = args.next().map_or_else(|| std::env::temp_dir().join("rollscope-log-rate"), PathBuf::from);
    let info =
        RunInfo { producer: "log_rate".to_owned(), created: UnixNs(0), config: serde_json::Value::Null };
    let run = Run::create(&dir, &info)?;
    let mut writer = run.writer("bench", LogOptions::default())?;

    let mut record = Record::Profile(Box::new(profile()));
    let began = Instant::now();
    for number in 0..count {
        if let Record::Profile(profile) = &mut record {
            profile.id = RequestId(number.into());
            profile.arrival = UnixNs(number as i64 * 50_000);
        }
        writer.append(&record)?;
    }
    writer.flush()?;
    let rate = |began: Instant| count as f64 / began.elapsed().as_secs_f64();
    println!("append  {:>10.0} profiles/s", rate(began));

    let began = Instant::now();
    let mut follow = run.follow();
    let mut read = 0;
    while read < count {
        read += follow.poll()?.len() as u64;
    }
    println!("read    {:>10.0} profiles/s", rate(began));

    let began = Instant::now();
    run.sealer(writer.name()).seal(writer.position())?;
    println!("seal    {:>10.0} profiles/s", rate(began));

    let began = Instant::now();
    let trace = run.step(StepNumber(1))?;
    println!("gather  {:>10.0} profiles/s ({} samples)", rate(began), trace.samples.len());

    let log: u64 = run.writers()?.iter().map(|writer| writer.bytes).sum();
    println!("log     {:>10.0} bytes/profile", log as f64 / count as f64);
    for table in ["requests", "legs", "spans", "samples"] {
        let file = dir.join(format!("steps/step=000001/{table}/{}-000001.parquet", writer.name()));
        println!("{table:<8}{:>10.1} bytes/profile", fs::metadata(file)?.len() as f64 / count as f64);
    }
    writer.end()?;
    Ok(fs::remove_dir_all(&dir)?)
}

/// A request of a prefill/decode pair with all its stages.
fn profile() -> Profile {
    let seconds =
        |name: Measure| (name, Reading { value: 0.001 + name as usize as f64 / 977.0, fault: None });
    let leg = |role: LegRole| {
        let prefix = format!("pd_{}", role.name());
        let own =
            |measure: &Measure| !measure.name().starts_with("pd_") || measure.name().starts_with(&prefix);
        Leg {
            role,
            worker: WorkerRef {
                url: format!("http://{}-0:30000", role.name()).into(),
                instance: "w-0001".into(),
            },
            dispatch: Nanos(180_000),
            first_byte: Some(Nanos(91_000_000)),
            end: Nanos(1_200_000_000),
            status: Some(200),
            outcome: Outcome::Completed,
            error: None,
            report: Report {
                measures: Measure::all().filter(own).map(seconds).collect(),
                finish: Some(Finish { kind: FinishKind::Stop, message: None, status_code: None }),
                weight_version: Some("default".into()),
                worker_request_id: Some("4b0c9a3c5a7f4c53a9a6d6f1a8e2b7c1".into()),
            },
        }
    };
    Profile {
        id: RequestId(0),
        join: Join {
            step: Some(StepNumber(1)),
            group: Some("prompt-17".into()),
            sample: Some("sample-3".into()),
            ..Join::default()
        },
        endpoint: "/generate".into(),
        stream: false,
        batch: None,
        arrival: UnixNs(0),
        first_byte: Some(Nanos(91_200_000)),
        end: Nanos(1_200_100_000),
        status: Some(200),
        outcome: Outcome::Completed,
        error: None,
        decision: "power_of_two of 4 prefill, power_of_two of 4 decode".into(),
        retries: 0,
        legs: vec![leg(LegRole::Prefill), leg(LegRole::Decode)],
    }
}
