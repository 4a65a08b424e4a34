//! `prefix_hash`: the hash of the prompt's beginning leads to one worker, unless it has far more than the average.
//!
//! It keeps prompts with a common beginning together as `cache_aware` does, and has nothing to remember.

use super::{Pick, PolicySettings};
use crate::ask::Ask;
use crate::candidates::Candidates;
use crate::decision::{Fallback, Why};
use crate::hash::StableHash;

/// Remembers nothing.
#[derive(Debug)]
pub(super) struct PrefixHash {
    prefix_bytes: usize,
    load_factor: f64,
}

// === impl PrefixHash ===

impl PrefixHash {
    pub(super) fn new(settings: &PolicySettings) -> Self {
        Self { prefix_bytes: settings.prefix_hash_bytes, load_factor: settings.prefix_hash_load_factor }
    }

    pub(super) fn pick(&self, candidates: &Candidates<'_>, ask: &Ask<'_>) -> Pick {
        let loads = candidates.loads();
        let head = ask.prompt.head(self.prefix_bytes);
        if head.is_empty() {
            return Pick::least_loaded(&loads, ask.seed, Fallback::NoPrompt);
        }
        let hash = StableHash::new().add(&head).finish();
        let (at, passed_over) = candidates.bounded_rendezvous(hash, &loads, self.load_factor);
        Pick::weighed(&loads, at, Why::Hashed { key: None, passed_over })
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::tests::{Yard, chosen};
    use crate::{Ask, Policy, PolicyKind, PolicySettings, Prompt};

    #[test]
    fn prompts_that_begin_alike_go_together() {
        let settings = PolicySettings { prefix_hash_bytes: 4, ..PolicySettings::default() };
        let (yard, policy) = (Yard::of(8), Policy::with(PolicyKind::PrefixHash, &settings));
        let place = |pieces: &[&[u8]]| {
            let ask = Ask { prompt: Prompt(pieces), ..Ask::default() };
            policy.decide(&yard.workers(), &ask).unwrap().decision.worker
        };
        assert_eq!(place(&[b"abcdefgh"]), place(&[b"ab", b"cdXY"]));
        let distinct: std::collections::BTreeSet<_> = (0..64_u8).map(|byte| place(&[&[byte]])).collect();
        assert_eq!(distinct.len(), 8, "beginnings are spread");
    }

    #[test]
    fn the_line_tells_what_was_hashed() {
        let (yard, policy) = (Yard::of(2), Policy::new(PolicyKind::PrefixHash));
        let ask = Ask { prompt: Prompt(&[b"prompt"]), ..Ask::default() };
        let line = chosen(&policy, &yard, ask);
        assert_eq!(line, "prefix_hash: by prompt; worker 2 of 2, 0 in flight");
        let _load = yard.load(1, 4);
        let line = chosen(&policy, &yard, ask);
        let expected = "prefix_hash: by prompt, 1 passed over with more than their share in flight; \
                        worker 1 of 2, 0 in flight";
        assert_eq!(line, expected);
        let line = chosen(&policy, &yard, Ask::default());
        assert_eq!(line, "prefix_hash: no prompt known, so the least loaded; worker 1 of 2, 0 in flight");
    }
}
