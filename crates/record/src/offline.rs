//! Recording what has already happened: files of others become a run, with every step closed and sealed.
//!
//! What the run has already is passed over, so that a file may be imported again, or in pieces that overlap. So is what
//! another file of the same import has told: it makes no difference whether files come at once or one after the other.
//! Within a file nothing is compared, since one dump does not hold a sample twice.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rollscope_run::{LogOptions, LogWriter, Run, StepSet};
use rollscope_trace::{
    CloseReason, Profile, Record, RequestId, SampleKey, SampleMark, StepClose, StepNumber, StepTrace, UnixNs,
    UserSpan,
};

use crate::sealing::{put_numbers, read_whole};
use crate::{MakeGlance, RecordError, StepClosed, StepEnd};

/// Writes records into a run, without a queue and without losses: whoever has them waits for the disk.
#[derive(Debug)]
pub struct OfflineRecorder {
    run: Run,
    log: LogWriter,
    /// The steps of which there is something new.
    steps: BTreeMap<StepNumber, Written>,
    /// Those of which the records tell the end.
    ended: BTreeSet<StepNumber>,
    /// Steps that the run had before.
    before: BTreeSet<StepNumber>,
    /// Steps that the run had, and does not keep any more.
    forgotten: StepSet,
    /// What is known of those that the run had before or several files tell of.
    known: HashMap<StepNumber, Known>,
    /// The file that is read.
    file: FileNumber,
    taken: Taken,
}

/// Records of a file, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// That were new.
    pub written: u64,
    /// That were known, from the run or another file.
    pub passed_over: u64,
}

/// What was written of a step.
#[derive(Debug)]
struct Written {
    /// When the last of its records was.
    last: UnixNs,
    /// The file that told of it first.
    file: FileNumber,
}

/// Counts the files of an import; 0 is what the run had.
type FileNumber = u32;

/// What there is of a step, with the file that told it.
#[derive(Debug)]
struct Known {
    requests: HashMap<RequestId, FileNumber>,
    spans: HashMap<SampleKey, Vec<(FileNumber, UserSpan)>>,
    marks: HashMap<SampleKey, SampleMark>,
    close: Option<StepClose>,
    /// When the last of its requests ended.
    last: UnixNs,
}

// === impl OfflineRecorder ===

impl OfflineRecorder {
    /// Begins a log in a run.
    pub fn start(run: Run, writer: &str) -> Result<Self, RecordError> {
        let before = run.steps()?.into_iter().map(|summary| summary.step).collect();
        let forgotten = run.forgotten_steps()?;
        let log = run.writer(writer, LogOptions::default())?;
        Ok(Self {
            run,
            log,
            steps: BTreeMap::new(),
            ended: BTreeSet::new(),
            before,
            forgotten,
            known: HashMap::new(),
            file: 1,
            taken: Taken::default(),
        })
    }

    /// What follows is of the next file. Gives what was taken of the one before.
    pub fn next_file(&mut self) -> Taken {
        self.file += 1;
        std::mem::take(&mut self.taken)
    }

