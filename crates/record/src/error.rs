//! What may go wrong with recording. None of it ever fails a request.

use rollscope_run::RunError;
use rollscope_track::TrackError;

/// Why something was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The run directory.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A tracker. What it does not have is sent later.
    #[error(transparent)]
    Track(#[from] TrackError),
    /// A thread could not be started.
    #[error("cannot start a thread for recording: {0}")]
    Thread(#[source] std::io::Error),
    /// A thread of the recorder ended in a way that it should not.
    #[error("a thread of the recorder panicked; what reached the log is safe")]
    Panicked,
}
