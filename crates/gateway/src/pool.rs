//! Connections to one worker: opened when none is idle, kept for a moment when a reply has ended.
//!
//! A connection belongs to the runtime that opened it, so each serving thread has idle ones of its own.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::HeaderValue;
use http::header::InvalidHeaderValue;
use parking_lot::Mutex;
use rollscope_config::ConfigError;
use rollscope_route::{Worker, WorkerUrl};
use rollscope_trace::WorkerRef;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::checks::FailedCheck;
use crate::clock::WorkerClock;
use crate::connection::Connection;
use crate::deadline::Timer;
use crate::fault::UpstreamFault;
use crate::options::GatewayOptions;
use crate::tags::{Labels, Tags};
use crate::tls;
use crate::transport::Transport;

/// What connections to all workers have in common.
#[derive(Debug)]
pub(crate) struct Links {
    /// Threads that serve.
    threads: usize,
    max_idle: Duration,
    tls: Arc<ClientConfig>,
}

/// A worker's idle connections.
#[derive(Debug)]
pub(crate) struct Pool {
    /// By serving thread; the first is for everybody else.
    shelves: Box<[Mutex<Shelf>]>,
    /// What the worker is sent as Authorization, in place of what the client has sent.
    authorization: Option<HeaderValue>,
    /// An older idle connection is not used: a request sent into one that the worker is closing is lost and must not be sent
    /// twice.
    max_idle: Duration,
    /// Who has named the worker.
    pub(crate) origin: Origin,
    /// What is noted of the worker by whoever registers it.
    pub(crate) tags: Mutex<Tags>,
    /// What the worker has said of itself.
    pub(crate) said: Mutex<Labels>,
    tls: Arc<ClientConfig>,
    /// The last check that has failed.
    pub(crate) failed_check: Mutex<Option<FailedCheck>>,
    /// Whether a connection broke or was closed as if the worker's process had ended, or none has been watched for a while.
    is_in_doubt: AtomicBool,
    /// The worker's clock.
    pub(crate) clock: WorkerClock,
    /// The worker as it stands in profiles, once it stands in one.
    profile_ref: OnceLock<WorkerRef>,
}

pub(crate) type PooledWorker = Worker<Pool>;

/// Who has named a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The options, or a call.
    Named,
    /// The source of that number, which may also take it out.
    Source(usize),
}

/// What is kept for the next call.
#[derive(Debug, Default)]
struct Shelf {
    /// The one used last is on top.
    idle: Vec<Idle>,
    /// No more than there are idle connections.
    timers: Vec<Timer>,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

/// More connections than this are closed instead of kept.
const MAX_IDLE_CONNECTIONS: usize = 1024;

thread_local! {
    static SHELF: Cell<usize> = const { Cell::new(0) };
}

/// Gives this thread idle connections of its own; threads count from 1.
pub(crate) fn claim_shelf(thread: usize) {
    SHELF.set(thread);
}

// === impl Links ===

impl Links {
    pub(crate) fn new(options: &GatewayOptions) -> Result<Self, ConfigError> {
        let max_idle = Duration::from_secs_f64(options.worker_idle_timeout_secs);
        Ok(Self { threads: options.threads(), max_idle, tls: tls::to_workers(options)? })
    }

    /// No connections yet, to a worker that wants this key.
    pub(crate) fn to(&self, key: Option<&str>, origin: Origin) -> Result<Pool, InvalidHeaderValue> {
        Ok(Pool {
            shelves: shelves(self.threads + 1),
            authorization: key.map(bearer).transpose()?,
            max_idle: self.max_idle,
            origin,
            tags: Mutex::default(),
            said: Mutex::default(),
            tls: Arc::clone(&self.tls),
            failed_check: Mutex::default(),
            is_in_doubt: AtomicBool::new(false),
            clock: WorkerClock::default(),
            profile_ref: OnceLock::new(),
        })
    }
}

fn shelves(count: usize) -> Box<[Mutex<Shelf>]> {
    (0..count).map(|_| Mutex::default()).collect()
}

fn bearer(key: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    HeaderValue::try_from(format!("Bearer {key}"))
}

// === impl Pool ===

impl Pool {
    /// No connections yet, to a worker that has taken this one's place and was named so.
    pub(crate) fn again(&self, origin: Origin) -> Self {
        Self {
            shelves: shelves(self.shelves.len()),
            authorization: self.authorization.clone(),
            max_idle: self.max_idle,
            origin,
            tags: Mutex::new(self.tags.lock().clone()),
            said: Mutex::new(self.said.lock().clone()),
            tls: Arc::clone(&self.tls),
            failed_check: Mutex::default(),
            is_in_doubt: AtomicBool::new(false),
            clock: WorkerClock::default(),
            profile_ref: OnceLock::new(),
        }
    }

