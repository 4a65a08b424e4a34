//! Which step a request belongs to, and when a step is over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rollscope_run::{Run, RunError, StepSet, WriterState};
use rollscope_trace::{Profile, StepNumber};

/// The steps, and the numbers that weight versions were given.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Open steps and when something was last recorded of each.
    open: BTreeMap<StepNumber, Instant>,
    /// What still comes of these is late; nothing opens them again.
    closed: StepSet,
    /// The largest step of which anything was recorded, be it still open or not.
    begun: StepNumber,
    /// The largest that goes on at another recorder of the run.
    begun_elsewhere: StepNumber,
    /// When the first late record came that was not yet handed on for sealing.
    late_since: Option<Instant>,
    versions: BTreeMap<Box<str>, StepNumber>,
    /// The last step that was given to a weight version, or that there was before.
    last: StepNumber,
    /// The last step that a request without a header belonged to.
    current: Option<StepNumber>,
}

// === impl Steps ===

impl Steps {
    /// Goes on where the run stands. Steps that a killed recorder left open are ours now, with the weights that
    /// answered in them; while another writer than our `own` lives only those that others have `left`.
    pub(crate) fn resume(
        run: &Run,
        own: &str,
        left: &BTreeMap<String, BTreeSet<StepNumber>>,
        now: Instant,
    ) -> Result<Self, RunError> {
        let is_alone =
            run.writers()?.iter().all(|writer| *writer.name == *own || writer.state != WriterState::Live);
        // Of those that are no longer kept the run tells nothing else.
        let forgotten = run.forgotten_steps()?;
        let largest = forgotten.last().unwrap_or_default();
        let mut steps = Self { closed: forgotten, begun: largest, last: largest, ..Self::default() };
        for summary in run.steps()? {
            let step = summary.step;
            steps.last = steps.last.max(step);
            steps.begun = steps.begun.max(step);
            if summary.close.is_some() {
                steps.closed.insert(step);
            } else if is_alone || left.values().any(|left| left.contains(&step)) {
                let trace = run.step(step)?;
                let versions = trace.requests().filter_map(|request| request.weight_version());
                steps.versions.extend(versions.map(|version| (version.into(), step)));
                steps.open.insert(step, now);
                steps.current = Some(step);
            }
        }
        Ok(steps)
    }

    /// The step of a request: as its header says; else by the weights that answered: the step in which they answered
    /// one with a header, else numbered in order of appearance, after every step that was named; else, as with a request that failed, the step that such requests belong to at present.
    pub(crate) fn of(&mut self, profile: &Profile) -> StepNumber {
        if let Some(step) = profile.join.step {
            // Requests that name none follow those that do: what a trainer calls a step is what these weights answer.
            self.last = self.last.max(step);
            self.current = Some(step);
            if let Some(version) = profile.weight_version() {
                self.versions.insert(version.into(), step);
            }
            return step;
        }
        let step = match profile.weight_version() {
            Some(version) => self.of_version(version),
            None => self.current.unwrap_or(self.next()),
        };
        self.current = Some(step);
        step
    }

    fn of_version(&mut self, version: &str) -> StepNumber {
        if let Some(step) = self.versions.get(version) {
            return *step;
        }
        let step = self.next();
        self.last = step;
        self.versions.insert(version.into(), step);
        step
    }

    fn next(&self) -> StepNumber {
        StepNumber(self.last.0.saturating_add(1))
    }

    /// Something was recorded of a step.
    pub(crate) fn touch(&mut self, step: StepNumber, now: Instant) {
        self.begun = self.begun.max(step);
        if self.closed.contains(&step) {
            self.late_since.get_or_insert(now);
        } else {
            self.open.insert(step, now);
        }
    }

    /// Whether anything was ever recorded of a step.
    pub(crate) fn knows(&self, step: StepNumber) -> bool {
        self.open.contains_key(&step) || self.closed.contains(&step)
    }

