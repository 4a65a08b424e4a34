//! Decode workers have no room for another request's KV cache.

use rollscope_stats::Part;
use rollscope_trace::Measure;

use crate::finding::{Found, Step, evidence_of, percent};

const SHARE: f64 = 0.1;

pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let (time, share) = step.in_parts(&[Part::DecodePrealloc]);
    if share < SHARE {
        return None;
    }
    let mean = |name: &str| step.figures.series(name).map_or(0.0, |of| of.mean);
    let (room, handshake) = (mean("decode/alloc_wait_duration"), mean("decode/bootstrap_duration"));
    let (what, advice) = if room >= handshake {
        ("room for their KV cache", "give decode more memory or more workers, or send fewer at a time")
    } else {
        ("the handshake with prefill", "look at the bootstrap server and at how long prefill takes to answer")
    };
    Some(Found {
        explain: format!(
            "requests waited before decode for {} of their time, mostly for {what}: {advice}",
            percent(share)
        ),
        evidence: evidence_of(step.worst(|request| request.measure(Measure::DecodePrealloc)), "prealloc_s"),
        stake: time,
    })
}
