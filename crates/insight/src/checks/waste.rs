//! Work that came to nothing: tries that were given up, attempts that another followed, aborts. Requests that failed
//! are told of by a check of their own.

use rollscope_stats::Part;
use rollscope_trace::{Measure, Outcome};

use crate::finding::{Found, Step, evidence_of, part_of, percent};

const SHARE: f64 = 0.02;

pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let figures = step.figures;
    let tokens = figures.wasted_tokens / figures.generated_tokens.max(1.0);
    let (earlier, tries) = step.in_parts(&[Part::EarlierTries]);
    let cut_off = [Outcome::Aborted, Outcome::Truncated].map(|outcome| figures.requests.ended(outcome));
    let cut_off = cut_off.iter().sum::<u64>() as f64 / figures.requests.count.max(1) as f64;
    if tokens.max(tries).max(cut_off) < SHARE {
        return None;
    }
    let counts = [Outcome::Failed, Outcome::Aborted, Outcome::Truncated]
        .map(|outcome| format!("{} {}", figures.requests.ended(outcome), outcome.name()));
    // Only what is there is told: of requests that generated nothing no token was lost.
    let shares = [(tokens, "of the tokens"), (tries, "of the requests' time went to tries that")];
    let shares = shares.into_iter().filter(|(share, _)| *share >= 0.005);
    let shares: Vec<String> = shares.map(|(share, what)| format!("{} {what}", percent(share))).collect();
    let what = if shares.is_empty() { "requests".to_owned() } else { shares.join(", and ") };
    let (computing, _) = step.in_parts(&[Part::DecodeForward, Part::Forward]);
    let lost = step.worst(|request| {
        (request.outcome != Outcome::Completed)
            .then(|| request.measure(Measure::CompletionTokens).unwrap_or(0.0))
    });
    Some(Found {
        explain: format!(
            "{what} came to nothing, with {} retries by the gateway, {} further attempts and of {} requests \
             {}: see the errors of these requests, and go on with aborted samples where they can be (partial rollout)",
            figures.retries,
            figures.extra_attempts,
            figures.requests.count,
            counts.join(", "),
        ),
        evidence: evidence_of(lost, "completion_tokens"),
        stake: earlier.plus(part_of(computing, tokens)),
    })
}