    /// The step that goes on at present, as far as is known: the latest of which anything was recorded, or the one after
    /// it if a request of that is live. Nothing before the first.
    pub(crate) fn present(&self, live: &BTreeSet<StepNumber>) -> Option<StepNumber> {
        let begun = self.is_any_begun().then_some(self.begun);
        let candidates = begun.map_or([0, 1], |begun| [begun.0, begun.0.saturating_add(1)]).map(StepNumber);
        candidates.into_iter().rev().find(|step| live.contains(step)).or(begun)
    }

    /// Whether anything was recorded of any step.
    fn is_any_begun(&self) -> bool {
        !self.open.is_empty() || !self.closed.is_empty()
    }

    /// The step is closed.
    pub(crate) fn close(&mut self, step: StepNumber) {
        self.open.remove(&step);
        self.closed.insert(step);
    }

    /// What goes on at another recorder has begun too.
    pub(crate) fn heard_of(&mut self, steps: &BTreeSet<StepNumber>) {
        self.begun_elsewhere = self.begun_elsewhere.max(steps.last().copied().unwrap_or_default());
    }

    /// Another recorder has left a step open: it is ours now.
    pub(crate) fn adopt(&mut self, step: StepNumber, now: Instant) {
        if !self.closed.contains(&step) {
            self.begun = self.begun.max(step);
            self.open.entry(step).or_insert(now);
        }
    }

    /// Another recorder has closed a step. What was recorded of it here since is late.
    pub(crate) fn closed_elsewhere(&mut self, step: StepNumber, now: Instant) {
        if self.open.contains_key(&step) {
            self.close(step);
            self.late_since.get_or_insert(now);
        }
    }

    /// Steps that go on: those with live requests that are not closed, and open ones that have not been quiet for `quiet`.
    pub(crate) fn busy(
        &self,
        live: &BTreeSet<StepNumber>,
        now: Instant,
        quiet: Duration,
    ) -> BTreeSet<StepNumber> {
        let is_recent = |touched: &Instant| now.saturating_duration_since(*touched) < quiet;
        let recent = self.open.iter().filter(|(_, touched)| is_recent(touched)).map(|(step, _)| *step);
        recent.chain(live.iter().copied().filter(|step| !self.closed.contains(step))).collect()
    }

    /// Whether late records have waited for `patience` to be sealed.
    pub(crate) fn is_late_due(&self, now: Instant, patience: Duration) -> bool {
        self.late_since.is_some_and(|since| now.saturating_duration_since(since) >= patience)
    }

    /// All that came late was handed on for sealing.
    pub(crate) fn late_handed_on(&mut self) {
        self.late_since = None;
    }

    /// Open steps that a later one has followed and that were quiet for `quiet`.
    pub(crate) fn superseded(&self, now: Instant, quiet: Duration) -> Vec<StepNumber> {
        let begun = self.begun.max(self.begun_elsewhere);
        let over = |(step, touched): (&StepNumber, &Instant)| {
            (*step < begun && now.saturating_duration_since(*touched) >= quiet).then_some(*step)
        };
        self.open.iter().filter_map(over).collect()
    }

    pub(crate) fn is_open(&self, step: StepNumber) -> bool {
        self.open.contains_key(&step)
    }

