//! Which workers a policy may choose from.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crate::ask::Ask;
use crate::decision::{Considered, NoChoice};
use crate::hash::{Draws, mix};
use crate::leg::Vitals;
use crate::load::{Load, LoadBasis};
use crate::moment::Moment;
use crate::standing::Availability;
use crate::worker::{RoleKind, Worker};

/// A worker that may be chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    /// Its place among the workers of the role.
    pub(crate) at: usize,
    /// Its instance.
    pub(crate) instance: u64,
    /// Hash of its address, the same in every gateway and after a restart.
    place: u64,
    vitals: &'a Vitals,
}

/// All that may be chosen: never none.
#[derive(Debug)]
pub(crate) struct Candidates<'a> {
    pub(crate) list: Vec<Candidate<'a>>,
    /// The instances that are registered and may not be chosen.
    pub(crate) away: Vec<u64>,
    pub(crate) considered: Considered,
    now: Moment,
    /// Older reports of load are ignored.
    max_load_age: Duration,
}

/// The candidates' loads, all from the same source.
#[derive(Debug)]
pub(crate) struct Loads {
    pub(crate) basis: LoadBasis,
    pub(crate) of: Vec<Load>,
}

// === impl Candidates ===

impl<'a> Candidates<'a> {
    /// Leaves out what may not be chosen, workers that back off as long as another is ready, and those that are being tried
    /// already as long as there is any other.
    pub(crate) fn gather<T>(
        workers: &'a [Arc<Worker<T>>],
        ask: &Ask<'_>,
        max_load_age: Duration,
    ) -> Result<Self, NoChoice> {
        let mut considered = Considered { workers: workers.len(), ..Considered::default() };
        let (mut list, mut away) = (Vec::with_capacity(workers.len()), Vec::new());
        let (mut full, mut on_trial) = (Vec::new(), Vec::new());
        for (at, worker) in workers.iter().enumerate() {
            let (instance, place) = (worker.id.number(), worker.place);
            let candidate = Candidate { at, instance, place, vitals: &worker.vitals };
            let count = match fitness(worker, ask) {
                Fitness::Fit(Availability::Ready) => {
                    list.push(candidate);
                    continue;
                }
                Fitness::Fit(Availability::BackingOff) => {
                    full.push(candidate);
                    continue;
                }
                Fitness::Fit(Availability::OnTrial) => {
                    on_trial.push(candidate);
                    continue;
                }
                Fitness::Fit(Availability::Open) => &mut considered.open,
                Fitness::Fit(Availability::Unhealthy) => &mut considered.unhealthy,
                Fitness::Fit(Availability::Draining) => &mut considered.draining,
                Fitness::Avoided => &mut considered.avoided,
                Fitness::OtherRank => &mut considered.other_rank,
                Fitness::UnknownRank => &mut considered.unknown_rank,
            };
            *count += 1;
            away.push(instance);
        }
        considered.backing_off = full.len();
        if list.is_empty() {
            list = full;
        } else {
            away.extend(full.iter().map(|candidate| candidate.instance));
        }
        if list.is_empty() {
            list = on_trial;
        } else {
            considered.open += on_trial.len();
            away.extend(on_trial.iter().map(|candidate| candidate.instance));
        }
        considered.candidates = list.len();
        if !list.is_empty() {
            return Ok(Self { list, away, considered, now: ask.now, max_load_age });
        }
        Err(match ask.rank {
            _ if workers.is_empty() => NoChoice::NoWorker,
            Some(rank) if considered.other_rank == workers.len() => NoChoice::NoSuchRank { rank },
            _ => NoChoice::Unavailable(considered),
        })
    }

