//! What every report begins with: where the time went, and the slowest sample.

use rollscope_stats::SlowestSample;

use crate::finding::{Finding, Step, evidence_of_sample, rows};

pub(crate) fn where_time_went(step: &Step<'_>) -> Option<Finding> {
    let breakdown = &step.time;
    (breakdown.total().0 > 0).then(|| Finding {
        check: "where_time_went",
        explain: breakdown.sentence(),
        evidence: rows(breakdown),
    })
}

pub(crate) fn slowest_sample(slowest: &SlowestSample) -> Finding {
    let mut evidence = evidence_of_sample(slowest);
    evidence.extend(rows(&slowest.breakdown));
    let (key, shares, seconds) = (&slowest.key, slowest.breakdown.shares(), slowest.duration.as_secs_f64());
    let explain = format!("the slowest sample is {key} with {seconds:.3} s: {shares}");
    Finding { check: "slowest_sample", explain, evidence }
}
