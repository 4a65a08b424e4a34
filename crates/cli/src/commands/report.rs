//! `rollscope report`: the numbers of a run's steps, from disk.

mod against;
mod passes;
pub(super) mod plan;
mod sample;

use std::path::Path;

use anyhow::anyhow;
use clap::{ArgMatches, Command};
use rollscope_config::{Options as _, options};
use rollscope_insight::{Finding, findings, slowest_sample, where_time_went};
use rollscope_run::{DamageKind, Drops, Run, WriterState, WriterSummary};
use rollscope_stats::{Distribution, Figures, step_numbers};
use rollscope_trace::{Attr, Outcome, SampleTrace, StepNumber, StepTrace, Unit, UnixNs};
use serde_json::{Map, Value, json};

use super::resolve;
use crate::damage::{StepDamage, Wanted};
use crate::exit::Failure;
use crate::opened::{Opened, run_argument, steps};
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
            /// Print what the forward passes tell a planner instead: how long one takes by what is in it, and what the next
            /// request may expect.
            plan: bool = false;
            /// Print one JSON object.
            json: bool = false;
            /// Compare with another run, stage by stage, and say how sure each change is.
            against: Option<String> = None, value_name("RUN|FILE.pt");
            /// The step to compare with; that of --step, or all, unless told.
            against_step: Option<u64> = None;
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

/// What the command takes.
pub(crate) type Options = ReportOptions;

pub(crate) fn command() -> Command {
    ReportOptions::command("report").arg(run_argument())
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let options = resolve::<Options>(matches)?;
    one_report(&options)?;
    let opened = Opened::of(matches)?;
    let run = &opened.run;
    let steps = opened.steps(options.step)?;
    if let Some(id) = &options.sample {
        return sample::print(run, &steps, id, options.json);
    }
    if options.plan {
        return plan::print(run, &steps, options.json);
    }
    let comparison = match &options.against {
        Some(other) => Some(against::compare_with(&opened, &options, Path::new(other))?),
        None => None,
    };
    if !options.json {
        print_steps(run, &steps)?;
        return comparison.map_or(Ok(()), |comparison| against::print(&comparison));
    }
    let steps = steps.into_iter().map(|step| step_json(run, step));
    let steps = steps.collect::<Result<Vec<_>, Failure>>()?;
    let dropped = run.dropped().map_err(anyhow::Error::from)?;
    let writers = run.writers().map_err(anyhow::Error::from)?;
    let mut report = json!({
        "run": opened.path.display().to_string(),
        "steps": steps,
        "dropped": {"requests": dropped.profiles, "user_records": dropped.user_records},
        "writers": writers.iter().map(writer_json).collect::<Vec<_>>(),
        "damage": run.lost_manifests().iter().map(ToString::to_string).collect::<Vec<_>>(),
    });
    if let Some(comparison) = &comparison {
        report["changes"] = against::json_of(comparison);
    }
    output::line(format_args!("{report}"))?;
    Ok(())
}

/// Refuses options that ask for more than one report: all but one would be passed over.
fn one_report(options: &ReportOptions) -> Result<(), Failure> {
    let asked = [
        ("--plan", options.plan),
        ("--sample", options.sample.is_some()),
        ("--against", options.against.is_some()),
    ];
    let asked: Vec<&str> =
        asked.into_iter().filter(|(_, is_asked)| *is_asked).map(|(flag, _)| flag).collect();
    if asked.len() > 1 {
        return Err(Failure::Usage(anyhow!(
            "these are reports of their own, give one: {}",
            asked.join(", ")
        )));
    }
    if options.against_step.is_some() && options.against.is_none() {
        return Err(Failure::Usage(anyhow!("--against-step needs --against")));
    }
    Ok(())
}

/// Prints the report of a whole run.
pub(crate) fn print(dir: &Path) -> Result<(), Failure> {
    let run = Run::open(dir).map_err(anyhow::Error::from)?;
    print_steps(&run, &steps(&run, None)?)
}

/// One step at a time: a run is larger than the memory.
fn read(run: &Run, step: StepNumber) -> Result<StepTrace, Failure> {
    Ok(run.step(step).map_err(anyhow::Error::from)?)
}

/// Prints what is missing, then step by step what there is: whoever reads the numbers has read what they rest on.
fn print_steps(run: &Run, steps: &[StepNumber]) -> Result<(), Failure> {
    if steps.is_empty() {
        output::line(format_args!("no step in {}", run.dir().display()))?;
    }
    // Its checksums alone are looked at before a step is read: a run is large, and its first step should be there at once.
    let damaged = StepDamage::of_each(run, steps, Wanted::Passes)?;
    let missing: Vec<String> = damaged.iter().map(StepDamage::sentence).chain(missing_of_run(run)?).collect();
    for line in &missing {
        output::line(format_args!("{line}"))?;
    }
    if !missing.is_empty() {
        output::line(format_args!(""))?;
    }
    for step in steps {
        let trace = read(run, *step)?;
        let damage = StepDamage::of(run, *step)?.filter(|damage| damage.is_of(Wanted::Records));
        // Of a part without a checksum it is known now.
        let told = damage.as_ref().map(StepDamage::sentence).filter(|told| !missing.contains(told));
        for line in told.into_iter().chain(step_lines(&trace, damage.is_some())) {
            output::line(format_args!("{line}"))?;
        }
        output::line(format_args!(""))?;
    }
    Ok(())
}

