//! `cargo xtask bench stats`: what the numbers of a step, the reading of a dump, and recording cost on one core.
//!
//! Each is an example of the crate that does it, which says how it measures. Other programs only add to what is seen, so
//! the best of the rounds counts; of the ratio to what slime takes over the same dump, the middle.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::viewer;
use crate::host::{build, output};
use crate::interop::python_script;
use crate::workspace::{Workspace, say};

/// A figure, and how far it may go.
#[derive(Clone, Copy)]
struct Bar {
    what: &'static str,
    unit: &'static str,
    limit: Limit,
}

#[derive(Clone, Copy)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

const MILLION: Bar =
    Bar { what: "numbers of 1,000,000 requests with all stages", unit: "s", limit: Limit::AtMost(0.4) };
const SLIMES: Bar = Bar {
    what: "slime's time for its numbers of requests, over ours",
    unit: "x",
    limit: Limit::AtLeast(50.0),
};
const IMPORT: Bar = Bar { what: "reading a dump of 820,000 events", unit: "s", limit: Limit::AtMost(2.0) };
const MEMORY: Bar = Bar { what: "its peak of memory", unit: "MB", limit: Limit::AtMost(300.0) };
const RECORDING: Bar = Bar { what: "requests logged a second", unit: "/s", limit: Limit::AtLeast(20_000.0) };
const SUSTAINED: Bar =
    Bar { what: "cores for recording 20,000 requests/s over 60 s", unit: "cores", limit: Limit::AtMost(1.0) };
const SEALING: Bar = Bar { what: "sealing a step of 1,000,000 spans", unit: "s", limit: Limit::AtMost(3.0) };
const DISK: Bar = Bar { what: "bytes of a span in the parts", unit: "bytes", limit: Limit::AtMost(60.0) };

/// Runs what the arguments ask for; true if every bar is reached.
pub(crate) fn run(workspace: &Workspace, args: &[&str]) -> Result<bool> {
    let rounds: u32 = match args {
        [] => 3,
        ["--rounds", number] => number.parse().context("--rounds wants a whole number")?,
        _ => bail!("wanted: [--rounds N]"),
    };
    let mut reached = true;
    let mut show = |bar: Bar, figures: Vec<f64>| {
        let best = match bar.limit {
            Limit::AtMost(_) => figures.into_iter().fold(f64::INFINITY, f64::min),
            Limit::AtLeast(_) => figures.into_iter().fold(f64::NEG_INFINITY, f64::max),
        };
        let (is_reached, limit) = match bar.limit {
            Limit::AtMost(most) => (best <= most, format!("at most {most}")),
            Limit::AtLeast(least) => (best >= least, format!("at least {least}")),
        };
        reached &= is_reached;
        let verdict = if is_reached { "ok" } else { "MISSED" };
        say(&format!("{verdict:6} {:52} {best:>12.4} {} ({limit})", bar.what, bar.unit));
    };

    let speed = example(workspace, "rollscope-stats", "speed")?;
    let told = times(rounds, || output(Command::new(&speed).args(["1000000", "125000", "5"])))?;
    show(MILLION, figures(&told, |line| number_after(line, "best_s ")));
    let dump = viewer::dump_of_820_000_events(workspace)?;
    let ours = example(workspace, "rollscope-formats", "dump_numbers")?;
    let mut script = python_script(workspace, "slime_metrics_bench.py")?;
    script.arg(&dump);
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let slimes = output(&mut script)?;
        let own = output(Command::new(&ours).arg(&dump))?;
        let seconds = |told, name| number_after(told, name).context("no time was told");
        let (slimes_s, own_s) = (seconds(&slimes, "median_s ")?, seconds(&own, "requests_s ")?);
        let all_s = seconds(&own, "all_s ")?;
        say(&format!("       slime's formula {slimes_s:.4} s, ours {own_s:.5} s, all of ours {all_s:.5} s"));
        ratios.push(slimes_s / own_s);
    }
    show(SLIMES, vec![median(ratios)]);
    let reader = example(workspace, "rollscope-formats", "import_rate")?;
    let told = times(rounds, || output(Command::new(&reader).arg(&dump).arg("1")))?;
    show(IMPORT, figures(&told, |line| number_after(line, "cpu_s ")));
    show(MEMORY, figures(&told, |line| Some(number_after(line, "peak memory: ")? / 1e3)));
    let log = example(workspace, "rollscope-run", "log_rate")?;
    let told = times(rounds, || output(&mut Command::new(&log)))?;
    show(RECORDING, figures(&told, |line| number_after(line, "append ")));
    // It fails where a request is dropped.
    let sustained = example(workspace, "rollscope-record", "sustained")?;
    let steady = output(&mut Command::new(&sustained))?;
    show(SUSTAINED, figures(&[steady], |line| number_after(line, "cores ")));
    show(SEALING, figures(&told, |line| number_after(line, " spans in ")));
    show(DISK, figures(&told, |line| number_after(line, "a span ")));
    Ok(reached)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn example(workspace: &Workspace, package: &str, name: &str) -> Result<PathBuf> {
    build(&workspace.root, &["--package", package, "--example", name, "--release"])
}

fn times(rounds: u32, mut run: impl FnMut() -> Result<String>) -> Result<Vec<String>> {
    (0..rounds).map(|_| run()).collect()
}

/// A figure of each line that tells one.
fn figures(told: &[String], figure: impl Fn(&str) -> Option<f64>) -> Vec<f64> {
    told.iter().flat_map(|told| told.lines()).filter_map(figure).collect()
}

/// The number that follows a text.
fn number_after(line: &str, text: &str) -> Option<f64> {
    let (_, rest) = line.split_once(text)?;
    rest.split_whitespace().next()?.trim_end_matches(',').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::number_after;

    #[test]
    fn figures_are_found_in_what_examples_print() {
        for (line, text, expected) in [
            ("requests 1 samples 1 names 2 best_s 0.4737", "best_s ", Some(0.4737)),
            ("16384 samples, 4 spans, cpu_s 1.92, in 2.10 s", "cpu_s ", Some(1.92)),
            ("sealed 1000005 spans in 2.103 s", " spans in ", Some(2.103)),
            ("peak memory: 84000 kB", "peak memory: ", Some(84_000.0)),
            ("append      123456 profiles/s", "append ", Some(123_456.0)),
            ("peak memory: unknown", "peak memory: ", None),
        ] {
            assert_eq!(number_after(line, text), expected, "{line}");
        }
    }
}
