//! The run directory: one folder on disk that holds everything recorded.
//!
//! ```text
//! run.json                            what it is: version, producer, configuration
//! log/WRITER/000001.seg               one folder per writer: framed, checksummed records
//! log/WRITER/present.json             what it tells the other writers while it lives: its open steps
//! steps/step=000001/TABLE/*.parquet   parts: the records of a step as tables, made from the logs
//! steps/step=000001/stats.json        the numbers of a step
//! steps/step=000001/glance.bin        what a viewer shows of it without reading it
//! manifest/N.json                     which parts there are, and which stretches of the logs they replace
//! metrics.jsonl                       what trackers were sent: a line a step, and one more whenever its numbers have changed
//! archive/                            of an archive: its manifest, and which closed steps each writer has not copied yet
//! ```
//!
//! Each writer appends to a log of its own ([`LogWriter`]) and nobody else touches it. When a step is closed its
//! stretch of the log is sealed ([`Sealer`]). A reader ([`Run`]) takes the newest manifest and what the logs hold
//! beyond it, at any time, with or without a writer at work; [`Follow`] goes on reading.
//!
//! The crate is synchronous; call it from a thread that may block.

mod run;
mod step_set;
mod version;

mod archive;
mod contents;
mod log;
mod manifest;
mod parts;
mod presence;
mod retention;
mod seal;
mod sealed;

mod follow;
mod glance;
mod losses;
mod numbers;
mod read;

mod error;
mod files;
mod texts;

pub use archive::SealedFile;
pub use error::RunError;
pub use follow::Follow;
pub use glance::{Glance, GlanceBlocks, SealedState};
pub use log::writer::{LogLock, LogOptions, LogWriter};
pub use log::{Damage, DamageKind, LogPosition, LogStretch};
pub use losses::StepLosses;
pub use numbers::{MetricsFollow, MetricsLog, SentMetrics};
pub use presence::{Peers, Presence};
pub use read::{Drops, StepSummary, WriterState, WriterSummary};
pub use retention::Retention;
pub use run::{Run, RunInfo};
pub use seal::{Sealed, Sealer};
pub use step_set::StepSet;
pub use version::{FORMAT, NotAVersion, Version};
