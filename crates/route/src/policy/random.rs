//! `random`: any.

use super::Pick;
use crate::ask::Ask;
use crate::candidates::Candidates;
use crate::decision::Why;
use crate::hash::Draws;

pub(super) fn pick(candidates: &Candidates<'_>, ask: &Ask<'_>) -> Pick {
    let count = candidates.list.len();
    if count == 1 {
        return Pick::unweighed(candidates, 0, Why::OnlyOne);
    }
    let at = Draws::new(ask.seed).below(count);
    Pick::unweighed(candidates, at, Why::Drawn(at))
}

#[cfg(test)]
mod tests {
    use crate::policy::tests::{Yard, chosen};
    use crate::{Ask, Policy, PolicyKind};

    #[test]
    fn everyone_is_drawn_as_often() {
        let (yard, policy) = (Yard::of(3), Policy::new(PolicyKind::Random));
        let counts = yard.counts(&policy, 3000, Ask::default());
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        let ask = Ask { seed: 5, ..Ask::default() };
        let line = chosen(&policy, &yard, ask);
        assert_eq!(line, "random: 2 of 3; worker 2 of 3, 0 in flight");
        assert_eq!(line, chosen(&policy, &yard, ask), "the seed decides");
    }
}
