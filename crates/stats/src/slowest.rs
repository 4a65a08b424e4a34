//! The sample that took longest, and what it spent its time on.

use rollscope_trace::{Nanos, SampleKey, SampleTrace, StepTrace, UnixNs};

use crate::breakdown::{Breakdown, Part};
use crate::critical_path::{covered, request_breakdown};
use crate::step::population;
use crate::sums::SampleFacts;

/// The sample with the longest time from its first to its last event.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowestSample {
    /// Which sample.
    pub key: SampleKey,
    /// When it began.
    pub start: UnixNs,
    /// From its first to its last event.
    pub duration: Nanos,
    /// The time of its requests, of the user's code beside them, and between. Sums to `duration`, unless it had
    /// requests under way at the same time: then each of them counts.
    pub breakdown: Breakdown,
    /// The worker that answered its longest request.
    pub worker: Option<Box<str>>,
}

/// The slowest of a step's training samples; of the evaluation samples in a step without any. Of several
/// equally slow the first.
pub fn slowest_sample(trace: &StepTrace) -> Option<SlowestSample> {
    let timed = population(trace).filter_map(|sample| {
        let (start, end) = (sample.start()?, sample.end()?);
        Some((sample, start, end.since(start)))
    });
    let (sample, start, duration) =
        timed.reduce(|slowest, other| if other.2 > slowest.2 { other } else { slowest })?;
    Some(SlowestSample::of(sample, start, duration))
}

/// The sample that ended last, for which the step had to wait.
pub(crate) fn last_sample(samples: &[&SampleTrace], facts: &[SampleFacts]) -> Option<SlowestSample> {
    let timed = samples.iter().zip(facts).filter_map(|(sample, of)| Some((*sample, of.bounds?)));
    let later =
        |last: (_, (_, UnixNs)), other: (_, (_, UnixNs))| if other.1.1 > last.1.1 { other } else { last };
    let (sample, (start, end)) = timed.reduce(later)?;
    Some(SlowestSample::of(sample, start, end.since(start)))
}

// === impl SlowestSample ===

impl SlowestSample {
    fn of(sample: &SampleTrace, start: UnixNs, duration: Nanos) -> Self {
        let longest = sample.requests.iter().max_by_key(|request| request.end);
        let worker = longest.and_then(|request| request.answer()).map(|leg| (&*leg.worker.url).into());
        let breakdown = sample_breakdown(sample, start, duration);
        Self { key: sample.key.clone(), start, duration, breakdown, worker }
    }
}

/// Divides the time of a sample, which began at `start` and took `duration`.
fn sample_breakdown(sample: &SampleTrace, start: UnixNs, duration: Nanos) -> Breakdown {
    let mut breakdown = Breakdown::default();
    let requests = sample.requests.iter().map(|request| {
        let arrival = request.arrival.since(start);
        (arrival, arrival.plus(request.end))
    });
    let spans =
        sample.timely_spans().filter_map(|span| Some((span.start.since(start), span.end?.since(start))));
    let in_requests = covered(requests.clone());
    let busy = covered(requests.chain(spans));
    breakdown.add(Part::UserCode, busy.minus(in_requests));
    breakdown.add(Part::Between, duration.minus(busy));
    for request in &sample.requests {
        breakdown.extend(&request_breakdown(request));
    }
    breakdown
}

#[cfg(test)]
mod tests;
