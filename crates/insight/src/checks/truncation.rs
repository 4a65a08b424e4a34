//! Many responses hit the limit of tokens.

use rollscope_stats::is_truncated;
use rollscope_trace::{FinishKind, Measure, Nanos};

use crate::finding::{Found, Step, evidence_of, percent};

const SHARE: f64 = 0.1;

pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let share = step.figures.truncated_ratio.filter(|share| *share >= SHARE)?;
    let cut = step.samples.iter().filter(|sample| is_truncated(sample) == Some(true));
    let stake = cut.flat_map(|sample| &sample.requests).fold(Nanos(0), |sum, of| sum.plus(of.end));
    let longest = step.worst(|request| {
        request.finish().filter(|finish| finish.kind == FinishKind::Length)?;
        request.measure(Measure::CompletionTokens)
    });
    Some(Found {
        explain: format!(
            "{} of the responses hit the limit of tokens, which costs time and often the reward: look at whether they \
             repeat themselves, and raise the limit or punish length",
            percent(share)
        ),
        evidence: evidence_of(longest, "completion_tokens"),
        stake,
    })
}
