//! What the gateway tells of: the caller says where it goes.

use std::fmt;
use std::sync::Arc;

use crate::options::LogLevel;

/// Takes what the gateway tells of. It is called on serving threads, so it must not wait for long.
#[derive(Clone)]
pub struct Notices {
    level: LogLevel,
    take: Arc<dyn Fn(LogLevel, fmt::Arguments<'_>) + Send + Sync>,
}

// === impl Notices ===

impl Notices {
    /// Has what is as grave as this taken.
    pub fn new(level: LogLevel, take: impl Fn(LogLevel, fmt::Arguments<'_>) + Send + Sync + 'static) -> Self {
        Self { level, take: Arc::new(take) }
    }

    /// Tells what was asked for by an option of its own, whatever the level.
    pub(crate) fn tell_always(&self, what: fmt::Arguments<'_>) {
        (self.take)(LogLevel::Info, what);
    }

    pub(crate) fn tell(&self, level: LogLevel, what: fmt::Arguments<'_>) {
        if level <= self.level {
            (self.take)(level, what);
        }
    }
}

impl Default for Notices {
    /// Nobody listens.
    fn default() -> Self {
        Self::new(LogLevel::Error, |_, _| {})
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices").field("level", &self.level).finish_non_exhaustive()
    }
}
