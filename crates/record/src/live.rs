//! Which steps have requests under way, as whoever serves them tells.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::OnceLock;

use rollscope_trace::StepNumber;

/// Asks for the steps of live requests. Nobody knows of any until [`Live::ask`] was called.
#[derive(Default)]
pub(crate) struct Live(OnceLock<Box<dyn Fn() -> BTreeSet<StepNumber> + Send + Sync>>);

// === impl Live ===

impl Live {
    /// From now on asks this one; the first stays.
    pub(crate) fn ask(&self, live_steps: impl Fn() -> BTreeSet<StepNumber> + Send + Sync + 'static) {
        self.0.get_or_init(|| Box::new(live_steps));
    }

    pub(crate) fn steps(&self) -> BTreeSet<StepNumber> {
        self.0.get().map_or_else(BTreeSet::new, |live_steps| live_steps())
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("is_asked", &self.0.get().is_some()).finish()
    }
}
