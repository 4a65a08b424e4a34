//! `manual`: a routing key, or else a group, is given a worker once and keeps it while the worker lives.
//!
//! A worker that is registered but can not be used at the moment still lives: its keys take a detour, each always the
//! same one, and come back. The keys of a worker that has left, or has started anew and lost its cache, are given
//! another when they come next.
//!
//! A key is remembered by its hash, so an entry has one size however long the key is. The table is bounded: the key
//! used longest ago goes first, and a key that was not used for `max_idle` is forgotten.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::{AssignmentMode, Pick, PolicySettings};
use crate::aged::{Aged, SlotId};
use crate::ask::{Ask, KeyKind};
use crate::candidates::Candidates;
use crate::decision::{Fallback, Why};
use crate::hash::{Draws, StableHash};
use crate::moment::Moment;

/// Remembers keys.
#[derive(Debug)]
pub(super) struct Manual {
    mode: AssignmentMode,
    max_idle: Duration,
    max_keys: usize,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    /// By the keys' hashes.
    keys: HashMap<u64, SlotId>,
    entries: Aged<Entry>,
    /// How many keys each worker has; none that has none.
    per_worker: HashMap<u64, usize>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    /// The worker's instance.
    worker: u64,
    used: Moment,
}

// === impl Manual ===

impl Manual {
    pub(super) fn new(settings: &PolicySettings) -> Self {
        let table = Table { keys: HashMap::new(), entries: Aged::new(), per_worker: HashMap::new() };
        Self {
            mode: settings.assignment_mode,
            max_idle: settings.max_idle,
            max_keys: settings.max_keys,
            table: Mutex::new(table),
        }
    }

    pub(super) fn pick(&self, candidates: &Candidates<'_>, ask: &Ask<'_>) -> Pick {
        let Some((kind, key)) = ask.key() else {
            return Pick::least_loaded(&candidates.loads(), ask.seed, Fallback::NoKey);
        };
        let key = StableHash::new().add(key).finish();
        let mut table = self.table.lock();
        table.expire(ask.now, self.max_idle);
        let worker = table.get(key, ask.now);
        let place = candidates.list.iter().position(|candidate| Some(candidate.instance) == worker);
        if let Some(at) = place {
            return Pick::unweighed(candidates, at, Why::Kept(kind));
        }
        if worker.is_some_and(|worker| candidates.away.contains(&worker)) {
            return Pick::unweighed(candidates, candidates.rendezvous(key), Why::Detour(kind));
        }
        let pick = self.assign(&table, candidates, ask.seed, kind);
        table.set(Entry { key, worker: candidates.list[pick.at].instance, used: ask.now }, self.max_keys);
        pick
    }

    /// Forgets keys that were not used for long.
    pub(super) fn tend(&self, now: Moment) {
        self.table.lock().expire(now, self.max_idle);
    }

    fn assign(&self, table: &Table, candidates: &Candidates<'_>, seed: u64, key: KeyKind) -> Pick {
        let why = Why::Assigned(key, self.mode);
        match self.mode {
            AssignmentMode::Random => {
                Pick::unweighed(candidates, Draws::new(seed).below(candidates.list.len()), why)
            }
            AssignmentMode::MinLoad => {
                let loads = candidates.loads();
                Pick::weighed(&loads, loads.least(seed, |_| true).unwrap_or(0), why)
            }
            AssignmentMode::MinGroup => {
                let keys = |at: usize| table.per_worker.get(&candidates.list[at].instance).copied();
                let fewest = (0..candidates.list.len()).map(|at| keys(at).unwrap_or(0)).min();
                let loads = candidates.loads();
                let at = loads.least(seed, |at| Some(keys(at).unwrap_or(0)) == fewest);
                Pick::weighed(&loads, at.unwrap_or(0), why)
            }
        }
    }
}

// === impl Table ===

impl Table {
    /// The key's worker; the key has been used.
    fn get(&mut self, key: u64, now: Moment) -> Option<u64> {
        let id = *self.keys.get(&key)?;
        self.entries.touch(id);
        let entry = self.entries.get_mut(id)?;
        entry.used = now;
        Some(entry.worker)
    }

    fn set(&mut self, entry: Entry, max_keys: usize) {
        if let Some(id) = self.keys.get(&entry.key) {
            self.remove(*id);
        }
        while self.entries.len() >= max_keys.max(1)
            && let Some((oldest, _)) = self.entries.oldest()
        {
            self.remove(oldest);
        }
        self.keys.insert(entry.key, self.entries.insert(entry));
        *self.per_worker.entry(entry.worker).or_default() += 1;
    }

