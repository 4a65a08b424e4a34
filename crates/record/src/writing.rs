//! The writing thread: from the inbox into the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SendError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rollscope_run::{LogLock, LogOptions, LogWriter, Peers, Run};
use rollscope_trace::{CloseReason, DropCount, ForwardPass, Record, StepClose, StepNumber};

use crate::inbox::{Command, Inbox, Lost};
use crate::live::Live;
use crate::losses::{Stream, StreamCounts};
use crate::sealing::{self, ClosedStep, Closing, Job, Reply};
use crate::steps::Steps;
use crate::tracking::Tracking;
use crate::waiting::WaitingPasses;
use crate::{OnTrouble, RecordError, RecordOptions, RecorderHandle, StepEnd, clock};

mod peers;

/// How often the thread looks at what has arrived, and at the time. Records reach the operating system with each batch that
/// is taken.
const TICK: Duration = Duration::from_millis(50);

/// How often it is looked whether the log is still there, and who else writes the run.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A step that was ended by the user's code is closed so much later: the gateway offers a profile after the
/// client has the reply's last byte, so the last ones may still be on their way.
const SETTLE: Duration = Duration::from_millis(250);

/// Records since the last sealing that come to no more than this are sealed without being read back. In memory they take
/// about as much; more would be read into it when their step ends.
const KEEP_BYTES: usize = 128 << 20;

/// What is to happen to a step that was told to end.
struct Ending {
    end: StepEnd,
    due: Instant,
    replies: Vec<Reply>,
}

struct Writing {
    run: Run,
    inbox: Arc<Inbox>,
    live: Arc<Live>,
    log: LogWriter,
    /// Other recorders of the run.
    peers: Peers,
    /// Whether it was told that they cannot be told, or heard.
    peers_troubled: bool,
    /// Told when this one ends: whether others go on with the run.
    others_stay: Arc<AtomicBool>,
    jobs: SyncSender<Job>,
    steps: Steps,
    ending: BTreeMap<StepNumber, Ending>,
    superseded_after: Duration,
    /// It is not known yet which step goes on, or the log does not take them.
    waiting_passes: WaitingPasses,
    /// Not in the log; the next pass of the stream tells of them.
    lost_passes: StreamCounts,
    /// Losses that the log has been told of.
    logged: Lost,
    /// When it was seen last that the log is still there, and what was written since.
    looked: Instant,
    since_look: Lost,
    passes_since_look: StreamCounts,
    on_trouble: OnTrouble,
    /// Whether the last write failed, so that a full disk is told of once.
    troubled: bool,
}

/// Leaves nobody waiting for a thread that is gone, be it by a panic.
struct AbandonOnExit(Arc<Inbox>);

/// How the log is written.
pub(crate) fn log_options() -> LogOptions {
    LogOptions { keep_bytes: KEEP_BYTES, ..LogOptions::default() }
}

/// Starts the thread, and the sealing thread behind it. Gives where it is heard what came of their end; nothing comes where they
/// have panicked.
pub(crate) fn spawn(
    handle: &RecorderHandle,
    (log, peers): (LogWriter, Peers),
    steps: Steps,
    options: &RecordOptions,
) -> Result<Receiver<Result<(), RecordError>>, RecordError> {
    let RecorderHandle { inbox, live, run, timeline: _ } = handle.clone();
    let on_trouble = Arc::clone(&options.on_trouble);
    let others_stay = Arc::<AtomicBool>::default();
    let tracking = Tracking::spawn(&run, &options.trackers, &on_trouble, &others_stay)?;
    let (jobs, sealing) = sealing::spawn(run.clone(), log.name(), tracking, options)?;
    let abandon = AbandonOnExit(Arc::clone(&inbox));
    let ((tell, heard), tell_trouble) = (sync_channel(1), Arc::clone(&on_trouble));
    let writing = Writing {
        peers,
        peers_troubled: false,
        run,
        inbox,
        live,
        log,
        others_stay,
        jobs,
        steps,
        ending: BTreeMap::new(),
        superseded_after: options.superseded_after,
        waiting_passes: WaitingPasses::default(),
        lost_passes: StreamCounts::default(),
        logged: Lost::default(),
        looked: Instant::now(),
        since_look: Lost::default(),
        passes_since_look: StreamCounts::default(),
        on_trouble,
        troubled: false,
    };
    let work = move || {
        let _abandon = abandon;
        let (lock, ended) = writing.work();
        let sealed = sealing.join().map_err(|_| RecordError::Panicked);
        // Until then nobody else takes the log for one that is left unsealed.
        drop(lock);
        // Nobody waits for a recorder that was let go.
        if let Err(SendError(Err(error))) = tell.send(ended.and(sealed)) {
            tell_trouble(&error);
        }
    };
    let thread = std::thread::Builder::new().name("rollscope-writing".to_owned()).spawn(work);
    thread.map_err(RecordError::Thread)?;
    Ok(heard)
}

