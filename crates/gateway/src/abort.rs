//! Telling a worker that a request is given up.
//!
//! Closing the connection is what counts; a worker that looks at connections only now and then is told by name
//! too, if the client gave the request one.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::core::Core;
use crate::exchange::exchange;
use crate::live::Live;
use crate::outbound::Outbound;
use crate::pool::PooledWorker;

/// A worker that does not take an abort in this time is left alone.
pub(crate) const ABORT_LIMIT: Duration = Duration::from_secs(5);
/// Of a larger batch the rest is left to the closed connection.
const MAX_ABORTS: usize = 256;

/// Of a longer reply to an abort the rest is not waited for.
const MAX_ABORT_REPLY_BYTES: usize = 64 << 10;

/// Names that workers are being told to abort.
#[derive(Debug, Default)]
pub(crate) struct Aborts {
    told: Live<String>,
    /// Tells those that wait when some have been told.
    ended: Notify,
}

/// Names that a worker is being told to abort, until this is dropped.
struct Telling {
    core: Arc<Core>,
    rids: Vec<String>,
}

// === impl Aborts ===

impl Aborts {
    /// Waits until no abort is under way that would hit one of these names: a request that is sent again under its
    /// name must not be ended by the end of the one before.
    pub(crate) async fn past(&self, rids: &[String]) {
        if rids.is_empty() {
            return;
        }
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if !rids.iter().any(|rid| self.told.has_prefix_of(rid)) {
                return;
            }
            ended.await;
        }
    }
}

// === impl Telling ===

impl Telling {
    fn begin(core: &Arc<Core>, rids: &[String]) -> Self {
        let rids: Vec<String> = rids.iter().take(MAX_ABORTS).cloned().collect();
        core.aborts.told.add(&rids);
        Self { core: Arc::clone(core), rids }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.core.aborts.told.remove(&self.rids);
        self.core.aborts.ended.notify_waiters();
    }
}

/// Posts `/abort_request` for each name, later and without waiting. The request must still be among the live ones.
pub(crate) fn abort_later(core: &Arc<Core>, worker: &Arc<PooledWorker>, rids: &[String]) {
    // Without a runtime the program is ending, and the connections with it.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    if rids.is_empty() {
        return;
    }
    // First this, then the look at who is live: a request that comes now under the same name either is seen, or sees
    // that it has to wait.
    let telling = Telling::begin(core, rids);
    let safe = telling.rids.iter().filter(|rid| core.rids.is_safe_to_abort(rid));
    let bodies: Vec<Vec<u8>> =
        safe.filter_map(|rid| serde_json::to_vec(&serde_json::json!({ "rid": rid })).ok()).collect();
    if bodies.is_empty() {
        return;
    }
    let worker = Arc::clone(worker);
    runtime.spawn(async move {
        for body in bodies {
            let outbound = Outbound::post_json("/abort_request", body);
            let posted = tokio::time::timeout(
                ABORT_LIMIT,
                exchange(&worker, &outbound, ABORT_LIMIT, Instant::now(), || true),
            )
            .await;
            let Ok(Ok(mut reply)) = posted else { break };
            drop(tokio::time::timeout(ABORT_LIMIT, reply.body.collect(MAX_ABORT_REPLY_BYTES)).await);
        }
        drop(telling);
    });
}
