//! Standing still: for a pause, without memory, or for weights to be replaced.

use rollscope_model::ModelError;
use tokio::sync::oneshot;

use super::{Occupation, Scheduler, Side};
use crate::output::Abort;
use crate::request::Request;

/// Why nothing is computed, or nothing new is begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stillness {
    pub(crate) is_paused: bool,
    pub(crate) lacks_weights: bool,
    pub(crate) lacks_kv_cache: bool,
    pub(crate) replacement: Replacement,
}

/// How far the replacement of the weights is: `None → Awaited → Ready → None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Replacement {
    /// They stay.
    #[default]
    None,
    /// Nothing new is begun, and what is under way comes to its end.
    Awaited,
    /// Nothing is under way: they are replaced at any moment, and nothing is computed whatever else happens.
    Ready,
}

/// What ends a connection between servers of which one has other weights now.
pub(super) const WEIGHTS_REPLACED: &str = "the weights were replaced";

// === impl Stillness ===

impl Stillness {
    /// Whether nothing is computed.
    pub(crate) fn is_still(self) -> bool {
        let Self { is_paused, lacks_weights, lacks_kv_cache, replacement } = self;
        is_paused || lacks_weights || lacks_kv_cache || replacement == Replacement::Ready
    }

    /// Whether nothing new is begun for the sake of other weights.
    pub(crate) fn is_held(self) -> bool {
        self.replacement != Replacement::None
    }

    /// Why a request that comes now is not begun, as a sentence.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self {
            Self { lacks_weights: true, .. } => Some("the memory of the weights is released"),
            Self { lacks_kv_cache: true, .. } => Some("the memory of the KV cache is released"),
            Self { is_paused: true, .. } => Some("generation is paused"),
            Self { replacement: Replacement::Awaited | Replacement::Ready, .. } => {
                Some("the weights are about to be replaced")
            }
            Self { .. } => None,
        }
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Starts or stops the clocks, as there is a reason to stand still.
    pub(super) fn settle(&mut self) {
        let now = self.core.clock.now();
        if self.core.stillness.is_still() {
            self.core.active.pause(now);
            self.core.rooms.pause(now);
        } else {
            self.core.active.go_on(now);
            self.core.rooms.go_on(now);
        }
    }

    /// Gives memory up, and returns what of it was there. Requests in a pause end with it; others are in the way, and their
    /// number is the error.
    pub(super) fn release(&mut self, what: Occupation) -> Result<Occupation, usize> {
        let Stillness { is_paused, lacks_weights, lacks_kv_cache, .. } = self.core.stillness;
        let news = Occupation {
            weights: what.weights && !lacks_weights,
            kv_cache: what.kv_cache && !lacks_kv_cache,
        };
        if news.weights || news.kv_cache {
            if is_paused {
                self.give_up_where(|_| true, &Abort::unavailable("the server's memory was released"));
            }
            let live = self.requests().count();
            if live > 0 {
                return Err(live);
            }
        }
        self.core.stillness.lacks_weights |= news.weights;
        if news.kv_cache {
            self.core.stillness.lacks_kv_cache = true;
            self.forget();
            self.core.kv.release();
        }
        self.settle();
        Ok(news)
    }

    /// Takes memory again. The weights are there already; if they are others, what was made with the old ones is not kept.
    pub(super) fn resume(&mut self, what: Occupation, replaced: bool) -> Result<(), ModelError> {
        if replaced {
            self.renew();
        }
        if what.kv_cache {
            self.core.kv.restore()?;
            self.core.stillness.lacks_kv_cache = false;
        }
        self.core.stillness.lacks_weights &= !what.weights;
        self.settle();
        Ok(())
    }

    /// Begins nothing new from now on. Whoever asks learns when nothing is under way.
    pub(super) fn quiesce(&mut self, reply: oneshot::Sender<usize>) {
        self.core.stillness.replacement = Replacement::Awaited;
        self.when_quiet = Some(reply);
    }

    /// Tells whoever waits for it that nothing is under way, or that a pause holds all that is. From then on all stands still.
    pub(super) fn tell_quiet(&mut self) {
        if self.core.stillness.replacement != Replacement::Awaited {
            return;
        }
        let is_still = self.core.stillness.is_still();
        // What waits without pages has not begun, unless it has lost them.
        let has_begun = |request: &Request| !request.pages.is_empty();
        if !is_still && (!self.core.retracted.is_empty() || self.requests().any(has_begun)) {
            return;
        }
        let held = if is_still { self.requests().count() } else { 0 };
        self.core.stillness.replacement = Replacement::Ready;
        self.settle();
        if let Some(reply) = self.when_quiet.take() {
            super::answer(reply, held);
        }
    }

    /// Begins again.
    pub(super) fn proceed(&mut self, replaced: bool) {
        self.core.stillness.replacement = Replacement::None;
        self.core.stillness.lacks_weights &= !replaced;
        self.settle();
        if replaced {
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
