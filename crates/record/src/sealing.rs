//! The sealing thread: turns what was written into parts, and closed steps into numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rollscope_run::{
    DamageKind, GlanceBlocks, LogPosition, LogStretch, MetricsLog, Retention, Run, RunError, Sealed,
    SealedState, Sealer,
};
use rollscope_stats::{Figures, LateSample, StepNumbers, WorkerFigures, step_numbers};
use rollscope_trace::{StepNumber, StepTrace};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::archive::{Archive, MOST_SPARED};
use crate::tracking::Tracking;
use crate::{OnTrouble, RecordError, RecordOptions};

/// What came of closing a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepClosed {
    /// The step.
    pub step: StepNumber,
    /// Its numbers, by the names that trackers show.
    pub metrics: Map<String, Value>,
}

/// Makes of a step's trace and its numbers what a viewer shows without reading it, as the run keeps it; nothing where it cannot be
/// made.
pub type MakeGlance = Arc<dyn Fn(StepTrace, StepNumbers) -> Option<GlanceBlocks> + Send + Sync>;

/// To whom the numbers of a step go, or why there are none.
pub(crate) type Reply = oneshot::Sender<Result<StepClosed, Arc<RecordError>>>;

/// What the thread is given to do.
#[derive(Debug)]
pub(crate) enum Job {
    Seal(Box<Closing>),
    /// Another recorder has gone, and may have left its log unsealed.
    Leftovers,
}

/// Steps that were closed, and what the log has by then.
#[derive(Debug)]
pub(crate) struct Closing {
    /// Whose log it is; another one's when the run's folder had to be made again.
    pub(crate) writer: Box<str>,
    pub(crate) stretch: LogStretch,
    pub(crate) steps: Vec<ClosedStep>,
}

/// One of them, and who wants to know.
#[derive(Debug)]
pub(crate) struct ClosedStep {
    pub(crate) step: StepNumber,
    pub(crate) replies: Vec<Reply>,
}

/// A step whose numbers are written, and what a viewer's first sight of it is made of.
pub(crate) struct Computed {
    pub(crate) closed: StepClosed,
    sealed: SealedState,
    trace: StepTrace,
    numbers: StepNumbers,
}

/// What was sealed, and the steps that were read as a whole thereby.
type Gathered = (Sealed, BTreeMap<StepNumber, StepTrace>);

/// What the thread works with.
struct Sealing {
    run: Run,
    /// Of the log that was sealed last.
    sealer: Option<Sealer>,
    metrics: MetricsLog,
    /// Nothing when it has sent the last.
    tracking: Option<Tracking>,
    glance: Option<MakeGlance>,
    archive: Option<Archive>,
    retention: Retention,
    /// How far a log was to be sealed when that failed.
    unsealed: Option<(Box<str>, LogPosition)>,
    /// Closed steps whose numbers could not be written.
    unwritten: BTreeSet<StepNumber>,
    /// Whether others may have left something that could not be sealed.
    has_leftovers: bool,
    /// Steps that were sealed or whose numbers were written, and that the archive was not told of yet.
    changed: BTreeSet<StepNumber>,
    on_trouble: OnTrouble,
}

/// What could not be done, as on a full disk, is tried again so much later, and twice as much later each time.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
const AGAIN_AFTER_AT_MOST: Duration = Duration::from_mins(1);

/// Jobs that wait at most; the writing thread then waits with them, and the inbox fills and drops.
const QUEUE_JOBS: usize = 64;

pub(crate) fn spawn(
    run: Run,
    writer: &str,
    tracking: Tracking,
    options: &RecordOptions,
) -> Result<(SyncSender<Job>, JoinHandle<()>), RecordError> {
    let (jobs, queue) = sync_channel(QUEUE_JOBS);
    let place = options.archive.clone();
    let archive = place.map(|place| Archive::spawn(&run, writer, place, &options.on_trouble)).transpose()?;
    let sealing = Sealing {
        metrics: run.metrics_log(),
        run,
        sealer: None,
        tracking: Some(tracking),
        glance: options.glance.clone(),
        archive,
        retention: options.retention,
        unsealed: None,
        unwritten: BTreeSet::new(),
        has_leftovers: false,
        changed: BTreeSet::new(),
        on_trouble: Arc::clone(&options.on_trouble),
    };
    let work = move || sealing.work_through(&queue);
    let thread = std::thread::Builder::new().name("rollscope-sealing".to_owned()).spawn(work);
    Ok((jobs, thread.map_err(RecordError::Thread)?))
}

