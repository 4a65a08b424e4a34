//! The run behind the API: followed, so that asking what is new costs only what is new.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rollscope_insight::{Company, time_of_passes};
use rollscope_run::{Drops, Run, RunError, SentMetrics, WriterSummary};
use rollscope_trace::{SampleTrace, StepNumber, StepTrace};

use crate::folder::Folder;
use crate::given::Given;
use crate::glance::{Found, Glance};
use crate::latest::Latest;
use crate::passes::{self, CallPasses, Passes};
use crate::reach::Reach;
use crate::search::Matches;
use crate::sight::Window;
use crate::step::{SharedStep, StepView, Wanted};
use crate::tail::{StepState, Tail};
use crate::workers::Fleet;

/// Steps that are kept: the one that is shown, one that it is compared with, and the one shown before.
const KEPT_STEPS: usize = 3;

/// A run that is read. Every method may block on the disk.
#[derive(Debug)]
pub(crate) struct Source {
    run: Run,
    /// The folder that the run had at first.
    folder: Option<Folder>,
    tail: Mutex<Tail>,
    /// Steps that are not in the run's folder.
    given: Given,
    /// The steps that were asked for last.
    held: Mutex<Latest<StepVersion, SharedStep>>,
    /// What was kept of steps that were asked for last.
    glances: Mutex<Latest<StepVersion, Arc<Glance>>>,
    /// When the calls of a step were, of those whose calls were looked at.
    reaches: Mutex<HashMap<StepNumber, Reach>>,
    /// The forward passes that were asked for last, with their number.
    passes: Mutex<Option<(StepVersion, u64, Arc<Passes>)>>,
}

/// A step and how much is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepVersion {
    step: StepNumber,
    version: u64,
}

/// What is known of a run at one moment.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) steps: Vec<(StepState, Option<SentMetrics>)>,
    pub(crate) dropped: Drops,
    /// What can not be read, and what became of the run's folder, a sentence each.
    pub(crate) damage: Vec<String>,
    /// Whether more is being read from elsewhere.
    pub(crate) is_reading: bool,
}

// === impl Source ===

impl Source {
    /// A run, and steps of it that are not in its folder.
    pub(crate) fn new(run: Run, given: Given) -> Self {
        Self {
            folder: Folder::at(run.dir()),
            tail: Mutex::new(Tail::new(&run)),
            run,
            given,
            held: Mutex::default(),
            glances: Mutex::default(),
            reaches: Mutex::default(),
            passes: Mutex::default(),
        }
    }

    pub(crate) fn run(&self) -> &Run {
        &self.run
    }

    pub(crate) fn writers(&self) -> Result<Vec<WriterSummary>, RunError> {
        self.run.writers()
    }

    /// The steps so far.
    pub(crate) fn index(&self) -> Result<Index, RunError> {
        let mut tail = self.tail.lock();
        tail.catch_up()?;
        // Of a folder that is another one what was seen of the first is not shown beside what is new.
        let replaced = self.replaced();
        let own = tail.steps.iter().filter(|_| replaced.is_none());
        let own = own.map(|(step, tally)| (tally.state, tail.sent.get(step).cloned()));
        let damage = tail.follow.damage().map(|damage| damage.to_string());
        // What is being read is asked first: when nothing is any more, all of it is in the list.
        let is_reading = self.given.is_reading();
        Ok(Index {
            steps: own.chain(self.given.states().into_iter().map(|state| (state, None))).collect(),
            dropped: tail.dropped,
            damage: replaced.into_iter().chain(damage).chain(self.given.trouble()).collect(),
            is_reading,
        })
    }

    /// The last of the steps, where there is one and it can be told.
    pub(crate) fn newest(&self) -> Option<StepNumber> {
        self.index().ok()?.steps.last().map(|(state, _)| state.step)
    }

    /// What became of the run's folder, if it is no longer the first.
    fn replaced(&self) -> Option<String> {
        Folder::replaced(self.folder.as_ref(), self.run.dir())
    }

