//! Measures what recording takes of one core while requests come at a steady rate for a minute: from the offer of a profile to
//! steps that are closed, sealed, counted and, beyond the last two, removed again. The making of the profiles is left out.
//!
//! `cargo run --release -p rollscope-record --example sustained -- [SECONDS] [DIR]`

#[path = "../../run/examples/common/mod.rs"]
mod common;

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::Maker;
use mimalloc::MiMalloc;
use rollscope_record::{RecordError, RecordOptions, Recorder, StepEnd};
use rollscope_run::{Retention, Run, RunInfo};
use rollscope_trace::{ProfileSink as _, StepNumber, UnixNs};

/// That of the program.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Requests a second.
const RATE: u64 = 20_000;
/// Of a step.
const STEP: u64 = 100_000;
/// Between two bursts.
const TICK: Duration = Duration::from_millis(10);
/// Ticks a second of the clock that processes' times are told in; of all systems that tell them so.
const CLOCK_HZ: f64 = 100.0;

/// Time that the main thread has had a core for.
fn thread_cpu_s() -> Option<f64> {
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(schedstat.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
}

/// Time that all threads have had one for.
fn process_cpu_s() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // After the name, which may hold anything: utime and stime are the twelfth and the thirteenth.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut times = rest.split_whitespace().skip(11);
    let mut next = || times.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / CLOCK_HZ)
}

#[expect(clippy::print_stdout, reason = "it is the result")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let seconds: u64 = match args.next() {
        Some(seconds) => seconds.to_str().ok_or("not a number")?.parse()?,
        None => 60,
    };
    let dir = args.next().map_or_else(|| std::env::temp_dir().join("rollscope-sustained"), PathBuf::from);
    let info =
        RunInfo { producer: "sustained".to_owned(), created: UnixNs(0), config: serde_json::Value::Null };
    let run = Run::create(&dir, &info)?;
    let retention = Retention { steps: Some(2), log_bytes: Some(256 << 20) };
    let options = RecordOptions { retention, ..RecordOptions::default() };
    let recorder = Recorder::start(run, &options)?;
    let handle = recorder.handle();

    let (mut maker, mut made, mut making_s, mut ends) = (Maker::new(), 0, 0.0, Vec::new());
    let before_s = process_cpu_s().ok_or("the system does not tell the process's time")?;
    let began = Instant::now();
    while made < RATE * seconds {
        let due = ((began.elapsed() + TICK).as_secs_f64() * RATE as f64) as u64;
        let due = due.min(RATE * seconds).min((made / STEP + 1) * STEP);
        let (step, thread_s) = (StepNumber(made / STEP + 1), thread_cpu_s());
        let profiles: Vec<_> = (made..due).map(|number| maker.profile(step, number % STEP)).collect();
        making_s += thread_cpu_s().zip(thread_s).map_or(0.0, |(now, before)| now - before);
        for profile in profiles {
            // What is dropped is counted.
            let _offered = handle.offer(profile);
        }
        made = due;
        if made % STEP == 0 {
            ends.push(handle.end_step(step, StepEnd::default()).map_err(|_| "the queue is full")?);
        }
        std::thread::sleep(TICK.saturating_sub(Duration::from_micros(100)));
    }
    let offered_s = began.elapsed().as_secs_f64();
    let dropped = handle.dropped_profiles();
    recorder.shutdown().await?;
    let all_s = began.elapsed().as_secs_f64();
    let cpu_s = process_cpu_s().ok_or("the system does not tell the process's time")? - before_s - making_s;
    for end in ends {
        end.await?.map_err(|error: std::sync::Arc<RecordError>| error.to_string())?;
    }
    println!(
        "recorded {made} requests in {offered_s:.1} s, all sealed after {all_s:.1} s: cores {:.3}, dropped {dropped}",
        cpu_s / offered_s
    );
    fs::remove_dir_all(&dir)?;
    if dropped > 0 { Err("recording did not keep up".into()) } else { Ok(()) }
}
