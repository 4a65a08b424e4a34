//! The scheduler: one thread that owns every request, every page and all computing.
//!
//! It turns round and round: take what has come in, move requests from queue to queue, compute one step. Without
//! anything to compute it sleeps until something comes in. It waits for nobody: what it has to tell goes into records and
//! bounded queues that are tried again on the next turn.

mod admission;
mod batch;
mod core;
mod decode;
mod early;
mod inspect;
mod late;
mod mailbox;
mod observe;
mod occupation;
mod outputs;
mod passes;
mod prefill;
mod prefills;
mod prefix;
mod profile;
mod pump;
mod retract;
mod rooms;
#[cfg(test)]
mod tests;
mod thread;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rollscope_config::Published;
use rollscope_fpm::Publisher;
use rollscope_model::{KvPool, Model};
use tokio::sync::{mpsc, oneshot};

use self::core::{Core, Queue};
use self::decode::DecodeSide;
pub(crate) use self::inspect::{InflightQueue, InflightRequest, Snapshot};
pub(crate) use self::mailbox::{Command, Occupation, PauseMode, Postbox, SchedulerGone, Waker, Whom};
pub(crate) use self::observe::{Histogram, Observations};
use self::prefill::PrefillSide;
pub(crate) use self::prefix::Shared;
pub(crate) use self::profile::{Recording, Span, Work};
pub(crate) use self::rooms::Rooms;
pub(crate) use self::thread::SchedulerThread;
use crate::clock::{Clock, Stamp};
use crate::disagg::{Event, Identity};
use crate::options::{DisaggregationMode, EngineOptions};
use crate::output::Abort;
use crate::request::Request;
use crate::sim::CostModel;
use crate::warn::Warnings;

/// What the scheduler may take on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) mode: DisaggregationMode,
    pub(crate) max_running: usize,
    pub(crate) max_queued: usize,
    /// How long a request may be in the waiting queue, if there is a limit.
    pub(crate) request_waiting_timeout: Option<Duration>,
    /// Prompt tokens a step.
    pub(crate) chunk_tokens: usize,
    /// Tokens that a request may generate before it needs further pages.
    pub(crate) reserved_decode_tokens: usize,
    /// Beginnings of sequences are kept for others.
    pub(crate) prefix_cache: bool,
    /// How long a request may wait for the other server to appear.
    pub(crate) bootstrap_timeout: Duration,
    /// How long a decode server waits for the first of its pages.
    pub(crate) waiting_timeout: Duration,
    /// How long it may wait for the other server, and how long its transfer may take: each since it came into the queue.
    pub(crate) transfer_timeout: Duration,
    /// Metadata rows tell of the prefill side's durations.
    pub(crate) prefill_timing: bool,
}

/// What the scheduler computes with.
#[derive(Debug)]
pub(crate) struct Means {
    pub(crate) model: Arc<Model>,
    pub(crate) kv: KvPool,
    pub(crate) clock: Arc<Clock>,
    /// Where the requests' seeds come from.
    pub(crate) random_seed: u64,
    /// Instead of computing.
    pub(crate) simulated: Option<CostModel>,
    /// Those of the other ranks are known.
    pub(crate) rooms: Rooms,
    /// What peers must agree in.
    pub(crate) identity: Arc<Identity>,
    /// Who is told of each step.
    pub(crate) publisher: Option<Publisher>,
    /// What the weights are called, among other things.
    pub(crate) published: Published<EngineOptions>,
    pub(crate) warnings: Warnings,
}

/// The thread's own.
#[derive(Debug)]
struct Scheduler {
    core: Core,
    side: Side,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Receiver<Event>,
    when_idle: Vec<oneshot::Sender<()>>,
    when_quiet: Option<oneshot::Sender<usize>>,
    /// When it was last looked for what has taken too long.
    timeouts_checked: Stamp,
    stop: Arc<AtomicBool>,
}

/// The part that depends on the server's place in a pair.
#[derive(Debug)]
enum Side {
    Alone,
    Prefill(PrefillSide),
    Decode(DecodeSide),
}

/// How late a timeout may be noticed.
const TIMEOUT_STEP: Duration = Duration::from_millis(50);

// === impl Scheduler ===

