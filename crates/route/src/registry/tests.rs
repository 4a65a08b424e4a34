//! Workers that come, go, start anew and drain; and the books of all that, under random histories.

use std::time::Duration;

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::*;
use crate::books::Ending;
use crate::breaker::{BreakerState, Verdict};
use crate::leg::LegGuard;
use crate::moment::Moment;
use crate::standing::Availability;

const NOW: Moment = Moment(Duration::ZERO);

struct Yard {
    registry: Registry<u32>,
    rng: StdRng,
}

impl Yard {
    fn new() -> Self {
        let breaker = BreakerConfig { failure_threshold: Some(1), ..BreakerConfig::default() };
        Self { registry: Registry::with(breaker, HealthConfig::default()), rng: StdRng::seed_from_u64(1) }
    }

    fn add(&mut self, address: &str, role: Role) -> Arc<Worker<u32>> {
        self.registry.add(WorkerAddress::parse(address).unwrap(), role, 0, &mut self.rng)
    }

    fn introduce(
        &mut self,
        worker: &Worker<u32>,
        stamp: Option<&str>,
        dp_size: Option<u32>,
    ) -> Result<Introduced<u32>, RankError> {
        let introduction = Introduction { stamp: stamp.map(Into::into), dp_size };
        self.registry.introduce(worker.id.as_str(), &introduction, || 1, &mut self.rng)
    }

    fn addresses(&self) -> Vec<String> {
        self.registry.fleet().all().map(|worker| worker.address().to_string()).collect()
    }
}

#[test]
fn a_worker_registered_anew_is_another_instance() {
    let mut yard = Yard::new();
    let first = yard.add("http://a:1", Role::Decode);
    let ticket = first.begin(0, NOW).unwrap();
    let other = yard.add("http://b:1", Role::Decode);
    let again = yard.add("http://a:1", Role::Prefill { bootstrap_port: Some(9) });
    assert_ne!(first.id, again.id);
    assert_eq!((first.load(), again.load()), (1, 0));
    assert_eq!(first.availability(NOW), Availability::Draining);
    drop(ticket);
    assert_eq!(first.load(), 0);

    let fleet = yard.registry.fleet();
    let ids: Vec<_> = fleet.all().map(|worker| worker.id.clone()).collect();
    assert_eq!(ids, [again.id.clone(), other.id.clone()]);
    assert_eq!(fleet.of(RoleKind::Decode).len(), 1);
    assert!(yard.registry.remove(first.id.as_str()).is_none());
    assert!(yard.registry.remove(other.id.as_str()).is_some());
    assert!(yard.registry.fleet().of(RoleKind::Decode).is_empty());
    assert!(fleet.get(other.id.as_str()).is_some(), "a snapshot does not change");
}

#[test]
fn a_worker_that_started_anew_is_another_instance_in_its_place() {
    let mut yard = Yard::new();
    let old = yard.add("http://a:1", Role::Decode);
    yard.add("http://b:1", Role::Decode);
    for (stamp, dp_size) in [(None, None), (None, Some(2)), (Some("x"), None), (Some("x"), Some(2))] {
        assert!(matches!(yard.introduce(&old, stamp, dp_size), Ok(Introduced::Same)));
    }
    let live = old.begin(10, NOW).unwrap();
    old.begin(10, NOW).unwrap().end(Ending::Failed, Verdict::Failure, NOW);
    assert_eq!(old.breaker(), BreakerState::Open);

    let Ok(Introduced::Restarted(new)) = yard.introduce(&old, Some("y"), Some(2)) else {
        panic!("another stamp is another process");
    };
    assert_ne!(new.id, old.id);
    assert_eq!((new.breaker(), new.counts().started, new.link), (BreakerState::Closed, 0, 1));
    assert_eq!(new.dp_size(), Some(2));
    assert_eq!(yard.registry.fleet().of(RoleKind::Decode)[0].id, new.id, "it stands where it stood");
    assert!(matches!(yard.introduce(&old, Some("z"), None), Ok(Introduced::Gone)));
    assert!(matches!(yard.introduce(&new, Some("y"), None), Ok(Introduced::Same)));

    assert_eq!(old.begin(10, NOW).err(), Some(Availability::Draining));
    assert_eq!(yard.registry.draining().len(), 1);
    live.end(Ending::Completed, Verdict::Success, NOW);
    assert!(yard.registry.draining().is_empty());
    let counts = old.counts();
    assert_eq!((counts.completed, counts.failed, counts.live), (1, 1, 0));
    assert_eq!(old.in_flight().size, 0);
    let link = Arc::downgrade(&old);
    drop(old);
    assert!(link.upgrade().is_none(), "what the registry keeps of a worker that left keeps no connection");
}

#[test]
fn ranks_of_one_server_are_workers_and_one_server() {
    let mut yard = Yard::new();
    for address in ["http://a:1@0", "http://a:1@1", "http://b:1", "http://a:1@1"] {
        yard.add(address, Role::Regular);
    }
    assert_eq!(yard.addresses(), ["http://a:1@0", "http://b:1", "http://a:1@1"]);
    let fleet = yard.registry.fleet();
    let servers: Vec<_> = fleet.servers().map(|worker| worker.url.as_str()).collect();
    assert_eq!(servers, ["http://a:1", "http://b:1"]);
    yard.add("http://a:1", Role::Regular);
    assert_eq!(yard.addresses(), ["http://b:1", "http://a:1"], "the server is registered, not its ranks");
    yard.add("http://a:1@0", Role::Regular);
    assert_eq!(yard.addresses(), ["http://b:1", "http://a:1@0"]);
}

