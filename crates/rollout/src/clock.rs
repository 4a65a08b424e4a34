//! The driver's clock: wall time that never jumps within a rollout.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A wall-clock anchor, and the monotonic clock from there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    anchor_unix_s: f64,
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { anchor_unix_s: unix.as_secs_f64(), origin: Instant::now() }
    }

    /// Seconds since the Unix epoch.
    pub(crate) fn unix_s(&self) -> f64 {
        self.anchor_unix_s + self.origin.elapsed().as_secs_f64()
    }
}
