//! The scheduler's thread: how it is started, spoken to and stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::core::Core;
use super::decode::DecodeSide;
use super::mailbox::{COMMANDS, EVENTS, Postbox, Waker};
use super::prefill::PrefillSide;
use super::{Limits, Means, Scheduler, Side};
use crate::disagg::EventSender;
use crate::error::EngineError;
use crate::options::DisaggregationMode;

/// The running scheduler. Dropping it stops the thread and waits for its end, at most one step.
#[derive(Debug)]
pub(crate) struct SchedulerThread {
    pub(crate) postbox: Postbox,
    /// For connections with prefill or decode servers.
    pub(crate) events: EventSender,
    /// Resolves when the thread has ended, however it did: with what the last audit found, or without a value if it has panicked.
    pub(crate) ended: oneshot::Receiver<Option<String>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

// === impl SchedulerThread ===

impl SchedulerThread {
    /// Starts the thread. Must be called on the runtime that is to carry the connections.
    pub(crate) fn start(means: Means, limits: Limits) -> std::io::Result<Self> {
        let (commands, take_commands) = mpsc::channel(COMMANDS);
        let (events, take_events) = mpsc::channel(EVENTS);
        let (alive, ended) = oneshot::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let clock = Arc::clone(&means.clock);
        let (own_stop, own_events, runtime) = (Arc::clone(&stop), events.clone(), Handle::current());
        let thread = std::thread::Builder::new().name("scheduler".to_owned()).spawn(move || {
            let events = EventSender::new(own_events, Waker::of_current_thread(), Arc::clone(&means.clock));
            let side = match limits.mode {
                DisaggregationMode::Null => Side::Alone,
                DisaggregationMode::Prefill => Side::Prefill(PrefillSide::default()),
                DisaggregationMode::Decode => {
                    Side::Decode(DecodeSide::new(Arc::clone(&means.identity), events, runtime))
                }
            };
            let core = Core::new(means, limits);
            let timeouts_checked = core.clock.now();
            let (commands, events, stop) = (take_commands, take_events, own_stop);
            let scheduler = Scheduler {
                core,
                side,
                commands,
                events,
                when_idle: Vec::new(),
                when_quiet: None,
                timeouts_checked,
                stop,
            };
            drop(alive.send(scheduler.run()));
        })?;
        let waker = Waker::of(thread.thread());
        Ok(Self {
            postbox: Postbox::new(commands, waker.clone(), Arc::clone(&clock)),
            events: EventSender::new(events, waker, clock),
            ended,
            stop,
            thread: Some(thread),
        })
    }

    /// Stops the thread and waits for its end, at most one step.
    ///
    /// # Errors
    /// It has panicked, or something is not where it belongs.
    pub(crate) fn finish(mut self) -> Result<(), EngineError> {
        self.stop_and_join();
        match self.ended.try_recv() {
            Ok(None) => Ok(()),
            Ok(Some(finding)) => Err(EngineError::Unbalanced(finding)),
            Err(_) => Err(EngineError::SchedulerStopped),
        }
    }

    fn stop_and_join(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the thread was reported when it happened.
            drop(thread.join());
        }
    }
}

impl Drop for SchedulerThread {
    fn drop(&mut self) {
        self.stop_and_join();
    }
}
