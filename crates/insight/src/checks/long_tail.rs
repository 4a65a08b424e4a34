//! The step waits for its last samples.

use rollscope_trace::Nanos;

use crate::finding::{Found, Step, evidence_of_sample, percent};

const SHARE: f64 = 0.25;

pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let (tail, last) = (step.figures.tail?, step.figures.last_sample.as_ref()?);
    if tail.share < SHARE {
        return None;
    }
    let mut evidence = evidence_of_sample(last);
    evidence.push(("tail_s".into(), tail.time.as_secs_f64().into()));
    Some(Found {
        explain: format!(
            "for the last {} of the step fewer than {} samples were left, the last one {} with {:.1} s ({}): sample \
             more than is needed and stop at enough, go on with what is cut in the next step, or lower the limit of \
             tokens",
            percent(tail.share),
            tail.fewer_than,
            last.key,
            last.duration.as_secs_f64(),
            last.breakdown.shares(),
        ),
        evidence,
        // Everybody waits: what could have been computed in that time at the step's own pace.
        stake: Nanos(
            (tail.time.0 as f64 * step.time.total().0 as f64 * (1.0 - tail.share)
                / step.figures.rollout_time.map_or(u64::MAX, |time| time.0.max(1)) as f64) as u64,
        ),
    })
}