/// Tells everybody who waits for a step's end.
pub(crate) fn answer(replies: Vec<Reply>, closed: Result<StepClosed, RecordError>) {
    let closed = closed.map_err(Arc::new);
    for reply in replies {
        // Whoever asked may have left.
        let _sent = reply.send(closed.clone());
    }
}

/// Computes the numbers of a step, which has been read as a whole or is to be, and writes them, with what trackers do not
/// get: the workers one by one, and the samples that the step waited for. Refuses a step that is no longer kept, whose numbers
/// would become those of what is left.
pub(crate) fn put_numbers(
    run: &Run,
    step: StepNumber,
    trace: Option<StepTrace>,
) -> Result<Computed, RecordError> {
    if run.forgotten_steps()?.contains(&step) {
        return Err(RecordError::Forgotten { step });
    }
    let sealed = run.sealed_state(step)?;
    let trace = match trace {
        Some(trace) => trace,
        None => read_whole(run, step)?,
    };
    let numbers = step_numbers(&trace);
    let details = details(numbers.shown());
    let metrics: Map<String, Value> =
        numbers.metrics.iter().map(|(name, value)| (name.clone(), Value::from(*value))).collect();
    let mut stats = Map::from_iter([("metrics".to_owned(), Value::Object(metrics.clone()))]);
    stats.extend(details);
    run.put_stats(step, &stats)?;
    Ok(Computed { closed: StepClosed { step, metrics }, sealed, trace, numbers })
}

/// Everything known of a step, of whose parts none is lost.
pub(crate) fn read_whole(run: &Run, step: StepNumber) -> Result<StepTrace, RecordError> {
    let trace = run.step(step)?;
    let lost = run.losses(step)?.records.into_iter().find(|damage| damage.kind == DamageKind::Part);
    lost.map_or(Ok(trace), |damage| Err(RecordError::Lost { step, damage }))
}

/// `workers` and `late_samples` of a step.
fn details(figures: &Figures) -> [(String, Value); 2] {
    let worker = |of: &WorkerFigures| {
        json!({
            "url": &*of.worker.url, "instance": &*of.worker.instance, "role": of.role.name(),
            "requests": of.requests, "completed": of.completed, "requests_with_timings": of.timed,
            "tokens": of.tokens, "max_tokens": of.max_tokens, "idle_share": of.idle_share,
            "tokens_per_sec": of.tokens_per_sec, "others_tokens_per_sec": of.others_tokens_per_sec,
            "straggler": of.is_straggler,
        })
    };
    let sample = |of: &LateSample| {
        json!({
            "sample": of.key.to_string(),
            "duration_s": of.duration.as_secs_f64(), "ended_after_s": of.ended_after.as_secs_f64(),
        })
    };
    [
        ("workers".to_owned(), figures.workers.iter().map(worker).collect()),
        ("late_samples".to_owned(), figures.late_samples.iter().map(sample).collect()),
    ]
}

// === impl Computed ===

impl Computed {
    /// Has made, and keeps, what a viewer shows of the step without reading it.
    pub(crate) fn keep_glance(self, run: &Run, make: &MakeGlance) -> Result<(), RunError> {
        let Self { closed, sealed, trace, numbers } = self;
        make(trace, numbers).map_or(Ok(()), |glance| run.put_glance(closed.step, sealed, glance))
    }
}

// === impl Sealing ===

