//! The KV cache is long on its way from prefill to decode.

use rollscope_stats::{Part, request_breakdown};

use crate::finding::{Found, Step, evidence_of, percent};

const SHARE: f64 = 0.1;

pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let (time, share) = step.in_parts(&[Part::Transfer]);
    if share < SHARE {
        return None;
    }
    let speed = step.figures.series("prefill/transfer_speed_gb_s");
    let told = speed.map_or_else(String::new, |of| {
        format!(" at {:.2} GiB/s in the median and {:.2} at the least", of.median, of.min)
    });
    let slowest = step.worst(|request| Some(request_breakdown(request).part(Part::Transfer).as_secs_f64()));
    Some(Found {
        explain: format!(
            "the KV cache was on its way for {} of the requests' time{told}: check which network and which \
             transfer backend the pairs use, and place them closer",
            percent(share)
        ),
        evidence: evidence_of(slowest, "transfer_s"),
        stake: time,
    })
}