// === impl Writing ===

impl Writing {
    fn work(mut self) -> (LogLock, Result<(), RecordError>) {
        loop {
            // Asked before too: what is not live any more by then has been put in.
            let live = self.live.steps();
            let (commands, closed) = self.inbox.take(TICK);
            for command in commands {
                match command {
                    Command::Profile(profile) => self.record(Record::Profile(profile)),
                    Command::Record(record) => self.record(*record),
                    Command::EndStep { step, end, reply } => self.end_step(step, end, reply),
                }
            }
            self.record_waiting_passes();
            self.count_losses();
            self.flush();
            let now = Instant::now();
            let live = live.union(&self.live.steps()).copied().collect();
            self.look(now);
            self.tell_peers(&live, now);
            self.close_due(&live, now);
            if closed {
                return self.finish();
            }
        }
    }

    fn record(&mut self, mut record: Record) {
        if let Record::ForwardPass(pass) = record {
            return self.record_pass(pass);
        }
        if let Record::Profile(profile) = &mut record {
            profile.join.step = Some(self.steps.of(profile));
        }
        if let Some(step) = record.step() {
            // Of what is not open alone it is asked whether it is still kept, since that reads the run.
            if !self.steps.is_open(step) && self.is_forgotten(step) {
                let mut lost = Lost::default();
                lost.add(&record);
                return self.inbox.count_unwritten(lost);
            }
            self.steps.touch(step, Instant::now());
        }
        self.append(record);
        self.record_waiting_passes();
    }

    /// Passes go to the step that goes on, and keep none open. They are heard of before any request has ended.
    fn record_pass(&mut self, pass: Box<ForwardPass>) {
        self.let_wait(pass);
        self.record_waiting_passes();
    }

    fn let_wait(&mut self, pass: Box<ForwardPass>) {
        let Some(gone) = self.waiting_passes.push(pass).filter(|gone| !gone.is_rest()) else { return };
        self.lost_passes.add(Stream::of(&gone), gone.lost_before.saturating_add(1), gone.received);
        self.inbox.count_unwritten(Lost { passes: 1, ..Lost::default() });
    }

    fn record_waiting_passes(&mut self) {
        if self.waiting_passes.is_empty() {
            return;
        }
        let Some(step) = self.steps.present(&self.live.steps()) else { return };
        for mut pass in self.waiting_passes.take() {
            pass.step = Some(step);
            self.append_pass(pass);
        }
    }

    /// What the log does not take of a stream is told with its next pass. A rest is tried again: no other follows it soon.
    fn append_pass(&mut self, mut pass: Box<ForwardPass>) {
        if pass.is_rest() {
            if !self.append(Record::ForwardPass(pass.clone())) {
                self.let_wait(pass);
            }
            return;
        }
        let stream = Stream::of(&pass);
        pass.lost_before = pass.lost_before.saturating_add(self.lost_passes.take(&stream));
        let (passes, heard) = (pass.lost_before.saturating_add(1), pass.received);
        let is_taken = self.append(Record::ForwardPass(pass));
        let counts = if is_taken { &mut self.passes_since_look } else { &mut self.lost_passes };
        counts.add(stream, passes, heard);
    }

    /// Says whether the record was taken.
    fn append(&mut self, record: Record) -> bool {
        let mut counted = Lost::default();
        counted.add(&record);
        let taken = self.log.append_and_keep(record);
        if taken.is_err() {
            self.inbox.count_unwritten(counted);
        } else {
            self.since_look.add_all(counted);
        }
        taken.map_err(|error| self.trouble(&error.into())).is_ok()
    }