    /// All open steps.
    pub(crate) fn open(&self) -> BTreeSet<StepNumber> {
        self.open.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use rollscope_trace::{Join, Leg, LegRole, Nanos, Report, RequestId, Scalar, UnixNs, WorkerRef};

    use super::*;

    fn profile(step: Option<u64>, version: Option<&str>) -> Profile {
        let leg = Leg {
            report: Report::from_pairs(version.map(|version| ("weight_version", Scalar::Text(version)))),
            ..Leg::new(
                LegRole::Regular,
                WorkerRef { url: "http://w".into(), instance: "w".into() },
                Nanos(0),
                Nanos(1),
            )
        };
        Profile {
            join: Join { step: step.map(StepNumber), ..Join::default() },
            legs: vec![leg],
            ..Profile::new(RequestId(1), UnixNs(0), Nanos(1))
        }
    }

    #[test]
    fn passes_belong_to_the_step_that_goes_on() {
        let none = BTreeSet::new();
        let only = |live: u64| BTreeSet::from([StepNumber(live)]);
        let mut steps = Steps::default();
        assert_eq!(steps.present(&none), None);
        assert_eq!(steps.present(&only(1)), Some(StepNumber(1)));
        steps.touch(StepNumber(4), Instant::now());
        steps.close(StepNumber(4));
        assert_eq!(steps.present(&none), Some(StepNumber(4)));
        assert_eq!(steps.present(&only(5)), Some(StepNumber(5)));
        assert_eq!(steps.present(&only(9)), Some(StepNumber(4)));
    }

    #[test]
    fn other_recorders_are_told_what_goes_on_and_tell_what_has_begun_ended_or_was_left() {
        let (start, quiet) = (Instant::now(), Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        let set = |steps: &[u64]| steps.iter().copied().map(StepNumber).collect::<BTreeSet<_>>();
        let mut steps = Steps::default();
        for step in 1..=3 {
            steps.touch(StepNumber(step), at(10 * step));
        }
        steps.close(StepNumber(2));
        assert_eq!(steps.busy(&set(&[2, 9]), at(30), quiet), set(&[3, 9]));
        assert_eq!(steps.superseded(at(60), quiet), [StepNumber(1)]);
        steps.heard_of(&set(&[2, 7]));
        assert_eq!(steps.superseded(at(60), quiet), [StepNumber(1), StepNumber(3)]);
        steps.closed_elsewhere(StepNumber(1), at(60));
        assert!(steps.is_late_due(at(70), quiet), "what it had of it is sealed");
        steps.adopt(StepNumber(1), at(61));
        steps.adopt(StepNumber(5), at(61));
        assert_eq!(steps.open(), set(&[3, 5]), "what is over is not gone on with");
    }

    #[test]
    fn weight_versions_are_numbered_in_order_of_appearance() {
        let mut steps = Steps { last: StepNumber(4), ..Steps::default() };
        let mut of = |step, version| steps.of(&profile(step, version)).0;
        assert_eq!(of(None, None), 5);
        assert_eq!(of(None, Some("v-b")), 5);
        assert_eq!(of(None, Some("v-a")), 6);
        assert_eq!(of(None, None), 6);
        assert_eq!(of(None, Some("v-b")), 5);
        assert_eq!(of(Some(40), Some("v-a")), 40);
        // From now on those without a header go with those that have one, and never into a step before.
        assert_eq!((of(None, Some("v-a")), of(None, None)), (40, 40));
        assert_eq!(of(None, Some("v-c")), 41);
    }

    #[test]
    fn a_step_is_superseded_by_a_later_one_when_it_has_been_quiet() {
        let (start, quiet) = (Instant::now(), Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut steps = Steps::default();
        steps.touch(StepNumber(1), at(0));
        assert_eq!(steps.superseded(at(100), quiet), []);
        steps.touch(StepNumber(2), at(100));
        steps.touch(StepNumber(1), at(101));
        assert_eq!(steps.superseded(at(110), quiet), []);
        assert_eq!(steps.superseded(at(111), quiet), [StepNumber(1)]);
        steps.close(StepNumber(1));
        assert_eq!(steps.open(), BTreeSet::from([StepNumber(2)]));
        // That the later one is over already makes no difference.
        steps.touch(StepNumber(3), at(112));
        steps.close(StepNumber(3));
        assert_eq!(steps.superseded(at(122), quiet), [StepNumber(2)]);
    }

    #[test]
    fn what_comes_late_opens_nothing_and_waits_for_a_while() {
        let (start, patience) = (Instant::now(), Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut steps = Steps::default();
        steps.touch(StepNumber(1), at(0));
        steps.close(StepNumber(1));
        for seconds in [1, 9] {
            steps.touch(StepNumber(1), at(seconds));
        }
        assert!(steps.knows(StepNumber(1)) && !steps.knows(StepNumber(2)));
        assert!(steps.open().is_empty());
        assert!(!steps.is_late_due(at(10), patience) && steps.is_late_due(at(11), patience));
        steps.late_handed_on();
        assert!(!steps.is_late_due(at(100), patience));
    }
}