    /// Writes a record that is not known; one that belongs to no step is an error of the run's, and one of a step of which
    /// the run has lost records, or does not keep them any more, is refused: which of them are known cannot be told.
    pub fn put(&mut self, record: &Record) -> Result<(), RecordError> {
        if self.is_known(record)? {
            // An end is of all parts of a step.
            self.taken.passed_over += u64::from(!matches!(record, Record::Close(_)));
            return Ok(());
        }
        self.taken.written += 1;
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
            let file = self.file;
            let written = self.steps.entry(step).or_insert(Written { last: UnixNs::default(), file });
            written.last = at.max(written.last);
        }
        Ok(self.log.append(record)?)
    }

    /// Closes every step and leaves all of it in the log: for a run that is read once.
    pub fn close(mut self, end: StepEnd) -> Result<(), RecordError> {
        self.close_steps(end)?;
        Ok(self.log.end()?)
    }

    /// Closes every step of which there was something new, seals them and computes their numbers. `end` is what is known
    /// of each, and is new to a step of which nothing else was; a viewer's first sight of each is made by `glance`, and
    /// where one cannot be written that is told when all numbers are.
    pub fn finish(
        mut self,
        end: StepEnd,
        glance: Option<&MakeGlance>,
    ) -> Result<Vec<StepClosed>, RecordError> {
        let file = self.file;
        for (step, known) in self.known.iter().filter(|(_, known)| known.is_told_more_by(end)) {
            self.steps.entry(*step).or_insert(Written { last: known.last, file });
        }
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
        for (step, written) in self.steps.iter().filter(|(step, _)| !is_told(step)) {
            // What is told now is the last word, whenever that was.
            let known = self.known.get(step).filter(|known| known.is_told_more_by(end));
            let before = known.and_then(|known| known.close).map(|close| close.at.offset_by(1));
            let at = written.last.max(before.unwrap_or_default());
            let (rollout_time, gpus) = (end.rollout_time, end.gpus);
            let close = StepClose { step: *step, at, reason: CloseReason::Told, rollout_time, gpus };
            self.log.append(&Record::Close(close))?;
        }
        Ok(self.log.flush()?)
    }

    /// Leaves nothing of what was written.
    pub fn abandon(self) -> Result<(), RecordError> {
        Ok(self.log.abandon()?)
    }

    /// Whether a record is known; if it is not, it is from now on.
    fn is_known(&mut self, record: &Record) -> Result<bool, RecordError> {
        let Some(step) = record.step() else { return Ok(false) };
        if self.forgotten.contains(&step) {
            return Err(RecordError::Forgotten { step });
        }
        if !self.known.contains_key(&step) {
            // A step that one file alone tells of is not kept in memory.
            let of_another =
                self.steps.get(&step).map(|written| written.file).filter(|file| *file != self.file);
            if of_another.is_none() && !self.before.contains(&step) {
                return Ok(false);
            }
            self.log.flush()?;
            self.known.insert(step, Known::of(&read_whole(&self.run, step)?));
        }
        Ok(self.known.get_mut(&step).is_some_and(|known| known.has_or_takes(record, self.file)))
    }
}

// === impl Known ===

impl Known {
    fn of(trace: &StepTrace) -> Self {
        let samples = || trace.samples.iter();
        let spans = samples().filter(|sample| !sample.spans.is_empty());
        let of_none = |span: &UserSpan| (0, span.clone());
        Self {
            requests: trace.requests().map(|request| (request.id, 0)).collect(),
            spans: spans
                .map(|sample| (sample.key.clone(), sample.spans.iter().map(of_none).collect()))
                .collect(),
            marks: samples().map(|sample| (sample.key.clone(), sample.mark.clone())).collect(),
            close: trace.close,
            last: trace.requests().map(Profile::ended_at).max().unwrap_or_default(),
        }
    }

    /// Whether the end of the step is told otherwise, or at all.
    fn is_told_more_by(&self, end: StepEnd) -> bool {
        let known = self.close.map_or_else(StepEnd::default, |close| StepEnd {
            rollout_time: close.rollout_time,
            gpus: close.gpus,
        });
        let more_of_time = end.rollout_time.is_some() && end.rollout_time != known.rollout_time;
        more_of_time || (end.gpus.is_some() && end.gpus != known.gpus)
    }

    /// Whether a record of a file is known from elsewhere. One that is not is, to the files that follow.
    fn has_or_takes(&mut self, record: &Record, file: FileNumber) -> bool {
        match record {
            Record::Profile(profile) => *self.requests.entry(profile.id).or_insert(file) != file,
            Record::Span(span) => {
                let spans = self.spans.entry(span.key.clone()).or_default();
                let is_known = spans.iter().any(|(of, known)| *of != file && known == span);
                if !is_known {
                    spans.push((file, span.clone()));
                }
                is_known
            }
            Record::Sample(mark) => {
                let Some(known) = self.marks.get_mut(&mark.key) else {
                    self.marks.insert(mark.key.clone(), mark.clone());
                    return false;
                };
                let before = format!("{known:?}");
                known.amend(mark);
                // By what is shown, so that a reward that is NaN equals itself.
                format!("{known:?}") == before
            }
            Record::Close(close) => {
                let end = StepEnd { rollout_time: close.rollout_time, gpus: close.gpus };
                let is_known = self.close.is_some() && !self.is_told_more_by(end);
                if !is_known {
                    self.close = StepClose::last_word(self.close.into_iter().chain([*close]));
                }
                is_known
            }
            Record::ForwardPass(_) | Record::Dropped(_) => false,
        }
    }
}
