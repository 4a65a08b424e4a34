//! The publisher, as a scheduler sees it: a pass is handed over and numbered, and nothing is ever waited for.
//!
//! A record goes into a bounded queue, from which a thread of the publisher's own sends it. What finds the queue full is
//! dropped; its number is consumed, so that every reader sees the gap.
//!
//! The queue is a ring of one producer and one consumer, into which a record is written without reading what the other side
//! writes: the scheduler comes back from a pass with cold caches, and each line that it had to wait for would cost it more
//! than all else here. For the same reason the ring's memory is touched before the first pass, and what handing over needs of
//! the publisher itself is in one line.
//!
//! That thread looks into the queue every few milliseconds instead of being woken for each record, also for a while after the
//! scheduler has come to rest: waking a thread costs the scheduler more than everything else here. Only a long rest sends it
//! to sleep, and only the end of such a rest wakes it. While the scheduler rests, the thread sends a heartbeat for every
//! second of silence, and never while a pass is computed, however long it takes.
//!
//! The numbers stay in order because they have one owner at a time. The scheduler owns them while it works, and then writes
//! nothing that the thread writes too. With its rest it leaves the next number in a word that both can change, where the
//! thread takes one for each heartbeat, and takes it back in one step when the rest ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use rtrb::{Consumer, Producer, RingBuffer};
use tokio::sync::Notify;

use crate::endpoint::Endpoint;
use crate::listener::{BindError, Bound};
use crate::record::{MAX_WORKER_ID_BYTES, QueuedRequests, ScheduledRequests};
use crate::sending::Sending;

/// A forward pass, as the scheduler knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pass {
    /// Time of the forward pass itself, seconds.
    pub wall_time: f64,
    /// What was computed.
    pub scheduled: ScheduledRequests,
    /// What was left waiting.
    pub queued: QueuedRequests,
}

/// Publishes the passes of one rank. Dropping it sends what is queued and gives the endpoint up.
#[derive(Debug)]
#[repr(align(64))]
pub struct Publisher {
    queue: Producer<Numbered>,
    /// The next number; while it rests the word that is shared has it.
    next: u64,
    rests: bool,
    shared: Arc<Shared>,
    aside: Box<Aside>,
}

/// What handing over does not need.
#[derive(Debug)]
struct Aside {
    endpoint: Endpoint,
    thread: Option<JoinHandle<()>>,
}

/// What the scheduler and the sending thread share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    // Working => Resting => (Working | Resting, Asleep => Working)
    /// [`WORKING`]; or [`RESTING`], perhaps [`ASLEEP`], and the next number above [`NUMBER_SHIFT`].
    state: AtomicU64,
    dropped: AtomicU64,
    turned_away: AtomicU64,
    stopped: AtomicBool,
    awake: Notify,
}

/// The sending thread's end of the queue.
#[derive(Debug)]
pub(crate) struct Source {
    shared: Arc<Shared>,
    queue: Consumer<Numbered>,
}

/// A pass and its number.
type Numbered = (u64, Pass);

/// Records that wait to be sent at most.
pub const QUEUE_RECORDS: usize = 10_000;

/// The scheduler computes, and has the next number.
const WORKING: u64 = 0;
/// It does not.
const RESTING: u64 = 1;
/// The thread sleeps until it is woken.
const ASLEEP: u64 = 2;
const NUMBER_SHIFT: u32 = 2;
const ONE_NUMBER: u64 = 1 << NUMBER_SHIFT;

// === impl Publisher ===

impl Publisher {
    /// Binds the endpoint of a rank and starts to publish there; the scheduler rests until told otherwise.
    ///
    /// # Errors
    /// The endpoint cannot be bound, the thread not be started, or the name is longer than [`MAX_WORKER_ID_BYTES`]. Then nothing
    /// is left behind.
    pub fn bind(endpoint: &Endpoint, worker_id: &str, dp_rank: u32) -> Result<Self, BindError> {
        Self::bind_telling(endpoint, worker_id, dp_rank, |_| {})
    }

