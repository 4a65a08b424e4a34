//! The recorder's clock, for marks of its own.

use std::time::{SystemTime, UNIX_EPOCH};

use rollscope_trace::UnixNs;

/// Now, by the wall clock. Only ever stored, never subtracted.
pub(crate) fn now() -> UnixNs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixNs(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
