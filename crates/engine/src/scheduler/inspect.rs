//! What the scheduler tells of itself, and its audit.

use std::collections::BTreeSet;
use std::time::Duration;

use super::core::{Core, Counts, Queue};
use super::observe::Observations;
use super::occupation::Stillness;
use super::{Scheduler, Side};
use crate::clock::Stamp;
use crate::request::{KvPoll, Pair, Request};
use crate::stamps::Stamps;

/// The scheduler at one moment, between two steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    /// Have given their pages back.
    pub(crate) retracted: usize,
    /// Why nothing is computed or begun, if so.
    pub(crate) stillness: Stillness,
    pub(crate) counts: Counts,
    /// Passes that the publisher of metrics has dropped; nothing where none are published.
    pub(crate) passes_dropped: Option<u64>,
    /// Subscribers of theirs that were turned away.
    pub(crate) subscribers_turned_away: Option<u64>,
    pub(crate) observations: Observations,
    /// Each queue with its requests, if that was asked for.
    pub(crate) listed: Vec<InflightQueue>,
    /// Prompt tokens of all requests that are not computed yet.
    pub(crate) queued_tokens: usize,
    /// Prefill: not announced by the decode side, or without a metadata slot.
    pub(crate) bootstrap: usize,
    /// Prefill: being transferred.
    pub(crate) inflight: usize,
    /// Decode: not connected, or without pages.
    pub(crate) prealloc: usize,
    /// Decode: tokens of those.
    pub(crate) prealloc_tokens: usize,
    /// Decode: being received.
    pub(crate) transfer: usize,
    /// Tokens on pages that are taken.
    pub(crate) used_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) kv_bytes: usize,
    /// Tokens generated a second, lately.
    pub(crate) gen_throughput: f64,
    /// The latest transfer's speed, 2^30 bytes per second, and its duration, seconds.
    pub(crate) last_transfer: Option<(f64, f64)>,
}

/// A queue and the requests in it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InflightQueue {
    /// SGLang's name for it.
    pub(crate) name: &'static str,
    pub(crate) requests: Vec<InflightRequest>,
}

/// One request, as an operator looks for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InflightRequest {
    pub(crate) rid: String,
    pub(crate) room: Option<u64>,
    pub(crate) tokens: usize,
    /// Seconds since it came into the queue; none for those that run.
    pub(crate) age_s: Option<f64>,
    /// In a queue of decode's transfers: nothing has come in.
    pub(crate) waits_for_input: Option<bool>,
}

/// Counts tokens over stretches of at least a second.
#[derive(Debug)]
pub(super) struct Throughput {
    since: Stamp,
    tokens: usize,
    latest: f64,
}

const STRETCH: Duration = Duration::from_secs(1);

// === impl Snapshot ===

impl Snapshot {
    /// The larger of the parts that are taken: of the KV cache, and of the requests that may run.
    pub(crate) fn utilization(&self, max_running: usize) -> f64 {
        self.share(self.used_tokens).max(self.running as f64 / max_running.max(1) as f64)
    }

    /// The part of the KV cache that so many tokens are.
    pub(crate) fn share(&self, tokens: usize) -> f64 {
        tokens as f64 / self.total_tokens.max(1) as f64
    }

    /// Requests that have not ended.
    pub(crate) fn live(&self) -> usize {
        self.running
            + self.waiting
            + self.retracted
            + self.bootstrap
            + self.inflight
            + self.prealloc
            + self.transfer
    }
}

// === impl Scheduler ===

impl Scheduler {
    pub(super) fn snapshot(&mut self) -> Snapshot {
        let core = &mut self.core;
        let now = core.clock.now();
        let used_pages = core.kv.total_pages() - core.kv.free_pages() - core.cache.idle_pages();
        let page_tokens = core.kv.page_tokens();
        let mut snapshot = Snapshot {
            running: core.running.len(),
            waiting: core.waiting.len(),
            retracted: core.retracted.len(),
            stillness: core.stillness,
            counts: core.counts,
            passes_dropped: core.passes.dropped(),
            subscribers_turned_away: core.passes.turned_away(),
            observations: core.observations.clone(),
            queued_tokens: core.waiting.iter().map(|request| queued_tokens(request)).sum(),
            used_tokens: used_pages * page_tokens,
            total_tokens: core.kv.total_pages() * page_tokens,
            kv_bytes: core.kv.total_pages() * core.kv.page_bytes(),
            gen_throughput: core.throughput.read(now),
            last_transfer: core.last_transfer,
            ..Snapshot::default()
        };
        match &self.side {
            Side::Alone => {}
            Side::Prefill(side) => {
                snapshot.bootstrap = side.bootstrap.len();
                snapshot.inflight = side.inflight.len() + core.prefilled.len();
                snapshot.queued_tokens +=
                    side.bootstrap.iter().map(|request| queued_tokens(request)).sum::<usize>();
            }
            Side::Decode(side) => {
                (snapshot.prealloc, snapshot.transfer) = (side.prealloc.len(), side.transfer.len());
                snapshot.prealloc_tokens = side.prealloc.iter().map(|request| queued_tokens(request)).sum();
                snapshot.queued_tokens += snapshot.prealloc_tokens;
            }
        }
        snapshot
    }

