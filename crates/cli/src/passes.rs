//! Where workers publish their forward passes: asked of the workers themselves, never guessed from how they were started.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rollscope_fpm::{Base, Endpoint};
use rollscope_record::{PassListener, PassSource, RecorderHandle};
use rollscope_trace::WorkerRef;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::http::get_json;

/// Between two looks at the fleet.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// What a worker may take to tell of itself; its own bound on asking its schedulers is shorter.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// No server has more ranks; a larger number is a mistake.
const MAX_RANKS: usize = 4096;

/// The endpoints of an address that a user gave: one rank's own if it names one, else those of all ranks of a base that can
/// be seen, and the first rank's in any case. Other hosts' ranks cannot be seen: each is named, or the server is asked.
pub(crate) fn endpoints_of(address: &str) -> Result<Vec<Endpoint>> {
    let endpoint: Endpoint = address.parse()?;
    let Endpoint::Ipc(path) = &endpoint else { return Ok(vec![endpoint]) };
    let names_a_rank = path.extension().is_some_and(|rank| rank.to_str().is_some_and(is_rank));
    if names_a_rank || path.exists() {
        return Ok(vec![endpoint]);
    }
    let base: Base = address.parse()?;
    let mut endpoints = vec![base.of_rank(0)?];
    for rank in 1..MAX_RANKS as u32 {
        match base.of_rank(rank)? {
            Endpoint::Ipc(path) if Path::new(&path).exists() => endpoints.push(Endpoint::Ipc(path)),
            _ => break,
        }
    }
    Ok(endpoints)
}

fn is_rank(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The endpoints of a server's ranks, asked of the server; none if it publishes nothing.
pub(crate) async fn endpoints_at(url: &str) -> Result<Vec<Endpoint>> {
    let address = format!("{}/server_info", url.trim_end_matches('/'));
    let asked = timeout(ANSWER_WITHIN, get_json(&address)).await;
    let info = asked.with_context(|| format!("no answer in time from {address}"))??;
    told_endpoints(&info, url).with_context(|| format!("{address} tells of endpoints that make no sense"))
}

/// The endpoints that a `/server_info` tells of: those in force, by rank; or, from a server whose schedulers did not answer it
/// in time, those that it was started with.
fn told_endpoints(info: &Value, url: &str) -> Result<Vec<Endpoint>> {
    let states = info["internal_states"].as_array().map_or(&[][..], Vec::as_slice);
    let bases: Vec<Option<&str>> = if states.is_empty() {
        let ranks = info["dp_size"].as_u64().map_or(1, |ranks| ranks.max(1) as usize);
        vec![told_base(info); ranks.min(MAX_RANKS)]
    } else {
        states.iter().take(MAX_RANKS).map(told_base).collect()
    };
    let mut endpoints = Vec::new();
    for (rank, base) in bases.into_iter().enumerate() {
        let Some(base) = base else { continue };
        endpoints.push(match base.parse::<Base>()?.of_rank(rank as u32)? {
            // Every address of the worker's host.
            Endpoint::Tcp { host, port } if matches!(&*host, "*" | "::") || is_unspecified(&host) => {
                let uri: http::Uri = url.parse()?;
                let host = uri.host().context("the worker's address names no host")?;
                Endpoint::Tcp { host: host.trim_matches(['[', ']']).to_owned(), port }
            }
            endpoint => endpoint,
        });
    }
    Ok(endpoints)
}

fn is_unspecified(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified())
}

fn told_base(state: &Value) -> Option<&str> {
    let is_on = state["enable_forward_pass_metrics"].as_bool().unwrap_or(false);
    state["forward_pass_metrics_ipc_name"].as_str().filter(|base| is_on && !base.is_empty())
}

/// Records the forward passes of a fleet that changes, and those of further sources; runs until it is dropped.
pub(crate) async fn record_fleet(
    recorder: RecorderHandle,
    workers: impl Fn() -> Vec<WorkerRef>,
    further: Vec<Endpoint>,
) {
    let mut listener = PassListener::new(recorder);
    let further: Vec<_> = further.into_iter().map(|endpoint| PassSource { endpoint, worker: None }).collect();
    let mut known: Vec<(WorkerRef, Vec<Endpoint>)> = Vec::new();
    loop {
        let workers = workers();
        known.retain(|(worker, _)| workers.contains(worker));
        for worker in workers {
            if known.iter().any(|(other, _)| *other == worker) {
                continue;
            }
            // One that does not answer may be starting, and is asked again.
            if let Ok(endpoints) = endpoints_at(&worker.url).await {
                known.push((worker, endpoints));
            }
        }
        let found = known.iter().flat_map(|(worker, endpoints)| {
            let source =
                |endpoint: &Endpoint| PassSource { endpoint: endpoint.clone(), worker: Some(worker.clone()) };
            endpoints.iter().map(source)
        });
        listener.follow(further.iter().cloned().chain(found));
        sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(info: &Value) -> Vec<String> {
        let endpoints = told_endpoints(info, "http://worker-3:30000").unwrap();
        endpoints.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn endpoints_are_those_in_force() {
        let state = |base: Value, on: bool| json!({"enable_forward_pass_metrics": on, "forward_pass_metrics_ipc_name": base});
        let two = json!({"enable_forward_pass_metrics": true, "forward_pass_metrics_ipc_name": null,
            "internal_states": [state(json!("ipc:///run/fpm"), true), state(json!("ipc:///run/fpm"), true)]});
        assert_eq!(told(&two), ["ipc:///run/fpm.0", "ipc:///run/fpm.1"]);
        // A rank that could not bind its own has none; the others keep their numbers.
        let second =
            json!({"internal_states": [state(Value::Null, false), state(json!("tcp://*:20380"), true)]});
        assert_eq!(told(&second), ["tcp://worker-3:20381"]);
        let silent = json!({"enable_forward_pass_metrics": true, "dp_size": 2, "internal_states": [],
            "forward_pass_metrics_ipc_name": "tcp://10.0.0.1:5"});
        assert_eq!(told(&silent), ["tcp://10.0.0.1:5", "tcp://10.0.0.1:6"]);
        for none in [json!({}), json!([]), json!({"internal_states": [state(json!("ipc:///a"), false), {}]})]
        {
            assert!(told(&none).is_empty(), "{none}");
        }
        let absurd = json!({"internal_states": [state(json!("http://a"), true)]});
        assert!(told_endpoints(&absurd, "http://w").is_err());
    }

    #[test]
    fn an_address_may_name_a_rank_or_a_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fpm");
        let base = format!("ipc://{}", path.display());
        let found = |address: &str| {
            endpoints_of(address).unwrap().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found(&base), [format!("{base}.0")]);
        for rank in 0..3 {
            std::fs::write(format!("{}.{rank}", path.display()), "").unwrap();
        }
        assert_eq!(found(&base), [0, 1, 2].map(|rank| format!("{base}.{rank}")));
        assert_eq!(found(&format!("{base}.7")), [format!("{base}.7")]);
        assert_eq!(found("tcp://h:5"), ["tcp://h:5"]);
        assert!(endpoints_of("http://h:5").is_err());
    }
}