    /// The same, and has the publisher's thread tell the first time that a subscriber is turned away, since so many are there.
    ///
    /// # Errors
    /// As for [`Self::bind`].
    pub fn bind_telling(
        endpoint: &Endpoint,
        worker_id: &str,
        dp_rank: u32,
        crowded_at: impl Fn(usize) + Send + Sync + 'static,
    ) -> Result<Self, BindError> {
        let failed = |source: io::Error| BindError { endpoint: endpoint.clone(), source };
        if worker_id.len() > MAX_WORKER_ID_BYTES {
            let long = format!("worker's name longer than {MAX_WORKER_ID_BYTES} bytes");
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, long)));
        }
        let (bound, bound_to) = Bound::bind(endpoint)?;
        let shared = Arc::new(Shared { state: AtomicU64::new(RESTING), ..Shared::default() });
        let (queue, take) = touched_ring();
        let source = Source { shared: Arc::clone(&shared), queue: take };
        let worker_id: Box<str> = worker_id.into();
        let (tell, started) = sync_channel(1);
        let work = move || match Sending::new(bound, source, (worker_id, dp_rank)) {
            Ok(sending) => {
                drop(tell.send(Ok(())));
                sending.run(crowded_at);
            }
            Err(error) => drop(tell.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name("fpm-publisher".to_owned());
        let thread = Some(thread.spawn(work).map_err(failed)?);
        let gone = |_| Err(io::Error::other("the publisher's thread has ended"));
        started.recv().unwrap_or_else(gone).map_err(failed)?;
        let aside = Box::new(Aside { endpoint: bound_to, thread });
        Ok(Self { queue, next: 0, rests: true, shared, aside })
    }

    /// Where subscribers find it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.aside.endpoint
    }

    /// Hands a pass over, and returns its number. It may be lost on the way, its number never.
    pub fn publish(&mut self, pass: Pass) -> u64 {
        self.work();
        let number = self.next;
        self.next = number.wrapping_add(1);
        if self.queue.push((number, pass)).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        number
    }

    /// The scheduler begins to compute: silence does not mean rest any more. To be told before each pass.
    pub fn work(&mut self) {
        if self.rests {
            self.rests = false;
            let state = self.shared.state.swap(WORKING, Ordering::AcqRel);
            self.next = state >> NUMBER_SHIFT;
            if state & ASLEEP != 0 {
                self.shared.awake.notify_one();
            }
        }
    }

    /// The scheduler has nothing to compute.
    pub fn rest(&mut self) {
        if !self.rests {
            self.rests = true;
            self.shared.state.store(self.next << NUMBER_SHIFT | RESTING, Ordering::Release);
        }
    }

    /// Passes that found the queue full.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Subscribers that were turned away, since there were too many.
    pub fn turned_away(&self) -> u64 {
        self.shared.turned_away.load(Ordering::Relaxed)
    }
}

/// The queue, all of whose memory is there.
fn touched_ring() -> (Producer<Numbered>, Consumer<Numbered>) {
    let (mut queue, mut take) = RingBuffer::new(QUEUE_RECORDS);
    while queue.push((0, Pass::default())).is_ok() {}
    while take.pop().is_ok() {}
    (queue, take)
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.awake.notify_one();
        if let Some(thread) = self.aside.thread.take() {
            // A panic of the thread was reported when it happened.
            drop(thread.join());
        }
    }
}

// === impl Source ===

impl Source {
    /// The next pass with its number, if one waits.
    pub(crate) fn take(&mut self) -> Option<Numbered> {
        self.queue.pop().ok()
    }

    /// What the scheduler does, to be compared by [`Self::fall_asleep`] and [`Self::heartbeat`].
    pub(crate) fn state(&self) -> u64 {
        self.shared.state.load(Ordering::Acquire)
    }

    pub(crate) fn is_resting(state: u64) -> bool {
        state & RESTING != 0
    }

