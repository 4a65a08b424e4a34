//! `cache_aware`: the worker that has been sent most of the prompt, as long as the loads are not too far apart.
//!
//! 1. Loads too far apart, by `balance_abs_threshold` and `balance_rel_threshold`: the least loaded.
//! 2. A worker knows more than `cache_threshold` of the prompt: the one that knows most, of several the least loaded.
//! 3. Otherwise the least loaded.
//!
//! Whoever is chosen knows the prompt from now on. What workers know is approximate: see the tree.

use std::time::Duration;

use parking_lot::Mutex;

use super::{Pick, PolicySettings};
use crate::ask::Ask;
use crate::candidates::{Candidates, Loads};
use crate::decision::{Fallback, Why};
use crate::moment::Moment;
use crate::prefix_tree::{Path, PrefixTree};

/// Remembers prompts.
#[derive(Debug)]
pub(super) struct CacheAware {
    cache_threshold: f64,
    balance_abs_threshold: u64,
    balance_rel_threshold: f64,
    eviction_interval: Duration,
    max_tree_size_bytes: usize,
    memory: Mutex<Memory>,
}

#[derive(Debug)]
struct Memory {
    tree: PrefixTree,
    trimmed: Moment,
}

/// Of a longer prompt only so much is compared and remembered.
const MAX_PROMPT_BYTES: usize = 1 << 20;

// === impl CacheAware ===

impl CacheAware {
    pub(super) fn new(settings: &PolicySettings) -> Self {
        let tree = PrefixTree::new(settings.max_tree_size_bytes);
        Self {
            cache_threshold: settings.cache_threshold,
            balance_abs_threshold: settings.balance_abs_threshold,
            balance_rel_threshold: settings.balance_rel_threshold,
            eviction_interval: settings.eviction_interval,
            max_tree_size_bytes: settings.max_tree_size_bytes,
            memory: Mutex::new(Memory { tree, trimmed: Moment::default() }),
        }
    }

    pub(super) fn pick(&self, candidates: &Candidates<'_>, ask: &Ask<'_>) -> Pick {
        let loads = candidates.loads();
        let prompt = ask.prompt.head(MAX_PROMPT_BYTES);
        if prompt.is_empty() {
            let fallback = self.unbalanced(&loads).unwrap_or(Fallback::NoPrompt);
            return Pick::least_loaded(&loads, ask.seed, fallback);
        }
        let mut memory = self.memory.lock();
        let path = memory.tree.locate(&prompt);
        let pick = match self.unbalanced(&loads) {
            Some(unbalanced) => Pick::least_loaded(&loads, ask.seed, unbalanced),
            None => self.pick_by_cache(candidates, &loads, ask.seed, (&memory.tree, &path, prompt.len())),
        };
        memory.tree.claim(path, &prompt, candidates.list[pick.at].instance);
        pick
    }

    /// Makes room in the tree, so that requests need not: down to three quarters of its bound.
    pub(super) fn tend(&self, now: Moment) {
        let mut memory = self.memory.lock();
        if now.since(memory.trimmed) >= self.eviction_interval {
            memory.trimmed = now;
            memory.tree.trim(self.max_tree_size_bytes / 4 * 3);
        }
    }

    fn pick_by_cache(
        &self,
        candidates: &Candidates<'_>,
        loads: &Loads,
        seed: u64,
        (tree, path, prompt_bytes): (&PrefixTree, &Path, usize),
    ) -> Pick {
        let is_candidate = |worker| candidates.list.iter().any(|candidate| candidate.instance == worker);
        let (knowing, matched_bytes) = tree.longest(path, is_candidate);
        let knows = |at: usize| knowing.contains(&candidates.list[at].instance);
        match loads.least(seed, knows) {
            Some(at) if matched_bytes as f64 > self.cache_threshold * prompt_bytes as f64 => {
                Pick::weighed(loads, at, Why::Cached { matched_bytes, prompt_bytes })
            }
            _ => Pick::least_loaded(loads, seed, Fallback::Uncached { matched_bytes, prompt_bytes }),
        }
    }

