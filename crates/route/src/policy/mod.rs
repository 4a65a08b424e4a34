//! Choosing a worker.

mod cache_aware;
mod consistent_hashing;
mod manual;
mod power_of_two;
mod prefix_hash;
mod random;
mod round_robin;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use crate::ask::Ask;
use crate::candidates::{Candidates, Loads};
use crate::decision::{Decision, Fallback, NoChoice, Why};
use crate::load::{Load, LoadBasis};
use crate::moment::Moment;
use crate::rank::DpRank;
use crate::worker::Worker;
use cache_aware::CacheAware;
use consistent_hashing::ConsistentHashing;
use manual::Manual;
use prefix_hash::PrefixHash;
use round_robin::RoundRobin;
pub use settings::{AssignmentMode, PolicySettings};

/// A way of choosing, with what it has to remember.
#[derive(Debug)]
pub struct Policy {
    kind: PolicyKind,
    max_load_age: Duration,
    rule: Rule,
}

/// A way of choosing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
    /// The one with less load of any two.
    PowerOfTwo,
    /// The one that has been sent most of the prompt, unless the loads are too far apart.
    CacheAware,
    /// The one to which the hash of the routing key or group leads.
    ConsistentHashing,
    /// The one to which the routing key or group was assigned.
    Manual,
    /// The one to which the hash of the prompt's beginning leads.
    PrefixHash,
}

/// What was chosen for a request, and why.
#[derive(Debug)]
pub struct Chosen<T> {
    /// The worker.
    pub worker: Arc<Worker<T>>,
    /// The data-parallel rank that the request is for, if it is for one: what rooms are drawn at.
    pub dp_rank: Option<DpRank>,
    /// Why.
    pub decision: Decision,
}

#[derive(Debug)]
enum Rule {
    RoundRobin(RoundRobin),
    Random,
    PowerOfTwo,
    CacheAware(CacheAware),
    ConsistentHashing(ConsistentHashing),
    Manual(Manual),
    PrefixHash(PrefixHash),
}

/// A rule's choice.
#[derive(Clone, Copy, Debug)]
struct Pick {
    /// Place among the candidates.
    at: usize,
    load: Load,
    basis: LoadBasis,
    why: Why,
}

// === impl Policy ===

impl Policy {
    /// A policy that has not chosen yet, with the defaults of SGLang's router.
    pub fn new(kind: PolicyKind) -> Self {
        Self::with(kind, &PolicySettings::default())
    }

    /// A policy that has not chosen yet.
    pub fn with(kind: PolicyKind, settings: &PolicySettings) -> Self {
        let rule = match kind {
            PolicyKind::RoundRobin => Rule::RoundRobin(RoundRobin::default()),
            PolicyKind::Random => Rule::Random,
            PolicyKind::PowerOfTwo => Rule::PowerOfTwo,
            PolicyKind::CacheAware => Rule::CacheAware(CacheAware::new(settings)),
            PolicyKind::ConsistentHashing => Rule::ConsistentHashing(ConsistentHashing::new(settings)),
            PolicyKind::Manual => Rule::Manual(Manual::new(settings)),
            PolicyKind::PrefixHash => Rule::PrefixHash(PrefixHash::new(settings)),
        };
        Self { kind, max_load_age: settings.max_load_age, rule }
    }

    /// Which it is.
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }

    /// Chooses one of a role's workers for a request.
    pub fn decide<T>(&self, workers: &[Arc<Worker<T>>], ask: &Ask<'_>) -> Result<Chosen<T>, NoChoice> {
        let candidates = Candidates::gather(workers, ask, self.max_load_age)?;
        let Pick { at, load, basis, why } = match &self.rule {
            Rule::RoundRobin(rule) => rule.pick(&candidates),
            Rule::Random => random::pick(&candidates, ask),
            Rule::PowerOfTwo => power_of_two::pick(&candidates, ask),
            Rule::CacheAware(rule) => rule.pick(&candidates, ask),
            Rule::ConsistentHashing(rule) => rule.pick(&candidates, ask),
            Rule::Manual(rule) => rule.pick(&candidates, ask),
            Rule::PrefixHash(rule) => rule.pick(&candidates, ask),
        };
        let at = candidates.list[at].at;
        let worker = Arc::clone(&workers[at]);
        let considered = candidates.considered;
        let decision = Decision { policy: self.kind, why, worker: at, load, basis, considered };
        Ok(Chosen { dp_rank: worker.dp_rank(ask.rank), worker, decision })
    }

    /// Does what is due from time to time and need not be done while a request waits: call it every few seconds.
    /// What a policy remembers is bounded without it, too.
    pub fn tend(&self, now: Moment) {
        match &self.rule {
            Rule::CacheAware(rule) => rule.tend(now),
            Rule::Manual(rule) => rule.tend(now),
            Rule::RoundRobin(_)
            | Rule::Random
            | Rule::PowerOfTwo
            | Rule::ConsistentHashing(_)
            | Rule::PrefixHash(_) => {}
        }
    }
}

// === impl PolicyKind ===

impl PolicyKind {
    /// As SGLang's router spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::PowerOfTwo => "power_of_two",
            Self::CacheAware => "cache_aware",
            Self::ConsistentHashing => "consistent_hashing",
            Self::Manual => "manual",
            Self::PrefixHash => "prefix_hash",
        }
    }

    /// Whether it goes by loads, so that workers are worth being asked for theirs.
    pub fn weighs_loads(self) -> bool {
        match self {
            Self::PowerOfTwo | Self::CacheAware | Self::PrefixHash => true,
            Self::RoundRobin | Self::Random | Self::ConsistentHashing | Self::Manual => false,
        }
    }

    /// Whether it goes by the prompt, so that it has to be found in the request.
    pub fn reads_prompt(self) -> bool {
        match self {
            Self::CacheAware | Self::PrefixHash => true,
            Self::RoundRobin | Self::Random | Self::PowerOfTwo | Self::ConsistentHashing | Self::Manual => {
                false
            }
        }
    }
}

// === impl Pick ===

impl Pick {
    /// A choice for which no load was needed.
    fn unweighed(candidates: &Candidates<'_>, at: usize, why: Why) -> Self {
        let (basis, load) = candidates.load_of(&candidates.list[at]);
        Self { at, load, basis, why }
    }

    fn weighed(loads: &Loads, at: usize, why: Why) -> Self {
        Self { at, load: loads.of[at], basis: loads.basis, why }
    }

    /// What is left when a policy's own rule does not apply.
    fn least_loaded(loads: &Loads, seed: u64, because: Fallback) -> Self {
        let at = loads.least(seed, |_| true).unwrap_or(0);
        Self::weighed(loads, at, Why::LeastLoaded(because))
    }
}

#[cfg(test)]
mod tests;
