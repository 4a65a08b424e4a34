//! Choosing a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::{Rng, RngExt as _};

use crate::worker::Worker;

/// A way of choosing, with what it has to remember.
#[derive(Debug)]
pub struct Policy {
    kind: PolicyKind,
    turn: AtomicUsize,
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
}

/// What was chosen, and why.
#[derive(Debug)]
pub struct Choice<T> {
    /// The worker.
    pub worker: Arc<Worker<T>>,
    /// What the policy went by, for people.
    pub why: String,
}

// === impl Policy ===

impl Policy {
    /// A policy that has not chosen yet.
    pub fn new(kind: PolicyKind) -> Self {
        Self { kind, turn: AtomicUsize::new(0) }
    }

    /// Chooses; nothing when there is nothing to choose from.
    pub fn choose<T>(&self, workers: &[Arc<Worker<T>>], rng: &mut impl Rng) -> Option<Choice<T>> {
        let name = self.kind.name();
        let count = workers.len();
        if count == 0 {
            return None;
        }
        let (at, why) = match self.kind {
            _ if count == 1 => (0, format!("{name}: only one")),
            PolicyKind::RoundRobin => {
                let at = self.turn.fetch_add(1, Ordering::Relaxed) % count;
                (at, format!("{name}: {} of {count}", at + 1))
            }
            PolicyKind::Random => {
                let at = rng.random_range(0..count);
                (at, format!("{name}: {} of {count}", at + 1))
            }
            PolicyKind::PowerOfTwo => {
                let first = rng.random_range(0..count);
                let second = (first + rng.random_range(1..count)) % count;
                let (load, other) = (workers[first].load(), workers[second].load());
                let (at, load, other) =
                    if load <= other { (first, load, other) } else { (second, other, load) };
                (at, format!("{name}: {load} in flight against {other}"))
            }
        };
        Some(Choice { worker: Arc::clone(&workers[at]), why })
    }
}

// === impl PolicyKind ===

impl PolicyKind {
    /// As SGLang's router spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::PowerOfTwo => "power_of_two",
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;
    use crate::books::Ticket;
    use crate::{Registry, Role, RoleKind, WorkerUrl};

    fn fleet(count: usize) -> Vec<Arc<Worker<()>>> {
        let registry = Registry::new();
        let mut rng = StdRng::seed_from_u64(7);
        for port in 1..=count {
            let url = WorkerUrl::parse(&format!("http://a:{port}")).unwrap();
            registry.add(url, Role::Regular, (), &mut rng);
        }
        registry.fleet().of(RoleKind::Regular).to_vec()
    }

    fn chosen(kind: PolicyKind, workers: &[Arc<Worker<()>>], times: usize) -> Vec<usize> {
        let (policy, mut rng) = (Policy::new(kind), StdRng::seed_from_u64(3));
        let mut counts = vec![0; workers.len()];
        for _ in 0..times {
            let choice = policy.choose(workers, &mut rng).unwrap();
            counts[workers.iter().position(|worker| worker.id == choice.worker.id).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn every_policy_spreads_and_copes_with_few() {
        for kind in [PolicyKind::RoundRobin, PolicyKind::Random, PolicyKind::PowerOfTwo] {
            let none: [Arc<Worker<()>>; 0] = [];
            assert!(Policy::new(kind).choose(&none, &mut StdRng::seed_from_u64(3)).is_none());
            assert_eq!(chosen(kind, &fleet(1), 3), [3]);
            let counts = chosen(kind, &fleet(3), 3000);
            assert!(counts.iter().all(|count| (850..1150).contains(count)), "{kind:?}: {counts:?}");
        }
        assert_eq!(chosen(PolicyKind::RoundRobin, &fleet(3), 7), [3, 2, 2]);
    }

    #[test]
    fn of_two_the_less_loaded_is_chosen() {
        let workers = fleet(2);
        let _load: Vec<Ticket> = (0..3).map(|_| workers[0].books.open()).collect();
        assert_eq!(chosen(PolicyKind::PowerOfTwo, &workers, 50), [0, 50]);
        let choice =
            Policy::new(PolicyKind::PowerOfTwo).choose(&workers, &mut StdRng::seed_from_u64(3)).unwrap();
        assert_eq!(choice.why, "power_of_two: 0 in flight against 3");
    }
}
