//! `rollscope report`: the numbers of a run's steps, from disk.

mod sample;

use std::path::Path;

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgMatches, Command, value_parser};
use rollscope_config::{Options as _, options};
use rollscope_insight::{Finding, findings, slowest_sample, where_time_went};
use rollscope_run::Run;
use rollscope_stats::{Distribution, Figures, StepNumbers, step_numbers};
use rollscope_trace::{Attr, StepNumber, StepTrace, Unit};
use serde_json::{Map, Value, json};

use crate::environment;
use crate::exit::Failure;
use crate::output;
use crate::table::{Table, duration, significant};

options! {
    /// Print the numbers of a run's steps and where their time went.
    pub(crate) struct ReportOptions, environment "ROLLSCOPE_REPORT" {
        observability {
            /// Only this step.
            step: Option<u64> = None;
            /// Only this sample, as GROUP/SAMPLE, with everything that is known of it.
            sample: Option<String> = None, value_name("ID");
            /// Print one JSON object.
            json: bool = false;
        }
    }
}

/// The stages as the table shows them: label, and name of the series. An indented one lies within the one
/// before it that is not.
const ROWS: [(&str, &str); 18] = [
    ("prefill bootstrap queue", "prefill/bootstrap_queue_duration"),
    ("  bootstrap", "prefill/bootstrap_duration"),
    ("  alloc wait", "prefill/alloc_wait_duration"),
    ("prefill queue time", "prefill/queue_time"),
    ("prefill forward", "prefill/forward_duration"),
    ("  transfer queue", "prefill/transfer_queue_duration"),
    ("decode prealloc", "decode/prealloc_duration"),
    ("  bootstrap", "decode/bootstrap_duration"),
    ("  alloc wait", "decode/alloc_wait_duration"),
    ("decode transfer", "decode/transfer_duration"),
    ("queue time", "request/queue_time"),
    ("decode forward", "decode/forward_duration"),
    ("end-to-end latency", "request/e2e_latency"),
    ("gateway latency", "request/gateway_latency"),
    ("decode throughput", "decode/throughput"),
    ("KV transfer speed", "prefill/transfer_speed_gb_s"),
    ("KV transfer size", "prefill/transfer_total_mb"),
    ("prefill retries", "prefill/retry_count"),
];

pub(crate) fn command() -> Command {
    ReportOptions::command("report").arg(run_argument())
}

/// The run that a command reads.
pub(super) fn run_argument() -> Arg {
    Arg::new("run")
        .value_name("RUN")
        .required(true)
        .value_parser(value_parser!(std::path::PathBuf))
        .help("Folder of the run")
}

/// The value of [`run_argument`].
pub(super) fn run_of(matches: &ArgMatches) -> Result<&Path, Failure> {
    let path = matches.get_one::<std::path::PathBuf>("run").context("no run was given")?;
    Ok(path)
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let options = ReportOptions::resolve(matches, &environment)?;
    let dir = run_of(matches)?;
    let traces = read(dir, options.step)?;
    if let Some(id) = &options.sample {
        return sample::print(dir, &traces, id, options.json);
    }
    if options.json {
        let steps: Vec<Value> = traces.iter().map(step_json).collect();
        let report = json!({"run": dir.display().to_string(), "steps": steps});
        output::line(format_args!("{report}"))?;
        return Ok(());
    }
    print_steps(dir, &traces)
}

/// Prints the report of a whole run.
pub(crate) fn print(dir: &Path) -> Result<(), Failure> {
    print_steps(dir, &read(dir, None)?)
}

fn read(dir: &Path, step: Option<u64>) -> Result<Vec<StepTrace>, Failure> {
    let run = Run::open(dir).map_err(anyhow::Error::from)?;
    let known = run.steps().map_err(anyhow::Error::from)?;
    let wanted: Vec<StepNumber> = match step {
        None => known.iter().map(|state| state.step).collect(),
        Some(step) if known.iter().any(|state| state.step.0 == step) => vec![StepNumber(step)],
        Some(step) => {
            let known: Vec<String> = known.iter().map(|state| state.step.to_string()).collect();
            let known = if known.is_empty() {
                "it has none".to_owned()
            } else {
                format!("it has {}", known.join(", "))
            };
            return Err(Failure::Other(anyhow!("no step {step} in {}; {known}", dir.display())));
        }
    };
    let traces: Result<Vec<_>, _> = wanted.into_iter().map(|step| run.step(step)).collect();
    Ok(traces.map_err(anyhow::Error::from)?)
}

