//! What every scheduler has, whatever its place in a pair: the model, the pages, the waiting and the running.

use std::collections::VecDeque;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollscope_config::Published;
use rollscope_model::sampling::SamplingScratch;
use rollscope_model::{KvPool, Logits, Model};

use super::inspect::Throughput;
use super::observe::Observations;
use super::occupation::Stillness;
use super::passes::PassReporter;
use super::prefix::PrefixCache;
use super::profile::Profiler;
use super::rooms::Rooms;
use super::{Limits, Means};
use crate::clock::{ActiveTime, Clock, Stamp};
use crate::disagg::{MetadataBuffers, row_bytes};
use crate::options::{DisaggregationMode, EngineOptions};
use crate::output::{Abort, Finish};
use crate::request::{KvPoll, Pair, Request};
use crate::sim::CostModel;
use crate::warn::Warnings;

/// What has happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Requests that failed before the other side had appeared.
    pub(crate) bootstrap_failed: u64,
    /// Requests that failed between that and the end of the transfer.
    pub(crate) transfer_failed: u64,
    /// Requests that ended otherwise than by their last token, but for health checks.
    pub(crate) aborted: u64,
    /// Requests that were taken in, but for health checks.
    pub(crate) requests: u64,
    /// Tokens of prompts that were computed, or found in the prefix cache.
    pub(crate) prompt_tokens: u64,
    /// Those of them that were found.
    pub(crate) cached_tokens: u64,
    /// Tokens that were chosen here; on decode, all but the first.
    pub(crate) generated_tokens: u64,
    /// Tokens that forward passes have had so far, of prompts (or again, after a retraction) and as next tokens.
    pub(crate) computed_prompt_tokens: u64,
    pub(crate) computed_next_tokens: u64,
    pub(crate) timeouts: Timeouts,
}

/// Time limits that requests have reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// Of those that waited for the other side.
    pub(crate) bootstrap: u64,
    /// Of those whose transfer was prepared or under way.
    pub(crate) transfer: u64,
}

/// Requests in one state, in order of arrival there.
pub(super) type Queue = VecDeque<Box<Request>>;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) model: Arc<Model>,
    pub(super) kv: KvPool,
    pub(super) clock: Arc<Clock>,
    /// By which limits of time are measured.
    pub(super) active: ActiveTime,
    pub(super) limits: Limits,
    pub(super) slots: MetadataBuffers,
    pub(super) rooms: Rooms,
    pub(super) waiting: Queue,
    pub(super) running: Queue,
    /// Have given their pages back, and come before those that wait.
    pub(super) retracted: Queue,
    pub(super) cache: PrefixCache,
    pub(super) stillness: Stillness,
    /// What the weights are called that are computed with.
    pub(super) weight_version: Arc<str>,
    /// Prefill: computed in the latest step, about to be in flight.
    pub(super) prefilled: Queue,
    /// Failed in the latest step; their peers are to be told.
    pub(super) doomed: Vec<(Box<Request>, Abort)>,
    pub(super) throughput: Throughput,
    pub(super) counts: Counts,
    pub(super) observations: Observations,
    /// Instead of the model.
    pub(super) simulated: Option<CostModel>,
    /// Speed, 2^30 bytes per second, and duration, seconds.
    pub(super) last_transfer: Option<(f64, f64)>,
    pub(super) logits: Logits,
    pub(super) scratch: SamplingScratch,
    /// Logits that a request's parameters have changed.
    pub(super) adjusted: Vec<f32>,
    seeds: StdRng,
    published: Published<EngineOptions>,
    pub(super) passes: PassReporter,
    pub(super) profiler: Profiler,
    pub(super) warnings: Warnings,
}

// === impl Counts ===

impl Counts {
    /// Of the tokens of prompts, the part that the prefix cache had.
    pub(crate) fn cache_hit_rate(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

// === impl Core ===

impl Core {
    pub(super) fn new(means: Means, limits: Limits) -> Self {
        let now = means.clock.now();
        let slots = match limits.mode {
            DisaggregationMode::Null => 0,
            DisaggregationMode::Prefill => limits.max_running,
            DisaggregationMode::Decode => limits.max_running * 2,
        };
        Self {
            model: means.model,
            clock: means.clock,
            active: ActiveTime::default(),
            slots: MetadataBuffers::new(slots, row_bytes(limits.prefill_timing)),
            limits,
            rooms: means.rooms,
            waiting: Queue::new(),
            running: Queue::new(),
            retracted: Queue::new(),
            stillness: Stillness::default(),
            weight_version: means.published.model().weight_version.as_str().into(),
            cache: PrefixCache::new(means.kv.page_tokens()),
            kv: means.kv,
            prefilled: Queue::new(),
            doomed: Vec::new(),
            throughput: Throughput::new(now),
            counts: Counts::default(),
            observations: Observations::default(),
            simulated: means.simulated,
            last_transfer: None,
            logits: Logits::new(),
            scratch: SamplingScratch::default(),
            adjusted: Vec::new(),
            seeds: StdRng::seed_from_u64(means.random_seed),
            published: means.published,
            passes: PassReporter::new(means.publisher),
            profiler: Profiler::default(),
            warnings: means.warnings,
        }
    }

    /// A seed for a request that brought none.
    pub(super) fn draw_seed(&mut self) -> u64 {
        self.seeds.next_u64()
    }

    /// Learns what the weights are called. Whoever replaces them lets nothing be computed until they are named.
    pub(super) fn name_weights(&mut self) {
        let options = self.published.resolved();
        if *self.weight_version != *options.weight_version {
            self.weight_version = options.weight_version.as_str().into();
        }
    }

    /// The moment by which limits of time are measured.
    pub(super) fn active_now(&self) -> Stamp {
        self.active.at(self.clock.now())
    }

    /// Ends a request, all that it held being free before anyone learns of its end.
    pub(super) fn retire(&mut self, mut request: Box<Request>, finish: Finish) {
        self.give_back(&mut request);
        let slot = match &mut request.pair {
            Pair::Alone => None,
            Pair::Prefill(outgoing) => outgoing.slot.take(),
            Pair::Decode(incoming) => incoming.slot.take(),
        };
        if let Some(slot) = slot {
            self.slots.release(slot);
        }
        self.rooms.give_back(request.room());
        request.end(finish, self.model.tokenizer());
    }

    /// Ends a request whose last token was chosen.
    pub(super) fn complete(&mut self, mut request: Box<Request>, finish: Finish) {
        request.stamps().completion = Some(self.clock.now());
        self.observe(&request);
        self.retire(request, finish);
    }

    /// A request has reached a time limit.
    pub(super) fn count_timeout(&mut self, request: &Request) {
        match request.poll {
            Some(KvPoll::Bootstrapping) => self.counts.timeouts.bootstrap += 1,
            _ => self.counts.timeouts.transfer += 1,
        }
    }

    /// Ends a request that did not come to its end.
    pub(super) fn fail(&mut self, request: Box<Request>, why: Abort) {
        if !request.spec.is_probe {
            self.counts.aborted += 1;
            match request.poll {
                Some(KvPoll::Bootstrapping) => self.counts.bootstrap_failed += 1,
                Some(KvPoll::WaitingForInput | KvPoll::Transferring) => self.counts.transfer_failed += 1,
                Some(KvPoll::Success) | None => {}
            }
        }
        self.retire(request, Finish::Abort(why));
    }
}
