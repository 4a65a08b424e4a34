//! `power_of_two`: the one with less load of any two.
//!
//! Almost as even as looking at all, and many gateways that look at the same loads do not all run to the same worker
//! (Mitzenmacher, 2001).

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
    let mut draws = Draws::new(ask.seed);
    let first = draws.below(count);
    let second = (first + 1 + draws.below(count - 1)) % count;
    let both = [candidates.list[first], candidates.list[second]];
    let loads = candidates.loads_of(&both);
    let (at, less, more) = if loads.of[0] <= loads.of[1] { (first, 0, 1) } else { (second, 1, 0) };
    let why = Why::LessThan { worker: both[more].at, load: loads.of[more] };
    Pick { at, ..Pick::weighed(&loads, less, why) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::policy::tests::{Yard, chosen};
    use crate::{Ask, Moment, Policy, PolicyKind, PolicySettings, ReportedLoad};

    #[test]
    fn the_less_loaded_of_two_is_chosen() {
        let (yard, policy) = (Yard::of(2), Policy::new(PolicyKind::PowerOfTwo));
        let load = yard.load(0, 3);
        assert_eq!(yard.counts(&policy, 50, Ask::default()), [0, 50]);
        let line = chosen(&policy, &yard, Ask::default());
        assert_eq!(line, "power_of_two: 0 in flight against 3 at worker 1; worker 2 of 2, 0 in flight");
        drop(load);
        let counts = yard.counts(&policy, 3000, Ask::default());
        assert!(counts.iter().all(|count| (1350..1650).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_smaller_of_equally_many_is_chosen() {
        let (yard, policy) = (Yard::of(2), Policy::new(PolicyKind::PowerOfTwo));
        let _load = (yard.load_of(0, 1, 5000), yard.load_of(1, 1, 200));
        assert_eq!(yard.counts(&policy, 50, Ask::default()), [0, 50]);
    }

    #[test]
    fn the_most_loaded_of_many_is_never_chosen() {
        let (yard, policy) = (Yard::of(5), Policy::new(PolicyKind::PowerOfTwo));
        let _load = yard.load(3, 1);
        let counts = yard.counts(&policy, 1000, Ask::default());
        assert!(counts[3] == 0 && counts.iter().filter(|count| **count > 150).count() == 4, "{counts:?}");
    }

    #[test]
    fn reports_count_while_both_are_fresh() {
        let settings = PolicySettings { max_load_age: Duration::from_secs(5), ..PolicySettings::default() };
        let (yard, policy) = (Yard::of(2), Policy::with(PolicyKind::PowerOfTwo, &settings));
        let at = |seconds| Moment(Duration::from_secs(seconds));
        let ask = |seconds| Ask { now: at(seconds), ..Ask::default() };
        let _load = yard.load(0, 2);
        yard.workers()[0].report_load(ReportedLoad { running: 2, ..ReportedLoad::default() }, at(10));
        assert_eq!(yard.counts(&policy, 20, ask(10)), [0, 20], "one report is none");
        yard.workers()[1].report_load(ReportedLoad { waiting: 9, ..ReportedLoad::default() }, at(10));
        assert_eq!(yard.counts(&policy, 20, ask(10)), [20, 0], "another gateway loads it");
        let line = chosen(&policy, &yard, ask(12));
        assert_eq!(line, "power_of_two: 2 reported against 9 at worker 2; worker 1 of 2, 2 reported");
        assert_eq!(yard.counts(&policy, 20, ask(16)), [0, 20], "the reports are stale");
        yard.workers()[1].report_load(ReportedLoad::default(), at(3));
        assert_eq!(yard.counts(&policy, 20, ask(10)), [20, 0], "older news are none");
    }
}
