//! Recording what has already happened: a file of others becomes a run, with every step closed and sealed.
//!
//! What the run has already is passed over, so that a file may be imported again, or in pieces that overlap.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use rollscope_run::{LogOptions, LogWriter, Run};
use rollscope_trace::{
    CloseReason, Record, RequestId, SampleKey, SampleMark, StepClose, StepNumber, StepTrace, UnixNs, UserSpan,
};

use crate::sealing::put_numbers;
use crate::{MakeGlance, RecordError, StepClosed, StepEnd};

/// Writes records into a run, without a queue and without losses: whoever has them waits for the disk.
#[derive(Debug)]
pub struct OfflineRecorder {
    run: Run,
    log: LogWriter,
    /// When the last of a step's records was.
    steps: BTreeMap<StepNumber, UnixNs>,
    /// Those of which the records tell the end.
    ended: BTreeSet<StepNumber>,
    /// Steps that the run had before.
    before: BTreeSet<StepNumber>,
    /// What it had of those that anything has come for.
    known: HashMap<StepNumber, Known>,
    passed_over: u64,
}

/// What a run has of a step.
#[derive(Debug)]
struct Known {
    requests: HashSet<RequestId>,
    spans: HashMap<SampleKey, Vec<UserSpan>>,
    marks: HashMap<SampleKey, SampleMark>,
    close: Option<StepClose>,
}

// === impl OfflineRecorder ===

impl OfflineRecorder {
    /// Begins a log in a run.
    pub fn start(run: Run, writer: &str) -> Result<Self, RecordError> {
        let before = run.steps()?.into_iter().map(|summary| summary.step).collect();
        let log = run.writer(writer, LogOptions::default())?;
        Ok(Self {
            run,
            log,
            steps: BTreeMap::new(),
            ended: BTreeSet::new(),
            before,
            known: HashMap::new(),
            passed_over: 0,
        })
    }

    /// Writes a record that the run does not have; one that belongs to no step is an error of the run's.
    pub fn put(&mut self, record: &Record) -> Result<(), RecordError> {
        if self.is_known(record)? {
            self.passed_over += 1;
            return Ok(());
        }
        if let Record::Close(close) = record {
            self.ended.insert(close.step);
        }
        if let Some(step) = record.step() {
            let at = match record {
                Record::Profile(profile) => profile.ended_at(),
                Record::Span(span) => span.end.unwrap_or(span.start),
                // What whoever imports says of the end goes before what the file does.
                Record::Close(close) => close.at.offset_by(1),
                _ => UnixNs::default(),
            };
            let last = self.steps.entry(step).or_default();
            *last = at.max(*last);
        }
        Ok(self.log.append(record)?)
    }

    /// Records that the run had already.
    pub fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// Closes every step and leaves all of it in the log: for a run that is read once.
    pub fn close(mut self, end: StepEnd) -> Result<(), RecordError> {
        self.close_steps(end)?;
        Ok(self.log.end()?)
    }

    /// Closes every step of which there was something new, seals them and computes their numbers. `end` is what is known
    /// of each; a viewer's first sight of each is made by `glance`, and where one cannot be written that is told when all
    /// numbers are.
    pub fn finish(
        mut self,
        end: StepEnd,
        glance: Option<&MakeGlance>,
    ) -> Result<Vec<StepClosed>, RecordError> {
        if self.steps.is_empty() {
            self.log.abandon()?;
            return Ok(Vec::new());
        }
        self.close_steps(end)?;
        let name = self.log.name().to_owned();
        self.run.sealer(&name).seal(self.log.position())?;
        self.log.end()?;
        let mut metrics = self.run.metrics_log();
        let (mut closed, mut kept) = (Vec::new(), Ok(()));
        for step in self.steps.into_keys() {
            let computed = put_numbers(&self.run, step, None)?;
            metrics.append(step, &computed.closed.metrics)?;
            closed.push(computed.closed.clone());
            if let Some(make) = glance {
                kept = kept.and(computed.keep_glance(&self.run, make));
            }
        }
        Ok(kept.map(|()| closed)?)
    }

    fn close_steps(&mut self, end: StepEnd) -> Result<(), RecordError> {
        // An end that the records tell stands, unless something is to be said beside it.
        let is_told = |step: &StepNumber| end == StepEnd::default() && self.ended.contains(step);
        for (step, at) in self.steps.iter().filter(|(step, _)| !is_told(step)) {
            let (rollout_time, gpus) = (end.rollout_time, end.gpus);
            let close = StepClose { step: *step, at: *at, reason: CloseReason::Told, rollout_time, gpus };
            self.log.append(&Record::Close(close))?;
        }
        Ok(self.log.flush()?)
    }

    /// Leaves nothing of what was written.
    pub fn abandon(self) -> Result<(), RecordError> {
        Ok(self.log.abandon()?)
    }

    fn is_known(&mut self, record: &Record) -> Result<bool, RecordError> {
        let Some(step) = record.step().filter(|step| self.before.contains(step)) else {
            return Ok(false);
        };
        if !self.known.contains_key(&step) {
            self.known.insert(step, Known::of(&self.run.step(step)?));
        }
        Ok(self.known.get(&step).is_some_and(|known| known.has(record)))
    }
}

// === impl Known ===

impl Known {
    fn of(trace: &StepTrace) -> Self {
        let samples = || trace.samples.iter();
        let spans = samples().filter(|sample| !sample.spans.is_empty());
        Self {
            requests: trace.requests().map(|request| request.id).collect(),
            spans: spans.map(|sample| (sample.key.clone(), sample.spans.clone())).collect(),
            marks: samples().map(|sample| (sample.key.clone(), sample.mark.clone())).collect(),
            close: trace.close,
        }
    }

    fn has(&self, record: &Record) -> bool {
        match record {
            Record::Profile(profile) => self.requests.contains(&profile.id),
            Record::Span(span) => self.spans.get(&span.key).is_some_and(|spans| spans.contains(span)),
            Record::Sample(mark) => self.marks.get(&mark.key).is_some_and(|known| {
                let mut amended = known.clone();
                amended.amend(mark);
                // By what is shown, so that a reward that is NaN equals itself.
                format!("{amended:?}") == format!("{known:?}")
            }),
            Record::Close(close) => self.close.is_some_and(|known| {
                let tells_nothing_new =
                    close.rollout_time.is_none() || close.rollout_time == known.rollout_time;
                tells_nothing_new && (close.gpus.is_none() || close.gpus == known.gpus)
            }),
            Record::ForwardPass(_) | Record::Dropped(_) => false,
        }
    }
}