    /// How a step stands now; there is none in a folder that is another one.
    pub(crate) fn state(&self, step: StepNumber) -> Result<StepState, RunError> {
        if let Some(state) = self.given.state(step) {
            return Ok(state);
        }
        if self.replaced().is_some() {
            return Err(RunError::NoSuchStep { step });
        }
        let mut tail = self.tail.lock();
        tail.catch_up()?;
        tail.steps.get(&step).map(|tally| tally.state).ok_or(RunError::NoSuchStep { step })
    }

    /// The forward passes of a step, of which `state` told, and which stand where `fleet` says.
    pub(crate) fn passes(&self, fleet: &Fleet, state: StepState) -> Result<Arc<Passes>, RunError> {
        let wanted = StepVersion { step: state.step, version: state.version };
        let mut held = self.passes.lock();
        if let Some((version, count, passes)) = &*held
            && (*version, *count) == (wanted, state.passes)
        {
            return Ok(passes.clone());
        }
        let made = Arc::new(Passes::of(fleet, &self.run.forward_passes(state.step)?));
        *held = Some((wanted, state.passes, made.clone()));
        Ok(made)
    }

    /// The passes that the requests of a sample sat in, call by call. They may stand with the steps around its own too, and so
    /// may who shared them; of those steps, `may_read` says which fit into memory. Of others what was kept is asked.
    pub(crate) fn sample_passes(
        &self,
        step: StepNumber,
        sample: &SampleTrace,
        may_read: impl Fn(&StepState) -> bool,
    ) -> Result<Vec<CallPasses>, RunError> {
        let Some(time) = time_of_passes(&sample.requests) else { return Ok(Vec::new()) };
        let heard = self.run.passes_within(step, &time)?;
        if heard.is_empty() {
            return Ok(Vec::new());
        }
        let states: Vec<StepState> = self.tail.lock().steps.values().map(|tally| tally.state).collect();
        let steps = states.into_iter().filter(|state| state.requests > 0);
        let steps: Vec<StepNumber> = steps.map(|state| state.step).collect();
        let company = Company::around(step, &steps, |company, other| {
            let state = self.state(other)?;
            if self.reaches.lock().get(&other).is_some_and(|reach| reach.is_beside(state.version, &time)) {
                return Ok(false);
            }
            let mut reach = Reach { version: state.version, time: None };
            let mut add = |trace: &StepTrace| {
                reach.widen(trace);
                company.add(trace, &time)
            };
            let is_any = if !may_read(&state) {
                // Of what is not known, those beyond it may tell.
                let Some(glance) = self.glance_in_passing(other)? else { return Ok(true) };
                let Some(tiles) = glance.calls(other) else { return Ok(true) };
                tiles.fold(false, |is_any, tile| add(&tile) | is_any)
            } else if other == step {
                add(self.step(step)?.trace())
            } else {
                // Looked at in passing, it takes no other's place. One at a time is in memory beside those that are held.
                let held = self.held.lock();
                match held.peek(&StepVersion { step: other, version: state.version }) {
                    Some(neighbour) => add(neighbour.trace()),
                    None => add(&self.run.step(other)?),
                }
            };
            self.reaches.lock().insert(other, reach);
            Ok::<_, RunError>(is_any)
        })?;
        Ok(passes::of_sample(sample, &heard, &company))
    }

    /// The calls of a sample, if they were kept.
    pub(crate) fn kept_calls(&self, step: StepNumber, row: u32) -> Result<Found<SampleTrace>, RunError> {
        Ok(self.glance(step)?.map_or(Found::NotKept, |glance| glance.sample_calls(step, row)))
    }

    /// Where a text is found, if the step's texts were kept.
    pub(crate) fn find_kept(&self, step: StepNumber, text: &str) -> Result<Option<Matches>, RunError> {
        Ok(self.glance(step)?.and_then(|glance| glance.find(text)))
    }

    /// What was kept for an answer when the step was sealed, if the step has not grown since.
    pub(crate) fn glanced(
        &self,
        step: StepNumber,
        wanted: Wanted,
        window: Option<Window>,
    ) -> Result<Found, RunError> {
        Ok(self.glance(step)?.map_or(Found::NotKept, |glance| glance.answer(wanted, window)))
    }

