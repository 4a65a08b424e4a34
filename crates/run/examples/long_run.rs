//! Measures what the end of a step costs in a run that grows long: the first steps against the last.
//!
//! `cargo run --release -p rollscope-run --example long_run -- [STEPS] [REQUESTS] [DIR]`

mod common;

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::Maker;
use rollscope_run::{LogOptions, LogWriter, MetricsLog, Run, RunInfo, Sealer};
use rollscope_trace::{CloseReason, Record, StepClose, StepNumber, UnixNs};

/// What a recorder does when a step is over, in this order.
const PARTS: [&str; 4] = ["seal", "read", "stats.json", "metrics.jsonl"];

/// Numbers that a step has.
const NUMBERS: usize = 200;

#[expect(clippy::print_stdout, reason = "it is the result")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let mut number = |otherwise: u64| match args.next() {
        Some(given) => given.to_str().and_then(|given| given.parse().ok()).ok_or("not a number"),
        None => Ok(otherwise),
    };
    let (steps, requests) = (number(200)?, number(500)?);
    let dir = args.next().map_or_else(|| std::env::temp_dir().join("rollscope-long-run"), PathBuf::from);
    let info =
        RunInfo { producer: "long_run".to_owned(), created: UnixNs(0), config: serde_json::Value::Null };
    let run = Run::create(&dir, &info)?;
    let mut maker = Maker::new();
    let mut writer = run.writer("bench", LogOptions::default())?;
    let (mut sealer, mut metrics) = (run.sealer(writer.name()), run.metrics_log());
    let mut costs = Vec::new();
    for step in (1..=steps).map(StepNumber) {
        write_step(&mut writer, &mut maker, step, requests)?;
        costs.push(end_step(&run, &writer, &mut sealer, &mut metrics, step)?);
    }
    let tenth = (costs.len() / 10).max(1);
    for (which, costs) in [("first", &costs[..tenth]), ("last", &costs[costs.len() - tenth..])] {
        print!("{which:<6}{tenth:>4} steps, median ms a step:");
        for (part, name) in PARTS.iter().enumerate() {
            let mut times: Vec<_> = costs.iter().map(|cost| cost[part]).collect();
            times.sort_unstable();
            print!("  {name} {:.2}", times[times.len() / 2].as_secs_f64() * 1e3);
        }
        println!();
    }
    let began = Instant::now();
    let known = run.steps()?.len();
    println!("all {known} steps listed in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    writer.end()?;
    Ok(fs::remove_dir_all(&dir)?)
}

fn write_step(
    writer: &mut LogWriter,
    maker: &mut Maker,
    step: StepNumber,
    requests: u64,
) -> Result<(), Box<dyn Error>> {
    for number in 0..requests {
        writer.append(&Record::Profile(Box::new(maker.profile(step, number))))?;
    }
    let (at, reason) = (UnixNs(step.0 as i64), CloseReason::Told);
    writer.append(&Record::Close(StepClose { step, at, reason, rollout_time: None, gpus: None }))?;
    Ok(writer.flush()?)
}

/// The time of each of [`PARTS`].
fn end_step(
    run: &Run,
    writer: &LogWriter,
    sealer: &mut Sealer,
    metrics: &mut MetricsLog,
    step: StepNumber,
) -> Result<[Duration; PARTS.len()], Box<dyn Error>> {
    let mut began = Instant::now();
    let mut lap = || {
        let ended = Instant::now();
        ended - std::mem::replace(&mut began, ended)
    };
    sealer.seal(writer.position())?;
    let seal = lap();
    let samples = run.step(step)?.samples.len();
    let read = lap();
    let numbers =
        (0..NUMBERS).map(|number| (format!("perf/request/number_{number}"), samples.into())).collect();
    run.put_stats(step, &numbers)?;
    let put = lap();
    metrics.append(step, &numbers)?;
    Ok([seal, read, put, lap()])
}