/// What is missing of a run, whatever step it is of.
pub(super) fn missing_of_run(run: &Run) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    let dropped = run.dropped().map_err(anyhow::Error::from)?;
    if dropped != Drops::default() {
        lines.push(format!(
            "dropped and missing from these numbers: {} requests, {} spans and marks",
            dropped.profiles, dropped.user_records
        ));
    }
    for writer in run.writers().map_err(anyhow::Error::from)? {
        if writer.state == WriterState::Interrupted {
            lines.push(format!("{} was interrupted: what it had not written is missing", writer.name));
        }
        // Parts are told with their steps.
        let of_log = writer.damage.iter().filter(|damage| damage.kind != DamageKind::Part);
        lines.extend(of_log.map(|damage| format!("{}: {damage}", writer.name)));
    }
    lines.extend(run.lost_manifests().iter().map(ToString::to_string));
    Ok(lines)
}

fn step_json(run: &Run, step: StepNumber) -> Result<Value, Failure> {
    let trace = read(run, step)?;
    let damage = StepDamage::of(run, step)?;
    let numbers = step_numbers(&trace);
    let judged = damage.as_ref().is_none_or(|damage| !damage.is_of(Wanted::Records));
    // What is missing may be the very thing that a finding would be about.
    let findings: Vec<Value> =
        if judged { findings(&trace, &numbers).iter().map(finding_json).collect() } else { Vec::new() };
    let mut told = json!({
        "step": step.0, "samples": trace.samples.len(),
        "damage": damage.as_ref().map_or_else(|| json!([]), StepDamage::json),
        "metrics": numbers.metrics, "findings": findings,
    });
    if let Some(damage) = &damage {
        told["rests_on"] = damage.rests_on();
    }
    Ok(told)
}

