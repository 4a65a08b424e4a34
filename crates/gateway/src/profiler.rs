//! The thread that makes profiles of requests that are over: serving threads only hand them on.
//!
//! What waits is bounded, in requests and in bytes of replies that are still to be read; what is beyond is dropped. The
//! thread is woken by the first of what waits and lets some more come, unless somebody waits for it, so that many requests pay
//! for one wake-up.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rollscope_config::ConfigError;
use rollscope_trace::{Dropped, ProfileSink};
use tokio::sync::watch;

use crate::flight::Over;

/// The thread, as others see it. When this is dropped it finishes what waits, and ends.
#[derive(Debug)]
pub(crate) struct Profiler {
    queue: Arc<Queue>,
    /// Requests that were taken and whose profiles have been offered.
    offered: watch::Receiver<u64>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    requests: Vec<Over>,
    /// That they hold of replies.
    bytes: usize,
    /// Requests that were ever taken.
    taken: u64,
    /// Somebody waits for what is there.
    is_hurried: bool,
    is_closed: bool,
}

/// Requests that may wait.
const MAX_WAITING: usize = 16 << 10;
/// Bytes of replies that they may hold together.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// The thread lets others come for so long before it begins.
const GATHER: Duration = Duration::from_millis(10);

// === impl Profiler ===

impl Profiler {
    /// Starts the thread, which offers what it makes to the sink.
    pub(crate) fn start(sink: Arc<dyn ProfileSink>) -> Result<Self, ConfigError> {
        let queue = Arc::new(Queue::default());
        let taken = Arc::clone(&queue);
        let (done, offered) = watch::channel(0);
        let started = thread::Builder::new().name("rollscope-profiles".to_owned()).spawn(move || {
            let mut requests = Vec::new();
            while taken.await_some(&mut requests) {
                let count = requests.len() as u64;
                for over in requests.drain(..) {
                    offer(&*sink, over);
                }
                done.send_modify(|offered| *offered += count);
            }
        });
        started.map_err(|error| ConfigError::Conflict(format!("cannot start a thread: {error}")))?;
        Ok(Self { queue, offered })
    }

    /// Takes a request, unless too many wait.
    pub(crate) fn take(&self, over: Over) -> Result<(), Dropped> {
        let mut waiting = self.queue.waiting.lock();
        let bytes = waiting.bytes + over.kept_bytes();
        if waiting.requests.len() >= MAX_WAITING || bytes > MAX_WAITING_BYTES {
            return Err(Dropped);
        }
        waiting.bytes = bytes;
        waiting.taken += 1;
        waiting.requests.push(over);
        let is_first = waiting.requests.len() == 1;
        drop(waiting);
        if is_first {
            self.queue.changed.notify_one();
        }
        Ok(())
    }

    /// Waits until the profiles of all that was taken have been offered.
    pub(crate) async fn finish(&self) {
        let taken = {
            let mut waiting = self.queue.waiting.lock();
            waiting.is_hurried = !waiting.requests.is_empty();
            waiting.taken
        };
        self.queue.changed.notify_one();
        let mut offered = self.offered.clone();
        // An error would mean that the thread has ended, which it does after this is dropped.
        drop(offered.wait_for(|offered| *offered >= taken).await);
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        self.queue.waiting.lock().is_closed = true;
        self.queue.changed.notify_one();
    }
}

fn offer(sink: &dyn ProfileSink, mut over: Over) {
    for profile in over.profiles() {
        if sink.offer(profile).is_err() {
            over.core.count_dropped(1);
        }
    }
}

// === impl Queue ===

impl Queue {
    /// Waits for requests and swaps them against an empty vector; false when there will be no more.
    fn await_some(&self, requests: &mut Vec<Over>) -> bool {
        let mut waiting = self.waiting.lock();
        while waiting.requests.is_empty() {
            if waiting.is_closed {
                return false;
            }
            self.changed.wait(&mut waiting);
        }
        if !waiting.is_closed && !waiting.is_hurried {
            self.changed.wait_for(&mut waiting, GATHER);
        }
        (waiting.bytes, waiting.is_hurried) = (0, false);
        std::mem::swap(&mut waiting.requests, requests);
        true
    }
}
