//! Foreign files in and out.
//!
//! [`import`] reads what others wrote, slime's dumps of rollouts first of all, and hands on
//! [`Record`](rollscope_trace::Record)s, from which a run is made like any other. Nothing that is in a file is
//! executed, and what reading costs is bounded by the file's size.

mod error;
mod hash;
mod tree;

mod pickle;
mod torch;

mod sglang;
mod slime;

mod export;
mod import;

pub use error::FormatError;
pub use export::{ExportFormat, Exporter};
pub use import::{ImportNotes, ImportOptions, OwnLine, Sink, import};
