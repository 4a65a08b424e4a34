//! A request's time, divided along its critical path.
//!
//! The whole is the request's time in the gateway. Of it
//!
//! 1. what lies in no call to a worker is the gateway's; what lies in calls that were given up for another try is
//!    theirs. The rest is the *last try*: from the dispatch of the leg that answered (or of its prefill partner)
//!    to the later end of the two.
//! 2. A worker that does everything reports a sequence: queue, prompt, generation.
//! 3. In a pair the decode worker's stages cover the timeline: prealloc, transfer, queue, forward. Its transfer
//!    stage is a wait for the other side, which cannot compute before the decode worker has told where the KV
//!    cache goes (the end of prealloc) and is done when the transfer is. So the wait is explained from its end
//!    backwards by what the prefill worker was doing: moving the last of the cache (`transfer_queue`), computing
//!    (`forward` less that), queueing, and at last its bootstrap queue, as far as the wait reaches; what is left
//!    is transfer. What the prefill worker did before then ran beside prealloc and is not counted again.
//! 4. Where decode does not report the wait, the prefill worker's stages stand for themselves.
//! 5. What remains of the last try is explained by no report: the network, a worker's own HTTP and tokenizer, or
//!    a worker without timings.
//!
//! Each part is cut to what is left of the whole, so whatever workers claim, the parts sum to it exactly.

use rollscope_trace::{Leg, LegRole, Measure, Nanos, Profile};

use crate::breakdown::{Breakdown, Part};

/// A stretch of the request's time, from its arrival.
type Stretch = (Nanos, Nanos);

/// Gives out a stretch of time part by part, never more than there is.
struct Remaining<'a> {
    breakdown: &'a mut Breakdown,
    left: Nanos,
}

/// Divides the time of a request.
pub fn request_breakdown(profile: &Profile) -> Breakdown {
    let mut breakdown = Breakdown::default();
    add_request(&mut breakdown, profile);
    breakdown
}

/// Adds the parts of a request's time to those of others.
pub(crate) fn add_request(breakdown: &mut Breakdown, profile: &Profile) {
    let (answer, prefill) = (profile.answer(), profile.prefill());
    let Some((start, end)) = last_try(profile.end, answer, prefill) else {
        return breakdown.add(Part::Gateway, profile.end);
    };
    // There are none as a rule.
    let earlier = profile.legs.iter().filter(|leg| leg.dispatch < start);
    let earlier = covered(earlier.map(|leg| (leg.dispatch, leg.end.min(start))));
    breakdown.add(Part::EarlierTries, earlier);
    let last = end.minus(start);
    breakdown.add(Part::Gateway, profile.end.minus(last).minus(earlier));

    let mut remaining = Remaining { breakdown: &mut *breakdown, left: last };
    match answer {
        Some(answer) if answer.role == LegRole::Regular => remaining.regular(answer),
        _ => remaining.pair(profile, answer, prefill),
    }
    let left = remaining.left;
    breakdown.add(Part::Other, left);
}

/// From the first dispatch to the last end of the legs that answered, within the request.
fn last_try(whole: Nanos, answer: Option<&Leg>, prefill: Option<&Leg>) -> Option<Stretch> {
    let bounds = |leg: &Leg| (leg.dispatch.min(whole), leg.end.min(whole));
    match (answer.map(bounds), prefill.map(bounds)) {
        // A prefill that was over before the answering leg began is an earlier try's.
        (Some(answer), Some(prefill)) if prefill.1 >= answer.0 => {
            Some((answer.0.min(prefill.0), answer.1.max(prefill.1)))
        }
        (answer, prefill) => answer.or(prefill),
    }
}

/// Time that at least one of the stretches covers.
pub(crate) fn covered(stretches: impl Iterator<Item = Stretch>) -> Nanos {
    let mut stretches: Vec<_> = stretches.collect();
    stretches.sort_unstable();
    let (mut sum, mut reached) = (Nanos(0), Nanos(0));
    for (start, end) in stretches {
        sum = sum.plus(end.minus(start.max(reached)));
        reached = reached.max(end);
    }
    sum
}

// === impl Remaining ===

impl Remaining<'_> {
    fn take(&mut self, part: Part, time: Option<Nanos>) {
        let time = time.unwrap_or_default().min(self.left);
        self.breakdown.add(part, time);
        self.left = self.left.minus(time);
    }

    fn regular(&mut self, leg: &Leg) {
        let measures = &leg.report.measures;
        let queue = measures.duration(Measure::QueueTime);
        self.take(Part::Queue, queue);
        if let Some((prompt, generation)) = measures.prompt_and_generation() {
            self.take(Part::PrefillForward, Some(prompt));
            self.take(Part::DecodeForward, Some(generation));
        } else {
            let e2e = measures.duration(Measure::E2eLatency);
            self.take(Part::Forward, e2e.map(|e2e| e2e.minus(queue.unwrap_or_default())));
        }
    }

    fn pair(&mut self, profile: &Profile, decode: Option<&Leg>, prefill: Option<&Leg>) {
        let measured = profile.measured();
        let length = |measure| measured(measure).and_then(Nanos::from_secs_f64);
        let queue = |leg: Option<&Leg>| leg?.report.measures.duration(Measure::QueueTime);
        self.take(Part::DecodeForward, length(Measure::DecodeForward));
        self.take(Part::DecodeQueue, queue(decode));
        self.take(Part::DecodePrealloc, length(Measure::DecodePrealloc));

        let wait = length(Measure::DecodeTransfer);
        let mut window =
            Remaining { left: wait.unwrap_or(self.left).min(self.left), breakdown: &mut *self.breakdown };
        let given = window.left;
        let tail = length(Measure::PrefillTransferQueue);
        let computing = length(Measure::PrefillForward).map(|all| all.minus(tail.unwrap_or_default()));
        window.take(Part::Transfer, tail);
        window.take(Part::PrefillForward, computing);
        window.take(Part::PrefillQueue, queue(prefill));
        window.take(Part::PrefillBootstrapQueue, length(Measure::PrefillBootstrapQueue));
        if wait.is_some() {
            let left = window.left;
            window.take(Part::Transfer, Some(left));
        }
        let used = given.minus(window.left);
        self.left = self.left.minus(used);
    }
}

#[cfg(test)]
pub(crate) mod tests;
