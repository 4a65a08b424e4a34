//! The sending thread: from the queue to every subscriber, none of which can hold up another.
//!
//! Each subscriber has a bounded queue of its own, of encoded messages that all share. One that does not read fills its
//! queue and loses what comes then; a sequence number tells it how much. This is what ZeroMQ's PUB does at its high-water
//! mark.
//!
//! Places for connections are bounded too. Where all are taken, whoever came first of those that have not finished their
//! greeting makes room; if all have, the newcomer is turned away, which is counted and told.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::codec::encode;
use crate::listener::{Bound, Connection, Listener};
use crate::publisher::{Pass, QUEUE_RECORDS, Source};
use crate::record::ForwardPassMetrics;
use crate::zmtp::{Frame, Kind, Subscribing, TransportError, Wire, put_message, subscribing};

/// The thread's own.
#[derive(Debug)]
pub(crate) struct Sending {
    runtime: Runtime,
    listener: Listener,
    source: Source,
    outlet: Outlet,
}

/// Encodes messages and hands them to the subscribers.
#[derive(Debug)]
struct Outlet {
    worker_id: Box<str>,
    dp_rank: u32,
    peers: Arc<Mutex<Vec<Peer>>>,
    payload: Vec<u8>,
    message: Vec<u8>,
}

/// A connected subscriber.
#[derive(Debug)]
struct Peer {
    queue: mpsc::Sender<Bytes>,
    /// Subscriptions to everything that are in force; it gets messages while there is one.
    subscriptions: Arc<AtomicUsize>,
}

/// A connection that was accepted.
#[derive(Debug)]
struct Guest {
    task: AbortHandle,
    /// It has finished its greeting.
    has_greeted: Arc<AtomicBool>,
}

/// How long the thread sleeps between two looks into the queue, unless it sleeps until it is woken. A look, and the subscribers that
/// it wakes, may take the scheduler's core for a moment and leave it with cold caches: passes of a millisecond are not to find them
/// so each time.
const TICK: Duration = Duration::from_millis(3);
/// A rest so long sends the thread to sleep: the next pass has to wake it.
const ASLEEP_AFTER: Duration = Duration::from_millis(250);
/// Silence after which a rest is told of.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// What a peer may take for its greeting.
const GREETED_WITHIN: Duration = Duration::from_secs(10);
/// What subscribers that read get to take the last messages.
const LINGER: Duration = Duration::from_millis(200);
/// Connections at a time.
const MAX_PEERS: usize = 256;
/// A subscriber sends nothing but prefixes of topics.
const MAX_FRAME_BYTES: usize = 4096;
/// Messages that are written at once.
const BATCH_MESSAGES: usize = 64;

// === impl Sending ===

impl Sending {
    pub(crate) fn new(
        bound: Bound,
        source: Source,
        (worker_id, dp_rank): (Box<str>, u32),
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _on_runtime = runtime.enter();
            bound.listen()?
        };
        let outlet =
            Outlet { worker_id, dp_rank, peers: Arc::default(), payload: Vec::new(), message: Vec::new() };
        Ok(Self { runtime, listener, source, outlet })
    }

    /// Sends until the publisher is stopped.
    pub(crate) fn run(self, crowded_at: impl Fn(usize) + Send + Sync + 'static) {
        let Self { runtime, listener, mut source, mut outlet } = self;
        let shared = source.shared();
        let crowded = move || {
            if shared.turn_away() == 0 {
                crowded_at(MAX_PEERS);
            }
        };
        runtime.block_on(async {
            let peers = Arc::clone(&outlet.peers);
            let (stop, stopped) = oneshot::channel::<()>();
            let accepting = tokio::spawn(accept(listener, Arc::clone(&peers), stopped, crowded));
            send(&mut source, &mut outlet).await;
            // Their queues end, and with them the connections that have written everything.
            peers.lock().clear();
            drop(stop);
            drop(timeout(LINGER, accepting).await);
        });
        runtime.shutdown_timeout(Duration::ZERO);
    }
}

async fn send(source: &mut Source, outlet: &mut Outlet) {
    let mut last_sent = Instant::now();
    let mut last_pass = last_sent;
    loop {
        let stopped = source.is_stopped();
        let state = source.state();
        for _ in 0..QUEUE_RECORDS {
            let Some((number, pass)) = source.take() else { break };
            outlet.send(number, &pass);
            last_pass = Instant::now();
            last_sent = last_pass;
        }
        if stopped {
            return;
        }
        let is_long_rest = Source::is_resting(state) && last_pass.elapsed() >= ASLEEP_AFTER;
        let asleep = if is_long_rest { source.fall_asleep(state) } else { None };
        let Some(asleep) = asleep else {
            sleep(TICK).await;
            continue;
        };
        tokio::select! {
            () = source.awake() => {}
            () = sleep_until(last_sent + HEARTBEAT) => {
                if let Some(number) = source.heartbeat(asleep) {
                    outlet.send(number, &Pass::default());
                    last_sent = Instant::now();
                }
            }
        }
    }
}

