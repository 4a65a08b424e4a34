//! The numbers of a step as the page shows them.

use std::collections::BTreeMap;

use rollscope_insight::{Breakdown, findings_beside, slowest_sample, where_time_went};
use rollscope_stats::{Distribution, Series, StepNumbers};
use rollscope_trace::{StepTrace, Unit};
use serde::Serialize;

/// The answer of `/api/steps/N`.
#[derive(Debug, Serialize)]
pub(crate) struct NumbersAnswer<'a> {
    step: u64,
    /// Why it was closed; nothing while it is open.
    closed: Option<&'static str>,
    /// What trackers are sent, by name.
    metrics: &'a BTreeMap<String, f64>,
    /// Statistics of the training samples' requests; of the evaluation's in a step that has no others.
    series: Vec<SeriesRow>,
    sentence: String,
    findings: Vec<FindingRow>,
    breakdown: Vec<PartRow>,
    slowest: Option<Slowest>,
}

#[derive(Debug, Serialize)]
struct SeriesRow {
    name: &'static str,
    unit: &'static str,
    count: u64,
    mean: f64,
    median: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

#[derive(Debug, Serialize)]
struct FindingRow {
    check: &'static str,
    explain: String,
}

#[derive(Debug, Serialize)]
struct PartRow {
    part: &'static str,
    time_s: f64,
    share: f64,
}

#[derive(Debug, Serialize)]
struct Slowest {
    sample: String,
    duration_s: f64,
    worker: Option<Box<str>>,
    breakdown: Vec<PartRow>,
}

// === impl NumbersAnswer ===

impl<'a> NumbersAnswer<'a> {
    /// Of a trace and its numbers.
    pub(crate) fn of(trace: &StepTrace, numbers: &'a StepNumbers) -> Self {
        let breakdown = where_time_went(trace);
        let slowest = slowest_sample(trace);
        let findings = findings_beside(trace, numbers, &breakdown, slowest.as_ref()).into_iter();
        let findings = findings.map(|found| FindingRow { check: found.check, explain: found.explain });
        let slowest = slowest.map(|slowest| Slowest {
            sample: slowest.key.to_string(),
            duration_s: slowest.duration.as_secs_f64(),
            worker: slowest.worker,
            breakdown: rows(&slowest.breakdown),
        });
        Self {
            findings: findings.collect(),
            step: trace.step.0,
            closed: trace.close.map(|close| close.reason.name()),
            series: numbers.shown().series.iter().map(|(series, of)| SeriesRow::of(series, of)).collect(),
            sentence: breakdown.sentence(),
            breakdown: rows(&breakdown),
            slowest,
            metrics: &numbers.metrics,
        }
    }
}

fn rows(breakdown: &Breakdown) -> Vec<PartRow> {
    let row = |row: rollscope_insight::Row| PartRow {
        part: row.part.name(),
        time_s: row.time.as_secs_f64(),
        share: row.share,
    };
    breakdown.rows().into_iter().map(row).collect()
}

// === impl SeriesRow ===

impl SeriesRow {
    fn of(series: &Series, of: &Distribution) -> Self {
        let unit = match series.unit {
            Unit::Seconds | Unit::UnixSeconds => "s",
            Unit::Tokens => "tokens",
            Unit::TokensPerSecond => "tok/s",
            Unit::Count | Unit::Sequence => "",
            Unit::GibPerSecond => "GiB/s",
            Unit::Mib => "MiB",
        };
        let Distribution { count, mean, median, p90, p99, max, .. } = *of;
        Self { name: series.name, unit, count, mean, median, p90, p99, max }
    }
}
