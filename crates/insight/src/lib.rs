//! Findings: what a person would say after looking at the numbers of a step.
//!
//! A [`Finding`] is a check, one sentence with its number, the evidence, and what to try.

mod finding;

pub use finding::{Finding, findings};
pub use rollscope_stats::{
    Breakdown, Part, Row, SlowestSample, request_breakdown, slowest_sample, where_time_went,
};
