//! The run behind the API: followed, so that asking what is new costs only what is new.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use rollscope_run::{Drops, Follow, Run, RunError, WriterSummary};
use rollscope_trace::{CloseReason, Record, SampleKey, StepNumber, StepTrace};

/// A run that is read. Every method may block on the disk.
#[derive(Debug)]
pub(crate) struct Source {
    run: Run,
    tail: Mutex<Tail>,
    /// The step that was asked for last, since a page asks for its numbers and its samples.
    last: Mutex<Option<(StepVersion, Arc<StepTrace>)>>,
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
    follow: Follow,
    steps: BTreeMap<StepNumber, Tally>,
    dropped: Drops,
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
    pub(crate) samples: usize,
    /// Spans of the user's own code.
    pub(crate) user_spans: u64,
    /// Why it was closed; nothing while it is open.
    pub(crate) closed: Option<CloseReason>,
}

/// Counts a step's records.
#[derive(Debug)]
struct Tally {
    state: StepState,
    samples: HashSet<SampleKey>,
}

/// What is known of a run at one moment.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) steps: Vec<StepState>,
    pub(crate) dropped: Drops,
    /// Places in the log that could not be read, a sentence each.
    pub(crate) damage: Vec<String>,
}

// === impl Source ===

impl Source {
    pub(crate) fn new(run: Run) -> Self {
        let tail = Tail { follow: run.follow(), steps: BTreeMap::new(), dropped: Drops::default() };
        Self { run, tail: Mutex::new(tail), last: Mutex::new(None) }
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
        Ok(Index {
            steps: tail.steps.values().map(|tally| tally.state).collect(),
            dropped: tail.dropped,
            damage: tail.follow.damage().map(|damage| damage.to_string()).collect(),
        })
    }

    /// All that is known of a step now.
    pub(crate) fn step(&self, step: StepNumber) -> Result<Arc<StepTrace>, RunError> {
        // The version is taken first: what is added meanwhile is read, and read again for the next version.
        let version = {
            let mut tail = self.tail.lock();
            tail.catch_up()?;
            tail.steps.get(&step).map(|tally| tally.state.version).ok_or(RunError::NoSuchStep { step })?
        };
        let wanted = StepVersion { step, version };
        let mut last = self.last.lock();
        if let Some((held, trace)) = &*last
            && *held == wanted
        {
            return Ok(trace.clone());
        }
        let trace = Arc::new(self.run.step(step)?);
        *last = Some((wanted, trace.clone()));
        Ok(trace)
    }
}

// === impl Tail ===

impl Tail {
    fn catch_up(&mut self) -> Result<(), RunError> {
        loop {
            let records = self.follow.poll()?;
            if records.is_empty() {
                return Ok(());
            }
            for record in records {
                self.take(record);
            }
        }
    }

    fn take(&mut self, record: Record) {
        if let Record::Dropped(count) = &record {
            self.dropped.profiles += count.profiles;
            self.dropped.user_records += count.user_records;
        }
        if let Some(step) = record.step() {
            self.steps.entry(step).or_insert_with(|| Tally::new(step)).take(record);
        }
    }
}

// === impl Tally ===

impl Tally {
    fn new(step: StepNumber) -> Self {
        let state = StepState { step, version: 0, requests: 0, samples: 0, user_spans: 0, closed: None };
        Self { state, samples: HashSet::new() }
    }

    fn take(&mut self, record: Record) {
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
                return;
            }
            Record::Dropped(_) => return,
        };
        self.samples.insert(key);
        self.state.samples = self.samples.len();
    }
}
