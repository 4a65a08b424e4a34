//! How a decode server finds a prefill server: the bootstrap server's HTTP interface and its client.
//!
//! The interface is SGLang's: `PUT /route` registers a rank, `GET /route` with all four ranks -1 tells of the server, with ranks it
//! tells where that rank listens. Fields of our own say which model it serves, so that a decode server can refuse it by name.
//! `POST /query_dp_ranks` tells at which data-parallel ranks the requests of rooms are.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Query, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::frame::{Compat, Identity};
use crate::scheduler::Rooms;

/// Where a bootstrap server listens: `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BootstrapAddr(String);

/// What the bootstrap server tells of its prefill server: which it is, and where its ranks listen.
#[derive(Debug)]
pub(crate) struct Registry {
    identity: Arc<Identity>,
    dp_size: usize,
    ranks: Mutex<BTreeMap<usize, RankAddress>>,
    rooms: Rooms,
}

/// Where a rank listens for decode servers; `GET /route`, a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RankAddress {
    /// As it was bound; may be unspecified (`0.0.0.0`).
    pub(crate) rank_ip: String,
    pub(crate) rank_port: u16,
}

/// Why a prefill server could not be found.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookupError {
    /// It may be there a little later.
    #[error("no answer from {addr}: {why}")]
    Unreachable { addr: BootstrapAddr, why: String },
    /// It is none, or not one whose words can be understood. Asking again would not help.
    #[error("{addr} is not a prefill server: {why}")]
    Strange { addr: BootstrapAddr, why: String },
    /// The two differ in something, which is named. Asking again would not help.
    #[error("{addr} is not a prefill server that this one can work with: {why}")]
    Unfit { addr: BootstrapAddr, why: String },
}

/// `GET /route`, ranks -1.
#[derive(Debug, Serialize, Deserialize)]
struct ServerInfo {
    #[serde(default = "one")]
    attn_tp_size: usize,
    #[serde(default = "one")]
    attn_cp_size: usize,
    #[serde(default = "one")]
    dp_size: usize,
    #[serde(default = "one")]
    pp_size: usize,
    page_size: u32,
    kv_cache_dtype: String,
    /// The rank of a room is the room modulo `dp_size`.
    #[serde(default)]
    follow_bootstrap_room: bool,
    /// Ours: hexadecimal, as JSON numbers end at 2^53.
    model_fingerprint: Option<String>,
    /// Ours.
    page_bytes: Option<u64>,
    /// Ours.
    metadata_row_bytes: Option<u32>,
}

/// `PUT /route`. Ranks other than data-parallel ones are the only ones of their kind.
#[derive(Debug, Deserialize)]
struct RankRegistration {
    #[serde(default = "one")]
    attn_tp_size: usize,
    #[serde(default = "one")]
    attn_cp_size: usize,
    #[serde(default = "one")]
    pp_size: usize,
    system_dp_size: usize,
    system_dp_rank: usize,
    page_size: u32,
    kv_cache_dtype: String,
    #[serde(flatten)]
    address: RankAddress,
}

/// `POST /query_dp_ranks`.
#[derive(Debug, Deserialize)]
struct RoomsQuery {
    bootstrap_rooms: Vec<u64>,
}

#[derive(Debug, Deserialize)]
#[expect(clippy::struct_field_names, reason = "the names are the interface's")]
struct RouteQuery {
    prefill_dp_rank: Option<i64>,
    prefill_cp_rank: Option<i64>,
    target_tp_rank: Option<i64>,
    target_pp_rank: Option<i64>,
}

/// The host that stands for no host: nothing is transferred. Health checks use it.
pub(crate) const FAKE_BOOTSTRAP_HOST: &str = "2.2.2.2";

/// Of a name; an address is shorter.
const MAX_HOST_BYTES: usize = 255;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_BYTES: usize = 64 * 1024;

