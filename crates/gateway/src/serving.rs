//! Clients' connections: accepted, spread over serving threads, watched, and brought to an orderly end.
//!
//! A gateway that is to end waits for requests and their replies, and for nothing else.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::checks;
use crate::clients::Counted;
use crate::clock::tick;
use crate::lane::{Arrival, Lane};
use crate::server::Gateway;
use crate::transport::Transport;
use crate::watch::{Patience, TICK, Watch, Watched};

/// The connections of one runtime.
struct Serving {
    gateway: Gateway,
    connections: JoinSet<()>,
    watched: Vec<Watched>,
}

/// A handshake, which has failed if it is dropped: one that takes too long is cut.
struct Handshake<'a>(&'a AtomicU64);

/// Pause after a connection could not be accepted, for want of descriptors most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// More of a request's head is refused with 431. This is hyper's own default, set so that it stays so; and so are 100 headers, which have room on the
/// stack only if they are not asked for.
const MAX_HEAD_BYTES: usize = 408 << 10;
/// Between two looks at a thread's connections while the gateway ends.
const LAST_TICK: Duration = Duration::from_millis(200);

/// So long clients have to take the last words of what is cut, and so long its profiles are waited for.
const LAST_WORDS: Duration = Duration::from_secs(1);

// === impl Gateway ===

impl Gateway {
    /// Serves on the runtime that it is called on, until `shutdown` comes true; then takes no more connections and
    /// returns when the live requests have ended. What is live after `--shutdown-grace-period-secs` is cut, and its client told
    /// why. All profiles have been offered by then.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let _upkeep = self.upkeep();
        let mut serving = Serving::new(self.clone());
        let mut tick = tick(TICK);
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                (stream, counted) = self.take_in(&listener) => serving.connect(stream, counted),
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
            let (stream, counted) = tokio::select! {
                taken = self.take_in(&listener) => taken,
                () = &mut shutdown => break,
            };
            if let Some(lane) = lanes.iter().min_by_key(|lane| lane.load())
                && lane.hand(stream, counted).await.is_err()
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
                    Some(Ok((stream, counted))) => serving.connect(stream, counted),
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
        upkeep.spawn(checks::run(Arc::clone(&self.core)));
        let core = Arc::clone(&self.core);
        upkeep.spawn(async move { core.tend().await });
        upkeep
    }

    pub(crate) async fn accept(&self, listener: &TcpListener) -> TcpStream {
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                return stream;
            }
            self.count_accept_error();
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }

    /// The next client's connection; refuses those that are too many.
    async fn take_in(&self, listener: &TcpListener) -> (TcpStream, Counted) {
        let core = &self.core;
        loop {
            let stream = self.accept(listener).await;
            let counted = Counted::one_of(&core.clients.open);
            if core.clients.open.load(Ordering::Relaxed) <= core.clients.limit {
                return (stream, counted);
            }
            core.clients.refuse(stream, core.tls.is_none());
        }
    }

    fn count_accept_error(&self) {
        self.core.counters.accept_errors.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl Serving ===

impl Serving {
    fn new(gateway: Gateway) -> Self {
        Self { gateway, connections: JoinSet::new(), watched: Vec::new() }
    }

    /// Serves a connection, and holds something until it ends.
    fn connect(&mut self, stream: TcpStream, held: impl Send + 'static) {
        if stream.set_nodelay(true).is_err() {
            return; // it has been closed already
        }
        let watch = Arc::new(Watch::new());
        let weak = Arc::downgrade(&watch);
        let gateway = self.gateway.clone();
        let task = self.connections.spawn(async move {
            let _held = held;
            let Some(stream) = secured(&gateway, stream).await else { return };
            let socket = watch.socket(stream);
            let seen = Arc::clone(&watch);
            let service = service_fn(move |mut request| {
                let (gateway, watch) = (gateway.clone(), Arc::clone(&watch));
                let version = request.version();
                watch.begin_request();
                if gateway.core.limits.have_queue() {
                    request.extensions_mut().insert(Arc::clone(&watch));
                }
                async move { Ok::<_, Infallible>(watch.reply(version, gateway.handle(request).await)) }
            });
            let mut http = http1::Builder::new();
            let connection = http.max_buf_size(MAX_HEAD_BYTES).serve_connection(socket, service);
            tokio::pin!(connection);
            // How a connection ends is no event; its requests have been accounted for.
            loop {
                tokio::select! {
                    biased;
                    _ended = &mut connection => return,
                    is_closing = seen.nudged() => {
                        if is_closing {
                            connection.as_mut().graceful_shutdown();
                        }
                    }
                }
            }
        });
        self.watched.push(Watched::new(weak, task));
    }

    /// Forgets connections that have ended, and cuts those that come to no end.
    fn look_after(&mut self) {
        while self.connections.try_join_next().is_some() {}
        let patience = Patience::of(self.gateway.core.options.startup());
        self.watched.retain_mut(|watched| watched.stays(&patience));
        for worker in self.gateway.core.registry.fleet().all() {
            worker.link.tidy();
        }
    }

    /// Waits for the requests that are served, for a time.
    async fn end(mut self) {
        let core = Arc::clone(&self.gateway.core);
        let grace = Duration::from_secs(core.options.startup().shutdown_grace_period_secs);
        self.watched.iter_mut().for_each(Watched::close);
        let drained = async {
            let mut tick = tick(LAST_TICK);
            while !self.connections.is_empty() {
                tokio::select! {
                    _ended = self.connections.join_next() => {}
                    _ = tick.tick() => self.watched.retain_mut(Watched::stays_to_the_end),
                }
            }
            core.flights.closed().await;
        };
        if timeout(grace, drained).await.is_err() {
            core.ending.begin();
            self.watched.iter().for_each(Watched::nudge);
            let told = async { while self.connections.join_next().await.is_some() {} };
            let _in_time = timeout(LAST_WORDS, told).await;
        }
        self.connections.shutdown().await;
        // What was cut leaves its profile too.
        let _in_time = timeout(LAST_WORDS, core.flights.closed()).await;
    }
}

// === impl Handshake ===

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The connection as it is to be read and written; nothing if its client can not be spoken with.
async fn secured(gateway: &Gateway, stream: TcpStream) -> Option<Transport> {
    let Some(tls) = &gateway.core.tls else { return Some(Transport::Plain(stream)) };
    // Boxed, since a connection without TLS holds room for it too.
    let handshake = Handshake(&gateway.core.clients.handshakes_failed);
    let stream = Box::pin(TlsAcceptor::from(Arc::clone(tls)).accept(stream)).await.ok()?;
    std::mem::forget(handshake);
    Some(Transport::Tls(Box::new(stream.into())))
}
