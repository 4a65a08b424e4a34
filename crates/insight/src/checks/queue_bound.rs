//! Requests wait for their turn more than they are worked on.

use rollscope_stats::{Part, request_breakdown};

use crate::finding::{Found, Step, evidence_of, percent};

const SHARE: f64 = 0.2;
const QUEUES: [Part; 4] = [Part::Queue, Part::PrefillBootstrapQueue, Part::PrefillQueue, Part::DecodeQueue];

pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let (time, share) = step.in_parts(&QUEUES);
    let largest = QUEUES.into_iter().max_by_key(|part| step.time.part(*part))?;
    let waited = |part: Part| step.worst(|request| Some(request_breakdown(request).part(part).as_secs_f64()));
    (share >= SHARE).then(|| Found {
        explain: format!(
            "requests waited in queues for {} of their time, most of it in the {}: send fewer at a time, add \
             workers of that kind, or let each run more at once",
            percent(share),
            largest.name(),
        ),
        evidence: evidence_of(waited(largest), "waited_s"),
        stake: time,
    })
}
