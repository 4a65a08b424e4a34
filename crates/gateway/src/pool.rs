//! Connections to one worker: opened when none is idle, kept for a moment when a reply has ended.

use std::time::{Duration, Instant};

use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rollscope_route::Worker;
use tokio::net::TcpStream;

use crate::body::WholeBody;
use crate::fault::UpstreamFault;

/// A worker's idle connections, the one used last on top.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<Idle>>,
}

pub(crate) type PooledWorker = Worker<Pool>;
pub(crate) type Sender = SendRequest<WholeBody>;

#[derive(Debug)]
struct Idle {
    sender: Sender,
    since: Instant,
}

/// Shorter than the 5 s after which uvicorn, which SGLang runs on, closes an idle connection: a request sent
/// into a closing connection is lost and must not be sent twice.
const MAX_IDLE: Duration = Duration::from_secs(4);
/// More connections than this are closed instead of kept.
const MAX_IDLE_CONNECTIONS: usize = 1024;

// === impl Pool ===

impl Pool {
    /// Takes an idle connection that is open, as far as is known.
    pub(crate) fn take(&self) -> Option<Sender> {
        let mut idle = self.idle.lock();
        while let Some(Idle { sender, since }) = idle.pop() {
            if since.elapsed() >= MAX_IDLE {
                // What lies below has been idle for longer.
                idle.clear();
            } else if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    /// Puts a connection back that is ready for the next request.
    pub(crate) fn put(&self, sender: Sender) {
        let mut idle = self.idle.lock();
        if idle.len() >= MAX_IDLE_CONNECTIONS {
            idle.retain(|idle| !idle.sender.is_closed() && idle.since.elapsed() < MAX_IDLE);
        }
        if idle.len() < MAX_IDLE_CONNECTIONS {
            idle.push(Idle { sender, since: Instant::now() });
        }
    }
}

/// Opens a connection.
pub(crate) async fn connect(worker: &PooledWorker, limit: Duration) -> Result<Sender, UpstreamFault> {
    let connected = tokio::time::timeout(limit, TcpStream::connect(worker.url.socket_address())).await;
    let stream =
        connected.map_err(|_| UpstreamFault::ConnectTimeout { limit })?.map_err(UpstreamFault::Connect)?;
    stream.set_nodelay(true).map_err(UpstreamFault::Connect)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(UpstreamFault::Lost)?;
    tokio::spawn(async move {
        // How a connection ends is told to whoever waits for its reply.
        drop(connection.await);
    });
    Ok(sender)
}
