//! Which steps have requests under way, as whoever serves them tells.

use std::fmt;
use std::sync::OnceLock;

use rollscope_trace::StepNumber;

/// Asks whether a request of a step is live. Nobody knows of any until [`Live::ask`] was called.
#[derive(Default)]
pub(crate) struct Live(OnceLock<Box<dyn Fn(StepNumber) -> bool + Send + Sync>>);

// === impl Live ===

impl Live {
    /// From now on asks this one; the first stays.
    pub(crate) fn ask(&self, is_live: impl Fn(StepNumber) -> bool + Send + Sync + 'static) {
        self.0.get_or_init(|| Box::new(is_live));
    }

    pub(crate) fn has(&self, step: StepNumber) -> bool {
        self.0.get().is_some_and(|is_live| is_live(step))
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("is_asked", &self.0.get().is_some()).finish()
    }
}
