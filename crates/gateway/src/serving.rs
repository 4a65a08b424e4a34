//! Clients' connections: accepted, spread over serving threads, watched, and brought to an orderly end.
//!
//! Whether a connection is in a request's way is kept beside it, in a [`Watch`]: a head that does not come to its end
//! is cut after `--request-head-timeout-secs`, and a gateway that is to end waits for requests and for nothing else. One tick
//! a second looks after all connections of a thread, so that no request pays for a timer.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::body::{BoxError, ReplyBody};
use crate::checks;
use crate::lane::{Arrival, Counted, Lane};
use crate::server::Gateway;

/// The connections of one runtime.
struct Serving {
    gateway: Gateway,
    connections: JoinSet<()>,
    watched: Vec<Watched>,
    /// Dropped when connections are to close as soon as they can.
    closing: watch::Sender<()>,
}

/// A connection, as seen from outside of its task.
struct Watched {
    watch: Weak<Watch>,
    task: AbortHandle,
    /// While the gateway ends: nothing was being served at the last look.
    was_idle: bool,
}

/// What a connection is doing.
#[derive(Debug)]
struct Watch {
    opened: Instant,
    /// Requests whose reply has not been written.
    served: AtomicU32,
    /// When the head that is being read began, in milliseconds since the connection was opened, plus one; zero for
    /// none.
    head_begun: AtomicU64,
}

/// A client's socket, whose reads are noticed.
struct Socket {
    stream: TokioIo<TcpStream>,
    watch: Arc<Watch>,
}

/// The body of a reply that is being written.
struct Watching {
    body: ReplyBody,
    watch: Arc<Watch>,
}

/// Pause after a connection could not be accepted, for want of descriptors most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Between two looks at a thread's connections.
const TICK: Duration = Duration::from_secs(1);
/// The same while the gateway ends.
const LAST_TICK: Duration = Duration::from_millis(200);

/// So long profiles are waited for whose requests were cut.
const LAST_PROFILES: Duration = Duration::from_secs(1);

// === impl Gateway ===