/// The bootstrap server's routes.
pub(crate) fn bootstrap_router(registry: Registry) -> Router {
    Router::new()
        .route("/route", get(route).put(register))
        .route("/query_dp_ranks", post(query_dp_ranks))
        .route("/register_dp_rank", post(register_dp_rank))
        .route("/health", get(async || "OK"))
        .with_state(Arc::new(registry))
}

async fn route(State(registry): State<Arc<Registry>>, Query(query): Query<RouteQuery>) -> Response {
    let ranks = [query.prefill_dp_rank, query.prefill_cp_rank, query.target_tp_rank, query.target_pp_rank];
    let [Some(dp_rank), Some(cp_rank), Some(tp_rank), Some(pp_rank)] = ranks else {
        return (StatusCode::BAD_REQUEST, "missing rank parameter").into_response();
    };
    let known = registry.ranks.lock().clone();
    if known.len() < registry.dp_size {
        let why = format!("{} of {} ranks are registered", known.len(), registry.dp_size);
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    }
    if [dp_rank, cp_rank, tp_rank, pp_rank] == [-1; 4] {
        return Json(ServerInfo::of(&registry.identity.compat(), registry.dp_size)).into_response();
    }
    let found = usize::try_from(dp_rank).ok().and_then(|rank| known.get(&rank));
    if let Some(address) = found.filter(|_| [cp_rank, tp_rank, pp_rank] == [0; 3]) {
        return Json(address).into_response();
    }
    let why = format!("no such rank: there are data-parallel ranks below {}", registry.dp_size);
    (StatusCode::NOT_FOUND, why).into_response()
}

/// Takes a rank's address, if the rank is one of this server.
async fn register(
    State(registry): State<Arc<Registry>>,
    body: Result<Json<RankRegistration>, JsonRejection>,
) -> Result<&'static str, (StatusCode, String)> {
    let refused = |why: String| (StatusCode::BAD_REQUEST, why);
    let Json(rank) = body.map_err(|rejection| refused(rejection.body_text()))?;
    let compat = registry.identity.compat();
    let found = (rank.system_dp_size, rank.page_size, rank.kv_cache_dtype.as_str());
    let expected = (registry.dp_size, compat.page_tokens, compat.dtype.as_str());
    if found != expected || [rank.attn_tp_size, rank.attn_cp_size, rank.pp_size] != [1; 3] {
        return Err(refused(format!(
            "a rank of another server: data-parallel size, page size and type of the KV cache are {found:?}, here {expected:?}"
        )));
    }
    if rank.system_dp_rank >= registry.dp_size {
        return Err(refused(format!(
            "system_dp_rank must be in 0..{}, got {}",
            registry.dp_size, rank.system_dp_rank
        )));
    }
    registry.register(rank.system_dp_rank, rank.address);
    Ok("OK")
}

/// Tells the ranks of live requests by their rooms; rooms of no request are left out.
async fn query_dp_ranks(
    State(registry): State<Arc<Registry>>,
    body: Result<Json<RoomsQuery>, JsonRejection>,
) -> Result<Json<BTreeMap<u64, usize>>, (StatusCode, String)> {
    let Json(query) = body.map_err(|rejection| (StatusCode::BAD_REQUEST, rejection.body_text()))?;
    Ok(Json(registry.rooms.ranks_of(&query.bootstrap_rooms)))
}

/// Who would say it does not know better than the ranks.
async fn register_dp_rank() -> (StatusCode, &'static str) {
    let why = "register_dp_rank is not supported by this engine: its ranks tell where their requests are";
    (StatusCode::BAD_REQUEST, why)
}

