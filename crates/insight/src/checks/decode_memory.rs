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
    let mean = |name: &str| step.figures.series(name).map(|of| of.mean).filter(|mean| *mean > 0.0);
    let (room, handshake) = (mean("decode/alloc_wait_duration"), mean("decode/bootstrap_duration"));
    let for_room =
        ("room for their KV cache", "give decode more memory or more workers, or send fewer at a time");
    let for_prefill = (
        "the handshake with prefill",
        "look at the bootstrap server and at how long prefill takes to answer",
    );
    let told = match (room, handshake) {
        // The workers do not tell what they waited for.
        (None, None) => {
            ": see whether decode lacks room for KV caches, or prefill is late to answer".to_owned()
        }
        (room, handshake) => {
            let (what, advice) = if room >= handshake { for_room } else { for_prefill };
            format!(", mostly for {what}: {advice}")
        }
    };
    Some(Found {
        explain: format!("requests waited before decode for {} of their time{told}", percent(share)),
        evidence: evidence_of(step.worst(|request| request.measure(Measure::DecodePrealloc)), "prealloc_s"),
        stake: time,
    })
}
