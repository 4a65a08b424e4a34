//! Findings: what a person would say after looking at the numbers of a step.
//!
//! A [`Finding`] is a check, one sentence with its number, the evidence, and what to try. [`compare`] sets two
//! steps or runs against each other. [`request_passes`] tells which forward passes requests sat in,
//! [`plan`] how long they take by what is in them.

mod checks;
mod compare;
mod finding;
mod passes;
mod plan;
mod workers;

pub use compare::{Change, Magnitude, compare};
pub use finding::{Finding, findings, findings_beside};
pub use passes::{Basis, Company, LegPasses, Shared, request_passes, time_of_calls, time_of_passes};
pub use plan::{Fit, MIN_SAMPLES, NoFit, PassKind, Plan, plan};
pub use rollscope_stats::{
    Breakdown, Part, Row, SlowestSample, request_breakdown, slowest_sample, where_time_went,
};
