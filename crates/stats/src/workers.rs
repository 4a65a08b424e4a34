//! What each worker did in a step: how much, how fast, and how long it stood idle.
//!
//! A worker is *busy* while at least one call to it is under way, as the gateway saw it. Its speed is its tokens over
//! the time that its own requests took it, each request by itself: generated tokens over the decode stage, prompt
//! tokens over the prefill stage; where those are not reported, over the call. A *straggler* is a worker whose speed
//! is at most two thirds of the median of the others in its role.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollscope_trace::{Leg, LegRole, Measure, MeasureSet, Nanos, Outcome, UnixNs, WorkerRef};

/// A worker with fewer requests is not judged by its speed.
const JUDGED_REQUESTS: u64 = 8;
/// At most so much of the others' median speed makes a straggler.
const STRAGGLER_SPEED: f64 = 2.0 / 3.0;

/// What one worker did in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerFigures {
    /// Which worker: by its URL, so that one that several gateways know, or that was started anew, is one. Of its instances
    /// the one that was met first.
    pub worker: WorkerRef,
    /// What was asked of it.
    pub role: LegRole,
    /// Calls to it.
    pub requests: u64,
    /// Those that it completed.
    pub completed: u64,
    /// Those for which it reported timings.
    pub timed: u64,
    /// Those for which it reported stages of a prefill/decode pair.
    pub staged: u64,
    /// Tokens: generated ones, or of prompts for a prefill worker; nothing where it reported none, as when all it was asked
    /// has failed.
    pub tokens: Option<f64>,
    /// Tokens of its longest request; nothing where it reported none.
    pub max_tokens: Option<f64>,
    /// Share of the step's time in which no call to it was under way, from 0 to 1.
    pub idle_share: f64,
    /// Tokens per second of a request; nothing where it reported no tokens.
    pub tokens_per_sec: Option<f64>,
    /// Tokens per second of a request at the median of the other workers in its role.
    pub others_tokens_per_sec: Option<f64>,
    /// Whether it is that much slower than the others.
    pub is_straggler: bool,
}

/// Adds up calls by worker.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    tallies: Vec<Tally>,
}

/// The time in which at least one call was under way, as stretches that do not touch, by their begin. Calls overlap, so
/// that there are far fewer stretches than calls, and most calls lie within the one before.
#[derive(Debug, Default)]
struct Busy {
    stretches: BTreeMap<UnixNs, UnixNs>,
    last: Option<(UnixNs, UnixNs)>,
}

#[derive(Debug)]
struct Tally {
    worker: WorkerRef,
    role: LegRole,
    requests: u64,
    completed: u64,
    timed: u64,
    staged: u64,
    /// All of them, and those of its longest request, as far as they were reported.
    tokens: Option<Tokens>,
    work_s: f64,
    busy: Busy,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tokens {
    sum: f64,
    max: f64,
}

// === impl Workers ===

impl Workers {
    pub(crate) fn add(&mut self, arrival: UnixNs, leg: &Leg) {
        let index = self.index(leg);
        let tally = &mut self.tallies[index];
        let measures = &leg.report.measures;
        tally.requests += 1;
        tally.completed += u64::from(leg.outcome == Outcome::Completed);
        tally.timed += u64::from(leg.report.has_timings());
        tally.staged += u64::from(!measures.plausible().and(MeasureSet::STAGES).is_empty());
        tally.busy.add(arrival.after(leg.dispatch), arrival.after(leg.end));
        let (tokens, stage) = match leg.role {
            LegRole::Prefill => {
                let transfer = measures.good(Measure::PrefillTransferQueue).unwrap_or(0.0);
                let forward = measures.good(Measure::PrefillForward).map(|all| (all - transfer).max(0.0));
                (measures.good(Measure::PromptTokens), forward)
            }
            LegRole::Decode => {
                (measures.good(Measure::CompletionTokens), measures.good(Measure::DecodeForward))
            }
            LegRole::Regular => (measures.good(Measure::CompletionTokens), None),
        };
        if let Some(tokens) = tokens {
            let so_far = tally.tokens.get_or_insert_default();
            so_far.sum += tokens;
            so_far.max = so_far.max.max(tokens);
            tally.work_s += stage.unwrap_or_else(|| leg.duration().as_secs_f64());
        }
    }

    /// Workers are few, and calls to one share its names: looking whether they do costs less than hashing them for every
    /// call. Only names that are shared with no call before are compared.
    fn index(&mut self, leg: &Leg) -> usize {
        let shared = self.tallies.iter().position(|tally| tally.shares_names(leg));
        let found = shared.or_else(|| self.tallies.iter().position(|tally| tally.is_of(leg)));
        found.unwrap_or_else(|| {
            self.tallies.push(Tally::new(leg));
            self.tallies.len() - 1
        })
    }

