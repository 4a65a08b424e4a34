//! Which workers there are.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;
use rand::Rng;

use crate::address::WorkerAddress;
use crate::breaker::BreakerConfig;
use crate::error::RankError;
use crate::health::HealthConfig;
use crate::leg::Vitals;
use crate::rank::DpRank;
use crate::worker::{Introduction, Role, RoleKind, Worker, WorkerId};

/// The workers, as they come and go.
///
/// A worker that leaves, by whatever way, drains: nothing begins at it any more, and what was begun goes on.
#[derive(Debug)]
pub struct Registry<T> {
    breaker: BreakerConfig,
    health: HealthConfig,
    state: RwLock<State<T>>,
}

/// The workers at one moment, each role's in order of registration.
#[derive(Debug)]
pub struct Fleet<T> {
    regular: Vec<Arc<Worker<T>>>,
    prefill: Vec<Arc<Worker<T>>>,
    decode: Vec<Arc<Worker<T>>>,
}

/// What came of a worker's introduction.
#[derive(Debug)]
pub enum Introduced<T> {
    /// It is the one that is known.
    Same,
    /// Another process answers at its address: a new instance stands in its place, and the old one drains.
    Restarted(Arc<Worker<T>>),
    /// It is not registered any more.
    Gone,
}

#[derive(Debug)]
struct State<T> {
    fleet: Arc<Fleet<T>>,
    /// Have left. They are not kept alive from here, so that their connections go with their last leg.
    draining: Vec<Weak<Worker<T>>>,
}

// === impl Registry ===

impl<T> Registry<T> {
    /// With no workers, which is legal, and with the defaults of SGLang's router for breakers and checks.
    pub fn new() -> Self {
        Self::with(BreakerConfig::default(), HealthConfig::default())
    }

    /// With no workers, and for all that will come these breakers and checks.
    pub fn with(breaker: BreakerConfig, health: HealthConfig) -> Self {
        let fleet = Fleet { regular: Vec::new(), prefill: Vec::new(), decode: Vec::new() };
        let state = State { fleet: Arc::new(fleet), draining: Vec::new() };
        Self { breaker, health, state: RwLock::new(state) }
    }

    /// The workers now.
    pub fn fleet(&self) -> Arc<Fleet<T>> {
        Arc::clone(&self.state.read().fleet)
    }

    /// Registers a worker: a URL, or one rank at it. One that was registered at the same address is taken to be gone:
    /// it leaves, and what was begun at it ends on its own books. A URL and each of its ranks are the same address.
    pub fn add(
        &self,
        address: impl Into<WorkerAddress>,
        role: Role,
        link: T,
        rng: &mut impl Rng,
    ) -> Arc<Worker<T>> {
        self.replace(address, role, link, rng).0
    }

    /// The same, and tells which workers have left for it.
    pub fn replace(
        &self,
        address: impl Into<WorkerAddress>,
        role: Role,
        link: T,
        rng: &mut impl Rng,
    ) -> (Arc<Worker<T>>, Vec<Arc<Worker<T>>>) {
        let address = address.into();
        let mut state = self.state.write();
        let is_leaving = |other: &Worker<T>| other.address().overlaps(&address);
        let replaced = state.fleet.all().filter(|other| is_leaving(other)).cloned().collect();
        let next = state.leave(is_leaving);
        let worker = self.make(&state.fleet, address, role, link, rng);
        state.fleet = Arc::new(next.with(Arc::clone(&worker)));
        (worker, replaced)
    }

    /// Takes a worker out; what was begun at it goes on.
    pub fn remove(&self, id: &str) -> Option<Arc<Worker<T>>> {
        let mut state = self.state.write();
        let worker = state.fleet.get(id).map(Arc::clone)?;
        state.fleet = Arc::new(state.leave(|other| other.id == worker.id));
        Some(worker)
    }

