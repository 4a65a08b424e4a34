//! The writing thread: from the inbox into the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rollscope_run::{LogWriter, Run};
use rollscope_trace::{CloseReason, DropCount, Record, StepClose, StepNumber};
use tokio::sync::oneshot;

use crate::inbox::{Command, Inbox, Lost};
use crate::sealing::{self, ClosedStep, Job, StepClosed};
use crate::steps::Steps;
use crate::{RecordError, RecordOptions, StepEnd, clock};

/// How often the thread looks at the time when nothing arrives. Records reach the operating system sooner: with
/// each batch that is taken.
const TICK: Duration = Duration::from_millis(100);

/// A step that was ended by the user's code is closed so much later: the gateway offers a profile after the
/// client has the reply's last byte, so the last ones may still be on their way.
const SETTLE: Duration = Duration::from_millis(250);

/// What is to happen to a step that was told to end.
struct Ending {
    end: StepEnd,
    due: Instant,
    replies: Vec<oneshot::Sender<Result<StepClosed, RecordError>>>,
}

struct Writing {
    inbox: Arc<Inbox>,
    log: LogWriter,
    jobs: SyncSender<Job>,
    steps: Steps,
    ending: BTreeMap<StepNumber, Ending>,
    superseded_after: Duration,
    /// Losses that the log has been told of.
    logged: Lost,
    on_trouble: Arc<dyn Fn(&RecordError) + Send + Sync>,
    /// Whether the last write failed, so that a full disk is told of once.
    troubled: bool,
}

/// Starts the thread, and the sealing thread behind it.
pub(crate) fn spawn(
    run: &Run,
    log: LogWriter,
    inbox: Arc<Inbox>,
    options: &RecordOptions,
) -> Result<JoinHandle<Result<(), RecordError>>, RecordError> {
    let steps = Steps::after(run.steps()?.into_iter().map(|summary| summary.step));
    let on_trouble = Arc::clone(&options.on_trouble);
    let (jobs, sealing) = sealing::spawn(run.clone(), run.sealer(log.name()), Arc::clone(&on_trouble))?;
    let writing = Writing {
        inbox,
        log,
        jobs,
        steps,
        ending: BTreeMap::new(),
        superseded_after: options.superseded_after,
        logged: Lost::default(),
        on_trouble,
        troubled: false,
    };
    let work = move || {
        let ended = writing.work();
        let sealed = sealing.join().map_err(|_| RecordError::Panicked);
        ended.and(sealed)
    };
    let thread = std::thread::Builder::new().name("rollscope-writing".to_owned()).spawn(work);
    thread.map_err(RecordError::Thread)
}

// === impl Writing ===

impl Writing {
    fn work(mut self) -> Result<(), RecordError> {
        loop {
            let (commands, closed) = self.inbox.take(TICK);
            for command in commands {
                match command {
                    Command::Record(record) => self.record(record),
                    Command::EndStep { step, end, reply } => self.end_step(step, end, reply),
                }
            }
            self.count_losses();
            self.flush();
            self.close_due(Instant::now());
            if closed {
                return self.finish();
            }
        }
    }

    fn record(&mut self, mut record: Record) {
        if let Record::Profile(profile) = &mut record {
            profile.join.step = Some(self.steps.of(profile));
        }
        if let Some(step) = record.step() {
            self.steps.touch(step, Instant::now());
        }
        self.append(&record);
    }

    fn append(&mut self, record: &Record) {
        if let Err(error) = self.log.append(record) {
            self.inbox.count_unwritten(record);
            self.trouble(&error.into());
        }
    }

    fn flush(&mut self) {
        match self.log.flush() {
            Ok(()) => self.troubled = false,
            Err(error) => self.trouble(&error.into()),
        }
    }

    fn trouble(&mut self, error: &RecordError) {
        if !std::mem::replace(&mut self.troubled, true) {
            (self.on_trouble)(error);
        }
    }

    fn count_losses(&mut self) {
        let lost = self.inbox.lost();
        if lost != self.logged {
            let count = DropCount {
                at: clock::now(),
                profiles: lost.profiles - self.logged.profiles,
                user_records: lost.user_records - self.logged.user_records,
            };
            self.append(&Record::Dropped(count));
            self.logged = lost;
        }
    }

    fn end_step(
        &mut self,
        step: StepNumber,
        end: StepEnd,
        reply: oneshot::Sender<Result<StepClosed, RecordError>>,
    ) {
        let due = Instant::now() + SETTLE;
        let ending = self.ending.entry(step).or_insert(Ending { end, due, replies: Vec::new() });
        ending.end = end;
        ending.replies.push(reply);
    }

    fn close_due(&mut self, now: Instant) {
        let due: Vec<_> =
            self.ending.iter().filter(|(_, ending)| ending.due <= now).map(|(step, _)| *step).collect();
        let superseded = self.steps.superseded(now, self.superseded_after);
        let told = due.into_iter().map(|step| (step, CloseReason::Told));
        let closed: Vec<_> =
            told.chain(superseded.into_iter().map(|step| (step, CloseReason::Superseded))).collect();
        self.close(closed);
    }

    /// Marks steps as closed in the log and hands them on for sealing.
    fn close(&mut self, steps: Vec<(StepNumber, CloseReason)>) {
        if steps.is_empty() {
            return;
        }
        let mut closed: Vec<ClosedStep> = Vec::new();
        for (step, reason) in steps {
            let (end, replies) = self
                .ending
                .remove(&step)
                .map_or_else(Default::default, |ending| (ending.end, ending.replies));
            self.steps.close(step);
            self.append(&Record::Close(StepClose {
                step,
                at: clock::now(),
                reason,
                rollout_time: end.rollout_time,
                gpus: end.gpus,
            }));
            if replies.is_empty() {
                closed.push(ClosedStep { step, reply: None });
            }
            closed.extend(replies.into_iter().map(|reply| ClosedStep { step, reply: Some(reply) }));
        }
        self.flush();
        // The sealing thread is gone only if it has panicked, which the end of this one tells.
        let _handed_on = self.jobs.send(Job { up_to: self.log.position(), steps: closed });
    }

    /// Closes what is open and ends the log.
    fn finish(mut self) -> Result<(), RecordError> {
        let told: Vec<_> = self.ending.keys().map(|step| (*step, CloseReason::Told)).collect();
        self.close(told);
        let open = self.steps.open().into_iter().map(|step| (step, CloseReason::Shutdown)).collect();
        self.close(open);
        drop(self.jobs);
        Ok(self.log.end()?)
    }
}