impl Scheduler {
    /// Turns until it is told to stop, ends what is left, and returns what is not where it belongs then.
    fn run(mut self) -> Option<String> {
        while !self.stop.load(Ordering::Acquire) {
            let begin = self.core.profiler.begin(&self.core.clock);
            self.receive();
            self.give_up_where(Request::is_cancelled, &Abort::asked_for());
            self.tell_quiet();
            self.flush();
            self.core.profiler.end(&self.core.clock, Work::Receive, begin);
            if self.core.active.is_paused() {
                self.rest();
                continue;
            }
            let begin = self.core.profiler.begin(&self.core.clock);
            self.core.name_weights();
            self.advance();
            self.core.grow();
            self.note_queued();
            self.core.profiler.end(&self.core.clock, Work::Advance, begin);
            let computed = self.core.step();
            for (request, why) in std::mem::take(&mut self.core.doomed) {
                self.give_up(request, why);
            }
            if !computed {
                self.rest();
            }
        }
        self.give_up_where(|_| true, &Abort::unavailable("the server is shutting down"));
        self.audit()
    }

    /// Takes what has come in, as much as is there now, so that who keeps sending cannot keep the scheduler from
    /// computing.
    fn receive(&mut self) {
        for _ in 0..self.commands.len() {
            let Ok(command) = self.commands.try_recv() else { break };
            match command {
                Command::Generate(batch) => {
                    for (spec, output) in batch {
                        self.submit(spec, output);
                    }
                }
                Command::Abort { whom, why, done } => {
                    match whom {
                        // An empty name names nobody.
                        Whom::Named(rid) if rid.is_empty() => {}
                        Whom::Named(rid) => self.give_up_where(|request| request.is_named(&rid), &why),
                        Whom::All => self.give_up_where(|_| true, &why),
                    }
                    answer(done, ());
                }
                Command::Inspect { requests, reply } => {
                    let mut snapshot = self.snapshot();
                    if requests {
                        snapshot.listed = self.inflight();
                    }
                    answer(reply, snapshot);
                }
                Command::WhenIdle(reply) => self.when_idle.push(reply),
                Command::Forget(done) => {
                    self.forget();
                    answer(done, ());
                }
                Command::Pause(mode, done) => {
                    self.pause(mode);
                    answer(done, ());
                }
                Command::GoOn(done) => {
                    self.core.stillness.is_paused = false;
                    self.settle();
                    answer(done, ());
                }
                Command::StartProfile { steps, done } => self.core.profiler.start(steps, done),
                Command::StopProfile(done) => {
                    self.core.profiler.stop();
                    answer(done, ());
                }
                Command::Release(what, reply) => answer(reply, self.release(what)),
                Command::Resume { what, replaced, reply } => answer(reply, self.resume(what, replaced)),
                Command::Quiesce(reply) => self.quiesce(reply),
                Command::Proceed { replaced, done } => {
                    self.proceed(replaced);
                    answer(done, ());
                }
            }
        }
        for _ in 0..self.events.len() {
            let Ok(event) = self.events.try_recv() else { return };
            match &mut self.side {
                Side::Alone => {}
                Side::Prefill(side) => side.handle(&mut self.core, event),
                Side::Decode(side) => side.handle(&mut self.core, event),
            }
        }
    }

    /// Sends what peers had no room for. A pause does not keep it: who is paused still tells what was given up.
    fn flush(&mut self) {
        match &mut self.side {
            Side::Alone => {}
            Side::Prefill(side) => side.flush(),
            Side::Decode(side) => side.flush(),
        }
    }

    /// Stops computing, and with it the clocks of all limits.
    fn pause(&mut self, mode: PauseMode) {
        match mode {
            PauseMode::Abort => self.give_up_where(|_| true, &Abort::asked_for()),
            PauseMode::InPlace => {}
            PauseMode::Retract => self.core.retract_all(),
        }
        self.core.stillness.is_paused = true;
        self.settle();
    }

