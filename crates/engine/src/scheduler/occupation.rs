//! Standing still: for a pause, without memory, or for weights to be replaced.

use rollscope_model::ModelError;

use super::{Occupation, Scheduler, Side};
use crate::output::Abort;

/// Why nothing is computed.
#[derive(Debug, Default)]
pub(super) struct Stillness {
    pub(super) is_paused: bool,
    lacks_weights: bool,
    lacks_kv_cache: bool,
}

// === impl Scheduler ===

impl Scheduler {
    /// Starts or stops the clocks, as there is a reason to stand still.
    pub(super) fn settle(&mut self) {
        let now = self.core.clock.now();
        let Stillness { is_paused, lacks_weights, lacks_kv_cache } = self.stillness;
        if is_paused || lacks_weights || lacks_kv_cache {
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

    /// Takes memory again. The weights are there already.
    pub(super) fn resume(&mut self, what: Occupation) -> Result<(), ModelError> {
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

    /// Begins again. What was cached and agreed on with peers is of the old weights.
    pub(super) fn proceed(&mut self, replaced: bool) {
        self.core.is_held = false;
        if replaced {
            self.forget();
            self.stillness.lacks_weights = false;
            self.settle();
            let Self { core, side, .. } = self;
            match side {
                Side::Alone => {}
                Side::Prefill(side) => side.disconnect(core, WEIGHTS_REPLACED),
                Side::Decode(side) => side.disconnect(core, WEIGHTS_REPLACED),
            }
        }
    }

    /// Empties the prefix cache.
    pub(super) fn forget(&mut self) {
        let freed = self.core.cache.forget();
        self.core.kv.free(&freed);
    }
}

const WEIGHTS_REPLACED: &str = "the weights were replaced";