/// Asks a bootstrap server how many ranks its prefill server has, and checks that the two servers fit.
pub(super) async fn look_up(addr: &BootstrapAddr, ours: &Compat) -> Result<usize, LookupError> {
    let info: ServerInfo = ask(addr, -1).await?;
    let unfit = |why: String| LookupError::Unfit { addr: addr.clone(), why };
    let ServerInfo { model_fingerprint: Some(fingerprint), page_bytes: Some(page_bytes), .. } = &info else {
        return Err(unfit("it is a server of another kind".to_owned()));
    };
    let theirs = Compat {
        fingerprint: u64::from_str_radix(fingerprint, 16)
            .map_err(|_| unfit("its model fingerprint is malformed".to_owned()))?,
        dtype: info.kv_cache_dtype.clone(),
        page_tokens: info.page_size,
        page_bytes: *page_bytes,
        row_bytes: info.metadata_row_bytes.unwrap_or_default(),
    };
    if let Some(difference) = Compat::difference(&theirs, ours) {
        return Err(unfit(difference));
    }
    Ok(info.dp_size)
}

/// Asks a bootstrap server where a rank's transfer listener is.
pub(super) async fn locate(addr: &BootstrapAddr, dp_rank: usize) -> Result<(String, u16), LookupError> {
    let RankAddress { rank_ip, rank_port } = ask(addr, dp_rank as i64).await?;
    // A listener on all interfaces has no address of its own: it is where its bootstrap server is.
    let unspecified = rank_ip.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_unspecified());
    Ok((if unspecified { addr.host().to_owned() } else { rank_ip }, rank_port))
}

/// Asks of a data-parallel rank, the others of whose kind are 0, or with -1 of the server.
async fn ask<T: DeserializeOwned>(addr: &BootstrapAddr, dp_rank: i64) -> Result<T, LookupError> {
    let unreachable = |why: String| LookupError::Unreachable { addr: addr.clone(), why };
    let strange = |why: String| LookupError::Strange { addr: addr.clone(), why };
    let other = dp_rank.min(0);
    let uri = format!(
        "http://{addr}/route?prefill_dp_rank={dp_rank}&prefill_cp_rank={other}&target_tp_rank={other}&target_pp_rank={other}"
    );
    let uri: Uri = uri.parse().map_err(|_| strange("malformed address".to_owned()))?;
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let answer = async {
        let answer = client.get(uri).await.map_err(|error| unreachable(innermost(&error)))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| unreachable(error.to_string()))?.to_bytes();
        match status {
            StatusCode::OK => serde_json::from_slice(&body)
                .map_err(|_| strange("its answer cannot be understood".to_owned())),
            StatusCode::SERVICE_UNAVAILABLE => Err(unreachable("it is not ready".to_owned())),
            status => Err(strange(format!("it answered {status}"))),
        }
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(unreachable(format!("nothing within {} s", ANSWER_TIMEOUT.as_secs()))),
    }
}

/// What is at the bottom of an error: "connection refused" rather than "client error".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn one() -> usize {
    1
}

// === impl BootstrapAddr ===

impl BootstrapAddr {
    /// `None` if no host has such a name.
    pub(crate) fn new(host: &str, port: u16) -> Option<Self> {
        if host.len() > MAX_HOST_BYTES || host.contains('@') {
            return None;
        }
        // A bare IPv6 address needs brackets before a port can follow.
        let addr = if host.parse::<Ipv6Addr>().is_ok() {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        let authority: Authority = addr.parse().ok()?;
        (authority.port_u16() == Some(port) && !authority.host().is_empty()).then_some(Self(addr))
    }

    /// The host, brackets and all.
    fn host(&self) -> &str {
        self.0.rsplit_once(':').map_or(&self.0, |(host, _)| host)
    }
}

impl fmt::Display for BootstrapAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Registry ===

impl Registry {
    /// Of a prefill server of so many ranks, none of which is known, that share these rooms.
    pub(crate) fn new(identity: Arc<Identity>, dp_size: usize, rooms: Rooms) -> Self {
        Self { identity, dp_size, ranks: Mutex::default(), rooms }
    }