    /// Moves requests on that can move, and gives up those that could not for too long.
    fn advance(&mut self) {
        let now = self.core.clock.now();
        if now.since(self.timeouts_checked) >= TIMEOUT_STEP {
            self.timeouts_checked = now;
            match &mut self.side {
                Side::Alone => {}
                Side::Prefill(side) => side.time_out(&mut self.core),
                Side::Decode(side) => side.time_out(&mut self.core),
            }
            for request in self.core.take_overdue() {
                self.give_up(request, Abort::unavailable("Request waiting timeout reached."));
            }
        }
        match &mut self.side {
            Side::Alone => {}
            Side::Prefill(side) => side.advance(&mut self.core),
            Side::Decode(side) => side.advance(&mut self.core),
        }
        self.core.admit();
    }

    /// Ends the requests that meet the condition, and tells their peers.
    fn give_up_where(&mut self, condition: impl Fn(&Request) -> bool, why: &Abort) {
        let (waiting, transfer) = (why.while_waiting(), why.while_transferred());
        let Self { core, side, .. } = self;
        let mut found = Vec::new();
        match side {
            Side::Alone => {}
            Side::Prefill(side) => {
                for queue in [&mut side.bootstrap, &mut side.inflight, &mut core.prefilled] {
                    found.extend(
                        take_where(queue, &condition).into_iter().map(|request| (request, &transfer)),
                    );
                }
            }
            Side::Decode(side) => {
                for queue in [&mut side.prealloc, &mut side.transfer] {
                    found.extend(
                        take_where(queue, &condition).into_iter().map(|request| (request, &transfer)),
                    );
                }
            }
        }
        let computed =
            [(&mut core.waiting, &waiting), (&mut core.retracted, &waiting), (&mut core.running, why)];
        for (queue, why) in computed {
            found.extend(take_where(queue, &condition).into_iter().map(|request| (request, why)));
        }
        for (request, why) in found {
            self.give_up(request, why.clone());
        }
    }

    /// Ends a request that is in no queue any more, and tells its peer.
    fn give_up(&mut self, request: Box<Request>, why: Abort) {
        match &mut self.side {
            Side::Alone => self.core.fail(request, why),
            Side::Prefill(side) => side.give_up(&mut self.core, request, why),
            Side::Decode(side) => side.give_up(&mut self.core, request, why),
        }
    }

    /// Sleeps until something comes in or a timeout is due.
    fn rest(&mut self) {
        let is_idle = self.requests().next().is_none();
        if is_idle {
            // It looks at every page of the cache, which tests can afford. What it finds is told by the audit at the end.
            if cfg!(debug_assertions) && self.audit().is_some() {
                self.stop.store(true, Ordering::Release);
                return;
            }
            for reply in self.when_idle.drain(..) {
                answer(reply, ());
            }
        }
        let is_paused = self.core.active.is_paused();
        if is_idle || is_paused {
            self.core.passes.rest();
        }
        let expects = matches!(&self.side, Side::Prefill(side) if side.expects());
        if (is_idle && !expects) || is_paused {
            // Whatever changes this wakes the thread, room for what waits to be sent included.
            std::thread::park();
        } else {
            std::thread::park_timeout(TIMEOUT_STEP);
        }
    }
}

/// Takes the requests that meet the condition out of a queue; all keep their order.
fn take_where(queue: &mut Queue, condition: impl Fn(&Request) -> bool) -> Queue {
    let taken = take_for(queue, |request| condition(request).then_some(()));
    taken.into_iter().map(|(request, ())| request).collect()
}

/// The same with those for whom there is a reason, each with it.
fn take_for<T>(queue: &mut Queue, reason: impl Fn(&Request) -> Option<T>) -> Vec<(Box<Request>, T)> {
    let reasons = queue.iter().enumerate().filter_map(|(place, request)| Some((place, reason(request)?)));
    let mut reasons = reasons.collect::<Vec<_>>().into_iter().peekable();
    if reasons.peek().is_none() {
        return Vec::new();
    }
    let mut taken = Vec::with_capacity(reasons.len());
    for (place, request) in std::mem::take(queue).into_iter().enumerate() {
        match reasons.next_if(|(of, _)| *of == place) {
            Some((_, reason)) => taken.push((request, reason)),
            None => queue.push_back(request),
        }
    }
    taken
}

/// Answers one who may have stopped waiting.
fn answer<T>(reply: oneshot::Sender<T>, value: T) {
    drop(reply.send(value));
}
