//! The subscriber: one task for each endpoint, which connects again and again and tells what it hears.
//! [`Subscriptions`] are those to publishers that come and go, and that may be found elsewhere when they were started anew.
//!
//! What is heard goes into a bounded queue. While that is full nothing is read, the publisher's own bound fills, and it
//! drops: a slow reader sees a gap and costs nobody memory.

use std::cmp;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::codec::{DecodeError, decode};
use crate::endpoint::Endpoint;
use crate::listener::Connection;
use crate::record::ForwardPassMetrics;
use crate::zmtp::{Frame, Kind, TransportError, Wire, put_message};

/// Something heard from an endpoint.
#[derive(Debug)]
pub struct Heard<K> {
    /// Whose it is, as the subscriber named the endpoint.
    pub from: K,
    /// What.
    pub what: What,
}

/// What can be heard.
#[derive(Debug)]
pub enum What {
    /// The publisher is there, and sends from now on.
    Connected,
    /// A message.
    Message(Message),
    /// The publisher is not there, or no longer; it is looked for again. Each reason is told once until it is there.
    Lost(TransportError),
    /// From now on it is listened to where the source says, and no more here: it was started anew and publishes elsewhere.
    Moved(Endpoint),
    /// It is not listened to any more. This is the last that is heard.
    Left,
}

/// A message.
#[derive(Debug)]
pub struct Message {
    /// Its number, counted by the publisher.
    pub sequence: u64,
    /// When it was read.
    pub received: Instant,
    /// How long it may have lain here before: since there was last nothing to read.
    pub waited: Duration,
    /// The record in it.
    pub metrics: Result<ForwardPassMetrics, DecodeError>,
}

/// Listens to an endpoint until it is dropped, and then tells that it does not any more.
#[derive(Debug)]
pub struct Subscription<K> {
    failures: Arc<AtomicU64>,
    /// It ends with this.
    target: watch::Sender<Target<K>>,
}

/// What a subscription listens to.
#[derive(Clone, Debug)]
struct Target<K> {
    endpoint: Endpoint,
    from: K,
}

/// Listens to publishers that come and go. `P` says which one it is, wherever it publishes, and `K` is its name at present.
#[derive(Debug)]
pub struct Subscriptions<P, K> {
    of: BTreeMap<P, Subscription<Origin<K>>>,
    begun: u64,
    tell: mpsc::Sender<Heard<Origin<K>>>,
}

/// One of [`Subscriptions`], by its name. Cheap to clone and to compare: each has a number of its own, so that a publisher that
/// is listened to again is another source, and one that has moved is the same.
#[derive(Debug)]
pub struct Origin<K> {
    number: u64,
    name: Arc<K>,
}

/// What a publisher may take to accept and to greet.
const GREETED_WITHIN: Duration = Duration::from_secs(10);
/// Between two tries to connect, at first and at most.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_secs(1);
/// Reasons that are remembered to have been told; a publisher that has ever new ones tells the others again.
const MAX_REASONS: usize = 16;
/// A peer that is gone is found out after half a minute.
const SILENCE_UNTIL_PROBE: Duration = Duration::from_secs(15);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
/// No record is longer, whatever keys are added to it: those of version 1 take 400 bytes and the worker's name.
const MAX_FRAME_BYTES: usize = 64 * 1024;
/// Topic, sequence number, record.
const FRAMES: usize = 3;

// === impl Subscription ===

impl<K: Clone + Send + Sync + 'static> Subscription<K> {
    /// Listens to an endpoint from now on; to be called on a runtime. Ends when `heard` is closed.
    pub fn start(endpoint: Endpoint, from: K, heard: mpsc::Sender<Heard<K>>) -> Self {
        let failures = Arc::new(AtomicU64::new(0));
        let (target, at) = watch::channel(Target { endpoint, from });
        tokio::spawn(listen_until_left(at, heard, Arc::clone(&failures)));
        Self { failures, target }
    }

    /// How often the publisher could not be reached, or was lost.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Where it listens.
    fn endpoint(&self) -> Endpoint {
        self.target.borrow().endpoint.clone()
    }
}

