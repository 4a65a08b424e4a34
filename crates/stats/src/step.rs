//! Where the time of a whole step went.

use rollscope_trace::{SampleTrace, StepTrace};

use crate::breakdown::Breakdown;
use crate::critical_path::add_request;
use crate::requests::reached;

/// The time of all requests of a step's training samples, part by part. In a step without any, of the
/// evaluation samples.
pub fn where_time_went(trace: &StepTrace) -> Breakdown {
    let mut breakdown = Breakdown::default();
    let samples: Vec<_> = population(trace).collect();
    for request in reached(&samples).flat_map(|sample| &sample.requests) {
        add_request(&mut breakdown, request);
    }
    breakdown
}

/// The samples that a step is judged by: those of training, or the evaluation where it is all there is.
pub fn population(trace: &StepTrace) -> impl Iterator<Item = &SampleTrace> {
    let evaluation = named(trace).all(|sample| sample.mark.is_evaluation());
    named(trace).filter(move |sample| sample.mark.is_evaluation() == evaluation)
}

/// The samples that were named; all of them where none was. Where a trainer names its samples, a request without a name
/// is none of them: somebody has tried something.
pub(crate) fn named(trace: &StepTrace) -> impl Iterator<Item = &SampleTrace> {
    let is_any_named = trace.samples.iter().any(|sample| !sample.is_unnamed());
    trace.samples.iter().filter(move |sample| !is_any_named || !sample.is_unnamed())
}