fn print_steps(dir: &Path, traces: &[StepTrace]) -> Result<(), Failure> {
    if traces.is_empty() {
        output::line(format_args!("no step in {}", dir.display()))?;
    }
    for trace in traces {
        for line in step_lines(trace) {
            output::line(format_args!("{line}"))?;
        }
        output::line(format_args!(""))?;
    }
    Ok(())
}

fn step_json(trace: &StepTrace) -> Value {
    let numbers = step_numbers(trace);
    let findings: Vec<Value> = findings(trace).iter().map(finding_json).collect();
    json!({"step": trace.step.0, "samples": trace.samples.len(), "metrics": numbers.metrics, "findings": findings})
}

fn finding_json(finding: &Finding) -> Value {
    let evidence: Map<String, Value> =
        finding.evidence.iter().map(|(name, attr)| (name.to_string(), attr_json(attr))).collect();
    json!({"check": finding.check, "explain": finding.explain, "evidence": evidence})
}

fn attr_json(attr: &Attr) -> Value {
    match attr {
        Attr::Bool(value) => json!(value),
        Attr::Int(value) => json!(value),
        Attr::Float(value) => json!(value),
        Attr::Text(value) => json!(value),
    }
}

/// A step as text.
fn step_lines(trace: &StepTrace) -> Vec<String> {
    let numbers = step_numbers(trace);
    let mut lines = vec![headline(&numbers)];
    if let Some(evaluation) = &numbers.evaluation {
        lines.push(format!("  evaluation: {}", population(evaluation)));
    }
    lines.extend(stage_table(&numbers.training).lines().map(|line| format!("  {line}")));
    lines.push(format!("  {}", where_time_went(trace).sentence()));
    if let Some(slowest) = slowest_sample(trace) {
        let took = duration(slowest.duration.as_secs_f64());
        lines.push(format!("  slowest sample: {}, {took}: {}", slowest.key, slowest.breakdown.shares()));
        for row in slowest.breakdown.rows() {
            lines.push(format!("    {:<24}{:>8}", row.part.name(), duration(row.time.as_secs_f64())));
        }
    }
    lines
}

fn headline(numbers: &StepNumbers) -> String {
    format!("step {}: {}", numbers.step, population(&numbers.training))
}

/// A population of samples in one line.
fn population(figures: &Figures) -> String {
    let mut parts = vec![format!("{} samples", figures.samples)];
    parts.extend(figures.reward.as_ref().map(|reward| format!("reward mean {:.3}", reward.mean)));
    parts.extend(figures.truncated_ratio.map(|truncated| format!("{:.1}% truncated", truncated * 100.0)));
    parts.extend(figures.tokens_per_sec().map(|rate| format!("{rate:.0} tokens/s")));
    parts.extend(figures.rollout_time.map(|time| duration(time.as_secs_f64())));
    parts.join(", ")
}

fn stage_table(figures: &Figures) -> Table {
    let mut table = Table::new(["stage", "count", "mean", "median", "p90", "p99", "max"]);
    for (label, name) in ROWS {
        let Some((series, of)) = figures.series.iter().find(|(series, _)| series.name == name) else {
            continue;
        };
        table.row(cells(label, of, series.unit));
    }
    table
}

fn cells(label: &str, of: &Distribution, unit: Unit) -> [String; 7] {
    let shown = |value: f64| match unit {
        Unit::Seconds => duration(value),
        Unit::TokensPerSecond => format!("{} tok/s", significant(value)),
        Unit::GibPerSecond => format!("{} GiB/s", significant(value)),
        Unit::Mib => format!("{} MiB", significant(value)),
        Unit::UnixSeconds | Unit::Tokens | Unit::Count => significant(value),
    };
    let [mean, median, p90, p99, max] = [of.mean, of.median, of.p90, of.p99, of.max].map(shown);
    [label.to_owned(), of.count.to_string(), mean, median, p90, p99, max]
}
