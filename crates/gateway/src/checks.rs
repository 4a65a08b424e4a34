//! Active health checks: each worker is asked from time to time whether it is up, and which process it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::iter;
use http::uri::PathAndQuery;
use rollscope_route::{HealthState, Introduced, Introduction, WorkerId};
use serde::Deserialize;

use crate::control::call;
use crate::core::Core;
use crate::outbound::Outbound;
use crate::pool::{Pool, PooledWorker};

/// What is read of a worker's `/server_info`.
#[derive(Debug, Default, Deserialize)]
struct ServerInfo {
    dp_size: Option<u32>,
    #[serde(default)]
    internal_states: Vec<InternalState>,
}

#[derive(Debug, Deserialize)]
struct InternalState {
    /// Of whatever type: it is only compared.
    startup_time: Option<serde_json::Value>,
}

/// A worker that is not known to be healthy is asked so often: it may just be starting.
const ANXIOUS_INTERVAL: Duration = Duration::from_secs(1);
/// So many are asked at once.
const MAX_CHECKS: usize = 64;

/// Checks the workers for ever.
pub(crate) async fn watch(core: Arc<Core>) {
    let interval = Duration::from_secs(core.options.startup().health_check_interval_secs);
    let mut checked: BTreeMap<WorkerId, Instant> = BTreeMap::new();
    loop {
        let fleet = core.registry.fleet();
        let (mut known, mut due) = (BTreeMap::new(), Vec::new());
        for worker in fleet.all() {
            let last = checked
                .get(&worker.id)
                .filter(|last| worker.health() == HealthState::Healthy && last.elapsed() < interval);
            if last.is_none() {
                due.push(Arc::clone(worker));
            }
            known.insert(worker.id.clone(), last.copied().unwrap_or_else(Instant::now));
        }
        checked = known;
        iter(due).for_each_concurrent(MAX_CHECKS, |worker| check(&core, worker)).await;
        tokio::time::sleep(ANXIOUS_INTERVAL.min(interval)).await;
    }
}

async fn check(core: &Core, worker: Arc<PooledWorker>) {
    let passes = ask(core, &worker, core.health_path.clone()).await.is_some();
    let mut checked = worker;
    if passes {
        let introduction = introduction(core, &checked).await;
        let introduced =
            core.registry.introduce(checked.id.as_str(), &introduction, Pool::default, &mut rand::rng());
        if let Ok(Introduced::Restarted(again)) = introduced {
            checked = again;
        }
    }
    checked.check(passes);
}

/// What a worker says of itself; nothing if it does not.
async fn introduction(core: &Core, worker: &Arc<PooledWorker>) -> Introduction {
    let body = ask(core, worker, PathAndQuery::from_static("/server_info")).await.unwrap_or_default();
    let info: ServerInfo = serde_json::from_slice(&body).unwrap_or_default();
    let stamp = info.internal_states.into_iter().find_map(|state| state.startup_time);
    Introduction { stamp: stamp.map(|stamp| stamp.to_string().into()), dp_size: info.dp_size }
}

/// The body of a good reply that came in time.
async fn ask(core: &Core, worker: &Arc<PooledWorker>, path: PathAndQuery) -> Option<bytes::Bytes> {
    let limit = Duration::from_secs(core.options.startup().health_check_timeout_secs);
    let outbound = Outbound::get(path);
    let reply = call(core, worker, &outbound, limit).await.ok()?;
    reply.status().is_success().then(|| reply.body.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_info_is_read_whatever_it_leaves_out() {
        for (body, dp_size, stamp) in [
            ("{}", None, None),
            (r#"{"dp_size":2,"version":"x"}"#, Some(2), None),
            (r#"{"internal_states":[{"startup_time":1.5}]}"#, None, Some("1.5")),
            (r#"{"internal_states":[{},{"startup_time":"noon"}]}"#, None, Some("\"noon\"")),
        ] {
            let info: ServerInfo = serde_json::from_slice(body.as_bytes()).unwrap();
            let found = info.internal_states.iter().find_map(|state| state.startup_time.as_ref());
            assert_eq!((info.dp_size, found.map(ToString::to_string).as_deref()), (dp_size, stamp), "{body}");
        }
    }
}
