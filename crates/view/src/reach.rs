//! When the calls of a step were.

use std::ops::RangeInclusive;

use rollscope_insight::time_of_calls;
use rollscope_trace::{StepTrace, UnixNs};

/// When the calls of a step were, so that a step that lies beside a time is not read to learn that.
#[derive(Debug)]
pub(crate) struct Reach {
    /// Of which version of the step.
    pub(crate) version: u64,
    /// Nothing where there are none.
    pub(crate) time: Option<RangeInclusive<UnixNs>>,
}

// === impl Reach ===

impl Reach {
    /// Whether this version of the step had no call within a time.
    pub(crate) fn is_beside(&self, version: u64, time: &RangeInclusive<UnixNs>) -> bool {
        let meets = |own: &RangeInclusive<UnixNs>| own.start() <= time.end() && own.end() >= time.start();
        self.version == version && !self.time.as_ref().is_some_and(meets)
    }

    /// Takes in the calls of the step, or of some of its samples.
    pub(crate) fn widen(&mut self, trace: &StepTrace) {
        let times = [self.time.take(), time_of_calls(trace.requests())];
        self.time =
            times.into_iter().flatten().reduce(|a, b| *a.start().min(b.start())..=*a.end().max(b.end()));
    }
}