// === impl Outlet ===

impl Outlet {
    fn send(&mut self, number: u64, pass: &Pass) {
        let mut peers = self.peers.lock();
        if peers.is_empty() {
            return;
        }
        let metrics = ForwardPassMetrics {
            worker_id: self.worker_id.clone(),
            dp_rank: self.dp_rank,
            counter_id: number,
            wall_time: pass.wall_time,
            scheduled: pass.scheduled,
            queued: pass.queued,
        };
        self.payload.clear();
        encode(&metrics, &mut self.payload);
        self.message.clear();
        put_message(&mut self.message, &[b"", &number.to_be_bytes(), &self.payload]);
        let message = Bytes::copy_from_slice(&self.message);
        peers.retain(|peer| {
            if peer.subscriptions.load(Ordering::Acquire) > 0 {
                // Full: it loses this one.
                drop(peer.queue.try_send(message.clone()));
            }
            !peer.queue.is_closed()
        });
    }
}

/// Takes subscribers on until it is stopped, then waits for them to take what they have coming.
async fn accept(
    listener: Listener,
    peers: Arc<Mutex<Vec<Peer>>>,
    mut stopped: oneshot::Receiver<()>,
    crowded: impl Fn(),
) {
    let mut connections = JoinSet::new();
    let mut guests: Vec<Guest> = Vec::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => break,
        };
        while connections.try_join_next().is_some() {}
        guests.retain(|guest| !guest.task.is_finished());
        match accepted {
            Ok(_) if guests.len() >= MAX_PEERS && !make_room(&mut guests) => crowded(),
            Ok(connection) => {
                let has_greeted = Arc::default();
                let task = connections.spawn(serve(connection, Arc::clone(&peers), Arc::clone(&has_greeted)));
                guests.push(Guest { task, has_greeted });
            }
            // Out of files, or a peer that was gone at once: neither ends the publisher.
            Err(_) => sleep(TICK).await,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Ends the connection of whoever has taken longest to greet, if there is one.
fn make_room(guests: &mut Vec<Guest>) -> bool {
    let slowest = guests.iter().position(|guest| !guest.has_greeted.load(Ordering::Acquire));
    slowest.map(|at| guests.remove(at).task.abort()).is_some()
}

/// Serves a subscriber until either side ends it.
async fn serve(connection: Box<dyn Connection>, peers: Arc<Mutex<Vec<Peer>>>, has_greeted: Arc<AtomicBool>) {
    let greeting = Wire::greet(connection, Kind::Publisher, MAX_FRAME_BYTES);
    let Ok(Ok(mut wire)) = timeout(GREETED_WITHIN, greeting).await else { return };
    has_greeted.store(true, Ordering::Release);
    let (queue, mut messages) = mpsc::channel(QUEUE_RECORDS);
    let subscriptions = Arc::new(AtomicUsize::new(0));
    peers.lock().push(Peer { queue, subscriptions: Arc::clone(&subscriptions) });
    // Whatever ends it, the peer comes again.
    drop(relay(&mut wire, &mut messages, &subscriptions).await);
}

async fn relay(
    wire: &mut Wire<Box<dyn Connection>>,
    messages: &mut mpsc::Receiver<Bytes>,
    subscriptions: &AtomicUsize,
) -> Result<(), TransportError> {
    let mut batch = Vec::with_capacity(BATCH_MESSAGES);
    loop {
        tokio::select! {
            frame = wire.frame() => {
                let frame = frame?;
                match subscribing(&frame) {
                    // The only topic is empty: only the empty prefix is one of it.
                    Some(Subscribing::Begin(b"")) => {
                        subscriptions.fetch_add(1, Ordering::AcqRel);
                    }
                    Some(Subscribing::End(b"")) => {
                        let less = |count: usize| count.checked_sub(1);
                        subscriptions.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).ok();
                    }
                    _ => {}
                }
                if let Frame::Command(command) = &frame {
                    wire.answer(command).await?;
                }
            }
            count = messages.recv_many(&mut batch, BATCH_MESSAGES) => {
                if count == 0 {
                    return Ok(());
                }
                wire.send(&batch.concat()).await?;
                batch.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time goes on by itself while everybody waits.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_greets_is_given_up() {
        let (ours, _theirs) = tokio::io::duplex(4096);
        let (peers, has_greeted) = (Arc::default(), Arc::default());
        serve(Box::new(ours), Arc::clone(&peers), Arc::clone(&has_greeted)).await;
        assert!(!has_greeted.load(Ordering::Acquire) && peers.lock().is_empty());
    }
}
