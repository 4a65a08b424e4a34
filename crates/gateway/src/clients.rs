//! How many connections clients have, and what is told to those that are too many.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::options::GatewayOptions;

/// The connections of clients.
#[derive(Debug)]
pub(crate) struct Clients {
    pub(crate) open: Arc<AtomicUsize>,
    /// More are refused.
    pub(crate) limit: usize,
    /// Connections that were.
    pub(crate) refused: AtomicU64,
    /// Connections whose client and the gateway did not come to terms about TLS.
    pub(crate) handshakes_failed: AtomicU64,
    /// One permit for each connection that may be told so at once.
    tellers: Arc<Semaphore>,
}

/// One of some connections, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicUsize>);

/// Those that are refused beyond that are closed without a word.
const MAX_TOLD: usize = 64;
/// A client that sends on would have its connection reset and not see why: so long what it sends is read.
const TELL_LIMIT: Duration = Duration::from_secs(1);

// === impl Clients ===

impl Clients {
    pub(crate) fn new(options: &GatewayOptions) -> Self {
        Self {
            open: Arc::default(),
            limit: options.connection_limit(),
            refused: AtomicU64::new(0),
            handshakes_failed: AtomicU64::new(0),
            tellers: Arc::new(Semaphore::new(MAX_TOLD)),
        }
    }

    /// Refuses a connection, by a reply if it is one that a reply can be written to.
    pub(crate) fn refuse(&self, stream: TcpStream, is_plain: bool) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let limit = self.limit;
        if is_plain && let Ok(permit) = Arc::clone(&self.tellers).try_acquire_owned() {
            tokio::spawn(async move {
                let _permit = permit;
                // Whether the client still listens is its business.
                drop(timeout(TELL_LIMIT, tell(stream, limit)).await);
            });
        }
    }
}

async fn tell(mut stream: TcpStream, limit: usize) -> io::Result<()> {
    let message = format!("the gateway has {limit} connections already, which is --max-connections");
    let body = serde_json::json!({
        "error": { "type": "Service Unavailable", "code": "too_many_connections", "message": message }
    })
    .to_string();
    let reply = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         x-smg-error-code: too_many_connections\r\nretry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await?;
    while stream.read(&mut [0; 4096]).await? > 0 {}
    Ok(())
}

// === impl Counted ===

impl Counted {
    pub(crate) fn one_of(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