impl Gateway {
    /// Serves on the runtime that it is called on, until `shutdown` comes true; then takes no more connections and
    /// returns when the live requests have ended. What is live after `--shutdown-grace-period-secs` is cut. All profiles
    /// have been offered by then.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let _upkeep = self.upkeep();
        let mut serving = Serving::new(self.clone());
        let mut tick = tick(TICK);
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                stream = self.accept(&listener) => serving.connect(stream, None),
                _ = tick.tick() => serving.look_after(),
                () = &mut shutdown => break,
            }
        }
        drop(listener);
        serving.end().await;
        self.core.finish_profiles().await;
    }

    /// The same on so many threads of its own, among which connections are spread.
    pub async fn serve_on_threads(
        self,
        threads: usize,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let start = |number| {
            let gateway = self.clone();
            Lane::start(number, move |arrivals| gateway.serve_arrivals(arrivals))
        };
        let lanes = (1..=threads.max(1)).map(start).collect::<io::Result<Vec<Lane>>>()?;
        let upkeep = self.upkeep();
        tokio::pin!(shutdown);
        loop {
            let stream = tokio::select! {
                stream = self.accept(&listener) => stream,
                () = &mut shutdown => break,
            };
            if let Some(lane) = lanes.iter().min_by_key(|lane| lane.load())
                && lane.hand(stream).await.is_err()
            {
                self.count_accept_error();
            }
        }
        drop(listener);
        join_all(lanes.into_iter().map(Lane::end)).await;
        self.core.finish_profiles().await;
        drop(upkeep);
        Ok(())
    }

    async fn serve_arrivals(self, mut arrivals: mpsc::Receiver<Arrival>) {
        let mut serving = Serving::new(self.clone());
        let mut tick = tick(TICK);
        loop {
            tokio::select! {
                arrival = arrivals.recv() => match arrival.map(Arrival::into_stream) {
                    None => break,
                    Some(Ok((stream, counted))) => serving.connect(stream, Some(counted)),
                    Some(Err(_)) => self.count_accept_error(),
                },
                _ = tick.tick() => serving.look_after(),
            }
        }
        serving.end().await;
    }

    /// What goes on beside the requests, until it is dropped.
    fn upkeep(&self) -> JoinSet<()> {
        let mut upkeep = JoinSet::new();
        upkeep.spawn(checks::watch(Arc::clone(&self.core)));
        let core = Arc::clone(&self.core);
        upkeep.spawn(async move { core.tend().await });
        upkeep
    }

    async fn accept(&self, listener: &TcpListener) -> TcpStream {
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                return stream;
            }
            self.count_accept_error();
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }

    fn count_accept_error(&self) {
        self.core.counters.accept_errors.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl Serving ===

impl Serving {
    fn new(gateway: Gateway) -> Self {
        Self { gateway, connections: JoinSet::new(), watched: Vec::new(), closing: watch::Sender::new(()) }
    }

    fn connect(&mut self, stream: TcpStream, counted: Option<Counted>) {
        if stream.set_nodelay(true).is_err() {
            return; // it has been closed already
        }
        let watch = Arc::new(Watch::new());
        let weak = Arc::downgrade(&watch);
        let socket = Socket { stream: TokioIo::new(stream), watch: Arc::clone(&watch) };
        let gateway = self.gateway.clone();
        let service = service_fn(move |request| {
            let (gateway, watch) = (gateway.clone(), Arc::clone(&watch));
            watch.begin_request();
            async move { Ok::<_, Infallible>(gateway.handle(request).await.map(|body| Watching { body, watch })) }
        });
        let connection = http1::Builder::new().serve_connection(socket, service);
        let mut closing = self.closing.subscribe();
        let task = self.connections.spawn(async move {
            let _counted = counted;
            tokio::pin!(connection);
            // How a connection ends is no event; its requests have been accounted for.
            tokio::select! {
                biased;
                _ended = &mut connection => return,
                _told = closing.changed() => connection.as_mut().graceful_shutdown(),
            }
            drop(connection.await);
        });
        self.watched.push(Watched { watch: weak, task, was_idle: false });
    }

    /// Forgets connections that have ended, and cuts those whose request does not come to its end.
    fn look_after(&mut self) {
        while self.connections.try_join_next().is_some() {}
        let limit = Duration::from_secs_f64(self.gateway.core.options.startup().request_head_timeout_secs);
        self.watched.retain(|watched| {
            let Some(watch) = watched.watch.upgrade() else { return false };
            if watch.head_age().is_some_and(|age| age > limit) {
                watched.task.abort();
            }
            true
        });
        for worker in self.gateway.core.registry.fleet().all() {
            worker.link.tidy();
        }
    }

    /// Waits for the requests that are served, for a time.
    async fn end(mut self) {
        let core = Arc::clone(&self.gateway.core);
        let grace = Duration::from_secs(core.options.startup().shutdown_grace_period_secs);
        self.closing.send_replace(());
        let drained = async {
            let mut tick = tick(LAST_TICK);
            while !self.connections.is_empty() {
                tokio::select! {
                    _ended = self.connections.join_next() => {}
                    _ = tick.tick() => self.watched.retain_mut(Watched::stays),
                }
            }
            core.flights.closed().await;
        };
        let _in_time = timeout(grace, drained).await;
        self.connections.shutdown().await;
        // What was cut leaves its profile too.
        let _in_time = timeout(LAST_PROFILES, core.flights.closed()).await;
    }
}

fn tick(every: Duration) -> tokio::time::Interval {
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

// === impl Watched ===

impl Watched {
    /// While the gateway ends: whether it is worth to be waited for. One that serves nothing has had the time between
    /// two looks to write what it had.
    fn stays(&mut self) -> bool {
        let Some(watch) = self.watch.upgrade() else { return false };
        let is_idle = watch.served.load(Ordering::Relaxed) == 0;
        if is_idle && self.was_idle {
            self.task.abort();
        }
        self.was_idle = is_idle;
        true
    }
}

// === impl Watch ===

impl Watch {
    fn new() -> Self {
        Self { opened: Instant::now(), served: AtomicU32::new(0), head_begun: AtomicU64::new(0) }
    }

    fn begin_request(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
        self.head_begun.store(0, Ordering::Relaxed);
    }

    fn end_request(&self) {
        self.served.fetch_sub(1, Ordering::Relaxed);
    }

    /// Bytes have come. While nothing is served they are of a head.
    fn note_read(&self) {
        if self.served.load(Ordering::Relaxed) == 0 && self.head_begun.load(Ordering::Relaxed) == 0 {
            self.head_begun.store(self.age_ms() + 1, Ordering::Relaxed);
        }
    }

    fn head_age(&self) -> Option<Duration> {
        let begun = self.head_begun.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.age_ms().saturating_sub(begun)))
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

// === impl Socket ===

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.watch.note_read();
        }
        read
    }
}

impl Write for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

// === impl Watching ===

impl Body for Watching {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watch.end_request();
    }
}
