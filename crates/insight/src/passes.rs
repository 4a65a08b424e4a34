//! Which forward passes a request sat in, and with whom.
//!
//! A worker that numbers its passes in the reply gives an exact answer: the passes of its rank from the first number to the
//! last. Of any other the passes are those that may have run while the call was under way, by the recorder's clock: an
//! estimate, since a pass is placed by when it was heard of, and says nothing of requests. It never misses a pass for that
//! reason, and may hold some that the request was not in.

use std::collections::BTreeMap;

use rollscope_trace::{ForwardPass, Leg, LegRole, Measure, Nanos, Profile, RequestId, StepTrace, UnixNs};

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
    /// Messages of the rank that lie between them, or are its first or last pass, and were not heard of.
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
}

/// A request that sat in the same passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Which request.
    pub request: RequestId,
    /// Passes heard of that both sat in.
    pub passes: u64,
}

/// Numbers of passes on one rank of a worker, as a reply tells them.
#[derive(Clone, Copy)]
struct Told {
    dp_rank: u32,
    first: u64,
    last: u64,
}

/// How long after a call's end its last pass may still be heard of, beyond the pass's own uncertainty: threads are
/// scheduled and messages travel. A worker's numbers begin anew with the worker, so time tells its lives apart.
const HEARD_WITHIN: Nanos = Nanos(2_000_000_000);

/// The passes of each call of a request, among those given: the passes of its step and of the one before. A call of which
/// nothing was heard is left out.
pub fn request_passes<'a>(
    step: &'a StepTrace,
    request: &'a Profile,
    passes: &'a [ForwardPass],
) -> Vec<LegPasses<'a>> {
    let of_legs = request.legs.iter().map(|leg| leg_passes(step, request, leg, passes));
    of_legs.filter(|found| !found.passes.is_empty()).collect()
}

fn leg_passes<'a>(
    step: &'a StepTrace,
    request: &'a Profile,
    leg: &'a Leg,
    passes: &'a [ForwardPass],
) -> LegPasses<'a> {
    let (start, end) = span(request, leg);
    let told = told(leg);
    let until = end.after(HEARD_WITHIN);
    let is_mine = |pass: &&ForwardPass| {
        let of_worker =
            !pass.is_rest() && pass.worker.as_ref().is_some_and(|worker| worker.url == leg.worker.url);
        of_worker
            && match told {
                Some(told) => told.holds(pass) && (start..=until).contains(&pass.received),
                None => pass.received >= start && pass.earliest_start() <= end,
            }
    };
    let mut mine: Vec<&ForwardPass> = passes.iter().filter(is_mine).collect();
    let identity = |pass: &&'a ForwardPass| (pass.dp_rank, &*pass.worker_id, pass.life, pass.counter_id);
    mine.sort_by_key(identity);
    // One that was heard of twice, as by two recorders, is one pass.
    mine.dedup_by_key(|pass| identity(pass));
    LegPasses {
        role: leg.role,
        worker: &leg.worker.url,
        basis: if told.is_some() { Basis::Exact } else { Basis::Estimate },
        lost: told.map_or(0, |told| told.lost(&mine)),
        shared: if told.is_some() { shared(step, request, leg, &mine) } else { Vec::new() },
        passes: mine,
    }
}

/// The other requests that sat in these passes too, the closest company first.
fn shared(step: &StepTrace, request: &Profile, leg: &Leg, mine: &[&ForwardPass]) -> Vec<Shared> {
    let (start, end) = span(request, leg);
    let mut shared: BTreeMap<RequestId, u64> = BTreeMap::new();
    for other in step.requests().filter(|other| other.id != request.id) {
        for other_leg in other.legs.iter().filter(|other| other.worker == leg.worker) {
            let (other_start, other_end) = span(other, other_leg);
            let Some(theirs) = told(other_leg).filter(|_| other_start <= end && start <= other_end) else {
                continue;
            };
            let both = mine.iter().filter(|pass| theirs.holds(pass)).count();
            *shared.entry(other.id).or_default() += both as u64;
        }
    }
    let mut shared: Vec<_> = shared
        .into_iter()
        .filter(|(_, passes)| *passes > 0)
        .map(|(request, passes)| Shared { request, passes })
        .collect();
    shared.sort_by_key(|shared| std::cmp::Reverse(shared.passes));
    shared
}

fn span(request: &Profile, leg: &Leg) -> (UnixNs, UnixNs) {
    (request.arrival.after(leg.dispatch), request.arrival.after(leg.end))
}

fn told(leg: &Leg) -> Option<Told> {
    let of = |measure| leg.report.measures.good(measure).map(|value| value as u64);
    let (first, last) = (of(Measure::ForwardPassFirst)?, of(Measure::ForwardPassLast)?);
    let dp_rank = of(Measure::DpRank).unwrap_or(0) as u32;
    (first <= last).then_some(Told { dp_rank, first, last })
}

// === impl Told ===

impl Told {
    fn holds(self, pass: &ForwardPass) -> bool {
        pass.dp_rank == self.dp_rank && (self.first..=self.last).contains(&pass.counter_id)
    }

    /// Messages among the passes that were lost. Numbers that are no pass are not: heartbeats are numbered too, and come
    /// while live requests are paused. The first and the last number are passes for certain.
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

// === impl LegPasses ===

impl LegPasses<'_> {
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
