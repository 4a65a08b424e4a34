//! The recorder: profiles and spans into a run, numbers at the end of a step.
//!
//! What comes in is put into an inbox that is bounded by bytes; whoever puts it there never waits and is told at
//! once when it is full. One thread writes the log from there and decides when a step is over. A second one
//! seals what was written and computes the numbers, so that recording goes on meanwhile; one more for each tracker
//! sends them. [`routes()`] is the HTTP side, for the user's own spans, rewards and ends of steps.
//! [`follow_fleet`] finds the publishers of forward passes of a fleet, and [`record_passes`] records what is heard of them.

mod archive;
mod clock;
mod error;
mod fleet;
mod inbox;
mod ingest;
mod live;
mod losses;
mod offline;
mod passes;
mod relay;
mod routes;
mod s3;
mod sealing;
mod steps;
mod told;
mod tracking;
mod troubles;
mod waiting;
mod writing;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rollscope_run::{Retention, Run};
use rollscope_trace::{Dropped, Nanos, Profile, ProfileSink, Record, StepNumber, UnixNs};
use rollscope_track::Target;
use tokio::sync::oneshot;

pub use archive::{ArchiveError, ArchivePlace, NotAPlace};
pub use error::RecordError;
pub use fleet::{PassPublisher, follow_fleet};
pub use ingest::{LineError, read_line};
pub use offline::{OfflineRecorder, Taken};
pub use passes::{PassSource, PassStream, QUEUE_MESSAGES, record_passes};
pub use relay::Relay;
pub use routes::routes;
pub use s3::S3Error;
pub use sealing::{MakeGlance, StepClosed};
pub use told::{ToldError, told_endpoints};
pub use tracking::{catch_up, origin_of};
pub use troubles::{PassCounts, PassTroubles};

use clock::Timeline;
use inbox::{Command, Inbox};
use live::Live;
use steps::Steps;

/// How to record.
#[derive(Clone)]
pub struct RecordOptions {
    /// Name of the log's writer; another gateway's in the same run gets a number behind it.
    pub writer: String,
    /// Bytes that may wait for the log, and as many again while they are written; beyond it records are dropped and
    /// counted.
    pub queue_bytes: usize,
    /// A step that a later one has followed is closed when nothing was recorded of it for this long and none of its
    /// requests is live, by any recorder of the run; see [`RecorderHandle::ask_live`].
    pub superseded_after: Duration,
    /// Trackers that get the numbers of each step that is closed.
    pub trackers: Vec<Target>,
    /// Makes what a viewer shows of a step without reading it, when the step's numbers are computed: its first sight, of a large
    /// one all tiles, and of one that is too large to be read the details of its samples.
    pub glance: Option<MakeGlance>,
    /// What is kept of a run that grows long.
    pub retention: Retention,
    /// Where steps that were sealed are copied to.
    pub archive: Option<ArchivePlace>,
    /// Told of trouble: of a log that cannot be written once until it can be again, of a step that cannot be sealed
    /// each time.
    pub on_trouble: OnTrouble,
}

/// Told of trouble.
type OnTrouble = Arc<dyn Fn(&RecordError) + Send + Sync>;

/// A recorder at work. [`Recorder::shutdown`] ends it in order and waits for that; dropped without it, it ends in
/// order by itself, and what then goes wrong is told as trouble.
#[derive(Debug)]
pub struct Recorder {
    handle: RecorderHandle,
    /// Gets what came of its end; taken by whoever waits for that.
    ended: Option<Receiver<Result<(), RecordError>>>,
}

/// Puts records in; cheap to clone.
#[derive(Clone, Debug)]
pub struct RecorderHandle {
    inbox: Arc<Inbox>,
    live: Arc<Live>,
    timeline: Arc<Timeline>,
    run: Run,
}

/// How a step ended, as told by the user's code.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepEnd {
    /// Time of the rollout; first arrival to last completion where it is not told.
    pub rollout_time: Option<Nanos>,
    /// Accelerators that served it.
    pub gpus: Option<u32>,
}

// === impl RecordOptions ===

impl Default for RecordOptions {
    fn default() -> Self {
        Self {
            writer: "gateway".to_owned(),
            queue_bytes: 64 << 20,
            superseded_after: Duration::from_secs(10),
            trackers: Vec::new(),
            glance: None,
            retention: Retention::default(),
            archive: None,
            on_trouble: Arc::new(|_| {}),
        }
    }
}

