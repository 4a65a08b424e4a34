//! What workers say of their load, asked from time to time where a policy goes by it and nothing newer is heard.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::uri::PathAndQuery;
use rollscope_route::{ReportedLoad, WorkerUrl};
use serde::Deserialize;

use crate::clock::tick;
use crate::control::call;
use crate::core::Core;
use crate::outbound::Outbound;
use crate::pool::PooledWorker;

/// What is read of a worker's `/v1/loads`.
#[derive(Debug, Deserialize)]
struct Loads {
    loads: Vec<RankLoad>,
}

/// Of one data-parallel rank.
#[derive(Debug, Deserialize)]
struct RankLoad {
    dp_rank: Option<u32>,
    num_running_reqs: Option<u64>,
    num_waiting_reqs: Option<u64>,
    num_used_tokens: Option<u64>,
}

/// Asks for ever; does nothing where nobody goes by loads.
pub(crate) async fn poll(core: &Core) {
    let options = core.options.startup();
    if !core.choosers.weighs_loads || options.load_poll_interval_secs == 0.0 {
        return;
    }
    // Each is asked by itself, so that one that does not answer keeps nobody from being asked again.
    let pause = Duration::from_secs_f64(options.load_poll_interval_secs);
    let mut tick = tick(pause);
    let mut asked: BTreeSet<WorkerUrl> = BTreeSet::new();
    let mut asking = FuturesUnordered::new();
    loop {
        tokio::select! {
            _ = tick.tick() => {
                let fleet = core.registry.fleet();
                for server in fleet.servers() {
                    let is_known = core.heard_load(server, pause).is_some();
                    if !is_known && asked.insert(server.url.clone()) {
                        asking.push(ask(core, Arc::clone(server)));
                    }
                }
            }
            Some(url) = asking.next() => {
                asked.remove(&url);
            }
        }
    }
}

/// Asks a server, and tells each worker at its address. One that does not answer keeps what it said until that is too
/// old.
async fn ask(core: &Core, server: Arc<PooledWorker>) -> WorkerUrl {
    tell(core, &server).await;
    server.url.clone()
}

async fn tell(core: &Core, server: &Arc<PooledWorker>) {
    let limit = core.max_load_age();
    let outbound = Outbound::get(PathAndQuery::from_static("/v1/loads?include=core"));
    let asked = core.clock.moment();
    let Ok(reply) = call(core, server, &outbound, limit).await else { return };
    let Ok(loads) = serde_json::from_slice::<Loads>(&reply.body.to_bytes()) else { return };
    if !reply.status().is_success() {
        return;
    }
    for worker in core.registry.fleet().all().filter(|worker| worker.url == server.url) {
        if let Some(load) = loads.of(worker.rank) {
            worker.report_load(load, asked);
        }
    }
}

// === impl Loads ===

impl Loads {
    /// Of a rank, or of all together. None if it is not told whole.
    fn of(&self, rank: Option<u32>) -> Option<ReportedLoad> {
        let mut loads = self.loads.iter().filter(|load| rank.is_none() || load.dp_rank == rank).peekable();
        loads.peek()?;
        loads.try_fold(ReportedLoad::default(), |sum, load| {
            Some(sum.and(&ReportedLoad {
                running: load.num_running_reqs?,
                waiting: load.num_waiting_reqs?,
                tokens: load.num_used_tokens.unwrap_or(0),
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_those_of_a_rank_or_of_all() {
        let two = r#"{"loads":[
            {"dp_rank":0,"num_running_reqs":1,"num_waiting_reqs":2,"num_used_tokens":30},
            {"dp_rank":1,"num_running_reqs":4,"num_waiting_reqs":0}]}"#;
        let load = |running, waiting, tokens| Some(ReportedLoad { running, waiting, tokens });
        for (body, rank, expected) in [
            (two, None, load(5, 2, 30)),
            (two, Some(1), load(4, 0, 0)),
            (two, Some(2), None),
            (r#"{"loads":[]}"#, None, None),
            (r#"{"loads":[{"num_running_reqs":1}]}"#, None, None),
        ] {
            let loads: Loads = serde_json::from_str(body).unwrap();
            assert_eq!(loads.of(rank), expected, "{rank:?} of {body}");
        }
    }
}
