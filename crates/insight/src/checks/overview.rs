//! What every report begins with: where the time went, and the slowest sample.

use rollscope_trace::{Attr, StepTrace};

use crate::finding::{Finding, Step, rows};

pub(crate) fn where_time_went(step: &Step<'_>) -> Option<Finding> {
    let breakdown = &step.time;
    (breakdown.total().0 > 0).then(|| Finding {
        check: "where_time_went",
        explain: breakdown.sentence(),
        evidence: rows(breakdown),
    })
}

pub(crate) fn slowest_sample(trace: &StepTrace) -> Option<Finding> {
    let slowest = rollscope_stats::slowest_sample(trace)?;
    let seconds = slowest.duration.as_secs_f64();
    let mut evidence = vec![
        ("sample".into(), slowest.key.to_string().into()),
        ("start_unix_s".into(), slowest.start.as_secs_f64().into()),
        ("duration_s".into(), seconds.into()),
    ];
    if let Some(worker) = &slowest.worker {
        evidence.push(("worker".into(), Attr::from(&**worker)));
    }
    evidence.extend(rows(&slowest.breakdown));
    let (key, shares) = (&slowest.key, slowest.breakdown.shares());
    let explain = format!("the slowest sample is {key} with {seconds:.3} s: {shares}");
    Some(Finding { check: "slowest_sample", explain, evidence })
}
