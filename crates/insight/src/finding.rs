//! Findings: what a report says of a step, each in one sentence with its evidence.

use std::borrow::Cow;

use rollscope_trace::{Attr, StepTrace};

use rollscope_stats::{Breakdown, slowest_sample, where_time_went};

/// Something that was found in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The check that found it, by its stable name.
    pub check: &'static str,
    /// What was found, in one sentence.
    pub explain: String,
    /// What it rests on: names and values; times in seconds.
    pub evidence: Vec<(Cow<'static, str>, Attr)>,
}

/// Every check, in the order of the report. A check that finds nothing says nothing.
const CHECKS: [fn(&StepTrace) -> Option<Finding>; 2] = [time, slowest];

/// Runs every check.
pub fn findings(trace: &StepTrace) -> Vec<Finding> {
    CHECKS.iter().filter_map(|check| check(trace)).collect()
}

fn time(trace: &StepTrace) -> Option<Finding> {
    let breakdown = where_time_went(trace);
    (breakdown.total().0 > 0).then(|| Finding {
        check: "where_time_went",
        explain: breakdown.sentence(),
        evidence: rows(&breakdown),
    })
}

fn slowest(trace: &StepTrace) -> Option<Finding> {
    let slowest = slowest_sample(trace)?;
    let mut evidence: Vec<(Cow<'static, str>, Attr)> = vec![
        ("sample".into(), slowest.key.to_string().into()),
        ("start_unix_s".into(), slowest.start.as_secs_f64().into()),
        ("duration_s".into(), slowest.duration.as_secs_f64().into()),
    ];
    if let Some(worker) = &slowest.worker {
        evidence.push(("worker".into(), Attr::from(&**worker)));
    }
    evidence.extend(rows(&slowest.breakdown));
    let (key, seconds) = (&slowest.key, slowest.duration.as_secs_f64());
    let explain = format!("the slowest sample is {key} with {seconds:.3} s: {}", slowest.breakdown.shares());
    Some(Finding { check: "slowest_sample", explain, evidence })
}

fn rows(breakdown: &Breakdown) -> Vec<(Cow<'static, str>, Attr)> {
    let row = |row: crate::Row| (row.part.name().into(), row.time.as_secs_f64().into());
    breakdown.rows().into_iter().map(row).collect()
}
