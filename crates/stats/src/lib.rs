//! From traces to the numbers of a rollout step.
//!
//! Per-request and per-sample values are taken from a [`StepTrace`](rollscope_trace::StepTrace) and reduced
//! once, when the step is asked for, to a bounded set of named numbers ([`step_numbers`]). The names are those
//! that trackers already hold: `perf/…` for what serving did, `rollout/…` for what it produced, `eval/…` for
//! samples that are no training samples. One table lists them all ([`NUMBERS`]).
//!
//! A request's time is divided along its critical path ([`request_breakdown`]), so that the parts sum to the whole
//! and nothing is counted twice, although the two workers of a pair measure at the same time. Summed over a step
//! this says where the time went ([`where_time_went`]); of the slowest sample, why it was ([`slowest_sample`]).
//!
//! Pure: no IO and no clock. Missing is not zero: a value that nobody reported gives no number at all, and a
//! value that is flagged as implausible is counted under `perf/anomaly/…` and enters nothing else.

mod distribution;
mod series;

mod breakdown;
mod critical_path;
mod slowest;
mod step;

mod values;

mod requests;
mod samples;
mod sums;
mod told;
mod workers;

mod catalog;
mod figures;
mod numbers;

pub use breakdown::{Breakdown, Part, Row};
pub use catalog::{Kind, NUMBERS, Number};
pub use critical_path::request_breakdown;
pub use distribution::Distribution;
pub use figures::Figures;
pub use numbers::{StepNumbers, step_numbers};
pub use requests::reached;
pub use samples::{LateSample, Tail, TokenFigures, Versions, is_truncated, own_time};
pub use series::{SERIES, Series};
pub use slowest::{SlowestSample, slowest_sample};
pub use step::{population, where_time_went};
pub use values::{RequestCounts, RequestValues};
pub use workers::WorkerFigures;
