//! How fast a file is read, and in how much memory: `cargo run --release -p rollscope-formats --example import_rate --
//! FILE [ROUNDS]`. Prints the records, the seconds of each round, and the peak of the process's memory where the
//! system tells it.

mod cpu;

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use rollscope_formats::{ImportOptions, import};
use rollscope_trace::Record;

use cpu::Watch;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let file = PathBuf::from(args.next().ok_or("usage: import_rate FILE [ROUNDS]")?);
    let rounds: u32 = args.next().and_then(|rounds| rounds.to_str()?.parse().ok()).unwrap_or(3);
    let mut out = std::io::stdout().lock();
    for _ in 0..rounds {
        let (mut requests, mut spans, mut samples) = (0u64, 0u64, 0u64);
        let (started, watch) = (Instant::now(), Watch::start());
        let none = |_: &[u8]| Err("a line of another kind".into());
        import(&file, &ImportOptions::default(), &none, &mut |record| {
            match record {
                Record::Profile(_) => requests += 1,
                Record::Span(_) => spans += 1,
                _ => samples += 1,
            }
            Ok(())
        })?;
        let (took_s, cpu_s) = (started.elapsed().as_secs_f64(), watch.cpu_s());
        writeln!(
            out,
            "{samples} samples, {requests} requests, {spans} spans, cpu_s {cpu_s:.2}, in {took_s:.2} s"
        )?;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    writeln!(out, "peak memory: {}", peak.unwrap_or(" unknown").trim())?;
    Ok(())
}
