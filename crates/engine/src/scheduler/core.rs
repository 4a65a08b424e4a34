//! What every scheduler has, whatever its place in a pair: the model, the pages, the waiting and the running.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollscope_model::sampling::SamplingScratch;
use rollscope_model::{KvPool, Logits, Model};

use super::inspect::Throughput;
use super::passes::PassReporter;
use super::{Limits, Means};
use crate::clock::Clock;
use crate::disagg::MetadataBuffers;
use crate::options::DisaggregationMode;
use crate::output::{Abort, Finish};
use crate::request::{Pair, Request};

/// Requests in one state, in order of arrival there.
pub(super) type Queue = VecDeque<Box<Request>>;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) model: Arc<Model>,
    pub(super) kv: KvPool,
    pub(super) clock: Arc<Clock>,
    pub(super) limits: Limits,
    pub(super) slots: MetadataBuffers,
    /// Rooms of live requests.
    pub(super) rooms: BTreeSet<u64>,
    pub(super) waiting: Queue,
    pub(super) running: Queue,
    /// Prefill: computed in the latest step, about to be in flight.
    pub(super) prefilled: Queue,
    /// Failed in the latest step; their peers are to be told.
    pub(super) doomed: Vec<(Box<Request>, Abort)>,
    pub(super) throughput: Throughput,
    /// Speed, 2^30 bytes per second, and duration, seconds.
    pub(super) last_transfer: Option<(f64, f64)>,
    pub(super) logits: Logits,
    pub(super) scratch: SamplingScratch,
    /// Logits of which some tokens are ruled out.
    pub(super) masked: Vec<f32>,
    seeds: StdRng,
    pub(super) passes: PassReporter,
}

// === impl Core ===

impl Core {
    pub(super) fn new(means: Means, limits: Limits) -> Self {
        let now = means.clock.now();
        Self {
            model: means.model,
            kv: means.kv,
            clock: means.clock,
            slots: MetadataBuffers::new(match limits.mode {
                DisaggregationMode::Null => 0,
                DisaggregationMode::Prefill => limits.max_running,
                DisaggregationMode::Decode => limits.max_running * 2,
            }),
            limits,
            rooms: BTreeSet::new(),
            waiting: Queue::new(),
            running: Queue::new(),
            prefilled: Queue::new(),
            doomed: Vec::new(),
            throughput: Throughput::new(now),
            last_transfer: None,
            logits: Logits::new(),
            scratch: SamplingScratch::default(),
            masked: Vec::new(),
            seeds: StdRng::seed_from_u64(means.random_seed),
            passes: PassReporter::new(means.publisher),
        }
    }

    /// A seed for a request that brought none.
    pub(super) fn draw_seed(&mut self) -> u64 {
        self.seeds.next_u64()
    }

    /// Ends a request, all that it held being free before anyone learns of its end.
    pub(super) fn retire(&mut self, mut request: Box<Request>, finish: Finish) {
        self.kv.free(&std::mem::take(&mut request.pages));
        let slot = match &mut request.pair {
            Pair::Alone => None,
            Pair::Prefill(outgoing) => outgoing.slot.take(),
            Pair::Decode(incoming) => incoming.slot.take(),
        };
        if let Some(slot) = slot {
            self.slots.release(slot);
        }
        if let Some(room) = &request.spec.room {
            self.rooms.remove(&room.number);
        }
        request.end(finish, self.model.tokenizer());
    }

    /// Ends a request whose last token was chosen.
    pub(super) fn complete(&mut self, mut request: Box<Request>, finish: Finish) {
        request.stamps().completion = Some(self.clock.now());
        self.retire(request, finish);
    }

    /// Ends a request that did not come to its end.
    pub(super) fn fail(&mut self, request: Box<Request>, why: Abort) {
        self.retire(request, Finish::Abort(why));
    }
}
