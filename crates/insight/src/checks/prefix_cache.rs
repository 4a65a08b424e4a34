//! Samples of one prompt compute it again and again.

use rollscope_stats::Part;
use rollscope_trace::Measure;

use crate::finding::{Found, Step, evidence_of, part_of, percent};

/// Below this the cache does little.
const HIT_RATE: f64 = 0.2;
/// Of prefill's time, for it to matter.
const SHARE: f64 = 0.05;

pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let figures = step.figures;
    let hit_rate = figures.prefix_cache_hit_rate?;
    let a_group = figures.samples as f64 / figures.groups.max(1) as f64;
    let (time, share) = step.in_parts(&[Part::PrefillForward]);
    // All but the first sample of a group could find its prompt there.
    let possible = 1.0 - 1.0 / a_group.max(1.0);
    if figures.groups == 0 || possible < 0.5 || hit_rate >= HIT_RATE || share < SHARE {
        return None;
    }
    Some(Found {
        explain: format!(
            "the prefix cache held {} of the prompts' tokens, where {a_group:.0} samples share a prompt and {} could \
             have been there: send the samples of a group to one worker (`--policy cache_aware`, or a routing key), \
             and check that workers keep their cache",
            percent(hit_rate),
            percent(possible),
        ),
        evidence: evidence_of(step.worst(|request| request.measure(Measure::PromptTokens)), "prompt_tokens"),
        stake: part_of(time, possible - hit_rate),
    })
}
