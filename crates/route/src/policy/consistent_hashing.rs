//! `consistent_hashing`: a routing key, or else a group, leads to one worker, the same in every gateway.
//!
//! When a worker comes or goes, only the keys that it takes or leaves move. The hash is of the address, so a worker that
//! starts anew has its keys again. Optionally a worker that has far more than the average is passed over for the
//! next to which the key leads.

use super::{Pick, PolicySettings};
use crate::ask::Ask;
use crate::candidates::Candidates;
use crate::decision::{Fallback, Why};
use crate::hash::StableHash;

/// Remembers nothing.
#[derive(Debug)]
pub(super) struct ConsistentHashing {
    max_load_factor: Option<f64>,
}

// === impl ConsistentHashing ===

impl ConsistentHashing {
    pub(super) fn new(settings: &PolicySettings) -> Self {
        Self { max_load_factor: settings.max_load_factor }
    }

    pub(super) fn pick(&self, candidates: &Candidates<'_>, ask: &Ask<'_>) -> Pick {
        let Some((kind, key)) = ask.key() else {
            return Pick::least_loaded(&candidates.loads(), ask.seed, Fallback::NoKey);
        };
        let hash = StableHash::new().add(key).finish();
        let why = |passed_over| Why::Hashed { key: Some(kind), passed_over };
        match self.max_load_factor {
            None => Pick::unweighed(candidates, candidates.rendezvous(hash), why(0)),
            Some(load_factor) => {
                let loads = candidates.loads();
                let (at, passed_over) = candidates.bounded_rendezvous(hash, &loads, load_factor);
                Pick::weighed(&loads, at, why(passed_over))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use crate::policy::tests::{Yard, chosen};
    use crate::{Ask, Policy, PolicyKind, PolicySettings};

    fn policy(max_load_factor: Option<f64>) -> Policy {
        let settings = PolicySettings { max_load_factor, ..PolicySettings::default() };
        Policy::with(PolicyKind::ConsistentHashing, &settings)
    }

    /// The port to which each of many keys leads.
    fn ports(yard: &Yard, policy: &Policy) -> Vec<u16> {
        let port = |key: u32| {
            let key = format!("session-{key}");
            let ask = Ask { routing_key: Some(key.as_bytes()), ..Ask::default() };
            policy.decide(&yard.workers(), &ask).unwrap().worker.url.socket_address().1
        };
        (0..2000).map(port).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Exactly the keys of the worker that comes or goes move, and they are about one part in so many.
        #[test]
        fn who_comes_or_goes_moves_its_own_share_only(
            others in prop::collection::btree_set(1_u16..60_000, 1..9),
            port in 60_000_u16..=65_535,
        ) {
            let policy = policy(None);
            let all: BTreeSet<u16> = others.iter().copied().chain([port]).collect();
            let before = ports(&Yard::at(others.iter().copied()), &policy);
            let after = ports(&Yard::at(all.iter().copied()), &policy);
            let moved: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
            prop_assert!(moved.iter().all(|(_, after)| **after == port));
            let share = 2000 / all.len();
            prop_assert!(moved.len() <= share * 3 / 2, "{} moved, the share is {share}", moved.len());
            prop_assert!(moved.len() >= share / 2, "{} moved, the share is {share}", moved.len());
            // In whatever order they were registered, here or in another gateway.
            let reversed = ports(&Yard::at(all.iter().rev().copied()), &self::policy(None));
            prop_assert_eq!(after, reversed);
        }

        /// Nobody has more than its share by the factor, and who is below keeps its keys.
        #[test]
        fn bounded_loads_are_bounded(keys in prop::collection::vec(0_u8..4, 1..120), workers in 1_u16..6) {
            let (yard, bounded, free) = (Yard::of(workers), policy(Some(1.25)), policy(None));
            let mut live = Vec::new();
            for (begun, key) in keys.iter().enumerate() {
                let ask = Ask { group: Some(&[*key]), ..Ask::default() };
                let chosen = bounded.decide(&yard.workers(), &ask).unwrap();
                let first = free.decide(&yard.workers(), &ask).unwrap();
                let share = (1.25 * (begun + 1) as f64 / f64::from(workers)).ceil() as u64;
                prop_assert!(chosen.worker.load() < share);
                prop_assert_eq!(chosen.worker.id == first.worker.id, first.worker.load() < share);
                live.push(chosen.worker.begin(1, ask.now));
            }
        }
    }

    #[test]
    fn a_key_stays_and_its_worker_is_found_again_after_an_outage() {
        let (yard, policy) = (Yard::of(4), policy(None));
        let ask = Ask { routing_key: Some(b"session"), group: Some(b"other"), ..Ask::default() };
        assert_eq!(yard.counts(&policy, 20, ask), [0, 0, 20, 0]);
        let line = chosen(&policy, &yard, ask);
        assert_eq!(line, "consistent_hashing: by routing key; worker 3 of 4, 0 in flight");
        yard.make_unhealthy(2);
        assert_eq!(yard.counts(&policy, 20, ask).iter().filter(|count| **count == 20).count(), 1);
        yard.make_healthy(2);
        assert_eq!(yard.counts(&policy, 20, ask), [0, 0, 20, 0]);
    }

    #[test]
    fn without_a_key_the_least_loaded_is_chosen() {
        let (yard, policy) = (Yard::of(3), policy(None));
        let _load = (yard.load(0, 1), yard.load(2, 2));
        let line = chosen(&policy, &yard, Ask::default());
        let expected =
            "consistent_hashing: no routing key or group, so the least loaded; worker 2 of 3, 0 in flight";
        assert_eq!(line, expected);
    }

    #[test]
    fn an_overloaded_worker_is_passed_over() {
        let (yard, policy) = (Yard::of(4), policy(Some(1.5)));
        let ask = Ask { routing_key: Some(b"session"), ..Ask::default() };
        let _load = yard.load(2, 9);
        let line = chosen(&policy, &yard, ask);
        let expected =
            "consistent_hashing: by routing key, 1 passed over with more than their share in flight; worker";
        assert!(line.starts_with(expected), "{line}");
    }
}
