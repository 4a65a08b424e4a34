//! The recorder's clock, for marks of its own and for what it hears of.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rollscope_trace::UnixNs;

/// Tells a moment by the clock of whoever makes the profiles, once [`Timeline::go_by`] was called; by the system's before.
#[derive(Default)]
pub(crate) struct Timeline(OnceLock<Box<dyn Fn(Instant) -> UnixNs + Send + Sync>>);

// === impl Timeline ===

impl Timeline {
    /// From now on goes by this one; the first stays.
    pub(crate) fn go_by(&self, wall_time: impl Fn(Instant) -> UnixNs + Send + Sync + 'static) {
        self.0.get_or_init(|| Box::new(wall_time));
    }

    pub(crate) fn at(&self, moment: Instant) -> UnixNs {
        self.0.get().map_or_else(|| at(moment), |wall_time| wall_time(moment))
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeline").field("is_another's", &self.0.get().is_some()).finish()
    }
}

/// A moment of the monotonic clock, by the wall clock.
pub(crate) fn at(moment: Instant) -> UnixNs {
    let ago = i64::try_from(moment.elapsed().as_nanos()).unwrap_or(i64::MAX);
    now().offset_by(ago.saturating_neg())
}

/// Now, by the wall clock. Only ever stored, never subtracted.
pub(crate) fn now() -> UnixNs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixNs(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
