//! The results: a table a case for people, one JSON file for programs.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::Plan;
use super::case::Case;
use super::figure::{Bar, Measured, Verdict};
use super::tools::Tools;
use crate::host::output;
use crate::workspace::say;

/// What came of all cases.
#[derive(Debug, Default)]
pub(super) struct Report {
    cases: Vec<Value>,
    /// Bars that are not reached.
    missed: Vec<String>,
}

// === impl Report ===

impl Report {
    /// Prints a case and keeps it.
    pub(super) fn add(&mut self, case: &Case, measured: &Measured) {
        table(measured);
        let verdicts: Vec<Verdict> =
            case.bars.iter().chain(&case.told()).map(|bar| Bar::judge(bar, measured)).collect();
        for verdict in &verdicts {
            say(&format!("  {}", line(verdict)));
            if verdict.is_met == Some(false) {
                self.missed.push(format!("{:17} {}", case.name, line(verdict)));
            }
        }
        say("");
        self.cases.push(json!({
            "case": case.name,
            "summary": case.summary,
            "systems": systems(measured),
            "bars": verdicts.iter().map(|verdict| json!({
                "bar": verdict.bar,
                "value": verdict.value.map(|[median, ..]| median),
                "least": verdict.value.map(|[_, least, _]| least),
                "most": verdict.value.map(|[.., most]| most),
                "median_95": verdict.interval,
                "is_met": verdict.is_met,
            })).collect::<Vec<_>>(),
        }));
    }

    /// Prints what was missed and writes the file; true if nothing was.
    pub(super) fn finish(self, tools: &Tools, plan: &Plan<'_>) -> Result<bool> {
        let path = tools.dir().join("gateway.json");
        let report = json!({
            "machine": machine(),
            "binary": tools.rollscope(),
            "seconds": plan.seconds,
            "rounds": plan.rounds,
            "cases": self.cases,
        });
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(&path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        if self.missed.is_empty() {
            say("every bar is reached");
        } else {
            say(&format!("{} bars missed:", self.missed.len()));
        }
        for missed in &self.missed {
            say(&format!("  {missed}"));
        }
        Ok(self.missed.is_empty())
    }
}

/// Medians over the rounds.
fn table(measured: &Measured) {
    let figures = measured.figures();
    let titles = figures.iter().map(|figure| format!("{:>18}", figure.title()));
    say(&format!("  {:18}{}", "system", titles.collect::<Vec<_>>().concat()));
    for system in measured.systems() {
        let cells = figures.iter().map(|figure| match measured.median(system, *figure) {
            Some(median) => format!("{median:>18.digits$}", digits = figure.digits()),
            None => format!("{:>18}", "-"),
        });
        say(&format!("  {:18}{}", system.name(), cells.collect::<Vec<_>>().concat()));
    }
}

fn line(verdict: &Verdict) -> String {
    let word = match verdict.is_met {
        Some(true) => "PASS",
        Some(false) => "MISS",
        None => "----",
    };
    match verdict.value {
        Some([median, least, most]) => {
            let interval = verdict.interval.map(|[from, to]| format!("; 95%: {from:.3} to {to:.3}"));
            let interval = interval.unwrap_or_default();
            format!("{word} {}: {median:.3} ({least:.3} to {most:.3}{interval})", verdict.bar)
        }
        None => format!("{word} {}: not measured", verdict.bar),
    }
}

fn systems(measured: &Measured) -> Map<String, Value> {
    let figures = measured.figures();
    let system = |system| {
        let figures = figures.iter().filter_map(|figure| {
            let median = measured.median(system, *figure)?;
            let rounds = measured.rounds(system, *figure);
            Some((figure.key().to_owned(), json!({"median": median, "rounds": rounds})))
        });
        Value::Object(figures.collect())
    };
    measured.systems().map(|of| (of.name().to_owned(), system(of))).collect()
}

/// What the figures depend on.
fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model =
        cpus.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()));
    json!({
        "kernel": output(Command::new("uname").arg("-r")).unwrap_or_default().trim(),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "cpu_model": model,
        "load_average": read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>(),
    })
}
