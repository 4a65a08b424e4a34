//! Connections to one worker: opened when none is idle, kept for a moment when a reply has ended.
//!
//! A connection belongs to the runtime that opened it, so each serving thread has idle ones of its own.

use std::cell::Cell;
use std::time::{Duration, Instant};

use http::HeaderValue;
use http::header::InvalidHeaderValue;
use parking_lot::Mutex;
use rollscope_route::Worker;
use tokio::net::TcpStream;

use crate::clock::WorkerClock;
use crate::connection::Connection;
use crate::fault::UpstreamFault;

/// A worker's idle connections.
#[derive(Debug)]
pub(crate) struct Pool {
    /// By serving thread; the first is for everybody else. The one used last is on top.
    shelves: Box<[Mutex<Vec<Idle>>]>,
    /// What the worker is sent as Authorization, in place of what the client has sent.
    authorization: Option<HeaderValue>,
    /// The worker's clock.
    pub(crate) clock: WorkerClock,
}

pub(crate) type PooledWorker = Worker<Pool>;

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

/// Shorter than the 5 s after which uvicorn, which SGLang runs on, closes an idle connection: a request sent
/// into a closing connection is lost and must not be sent twice.
const MAX_IDLE: Duration = Duration::from_secs(4);
/// More connections than this are closed instead of kept.
const MAX_IDLE_CONNECTIONS: usize = 1024;

thread_local! {
    static SHELF: Cell<usize> = const { Cell::new(0) };
}

/// Gives this thread idle connections of its own; threads count from 1.
pub(crate) fn claim_shelf(thread: usize) {
    SHELF.set(thread);
}

// === impl Pool ===

impl Pool {
    /// No connections yet, to a worker that wants this key.
    pub(crate) fn with_key(key: Option<&str>) -> Result<Self, InvalidHeaderValue> {
        let authorization = key.map(|key| HeaderValue::try_from(format!("Bearer {key}"))).transpose()?;
        Ok(Self::new(authorization))
    }

    /// No connections yet, to a process that has taken the worker's place.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.authorization.clone())
    }

    pub(crate) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    fn new(authorization: Option<HeaderValue>) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let shelves = (0..=threads).map(|_| Mutex::default()).collect();
        Self { shelves, authorization, clock: WorkerClock::default() }
    }

    /// Takes an idle connection that is open, as far as is known.
    pub(crate) fn take(&self) -> Option<Connection> {
        let mut idle = self.shelf().lock();
        while let Some(Idle { connection, since }) = idle.pop() {
            if since.elapsed() >= MAX_IDLE {
                // What lies below has been idle for longer.
                idle.clear();
            } else if connection.is_idle() {
                return Some(connection);
            }
        }
        None
    }

    /// Puts a connection back that is ready for the next request.
    pub(crate) fn put(&self, mut connection: Connection) {
        connection.shrink();
        let mut idle = self.shelf().lock();
        if idle.len() < MAX_IDLE_CONNECTIONS {
            idle.push(Idle { connection, since: Instant::now() });
        }
    }

    /// Closes what this thread has had idle for too long, and what the worker has closed.
    pub(crate) fn tidy(&self) {
        let is_kept = |idle: &mut Idle| idle.since.elapsed() < MAX_IDLE && idle.connection.is_idle();
        self.shelf().lock().retain_mut(is_kept);
    }

    fn shelf(&self) -> &Mutex<Vec<Idle>> {
        &self.shelves[SHELF.get() % self.shelves.len()]
    }
}

/// Opens a connection.
pub(crate) async fn connect(worker: &PooledWorker, limit: Duration) -> Result<Connection, UpstreamFault> {
    let connected = tokio::time::timeout(limit, TcpStream::connect(worker.url.socket_address())).await;
    let stream =
        connected.map_err(|_| UpstreamFault::ConnectTimeout { limit })?.map_err(UpstreamFault::connect)?;
    stream.set_nodelay(true).map_err(UpstreamFault::connect)?;
    Ok(Connection::new(stream))
}
