//! The run behind the API: followed, so that asking what is new costs only what is new.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use rollscope_insight::{Company, time_of_passes};
use rollscope_run::{Drops, Follow, Run, RunError, SentMetrics, StepSummary, WriterSummary};
use rollscope_trace::{CloseReason, Record, SampleKey, SampleTrace, StepNumber};

use crate::given::Given;
use crate::glance::{Found, Glance};
use crate::latest::Latest;
use crate::passes::{self, CallPasses, Passes};
use crate::search::Matches;
use crate::sight::Window;
use crate::step::{SharedStep, StepView, Wanted};
use crate::workers::Fleet;

/// Steps that are kept: the one that is shown, one that it is compared with, and the one shown before.
const KEPT_STEPS: usize = 3;

/// A run that is read. Every method may block on the disk.
#[derive(Debug)]
pub(crate) struct Source {
    run: Run,
    tail: Mutex<Tail>,
    /// Steps that are not in the run's folder.
    given: Given,
    /// The steps that were asked for last.
    held: Mutex<Latest<StepVersion, SharedStep>>,
    /// What was kept of steps that were asked for last.
    glances: Mutex<Latest<StepVersion, Arc<Glance>>>,
    /// The forward passes that were asked for last, with their number.
    passes: Mutex<Option<(StepVersion, u64, Arc<Passes>)>>,
}

/// A step and how much is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepVersion {
    step: StepNumber,
    version: u64,
}

/// What the follower has seen.
#[derive(Debug)]
struct Tail {
    run: Run,
    follow: Follow,
    steps: BTreeMap<StepNumber, Tally>,
    /// Of steps of which nothing else is known yet.
    early_passes: BTreeMap<StepNumber, u64>,
    dropped: Drops,
    is_begun: bool,
    /// What trackers were sent, by step; read anew when a step was closed.
    sent: HashMap<StepNumber, SentMetrics>,
}

/// What is known of a step without its records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepState {
    /// Which step.
    pub(crate) step: StepNumber,
    /// Grows with every record but forward passes.
    pub(crate) version: u64,
    /// Requests that have ended.
    pub(crate) requests: u64,
    /// Samples of which anything is known.
    pub(crate) samples: u64,
    /// Spans of the user's own code.
    pub(crate) user_spans: u64,
    /// Forward passes that were heard of meanwhile; no part of the version.
    pub(crate) passes: u64,
    /// Why it was closed; nothing while it is open.
    pub(crate) closed: Option<CloseReason>,
}

/// Counts a step's records.
#[derive(Debug)]
struct Tally {
    state: StepState,
    /// Of a step that has been sealed nothing, until more comes of it.
    samples: Option<HashSet<SampleKey>>,
}

/// What is known of a run at one moment.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) steps: Vec<(StepState, Option<SentMetrics>)>,
    pub(crate) dropped: Drops,
    /// Places in the log that could not be read, a sentence each.
    pub(crate) damage: Vec<String>,
    /// Whether more is being read from elsewhere.
    pub(crate) is_reading: bool,
}

// === impl Source ===

impl Source {
    /// A run, and steps of it that are not in its folder.
    pub(crate) fn new(run: Run, given: Given) -> Self {
        let tail = Tail {
            run: run.clone(),
            follow: run.follow(),
            steps: BTreeMap::new(),
            early_passes: BTreeMap::new(),
            dropped: Drops::default(),
            is_begun: false,
            sent: HashMap::new(),
        };
        Self {
            run,
            tail: Mutex::new(tail),
            given,
            held: Mutex::default(),
            glances: Mutex::default(),
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
        let own = tail.steps.iter().map(|(step, tally)| (tally.state, tail.sent.get(step).cloned()));
        let damage = tail.follow.damage().map(|damage| damage.to_string());
        // What is being read is asked first: when nothing is any more, all of it is in the list.
        let is_reading = self.given.is_reading();
        Ok(Index {
            steps: own.chain(self.given.states().into_iter().map(|state| (state, None))).collect(),
            dropped: tail.dropped,
            damage: damage.chain(self.given.trouble()).collect(),
            is_reading,
        })
    }

    /// The last of the steps, where there is one and it can be told.
    pub(crate) fn newest(&self) -> Option<StepNumber> {
        self.index().ok()?.steps.last().map(|(state, _)| state.step)
    }

    /// How a step stands now.
    pub(crate) fn state(&self, step: StepNumber) -> Result<StepState, RunError> {
        if let Some(state) = self.given.state(step) {
            return Ok(state);
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
            if !may_read(&self.state(other)?) {
                // Of what is not known, those beyond it may tell.
                let Some(glance) = self.glance(other)? else { return Ok(true) };
                let Some(tiles) = glance.calls(other) else { return Ok(true) };
                return Ok(tiles.fold(false, |is_any, tile| company.add(&tile, &time) | is_any));
            }
            if other == step {
                return Ok(company.add(self.step(step)?.trace(), &time));
            }
            let wanted = self.version(other)?;
            // Looked at in passing, it takes no other's place. One at a time is in memory beside those that are held.
            let held = self.held.lock();
            Ok::<_, RunError>(match held.peek(&wanted) {
                Some(neighbour) => company.add(neighbour.trace(), &time),
                None => company.add(&self.run.step(other)?, &time),
            })
        })?;
        Ok(passes::of_sample(sample, &heard, &company))
    }

