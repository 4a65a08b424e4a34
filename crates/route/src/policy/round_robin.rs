//! `round_robin`: one after the other.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Pick;
use crate::candidates::Candidates;
use crate::decision::Why;

/// Whose turn it is.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    turn: AtomicUsize,
}

// === impl RoundRobin ===

impl RoundRobin {
    pub(super) fn pick(&self, candidates: &Candidates<'_>) -> Pick {
        let count = candidates.list.len();
        if count == 1 {
            return Pick::unweighed(candidates, 0, Why::OnlyOne);
        }
        let at = self.turn.fetch_add(1, Ordering::Relaxed) % count;
        Pick::unweighed(candidates, at, Why::Turn(at))
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::tests::{Yard, chosen};
    use crate::{Ask, Policy, PolicyKind};

    #[test]
    fn everyone_has_a_turn() {
        let yard = Yard::of(3);
        let policy = Policy::new(PolicyKind::RoundRobin);
        assert_eq!(yard.places(&policy, 7, Ask::default()), [0, 1, 2, 0, 1, 2, 0]);
        // Who is away is passed over, and has a turn again when it is back.
        yard.make_unhealthy(1);
        assert_eq!(yard.counts(&policy, 10, Ask::default()), [5, 0, 5]);
        let line = chosen(&policy, &yard, Ask::default());
        assert_eq!(line, "round_robin: 2 of 2; worker 3 of 3, 0 in flight, 1 unhealthy");
        yard.make_healthy(1);
        assert_eq!(yard.counts(&policy, 9, Ask::default()), [3, 3, 3]);
        let alone = chosen(&policy, &Yard::of(1), Ask::default());
        assert_eq!(alone, "round_robin: only one; worker 1 of 1, 0 in flight");
    }
}