    /// Where its forward passes stand, if that was kept.
    pub(crate) fn glanced_fleet(&self, step: StepNumber) -> Result<Option<Arc<Fleet>>, RunError> {
        Ok(self.glance(step)?.and_then(|glance| glance.fleet()))
    }

    fn glance(&self, step: StepNumber) -> Result<Option<Arc<Glance>>, RunError> {
        let version = self.version(step)?;
        let mut glances = self.glances.lock();
        if let Some(glance) = glances.get(&version) {
            return Ok(Some(glance));
        }
        // That there is none is not kept in mind: it is made a moment after the step was sealed.
        let Some(glance) = self.open_glance(step)?.map(Arc::new) else { return Ok(None) };
        glances.retain(|held| held.step != step);
        glances.put(version, glance.clone(), |held| held.len() > KEPT_STEPS);
        Ok(Some(glance))
    }

    /// The same of a step that is looked at in passing, which takes no other's place.
    fn glance_in_passing(&self, step: StepNumber) -> Result<Option<Arc<Glance>>, RunError> {
        let version = self.version(step)?;
        let held = self.glances.lock().peek(&version);
        if held.is_some() { Ok(held) } else { Ok(self.open_glance(step)?.map(Arc::new)) }
    }

    /// What was kept of a step that has not grown since, which is nothing where it cannot be read.
    fn open_glance(&self, step: StepNumber) -> Result<Option<Glance>, RunError> {
        if self.given.state(step).is_some() || !self.tail.lock().follow.is_sealed(step)? {
            return Ok(None);
        }
        Ok(self.run.glance(step)?.map(|blocks| Glance::open(blocks).unwrap_or_default()))
    }

    fn version(&self, step: StepNumber) -> Result<StepVersion, RunError> {
        Ok(StepVersion { step, version: self.state(step)?.version })
    }

