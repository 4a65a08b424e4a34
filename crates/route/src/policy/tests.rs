//! A yard of workers to choose from, and what holds for every policy.

use std::cell::RefCell;

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::*;
use crate::{
    BreakerConfig, Considered, Ending, HealthConfig, Introduced, Introduction, LegGuard, Prompt, Registry,
    Role, RoleKind, Verdict, WorkerAddress,
};

/// Workers of one role.
pub(super) struct Yard {
    registry: Registry<()>,
    kind: RoleKind,
    rng: RefCell<StdRng>,
}

// === impl Yard ===

impl Yard {
    /// So many regular workers.
    pub(super) fn of(count: u16) -> Self {
        Self::at(1..=count)
    }

    /// Regular workers at these ports.
    pub(super) fn at(ports: impl IntoIterator<Item = u16>) -> Self {
        let mut yard = Self::empty(RoleKind::Regular);
        for port in ports {
            yard.add(port);
        }
        yard
    }

    fn empty(kind: RoleKind) -> Self {
        let (breaker, health) = (
            BreakerConfig { failure_threshold: Some(1), ..BreakerConfig::default() },
            HealthConfig { failure_threshold: 1, success_threshold: 1 },
        );
        Self { registry: Registry::with(breaker, health), kind, rng: RefCell::new(StdRng::seed_from_u64(7)) }
    }

    pub(super) fn add(&mut self, port: u16) -> Arc<Worker<()>> {
        self.add_address(&format!("http://a:{port}"))
    }

    fn add_address(&mut self, address: &str) -> Arc<Worker<()>> {
        let role = match self.kind {
            RoleKind::Regular => Role::Regular,
            RoleKind::Prefill => Role::Prefill { bootstrap_port: None },
            RoleKind::Decode => Role::Decode,
        };
        self.registry.add(WorkerAddress::parse(address).unwrap(), role, (), self.rng.get_mut())
    }

    pub(super) fn workers(&self) -> Vec<Arc<Worker<()>>> {
        self.registry.fleet().of(self.kind).to_vec()
    }

    /// Live legs of no size.
    pub(super) fn load(&self, worker: usize, legs: usize) -> Vec<LegGuard> {
        self.load_of(worker, legs, 0)
    }

    pub(super) fn load_of(&self, worker: usize, legs: usize, size_bytes: u64) -> Vec<LegGuard> {
        let worker = &self.workers()[worker];
        (0..legs).map(|_| worker.begin(size_bytes, Moment::default()).unwrap()).collect()
    }

    pub(super) fn make_unhealthy(&self, worker: usize) {
        self.workers()[worker].check(false);
    }

    pub(super) fn make_healthy(&self, worker: usize) {
        self.workers()[worker].check(true);
    }

    /// Another process answers there.
    pub(super) fn restart(&self, worker: usize) {
        let id = self.workers()[worker].id.clone();
        for stamp in ["one", "two"] {
            let introduction = Introduction { stamp: Some(stamp.into()), dp_size: None };
            let rng = &mut *self.rng.borrow_mut();
            let introduced = self.registry.introduce(id.as_str(), &introduction, || (), rng);
            assert_eq!(matches!(introduced, Ok(Introduced::Restarted(_))), stamp == "two");
        }
    }

    /// The places of the workers that are chosen one after the other, each with a seed of its own.
    pub(super) fn places(&self, policy: &Policy, times: u64, ask: Ask<'_>) -> Vec<usize> {
        let place = |seed| policy.decide(&self.workers(), &Ask { seed, ..ask }).unwrap().decision.worker;
        (0..times).map(place).collect()
    }

    /// How often each worker is chosen.
    pub(super) fn counts(&self, policy: &Policy, times: u64, ask: Ask<'_>) -> Vec<usize> {
        let mut counts = vec![0; self.workers().len()];
        for place in self.places(policy, times, ask) {
            counts[place] += 1;
        }
        counts
    }
}

/// What is said of a choice.
pub(super) fn chosen(policy: &Policy, yard: &Yard, ask: Ask<'_>) -> String {
    policy.decide(&yard.workers(), &ask).unwrap().decision.to_string()
}

const KINDS: [PolicyKind; 7] = [
    PolicyKind::RoundRobin,
    PolicyKind::Random,
    PolicyKind::PowerOfTwo,
    PolicyKind::CacheAware,
    PolicyKind::ConsistentHashing,
    PolicyKind::Manual,
    PolicyKind::PrefixHash,
];

