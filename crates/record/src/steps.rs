//! Which step a request belongs to, and when a step is over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rollscope_trace::{Profile, StepNumber};

/// The open steps, and the numbers that weight versions were given.
#[derive(Debug)]
pub(crate) struct Steps {
    /// Open steps and when something was last recorded of each.
    open: BTreeMap<StepNumber, Instant>,
    versions: BTreeMap<Box<str>, StepNumber>,
    /// Given to the next new weight version.
    next: StepNumber,
    /// The last step that a request without a header belonged to.
    current: Option<StepNumber>,
}

// === impl Steps ===

impl Steps {
    /// Numbers new weight versions from after the steps that there are.
    pub(crate) fn after(known: impl IntoIterator<Item = StepNumber>) -> Self {
        let next = StepNumber(known.into_iter().map(|step| step.0 + 1).max().unwrap_or(1));
        Self { open: BTreeMap::new(), versions: BTreeMap::new(), next, current: None }
    }

    /// The step of a request: as its header says; else by the weights that answered, numbered in order of
    /// appearance; else, as with a request that failed, the step that such requests belong to at present.
    pub(crate) fn of(&mut self, profile: &Profile) -> StepNumber {
        if let Some(step) = profile.join.step {
            return step;
        }
        let step = match profile.weight_version() {
            Some(version) => self.of_version(version),
            None => self.current.unwrap_or(self.next),
        };
        self.current = Some(step);
        step
    }

    fn of_version(&mut self, version: &str) -> StepNumber {
        if let Some(step) = self.versions.get(version) {
            return *step;
        }
        let step = self.next;
        self.next = StepNumber(step.0 + 1);
        self.versions.insert(version.into(), step);
        step
    }

    /// Something was recorded of a step.
    pub(crate) fn touch(&mut self, step: StepNumber, now: Instant) {
        self.open.insert(step, now);
    }

    /// The step is closed; says whether it was open.
    pub(crate) fn close(&mut self, step: StepNumber) -> bool {
        self.open.remove(&step).is_some()
    }

    /// Open steps that a later one has followed and that were quiet for `quiet`.
    pub(crate) fn superseded(&self, now: Instant, quiet: Duration) -> Vec<StepNumber> {
        let Some((last, _)) = self.open.last_key_value() else { return Vec::new() };
        let over = |(step, touched): (&StepNumber, &Instant)| {
            (step < last && now.saturating_duration_since(*touched) >= quiet).then_some(*step)
        };
        self.open.iter().filter_map(over).collect()
    }

    /// All open steps.
    pub(crate) fn open(&self) -> Vec<StepNumber> {
        self.open.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use rollscope_trace::{Join, Leg, LegRole, Nanos, Outcome, Report, RequestId, Scalar, UnixNs, WorkerRef};

    use super::*;

    fn profile(step: Option<u64>, version: Option<&str>) -> Profile {
        let leg = Leg {
            role: LegRole::Regular,
            worker: WorkerRef { url: "http://w".into(), instance: "w".into() },
            dispatch: Nanos(0),
            first_byte: None,
            end: Nanos(1),
            status: Some(200),
            outcome: Outcome::Completed,
            error: None,
            report: Report::from_pairs(version.map(|version| ("weight_version", Scalar::Text(version)))),
        };
        Profile {
            id: RequestId(1),
            join: Join { step: step.map(StepNumber), ..Join::default() },
            endpoint: "/generate".into(),
            stream: false,
            batch: None,
            arrival: UnixNs(0),
            first_byte: None,
            end: Nanos(1),
            status: Some(200),
            outcome: Outcome::Completed,
            error: None,
            decision: "".into(),
            retries: 0,
            legs: vec![leg],
        }
    }

    #[test]
    fn weight_versions_are_numbered_in_order_of_appearance() {
        let mut steps = Steps::after([StepNumber(4)]);
        let mut of = |step, version| steps.of(&profile(step, version)).0;
        assert_eq!(of(None, None), 5);
        assert_eq!(of(None, Some("v-b")), 5);
        assert_eq!(of(None, Some("v-a")), 6);
        assert_eq!(of(None, None), 6);
        assert_eq!(of(None, Some("v-b")), 5);
        assert_eq!(of(Some(40), Some("v-a")), 40);
    }

    #[test]
    fn a_step_is_superseded_by_a_later_one_when_it_has_been_quiet() {
        let (start, quiet) = (Instant::now(), Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut steps = Steps::after([]);
        steps.touch(StepNumber(1), at(0));
        assert_eq!(steps.superseded(at(100), quiet), []);
        steps.touch(StepNumber(2), at(100));
        steps.touch(StepNumber(1), at(101));
        assert_eq!(steps.superseded(at(110), quiet), []);
        assert_eq!(steps.superseded(at(111), quiet), [StepNumber(1)]);
        assert!(steps.close(StepNumber(1)) && !steps.close(StepNumber(1)));
        assert_eq!(steps.open(), [StepNumber(2)]);
    }
}