    /// The loads of some.
    pub(crate) fn loads_of(&self, some: &[Candidate<'_>]) -> Loads {
        let reported =
            some.iter().map(|candidate| candidate.vitals.reported(self.now, self.max_load_age)).collect();
        let (basis, of) = match reported {
            Some(of) => (LoadBasis::Reported, of),
            None => {
                (LoadBasis::InFlight, some.iter().map(|candidate| candidate.vitals.in_flight()).collect())
            }
        };
        Loads { basis, of }
    }

    /// The load of one.
    pub(crate) fn load_of(&self, one: &Candidate<'_>) -> (LoadBasis, Load) {
        match one.vitals.reported(self.now, self.max_load_age) {
            Some(load) => (LoadBasis::Reported, load),
            None => (LoadBasis::InFlight, one.vitals.in_flight()),
        }
    }

    /// The loads of all.
    pub(crate) fn loads(&self) -> Loads {
        self.loads_of(&self.list)
    }

    /// The candidate to which a hash leads: the one that wins a draw that depends on nothing but the hash and the
    /// candidate (rendezvous hashing, Thaler and Ravishankar, 1998). So whoever comes takes keys only for itself, and
    /// whoever goes leaves only its own.
    pub(crate) fn rendezvous(&self, hash: u64) -> usize {
        let score = |candidate: &Candidate<'_>| candidate.score(hash);
        let best = self.list.iter().enumerate().max_by_key(|(_, candidate)| score(candidate));
        best.map_or(0, |(at, _)| at)
    }

    /// As [`Candidates::rendezvous`], but whoever has reached its share of the load is passed over; the second number
    /// tells how many were. The share is `load_factor` times the average with this request, rounded up, so that
    /// somebody is always below (bounded loads, Mirrokni, Thorup and Zadimoghaddam, 2016). A factor below 1 counts
    /// as 1.
    pub(crate) fn bounded_rendezvous(&self, hash: u64, loads: &Loads, load_factor: f64) -> (usize, usize) {
        let total: u64 = loads.of.iter().map(|load| load.requests).sum();
        let average = (total as f64 + 1.0) / self.list.len() as f64;
        let share = (average * load_factor.max(1.0)).ceil() as u64;
        let scored =
            || self.list.iter().zip(&loads.of).map(|(candidate, load)| (candidate.score(hash), load));
        let best = scored()
            .enumerate()
            .filter(|(_, (_, load))| load.requests < share)
            .max_by_key(|(_, (score, _))| *score);
        let Some((at, (score, _))) = best else { return (self.rendezvous(hash), 0) };
        (at, scored().filter(|(other, _)| *other > score).count())
    }
}

// === impl Candidate ===

impl Candidate<'_> {
    fn score(&self, hash: u64) -> u64 {
        mix(hash ^ self.place)
    }
}

// === impl Loads ===

impl Loads {
    /// The least loaded of those that are eligible; between equals one is drawn.
    pub(crate) fn least(&self, seed: u64, is_eligible: impl Fn(usize) -> bool) -> Option<usize> {
        let (mut draws, mut ties) = (Draws::new(seed), 0);
        let mut least: Option<(usize, Load)> = None;
        for (at, load) in self.of.iter().enumerate().filter(|(at, _)| is_eligible(*at)) {
            match least.map_or(Ordering::Less, |(_, least)| load.cmp(&least)) {
                Ordering::Less => (least, ties) = (Some((at, *load)), 1),
                Ordering::Equal => {
                    ties += 1;
                    if draws.below(ties) == 0 {
                        least = Some((at, *load));
                    }
                }
                Ordering::Greater => {}
            }
        }
        least.map(|(at, _)| at)
    }
}

/// Whether a worker may be chosen, and why not.
enum Fitness {
    Fit(Availability),
    Avoided,
    OtherRank,
    UnknownRank,
}

fn fitness<T>(worker: &Worker<T>, ask: &Ask<'_>) -> Fitness {
    // All ranks of a server are at one URL.
    let is_here = |name: &String| {
        let rank = name.strip_prefix(worker.url.as_str());
        rank.is_some_and(|rank| rank.is_empty() || rank.starts_with('@'))
    };
    if ask.avoided.iter().any(is_here) {
        return Fitness::Avoided;
    }
    let is_prefill = worker.role.kind() == RoleKind::Prefill;
    match (worker.rank, worker.dp_size(), ask.rank) {
        (Some(rank), _, Some(asked)) if rank != asked => return Fitness::OtherRank,
        (None, Some(_), Some(asked)) if worker.dp_rank(Some(asked)).is_none() => return Fitness::OtherRank,
        // A room leads to a rank only when the number of ranks is known.
        (Some(_), None, _) | (None, None, Some(_)) if is_prefill => return Fitness::UnknownRank,
        _ => {}
    }
    Fitness::Fit(worker.availability(ask.now))
}