    /// Every queue with its requests.
    pub(super) fn inflight(&self) -> Vec<InflightQueue> {
        let core = &self.core;
        let waiting_since: Since = |stamps| stamps.wait_queue_entry;
        let mut queues = vec![core.list("running", [&core.running], None)];
        match &self.side {
            Side::Alone => {
                queues.push(core.list("waiting", [&core.retracted, &core.waiting], Some(waiting_since)));
            }
            Side::Prefill(side) => {
                queues.push(core.list("waiting", [&core.retracted, &core.waiting], Some(waiting_since)));
                queues.push(core.list(
                    "bootstrap",
                    [&side.bootstrap],
                    Some(|stamps| stamps.bootstrap_queue_entry),
                ));
                let inflight = [&core.prefilled, &side.inflight];
                queues.push(core.list(
                    "prefill_inflight",
                    inflight,
                    Some(|stamps| stamps.transfer_queue_entry),
                ));
            }
            Side::Decode(side) => {
                queues.push(core.list("waiting", [&core.waiting], Some(waiting_since)));
                let mut prealloc =
                    core.list("prealloc", [&side.prealloc], Some(|stamps| stamps.prealloc_queue_entry));
                let mut transfer =
                    core.list("transfer", [&side.transfer], Some(|stamps| stamps.transfer_queue_entry));
                for (listed, queue) in [(&mut prealloc, &side.prealloc), (&mut transfer, &side.transfer)] {
                    for (listed, request) in listed.requests.iter_mut().zip(queue) {
                        listed.waits_for_input = Some(request.poll == Some(KvPoll::WaitingForInput));
                    }
                }
                queues.extend([prealloc, transfer]);
                queues.push(core.list(
                    "retracted",
                    [&core.retracted],
                    Some(|stamps| stamps.prealloc_queue_entry),
                ));
            }
        }
        queues
    }

    /// Checks that everything is where it belongs: each page, metadata slot and room is with one live request or free.
    /// Returns the first thing that is not.
    pub(super) fn audit(&self) -> Option<String> {
        let core = &self.core;
        let mut pages = BTreeSet::new();
        let mut rooms = BTreeSet::new();
        let (mut held_pages, mut held_slots) = (0, 0);
        for request in self.requests() {
            let own = &request.pages[request.shared.pages..];
            held_pages += own.len();
            pages.extend(own.iter().copied());
            held_slots += usize::from(match &request.pair {
                Pair::Alone => false,
                Pair::Prefill(outgoing) => outgoing.slot.is_some(),
                Pair::Decode(incoming) => incoming.slot.is_some(),
            });
            rooms.extend(request.spec.room.as_ref().map(|room| room.number).filter(|number| *number != 0));
        }
        held_pages += core.cache.pages().count();
        pages.extend(core.cache.pages());
        if pages.len() != held_pages {
            return Some(format!("{held_pages} pages are held, {} of them different", pages.len()));
        }
        if held_pages + core.kv.free_pages() != core.kv.total_pages() {
            let (free, total) = (core.kv.free_pages(), core.kv.total_pages());
            return Some(format!("{held_pages} pages are held and {free} free, of {total}"));
        }
        if held_slots != core.slots.taken() {
            return Some(format!("{held_slots} metadata slots are held, {} taken", core.slots.taken()));
        }
        if !core.slots.free_rows_are_zero() {
            return Some("a free metadata row is not zero".to_owned());
        }
        (rooms != *core.rooms.own())
            .then(|| format!("rooms {rooms:?} are held, {:?} taken", core.rooms.own()))
    }

    /// Every live request.
    pub(super) fn requests(&self) -> impl Iterator<Item = &Request> {
        let core = &self.core;
        let queues = match &self.side {
            Side::Alone => [None, None],
            Side::Prefill(side) => [Some(&side.bootstrap), Some(&side.inflight)],
            Side::Decode(side) => [Some(&side.prealloc), Some(&side.transfer)],
        };
        let own = [&core.waiting, &core.running, &core.retracted, &core.prefilled];
        own.into_iter().chain(queues.into_iter().flatten()).flatten().map(|request| &**request)
    }
}

/// When a request came into a queue.
type Since = fn(&Stamps) -> Option<Stamp>;

impl Core {
    fn list<const N: usize>(
        &self,
        name: &'static str,
        queues: [&Queue; N],
        since: Option<Since>,
    ) -> InflightQueue {
        let now = self.clock.now();
        let requests = queues.into_iter().flatten().map(|request| InflightRequest {
            rid: request.spec.rid.clone(),
            room: request.spec.room.as_ref().map(|room| room.number),
            tokens: request.tokens.len(),
            age_s: since.and_then(|since| Some(now.since(since(&request.spec.stamps)?).as_secs_f64())),
            waits_for_input: None,
        });
        InflightQueue { name, requests: requests.collect() }
    }
}

fn queued_tokens(request: &Request) -> usize {
    request.prompt_len() - request.computed.min(request.prompt_len())
}

// === impl Throughput ===

impl Throughput {
    pub(super) fn new(now: Stamp) -> Self {
        Self { since: now, tokens: 0, latest: 0.0 }
    }

    pub(super) fn add(&mut self, tokens: usize, now: Stamp) {
        self.tokens += tokens;
        self.read(now);
    }

    fn read(&mut self, now: Stamp) -> f64 {
        let stretch = now.since(self.since);
        if stretch >= STRETCH {
            self.latest = self.tokens as f64 / stretch.as_secs_f64();
            (self.since, self.tokens) = (now, 0);
        }
        self.latest
    }
}
