//! Where workers publish their forward passes: asked of the workers themselves, never guessed from how they were started.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use rollscope_fpm::{Base, Endpoint, EndpointError, MAX_RANKS};
use rollscope_trace::WorkerRef;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::{PassListener, PassSource};

/// What a server tells of its endpoints makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum ToldError {
    /// An address is none.
    #[error("an endpoint of a rank makes no sense")]
    Endpoint {
        /// Why.
        #[from]
        source: EndpointError,
    },
    /// It publishes on every address of its host, and is called by an address without one.
    #[error("the server's address names no host: {0}")]
    Host(String),
}

/// Between two looks at the fleet.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// What a worker may take to tell of itself; its own bound on asking its schedulers is shorter.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Has a listener follow the forward passes of a fleet that changes, and those of further sources; runs until it is dropped.
/// `ask` gets a worker's `/server_info`; one that does not answer may be starting, and is asked again, and so is one whose
/// publishers are gone: it may have been started anew and publish elsewhere.
pub async fn record_fleet<A>(
    mut listener: PassListener,
    workers: impl Fn() -> Vec<WorkerRef>,
    further: Vec<Endpoint>,
    ask: impl Fn(WorkerRef) -> A,
) where
    A: Future<Output = Option<Value>> + Send + 'static,
{
    let mut known: BTreeMap<WorkerRef, Vec<Endpoint>> = BTreeMap::new();
    let (mut asked, mut asking) = (JoinSet::new(), BTreeSet::new());
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {
                let fleet = workers();
                known.retain(|worker, _| fleet.contains(worker));
                for worker in fleet {
                    let is_to_tell = !known.contains_key(&worker) || listener.misses(&worker);
                    if is_to_tell && asking.insert(worker.clone()) {
                        let answer = timeout(ANSWER_WITHIN, ask(worker.clone()));
                        asked.spawn(async move { (worker, answer.await.ok().flatten()) });
                    }
                }
            }
            Some(Ok((worker, info))) = asked.join_next() => {
                asking.remove(&worker);
                let told = info.and_then(|info| told_endpoints(&info, &worker.url).ok().flatten());
                if let Some(endpoints) = told {
                    known.insert(worker, endpoints);
                }
            }
        }
        let of_workers = known
            .iter()
            .flat_map(|(worker, endpoints)| endpoints.iter().map(move |endpoint| (endpoint, Some(worker))));
        // One that a worker tells of is the worker's, and not recorded twice.
        let is_told = |endpoint: &Endpoint| known.values().any(|told| told.contains(endpoint));
        let others = further.iter().filter(|endpoint| !is_told(endpoint));
        let all = others.map(|endpoint| (endpoint, None)).chain(of_workers);
        listener.follow(
            all.map(|(endpoint, worker)| PassSource { endpoint: endpoint.clone(), worker: worker.cloned() }),
        );
    }
}

/// The endpoints in force that a server's `/server_info` tells of, by rank. Nothing if it publishes and its schedulers did
/// not answer it in time: it is to be asked again, since what it was started with may not be what was bound.
///
/// `url` is how the server is called: it stands for the host where that publishes on every address.
///
/// # Errors
/// An endpoint that is none.
pub fn told_endpoints(info: &Value, url: &str) -> Result<Option<Vec<Endpoint>>, ToldError> {
    let states = info["internal_states"].as_array().map_or(&[][..], Vec::as_slice);
    if states.is_empty() && is_on(info) {
        return Ok(None);
    }
    let bases = states.iter().take(MAX_RANKS as usize).map(told_base);
    let ranks = (0..).zip(bases).filter_map(|(rank, base)| Some((rank, base?)));
    let endpoints = ranks.map(|(rank, base)| reachable(base.parse::<Base>()?.of_rank(rank)?, url));
    endpoints.collect::<Result<_, ToldError>>().map(Some)
}

/// The endpoint as others reach it.
fn reachable(endpoint: Endpoint, url: &str) -> Result<Endpoint, ToldError> {
    let is_every =
        |host: &str| host == "*" || host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    let Endpoint::Tcp { host, port } = &endpoint else { return Ok(endpoint) };
    if !is_every(host) {
        return Ok(endpoint);
    }
    let uri = url.parse::<http::Uri>().ok();
    let host = uri.as_ref().and_then(|uri| uri.host()).ok_or_else(|| ToldError::Host(url.to_owned()))?;
    Ok(Endpoint::Tcp { host: host.trim_matches(['[', ']']).to_owned(), port: *port })
}

fn is_on(state: &Value) -> bool {
    state["enable_forward_pass_metrics"].as_bool().unwrap_or(false)
}

fn told_base(state: &Value) -> Option<&str> {
    state["forward_pass_metrics_ipc_name"].as_str().filter(|base| is_on(state) && !base.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(info: &Value) -> Option<Vec<String>> {
        let endpoints = told_endpoints(info, "http://worker-3:30000").unwrap()?;
        Some(endpoints.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn endpoints_are_those_in_force() {
        let state = |base: Value, on: bool| json!({"enable_forward_pass_metrics": on, "forward_pass_metrics_ipc_name": base});
        let ranks = |ranks: &[Value]| {
            json!({"enable_forward_pass_metrics": true, "forward_pass_metrics_ipc_name": null,
            "internal_states": ranks})
        };
        let fpm = || state(json!("ipc:///run/fpm"), true);
        let list =
            |endpoints: &[&str]| Some(endpoints.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        for (name, info, expected) in [
            ("two ranks", ranks(&[fpm(), fpm()]), list(&["ipc:///run/fpm.0", "ipc:///run/fpm.1"])),
            (
                "a rank that could not bind its own has none; the others keep their numbers",
                ranks(&[state(Value::Null, false), state(json!("tcp://*:20380"), true)]),
                list(&["tcp://worker-3:20381"]),
            ),
            (
                "schedulers that did not answer in time, and an address that was given",
                json!({"enable_forward_pass_metrics": true, "dp_size": 2, "internal_states": [],
                    "forward_pass_metrics_ipc_name": "tcp://10.0.0.1:5"}),
                None,
            ),
            ("the same, and none that was given", ranks(&[]), None),
            ("nothing of the kind", json!({}), list(&[])),
            ("no object", json!([]), list(&[])),
            ("switched off", json!({"internal_states": [state(json!("ipc:///a"), false), {}]}), list(&[])),
        ] {
            assert_eq!(told(&info), expected, "{name}");
        }
        let absurd = json!({"internal_states": [state(json!("http://a"), true)]});
        assert!(told_endpoints(&absurd, "http://w").is_err());
        let nowhere = json!({"internal_states": [state(json!("tcp://*:5"), true)]});
        assert!(matches!(told_endpoints(&nowhere, "/"), Err(ToldError::Host(_))));
    }
}
