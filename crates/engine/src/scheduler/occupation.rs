//! Standing still: for a pause, without memory, or for weights to be replaced.

use rollscope_model::ModelError;

use super::{Occupation, Scheduler, Side};
use crate::output::Abort;

/// Why nothing is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stillness {
    pub(crate) is_paused: bool,
    pub(crate) lacks_weights: bool,
    pub(crate) lacks_kv_cache: bool,
}

/// What ends a connection between servers of which one has other weights now.
pub(super) const WEIGHTS_REPLACED: &str = "the weights were replaced";

// === impl Stillness ===

impl Stillness {
    /// Whether there is a reason.
    pub(crate) fn is_still(self) -> bool {
        self.reason().is_some()
    }

    /// The reason, as a sentence.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self {
            Self { lacks_weights: true, .. } => Some("the memory of the weights is released"),
            Self { lacks_kv_cache: true, .. } => Some("the memory of the KV cache is released"),
            Self { is_paused: true, .. } => Some("generation is paused"),
            Self { .. } => None,
        }
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Starts or stops the clocks, as there is a reason to stand still.
    pub(super) fn settle(&mut self) {
        let now = self.core.clock.now();
        if self.stillness.is_still() {
            self.core.active.pause(now);
        } else {
            self.core.active.go_on(now);
        }
    }

    /// Gives memory up. Requests in a pause end with it; others are in the way, and their number is the error.
    pub(super) fn release(&mut self, what: Occupation) -> Result<(), usize> {
        let is_news = (what.weights && !self.stillness.lacks_weights)
            || (what.kv_cache && !self.stillness.lacks_kv_cache);
        if is_news {
            if self.stillness.is_paused {
                self.give_up_where(|_| true, &Abort::unavailable("the server's memory was released"));
            }
            let live = self.requests().count();
            if live > 0 {
                return Err(live);
            }
        }
        self.stillness.lacks_weights |= what.weights;
        if what.kv_cache && !self.stillness.lacks_kv_cache {
            self.stillness.lacks_kv_cache = true;
            self.forget();
            self.core.kv.release();
        }
        self.settle();
        Ok(())
    }

    /// Takes memory again. The weights are there already; if they are others, what was made with the old ones is not kept.
    pub(super) fn resume(&mut self, what: Occupation, replaced: bool) -> Result<(), ModelError> {
        if replaced {
            self.renew();
        }
        if what.kv_cache {
            self.core.kv.restore()?;
            self.stillness.lacks_kv_cache = false;
        }
        self.stillness.lacks_weights &= !what.weights;
        self.settle();
        Ok(())
    }

    /// Tells whoever waits for it that nothing is under way, or that a pause holds all that is.
    pub(super) fn tell_quiet(&mut self) {
        if self.when_quiet.is_empty() {
            return;
        }
        let is_still = self.core.active.is_paused();
        // What waits without pages has not begun.
        if is_still || self.requests().all(|request| request.pages.is_empty()) {
            let held = if is_still { self.requests().count() } else { 0 };
            for reply in self.when_quiet.drain(..) {
                super::answer(reply, held);
            }
        }
    }

    /// Begins again.
    pub(super) fn proceed(&mut self, replaced: bool) {
        self.core.is_held = false;
        if replaced {
            self.stillness.lacks_weights = false;
            self.settle();
            self.renew();
        }
    }

    /// Lets go of what is of other weights: cached beginnings, and what was agreed on with peers.
    fn renew(&mut self) {
        self.forget();
        let Self { core, side, .. } = self;
        match side {
            Side::Alone => {}
            Side::Prefill(side) => side.disconnect(core),
            Side::Decode(side) => side.disconnect(core),
        }
    }

    /// Empties the prefix cache.
    pub(super) fn forget(&mut self) {
        let freed = self.core.cache.forget();
        self.core.kv.free(&freed);
    }
}
