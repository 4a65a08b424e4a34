//! Findings: what a person would say after looking at the numbers of a step.
//!
//! A [`Finding`] is a check, one sentence with its number, the evidence, and what to try. [`compare`] sets two
//! steps or runs against each other.

mod checks;
mod compare;
mod finding;

pub use compare::{Change, Values, compare};
pub use finding::{Finding, findings};
pub use rollscope_stats::{
    Breakdown, Part, Row, SlowestSample, request_breakdown, slowest_sample, where_time_went,
};