    pub(crate) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Takes note that the worker's process may have ended.
    pub(crate) fn doubt(&self) {
        self.is_in_doubt.store(true, Ordering::Relaxed);
    }

    /// Whether that has been noted since it was asked for last.
    pub(crate) fn take_doubt(&self) -> bool {
        self.is_in_doubt.swap(false, Ordering::Relaxed)
    }

    /// Whether a connection is kept, by any thread, that is not too old: one by which the worker's end would be noticed.
    pub(crate) fn has_kept(&self) -> bool {
        let is_young = |idle: &Idle| idle.since.elapsed() < self.max_idle;
        self.shelves.iter().any(|shelf| shelf.lock().idle.iter().any(is_young))
    }

    /// Takes an idle connection that is open, as far as is known.
    pub(crate) fn take(&self, now: Instant) -> Option<Connection> {
        let idle = &mut self.shelf().lock().idle;
        while let Some(Idle { mut connection, since }) = idle.pop() {
            if now.saturating_duration_since(since) >= self.max_idle {
                // What lies below has been idle for longer.
                idle.clear();
            } else if connection.is_idle() {
                return Some(connection);
            } else {
                self.doubt();
            }
        }
        None
    }

    /// Puts a connection back that is ready for the next request.
    pub(crate) fn put(&self, mut connection: Connection) {
        connection.shrink();
        let idle = &mut self.shelf().lock().idle;
        if idle.len() < MAX_IDLE_CONNECTIONS {
            idle.push(Idle { connection, since: Instant::now() });
        }
    }

    /// Closes what this thread has had idle for too long, and what the worker has closed.
    pub(crate) fn tidy(&self) {
        let is_kept = |idle: &mut Idle| {
            if idle.since.elapsed() >= self.max_idle {
                return false;
            }
            let is_open = idle.connection.is_idle();
            if !is_open {
                self.doubt();
            }
            is_open
        };
        let Shelf { idle, timers } = &mut *self.shelf().lock();
        idle.retain_mut(is_kept);
        timers.truncate(idle.len());
    }

    /// Takes a timer that was kept.
    pub(crate) fn take_timer(&self) -> Option<Timer> {
        self.shelf().lock().timers.pop()
    }

    /// Keeps a timer for the next call, which will as a rule be on a connection that has been kept.
    pub(crate) fn put_timer(&self, timer: Timer) {
        let Shelf { idle, timers } = &mut *self.shelf().lock();
        if timers.len() < idle.len() {
            timers.push(timer);
        }
    }

    fn shelf(&self) -> &Mutex<Shelf> {
        &self.shelves[SHELF.get() % self.shelves.len()]
    }
}

/// A worker as it stands in profiles, which share its names.
pub(crate) fn profile_ref(worker: &PooledWorker) -> WorkerRef {
    let make = || WorkerRef { url: (&*worker.name).into(), instance: worker.id.as_str().into() };
    worker.link.profile_ref.get_or_init(make).clone()
}

/// Opens a connection.
pub(crate) async fn connect(worker: &PooledWorker, limit: Duration) -> Result<Connection, UpstreamFault> {
    let connected = tokio::time::timeout(limit, open(&worker.url, &worker.link.tls)).await;
    let opened = connected.map_err(|_| UpstreamFault::ConnectTimeout { limit })?;
    opened.map(Connection::new).map_err(UpstreamFault::connect)
}

async fn open(url: &WorkerUrl, tls: &Arc<ClientConfig>) -> io::Result<Transport> {
    let (host, port) = url.socket_address();
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    if !url.is_tls() {
        return Ok(Transport::Plain(stream));
    }
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    // Boxed, since a call that needs no TLS holds room for it too.
    let stream = Box::pin(TlsConnector::from(Arc::clone(tls)).connect(name, stream)).await?;
    Ok(Transport::Tls(Box::new(stream.into())))
}

#[cfg(test)]
mod tests {
    use rollscope_config::Options as _;

    use super::*;

    #[test]
    fn each_serving_thread_has_a_shelf() {
        let options = GatewayOptions::from_args(["--serving-threads", "37"]).unwrap();
        let pool = Links::new(&options).unwrap().to(None, Origin::Named).unwrap();
        let shelf = |pool: &Pool, thread| {
            claim_shelf(thread);
            std::ptr::from_ref(pool.shelf()) as usize
        };
        for pool in [pool.again(Origin::Source(1)), pool] {
            let shelves: std::collections::BTreeSet<usize> =
                (0..=37).map(|thread| shelf(&pool, thread)).collect();
            assert_eq!(shelves.len(), 38);
        }
        claim_shelf(0);
    }
}
