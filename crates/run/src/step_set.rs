//! A set of steps, kept as ranges: a long run has many, and nearly all of them follow each other.

use std::collections::BTreeMap;

use rollscope_trace::StepNumber;
use serde::{Deserialize, Serialize};

/// A set of steps. In a file it is a list of ranges, each its first and its last step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct StepSet {
    /// The last step of each range by its first; between two of them there is at least one step.
    ranges: BTreeMap<u64, u64>,
}

// === impl StepSet ===

impl StepSet {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether a step is one of them.
    pub fn contains(&self, step: &StepNumber) -> bool {
        self.ranges.range(..=step.0).next_back().is_some_and(|(_, last)| step.0 <= *last)
    }

    /// The largest.
    pub fn last(&self) -> Option<StepNumber> {
        self.ranges.last_key_value().map(|(_, last)| StepNumber(*last))
    }

    /// Adds a step.
    pub fn insert(&mut self, step: StepNumber) {
        self.insert_range(step.0, step.0);
    }

    /// Adds all steps of another set.
    pub fn insert_all(&mut self, other: &Self) {
        other.ranges.iter().for_each(|(first, last)| self.insert_range(*first, *last));
    }

    fn insert_range(&mut self, mut first: u64, mut last: u64) {
        // Those that it touches become one with it; they are met from the largest on.
        while let Some((begin, end)) = self.ranges.range(..=last.saturating_add(1)).next_back() {
            let (begin, end) = (*begin, *end);
            if end.saturating_add(1) < first {
                break;
            }
            self.ranges.remove(&begin);
            (first, last) = (first.min(begin), last.max(end));
        }
        self.ranges.insert(first, last);
    }
}

impl From<Vec<(u64, u64)>> for StepSet {
    fn from(ranges: Vec<(u64, u64)>) -> Self {
        let mut set = Self::default();
        for (first, last) in ranges.into_iter().filter(|(first, last)| first <= last) {
            set.insert_range(first, last);
        }
        set
    }
}

impl From<StepSet> for Vec<(u64, u64)> {
    fn from(set: StepSet) -> Self {
        set.ranges.into_iter().collect()
    }
}

impl FromIterator<StepNumber> for StepSet {
    fn from_iter<I: IntoIterator<Item = StepNumber>>(steps: I) -> Self {
        let mut set = Self::default();
        steps.into_iter().for_each(|step| set.insert(step));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_was_added_in_as_few_ranges_as_there_are(
            steps in prop::collection::vec(0u64..40, 0..40), more in prop::collection::vec(0u64..40, 0..10),
        ) {
            let mut set: StepSet = steps.iter().copied().map(StepNumber).collect();
            set.insert_all(&more.iter().copied().map(StepNumber).collect());
            let expected: BTreeSet<u64> = steps.into_iter().chain(more).collect();
            for step in 0..=41 {
                prop_assert_eq!(set.contains(&StepNumber(step)), expected.contains(&step));
            }
            prop_assert_eq!(set.last().map(|last| last.0), expected.last().copied());
            let begins = expected.iter().filter(|step| **step == 0 || !expected.contains(&(**step - 1)));
            let ranges: Vec<(u64, u64)> = set.clone().into();
            prop_assert_eq!(ranges.len(), begins.count());
            prop_assert_eq!(StepSet::from(ranges), set);
        }
    }

    #[test]
    fn whatever_stands_in_a_file_is_a_set() {
        let set: StepSet = serde_json::from_str(&format!("[[5,3],[0,{0}],[7,7]]", u64::MAX)).unwrap();
        assert!(set.contains(&StepNumber(0)) && set.contains(&StepNumber(u64::MAX)));
        assert_eq!(serde_json::to_string(&set).unwrap(), format!("[[0,{}]]", u64::MAX));
    }
}