#[test]
fn nothing_is_known_of_a_request_and_still_it_is_spread() {
    for kind in KINDS {
        let (policy, mut rng) = (Policy::new(kind), StdRng::seed_from_u64(3));
        let workers = Yard::of(3).workers();
        let mut counts = [0; 3];
        for _ in 0..3000 {
            let ask = Ask { seed: rng.random(), ..Ask::default() };
            let chosen = policy.decide(&workers, &ask).unwrap();
            counts[chosen.decision.worker] += 1;
            assert!(chosen.decision.to_string().starts_with(kind.name()));
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{kind:?}: {counts:?}");
    }
}

#[test]
fn why_there_is_no_choice_is_told() {
    for kind in KINDS {
        let (mut yard, policy) = (Yard::empty(RoleKind::Regular), Policy::new(kind));
        let refused = |yard: &Yard, ask: Ask<'_>| policy.decide(&yard.workers(), &ask).unwrap_err();
        assert_eq!(refused(&yard, Ask::default()), NoChoice::NoWorker);
        for port in 1..=3 {
            yard.add(port);
        }
        yard.make_unhealthy(0);
        for worker in 1..3 {
            let leg = yard.workers()[worker].begin(0, Moment::default()).unwrap();
            leg.end(Ending::Failed, Verdict::Failure, Moment::default());
        }
        let error = refused(&yard, Ask::default());
        let considered = Considered { workers: 3, unhealthy: 1, open: 2, ..Considered::default() };
        assert_eq!(error, NoChoice::Unavailable(considered));
        assert_eq!(error.to_string(), "no worker is available of 3, 1 unhealthy, 2 open");
    }
}

#[test]
fn full_workers_are_chosen_only_when_all_are_full() {
    let full = Verdict::Backpressure { retry_after: Some(Duration::from_secs(5)) };
    for kind in KINDS {
        let (yard, policy) = (Yard::of(3), Policy::new(kind));
        let ask = Ask { group: Some(b"g"), prompt: Prompt(&[b"p"]), ..Ask::default() };
        let refuse = |at: usize| {
            let leg = yard.workers()[at].begin(0, Moment::default()).unwrap();
            leg.end(Ending::Failed, full, Moment::default());
        };
        refuse(0);
        refuse(2);
        assert_eq!(yard.counts(&policy, 30, ask), [0, 30, 0], "{kind:?}");
        assert!(chosen(&policy, &yard, ask).ends_with("worker 2 of 3, 0 in flight, 2 backing off"));
        refuse(1);
        assert_eq!(yard.counts(&policy, 30, ask).iter().sum::<usize>(), 30, "{kind:?}");
        assert!(chosen(&policy, &yard, ask).ends_with("3 backing off"));
        let later = Ask { now: Moment(Duration::from_secs(5)), ..ask };
        assert!(chosen(&policy, &yard, later).ends_with("0 in flight"));
    }
}

#[test]
fn a_rank_that_is_asked_for_is_kept() {
    let policy = Policy::new(PolicyKind::RoundRobin);
    let mut yard = Yard::empty(RoleKind::Prefill);
    let addresses = ["http://a:1@0", "http://a:1@1", "http://b:1", "http://c:1"];
    let workers = addresses.map(|address| yard.add_address(address));
    let rank = |rank| Ask { rank: Some(rank), ..Ask::default() };
    // Which ranks there are is known only when the servers have said so.
    assert_eq!(yard.counts(&policy, 4, Ask::default()), [0, 0, 2, 2]);
    assert!(chosen(&policy, &yard, Ask::default()).ends_with(", 2 of unknown rank"));
    let unknown = policy.decide(&yard.workers(), &rank(1)).unwrap_err();
    assert_eq!(unknown.to_string(), "no worker is available of 4, 1 of another rank, 3 of unknown rank");
    for (worker, dp_size) in workers.iter().zip([2, 2, 4, 1]) {
        let introduction = Introduction { stamp: None, dp_size: Some(dp_size) };
        let rng = yard.rng.get_mut();
        yard.registry.introduce(worker.id.as_str(), &introduction, || (), rng).unwrap();
    }
    for (asked, counts) in [(0, [2, 0, 2, 2]), (1, [0, 3, 3, 0]), (3, [0, 0, 6, 0])] {
        assert_eq!(yard.counts(&policy, 6, rank(asked)), counts, "rank {asked}");
        let choice = policy.decide(&yard.workers(), &rank(asked)).unwrap();
        assert_eq!(choice.dp_rank.map(DpRank::rank), Some(asked));
    }
    let error = policy.decide(&yard.workers(), &rank(4)).unwrap_err();
    assert_eq!(error.to_string(), "no worker has the data-parallel rank that the request asks for: 4");
    let own = policy.decide(&yard.workers()[..1], &Ask::default()).unwrap();
    assert_eq!(own.dp_rank, DpRank::new(0, 2).ok(), "a worker that is a rank has it");
}

#[test]
fn a_worker_that_is_tried_again_gets_no_more_than_its_probes() {
    for kind in KINDS {
        let (yard, policy) = (Yard::of(2), Policy::new(kind));
        let workers = yard.workers();
        let leg = workers[0].begin(0, Moment::default()).unwrap();
        leg.end(Ending::Failed, Verdict::Failure, Moment::default());
        let now = Moment(Duration::from_mins(1));
        let mut live = Vec::new();
        for key in 0..100_u64 {
            let key = key.to_le_bytes();
            let ask = Ask {
                avoided: &[],
                routing_key: Some(&key),
                prompt: Prompt(&[&key]),
                now,
                seed: u64::from_le_bytes(key),
                rank: None,
                group: None,
            };
            let worker = policy.decide(&workers, &ask).unwrap().worker;
            live.push(worker.begin(0, now).unwrap());
        }
        assert_eq!(workers[0].load(), 3, "{kind:?}: as many probes as are needed to close it");
    }
}

#[derive(Clone, Debug)]
struct Scene {
    kind: PolicyKind,
    loads: Vec<u8>,
    unhealthy: Vec<bool>,
    asks: Vec<(Vec<u8>, Vec<u8>, u64)>,
}

fn scene() -> impl Strategy<Value = Scene> {
    let workers = prop::collection::vec((0_u8..100, any::<bool>()), 1..6);
    let ask = (prop::collection::vec(0_u8..4, 0..4), prop::collection::vec(0_u8..3, 0..20), any::<u64>());
    (prop::sample::select(&KINDS[..]), workers, prop::collection::vec(ask, 1..20)).prop_map(
        |(kind, workers, asks)| {
            let (loads, unhealthy) = workers.into_iter().unzip();
            Scene { kind, loads, unhealthy, asks }
        },
    )
}

fn play(scene: &Scene) -> Vec<Result<String, NoChoice>> {
    let (yard, policy) = (Yard::of(scene.loads.len() as u16), Policy::new(scene.kind));
    let _load: Vec<_> =
        scene.loads.iter().enumerate().map(|(at, load)| yard.load(at, usize::from(*load))).collect();
    for (at, _) in scene.unhealthy.iter().enumerate().filter(|(_, is_unhealthy)| **is_unhealthy) {
        yard.make_unhealthy(at);
    }
    let workers = yard.workers();
    let play = |(key, prompt, seed): &(Vec<u8>, Vec<u8>, u64)| {
        let pieces = [&prompt[..prompt.len() / 2], &prompt[prompt.len() / 2..]];
        let ask = Ask { routing_key: Some(key), prompt: Prompt(&pieces), seed: *seed, ..Ask::default() };
        let chosen = policy.decide(&workers, &ask)?;
        assert!(!scene.unhealthy[chosen.decision.worker]);
        assert_eq!(chosen.worker.id, workers[chosen.decision.worker].id);
        assert_eq!(chosen.decision.load.requests, u64::from(scene.loads[chosen.decision.worker]));
        Ok(chosen.decision.to_string())
    };
    scene.asks.iter().map(play).collect()
}

proptest! {
    /// The same asks in the same state give the same choices and the same words, which fit into a header; and
    /// nobody is chosen who may not be.
    #[test]
    fn a_decision_can_be_replayed(scene in scene()) {
        let first = play(&scene);
        prop_assert_eq!(&first, &play(&scene));
        for line in first {
            match line {
                Ok(line) => {
                    prop_assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && line.len() < 200);
                }
                Err(_) => prop_assert!(scene.unhealthy.iter().all(|is_unhealthy| *is_unhealthy)),
            }
        }
    }
}
