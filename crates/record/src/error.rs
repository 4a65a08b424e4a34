//! What may go wrong with recording. None of it ever fails a request.

use std::path::PathBuf;

use rollscope_run::{Damage, RunError};
use rollscope_trace::StepNumber;
use rollscope_track::{Target, TrackError};

use crate::archive::{ArchiveError, ArchivePlace};
use crate::s3::S3Error;

/// Why something was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The run directory.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A tracker. What it does not have is sent later.
    #[error(transparent)]
    Track(#[from] TrackError),
    /// The recorder ended before a tracker had every step.
    #[error("not every step was sent before the end; `rollscope track` sends what is missing: {target}")]
    Unsent {
        /// Which tracker.
        target: Target,
    },
    /// The recorder ended before what was sealed had been copied.
    #[error(
        "not copied before the end: {count} steps, the first of them {}; the next gateway that records into the run with \
         --archive copies them: {place}", first.0
    )]
    Uncopied {
        /// Where to.
        place: ArchivePlace,
        /// How many.
        count: usize,
        /// One of them.
        first: StepNumber,
    },
    /// Steps beyond what is to be kept went though they had not been copied: too many waited for that.
    #[error("removed before they could be copied: {count} steps, the first of them {}", first.0)]
    NeverCopied {
        /// How many.
        count: usize,
        /// One of them.
        first: StepNumber,
    },
    /// What was sealed could not be copied. It is tried again.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The run's folder was removed, or another put in its place.
    #[error(
        "the run's folder was removed, and what was recorded in it is lost; recording goes on in a new one: {}",
        path.display()
    )]
    Removed {
        /// The folder.
        path: PathBuf,
    },
    /// Records of a step are lost with a part of it, so that its numbers stay as they were and nothing is added to it.
    #[error("records of step {step} are lost, and its numbers stay as they were: {damage}")]
    Lost {
        /// Which step.
        step: StepNumber,
        /// What is damaged.
        damage: Damage,
    },
    /// Retention has removed the records of a step, so that nothing is added to it and its end is not told again.
    #[error("step {step} is no longer kept: its numbers stay as they were, and nothing is added to it")]
    Forgotten {
        /// Which step.
        step: StepNumber,
    },
    /// A thread could not be started.
    #[error("cannot start a thread for recording: {0}")]
    Thread(#[source] std::io::Error),
    /// A thread of the recorder ended in a way that it should not.
    #[error("a thread of the recorder panicked; what reached the log is safe")]
    Panicked,
}

impl From<S3Error> for RecordError {
    fn from(error: S3Error) -> Self {
        Self::Archive(error.into())
    }
}