impl fmt::Debug for RecordOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordOptions")
            .field("writer", &self.writer)
            .field("queue_bytes", &self.queue_bytes)
            .field("superseded_after", &self.superseded_after)
            .field("trackers", &self.trackers)
            .field("retention", &self.retention)
            .field("archive", &self.archive)
            .finish_non_exhaustive()
    }
}

// === impl Recorder ===

impl Recorder {
    /// Starts recording into a run.
    pub fn start(run: Run, options: &RecordOptions) -> Result<Self, RecordError> {
        let inbox = Arc::new(Inbox::new(options.queue_bytes));
        let log = run.writer(&options.writer, writing::log_options())?;
        let mut peers = run.peers(&log);
        // Before the steps are read: who goes from now on leaves its steps to this one.
        let left = peers.look()?;
        let steps = Steps::resume(&run, log.name(), &left, Instant::now())?;
        let handle = RecorderHandle { inbox, live: Arc::default(), timeline: Arc::default(), run };
        let ended = Some(writing::spawn(&handle, (log, peers), steps, options)?);
        Ok(Self { handle, ended })
    }

    /// What records are put in by.
    pub fn handle(&self) -> RecorderHandle {
        self.handle.clone()
    }

    /// Writes what is waiting, closes the open steps, has them sealed and ends the log; where other recorders of the run stay
    /// the open steps are left to them. What is offered from now on is dropped.
    pub async fn shutdown(mut self) -> Result<(), RecordError> {
        let ended = self.ended.take();
        drop(self);
        let ended = tokio::task::spawn_blocking(|| ended.map(|ended| ended.recv())).await;
        match ended {
            Ok(None) => Ok(()),
            Ok(Some(Ok(result))) => result,
            Ok(Some(Err(_))) | Err(_) => Err(RecordError::Panicked),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Before it ends, so that it knows that nobody waits.
        self.ended = None;
        self.handle.inbox.close();
    }
}

// === impl RecorderHandle ===

impl RecorderHandle {
    /// Puts in what the user's code sent: all of it, or nothing where there is no room.
    pub fn offer_all(&self, records: Vec<Record>) -> Result<(), Dropped> {
        self.inbox.put_all(records)
    }

    /// Ends a step: it is closed, sealed and its numbers are computed, which the receiver then gets. Profiles
    /// that the gateway is about to hand over are waited for, for a moment. To end a step again amends what was
    /// told of its end, and its numbers; a step of which nothing was recorded is an error.
    pub fn end_step(
        &self,
        step: StepNumber,
        end: StepEnd,
    ) -> Result<oneshot::Receiver<Result<StepClosed, Arc<RecordError>>>, Dropped> {
        let (reply, closed) = oneshot::channel();
        self.inbox.command(Command::EndStep { step, end, reply })?;
        Ok(closed)
    }

    /// Has whoever serves requests tell the steps of those that are live: they keep their steps open, here and at the other
    /// recorders of the run. Only the first one is asked, often and from a thread of the recorder's; without one a step ends
    /// when it has been quiet.
    pub fn ask_live(&self, live_steps: impl Fn() -> BTreeSet<StepNumber> + Send + Sync + 'static) {
        self.live.ask(live_steps);
    }

    /// Has the forward passes that are heard of placed by this clock: that of the profiles, which may not be the system's. Only
    /// the first one is asked.
    pub fn go_by(&self, wall_time: impl Fn(Instant) -> UnixNs + Send + Sync + 'static) {
        self.timeline.go_by(wall_time);
    }

    /// Profiles dropped so far.
    pub fn dropped_profiles(&self) -> u64 {
        self.inbox.lost().profiles
    }

    /// Spans and marks of the user's that were refused so far.
    pub fn dropped_user_records(&self) -> u64 {
        self.inbox.lost().user_records
    }

    /// Forward passes that were heard and are not in the run, so far.
    pub fn dropped_passes(&self) -> u64 {
        self.inbox.lost().passes
    }

    /// The run that is recorded to.
    pub fn run(&self) -> &Run {
        &self.run
    }
}

impl ProfileSink for RecorderHandle {
    fn offer(&self, profile: Profile) -> Result<(), Dropped> {
        self.inbox.put_profile(profile)
    }
}
