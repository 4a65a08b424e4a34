//! The tracking threads: what was written to metrics.jsonl goes to the trackers, one thread each.
//!
//! metrics.jsonl is the queue: a thread is merely told that there is something new, goes through the file, and sends
//! what its tracker does not have. A tracker that is away is tried again, ever less often; what it has not got when
//! the recorder ends is still in the file, which is told, and `rollscope track` sends it.
//!
//! A step whose numbers changed has a further line, and a tracker gets as many of a step's lines as there are. Of several
//! recorders of a run only one has a tracker open, and sends what all of them write; the others stand by until it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rollscope_run::{MetricsFollow, Run, SentMetrics};
use rollscope_track::{Numbers, Origin, Target, TrackError, Tracker};
use serde_json::Value;

use crate::{OnTrouble, RecordError};

/// The threads; dropped, they send what is left and end.
pub(crate) struct Tracking {
    threads: Vec<Thread>,
    /// The threads are waited for no more, and are to send nothing more.
    abandoned: Arc<AtomicBool>,
    on_trouble: OnTrouble,
}

struct Thread {
    target: Target,
    bell: SyncSender<()>,
    /// Hears nothing more when the thread has ended.
    ended: Receiver<()>,
    /// Gives whether the tracker has all there is.
    handle: JoinHandle<bool>,
}

struct Sending {
    run: Run,
    target: Target,
    tracker: Option<Tracker>,
    metrics: MetricsFollow,
    abandoned: Arc<AtomicBool>,
    others_stay: Arc<AtomicBool>,
    on_trouble: OnTrouble,
    /// Whether the last try failed, so that a tracker that is away is told of once.
    troubled: bool,
}

/// What came of sending.
enum Tried {
    /// The tracker has all there is, unless it was abandoned.
    HasAll,
    /// Another recorder of the run sends to it.
    Another,
    Failed,
}

/// After a failure a tracker is tried again so much later, and twice as much later each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// But no later than this.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// So often it is looked whether another recorder has written something, or has let a tracker go.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// So long the recorder's end is kept waiting by its trackers, be they away or only slow.
const LAST_TRIES: Duration = Duration::from_secs(5);

/// Sends every step of metrics.jsonl that a tracker does not have. Gives how many, and for the first step whose numbers it
/// did not all take which these were.
pub fn catch_up(run: &Run, tracker: &mut Tracker) -> Result<(u64, Option<TrackError>), RecordError> {
    send_new(&mut run.follow_metrics(), tracker, &AtomicBool::new(false))
}

/// Sends what is new in metrics.jsonl and a tracker does not have, until that is abandoned; gives what
/// [`catch_up`] does.
fn send_new(
    metrics: &mut MetricsFollow,
    tracker: &mut Tracker,
    abandoned: &AtomicBool,
) -> Result<(u64, Option<TrackError>), RecordError> {
    let (mut sent, mut left_out) = (0, None);
    metrics.each_new(|SentMetrics { step, time, data }| {
        if !abandoned.load(Ordering::Relaxed) && tracker.times(step.0) < time {
            let number = |(name, value): (String, Value)| Some((name, value.as_f64()?));
            let numbers: Numbers = data.into_iter().filter_map(number).collect();
            match tracker.send(step.0, &numbers) {
                // The step is there, and those that follow are sent as well.
                Err(error @ TrackError::LeftOut { .. }) => left_out = left_out.take().or(Some(error)),
                sent => sent?,
            }
            sent += 1;
        }
        Ok::<_, RecordError>(())
    })?;
    if !abandoned.load(Ordering::Relaxed) {
        tracker.flush()?;
    }
    Ok((sent, left_out))
}

/// What a tracker is told of a run.
pub fn origin_of(run: &Run) -> Origin {
    let created = u64::try_from(run.info().created.0).unwrap_or(0);
    Origin { dir: run.dir().to_owned(), created: Duration::from_nanos(created) }
}

// === impl Tracking ===

