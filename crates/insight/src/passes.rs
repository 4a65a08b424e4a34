//! Which forward passes a request sat in, and with whom.
//!
//! A worker that numbers its passes in the reply gives an exact answer: the passes of its rank from the first number to the
//! last. Of any other the passes are those that may have run while the call was under way, by the recorder's clock: an
//! estimate, since a pass is placed by when it was heard of, and says nothing of requests. It never misses a pass for that
//! reason, and may hold some that the request was not in. Where a worker's endpoint is not known, those of all publishers that
//! nobody names may be its.

use std::ops::RangeInclusive;

use rollscope_trace::{ForwardPass, Leg, LegRole, Measure, Nanos, Profile, UnixNs, WorkerRef};

pub use self::company::{Company, Shared};
use crate::workers::Workers;

mod company;

/// The forward passes of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct LegPasses<'a> {
    /// What was asked of the worker.
    pub role: LegRole,
    /// Its base URL.
    pub worker: &'a str,
    /// How they were found.
    pub basis: Basis,
    /// The passes, in their order.
    pub passes: Vec<&'a ForwardPass>,
    /// Numbers that the worker told; nothing in an estimate.
    pub told: u64,
    /// At least so many of the told numbers without a pass are passes that were not heard of; the others may be heartbeats.
    pub lost: u64,
    /// Other requests that sat in some of them, by how many of those heard of they share; where that is exact.
    pub shared: Vec<Shared>,
}

/// How passes were assigned to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The worker told their numbers.
    Exact,
    /// They may have run while the call was under way.
    Estimate,
    /// They may have, and whose they are is not known: it may be another worker's.
    Unnamed,
}

/// Where a call went: a server, which is what passes name, and the rank of it, as far as is known.
#[derive(Clone, Copy)]
struct Place<'a> {
    worker: &'a WorkerRef,
    server: &'a str,
    rank: Option<u32>,
}

/// Numbers of passes on one rank of a worker, as a reply tells them.
#[derive(Clone, Copy, Debug)]
struct Told {
    dp_rank: u32,
    first: u64,
    last: u64,
}

/// How long after a call's end its last pass may still be heard of, beyond the pass's own uncertainty: threads are
/// scheduled and messages travel. A worker's numbers begin anew with the worker, so time tells its lives apart.
pub(crate) const HEARD_WITHIN: Nanos = Nanos(2_000_000_000);

/// From when to when calls of these requests were under way; nothing without a call.
pub fn time_of_calls<'a>(requests: impl IntoIterator<Item = &'a Profile>) -> Option<RangeInclusive<UnixNs>> {
    let spans = requests.into_iter().flat_map(|request| request.legs.iter().map(|leg| span(request, leg)));
    let (start, end) = spans.reduce(|(start, end), (from, until)| (start.min(from), end.max(until)))?;
    Some(start..=end)
}

/// From when to when passes that these requests sat in may have run; nothing without a call.
pub fn time_of_passes<'a>(requests: impl IntoIterator<Item = &'a Profile>) -> Option<RangeInclusive<UnixNs>> {
    let calls = time_of_calls(requests)?;
    Some(*calls.start()..=calls.end().after(HEARD_WITHIN))
}

/// For each request, as of a sample's, the passes of each of its calls, among those given: all that may have run in its time,
/// whatever step they stand with. A call of which nothing was heard is left out.
pub fn request_passes<'a>(
    requests: &'a [Profile],
    passes: &'a [ForwardPass],
    company: &Company,
) -> Vec<Vec<LegPasses<'a>>> {
    let workers = Workers::of(passes);
    let of_request = |request: &'a Profile| {
        let of_legs = request.legs.iter().map(|leg| leg_passes(request, leg, (passes, &workers), company));
        of_legs.filter(|found| !found.passes.is_empty()).collect()
    };
    requests.iter().map(of_request).collect()
}

fn leg_passes<'a>(
    request: &'a Profile,
    leg: &'a Leg,
    (passes, workers): (&'a [ForwardPass], &Workers<'a>),
    company: &Company,
) -> LegPasses<'a> {
    let (start, end) = span(request, leg);
    let (place, told) = (Place::of(leg), told(leg));
    let until = end.after(HEARD_WITHIN);
    let is_in_time = |pass: &&ForwardPass| {
        !pass.is_rest()
            && pass.received >= start
            && match told {
                Some(told) => told.holds(pass) && earliest_end(pass) <= until,
                None => pass.earliest_start() <= end,
            }
    };
    let in_time = || passes.iter().filter(is_in_time);
    let identity = |pass: &&'a ForwardPass| (pass.dp_rank, &*pass.worker_id, pass.life, pass.counter_id);
    let mut found = LegPasses {
        role: leg.role,
        worker: &leg.worker.url,
        basis: if told.is_some() { Basis::Exact } else { Basis::Estimate },
        passes: in_time().filter(|pass| place.holds(pass, workers.at(pass))).collect(),
        told: 0,
        lost: 0,
        shared: Vec::new(),
    };
    found.passes.sort_by_key(identity);
    // One that was heard of twice, as by two recorders, is one pass.
    found.passes.dedup_by_key(|pass| identity(pass));
    if found.passes.is_empty() {
        found.basis = Basis::Unnamed;
        found.passes = in_time().filter(|pass| place.may_hold(pass, workers.at(pass))).collect();
        found.passes.sort_by_key(|pass| (&*pass.endpoint, identity(pass)));
        found.passes.dedup_by_key(|pass| (&*pass.endpoint, identity(pass)));
    } else if let Some(told) = told {
        found.told = told.count();
        found.lost = told.lost(&found.passes);
        found.shared = company.in_passes(request, leg, &found.passes);
    }
    found
}