#[test]
fn a_rank_that_the_server_does_not_have_is_refused() {
    let mut yard = Yard::new();
    let worker = yard.add("http://a:1@2", Role::Regular);
    assert_eq!(worker.dp_rank(None), None, "it has not said how many it has");
    assert!(yard.introduce(&worker, None, Some(3)).is_ok());
    assert_eq!(worker.dp_rank(None), DpRank::new(2, 3).ok());
    let error = yard.introduce(&worker, Some("again"), Some(2)).unwrap_err();
    assert_eq!(error, RankError::OutOfRange { rank: 2, dp_size: 2 });
    assert!(yard.addresses().is_empty());
    assert_eq!(worker.begin(0, NOW).err(), Some(Availability::Draining));

    let server = yard.add("http://b:1", Role::Regular);
    assert!(yard.introduce(&server, None, Some(4)).is_ok());
    assert_eq!(server.dp_rank(None), None, "the server chooses");
    assert_eq!(server.dp_rank(Some(3)), DpRank::new(3, 4).ok());
    assert_eq!(server.dp_rank(Some(4)), None);
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Add(u8),
    Remove(usize),
    Restart(usize),
    Begin(usize),
    FirstToken(usize),
    End(usize, Ending, Verdict),
    Drop(usize),
    Check(usize, bool),
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let ending = prop_oneof![
        Just((Ending::Completed, Verdict::Success)),
        Just((Ending::Failed, Verdict::Failure)),
        Just((Ending::Failed, Verdict::Neutral)),
        Just((Ending::Failed, Verdict::Backpressure { retry_after: None })),
        Just((Ending::Truncated, Verdict::Failure)),
        Just((Ending::Aborted, Verdict::Neutral)),
    ];
    prop_oneof![
        2 => (0_u8..6).prop_map(Act::Add),
        1 => any::<usize>().prop_map(Act::Remove),
        1 => any::<usize>().prop_map(Act::Restart),
        8 => any::<usize>().prop_map(Act::Begin),
        2 => any::<usize>().prop_map(Act::FirstToken),
        6 => (any::<usize>(), ending).prop_map(|(which, (ending, verdict))| Act::End(which, ending, verdict)),
        2 => any::<usize>().prop_map(Act::Drop),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(which, passed)| Act::Check(which, passed)),
        1 => (0_u64..90).prop_map(Act::Wait),
    ]
}

/// A history with its own count of what is live where.
struct History {
    yard: Yard,
    now: Moment,
    starts: u32,
    ever: Vec<Arc<Worker<u32>>>,
    live: Vec<(usize, LegGuard)>,
}

impl History {
    fn act(&mut self, act: Act) {
        let pick = |which: usize, count: usize| which.checked_rem(count);
        match act {
            Act::Add(port) => {
                let worker = self.yard.add(&format!("http://a:{port}"), Role::Regular);
                self.ever.push(worker);
            }
            Act::Remove(which) => {
                if let Some(at) = pick(which, self.ever.len()) {
                    self.yard.registry.remove(self.ever[at].id.as_str());
                }
            }
            Act::Restart(which) => {
                let Some(at) = pick(which, self.ever.len()) else { return };
                self.starts += 1;
                let (worker, stamp) = (Arc::clone(&self.ever[at]), self.starts.to_string());
                if let Ok(Introduced::Restarted(new)) = self.yard.introduce(&worker, Some(&stamp), None) {
                    self.ever.push(new);
                }
            }
            Act::Begin(which) => {
                let Some(at) = pick(which, self.ever.len()) else { return };
                let is_registered = self.yard.registry.fleet().get(self.ever[at].id.as_str()).is_some();
                if let Ok(leg) = self.ever[at].begin(7, self.now) {
                    assert!(is_registered, "nothing begins at a worker that has left");
                    self.live.push((at, leg));
                }
            }
            Act::FirstToken(which) => {
                if let Some(at) = pick(which, self.live.len()) {
                    self.live[at].1.first_token(self.now);
                }
            }
            Act::End(which, ending, verdict) => {
                if let Some(at) = pick(which, self.live.len()) {
                    self.live.swap_remove(at).1.end(ending, verdict, self.now);
                }
            }
            Act::Drop(which) => {
                if let Some(at) = pick(which, self.live.len()) {
                    drop(self.live.swap_remove(at));
                }
            }
            Act::Check(which, passed) => {
                if let Some(at) = pick(which, self.ever.len()) {
                    self.ever[at].check(passed);
                }
            }
            Act::Wait(seconds) => self.now = self.now.after(Duration::from_secs(seconds)),
        }
    }

    fn assert_balance(&self) {
        for (at, worker) in self.ever.iter().enumerate() {
            let live = self.live.iter().filter(|(of, _)| *of == at).count() as u64;
            let counts = worker.counts();
            assert!(counts.balance() && counts.live == live, "{counts:?}, {live} live");
            assert_eq!(worker.in_flight(), crate::Load { requests: live, size: 7 * live });
            assert!(live > 0 || worker.breaker() != BreakerState::HalfOpen);
        }
        let draining = self.yard.registry.draining();
        assert!(draining.iter().all(|worker| worker.load() > 0));
    }
}

proptest! {
    #[test]
    fn the_books_balance_whatever_comes_and_goes(acts in prop::collection::vec(act(), 0..150)) {
        let (yard, ever, live) = (Yard::new(), Vec::new(), Vec::new());
        let mut history = History { yard, now: NOW, starts: 0, ever, live };
        for act in acts {
            history.act(act);
            history.assert_balance();
        }
        history.live.clear();
        history.assert_balance();
        prop_assert!(history.yard.registry.draining().is_empty());
    }
}
