//! What a worker tells of where its ranks publish.
//!
//! A server tells one state for each rank, in whatever order its schedulers answered, and none says which rank's it is. Where all
//! tell one base that does not matter. Schedulers that were given none each make one up and publish there under their own rank,
//! so the socket that is there tells whose base it is. Only where nothing is there, as on another host, is a state taken to
//! stand at its rank's place.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rollscope_fpm::{Base, Endpoint, EndpointError, MAX_RANKS};
use serde_json::Value;

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
    /// Its schedulers say that they publish, and none where.
    #[error(
        "it publishes forward-pass metrics and does not tell where (forward_pass_metrics_ipc_name is null)"
    )]
    Nowhere,
}

/// A base whose rank no socket tells.
struct Unplaced {
    base: Base,
    /// Where its state stands.
    place: u32,
}

/// The endpoints in force that a server's `/server_info` tells of, by rank. Nothing if it publishes and its schedulers did
/// not answer it in time: it is to be asked again, since what it was started with may not be what was bound.
///
/// `url` is how the server is called: it stands for the host where that publishes on every address.
///
/// `before` is what it told last: a rank that is away for a moment has no socket, and its base is known.
///
/// # Errors
/// An endpoint that is none, one on every address of a host that `url` does not name, and a server that publishes and does
/// not tell where.
pub fn told_endpoints(
    info: &Value,
    url: &str,
    before: &BTreeMap<u32, Endpoint>,
) -> Result<Option<BTreeMap<u32, Endpoint>>, ToldError> {
    let states = info["internal_states"].as_array().map_or(&[][..], Vec::as_slice);
    if states.is_empty() && is_on(info) {
        return Ok(None);
    }
    let mut places: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (place, state) in (0..MAX_RANKS).zip(states) {
        if let Some(base) = told_base(state) {
            places.entry(base).or_default().push(place);
        }
    }
    if places.is_empty() && states.iter().any(is_on) {
        return Err(ToldError::Nowhere);
    }
    let mut bases = Vec::new();
    for (text, places) in places {
        let base: Base = text.parse()?;
        let is_everybodys = places.len() == states.len();
        let ranks = if is_everybodys { places.clone() } else { ranks_of(&base, &places, before) };
        bases.push((base, places, ranks));
    }
    // Where there is a choice, it is among what the others leave.
    bases.sort_by_key(|(_, places, ranks)| ranks.len() > places.len());
    let (mut endpoints, mut unplaced) = (BTreeMap::new(), Vec::new());
    for (base, places, mut ranks) in bases {
        ranks.retain(|rank| !endpoints.contains_key(rank));
        ranks.truncate(places.len());
        for rank in &ranks {
            endpoints.insert(*rank, reachable(base.of_rank(*rank)?, url)?);
        }
        let others = places.into_iter().skip(ranks.len());
        unplaced.extend(others.map(|place| Unplaced { base: base.clone(), place }));
    }
    // Those at a place of their own come first.
    unplaced.sort_by_key(|unplaced| (endpoints.contains_key(&unplaced.place), unplaced.place));
    for Unplaced { base, place } in unplaced {
        let is_free = |rank: &u32| !endpoints.contains_key(rank);
        let Some(rank) = std::iter::once(place).chain(0..MAX_RANKS).find(is_free) else { break };
        endpoints.insert(rank, reachable(base.of_rank(rank)?, url)?);
    }
    Ok(Some(endpoints))
}

