//! The sealing thread: turns what was written into parts, and closed steps into numbers.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use rollscope_run::{LogPosition, MetricsLog, Run, Sealer};
use rollscope_stats::{Figures, LateSample, WorkerFigures, step_numbers};
use rollscope_trace::{StepNumber, StepTrace};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

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

/// Makes what a viewer shows first of a step, as the run keeps it; nothing where it cannot be made.
pub type MakeGlance = Arc<dyn Fn(StepTrace) -> Option<Vec<u8>> + Send + Sync>;

/// To whom the numbers of a step go, or why there are none.
pub(crate) type Reply = oneshot::Sender<Result<StepClosed, Arc<RecordError>>>;

/// Steps that were closed, and how far the log had come by then.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) up_to: LogPosition,
    pub(crate) steps: Vec<ClosedStep>,
}

/// One of them, and who wants to know.
#[derive(Debug)]
pub(crate) struct ClosedStep {
    pub(crate) step: StepNumber,
    pub(crate) replies: Vec<Reply>,
}

/// What the thread works with.
struct Sealing {
    run: Run,
    sealer: Sealer,
    metrics: MetricsLog,
    tracking: Tracking,
    glance: Option<MakeGlance>,
    on_trouble: OnTrouble,
}

/// Jobs that wait at most; the writing thread then waits with them, and the inbox fills and drops.
const QUEUE_JOBS: usize = 64;

pub(crate) fn spawn(
    run: Run,
    sealer: Sealer,
    tracking: Tracking,
    options: &RecordOptions,
) -> Result<(SyncSender<Job>, JoinHandle<()>), RecordError> {
    let (jobs, queue) = sync_channel(QUEUE_JOBS);
    let (glance, on_trouble) = (options.glance.clone(), Arc::clone(&options.on_trouble));
    let mut sealing = Sealing { metrics: run.metrics_log(), run, sealer, tracking, glance, on_trouble };
    let work = move || queue.into_iter().for_each(|job| sealing.work(job));
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

/// Computes the numbers of a step and writes them, with what trackers do not get: the workers one by one, and the
/// samples that the step waited for. Then, what a viewer shows first.
pub(crate) fn put_numbers(
    run: &Run,
    step: StepNumber,
    glance: Option<&MakeGlance>,
) -> Result<StepClosed, RecordError> {
    let sealed = run.sealed_state(step)?;
    let trace = run.step(step)?;
    let numbers = step_numbers(&trace);
    let details = details(numbers.shown());
    let metrics: Map<String, Value> =
        numbers.metrics.into_iter().map(|(name, value)| (name, Value::from(value))).collect();
    let mut stats = Map::from_iter([("metrics".to_owned(), Value::Object(metrics.clone()))]);
    stats.extend(details);
    run.put_stats(step, &stats)?;
    if let Some(glance) = glance.and_then(|make| make(trace)) {
        run.put_glance(step, sealed, &glance)?;
    }
    Ok(StepClosed { step, metrics })
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

// === impl Sealing ===

impl Sealing {
    fn work(&mut self, job: Job) {
        // What cannot be sealed stays readable in the log, and is sealed with the next step.
        let sealed = self.sealer.seal(job.up_to).map_err(RecordError::from);
        let mut late = self.tell(&sealed).map(|sealed| sealed.late.clone()).unwrap_or_default();
        for ClosedStep { step, replies } in job.steps {
            late.remove(&step);
            let numbers = put_numbers(&self.run, step, self.glance.as_ref()).and_then(|numbers| {
                self.metrics.append(step, &numbers.metrics)?;
                self.tracking.tell();
                Ok(numbers)
            });
            self.tell(&numbers);
            answer(replies, numbers);
        }
        // What trackers were sent of a step is not sent again: late records amend the step's own file.
        for step in late {
            self.tell(&put_numbers(&self.run, step, self.glance.as_ref()));
        }
    }

    fn tell<'a, T>(&self, outcome: &'a Result<T, RecordError>) -> Option<&'a T> {
        outcome.as_ref().inspect_err(|error| (self.on_trouble)(error)).ok()
    }
}