fn writer_json(writer: &WriterSummary) -> Value {
    let damage: Vec<String> = writer.damage.iter().map(ToString::to_string).collect();
    json!({"name": writer.name, "state": writer.state.name(), "damage": damage})
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

/// A step as text. Of one that is damaged, numbers of what is left.
fn step_lines(trace: &StepTrace, is_damaged: bool) -> Vec<String> {
    let numbers = step_numbers(trace);
    let shown = population(numbers.shown());
    let head = format!("step {}{}", trace.step, if is_damaged { ", damaged" } else { "" });
    let mut lines = match &numbers.evaluation {
        None => vec![format!("{head}: {shown}")],
        Some(_) if numbers.training.samples == 0 => vec![format!("{head}, evaluation: {shown}")],
        Some(evaluation) => {
            vec![format!("{head}: {shown}"), format!("  evaluation: {}", population(evaluation))]
        }
    };
    lines.extend(stage_table(numbers.shown()).lines().map(|line| format!("  {line}")));
    if is_damaged {
        lines
            .push("  no findings: what is missing may be the very thing that they would be about".to_owned());
        return lines;
    }
    lines.push(format!("  {}", where_time_went(trace).sentence()));
    if let Some(slowest) = slowest_sample(trace) {
        let took = duration(slowest.duration.as_secs_f64());
        lines.push(format!("  slowest sample: {}, {took}: {}", slowest.key, slowest.breakdown.shares()));
        for row in slowest.breakdown.rows() {
            lines.push(format!("    {:<24}{:>8}", row.part.name(), duration(row.time.as_secs_f64())));
        }
    }
    // The first two have been told by now, with their figures.
    let shown = |finding: &Finding| !["where_time_went", "slowest_sample"].contains(&finding.check);
    let begin = begin(trace);
    for finding in findings(trace, &numbers).iter().filter(|finding| shown(finding)) {
        lines.push(format!("  * {}", finding.explain));
        lines.extend(seen_at(finding, begin).map(|place| format!("    seen at {place}")));
    }
    lines
}

/// The first request's arrival; without requests, the first event.
fn begin(trace: &StepTrace) -> Option<UnixNs> {
    let arrival = trace.requests().map(|request| request.arrival).min();
    arrival.or_else(|| trace.samples.iter().filter_map(SampleTrace::start).min())
}

/// Where a finding is seen best: a sample, a worker and when in the step that was.
fn seen_at(finding: &Finding, begin: Option<UnixNs>) -> Option<String> {
    let of = |name: &str| finding.evidence.iter().find(|(other, _)| other == name).map(|(_, attr)| attr);
    let text = |name: &str| match of(name)? {
        Attr::Text(text) => Some(&**text),
        _ => None,
    };
    let since = match of("start_unix_s") {
        Some(Attr::Float(start)) => Some(start - begin?.as_secs_f64()),
        _ => None,
    };
    let parts = [
        text("sample").map(|sample| format!("sample {sample}")),
        text("worker").or_else(|| text("prefill_worker")).map(str::to_owned),
        since.map(|since| format!("{} into the step", duration(since.max(0.0)))),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// A population of samples in one line.
fn population(figures: &Figures) -> String {
    let mut parts = vec![format!("{} samples", figures.samples)];
    parts.extend(troubles(figures));
    parts.extend(figures.reward.as_ref().map(|reward| format!("reward mean {:.3}", reward.mean)));
    parts.extend(figures.truncated_ratio.map(|truncated| format!("{:.1}% truncated", truncated * 100.0)));
    parts.extend(figures.tokens_per_sec().map(|rate| format!("{rate:.0} tokens/s")));
    parts.extend(figures.rollout_time.map(|time| duration(time.as_secs_f64())));
    parts.join(", ")
}

/// Requests that did not complete, if there are any: `40 requests: 2 failed, 1 aborted`.
fn troubles(figures: &Figures) -> Option<String> {
    let count = |outcome| (figures.requests.ended(outcome), outcome.name());
    let troubles = [Outcome::Failed, Outcome::Truncated, Outcome::Aborted].map(count);
    let told: Vec<String> = troubles
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} {name}"))
        .collect();
    (!told.is_empty()).then(|| format!("{} requests ({})", figures.requests.count, told.join(", ")))
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

/// A value as people read it.
fn shown(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Seconds => duration(value),
        Unit::TokensPerSecond => format!("{} tok/s", significant(value)),
        Unit::GibPerSecond => format!("{} GiB/s", significant(value)),
        Unit::Mib => format!("{} MiB", significant(value)),
        Unit::UnixSeconds | Unit::Tokens | Unit::Count | Unit::Sequence => significant(value),
    }
}

fn cells(label: &str, of: &Distribution, unit: Unit) -> [String; 7] {
    let [mean, median, p90, p99, max] =
        [of.mean, of.median, of.p90, of.p99, of.max].map(|value| shown(value, unit));
    [label.to_owned(), of.count.to_string(), mean, median, p90, p99, max]
}

#[cfg(test)]
mod tests {
    use rollscope_stats::SERIES;
    use rollscope_trace::{Join, Nanos, Profile, Record, RequestId, SampleKey, SampleMark, UserSpan};

    use super::*;

    #[test]
    fn every_series_has_a_row() {
        let mut rows: Vec<_> = ROWS.iter().map(|(_, name)| *name).collect();
        let mut series: Vec<_> = SERIES.iter().map(|series| series.name).collect();
        rows.sort_unstable();
        series.sort_unstable();
        assert_eq!(rows, series);
    }

    #[test]
    fn when_a_finding_was_is_told_from_the_first_request_on() {
        let step = StepNumber(3);
        let at = |seconds: i64| UnixNs((1_760_000_000 + seconds) * 1_000_000_000);
        let key = SampleKey { step, group: None, sample: "a".into() };
        let failed = |seconds: i64| {
            let join = Join { step: Some(step), sample: Some("a".into()), ..Join::default() };
            let end = Nanos(seconds as u64 * 1_000_000_000);
            let profile = Profile::new(RequestId(seconds as u128), at(seconds), end);
            Record::Profile(Box::new(Profile { join, outcome: Outcome::Failed, ..profile }))
        };
        // Made before the step's first request, as by a data loader.
        let span = UserSpan {
            key,
            attempt: 0,
            name: "prepare".into(),
            start: at(-60),
            end: Some(at(-50)),
            attrs: Vec::new(),
        };
        let of = |records: &[Record]| StepTrace::gather(step, records.iter().cloned());
        let lines = step_lines(&of(&[failed(1), failed(4), Record::Span(span.clone())]), false);
        let seen: Vec<_> = lines.iter().filter(|line| line.contains("into the step")).collect();
        assert!(
            seen.len() == 1 && seen[0].contains(&format!(" {} into the step", duration(3.0))),
            "{lines:?}"
        );
        assert_eq!(begin(&of(&[Record::Span(span)])), Some(at(-60)));
    }

    #[test]
    fn a_step_is_headed_by_the_samples_that_it_is_judged_by() {
        let step = StepNumber(3);
        let mark = |sample: &str, evaluation| {
            let key = SampleKey { step, group: None, sample: sample.into() };
            Record::Sample(SampleMark { reward: Some(0.5), evaluation, ..SampleMark::new(key) })
        };
        let lines = |records: &[Record]| {
            let lines = step_lines(&StepTrace::gather(step, records.iter().cloned()), false);
            lines.into_iter().take_while(|line| line.contains("samples")).collect::<Vec<_>>()
        };
        let (train, exam) = (mark("train", false), mark("exam", true));
        let one = "1 samples, reward mean 0.500";
        assert_eq!(lines(std::slice::from_ref(&train)), [format!("step 3: {one}")]);
        assert_eq!(lines(std::slice::from_ref(&exam)), [format!("step 3, evaluation: {one}")]);
        assert_eq!(lines(&[train, exam]), [format!("step 3: {one}"), format!("  evaluation: {one}")]);
    }
}
