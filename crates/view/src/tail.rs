//! What following a run has told of its steps.

use std::collections::{BTreeMap, HashMap, HashSet};

use rollscope_run::{Drops, Follow, MetricsFollow, Run, RunError, SentMetrics, StepSummary};
use rollscope_trace::{CloseReason, Record, SampleKey, StepNumber};

/// What the follower has seen.
#[derive(Debug)]
pub(crate) struct Tail {
    run: Run,
    pub(crate) follow: Follow,
    pub(crate) steps: BTreeMap<StepNumber, Tally>,
    /// Of steps of which nothing else is known yet.
    early_passes: BTreeMap<StepNumber, u64>,
    pub(crate) dropped: Drops,
    is_begun: bool,
    metrics: MetricsFollow,
    /// What trackers were sent last, by step.
    pub(crate) sent: HashMap<StepNumber, SentMetrics>,
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
pub(crate) struct Tally {
    pub(crate) state: StepState,
    /// Of a step that has been sealed nothing, until more comes of it.
    samples: Option<HashSet<SampleKey>>,
}

// === impl Tail ===

impl Tail {
    pub(crate) fn new(run: &Run) -> Self {
        Self {
            run: run.clone(),
            follow: run.follow(),
            steps: BTreeMap::new(),
            early_passes: BTreeMap::new(),
            dropped: Drops::default(),
            is_begun: false,
            metrics: run.follow_metrics(),
            sent: HashMap::new(),
        }
    }

    /// Takes in what is new.
    pub(crate) fn catch_up(&mut self) -> Result<(), RunError> {
        if !self.is_begun {
            let (steps, dropped) = self.follow.skip_sealed()?;
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
                self.take(record)?;
            }
        }
        self.metrics.each_new(|sent| {
            self.sent.insert(sent.step, sent);
            Ok(())
        })
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