/// The ranks that may publish at a base which the states at some places tell, the likeliest first.
fn ranks_of(base: &Base, places: &[u32], before: &BTreeMap<u32, Endpoint>) -> Vec<u32> {
    let Some(there) = base.ranks_there() else { return places.to_vec() };
    let was_there = |(rank, endpoint): (&u32, &Endpoint)| {
        let is_same = base.of_rank(*rank).is_ok_and(|own| own == *endpoint);
        (is_same && !there.contains(rank)).then_some(*rank)
    };
    let known: Vec<u32> = before.iter().filter_map(was_there).collect();
    // A socket may have been left there by somebody who is gone.
    let (at_place, elsewhere): (Vec<_>, Vec<_>) = there.iter().partition(|rank| places.contains(rank));
    [at_place, elsewhere, known].concat()
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
    use std::os::unix::net::UnixListener;

    use serde_json::json;

    use super::*;

    fn told(info: &Value) -> Option<Vec<String>> {
        let endpoints = told_endpoints(info, "http://worker-3:30000", &BTreeMap::new()).unwrap()?;
        Some(endpoints.iter().map(|(rank, endpoint)| format!("{rank} {endpoint}")).collect())
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
            ("two ranks", ranks(&[fpm(), fpm()]), list(&["0 ipc:///run/fpm.0", "1 ipc:///run/fpm.1"])),
            (
                "a rank that could not bind its own has none; the others keep their numbers",
                ranks(&[state(Value::Null, false), state(json!("tcp://*:20380"), true)]),
                list(&["1 tcp://worker-3:20381"]),
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
        let nothing = BTreeMap::new();
        let absurd = json!({"internal_states": [state(json!("http://a"), true)]});
        assert!(told_endpoints(&absurd, "http://w", &nothing).is_err());
        let hidden = json!({"internal_states": [state(Value::Null, true), state(json!(""), true)]});
        assert!(matches!(told_endpoints(&hidden, "http://w", &nothing), Err(ToldError::Nowhere)));
        let nowhere = json!({"internal_states": [state(json!("tcp://*:5"), true)]});
        assert!(matches!(told_endpoints(&nowhere, "/", &nothing), Err(ToldError::Host(_))));
    }

    #[test]
    fn a_base_is_of_the_rank_whose_socket_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let info = |bases: &[&str]| {
            let state = |base: &&str| {
                let base = format!("ipc://{}", path(base));
                json!({"enable_forward_pass_metrics": true, "forward_pass_metrics_ipc_name": base})
            };
            json!({"internal_states": bases.iter().map(state).collect::<Vec<_>>()})
        };
        let told = |bases: &[&str], before: &BTreeMap<u32, Endpoint>| {
            let endpoints = told_endpoints(&info(bases), "http://w", before).unwrap().unwrap();
            let name = |endpoint: &Endpoint| endpoint.to_string().rsplit('/').next().map(str::to_owned);
            let shown = endpoints.iter().map(|(rank, at)| format!("{rank} {}", name(at).unwrap()));
            (shown.collect::<Vec<_>>().join(", "), endpoints)
        };
        let nothing = BTreeMap::new();
        assert_eq!(told(&["b", "a"], &nothing).0, "0 b.0, 1 a.1", "nothing is there");
        for socket in ["a.0", "b.1", "c.2"] {
            drop(UnixListener::bind(path(socket)).unwrap());
        }
        let (all, before) = told(&["a", "b", "c"], &nothing);
        assert_eq!(all, "0 a.0, 1 b.1, 2 c.2");
        for order in [["b", "a", "c"], ["c", "b", "a"], ["b", "c", "a"]] {
            assert_eq!(told(&order, &nothing).1, before, "{order:?}");
        }
        // Two of them are away for a moment.
        for socket in ["b.1", "c.2"] {
            std::fs::remove_file(path(socket)).unwrap();
        }
        assert_eq!(told(&["c", "b", "a"], &before).1, before);
        // One was started anew, and has made up another base.
        drop(UnixListener::bind(path("d.1")).unwrap());
        assert_eq!(told(&["d", "c", "a"], &before).0, "0 a.0, 1 d.1, 2 c.2");
        assert_eq!(told(&["e", "a"], &nothing).0, "0 a.0, 1 e.1", "the rank that is left");
        // What somebody left behind.
        for socket in ["a.1", "a.7"] {
            drop(UnixListener::bind(path(socket)).unwrap());
        }
        assert_eq!(told(&["a", "a"], &nothing).0, "0 a.0, 1 a.1");
        assert_eq!(told(&["d", "a"], &nothing).0, "0 a.0, 1 d.1", "two cannot be one rank");
    }
}
