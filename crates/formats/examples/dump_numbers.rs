//! How long the numbers of a dump's step take, once it is read: `cargo run --release -p rollscope-formats --example
//! dump_numbers -- FILE [ROUNDS]`. Prints the median over the rounds, of the processor's time where the system tells it, for
//! those of its requests alone and for all of them; and what gathering the step took before.

mod cpu;

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;

use rollscope_formats::{ImportOptions, import};
use rollscope_stats::{RequestValues, step_numbers};
use rollscope_trace::{Record, StepTrace};

use cpu::Watch;

/// The system renews the processor's time with its tick, some 4 ms apart: a round repeats the work until that is little.
const ROUND_S: f64 = 0.4;

/// The median over the rounds, in seconds.
fn median_s(rounds: usize, mut work: impl FnMut()) -> f64 {
    let round = |_| {
        let (watch, mut repetitions) = (Watch::start(), 0);
        while watch.cpu_s() < ROUND_S {
            work();
            repetitions += 1;
        }
        watch.cpu_s() / f64::from(repetitions)
    };
    let mut times_s: Vec<_> = (0..rounds).map(round).collect();
    times_s.sort_unstable_by(f64::total_cmp);
    times_s[rounds / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let file = PathBuf::from(args.next().ok_or("usage: dump_numbers FILE [ROUNDS]")?);
    let rounds: usize = args.next().and_then(|rounds| rounds.to_str()?.parse().ok()).unwrap_or(5).max(1);
    let mut records = Vec::new();
    let none = |_: &[u8]| Err("a line of another kind".into());
    import(&file, &ImportOptions::default(), &none, &mut |record| {
        records.push(record);
        Ok(())
    })?;
    let step = records.iter().find_map(Record::step).ok_or("no step is in the file")?;
    let watch = Watch::start();
    let trace = StepTrace::gather(step, records);
    let gather_s = watch.cpu_s();
    let (mut series, mut names) = (0, 0);
    let requests_s = median_s(rounds, || {
        let mut values = RequestValues::default();
        values.add_step(&trace);
        series = values.statistics().len();
    });
    let all_s = median_s(rounds, || names = step_numbers(&trace).metrics.len());
    let (samples, requests) = (trace.samples.len(), trace.requests().count());
    writeln!(
        std::io::stdout(),
        "{samples} samples, {requests} requests, gather_s {gather_s:.3}, {series} series of requests, requests_s \
         {requests_s:.5}, {names} numbers, all_s {all_s:.5}"
    )?;
    Ok(())
}
