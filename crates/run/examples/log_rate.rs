//! Measures how fast profiles are logged, read back and sealed, on one core.
//!
//! `cargo run --release -p rollscope-run --example log_rate -- [PROFILES] [DIR]`

mod common;

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use common::profile;
use rollscope_run::{LogOptions, Run, RunInfo};
use rollscope_trace::{Record, RequestId, StepNumber, UnixNs, profile_spans};

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
    let (sealed, spans) = (rate(began), profile_spans(&profile()).len() as f64);
    println!("seal    {sealed:>10.0} profiles/s");
    println!("sealed spans {:.0} a second, {spans} a profile", sealed * spans);

    let began = Instant::now();
    let trace = run.step(StepNumber(1))?;
    println!("gather  {:>10.0} profiles/s ({} samples)", rate(began), trace.samples.len());

    let log: u64 = run.writers()?.iter().map(|writer| writer.bytes).sum();
    println!("log     {:>10.0} bytes/profile", log as f64 / count as f64);
    let mut bytes = 0;
    for table in ["requests", "legs", "spans", "samples"] {
        let file = dir.join(format!("steps/step=000001/{table}/{}-000001.parquet", writer.name()));
        let length = fs::metadata(file)?.len();
        bytes += length;
        println!("{table:<8}{:>10.1} bytes/profile", length as f64 / count as f64);
    }
    println!("a span {:.1} bytes", bytes as f64 / count as f64 / spans);
    writer.end()?;
    Ok(fs::remove_dir_all(&dir)?)
}