/// Listens at one place after the other, at none while at another, so that all is heard in order.
async fn listen_until_left<K: Clone>(
    mut at: watch::Receiver<Target<K>>,
    heard: mpsc::Sender<Heard<K>>,
    failures: Arc<AtomicU64>,
) {
    let mut before = None;
    loop {
        let Target { endpoint, from } = at.borrow_and_update().clone();
        let mut told = Teller {
            at: at.clone(),
            endpoint: endpoint.clone(),
            from,
            heard: &heard,
            reasons: BTreeSet::new(),
        };
        if let Some(before) = before
            && told.tell(What::Moved(before)).await.is_err()
        {
            return;
        }
        let is_elsewhere = tokio::select! {
            () = listen_again_and_again(&endpoint, &mut told, &failures) => return,
            is_elsewhere = elsewhere(&mut at, &endpoint) => is_elsewhere,
        };
        if !is_elsewhere {
            // Unless nobody listens to us either.
            drop(told.tell(What::Left).await);
            return;
        }
        before = Some(endpoint);
    }
}

/// Waits until it is listened elsewhere, or nowhere any more: then it is false.
async fn elsewhere<K>(at: &mut watch::Receiver<Target<K>>, endpoint: &Endpoint) -> bool {
    while at.changed().await.is_ok() {
        if at.borrow_and_update().endpoint != *endpoint {
            return true;
        }
    }
    false
}

async fn listen_again_and_again<K: Clone>(
    endpoint: &Endpoint,
    told: &mut Teller<'_, K>,
    failures: &AtomicU64,
) {
    let mut retry = RETRY_FIRST;
    loop {
        let begun = Instant::now();
        let Err(error) = listen(endpoint, told).await else { return };
        failures.fetch_add(1, Ordering::AcqRel);
        // One that comes and goes at once is as good as one that is not there.
        if begun.elapsed() > RETRY_LAST {
            retry = RETRY_FIRST;
        }
        if told.is_news(&error) && told.tell(What::Lost(error)).await.is_err() {
            return;
        }
        sleep(retry).await;
        retry = (retry * 2).min(RETRY_LAST);
    }
}

// === impl Subscriptions ===

impl<P: Ord, K: PartialEq + Send + Sync + 'static> Subscriptions<P, K> {
    /// None yet, and what will be heard of them: so many messages may wait for being taken. While more do, publishers keep
    /// theirs and at last drop them.
    pub fn new(queue_messages: usize) -> (Self, mpsc::Receiver<Heard<Origin<K>>>) {
        let (tell, heard) = mpsc::channel(queue_messages);
        (Self { of: BTreeMap::new(), begun: 0, tell }, heard)
    }

    /// Listens to these publishers from now on, each by its name and where it is, and to no others; to be called on a runtime.
    /// One that was another publisher's endpoint, which is not listened to any more, is the same source.
    pub fn follow(&mut self, publishers: impl IntoIterator<Item = (P, K, Endpoint)>) {
        let mut before = std::mem::take(&mut self.of);
        let mut new = Vec::new();
        for (publisher, name, endpoint) in publishers {
            match before.remove(&publisher) {
                Some(subscription) => {
                    subscription.target.send_if_modified(|target| target.becomes(name, endpoint));
                    self.of.insert(publisher, subscription);
                }
                None => new.push((publisher, name, endpoint)),
            }
        }
        let mut left: BTreeMap<Endpoint, Subscription<Origin<K>>> =
            before.into_values().map(|subscription| (subscription.endpoint(), subscription)).collect();
        for (publisher, name, endpoint) in new {
            let subscription = if let Some(subscription) = left.remove(&endpoint) {
                subscription.target.send_if_modified(|target| target.becomes(name, endpoint));
                subscription
            } else {
                self.begun += 1;
                Subscription::start(endpoint, Origin::new(self.begun, name), self.tell.clone())
            };
            self.of.insert(publisher, subscription);
        }
    }

    /// Those that are listened to.
    pub fn iter(&self) -> impl Iterator<Item = (&P, &Subscription<Origin<K>>)> {
        self.of.iter()
    }
}

// === impl Target ===

impl<K: PartialEq> Target<Origin<K>> {
    /// Gives the same source another name or place; whether that is another.
    fn becomes(&mut self, name: K, endpoint: Endpoint) -> bool {
        let is_news = *self.from != name || self.endpoint != endpoint;
        if is_news {
            *self = Self { endpoint, from: Origin::new(self.from.number, name) };
        }
        is_news
    }
}

// === impl Origin ===

impl<K> Origin<K> {
    /// A source by its number and its name, for those who play one.
    pub fn new(number: u64, name: K) -> Self {
        Self { number, name: Arc::new(name) }
    }
}

impl<K> Deref for Origin<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.name
    }
}

impl<K> Clone for Origin<K> {
    fn clone(&self) -> Self {
        Self { number: self.number, name: Arc::clone(&self.name) }
    }
}

impl<K> PartialEq for Origin<K> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<K> Eq for Origin<K> {}

impl<K> PartialOrd for Origin<K> {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Origin<K> {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        self.number.cmp(&other.number)
    }
}