    /// All that is known of a step now.
    pub(crate) fn step(&self, step: StepNumber) -> Result<SharedStep, RunError> {
        if let Some(view) = self.given.step(step) {
            return Ok(view);
        }
        // The version is taken first: what is added meanwhile is read, and read again for the next version.
        let wanted = self.version(step)?;
        let mut held = self.held.lock();
        if let Some(view) = held.get(&wanted) {
            return Ok(view);
        }
        // An older version is let go before the newer is read, so that both are never in memory.
        held.retain(|held| held.step != step);
        let view = Arc::new(StepView::new(self.run.step(step)?));
        held.put(wanted, view.clone(), |held| held.len() > KEPT_STEPS);
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rollscope_run::{GlanceBlocks, LogOptions, LogWriter, RunInfo};
    use rollscope_trace::{
        ForwardPass, Join, Leg, LegRole, Nanos, PassLoad, Profile, Record, Report, RequestId, Scalar, UnixNs,
        WorkerRef,
    };
    use serde_json::json;

    use super::*;
    use crate::glance::{Keep, kept};

    const SECOND: Nanos = Nanos(1_000_000_000);
    const HOUR: Nanos = Nanos(3600 * SECOND.0);
    const BEGIN: UnixNs = UnixNs(1_760_000_000_123_456_789);

    /// A request of a step that sat in pass 7 of the worker's rank 1.
    fn request(step: StepNumber, worker: &WorkerRef, arrival: UnixNs) -> Record {
        let told =
            [("forward_pass_first_counter_id", 7.0), ("forward_pass_last_counter_id", 7.0), ("dp_rank", 1.0)];
        let told = told.map(|(name, value)| (name, Scalar::Number(value)));
        let leg = Leg::new(LegRole::Regular, worker.clone(), Nanos(0), SECOND);
        let profile = Profile {
            join: Join { step: Some(step), sample: Some("a".into()), ..Join::default() },
            legs: vec![Leg { report: Report::from_pairs(told), ..leg }],
            ..Profile::new(RequestId(step.0.into()), arrival, SECOND)
        };
        Record::Profile(Box::new(profile))
    }

    /// Six steps with a request each, so long after each other, of which that of the fourth sat in a pass that was heard of; the
    /// folder lives as long as the first of what is given.
    fn six_steps(apart: Nanos) -> (tempfile::TempDir, Run, LogWriter) {
        let dir = tempfile::tempdir().unwrap();
        let info = RunInfo { producer: "a test".into(), created: UnixNs(0), config: serde_json::Value::Null };
        let run = Run::create(&dir.path().join("run"), &info).unwrap();
        let mut writer = run.writer("gateway", LogOptions::default()).unwrap();
        let worker = WorkerRef { url: "http://127.0.0.1:1".into(), instance: "w".into() };
        let arrival = |step: u64| BEGIN.after(Nanos(step * apart.0));
        for step in 1..=6 {
            writer.append(&request(StepNumber(step), &worker, arrival(step))).unwrap();
        }
        let scheduled = PassLoad { decode_requests: 6, ..PassLoad::default() };
        let pass = ForwardPass::new("ipc:///tmp/passes.1", 7, arrival(4).after(SECOND));
        let pass =
            ForwardPass { step: Some(StepNumber(4)), worker: Some(worker), dp_rank: 1, scheduled, ..pass };
        writer.append(&Record::ForwardPass(Box::new(pass))).unwrap();
        writer.flush().unwrap();
        (dir, run, writer)
    }

    /// Seals all of them, and keeps so much of each.
    fn seal(run: &Run, writer: &LogWriter, kept: impl Fn(&StepView) -> GlanceBlocks) {
        run.sealer(writer.name()).seal(writer.position()).unwrap();
        for step in (1..=6).map(StepNumber) {
            let kept = kept(&StepView::new(run.step(step).unwrap()));
            run.put_glance(step, run.sealed_state(step).unwrap(), kept).unwrap();
        }
    }

    fn everything(step: &StepView) -> GlanceBlocks {
        kept(step, Keep::Everything).unwrap()
    }

    #[test]
    fn of_steps_that_cannot_be_read_what_was_kept_tells_who_shared_passes() {
        let (_dir, run, writer) = six_steps(Nanos(0));
        seal(&run, &writer, everything);
        let source = Source::new(run, Given::default());
        let step = StepNumber(4);
        let view = source.step(step).unwrap();
        let sample = view.sample(0).unwrap();
        let read = source.sample_passes(step, sample, |_| true).unwrap();
        let Found::Answer(calls) = source.kept_calls(step, 0).unwrap() else { panic!("they are kept") };
        assert_eq!(calls.requests[0].arrival, sample.requests[0].arrival);
        let kept = source.sample_passes(step, &calls, |_| false).unwrap();
        assert_eq!(serde_json::to_value(&kept).unwrap(), serde_json::to_value(&read).unwrap());
        assert_eq!(serde_json::to_value(&kept).unwrap()[0]["shared_with"], json!(5));
        assert_eq!(source.find_kept(step, "127.0.0.1").unwrap().unwrap(), view.find("127.0.0.1"));
    }

    #[test]
    fn a_folder_that_is_removed_or_replaced_is_told() {
        let (dir, run, _writer) = six_steps(Nanos(0));
        let path = run.dir().to_owned();
        let source = Source::new(run, Given::default());
        assert_eq!(source.index().unwrap().damage, [""; 0]);
        let aside = dir.path().with_extension("aside");
        std::fs::rename(&path, &aside).unwrap();
        let damage = source.index().unwrap().damage;
        assert!(damage[0].starts_with("the run's folder was removed: "), "{damage:?}");
        let steps = || (source.index().unwrap().steps.len(), source.step(StepNumber(1)).is_ok());
        assert_eq!(steps(), (0, false), "nothing of the old one is shown beside a new one");
        // The old one is still there, so that the new one has another number.
        std::fs::create_dir(&path).unwrap();
        let damage = source.index().unwrap().damage;
        assert!(damage[0].starts_with("the run's folder was removed and made again: "), "{damage:?}");
        assert_eq!(steps(), (0, false));
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
        assert_eq!(source.index().unwrap().damage, [""; 0]);
    }

    #[test]
    fn steps_that_are_looked_at_in_passing_take_no_place() {
        let (_dir, run, _writer) = six_steps(Nanos(0));
        let source = Source::new(run, Given::default());
        let held = [1, 3, 4].map(|step| source.step(StepNumber(step)).unwrap());
        let shown = &held[2];
        let calls = source.sample_passes(StepNumber(4), shown.sample(0).unwrap(), |_| true).unwrap();
        let calls = serde_json::to_value(calls).unwrap();
        assert_eq!(calls[0]["shared_with"], json!(5), "of the steps around it, all are looked at: {calls}");
        for before in &held {
            let again = source.step(before.trace().step).unwrap();
            assert!(Arc::ptr_eq(before, &again), "{:?} is read again", before.trace().step);
        }
    }

    #[test]
    fn what_was_kept_of_steps_that_are_looked_at_in_passing_takes_no_place() {
        let (_dir, run, writer) = six_steps(Nanos(0));
        seal(&run, &writer, everything);
        let source = Source::new(run, Given::default());
        let held = [1, 3, 4].map(|step| source.glance(StepNumber(step)).unwrap().unwrap());
        let Found::Answer(calls) = source.kept_calls(StepNumber(4), 0).unwrap() else {
            panic!("they are kept")
        };
        let calls = source.sample_passes(StepNumber(4), &calls, |_| false).unwrap();
        assert_eq!(serde_json::to_value(calls).unwrap()[0]["shared_with"], json!(5));
        for (step, before) in [1, 3, 4].into_iter().zip(&held) {
            let again = source.glance(StepNumber(step)).unwrap().unwrap();
            assert!(Arc::ptr_eq(before, &again), "that of {step} is opened again");
        }
    }

    #[test]
    fn a_step_whose_calls_are_known_to_lie_beside_is_not_read() {
        let shared = |source: &Source| {
            let view = source.step(StepNumber(4)).unwrap();
            let calls = source.sample_passes(StepNumber(4), view.sample(0).unwrap(), |_| true).unwrap();
            serde_json::to_value(calls).unwrap()[0]["shared_with"].clone()
        };
        let (_dir, run, _writer) = six_steps(HOUR);
        let source = Source::new(run, Given::default());
        for _ in 0..2 {
            assert_eq!(shared(&source), json!(0));
            let known: BTreeMap<StepNumber, _> =
                source.reaches.lock().iter().map(|(step, reach)| (*step, reach.time.clone())).collect();
            let time = |step: u64| {
                let arrival = BEGIN.after(Nanos(step * HOUR.0));
                (StepNumber(step), Some(arrival..=arrival.after(SECOND)))
            };
            assert_eq!(known, [3, 4, 5].map(time).into());
        }

        // All at one time; of the third something else is said to be known.
        let (_dir, run, _writer) = six_steps(Nanos(0));
        let source = Source::new(run, Given::default());
        let version = source.version(StepNumber(3)).unwrap().version;
        for (version, expected) in [(version, 2), (version - 1, 5)] {
            source.reaches.lock().insert(StepNumber(3), Reach { version, time: None });
            assert_eq!(shared(&source), json!(expected), "of version {version}");
        }
    }

    #[test]
    fn what_was_kept_by_another_version_is_not_opened_again() {
        let (_dir, run, writer) = six_steps(HOUR);
        let other = br#"{"version":1,"answers":[],"places":null}"#;
        seal(&run, &writer, |_| {
            let mut blocks = GlanceBlocks::default();
            blocks.push(&[&other[..], b"\n"].concat()).unwrap();
            blocks
        });
        let source = Source::new(run, Given::default());
        let glance = || source.glance(StepNumber(4)).unwrap().unwrap();
        assert_eq!(glance().answer(Wanted::Table, None), Found::NotKept);
        assert!(Arc::ptr_eq(&glance(), &glance()));
    }
}
