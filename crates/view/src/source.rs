//! The run behind the API: followed, so that asking what is new costs only what is new.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use rollscope_run::{Drops, Follow, Run, RunError, SentMetrics, StepSummary, WriterSummary};
use rollscope_trace::{CloseReason, Record, SampleKey, StepNumber};

use crate::step::{SharedStep, StepView};

/// Steps that are kept: the one that is shown, one that it is compared with, and the one shown before.
const KEPT_STEPS: usize = 3;

/// A run that is read. Every method may block on the disk.
#[derive(Debug)]
pub(crate) struct Source {
    run: Run,
    tail: Mutex<Tail>,
    /// The steps that were asked for last, the latest at the end.
    held: Mutex<Vec<(StepVersion, SharedStep)>>,
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
    /// Grows with every record.
    pub(crate) version: u64,
    /// Requests that have ended.
    pub(crate) requests: u64,
    /// Samples of which anything is known.
    pub(crate) samples: u64,
    /// Spans of the user's own code.
    pub(crate) user_spans: u64,
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
}

// === impl Source ===

impl Source {
    pub(crate) fn new(run: Run) -> Self {
        let tail = Tail {
            run: run.clone(),
            follow: run.follow(),
            steps: BTreeMap::new(),
            dropped: Drops::default(),
            is_begun: false,
            sent: HashMap::new(),
        };
        Self { run, tail: Mutex::new(tail), held: Mutex::default() }
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
        let steps = tail.steps.iter();
        Ok(Index {
            steps: steps.map(|(step, tally)| (tally.state, tail.sent.get(step).cloned())).collect(),
            dropped: tail.dropped,
            damage: tail.follow.damage().map(|damage| damage.to_string()).collect(),
        })
    }

    /// Requests and user's spans of a step so far.
    pub(crate) fn records(&self, step: StepNumber) -> Result<u64, RunError> {
        let mut tail = self.tail.lock();
        tail.catch_up()?;
        let tally = tail.steps.get(&step).ok_or(RunError::NoSuchStep { step })?;
        Ok(tally.state.requests + tally.state.user_spans)
    }

    /// All that is known of a step now.
    pub(crate) fn step(&self, step: StepNumber) -> Result<SharedStep, RunError> {
        // The version is taken first: what is added meanwhile is read, and read again for the next version.
        let version = {
            let mut tail = self.tail.lock();
            tail.catch_up()?;
            tail.steps.get(&step).map(|tally| tally.state.version).ok_or(RunError::NoSuchStep { step })?
        };
        let wanted = StepVersion { step, version };
        let mut held = self.held.lock();
        if let Some(at) = held.iter().position(|(held, _)| *held == wanted) {
            let found = held.remove(at);
            let view = found.1.clone();
            held.push(found);
            return Ok(view);
        }
        // An older version is let go before the newer is read, so that both are never in memory.
        held.retain(|(held, _)| held.step != step);
        let view = Arc::new(StepView::new(self.run.step(step)?));
        held.push((wanted, view.clone()));
        if held.len() > KEPT_STEPS {
            held.remove(0);
        }
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
        // A step is not what it was by a pass: nothing that is shown of it changes.
        let step = record.step().filter(|_| !matches!(record, Record::ForwardPass(_)));
        if let Some(step) = step {
            self.steps.entry(step).or_insert_with(|| Tally::new(step)).take(&self.run, record)?;
        }
        Ok(())
    }
}

// === impl Tally ===

impl Tally {
    fn new(step: StepNumber) -> Self {
        let state = StepState { step, version: 0, requests: 0, samples: 0, user_spans: 0, closed: None };
        Self { state, samples: Some(HashSet::new()) }
    }

    fn sealed(summary: &StepSummary) -> Self {
        let StepSummary { step, requests, samples, user_spans, .. } = *summary;
        let closed = summary.close.map(|close| close.reason);
        Self { state: StepState { step, version: 1, requests, samples, user_spans, closed }, samples: None }
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
