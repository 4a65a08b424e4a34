//! The driver's clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A moment, on the wall and on the monotonic clock: a span begins by the one and lasts by the other, so that a
/// step of the wall clock moves a span and never stretches it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Seconds since the Unix epoch.
    pub(crate) unix_s: f64,
    at: Instant,
}

impl Moment {
    pub(crate) fn now() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { unix_s: unix.as_secs_f64(), at: Instant::now() }
    }

    /// Seconds since the Unix epoch that it is now, had the wall clock not been set since.
    pub(crate) fn now_unix_s(&self) -> f64 {
        self.unix_s + self.at.elapsed().as_secs_f64()
    }
}