impl Sealing {
    fn work_through(mut self, queue: &Receiver<Job>) {
        self.work_on_leftovers();
        let mut again_at = None;
        let mut again_after = AGAIN_AFTER;
        loop {
            let job = if self.is_to_go_on() {
                let at = *again_at.get_or_insert_with(|| Instant::now() + again_after);
                queue.recv_timeout(at.saturating_duration_since(Instant::now()))
            } else {
                (again_at, again_after) = (None, AGAIN_AFTER);
                queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            match job {
                Ok(Job::Seal(closing)) => self.work(*closing),
                Ok(Job::Leftovers) => self.work_on_leftovers(),
                Err(RecvTimeoutError::Timeout) => {
                    self.work_again();
                    (again_at, again_after) = (None, (again_after * 2).min(AGAIN_AFTER_AT_MOST));
                }
                Err(RecvTimeoutError::Disconnected) => return self.finish(),
            }
        }
    }

    /// Whether something could not be done and is to be done again.
    fn is_to_go_on(&self) -> bool {
        self.unsealed.is_some() || !self.unwritten.is_empty() || self.has_leftovers
    }

    fn work_on_leftovers(&mut self) {
        let sealed = self.seal_leftovers();
        self.tell(&sealed);
        self.pass_on();
    }

    fn work(&mut self, closing: Closing) {
        let wanted = closing.steps.iter().map(|closed| closed.step).collect();
        self.announce(&wanted);
        let (sealed, mut traces) = self.seal(closing.writer, closing.stretch, &wanted);
        let mut late = sealed.late;
        for ClosedStep { step, replies } in closing.steps {
            late.remove(&step);
            let (numbers, computed) = match self.write_numbers(step, traces.remove(&step)) {
                Ok(computed) => (Ok(computed.closed.clone()), Some(computed)),
                Err(error) => (Err(error), None),
            };
            self.tell(&numbers);
            answer(replies, numbers);
            // Nobody waits for what a viewer shows of it, and nothing is lost where it cannot be kept.
            self.keep_glance(computed);
        }
        // Late records amend the step's numbers, and where they change them trackers are sent the step again.
        for step in late {
            let computed = self.write_numbers(step, None);
            self.tell(&computed);
            self.keep_glance(computed.ok());
        }
        self.pass_on();
    }

    /// What killed recorders have left, and nobody else will seal, with the numbers that they did not come to.
    fn seal_leftovers(&mut self) -> Result<(), RecordError> {
        self.has_leftovers = true;
        let announced = match &self.archive {
            Some(_) => self.ends_left().map(|ended| self.announce(&ended)),
            None => Ok(()),
        };
        let mut sealed = Sealed::default();
        let interrupted = self.run.seal_interrupted(&mut sealed);
        self.changed.extend(sealed.steps);
        self.unwritten.extend(sealed.late);
        let completed = self.complete_numbers();
        let outcome = announced.and(interrupted).and(completed);
        self.has_leftovers = outcome.is_err();
        self.write_unwritten();
        Ok(outcome?)
    }

    /// Steps whose end was not sealed.
    fn ends_left(&self) -> Result<BTreeSet<StepNumber>, RunError> {
        let sealed = self.run.closed_steps()?;
        let ended = self.run.steps()?.into_iter().filter(|summary| summary.close.is_some());
        Ok(ended.map(|summary| summary.step).filter(|step| !sealed.contains(step)).collect())
    }

    /// What is sealed can be removed, also before it is known to wait for the archive.
    fn announce(&self, steps: &BTreeSet<StepNumber>) {
        if let Some(archive) = &self.archive {
            self.tell(&archive.announce(steps).map_err(RecordError::from));
        }
    }

    /// Numbers that killed recorders have not come to compute, or to send.
    fn complete_numbers(&mut self) -> Result<(), RunError> {
        self.unwritten.extend(self.run.steps_without_numbers()?);
        let mut made_up = BTreeSet::new();
        let outcome = self.metrics.make_up(&mut made_up);
        if let Some(tracking) = self.tracking.as_ref().filter(|_| !made_up.is_empty()) {
            tracking.tell();
        }
        self.changed.extend(made_up);
        outcome
    }

    /// Has copied what is new, and removes what need not be kept any more.
    fn pass_on(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        let is_unchanged = changed.is_empty();
        if let Some(archive) = &self.archive {
            self.tell(&archive.bring(changed, self.is_to_go_on()).map_err(RecordError::from));
        }
        if is_unchanged {
            return;
        }
        self.retain(self.archive.as_ref().map(Archive::due).unwrap_or_default());
    }

    /// Removes what is beyond the limits and need not be copied any more, neither by this recorder nor by another.
    fn retain(&self, mut due: BTreeSet<StepNumber>) {
        match self.run.archive_due() {
            Ok(of_all) => due.extend(of_all),
            // Nothing is removed that somebody may wait for.
            Err(error) => return self.tell::<()>(&Err(error.into())),
        }
        let beyond = due.len().saturating_sub(MOST_SPARED);
        let spared = due.iter().skip(beyond).copied().collect();
        let retained = self.run.retain(self.retention, &spared).map_err(RecordError::from);
        self.tell(&retained);
        let lost: BTreeSet<StepNumber> = retained.unwrap_or_default().intersection(&due).copied().collect();
        let Some(first) = lost.first() else { return };
        if let Some(archive) = &self.archive {
            self.tell(&archive.give_up(&lost).map_err(RecordError::from));
        }
        (self.on_trouble)(&RecordError::NeverCopied { count: lost.len(), first: *first });
    }

    /// The archive has its time for what is left.
    fn finish(mut self) {
        self.work_again();
        // Before the archive has its time: another recorder that ends may be waiting for the trackers.
        self.tracking = None;
        if let Some(archive) = self.archive.take() {
            let due = archive.finish();
            self.retain(due);
        }
    }

    /// What could not be done before. That it still cannot is not told again.
    fn work_again(&mut self) {
        if let Some((writer, up_to)) = self.unsealed.take() {
            match self.sealer(&writer).seal(up_to) {
                Ok(sealed) => {
                    self.changed.extend(sealed.steps);
                    self.unwritten.extend(sealed.late);
                }
                Err(_) => self.unsealed = Some((writer, up_to)),
            }
        }
        if self.has_leftovers {
            let _sealed = self.seal_leftovers();
        } else {
            self.write_unwritten();
        }
        self.pass_on();
    }

    fn write_unwritten(&mut self) {
        for step in std::mem::take(&mut self.unwritten) {
            // Noted again where it fails.
            let computed = self.write_numbers(step, None);
            self.keep_glance(computed.ok());
        }
    }

    /// That of a log. There is another log only when the run's folder had to be made again.
    fn sealer(&mut self, writer: &str) -> &mut Sealer {
        let sealer = self.sealer.take().filter(|sealer| sealer.writer() == writer);
        self.sealer.insert(sealer.unwrap_or_else(|| self.run.sealer(writer)))
    }

    /// What cannot be sealed stays readable in the log until it can.
    fn seal(&mut self, writer: Box<str>, stretch: LogStretch, wanted: &BTreeSet<StepNumber>) -> Gathered {
        let up_to = stretch.end();
        let sealed = self.sealer(&writer).seal_and_gather(stretch, wanted).map_err(RecordError::from);
        self.unsealed = sealed.is_err().then_some((writer, up_to));
        self.tell(&sealed);
        let (sealed, traces) = sealed.unwrap_or_default();
        self.changed.extend(sealed.steps.iter().copied());
        (sealed, traces)
    }

    /// Computes the numbers of a closed step, which has been read as a whole or is to be, and has them sent if they are new.
    fn write_numbers(&mut self, step: StepNumber, trace: Option<StepTrace>) -> Result<Computed, RecordError> {
        let computed = put_numbers(&self.run, step, trace).and_then(|computed| {
            if self.metrics.append(step, &computed.closed.metrics)?
                && let Some(tracking) = &self.tracking
            {
                tracking.tell();
            }
            Ok(computed)
        });
        self.changed.extend(computed.is_ok().then_some(step));
        // What is lost or was removed does not come back.
        let is_final =
            |error: &RecordError| matches!(error, RecordError::Lost { .. } | RecordError::Forgotten { .. });
        if computed.as_ref().is_err_and(|error| !is_final(error)) {
            self.unwritten.insert(step);
        }
        computed
    }

    fn keep_glance(&self, computed: Option<Computed>) {
        if let (Some(computed), Some(make)) = (computed, &self.glance) {
            self.tell(&computed.keep_glance(&self.run, make).map_err(RecordError::from));
        }
    }

    /// That a step is no longer kept is no trouble: whoever told its end is answered so.
    fn tell<T>(&self, outcome: &Result<T, RecordError>) {
        match outcome {
            Ok(_) | Err(RecordError::Forgotten { .. }) => {}
            Err(error) => (self.on_trouble)(error),
        }
    }
}
