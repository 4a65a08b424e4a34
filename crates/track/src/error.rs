//! What may go wrong with a tracker.

use std::io;
use std::path::{Path, PathBuf};

/// Why a step could not be sent. All but [`Self::LeftOut`] may be tried again.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
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
    /// There is a file at the place that is none of this tracker's.
    #[error("not a file of this tracker's, choose another place: {}", path.display())]
    Foreign {
        /// Which file.
        path: PathBuf,
    },
    /// It is open somewhere else, most likely in a recorder at work.
    #[error("another process is sending to it: {place}")]
    InUse {
        /// Which file, or which server; without a user and a password.
        place: String,
    },
    /// Numbers could not be turned into JSON.
    #[error("cannot encode the numbers of a step")]
    Encode(#[from] serde_json::Error),
    /// The server could not be reached, or its answer was cut or none that was expected.
    #[error("cannot reach the tracker's server: {url}")]
    Unreachable {
        /// What was called; without a user and a password.
        url: String,
        /// Why not.
        source: Box<ureq::Error>,
    },
    /// The server took a step but for some of its numbers; the step need not be sent again.
    #[error(
        "the tracker's server takes step {step} without {count} of its numbers, the first of them: {first}"
    )]
    LeftOut {
        /// Which step.
        step: u64,
        /// How many.
        count: usize,
        /// The name of one.
        first: String,
    },
    /// The server refused.
    #[error("the tracker's server refuses ({status}): {url}: {answer}")]
    Refused {
        /// What was called; without a user and a password.
        url: String,
        /// HTTP status.
        status: u16,
        /// The begin of what it said.
        answer: String,
    },
}

// === impl TrackError ===

impl TrackError {
    /// For `map_err` on an operation of the operating system.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}
