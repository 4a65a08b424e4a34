//! Measures what recording a request costs behind the thread that makes its profile: its part of writing the log, of sealing
//! a step of many, of the step's numbers, and of what a viewer shows first.
//!
//! `cargo run --release -p rollscope-view --example seal_cost -- [REQUESTS] [STEPS] [named]`: processor's time and page faults of each
//! part, of the best step. Nobody has named the requests' samples, unless `named` is said.

#[path = "../../run/examples/common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;

use common::Maker;
use mimalloc::MiMalloc;
use rollscope_run::{LogOptions, LogWriter, Run, RunInfo};
use rollscope_stats::step_numbers;
use rollscope_trace::{CloseReason, Record, StepClose, StepNumber, UnixNs};
use rollscope_view::glance;

/// That of the program.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// What is done with a step, in this order.
const PARTS: [&str; 4] = ["log", "seal", "numbers", "first sight"];

/// What a thread has used.
#[derive(Clone, Copy)]
struct Used {
    cpu_ns: u64,
    page_faults: u64,
}

#[expect(clippy::print_stdout, reason = "it is the result")]
fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise| args.get(at).map_or(Ok(otherwise), |given| given.parse::<u64>());
    let (requests, steps) = (number(0, 30_000)?, number(1, 5)?);
    let is_named = match args.get(2).map(String::as_str) {
        None => false,
        Some("named") => true,
        Some(other) => return Err(format!("expected `named`: {other}").into()),
    };
    let dir = std::env::temp_dir().join(format!("rollscope-seal-cost-{}", std::process::id()));
    let info = RunInfo { producer: "seal_cost".into(), created: UnixNs(0), config: serde_json::Value::Null };
    let run = Run::create(&dir, &info)?;
    let mut writer = run.writer("bench", LogOptions { keep_bytes: 1 << 30, ..LogOptions::default() })?;
    let mut maker = Maker::new();
    let mut best = [Used { cpu_ns: u64::MAX, page_faults: u64::MAX }; PARTS.len()];
    for step in (1..=steps).map(StepNumber) {
        let profiles = (0..requests).map(|number| {
            let mut profile = maker.profile(step, number);
            if !is_named {
                (profile.join.group, profile.join.sample) = (None, None);
            }
            Record::Profile(Box::new(profile))
        });
        let costs = record(&run, &mut writer, step, profiles.collect())?;
        for (best, cost) in best.iter_mut().zip(costs) {
            best.cpu_ns = best.cpu_ns.min(cost.cpu_ns);
            best.page_faults = best.page_faults.min(cost.page_faults);
        }
    }
    for (part, Used { cpu_ns, page_faults }) in PARTS.iter().zip(best) {
        let each = |count: u64| count as f64 / requests as f64;
        println!("{part:<12} {:>7.2} us  {:>6.3} page faults", each(cpu_ns) / 1e3, each(page_faults));
    }
    let all: u64 = best.iter().map(|used| used.cpu_ns).sum();
    println!("all          {:>7.2} us a request", all as f64 / requests as f64 / 1e3);
    writer.end()?;
    Ok(fs::remove_dir_all(&dir)?)
}

/// As the recorder's threads do.
fn record(
    run: &Run,
    writer: &mut LogWriter,
    step: StepNumber,
    profiles: Vec<Record>,
) -> Result<[Used; PARTS.len()], Box<dyn Error>> {
    let mut before = Used::now()?;
    let mut lap = || -> Result<Used, Box<dyn Error>> {
        let now = Used::now()?;
        let since = std::mem::replace(&mut before, now);
        Ok(Used { cpu_ns: now.cpu_ns - since.cpu_ns, page_faults: now.page_faults - since.page_faults })
    };
    for profile in profiles {
        writer.append_and_keep(profile)?;
    }
    let (at, reason) = (UnixNs(step.0 as i64), CloseReason::Told);
    writer.append_and_keep(Record::Close(StepClose { step, at, reason, rollout_time: None, gpus: None }))?;
    writer.flush()?;
    let stretch = writer.stretch();
    let log = lap()?;
    let (_, mut traces) = run.sealer(writer.name()).seal_and_gather(stretch, &BTreeSet::from([step]))?;
    let trace = traces.remove(&step).ok_or("the step was not gathered")?;
    let seal = lap()?;
    let numbers = step_numbers(&trace);
    let computed = lap()?;
    let sealed = run.sealed_state(step)?;
    run.put_glance(step, sealed, glance(trace, numbers).ok_or("no first sight was made")?)?;
    Ok([log, seal, computed, lap()?])
}

// === impl Used ===

impl Used {
    /// By the calling thread, since it began.
    fn now() -> Result<Self, Box<dyn Error>> {
        let schedstat = fs::read_to_string("/proc/thread-self/schedstat")?;
        let cpu_ns = schedstat.split_whitespace().next().ok_or("no time")?.parse()?;
        let stat = fs::read_to_string("/proc/thread-self/stat")?;
        let (_, rest) = stat.rsplit_once(')').ok_or("no name")?;
        // Field 10 of proc_pid_stat(5), of which two are gone.
        let page_faults = rest.split_whitespace().nth(7).ok_or("no page faults")?.parse()?;
        Ok(Self { cpu_ns, page_faults })
    }
}
