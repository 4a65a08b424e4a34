//! Who gets in: into the server at all, and from the waiting queue into the running batch.
//!
//! A request is let into the batch when there are pages for its prompt and for the first of its reply; if more are needed later
//! and there are none, the youngest request gives its pages back and is computed again (see `retract`). Order is that of arrival:
//! a large request at the head holds up the smaller ones behind it, and is never overtaken for ever.

use std::sync::Arc;

use super::core::{Core, Queue};
use super::outputs::Chosen;
use super::{Scheduler, Side, take_where};
use crate::disagg::FirstToken;
use crate::error::sentence;
use crate::options::DisaggregationMode;
use crate::output::{Abort, Finish, Publisher};
use crate::request::{GenerateSpec, Incoming, Outgoing, Pair, Request};

// === impl Scheduler ===

impl Scheduler {
    /// Takes a request in, or refuses it.
    pub(super) fn submit(&mut self, mut spec: GenerateSpec, output: Publisher) {
        if !spec.sampling.seeded {
            spec.sampling.params.seed = self.core.draw_seed();
        }
        let pair = match &self.side {
            Side::Alone => Pair::Alone,
            Side::Prefill(_) => Pair::Prefill(Outgoing::default()),
            Side::Decode(_) => Pair::Decode(Incoming::default()),
        };
        if let Some(room) = spec.room.take_if(|room| !self.core.rooms.take(room.number)) {
            // It ends without the room, which stays with the other.
            let why = format!("bootstrap_room is in use by another live request: {}", room.number);
            return self.core.fail(Box::new(Request::new(spec, output, pair)), Abort::refused(why));
        }
        if let Some(refusal) = self.refusal(&spec) {
            return self.give_up(Box::new(Request::new(spec, output, pair)), refusal);
        }
        let core = &mut self.core;
        core.counts.requests += u64::from(!spec.is_probe);
        let mut request = Box::new(Request::new(spec, output, pair));
        match &mut self.side {
            Side::Alone => {
                request.stamps().wait_queue_entry = Some(core.clock.now());
                request.queued = core.active_now();
                core.waiting.push_back(request);
                // Of requests that come at once, those that can run do not count as waiting.
                core.admit();
            }
            Side::Prefill(side) => side.submit(core, request),
            Side::Decode(side) => side.submit(core, request),
        }
    }

    fn refusal(&self, spec: &GenerateSpec) -> Option<Abort> {
        let core = &self.core;
        let ahead = match &self.side {
            Side::Alone => 0,
            Side::Prefill(side) => side.bootstrap.len(),
            Side::Decode(side) => side.prealloc.len() + side.transfer.len(),
        };
        // A check asks whether tokens come, which a full queue does not keep from.
        if !spec.is_probe && ahead + core.waiting.len() >= core.limits.max_queued {
            return Some(Abort::unavailable("The request queue is full."));
        }
        let needed = tokens_needed(core.limits.mode, spec);
        let held = core.kv.total_pages() * core.kv.page_tokens();
        (needed > held).then(|| {
            Abort::refused(format!(
                "The request needs {needed} tokens of KV cache (prompt and max_new_tokens), this server has {held}."
            ))
        })
    }
}

// === impl Core ===

impl Core {
    /// Lets waiting requests into the batch while there is room, unless all stands still.
    pub(super) fn admit(&mut self) {
        if self.active.is_paused() {
            return;
        }
        self.readmit();
        while self.running.len() < self.limits.max_running
            && let Some(mut request) = self.waiting.pop_front()
        {
            // Those that came earlier and have lost their pages go before.
            let must_wait =
                request.pages.is_empty() && (self.stillness.is_held() || !self.retracted.is_empty());
            if must_wait || !self.allocate(&mut request) {
                self.waiting.push_front(request);
                return;
            }
            match &mut request.pair {
                Pair::Decode(Incoming { first: first @ Some(_), .. }) => {
                    let first = first.take();
                    self.take_over(request, first);
                }
                _ => self.running.push_back(request),
            }
        }
    }

    /// Takes those that have waited for longer than they may. A check has a limit of its own.
    pub(super) fn take_overdue(&mut self) -> Queue {
        let Some(limit) = self.limits.request_waiting_timeout else { return Queue::new() };
        let now = self.active_now();
        take_where(&mut self.waiting, |request| !request.spec.is_probe && now.since(request.queued) > limit)
    }

    /// Gives a request the pages of its tokens and some of those to come, if it has none and they can be had. What the prefix
    /// cache has of them counts as computed.
    pub(super) fn allocate(&mut self, request: &mut Request) -> bool {
        if !request.pages.is_empty() {
            return true;
        }
        let to_come = tokens_needed(self.limits.mode, &request.spec).saturating_sub(request.tokens.len());
        let tokens = request.tokens.len() + to_come.min(self.limits.reserved_decode_tokens);
        let (mut pages, shared) = self.find_prefix(request);
        request.shared = shared;
        let Some(own) = self.take_pages(self.kv.pages_for(tokens) - pages.len()) else {
            let freed = self.cache.release(&mut request.shared);
            self.kv.free(&freed);
            return false;
        };
        let found = pages.len() * self.kv.page_tokens();
        pages.extend(own);
        (request.pages, request.computed) = (pages, found);
        // What is found again after a retraction was told, or was the request's own.
        if request.retractions == 0 && found > 0 {
            request.output().update(|progress| progress.cached_tokens = found);
        }
        true
    }

    /// Goes on from the first token, which the prefill server has chosen.
    fn take_over(&mut self, mut request: Box<Request>, first: Option<FirstToken>) {
        let now = self.clock.now();
        request.stamps().forward_entry = Some(now);
        request.stamps().prefill_finished = Some(now);
        request.weight_version = Some(Arc::clone(&self.weight_version));
        let finish = match first {
            Some(first) if request.spec.max_new_tokens > 0 => {
                let cached_tokens = first.cached_tokens as usize;
                request.output().update(|progress| progress.cached_tokens = cached_tokens);
                let chosen =
                    Chosen { token: first.token, logprob: first.logprob, top: first.top, kept: first.kept };
                self.accept(&mut request, chosen)
            }
            _ => Ok(Some(Finish::Length(0))),
        };
        match finish {
            Ok(Some(finish)) => self.complete(request, finish),
            Ok(None) => self.running.push_back(request),
            Err(error) => self.doomed.push((request, Abort::failure(sentence(&error)))),
        }
    }
}

/// Positions of the KV cache that a request can come to fill. The last token's is never needed.
fn tokens_needed(mode: DisaggregationMode, spec: &GenerateSpec) -> usize {
    let new_tokens = match mode {
        DisaggregationMode::Prefill => 0,
        DisaggregationMode::Null | DisaggregationMode::Decode => spec.max_new_tokens.saturating_sub(1),
    };
    spec.input_ids.len() + new_tokens
}
