//! The run directory: one folder on disk that holds everything recorded.
//!
//! ```text
//! run.json                            what it is: version, producer, configuration
//! log/WRITER/000001.seg               one folder per writer: framed, checksummed records
//! steps/step=000001/stats.json        the numbers of a step
//! metrics.jsonl                       what trackers were sent, one line a step
//! ```
//!
//! Each writer appends to a log of its own ([`LogWriter`]) and nobody else touches it. A reader ([`Run`]) takes
//! whatever is whole, at any time, with or without a writer at work; [`Follow`] goes on reading.
//!
//! The crate is synchronous; call it from a thread that may block.

mod error;
mod files;
mod follow;
mod log;
mod numbers;
mod read;
mod run;
mod version;

pub use error::RunError;
pub use follow::Follow;
pub use log::writer::{LogOptions, LogWriter};
pub use log::{Damage, DamageKind, LogPosition};
pub use numbers::SentMetrics;
pub use read::{Drops, StepSummary, WriterState, WriterSummary};
pub use run::{Run, RunInfo};
pub use version::{FORMAT, NotAVersion, Version};
