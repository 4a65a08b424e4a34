//! The one thing that a gateway knows of recording.

use crate::Profile;

/// Takes finished profiles. An offer never blocks, never waits and does no IO: it fails at once when the
/// queue behind it is full, and the caller counts the loss.
pub trait ProfileSink: Send + Sync + std::fmt::Debug {
    /// Offers one profile.
    fn offer(&self, profile: Profile) -> Result<(), Dropped>;
}

/// A profile was not taken: the queue was full or is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("profile dropped: the recorder's queue is full or closed")]
pub struct Dropped;
