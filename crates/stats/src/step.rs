//! Where the time of a whole step went.

use rollscope_trace::{SampleTrace, StepTrace};

use crate::breakdown::Breakdown;
use crate::critical_path::request_breakdown;

/// The time of all requests of a step's training samples, part by part. In a step without any, of the
/// evaluation samples.
pub fn where_time_went(trace: &StepTrace) -> Breakdown {
    let mut breakdown = Breakdown::default();
    for request in population(trace).flat_map(|sample| &sample.requests) {
        breakdown.extend(&request_breakdown(request));
    }
    breakdown
}

/// The samples that a step is judged by: those of training, or the evaluation where it is all there is.
pub fn population(trace: &StepTrace) -> impl Iterator<Item = &SampleTrace> {
    let evaluation = trace.samples.iter().all(|sample| sample.mark.is_evaluation());
    trace.samples.iter().filter(move |sample| sample.mark.is_evaluation() == evaluation)
}
