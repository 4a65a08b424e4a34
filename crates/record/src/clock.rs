//! The recorder's clock, for marks of its own.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rollscope_trace::UnixNs;

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
