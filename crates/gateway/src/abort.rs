//! Telling a worker that a request is given up.
//!
//! Closing the connection is what counts; a worker that looks at connections only now and then is told by name
//! too, if the client gave the request one.

use std::sync::Arc;
use std::time::Duration;

use crate::core::Core;
use crate::exchange::exchange;
use crate::outbound::Outbound;
use crate::pool::PooledWorker;

/// A worker that does not take an abort in this time is left alone.
const ABORT_LIMIT: Duration = Duration::from_secs(5);
/// Of a larger batch the rest is left to the closed connection.
const MAX_ABORTS: usize = 256;

/// Posts `/abort_request` for each name, later and without waiting.
pub(crate) fn abort_later(core: &Arc<Core>, worker: &Arc<PooledWorker>, rids: &[String]) {
    let safe = rids.iter().filter(|rid| core.rids.is_safe_to_abort(rid)).take(MAX_ABORTS);
    let bodies: Vec<Vec<u8>> =
        safe.filter_map(|rid| serde_json::to_vec(&serde_json::json!({ "rid": rid })).ok()).collect();
    // Without a runtime the program is ending, and the connections with it.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    if bodies.is_empty() {
        return;
    }
    let worker = Arc::clone(worker);
    runtime.spawn(async move {
        for body in bodies {
            let outbound = Outbound::post_json("/abort_request", body);
            let posted = tokio::time::timeout(ABORT_LIMIT, exchange(&worker, &outbound, ABORT_LIMIT)).await;
            let Ok(Ok(mut reply)) = posted else { return };
            drop(tokio::time::timeout(ABORT_LIMIT, reply.body.next()).await);
        }
    });
}
