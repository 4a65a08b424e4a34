//! Which workers there are.

use std::sync::Arc;

use parking_lot::RwLock;
use rand::Rng;

use crate::address::WorkerUrl;
use crate::books::Books;
use crate::worker::{Role, RoleKind, Worker, WorkerId};

/// The workers, as they come and go.
#[derive(Debug)]
pub struct Registry<T> {
    fleet: RwLock<Arc<Fleet<T>>>,
}

/// The workers at one moment, each role's in order of registration.
#[derive(Debug)]
pub struct Fleet<T> {
    regular: Vec<Arc<Worker<T>>>,
    prefill: Vec<Arc<Worker<T>>>,
    decode: Vec<Arc<Worker<T>>>,
}

// === impl Registry ===

impl<T> Registry<T> {
    /// With no workers, which is legal.
    pub fn new() -> Self {
        let fleet = Fleet { regular: Vec::new(), prefill: Vec::new(), decode: Vec::new() };
        Self { fleet: RwLock::new(Arc::new(fleet)) }
    }

    /// The workers now.
    pub fn fleet(&self) -> Arc<Fleet<T>> {
        Arc::clone(&self.fleet.read())
    }

    /// Registers a worker. One that was registered at the same URL is taken to be gone: it leaves the fleet,
    /// and what was begun at it ends on its own books.
    pub fn add(&self, url: WorkerUrl, role: Role, link: T, rng: &mut impl Rng) -> Arc<Worker<T>> {
        let mut fleet = self.fleet.write();
        let id = loop {
            let id = WorkerId::draw(rng);
            if fleet.get(id.as_str()).is_none() {
                break id;
            }
        };
        let worker = Arc::new(Worker { id, url, role, books: Books::default(), link });
        let mut next = fleet.without(|other| other.url == worker.url);
        next.of_mut(role.kind()).push(Arc::clone(&worker));
        *fleet = Arc::new(next);
        worker
    }

    /// Takes a worker out; what was begun at it goes on.
    pub fn remove(&self, id: &str) -> Option<Arc<Worker<T>>> {
        let mut fleet = self.fleet.write();
        let worker = fleet.get(id).map(Arc::clone)?;
        *fleet = Arc::new(fleet.without(|other| other.id == worker.id));
        Some(worker)
    }
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self::new()
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

    /// A worker by its registration's name.
    pub fn get(&self, id: &str) -> Option<&Arc<Worker<T>>> {
        self.all().find(|worker| worker.id.as_str() == id)
    }

    fn of_mut(&mut self, kind: RoleKind) -> &mut Vec<Arc<Worker<T>>> {
        match kind {
            RoleKind::Regular => &mut self.regular,
            RoleKind::Prefill => &mut self.prefill,
            RoleKind::Decode => &mut self.decode,
        }
    }

    fn without(&self, leaves: impl Fn(&Worker<T>) -> bool) -> Self {
        let keep =
            |workers: &[Arc<Worker<T>>]| workers.iter().filter(|worker| !leaves(worker)).cloned().collect();
        Self { regular: keep(&self.regular), prefill: keep(&self.prefill), decode: keep(&self.decode) }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn a_worker_registered_anew_is_another_instance() {
        let registry = Registry::new();
        let mut rng = StdRng::seed_from_u64(1);
        let mut add = |url: &str, role| registry.add(WorkerUrl::parse(url).unwrap(), role, (), &mut rng);
        let first = add("http://a:1", Role::Decode);
        let ticket = first.books.open();
        let other = add("http://b:1", Role::Decode);
        let again = add("http://a:1", Role::Prefill { bootstrap_port: Some(9) });
        assert_ne!(first.id, again.id);
        assert_eq!((first.load(), again.load()), (1, 0));
        drop(ticket);
        assert_eq!(first.load(), 0);

        let fleet = registry.fleet();
        let ids: Vec<_> = fleet.all().map(|worker| worker.id.clone()).collect();
        assert_eq!(ids, [again.id.clone(), other.id.clone()]);
        assert_eq!(fleet.of(RoleKind::Decode).len(), 1);
        assert!(registry.remove(first.id.as_str()).is_none());
        assert!(registry.remove(other.id.as_str()).is_some());
        assert!(registry.fleet().of(RoleKind::Decode).is_empty());
        assert!(fleet.get(other.id.as_str()).is_some(), "a snapshot does not change");
    }
}
