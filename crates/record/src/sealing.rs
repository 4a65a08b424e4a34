//! The sealing thread: turns what was written into parts, and closed steps into numbers.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rollscope_run::{LogPosition, Run, Sealer};
use rollscope_stats::step_numbers;
use rollscope_trace::StepNumber;
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::RecordError;

/// What came of closing a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepClosed {
    /// The step.
    pub step: StepNumber,
    /// Its numbers, by the names that trackers show.
    pub metrics: Map<String, Value>,
}

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
    pub(crate) reply: Option<oneshot::Sender<Result<StepClosed, RecordError>>>,
}

/// Jobs that wait at most; the writing thread then waits with them, and the inbox fills and drops.
const QUEUE_JOBS: usize = 64;

pub(crate) fn spawn(
    run: Run,
    sealer: Sealer,
    on_trouble: Arc<dyn Fn(&RecordError) + Send + Sync>,
) -> Result<(SyncSender<Job>, JoinHandle<()>), RecordError> {
    let (jobs, queue) = sync_channel(QUEUE_JOBS);
    let work = move || work(&run, &sealer, &queue, &*on_trouble);
    let thread = std::thread::Builder::new().name("rollscope-sealing".to_owned()).spawn(work);
    Ok((jobs, thread.map_err(RecordError::Thread)?))
}

fn work(run: &Run, sealer: &Sealer, jobs: &Receiver<Job>, on_trouble: &dyn Fn(&RecordError)) {
    for job in jobs {
        // What cannot be sealed stays readable in the log, and is sealed with the next step.
        let outcome = sealer.seal(job.up_to).map_err(RecordError::from);
        if let Err(error) = &outcome {
            on_trouble(error);
        }
        let late = outcome.map(|sealed| sealed.late).unwrap_or_default();
        for closed in job.steps {
            let numbers = numbers(run, closed.step, true);
            if let Err(error) = &numbers {
                on_trouble(error);
            }
            if let Some(reply) = closed.reply {
                // Whoever asked may have left.
                let _sent = reply.send(numbers);
            }
        }
        for step in late {
            if let Err(error) = numbers(run, step, false) {
                on_trouble(&error);
            }
        }
    }
}

/// Computes the numbers of a step and writes them. What trackers are sent is written once; late records amend
/// only the step's own file.
fn numbers(run: &Run, step: StepNumber, send: bool) -> Result<StepClosed, RecordError> {
    let numbers = step_numbers(&run.step(step)?);
    let metrics: Map<String, Value> =
        numbers.metrics.into_iter().map(|(name, value)| (name, Value::from(value))).collect();
    run.put_stats(step, &metrics)?;
    if send {
        run.append_metrics(step, &metrics)?;
    }
    Ok(StepClosed { step, metrics })
}
