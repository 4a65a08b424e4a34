//! Measures how fast profiles are logged, read back and sealed, on one core, and what they take on disk: by default a step
//! of a million spans, no two requests of which are alike.
//!
//! `cargo run --release -p rollscope-run --example log_rate -- [PROFILES] [DIR]`

mod common;

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use common::Maker;
use mimalloc::MiMalloc;
use rollscope_run::{LogOptions, Run, RunInfo};
use rollscope_trace::{Record, StepNumber, UnixNs, profile_spans};

/// That of the program.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[expect(clippy::print_stdout, reason = "it is the result")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let count: u64 = match args.next() {
        Some(count) => count.to_str().ok_or("not a number")?.parse()?,
        None => 66_667,
    };
    let dir = args.next().map_or_else(|| std::env::temp_dir().join("rollscope-log-rate"), PathBuf::from);
    let info =
        RunInfo { producer: "log_rate".to_owned(), created: UnixNs(0), config: serde_json::Value::Null };
    let run = Run::create(&dir, &info)?;
    let mut writer = run.writer("bench", LogOptions::default())?;

    let step = StepNumber(1);
    let mut maker = Maker::new();
    let mut spans = 0;
    let mut make = |number| {
        let profile = maker.profile(step, number);
        spans += profile_spans(&profile).len();
        Record::Profile(Box::new(profile))
    };
    let records: Vec<Record> = (0..count).map(&mut make).collect();
    let began = Instant::now();
    for record in &records {
        writer.append(record)?;
    }
    writer.flush()?;
    let rate = |began: Instant| count as f64 / began.elapsed().as_secs_f64();
    println!("append  {:>10.0} profiles/s", rate(began));
    drop(records);

    let began = Instant::now();
    let mut follow = run.follow();
    let mut read = 0;
    while read < count {
        read += follow.poll()?.len() as u64;
    }
    println!("read    {:>10.0} profiles/s", rate(began));

    let began = Instant::now();
    run.sealer(writer.name()).seal(writer.position())?;
    let took_s = began.elapsed().as_secs_f64();
    println!("seal    {:>10.0} profiles/s", count as f64 / took_s);
    println!("sealed {spans} spans in {took_s:.3} s");

    let began = Instant::now();
    let trace = run.step(step)?;
    println!("gather  {:>10.0} profiles/s ({} samples)", rate(began), trace.samples.len());

    let log: u64 = run.writers()?.iter().map(|writer| writer.bytes).sum();
    println!("log     {:>10.0} bytes/profile", log as f64 / count as f64);
    let mut bytes = 0;
    for table in ["requests", "legs", "samples"] {
        let file = dir.join(format!("steps/step=000001/{table}/{}-000001.parquet", writer.name()));
        let length = fs::metadata(file)?.len();
        bytes += length;
        println!("{table:<8}{:>10.1} bytes/profile", length as f64 / count as f64);
    }
    println!("a span {:.1} bytes", bytes as f64 / spans as f64);
    writer.end()?;
    Ok(fs::remove_dir_all(&dir)?)
}
