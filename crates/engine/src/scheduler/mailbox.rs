//! How the rest of the server talks to the scheduler's thread.

use std::sync::Arc;
use std::thread::Thread;

use rollscope_model::ModelError;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Clock;
use crate::output::{Abort, Listener, Publisher, output};
use crate::request::GenerateSpec;
use crate::scheduler::inspect::Snapshot;
use crate::scheduler::profile::Recording;

/// What the scheduler is asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Compute these: a batch comes whole, so that what is said of it reaches all of it.
    Generate(Vec<(GenerateSpec, Publisher)>),
    /// Give up these.
    Abort {
        whom: Whom,
        why: Abort,
        done: oneshot::Sender<()>,
    },
    /// Tell what is going on.
    Inspect {
        /// Each request as well.
        requests: bool,
        reply: oneshot::Sender<Snapshot>,
    },
    /// Tell when nothing is left to do.
    WhenIdle(oneshot::Sender<()>),
    /// Forget the beginnings of sequences that nobody uses.
    Forget(oneshot::Sender<()>),
    /// Compute nothing more.
    Pause(PauseMode, oneshot::Sender<()>),
    /// Compute again.
    GoOn(oneshot::Sender<()>),
    /// Record what is done when, for so many forward passes or until told to stop.
    StartProfile {
        steps: Option<u64>,
        done: oneshot::Sender<Recording>,
    },
    StopProfile(oneshot::Sender<()>),
    /// Give memory up and say what of it was there, or how many requests are in the way.
    Release(Occupation, oneshot::Sender<Result<Occupation, usize>>),
    /// Take it again. The weights that are there may be others than before.
    Resume {
        what: Occupation,
        replaced: bool,
        reply: oneshot::Sender<Result<(), ModelError>>,
    },
    /// Begin nothing new, and tell when nothing is under way: with the number of requests that a pause holds. Then nothing is
    /// computed before the weights are there.
    Quiesce(oneshot::Sender<usize>),
    /// Begin again, with other weights or the old ones.
    Proceed {
        replaced: bool,
        done: oneshot::Sender<()>,
    },
}

/// What takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupation {
    pub(crate) weights: bool,
    pub(crate) kv_cache: bool,
}

/// What becomes of the requests when computing is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseMode {
    /// They end.
    Abort,
    /// They stay where they are.
    InPlace,
    /// They stay, and those that run give their pages back and are computed again.
    Retract,
}

/// Requests to be given up.
#[derive(Clone, Debug)]
pub(crate) enum Whom {
    /// Those of exactly this name, or of a batch of this name.
    Named(String),
    All,
}

/// Where commands to the scheduler go.
#[derive(Clone, Debug)]
pub(crate) struct Postbox {
    commands: mpsc::Sender<Command>,
    waker: Waker,
    clock: Arc<Clock>,
}

/// Room for one command in a scheduler's queue.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    permit: mpsc::Permit<'a, Command>,
    postbox: &'a Postbox,
}

/// Ends the pause of the scheduler's thread, or its next one.
#[derive(Clone, Debug)]
pub(crate) struct Waker(Thread);

/// The scheduler's thread has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the engine's scheduler has stopped")]
pub(crate) struct SchedulerGone;

/// Commands that wait for the scheduler's next turn; further ones wait with their senders.
pub(super) const COMMANDS: usize = 1024;
/// Transfer events likewise. Up to a quarter of a MiB each.
pub(super) const EVENTS: usize = 64;

// === impl Postbox ===

impl Postbox {
    pub(super) fn new(commands: mpsc::Sender<Command>, waker: Waker, clock: Arc<Clock>) -> Self {
        Self { commands, waker, clock }
    }