struct Teller<'a, K> {
    at: watch::Receiver<Target<K>>,
    endpoint: Endpoint,
    from: K,
    heard: &'a mpsc::Sender<Heard<K>>,
    /// Why the publisher is not there, as far as it was told since it was.
    reasons: BTreeSet<String>,
}

/// Nobody listens to us any more.
struct Unheard;

impl<K: Clone> Teller<'_, K> {
    /// Whether this was not told yet.
    fn is_news(&mut self, error: &TransportError) -> bool {
        let cause = error.source().map(ToString::to_string).unwrap_or_default();
        if self.reasons.len() >= MAX_REASONS {
            self.reasons.clear();
        }
        self.reasons.insert(format!("{error}: {cause}"))
    }

    async fn tell(&mut self, what: What) -> Result<(), Unheard> {
        if matches!(what, What::Connected) {
            self.reasons.clear();
        }
        if self.at.has_changed().unwrap_or(false) {
            let target = self.at.borrow_and_update();
            // What was sent here is not named after another place.
            if target.endpoint == self.endpoint {
                self.from = target.from.clone();
            }
        }
        self.heard.send(Heard { from: self.from.clone(), what }).await.map_err(|_| Unheard)
    }
}

/// Listens on one connection until it ends with an error; ends well when nobody listens to us.
async fn listen<K: Clone>(endpoint: &Endpoint, told: &mut Teller<'_, K>) -> Result<(), TransportError> {
    let greeting = async { Wire::greet(connect(endpoint).await?, Kind::Subscriber, MAX_FRAME_BYTES).await };
    let mut wire = timeout(GREETED_WITHIN, greeting).await.map_err(|_| TransportError::Late)??;
    let mut subscribe = Vec::new();
    // Begin of a subscription to every topic.
    put_message(&mut subscribe, &[b"\x01"]);
    wire.send(&subscribe).await?;
    if told.tell(What::Connected).await.is_err() {
        return Ok(());
    }
    loop {
        let (sequence, payload) = message(&mut wire).await?;
        let received = Instant::now();
        let waited = received.duration_since(wire.ran_empty());
        let message = Message { sequence, received, waited, metrics: decode(&payload) };
        if told.tell(What::Message(message)).await.is_err() {
            return Ok(());
        }
    }
}

async fn connect(endpoint: &Endpoint) -> Result<Box<dyn Connection>, TransportError> {
    Ok(match endpoint {
        Endpoint::Ipc(path) => Box::new(UnixStream::connect(path).await?),
        Endpoint::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            keep_alive(&stream)?;
            Box::new(stream)
        }
    })
}

/// Has the system find out that a peer is gone which did not say so, as a machine that lost its power: a publisher may have
/// nothing to send for long, and a subscriber never has.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let probes =
        TcpKeepalive::new().with_time(SILENCE_UNTIL_PROBE).with_interval(PROBE_EVERY).with_retries(PROBES);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// The next message: its number and its payload. Commands are answered on the way.
async fn message(wire: &mut Wire<Box<dyn Connection>>) -> Result<(u64, bytes::Bytes), TransportError> {
    let malformed = TransportError::Protocol("a message is not topic, sequence number and record");
    let mut frames: [bytes::Bytes; FRAMES] = Default::default();
    let mut count = 0;
    loop {
        match wire.frame().await? {
            Frame::Command(command) => wire.answer(&command).await?,
            Frame::Message { body, more } => {
                let Some(frame) = frames.get_mut(count) else { return Err(malformed) };
                *frame = body;
                count += 1;
                if more {
                    continue;
                }
                let [_topic, sequence, payload] = frames;
                let sequence = <[u8; 8]>::try_from(&*sequence).map(u64::from_be_bytes);
                let (true, Ok(sequence)) = (count == FRAMES, sequence) else { return Err(malformed) };
                return Ok((sequence, payload));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time goes on by itself while everybody waits.
    #[tokio::test(start_paused = true)]
    async fn a_publisher_that_never_answers_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.0");
        let _owner = tokio::net::UnixListener::bind(&path).unwrap();
        let (mut subscriptions, mut heard) = Subscriptions::new(4);
        subscriptions.follow([((), "a", Endpoint::Ipc(path))]);
        let Heard { from, what } = heard.recv().await.unwrap();
        assert!(matches!((*from, what), ("a", What::Lost(TransportError::Late))));
    }

    #[tokio::test]
    async fn a_peer_that_is_gone_is_found_out() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        keep_alive(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), SILENCE_UNTIL_PROBE);
    }
}
