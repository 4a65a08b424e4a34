//! Findings: where the time of a step went.
//!
//! A request's time is divided along its critical path ([`request_breakdown`]), so that the parts sum to the
//! whole and nothing is counted twice, although the two workers of a pair measure at the same time. Summed over
//! a step this says where the time went ([`where_time_went`]); of the slowest sample, why it was the last
//! ([`slowest_sample`]). Both are also [`Finding`]s: a check, one sentence, its evidence.

mod breakdown;
mod critical_path;
mod finding;
mod slowest;
mod step;

pub use breakdown::{Breakdown, Part, Row};
pub use critical_path::request_breakdown;
pub use finding::{Finding, findings};
pub use slowest::{SlowestSample, slowest_sample};
pub use step::where_time_went;
