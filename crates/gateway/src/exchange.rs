//! Sending one request to a worker and receiving the reply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use rollscope_wire::Chunks;

use crate::connection::Connection;
use crate::fault::UpstreamFault;
use crate::http1::{Framing, Next, ReplyHead};
use crate::outbound::Outbound;
use crate::pool::{PooledWorker, connect};

/// A reply whose head has come.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) head: http::response::Parts,
    pub(crate) body: UpstreamBody,
    /// A kept connection turned out to be closed, and another was opened.
    pub(crate) is_retry: bool,
    /// The connection was opened for it.
    pub(crate) is_new: bool,
}

/// A reply's body, and the connection that it comes by. Dropping it early closes the connection; at its end
/// the connection is kept.
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    framing: Framing,
    /// None once it has been kept or is of no more use.
    connection: Option<Connection>,
    keeps_alive: bool,
    worker: Arc<PooledWorker>,
}

/// Sends a request and waits for the head of the reply.
///
/// It is sent twice only when the first connection was a kept one that broke before a byte of the reply, and
/// the worker can not have acted on it: because no byte of the request was written, or because it is a GET.
/// `now` tells which kept connections are too old. What is not wanted any more when a connection is there is not sent at all.
pub(crate) async fn exchange(
    worker: &Arc<PooledWorker>,
    outbound: &Outbound,
    connect_limit: Duration,
    now: Instant,
    is_wanted: impl Fn() -> bool,
) -> Result<Exchange, UpstreamFault> {
    let request_head = outbound.head_to(&worker.url, worker.link.authorization());
    let mut is_retry = false;
    if !is_wanted() {
        return Err(UpstreamFault::CalledOff);
    }
    if let Some(mut connection) = worker.link.take(now) {
        match connection.call(outbound.method(), &request_head, &outbound.body).await {
            Ok(head) => return Ok(Exchange::new(head, connection, worker)),
            Err(error) if error.is_sent && outbound.method() != Method::GET => {
                return Err(UpstreamFault::KeptLost(error.broken));
            }
            Err(_) => is_retry = true,
        }
    }
    let mut connection = connect(worker, connect_limit).await?;
    if !is_wanted() {
        worker.link.put(connection);
        return Err(UpstreamFault::CalledOff);
    }
    let called = connection.call(outbound.method(), &request_head, &outbound.body).await;
    let head = called.map_err(|error| UpstreamFault::Lost(error.broken))?;
    Ok(Exchange { is_retry, is_new: true, ..Exchange::new(head, connection, worker) })
}

// === impl Exchange ===

impl Exchange {
    fn new(head: ReplyHead, connection: Connection, worker: &Arc<PooledWorker>) -> Self {
        let ReplyHead { parts, framing, keeps_alive } = head;
        let worker = Arc::clone(worker);
        let body = UpstreamBody { framing, connection: Some(connection), keeps_alive, worker };
        Self { head: parts, body, is_retry: false, is_new: false }
    }
}

// === impl UpstreamBody ===

impl UpstreamBody {
    /// Has the connection closed at the end.
    pub(crate) fn close_at_end(&mut self) {
        self.keeps_alive = false;
    }

    /// The next piece, or that more has been received. What is left of a body is one piece if it is known to be no longer
    /// than the limit. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self, limit_bytes: usize) -> Result<Next, UpstreamFault> {
        let Some(connection) = &mut self.connection else { return Ok(Next::End) };
        let next = connection.next_piece(&mut self.framing, limit_bytes).await;
        let next = next.map_err(UpstreamFault::Cut)?;
        if next == Next::End {
            self.keep_connection();
        }
        Ok(next)
    }

    /// Reads the rest of it, up to a limit.
    pub(crate) async fn collect(&mut self, limit_bytes: usize) -> Result<Chunks, UpstreamFault> {
        let mut body = Chunks::new();
        loop {
            match self.next(0).await? {
                Next::Piece(piece) => body.push(piece),
                Next::More => {}
                Next::End => return Ok(body),
            }
            if body.len() > limit_bytes {
                return Err(UpstreamFault::TooLarge { limit_bytes });
            }
        }
    }

    /// The next piece, if it has been received.
    pub(crate) fn received_piece(&mut self) -> Option<Bytes> {
        self.connection.as_mut()?.received_piece(&mut self.framing)
    }

    /// Whether all that is left has been received.
    pub(crate) fn is_received(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.has_all_of(self.framing))
    }

    /// Whether nothing is left of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.framing.is_over()
    }

    fn keep_connection(&mut self) {
        if let Some(connection) = self.connection.take_if(|_| self.keeps_alive) {
            self.worker.link.put(connection);
        }
        self.connection = None;
    }
}
