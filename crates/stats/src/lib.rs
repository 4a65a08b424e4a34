//! From traces to the numbers of a rollout step.
//!
//! Per-request and per-sample values are taken from a [`StepTrace`](rollscope_trace::StepTrace) and reduced
//! once, when the step is asked for, to a bounded set of named numbers ([`step_numbers`]). The names are those
//! that trackers already hold: `perf/…` for what serving did, `rollout/…` for what it produced, `eval/…` for
//! samples that are no training samples.
//!
//! Pure: no IO and no clock. Missing is not zero: a value that nobody reported gives no number at all, and a
//! value that is flagged as implausible is counted under `perf/anomaly/…` and enters nothing else.

mod distribution;
mod series;

mod figures;
mod numbers;

pub use distribution::Distribution;
pub use figures::{Figures, RequestCounts};
pub use numbers::{StepNumbers, step_numbers};
pub use series::{SERIES, Series};