    /// The calls of a sample, if they were kept.
    pub(crate) fn kept_calls(&self, step: StepNumber, row: u32) -> Result<Option<SampleTrace>, RunError> {
        Ok(self.glance(step)?.and_then(|glance| glance.sample_calls(step, row)))
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
        if self.given.state(step).is_some() {
            return Ok(None);
        }
        let version = self.version(step)?;
        let mut glances = self.glances.lock();
        if let Some(glance) = glances.get(&version) {
            return Ok(Some(glance));
        }
        if !self.tail.lock().follow.is_sealed(step)? {
            return Ok(None);
        }
        // That there is none is not kept in mind: it is made a moment after the step was sealed.
        let Some(glance) = self.run.glance(step)?.and_then(Glance::open).map(Arc::new) else {
            return Ok(None);
        };
        glances.retain(|held| held.step != step);
        glances.put(version, glance.clone(), |held| held.len() > KEPT_STEPS);
        Ok(Some(glance))
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

// === impl Tail ===

impl Tail {
    fn catch_up(&mut self) -> Result<(), RunError> {
        let mut is_closed = false;
        if !self.is_begun {
            let (steps, dropped) = self.follow.skip_sealed()?;
            is_closed = steps.iter().any(|summary| summary.close.is_some());
            self.steps.extend(steps.iter().map(|summary| (summary.step, Tally::sealed(summary))));
            self.dropped = dropped;
            self.is_begun = true;
        }
        loop {
            let records = self.follow.poll()?;
            if records.is_empty() {
                break;
            }
            for record in records {
                is_closed |= matches!(record, Record::Close(_));
                self.take(record)?;
            }
        }
        // Numbers are sent a moment after the close, so they may come with a later one.
        let is_missing = |(step, tally): (&StepNumber, &Tally)| {
            tally.state.closed.is_some() && !self.sent.contains_key(step)
        };
        if is_closed || self.steps.iter().next_back().is_some_and(is_missing) {
            self.sent = self.run.metrics()?.into_iter().map(|sent| (sent.step, sent)).collect();
        }
        Ok(())
    }

    fn take(&mut self, record: Record) -> Result<(), RunError> {
        if let Record::Dropped(count) = &record {
            self.dropped.profiles += count.profiles;
            self.dropped.user_records += count.user_records;
        }
        let Some(step) = record.step() else { return Ok(()) };
        if matches!(record, Record::ForwardPass(_)) {
            // It makes no step, and changes nothing of one but its passes.
            match self.steps.get_mut(&step) {
                Some(tally) => tally.state.passes += 1,
                None => *self.early_passes.entry(step).or_default() += 1,
            }
        } else {
            let early = self.early_passes.remove(&step).unwrap_or_default();
            self.steps.entry(step).or_insert_with(|| Tally::new(step, early)).take(&self.run, record)?;
        }
        Ok(())
    }
}

// === impl Tally ===

impl Tally {
    fn new(step: StepNumber, passes: u64) -> Self {
        let state =
            StepState { step, version: 0, requests: 0, samples: 0, user_spans: 0, passes, closed: None };
        Self { state, samples: Some(HashSet::new()) }
    }

    fn sealed(summary: &StepSummary) -> Self {
        let StepSummary { step, requests, samples, user_spans, passes, .. } = *summary;
        let closed = summary.close.map(|close| close.reason);
        Self {
            state: StepState { step, version: 1, requests, samples, user_spans, passes, closed },
            samples: None,
        }
    }

    fn take(&mut self, run: &Run, record: Record) -> Result<(), RunError> {
        self.state.version += 1;
        let key = match record {
            Record::Profile(profile) => {
                self.state.requests += 1;
                profile.sample_key(self.state.step)
            }
            Record::Span(span) => {
                self.state.user_spans += 1;
                span.key
            }
            Record::Sample(mark) => mark.key,
            Record::Close(close) => {
                self.state.closed = Some(close.reason);
                return Ok(());
            }
            Record::ForwardPass(_) | Record::Dropped(_) => return Ok(()),
        };
        let samples = match &mut self.samples {
            Some(samples) => samples,
            None => self.samples.insert(run.sealed_samples(self.state.step)?.into_iter().collect()),
        };
        samples.insert(key);
        self.state.samples = samples.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rollscope_run::{LogOptions, LogWriter, RunInfo};
    use rollscope_trace::{
        ForwardPass, Join, Leg, LegRole, Nanos, PassLoad, Profile, Report, RequestId, Scalar, UnixNs,
        WorkerRef,
    };
    use serde_json::json;

    use super::*;
    use crate::glance::{Keep, kept};

    const SECOND: Nanos = Nanos(1_000_000_000);

    /// A request of a step that sat in the worker's pass 7, at the same time as those of all other steps.
    fn request(step: StepNumber, worker: &WorkerRef) -> Record {
        let told = ["forward_pass_first_counter_id", "forward_pass_last_counter_id"]
            .map(|name| (name, Scalar::Number(7.0)));
        let leg = Leg::new(LegRole::Regular, worker.clone(), Nanos(0), SECOND);
        let profile = Profile {
            join: Join { step: Some(step), sample: Some("a".into()), ..Join::default() },
            legs: vec![Leg { report: Report::from_pairs(told), ..leg }],
            ..Profile::new(RequestId(step.0.into()), UnixNs(0), SECOND)
        };
        Record::Profile(Box::new(profile))
    }

    /// Six steps with a request each, of which all sat in one pass; the folder lives as long as the first of them.
    fn six_steps() -> (tempfile::TempDir, Run, LogWriter) {
        let dir = tempfile::tempdir().unwrap();
        let info = RunInfo { producer: "a test".into(), created: UnixNs(0), config: serde_json::Value::Null };
        let run = Run::create(&dir.path().join("run"), &info).unwrap();
        let mut writer = run.writer("gateway", LogOptions::default()).unwrap();
        let worker = WorkerRef { url: "http://127.0.0.1:1".into(), instance: "w".into() };
        for step in 1..=6 {
            writer.append(&request(StepNumber(step), &worker)).unwrap();
        }
        let scheduled = PassLoad { decode_requests: 6, ..PassLoad::default() };
        let pass = ForwardPass::new("ipc:///tmp/passes.0", 7, UnixNs(0).after(SECOND));
        let pass = ForwardPass { step: Some(StepNumber(4)), worker: Some(worker), scheduled, ..pass };
        writer.append(&Record::ForwardPass(Box::new(pass))).unwrap();
        writer.flush().unwrap();
        (dir, run, writer)
    }

    #[test]
    fn of_steps_that_cannot_be_read_what_was_kept_tells_who_shared_passes() {
        let (_dir, run, writer) = six_steps();
        run.sealer(writer.name()).seal(writer.position()).unwrap();
        for step in (1..=6).map(StepNumber) {
            let kept = kept(&StepView::new(run.step(step).unwrap()), Keep::Everything).unwrap();
            run.put_glance(step, run.sealed_state(step).unwrap(), kept).unwrap();
        }
        let source = Source::new(run, Given::default());
        let step = StepNumber(4);
        let view = source.step(step).unwrap();
        let read = source.sample_passes(step, view.sample(0).unwrap(), |_| true).unwrap();
        let calls = source.kept_calls(step, 0).unwrap().unwrap();
        let kept = source.sample_passes(step, &calls, |_| false).unwrap();
        assert_eq!(serde_json::to_value(&kept).unwrap(), serde_json::to_value(&read).unwrap());
        assert_eq!(serde_json::to_value(&kept).unwrap()[0]["shared_with"], json!(5));
        assert_eq!(source.find_kept(step, "127.0.0.1").unwrap().unwrap(), view.find("127.0.0.1"));
    }

    #[test]
    fn steps_that_are_looked_at_in_passing_take_no_place() {
        let (_dir, run, _writer) = six_steps();
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
}
