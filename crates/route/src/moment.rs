//! Moments on the caller's clock.

use std::time::Duration;

/// A moment on a monotonic clock: the time since an origin that the caller chose once and keeps to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Duration);

// === impl Moment ===

impl Moment {
    /// So much later.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }

    /// Time since an earlier moment. Two threads may read the clock in one order and get here in another, so what
    /// is not earlier counts as now.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