    fn unbalanced(&self, loads: &Loads) -> Option<Fallback> {
        let requests = || loads.of.iter().map(|load| load.requests);
        let (least, most) = (requests().min()?, requests().max()?);
        let is_unbalanced = most - least > self.balance_abs_threshold
            && most as f64 > least as f64 * self.balance_rel_threshold;
        is_unbalanced.then_some(Fallback::Unbalanced { least, most })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::policy::tests::{Yard, chosen};
    use crate::{Ask, Moment, Policy, PolicyKind, PolicySettings, Prompt};

    fn policy(change: impl FnOnce(&mut PolicySettings)) -> Policy {
        let mut settings = PolicySettings::default();
        change(&mut settings);
        Policy::with(PolicyKind::CacheAware, &settings)
    }

    /// Where a prompt goes; ties are drawn differently each time.
    fn place(policy: &Policy, yard: &Yard, prompt: &[u8], seed: u64) -> usize {
        let ask = Ask { prompt: Prompt(&[prompt]), seed, ..Ask::default() };
        policy.decide(&yard.workers(), &ask).unwrap().decision.worker
    }

    #[test]
    fn a_prompt_goes_where_its_beginning_went() {
        let (yard, policy) = (Yard::of(4), policy(|_| {}));
        let home = place(&policy, &yard, &[b'a'; 100], 1);
        for seed in 0..20 {
            let turn = [&[b'a'; 100][..], &[b'b'; 50], &[seed; 10]].concat();
            assert_eq!(place(&policy, &yard, &turn, seed.into()), home);
        }
        let places: Vec<_> =
            (0..64).map(|seed| place(&policy, &yard, &[100 + seed as u8; 9], seed)).collect();
        assert!((0..4).all(|place| places.contains(&place)), "what is new goes anywhere: {places:?}");
    }

    #[test]
    fn the_threshold_is_a_share_of_the_prompt() {
        let (yard, policy) = (Yard::of(2), policy(|_| {}));
        let home = place(&policy, &yard, &[b'a'; 30], 1);
        let _load = yard.load(home, 1);
        let line =
            chosen(&policy, &yard, Ask { prompt: Prompt(&[&[b'a'; 30], &[b'z'; 70]]), ..Ask::default() });
        assert!(
            line.starts_with("cache_aware: only 30 of 100 prompt bytes known, so the least loaded;"),
            "{line}"
        );
        let home = place(&policy, &yard, &[b'b'; 31], 2);
        let line =
            chosen(&policy, &yard, Ask { prompt: Prompt(&[&[b'b'; 31], &[b'z'; 69]]), ..Ask::default() });
        let expected = format!("cache_aware: knows 31 of 100 prompt bytes; worker {} of 2,", home + 1);
        assert!(line.starts_with(&expected), "{line}");
    }

    #[test]
    fn balance_goes_before_the_cache() {
        for (load, other, is_balanced) in
            [(64, 0, true), (65, 0, false), (200, 134, true), (200, 133, false), (201, 134, true)]
        {
            let (yard, policy) = (Yard::of(2), policy(|_| {}));
            let home = place(&policy, &yard, b"prompt", 1);
            let _load = (yard.load(home, load), yard.load(1 - home, other));
            let is_home = place(&policy, &yard, b"prompt", 2) == home;
            assert_eq!(is_home, is_balanced, "{load} against {other}");
        }
        let (yard, policy) = (Yard::of(2), policy(|settings| settings.balance_abs_threshold = 0));
        let _load = yard.load(0, 3);
        let line = chosen(&policy, &yard, Ask::default());
        assert_eq!(
            line,
            "cache_aware: unbalanced with 0 to 3, so the least loaded; worker 2 of 2, 0 in flight"
        );
    }

    #[test]
    fn who_knows_most_and_is_available_is_chosen_of_several_the_least_loaded() {
        let (yard, policy) = (Yard::of(3), policy(|_| {}));
        let home = place(&policy, &yard, &[b'a'; 100], 1);
        yard.make_unhealthy(home);
        let second = place(&policy, &yard, &[b'a'; 100], 2);
        assert_ne!(second, home);
        yard.make_healthy(home);
        let _load = yard.load(home, 1);
        assert_eq!(place(&policy, &yard, &[b'a'; 100], 3), second);
        let longer = [&[b'a'; 100][..], &[b'b'; 100]].concat();
        yard.make_unhealthy(second);
        assert_eq!(place(&policy, &yard, &longer, 4), home);
        yard.make_healthy(second);
        assert_eq!(place(&policy, &yard, &longer, 5), home, "it knows more of it");
    }

    #[test]
    fn the_tree_is_trimmed_when_the_interval_is_over() {
        let (yard, policy) = (Yard::of(1), policy(|settings| settings.max_tree_size_bytes = 8000));
        let size = || match &policy.rule {
            crate::policy::Rule::CacheAware(rule) => rule.memory.lock().tree.size_bytes(),
            rule => panic!("{rule:?}"),
        };
        for seed in 0..200 {
            place(&policy, &yard, &[seed; 100], 1);
            assert!(size() <= 8000);
        }
        let full = size();
        assert!(full > 7000, "{full}");
        policy.tend(Moment(Duration::from_secs(59)));
        assert_eq!(size(), full);
        policy.tend(Moment(Duration::from_mins(1)));
        assert!((5000..=6000).contains(&size()), "{}", size());
        assert_eq!(place(&policy, &yard, &[199; 100], 1), 0);
    }
}
