//! Tests of the run directory, through its public interface.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod follow;
mod glance;
mod log;
mod make;
mod numbers;
mod open;
mod parts;
mod recovery;
mod retention;
mod versions;