    pub(crate) fn identity(&self) -> Arc<Identity> {
        Arc::clone(&self.identity)
    }

    pub(crate) fn register(&self, rank: usize, address: RankAddress) {
        self.ranks.lock().insert(rank, address);
    }
}

// === impl ServerInfo ===

impl ServerInfo {
    fn of(compat: &Compat, dp_size: usize) -> Self {
        Self {
            attn_tp_size: 1,
            attn_cp_size: 1,
            dp_size,
            pp_size: 1,
            page_size: compat.page_tokens,
            kv_cache_dtype: compat.dtype.clone(),
            follow_bootstrap_room: true,
            model_fingerprint: Some(format!("{:016x}", compat.fingerprint)),
            page_bytes: Some(compat.page_bytes),
            metadata_row_bytes: Some(compat.row_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::Request;
    use rollscope_model::Model;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address() {
        for (host, expected) in [
            ("10.0.0.1", Some("10.0.0.1:7")),
            ("prefill-0.prefill", Some("prefill-0.prefill:7")),
            ("::1", Some("[::1]:7")),
            ("[::1]", Some("[::1]:7")),
            ("a b", None),
            ("a/b", None),
            ("a?b", None),
            ("user@a", None),
            ("a:1", None),
            ("[::1", None),
            ("\u{e4}", None),
            ("\n", None),
            (&"a".repeat(255), Some(&*format!("{}:7", "a".repeat(255)))),
            (&"a".repeat(256), None),
        ] {
            assert_eq!(BootstrapAddr::new(host, 7).map(|addr| addr.0).as_deref(), expected, "{host}");
        }
    }

    #[tokio::test]
    async fn a_server_is_found_when_all_its_ranks_are_registered() {
        let model = Arc::new(Model::simulated(64).unwrap());
        let identity = Identity { model, dtype: "float32", page_tokens: 16, page_bytes: 64, row_bytes: 8 };
        let (ours, identity) = (identity.compat(), Arc::new(identity));
        let registry = Registry::new(identity, 2, Rooms::default());
        registry.register(0, RankAddress { rank_ip: "127.0.0.1".to_owned(), rank_port: 7 });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = BootstrapAddr::new("127.0.0.1", listener.local_addr().unwrap().port()).unwrap();
        tokio::spawn(async move { axum::serve(listener, bootstrap_router(registry)).await });
        let client = Client::builder(TokioExecutor::new()).build_http();
        let send = async |method: &str, path: &str, body: &str| {
            let request = Request::builder().method(method).uri(format!("http://{addr}{path}"));
            let request = request.header("content-type", "application/json");
            let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
            let answer = client.request(request.body(body).unwrap()).await.unwrap();
            let status = answer.status();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        let route = |rank: i64| {
            let other = rank.min(0);
            format!(
                "/route?prefill_dp_rank={rank}&prefill_cp_rank={other}&target_tp_rank={other}&target_pp_rank={other}"
            )
        };
        // Neither the server nor the rank that is there already.
        for rank in [-1, 0] {
            let (status, why) = send("GET", &route(rank), "").await;
            assert_eq!(
                (status, why.as_str()),
                (StatusCode::SERVICE_UNAVAILABLE, "1 of 2 ranks are registered")
            );
        }
        // Who looks for it is to come again.
        assert!(matches!(look_up(&addr, &ours).await, Err(LookupError::Unreachable { .. })));
        let rank = r#"{"system_dp_size": 2, "system_dp_rank": 1, "rank_ip": "127.0.0.1", "rank_port": 8,
            "page_size": 16, "kv_cache_dtype": "float32"}"#;
        assert_eq!(send("PUT", "/route", rank).await, (StatusCode::OK, "OK".to_owned()));
        assert_eq!(look_up(&addr, &ours).await.unwrap(), 2);
        assert_eq!(locate(&addr, 1).await.unwrap(), ("127.0.0.1".to_owned(), 8));
    }
}