impl Tracking {
    /// `others_stay` tells at the end whether other recorders go on with the run.
    pub(crate) fn spawn(
        run: &Run,
        targets: &[Target],
        on_trouble: &OnTrouble,
        others_stay: &Arc<AtomicBool>,
    ) -> Result<Self, RecordError> {
        let abandoned = Arc::<AtomicBool>::default();
        let spawn = |target: &Target| {
            // One word is enough: whoever hears it goes through all that is new.
            let (bell, heard) = sync_channel(1);
            let (run, on_trouble) = (run.clone(), Arc::clone(on_trouble));
            let metrics = run.follow_metrics();
            let sending = Sending {
                run,
                target: target.clone(),
                tracker: None,
                metrics,
                abandoned: Arc::clone(&abandoned),
                others_stay: Arc::clone(others_stay),
                on_trouble,
                troubled: false,
            };
            let (at_end, ended) = sync_channel(0);
            let work = move || {
                let _at_end = at_end;
                sending.work(&heard)
            };
            let handle = std::thread::Builder::new()
                .name("rollscope-track".to_owned())
                .spawn(work)
                .map_err(RecordError::Thread)?;
            Ok(Thread { target: target.clone(), bell, ended, handle })
        };
        let threads = targets.iter().map(spawn).collect::<Result<_, RecordError>>()?;
        Ok(Self { threads, abandoned, on_trouble: Arc::clone(on_trouble) })
    }

    /// There is a new step in metrics.jsonl.
    pub(crate) fn tell(&self) {
        for thread in &self.threads {
            // Full: it has been told and has not looked yet.
            let _told = thread.bell.try_send(());
        }
    }
}

impl Drop for Tracking {
    fn drop(&mut self) {
        let deadline = Instant::now() + LAST_TRIES;
        // All bells first: the threads end side by side.
        let ending = self.threads.drain(..).map(|thread| (thread.target, thread.ended, thread.handle));
        for (target, ended, handle) in ending.collect::<Vec<_>>() {
            let left = deadline.saturating_duration_since(Instant::now());
            let has_ended = ended.recv_timeout(left) == Err(RecvTimeoutError::Disconnected);
            // One that is still held by its tracker is left to it. A panic was told by its own message.
            self.abandoned.fetch_or(!has_ended, Ordering::Relaxed);
            let has_all = has_ended && handle.join().unwrap_or(false);
            if !has_all {
                (self.on_trouble)(&RecordError::Unsent { target });
            }
        }
    }
}

// === impl Sending ===

impl Sending {
    /// Until the bell is gone; then whether the tracker has all there is.
    fn work(mut self, bell: &Receiver<()>) -> bool {
        let mut pause = FIRST_PAUSE;
        loop {
            let waited = match self.try_now() {
                Tried::HasAll | Tried::Another => {
                    pause = FIRST_PAUSE;
                    bell.recv_timeout(LOOK_EVERY)
                }
                Tried::Failed => {
                    let waited = bell.recv_timeout(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    waited
                }
            };
            if waited == Err(RecvTimeoutError::Disconnected) {
                return self.finish();
            }
        }
    }

    fn finish(mut self) -> bool {
        let deadline = Instant::now() + LAST_TRIES;
        loop {
            if self.is_abandoned() {
                return false;
            }
            match self.try_now() {
                Tried::HasAll => break,
                // It sends what is left.
                Tried::Another if self.do_others_stay() => return true,
                Tried::Another | Tried::Failed => {}
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(FIRST_PAUSE);
        }
        // It may have been while it was tried.
        if self.is_abandoned() {
            return false;
        }
        // For the tracker the run goes on with them.
        if self.do_others_stay() {
            return true;
        }
        if let Some(Err(error)) = self.tracker.take().map(Tracker::finish) {
            (self.on_trouble)(&error.into());
        }
        true
    }

    fn do_others_stay(&self) -> bool {
        self.others_stay.load(Ordering::Relaxed)
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    fn try_now(&mut self) -> Tried {
        match self.send() {
            Ok(()) => {
                self.troubled = false;
                Tried::HasAll
            }
            Err(RecordError::Track(TrackError::InUse { .. })) => Tried::Another,
            Err(error) => {
                if !std::mem::replace(&mut self.troubled, true) {
                    (self.on_trouble)(&error);
                }
                Tried::Failed
            }
        }
    }

    /// A tracker that fails is opened anew the next time, and then tells what it has, for which all lines are gone through.
    fn send(&mut self) -> Result<(), RecordError> {
        let mut tracker = match self.tracker.take() {
            Some(tracker) => tracker,
            None => Tracker::open(&self.target, &origin_of(&self.run))?,
        };
        let sent = send_new(&mut self.metrics, &mut tracker, &self.abandoned);
        if sent.is_err() {
            self.metrics = self.run.follow_metrics();
        }
        let (_, left_out) = sent?;
        self.tracker = Some(tracker);
        // Those of its numbers that are not there would be refused again.
        if let Some(error) = left_out {
            (self.on_trouble)(&error.into());
        }
        Ok(())
    }
}
