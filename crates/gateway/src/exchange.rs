//! Sending one request over a connection and receiving the reply.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::fault::UpstreamFault;
use crate::outbound::Outbound;
use crate::pool::{PooledWorker, Sender, connect};

/// A reply whose head has come.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) head: http::response::Parts,
    pub(crate) body: UpstreamBody,
    /// A kept connection turned out to be closed, and another was opened.
    pub(crate) is_retry: bool,
}

/// A reply's body, and the connection that it comes by. Dropping it early closes the connection; at its end
/// the connection is kept.
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    sender: Option<Sender>,
    worker: Arc<PooledWorker>,
}

/// Sends a request and waits for the head of the reply.
///
/// It is sent twice only when the first connection was a kept one that broke before a byte of the reply, and
/// the worker can not have acted on it: because no byte of the request was written, or because it is a GET.
pub(crate) async fn exchange(
    worker: &Arc<PooledWorker>,
    outbound: &Outbound,
    connect_limit: Duration,
) -> Result<Exchange, UpstreamFault> {
    let mut request = outbound.to(&worker.url);
    let mut is_retry = false;
    if let Some(mut sender) = worker.link.take() {
        request = match sender.try_send_request(request).await {
            Ok(reply) => return Ok(Exchange::new(reply, sender, worker, false)),
            Err(mut error) => match error.take_message() {
                Some(unsent) => unsent,
                None if outbound.method == Method::GET => outbound.to(&worker.url),
                None => return Err(UpstreamFault::Lost(error.into_error())),
            },
        };
        is_retry = true;
    }
    let mut sender = connect(worker, connect_limit).await?;
    let reply = sender.send_request(request).await.map_err(UpstreamFault::Lost)?;
    Ok(Exchange::new(reply, sender, worker, is_retry))
}

// === impl Exchange ===

impl Exchange {
    fn new(
        reply: http::Response<Incoming>,
        sender: Sender,
        worker: &Arc<PooledWorker>,
        is_retry: bool,
    ) -> Self {
        let (head, incoming) = reply.into_parts();
        let body = UpstreamBody { incoming, sender: Some(sender), worker: Arc::clone(worker) };
        Self { head, body, is_retry }
    }
}

// === impl UpstreamBody ===

impl UpstreamBody {
    /// The next piece; nothing at the end. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, UpstreamFault> {
        loop {
            match self.incoming.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
                Some(Err(error)) => return Err(UpstreamFault::Cut(error)),
                None => {
                    self.keep_connection();
                    return Ok(None);
                }
            }
        }
    }

    /// Whether nothing is left of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn keep_connection(&mut self) {
        let Some(mut sender) = self.sender.take() else { return };
        if sender.is_ready() {
            self.worker.link.put(sender);
            return;
        }
        // The connection's task has yet to notice that the reply has been read.
        let worker = Arc::clone(&self.worker);
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                worker.link.put(sender);
            }
        });
    }
}