fn span(request: &Profile, leg: &Leg) -> (UnixNs, UnixNs) {
    (request.arrival.after(leg.dispatch), request.arrival.after(leg.end))
}

/// The earliest that a pass can have ended.
fn earliest_end(pass: &ForwardPass) -> UnixNs {
    pass.earliest_start().after(pass.wall)
}

fn told(leg: &Leg) -> Option<Told> {
    let of = |measure| leg.report.measures.good(measure).map(|value| value as u64);
    let (first, last) = (of(Measure::ForwardPassFirst)?, of(Measure::ForwardPassLast)?);
    let dp_rank = Place::of(leg).rank.unwrap_or(0);
    (first <= last).then_some(Told { dp_rank, first, last })
}

// === impl Place ===

impl<'a> Place<'a> {
    fn of(leg: &'a Leg) -> Self {
        let told = leg.report.measures.good(Measure::DpRank).map(|rank| rank as u32);
        let (server, rank) = WorkerRef::server_and_rank(&leg.worker.url);
        Self { worker: &leg.worker, server, rank: told.or(rank) }
    }

    /// Whether a pass is of the place. `worker` is whose it is; where that is not known, its publisher may call itself by the
    /// worker's name, as routing by loads has it too.
    fn holds(self, pass: &ForwardPass, worker: Option<&WorkerRef>) -> bool {
        let is_of_server = if let Some(worker) = worker {
            *worker.url == *self.server
        } else {
            let names = [self.server, &*self.worker.url, &*self.worker.instance];
            !pass.worker_id.is_empty() && names.contains(&&*pass.worker_id)
        };
        is_of_server && self.rank.is_none_or(|rank| rank == pass.dp_rank)
    }

    /// Whether it may be, as nothing tells whose it is.
    fn may_hold(self, pass: &ForwardPass, worker: Option<&WorkerRef>) -> bool {
        worker.is_none() && self.rank.is_none_or(|rank| rank == pass.dp_rank)
    }
}

// === impl Told ===

impl Told {
    fn holds(self, pass: &ForwardPass) -> bool {
        pass.dp_rank == self.dp_rank && (self.first..=self.last).contains(&pass.counter_id)
    }

    fn count(self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }

    /// Messages among the passes that were lost, at least. Numbers that are no pass are not: heartbeats are numbered too, and
    /// come while live requests are paused. The first and the last number are passes for certain; how many of those after the
    /// last pass that was heard of are, nothing tells.
    fn lost(self, found: &[&ForwardPass]) -> u64 {
        let mut next = self.first;
        let mut lost = 0_u64;
        for pass in found {
            let missing = pass.counter_id.saturating_sub(next);
            let is_first_lost = next == self.first && missing > 0;
            lost += pass.lost_before.min(missing).max(u64::from(is_first_lost));
            next = pass.counter_id.saturating_add(1);
        }
        lost.saturating_add(u64::from(next <= self.last))
    }
}

// === impl Basis ===

impl Basis {
    /// As written in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Estimate => "estimate",
            Self::Unnamed => "unnamed",
        }
    }
}

// === impl LegPasses ===

impl LegPasses<'_> {
    /// Told numbers under which no pass was found.
    pub fn not_found(&self) -> u64 {
        self.told.saturating_sub(self.passes.len() as u64)
    }

    /// Time of the passes themselves. What the call took beyond it, it waited between them.
    pub fn busy(&self) -> Nanos {
        self.passes.iter().fold(Nanos(0), |sum, pass| sum.plus(pass.wall))
    }

    /// The pass that took longest.
    pub fn slowest(&self) -> Option<&ForwardPass> {
        self.passes.iter().copied().max_by_key(|pass| pass.wall)
    }

    /// Passes that computed both prompts and next tokens, and their time: where prompts held up who was decoding.
    pub fn mixed(&self) -> (usize, Nanos) {
        let mixed = self
            .passes
            .iter()
            .filter(|pass| pass.scheduled.prefill_requests > 0 && pass.scheduled.decode_requests > 0);
        mixed.fold((0, Nanos(0)), |(count, sum), pass| (count + 1, sum.plus(pass.wall)))
    }

    /// Requests in a pass, on average.
    pub fn mean_batch(&self) -> f64 {
        let requests: u64 = self
            .passes
            .iter()
            .map(|pass| pass.scheduled.prefill_requests.saturating_add(pass.scheduled.decode_requests))
            .fold(0, u64::saturating_add);
        requests as f64 / self.passes.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests;