    /// A place in the queue, for requests that are handed over together.
    pub(crate) async fn reserve(&self) -> Result<Place<'_>, SchedulerGone> {
        let permit = self.commands.reserve().await.map_err(|_| SchedulerGone)?;
        Ok(Place { permit, postbox: self })
    }

    /// Gives requests up; when this returns, they have ended.
    pub(crate) async fn abort(&self, whom: Whom, why: Abort) -> Result<(), SchedulerGone> {
        self.ask(|done| Command::Abort { whom, why, done }).await
    }

    pub(crate) async fn inspect(&self, requests: bool) -> Result<Snapshot, SchedulerGone> {
        self.ask(|reply| Command::Inspect { requests, reply }).await
    }

    /// Returns when the scheduler has nothing left to do.
    pub(crate) async fn idle(&self) -> Result<(), SchedulerGone> {
        self.ask(Command::WhenIdle).await
    }

    /// Empties the prefix cache.
    pub(crate) async fn forget(&self) -> Result<(), SchedulerGone> {
        self.ask(Command::Forget).await
    }

    /// Returns when nothing is computed any more.
    pub(crate) async fn pause(&self, mode: PauseMode) -> Result<(), SchedulerGone> {
        self.ask(|done| Command::Pause(mode, done)).await
    }

    pub(crate) async fn go_on(&self) -> Result<(), SchedulerGone> {
        self.ask(Command::GoOn).await
    }

    /// Begins to record, for so many forward passes or until [`Postbox::stop_profile`]. What is returned resolves then.
    pub(crate) async fn start_profile(
        &self,
        steps: Option<u64>,
    ) -> Result<oneshot::Receiver<Recording>, SchedulerGone> {
        let (done, recorded) = oneshot::channel();
        self.commands.send(Command::StartProfile { steps, done }).await.map_err(|_| SchedulerGone)?;
        self.waker.wake();
        Ok(recorded)
    }

    pub(crate) async fn stop_profile(&self) -> Result<(), SchedulerGone> {
        self.ask(Command::StopProfile).await
    }

    /// Gives up the scheduler's part of the memory, and returns what was given up now, not before. An error is the number of
    /// requests that need it.
    pub(crate) async fn release(&self, what: Occupation) -> Result<Result<Occupation, usize>, SchedulerGone> {
        self.ask(|done| Command::Release(what, done)).await
    }

    pub(crate) async fn resume(
        &self,
        what: Occupation,
        replaced: bool,
    ) -> Result<Result<(), ModelError>, SchedulerGone> {
        self.ask(|reply| Command::Resume { what, replaced, reply }).await
    }

    /// Returns when nothing is under way, and nothing new begins until [`Postbox::proceed`].
    pub(crate) async fn quiesce(&self) -> Result<usize, SchedulerGone> {
        self.ask(Command::Quiesce).await
    }

    pub(crate) async fn proceed(&self, replaced: bool) -> Result<(), SchedulerGone> {
        self.ask(|done| Command::Proceed { replaced, done }).await
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.commands.is_closed()
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, SchedulerGone> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(answer)).await.map_err(|_| SchedulerGone)?;
        self.waker.wake();
        answered.await.map_err(|_| SchedulerGone)
    }
}

// === impl Place ===

impl Place<'_> {
    /// Hands requests over, and returns where the output of each will be.
    pub(crate) fn generate(self, specs: Vec<GenerateSpec>) -> Vec<Listener> {
        let Self { permit, postbox } = self;
        let dispatched = Some(postbox.clock.now());
        let (batch, listeners) = specs
            .into_iter()
            .map(|mut spec| {
                spec.stamps.dispatched = dispatched;
                let (publisher, listener) = output(spec.stamps.clone(), postbox.waker.clone());
                ((spec, publisher), listener)
            })
            .unzip();
        permit.send(Command::Generate(batch));
        postbox.waker.wake();
        listeners
    }
}

// === impl Waker ===

impl Waker {
    pub(crate) fn of(thread: &Thread) -> Self {
        Self(thread.clone())
    }

    pub(crate) fn of_current_thread() -> Self {
        Self(std::thread::current())
    }

    pub(crate) fn wake(&self) {
        self.0.unpark();
    }
}