    /// From now on the end of the rest wakes the thread; gives the state after, if the scheduler has rested since that one.
    pub(crate) fn fall_asleep(&self, state: u64) -> Option<u64> {
        self.change(state, state | ASLEEP)
    }

    /// A number for a heartbeat, if the scheduler has rested since it was in that state. Nothing may have waited in
    /// the queue since then.
    pub(crate) fn heartbeat(&self, state: u64) -> Option<u64> {
        self.change(state, state.wrapping_add(ONE_NUMBER)).map(|_| state >> NUMBER_SHIFT)
    }

    fn change(&self, state: u64, next: u64) -> Option<u64> {
        let changed = self.shared.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire);
        (Self::is_resting(state) && changed.is_ok()).then_some(next)
    }

    /// What it shares with the scheduler.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Acquire)
    }

    /// Resolves when the scheduler has ended its rest or the publisher is to stop.
    pub(crate) async fn awake(&self) {
        self.shared.awake.notified().await;
    }
}

// === impl Shared ===

impl Shared {
    /// Counts a subscriber that was turned away; gives how many were before.
    pub(crate) fn turn_away(&self) -> u64 {
        self.turned_away.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// A publisher whose thread never runs, and the thread's end.
    fn alone() -> (Publisher, Source) {
        let shared = Arc::new(Shared::default());
        let (queue, take) = touched_ring();
        let endpoint = Endpoint::Ipc("/nowhere".into());
        let source = Source { shared: Arc::clone(&shared), queue: take };
        let aside = Box::new(Aside { endpoint, thread: None });
        (Publisher { queue, next: 0, rests: false, shared, aside }, source)
    }

    #[test]
    fn a_full_queue_drops_the_newest_and_their_numbers_are_gone() {
        let (mut publisher, mut source) = alone();
        let full = QUEUE_RECORDS as u64;
        for number in 0..full + 3 {
            assert_eq!(publisher.publish(Pass::default()), number);
        }
        assert_eq!(publisher.dropped(), 3);
        for number in 0..full {
            assert_eq!(source.take().map(|(number, _)| number), Some(number));
        }
        assert_eq!(publisher.publish(Pass::default()), full + 3);
        assert_eq!(source.take().map(|(number, _)| number), Some(full + 3));
        assert!(source.take().is_none());
    }

    #[test]
    fn a_heartbeat_has_a_number_only_if_nothing_happened_meanwhile() {
        let (mut publisher, source) = alone();
        publisher.rest();
        let state = source.state();
        assert_eq!(source.heartbeat(state), Some(0));
        assert_eq!(source.heartbeat(state), None, "its number is taken");
        let state = source.state();
        publisher.work();
        assert_eq!(source.heartbeat(state), None, "the rest is over");
        publisher.rest();
        let state = source.state();
        assert_eq!(publisher.publish(Pass::default()), 1);
        assert_eq!(source.heartbeat(state), None, "a pass came first");
        assert_eq!(source.heartbeat(source.state()), None, "it works");
    }

    #[test]
    fn only_a_thread_that_sleeps_is_woken() {
        let (mut publisher, source) = alone();
        let is_woken = || pin!(source.awake()).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        publisher.rest();
        publisher.work();
        publisher.publish(Pass::default());
        assert!(!is_woken(), "it looks by itself after a short rest");
        publisher.rest();
        let state = source.fall_asleep(source.state()).unwrap();
        assert_eq!(source.heartbeat(state), Some(1), "it sleeps between heartbeats");
        publisher.work();
        assert!(is_woken() && source.fall_asleep(source.state()).is_none());
        assert_eq!(publisher.publish(Pass::default()), 2, "the heartbeat's number is taken");
    }

    #[test]
    fn a_scheduler_at_work_writes_nothing_that_the_thread_writes_too() {
        let (mut publisher, source) = alone();
        let before = source.state();
        for number in 0..10 {
            publisher.work();
            assert_eq!(publisher.publish(Pass::default()), number);
            assert_eq!(source.state(), before);
        }
    }
}