    /// Takes what a worker says of itself, first and whenever it is asked again. A worker that turns out not to have
    /// the rank that it was registered for leaves, and the error tells why.
    pub fn introduce(
        &self,
        id: &str,
        introduction: &Introduction,
        link: impl FnOnce() -> T,
        rng: &mut impl Rng,
    ) -> Result<Introduced<T>, RankError> {
        let mut state = self.state.write();
        let Some(worker) = state.fleet.get(id).map(Arc::clone) else { return Ok(Introduced::Gone) };
        if let (Some(rank), Some(dp_size)) = (worker.rank, introduction.dp_size)
            && let Err(error) = DpRank::new(rank, dp_size)
        {
            state.fleet = Arc::new(state.leave(|other| other.id == worker.id));
            return Err(error);
        }
        if worker.learn(introduction) {
            return Ok(Introduced::Same);
        }
        let again = self.make(&state.fleet, worker.address(), worker.role, link(), rng);
        again.learn(introduction);
        state.fleet = Arc::new(
            state.fleet.map(|other| Some(Arc::clone(if other.id == worker.id { &again } else { other }))),
        );
        state.drain(&worker);
        Ok(Introduced::Restarted(again))
    }

    /// Workers that have left and at which something has not ended yet, as long as whoever runs it holds them.
    pub fn draining(&self) -> Vec<Arc<Worker<T>>> {
        let state = self.state.read();
        state.draining.iter().filter_map(Weak::upgrade).filter(|worker| worker.load() > 0).collect()
    }

    fn make(
        &self,
        fleet: &Fleet<T>,
        address: WorkerAddress,
        role: Role,
        link: T,
        rng: &mut impl Rng,
    ) -> Arc<Worker<T>> {
        let id = loop {
            let id = WorkerId::draw(rng);
            if fleet.get(id.as_str()).is_none() {
                break id;
            }
        };
        Arc::new(Worker::new(id, address, role, link, Vitals::new(self.breaker, self.health)))
    }
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self::new()
    }
}

// === impl State ===

impl<T> State<T> {
    /// Has workers leave; gives the fleet without them.
    fn leave(&mut self, is_leaving: impl Fn(&Worker<T>) -> bool) -> Fleet<T> {
        let next = self.fleet.map(|worker| (!is_leaving(worker)).then(|| Arc::clone(worker)));
        let gone: Vec<_> = self.fleet.all().filter(|worker| is_leaving(worker)).cloned().collect();
        for worker in gone {
            self.drain(&worker);
        }
        next
    }

    fn drain(&mut self, worker: &Arc<Worker<T>>) {
        worker.vitals.standing.drain();
        self.draining.retain(|worker| worker.strong_count() > 0);
        self.draining.push(Arc::downgrade(worker));
    }
}

// === impl Fleet ===

impl<T> Fleet<T> {
    /// The workers of a role.
    pub fn of(&self, kind: RoleKind) -> &[Arc<Worker<T>>] {
        match kind {
            RoleKind::Regular => &self.regular,
            RoleKind::Prefill => &self.prefill,
            RoleKind::Decode => &self.decode,
        }
    }

    /// All workers: regular, prefill, decode.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Worker<T>>> {
        self.regular.iter().chain(&self.prefill).chain(&self.decode)
    }

    /// One worker of each server, whatever the number of its ranks: for what is asked of a server, such as its
    /// figures.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<Worker<T>>> {
        let mut seen = BTreeSet::new();
        self.all().filter(move |worker| seen.insert(&worker.url))
    }

    /// A worker by its instance's name.
    pub fn get(&self, id: &str) -> Option<&Arc<Worker<T>>> {
        self.all().find(|worker| worker.id.as_str() == id)
    }

    fn with(mut self, worker: Arc<Worker<T>>) -> Self {
        match worker.role.kind() {
            RoleKind::Regular => self.regular.push(worker),
            RoleKind::Prefill => self.prefill.push(worker),
            RoleKind::Decode => self.decode.push(worker),
        }
        self
    }

    fn map(&self, map: impl Fn(&Arc<Worker<T>>) -> Option<Arc<Worker<T>>>) -> Self {
        let each = |workers: &[Arc<Worker<T>>]| workers.iter().filter_map(&map).collect();
        Self { regular: each(&self.regular), prefill: each(&self.prefill), decode: each(&self.decode) }
    }
}

#[cfg(test)]
mod tests;
