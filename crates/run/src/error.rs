//! What may go wrong with a run directory.

use std::io;
use std::path::{Path, PathBuf};

use rollscope_trace::{RequestId, StepNumber};

use crate::version::Version;

/// Why a run could not be made, opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is nothing at the path.
    #[error("there is no run at {}", path.display())]
    Missing {
        /// The path that was given.
        path: PathBuf,
    },
    /// There is something at the path, but not a run.
    #[error("not a run directory ({why}): {}", path.display())]
    NotARun {
        /// The path that was given.
        path: PathBuf,
        /// What is missing or unreadable.
        why: &'static str,
    },
    /// A run was to be made where other files are.
    #[error("the directory holds other files and is no run, choose an empty or a new one: {}", path.display())]
    Occupied {
        /// The path that was given.
        path: PathBuf,
    },
    /// A file was written by a later, incompatible version.
    #[error("written in format {found}, which is newer than this program reads ({supported}): {}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: Version,
        /// The newest version that is read.
        supported: Version,
    },
    /// The run knows nothing of the step.
    #[error("the run has no step {step}")]
    NoSuchStep {
        /// The step asked for.
        step: StepNumber,
    },
    /// A writer's name must be usable as a folder's name.
    #[error("a writer's name consists of letters, digits, '.', '_' and '-': {name:?}")]
    WriterName {
        /// The name that was given.
        name: String,
    },
    /// A record that is larger than a reader accepts.
    #[error("record of {bytes} bytes is larger than the limit of {limit}")]
    RecordTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A profile can be logged only when its step is known.
    #[error("profile without a step: {id}")]
    NoStep {
        /// Which profile.
        id: RequestId,
    },
    /// A record could not be turned into bytes.
    #[error("cannot encode a record")]
    Encode {
        /// Why.
        source: rmp_serde::encode::Error,
    },
    /// A JSON document could not be turned into bytes.
    #[error("cannot encode {what}")]
    EncodeJson {
        /// Which document.
        what: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// A manifest, or a file that one names, is none.
    #[error("damaged manifest: {}", path.display())]
    DamagedManifest {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The operating system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A part could not be written or read.
    #[error("cannot {action} the part {}", path.display())]
    Part {
        /// What was tried.
        action: &'static str,
        /// Which part.
        path: PathBuf,
        /// Why not.
        source: parquet::errors::ParquetError,
    },
    /// A part does not hold what its table must.
    #[error("damaged part ({what}): {}", path.display())]
    DamagedPart {
        /// Which part.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
}

// === impl RunError ===

impl RunError {
    /// For `map_err` on an operation of the operating system.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// The part that cannot be read, of an error in reading one. A part that says it is newer is damaged as well: a
    /// manifest that this program reads names none of a later major version.
    pub(crate) fn unreadable_part(self) -> Result<PathBuf, Self> {
        match self {
            Self::Part { path, .. }
            | Self::DamagedPart { path, .. }
            | Self::Io { path, .. }
            | Self::Newer { path, .. } => Ok(path),
            other => Err(other),
        }
    }
}