    /// Looks who else writes the run, and whether the log is still there. Of one that was removed nothing will ever be read: what it took since one
    /// looked last is counted as lost, and recording goes on in a new folder.
    fn look(&mut self, now: Instant) {
        if now.saturating_duration_since(self.looked) < LOOK_EVERY {
            return;
        }
        self.looked = now;
        self.look_at_peers(now);
        let written = std::mem::take(&mut self.since_look);
        let passes = std::mem::take(&mut self.passes_since_look);
        if self.log.is_there() {
            return;
        }
        self.inbox.count_unwritten(written);
        self.lost_passes.add_all(passes);
        (self.on_trouble)(&RecordError::Removed { path: self.run.dir().to_owned() });
        let name = self.log.name().to_owned();
        match self.run.restore().and_then(|()| self.run.writer(&name, log_options())) {
            Ok(log) => {
                self.peers = self.run.peers(&log);
                self.log = log;
            }
            Err(error) => self.trouble(&error.into()),
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
        // Of passes the next one of their stream tells.
        let lost = Lost { passes: 0, ..self.inbox.lost() };
        if lost != self.logged {
            let count = DropCount {
                at: clock::now(),
                profiles: lost.profiles - self.logged.profiles,
                user_records: lost.user_records - self.logged.user_records,
            };
            // What the log did not take is told with the next loss, or the next time that one looks.
            if self.append(Record::Dropped(count)) {
                self.logged = lost;
            }
        }
    }

    fn end_step(&mut self, step: StepNumber, end: StepEnd, reply: Reply) {
        let due = Instant::now() + SETTLE;
        let ending = self.ending.entry(step).or_insert(Ending { end, due, replies: Vec::new() });
        ending.end = end;
        ending.replies.push(reply);
    }

    fn close_due(&mut self, live: &BTreeSet<StepNumber>, now: Instant) {
        let due = self.ending.iter().filter(|(_, ending)| ending.due <= now);
        let told: Vec<_> = due.map(|(step, _)| (*step, CloseReason::Told)).collect();
        let mut superseded = Vec::new();
        let mut has_looked = false;
        for step in self.steps.superseded(now, self.superseded_after) {
            if live.contains(&step) {
                self.steps.touch(step, now);
                continue;
            }
            // A request of another recorder's may have begun a moment ago.
            if !self.peers.is_busy(step) && !std::mem::replace(&mut has_looked, true) {
                self.look_at_peers(now);
            }
            let is_open = self.steps.is_open(step) && !self.peers.is_busy(step);
            if is_open && !self.ending.contains_key(&step) {
                // One that was told to end is about to, with what was told.
                superseded.push((step, CloseReason::Superseded));
            }
        }
        let closed = self.close([told, superseded].concat());
        if !closed.is_empty() || self.steps.is_late_due(now, self.superseded_after) {
            self.hand_on(closed);
        }
    }

    /// Marks steps as closed in the log.
    fn close(&mut self, steps: Vec<(StepNumber, CloseReason)>) -> Vec<ClosedStep> {
        let mut closed = Vec::new();
        for (step, reason) in steps {
            let (end, replies) = self
                .ending
                .remove(&step)
                .map_or_else(Default::default, |ending| (ending.end, ending.replies));
            if let Err(error) = self.check_known(step) {
                sealing::answer(replies, Err(error));
                continue;
            }
            self.steps.close(step);
            self.append(Record::Close(StepClose {
                step,
                at: clock::now(),
                reason,
                rollout_time: end.rollout_time,
                gpus: end.gpus,
            }));
            closed.push(ClosedStep { step, replies });
        }
        closed
    }

    /// Refuses a step of which nothing was recorded, here or by another writer, and one that is no longer kept.
    fn check_known(&self, step: StepNumber) -> Result<(), RecordError> {
        if self.is_forgotten(step) {
            return Err(RecordError::Forgotten { step });
        }
        if !self.steps.knows(step) {
            self.run.step(step)?;
        }
        Ok(())
    }

    /// Where that cannot be read it is found out when the step is sealed.
    fn is_forgotten(&self, step: StepNumber) -> bool {
        self.run.forgotten_steps().is_ok_and(|forgotten| forgotten.contains(&step))
    }

    /// Has everything up to here sealed, and the numbers of closed steps computed.
    fn hand_on(&mut self, closed: Vec<ClosedStep>) {
        self.flush();
        self.steps.late_handed_on();
        let (writer, stretch) = (self.log.name().into(), self.log.stretch());
        self.give(Job::Seal(Box::new(Closing { writer, stretch, steps: closed })));
    }

    fn give(&mut self, job: Job) {
        if let Err(SendError(job)) = self.jobs.send(job) {
            // The sealing thread is gone only if it has panicked.
            self.trouble(&RecordError::Panicked);
            let Job::Seal(closing) = job else { return };
            for closed in closing.steps {
                sealing::answer(closed.replies, Err(RecordError::Panicked));
            }
        }
    }

    /// Closes what is open unless others go on with it, has it sealed with what came late, and ends the log.
    fn finish(mut self) -> (LogLock, Result<(), RecordError>) {
        let told = self.ending.keys().map(|step| (*step, CloseReason::Told)).collect();
        let mut closed = self.close(told);
        self.flush();
        let left = self.peers.leave(self.steps.open());
        // Where it is not known who stays, nobody else may close them.
        let (is_last, left) = self.told_or_troubled(left).unwrap_or((true, BTreeMap::new()));
        self.hear_peers(&left, Instant::now());
        self.others_stay.store(!is_last, Ordering::Relaxed);
        if is_last {
            let open = self.steps.open().into_iter().map(|step| (step, CloseReason::Shutdown)).collect();
            closed.extend(self.close(open));
        }
        self.hand_on(closed);
        drop(self.jobs);
        (self.log.lock(), self.log.end().map_err(RecordError::from))
    }
}

// === impl AbandonOnExit ===

impl Drop for AbandonOnExit {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
