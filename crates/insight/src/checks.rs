//! The checks, one file each. To add one, write its file and its line here.

mod decode_memory;
mod failures;
mod idle_workers;
mod kv_transfer;
mod long_tail;
mod no_timings;
mod overview;
mod prefix_cache;
mod queue_bound;
mod slow_user_code;
mod straggler;
mod truncation;
mod waste;

pub(crate) use failures::all_failed;
pub(crate) use overview::{slowest_sample, where_time_went};

use crate::finding::{Found, Step};

/// A check looks at a step and says what is out of order.
type Check = fn(&Step<'_>) -> Option<Found>;

/// Every check, by its stable name.
pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("failed_requests", failures::check),
    ("queue_bound", queue_bound::check),
    ("kv_transfer_slow", kv_transfer::check),
    ("decode_memory", decode_memory::check),
    ("straggler_worker", straggler::check),
    ("long_tail", long_tail::check),
    ("prefix_cache_not_hit", prefix_cache::check),
    ("truncation", truncation::check),
    ("wasted_work", waste::check),
    ("no_timings", no_timings::check),
    ("user_code_slow", slow_user_code::check),
    ("idle_workers", idle_workers::check),
];

#[cfg(test)]
mod tests;