    /// The figures of each worker, by role and address, over the step's time.
    pub(crate) fn figures(self, window: Option<(UnixNs, UnixNs)>) -> Vec<WorkerFigures> {
        let whole = window.map_or(Nanos(0), |(first, last)| last.since(first));
        let mut figures: Vec<_> = self.tallies.into_iter().map(|tally| tally.figures(whole)).collect();
        figures.sort_by(|a, b| (a.role, &a.worker).cmp(&(b.role, &b.worker)));
        for index in 0..figures.len() {
            figures[index].others_tokens_per_sec = others(&figures, index);
        }
        for worker in &mut figures {
            let slow = worker.tokens_per_sec.zip(worker.others_tokens_per_sec);
            worker.is_straggler = worker.requests >= JUDGED_REQUESTS
                && slow.is_some_and(|(own, others)| own <= others * STRAGGLER_SPEED);
        }
        figures
    }
}

/// The median speed of the other workers in a worker's role.
fn others(figures: &[WorkerFigures], index: usize) -> Option<f64> {
    let peers = figures.iter().enumerate().filter(|(at, peer)| {
        *at != index && peer.role == figures[index].role && peer.requests >= JUDGED_REQUESTS
    });
    let mut speeds: Vec<f64> = peers.filter_map(|(_, peer)| peer.tokens_per_sec).collect();
    speeds.sort_unstable_by(f64::total_cmp);
    Some(f64::midpoint(*speeds.get(speeds.len().checked_sub(1)? / 2)?, speeds[speeds.len() / 2]))
}

// === impl WorkerFigures ===

impl WorkerFigures {
    /// Whether it completed calls and reported timings of none. What one that only failed would have told is not known.
    pub fn is_silent(&self) -> bool {
        self.completed > 0 && self.timed == 0
    }

    /// Whether it is of a pair, and told how long calls waited but not by stages.
    pub fn is_without_stages(&self) -> bool {
        self.role != LegRole::Regular && self.completed > 0 && self.timed > 0 && self.staged == 0
    }
}

// === impl Tally ===

impl Tally {
    fn shares_names(&self, leg: &Leg) -> bool {
        let (own, of) = (&self.worker, &leg.worker);
        self.role == leg.role && Arc::ptr_eq(&own.instance, &of.instance) && Arc::ptr_eq(&own.url, &of.url)
    }

    fn is_of(&self, leg: &Leg) -> bool {
        self.role == leg.role && self.worker.is(&leg.worker)
    }

    fn new(leg: &Leg) -> Self {
        Self {
            worker: leg.worker.clone(),
            role: leg.role,
            requests: 0,
            completed: 0,
            timed: 0,
            staged: 0,
            tokens: None,
            work_s: 0.0,
            busy: Busy::default(),
        }
    }

    fn figures(self, whole: Nanos) -> WorkerFigures {
        let busy_share = self.busy.time().0 as f64 / whole.0.max(1) as f64;
        let tokens = self.tokens.map(|tokens| tokens.sum);
        let worked = tokens.filter(|tokens| *tokens > 0.0 && self.work_s > 0.0);
        WorkerFigures {
            worker: self.worker,
            role: self.role,
            requests: self.requests,
            completed: self.completed,
            timed: self.timed,
            staged: self.staged,
            tokens,
            max_tokens: self.tokens.map(|tokens| tokens.max),
            idle_share: (1.0 - busy_share).clamp(0.0, 1.0),
            tokens_per_sec: worked.map(|tokens| tokens / self.work_s),
            others_tokens_per_sec: None,
            is_straggler: false,
        }
    }
}

// === impl Busy ===

impl Busy {
    /// Takes a call.
    fn add(&mut self, start: UnixNs, end: UnixNs) {
        if self.last.is_some_and(|(from, to)| from <= start && end <= to) {
            return;
        }
        let (mut from, mut to) = (start, end.max(start));
        // Every stretch that it touches, from the last that begins no later than it ends.
        while let Some((&first, &last)) = self.stretches.range(..=to).next_back() {
            if last < from {
                break;
            }
            (from, to) = (from.min(first), to.max(last));
            self.stretches.remove(&first);
        }
        self.stretches.insert(from, to);
        self.last = Some((from, to));
    }

    /// All of it.
    fn time(&self) -> Nanos {
        self.stretches.iter().fold(Nanos(0), |sum, (from, to)| sum.plus(to.since(*from)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn busy_is_when_any_call_is_under_way(calls in prop::collection::vec((0i64..200, 0i64..20), 0..60)) {
            let mut busy = Busy::default();
            for (start, length) in &calls {
                busy.add(UnixNs(*start), UnixNs(start + length));
            }
            let is_busy = |at: i64| calls.iter().any(|(start, length)| *start <= at && at < start + length);
            prop_assert_eq!(busy.time().0, (0..220).filter(|at| is_busy(*at)).count() as u64);
        }
    }
}