    fn expire(&mut self, now: Moment, max_idle: Duration) {
        while let Some((oldest, entry)) = self.entries.oldest()
            && now.since(entry.used) > max_idle
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, id: SlotId) {
        let Some(entry) = self.entries.remove(id) else { return };
        self.keys.remove(&entry.key);
        if let Some(count) = self.per_worker.get_mut(&entry.worker) {
            *count -= 1;
            if *count == 0 {
                self.per_worker.remove(&entry.worker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::Rule;
    use crate::policy::tests::{Yard, chosen};
    use crate::{Policy, PolicyKind};

    fn policy(change: impl FnOnce(&mut PolicySettings)) -> Policy {
        let mut settings = PolicySettings::default();
        change(&mut settings);
        Policy::with(PolicyKind::Manual, &settings)
    }

    fn keys(policy: &Policy) -> usize {
        match &policy.rule {
            Rule::Manual(rule) => {
                let table = rule.table.lock();
                assert_eq!(table.keys.len(), table.entries.len());
                assert_eq!(table.per_worker.values().sum::<usize>(), table.entries.len());
                table.entries.len()
            }
            rule => panic!("{rule:?}"),
        }
    }

    fn ask(key: &[u8], second: u64, seed: u64) -> Ask<'_> {
        Ask { routing_key: Some(key), now: Moment(Duration::from_secs(second)), seed, ..Ask::default() }
    }

    fn place(policy: &Policy, yard: &Yard, ask: Ask<'_>) -> usize {
        policy.decide(&yard.workers(), &ask).unwrap().decision.worker
    }

    #[test]
    fn a_key_keeps_its_worker_while_that_lives() {
        let (mut yard, policy) = (Yard::of(4), policy(|_| {}));
        let home = place(&policy, &yard, ask(b"s", 0, 1));
        yard.add(9);
        let _load = yard.load(home, 50);
        assert!((0..20).all(|seed| place(&policy, &yard, ask(b"s", 0, seed)) == home));
        yard.make_unhealthy(home);
        let detour = place(&policy, &yard, ask(b"s", 0, 1));
        assert!(detour != home && (0..20).all(|seed| place(&policy, &yard, ask(b"s", 0, seed)) == detour));
        yard.make_healthy(home);
        assert!((0..20).all(|seed| place(&policy, &yard, ask(b"s", 0, seed)) == home));
        yard.restart(home);
        yard.make_unhealthy(detour);
        let line = chosen(&policy, &yard, ask(b"s", 0, 1));
        assert!(line.starts_with("manual: routing key assigned by random; worker"), "{line}");
    }

    #[test]
    fn each_way_of_assigning_keeps_its_word() {
        let yard = Yard::of(3);
        let load = (yard.load(0, 1), yard.load(2, 2));
        let min_load = policy(|settings| settings.assignment_mode = AssignmentMode::MinLoad);
        let line = chosen(&min_load, &yard, ask(b"s", 0, 1));
        assert_eq!(line, "manual: routing key assigned by min_load; worker 2 of 3, 0 in flight");
        assert_eq!(
            chosen(&min_load, &yard, ask(b"s", 0, 1)),
            "manual: routing key kept; worker 2 of 3, 0 in flight"
        );
        drop(load);
        let min_group = policy(|settings| settings.assignment_mode = AssignmentMode::MinGroup);
        let random = policy(|_| {});
        for (policy, bounds) in [(min_group, 100..=100), (random, 70..=130)] {
            let mut counts = [0; 3];
            for key in 0..300_u32 {
                counts[place(&policy, &yard, ask(&key.to_le_bytes(), 0, key.into()))] += 1;
            }
            assert!(counts.iter().all(|count| bounds.contains(count)), "{counts:?}");
        }
        let line = chosen(&policy(|_| {}), &yard, Ask::default());
        assert!(line.starts_with("manual: no routing key or group, so the least loaded; worker"), "{line}");
    }

    #[test]
    fn a_detour_is_told() {
        let (yard, policy) = (Yard::of(2), policy(|_| {}));
        let home = place(&policy, &yard, ask(b"s", 0, 1));
        yard.make_unhealthy(home);
        let line = chosen(&policy, &yard, ask(b"s", 0, 1));
        let expected = "manual: routing key on a detour, its worker is not available; worker";
        assert!(line.starts_with(expected) && line.ends_with("0 in flight, 1 unhealthy"), "{line}");
    }

    proptest! {
        /// Against a list of (key, worker, last use): keys expire, the table is bounded, and nothing else is forgotten.
        #[test]
        fn the_table_is_a_bounded_list(asks in prop::collection::vec((0_u8..12, 0_u64..4000, any::<u64>()), 0..150)) {
            let (yard, policy) = (Yard::of(3), policy(|settings| settings.max_keys = 5));
            let (mut model, mut second) = (Vec::<(u8, usize, u64)>::new(), 0);
            for (key, wait, seed) in asks {
                second += wait;
                model.retain(|(_, _, used)| second - used <= 14_400);
                let known = model.iter().position(|(other, ..)| *other == key).map(|at| model.remove(at));
                let at = place(&policy, &yard, ask(&[key], second, seed));
                prop_assert!(known.is_none_or(|(_, worker, _)| worker == at));
                model.push((key, at, second));
                if model.len() > 5 {
                    model.remove(0);
                }
                prop_assert_eq!(keys(&policy), model.len());
            }
            policy.tend(Moment(Duration::from_secs(second + 14_401)));
            prop_assert_eq!(keys(&policy), 0);
        }
    }
}
