//! How a decode server finds a prefill server: the bootstrap server's HTTP interface and its client.
//!
//! The interface is SGLang's: `GET /route` with all four ranks -1 tells of the server, with ranks it tells where that rank
//! listens. Fields of our own say which model it serves, so that a decode server can refuse it by name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::frame::{Compat, Identity};

/// Where a bootstrap server listens: `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BootstrapAddr(String);

/// What the bootstrap server tells of its prefill server.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) identity: Arc<Identity>,
    /// Address of the transfer listener as it was bound; may be unspecified (`0.0.0.0`).
    pub(crate) rank_ip: String,
    pub(crate) rank_port: u16,
}

/// Why a prefill server could not be found.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookupError {
    /// It may be there a little later.
    #[error("no answer from {addr}: {why}")]
    Unreachable { addr: BootstrapAddr, why: String },
    /// Asking again would not help.
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

/// `GET /route`, a rank.
#[derive(Debug, Serialize, Deserialize)]
struct RankAddress {
    rank_ip: String,
    rank_port: u16,
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

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_BYTES: usize = 64 * 1024;

/// The bootstrap server's routes.
pub(crate) fn bootstrap_router(registration: Registration) -> Router {
    Router::new()
        .route("/route", get(route))
        .route("/health", get(async || "OK"))
        .with_state(Arc::new(registration))
}

async fn route(State(server): State<Arc<Registration>>, Query(query): Query<RouteQuery>) -> Response {
    let ranks = [query.prefill_dp_rank, query.prefill_cp_rank, query.target_tp_rank, query.target_pp_rank];
    match ranks {
        [Some(-1), Some(-1), Some(-1), Some(-1)] => {
            Json(ServerInfo::of(&server.identity.compat())).into_response()
        }
        [Some(0), Some(0), Some(0), Some(0)] => {
            let RankAddress { rank_ip, rank_port } = server.address();
            Json(RankAddress { rank_ip, rank_port }).into_response()
        }
        [Some(_), Some(_), Some(_), Some(_)] => {
            (StatusCode::NOT_FOUND, "no such rank: this server has rank 0 alone").into_response()
        }
        _ => (StatusCode::BAD_REQUEST, "missing rank parameter").into_response(),
    }
}

/// Asks a bootstrap server where its transfer listener is, and checks that the two servers fit.
pub(super) async fn look_up(addr: &BootstrapAddr, ours: &Compat) -> Result<(String, u16), LookupError> {
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
    let RankAddress { rank_ip, rank_port } = ask(addr, 0).await?;
    // A listener on all interfaces has no address of its own: it is where its bootstrap server is.
    let unspecified = rank_ip.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_unspecified());
    Ok((if unspecified { addr.host().to_owned() } else { rank_ip }, rank_port))
}

async fn ask<T: DeserializeOwned>(addr: &BootstrapAddr, rank: i64) -> Result<T, LookupError> {
    let unreachable = |why: String| LookupError::Unreachable { addr: addr.clone(), why };
    let unfit = |why: String| LookupError::Unfit { addr: addr.clone(), why };
    let uri = format!(
        "http://{addr}/route?prefill_dp_rank={rank}&prefill_cp_rank={rank}&target_tp_rank={rank}&target_pp_rank={rank}"
    );
    let uri: Uri = uri.parse().map_err(|_| unfit("malformed address".to_owned()))?;
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let answer = async {
        let answer = client.get(uri).await.map_err(|error| unreachable(innermost(&error)))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| unreachable(error.to_string()))?.to_bytes();
        match status {
            StatusCode::OK => {
                serde_json::from_slice(&body).map_err(|_| unfit("its answer cannot be understood".to_owned()))
            }
            StatusCode::SERVICE_UNAVAILABLE => Err(unreachable("it is not ready".to_owned())),
            status => Err(unfit(format!("it answered {status}"))),
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
    pub(crate) fn new(host: &str, port: u16) -> Self {
        // A bare IPv6 address needs brackets before a port can follow.
        if host.contains(':') && !host.starts_with('[') {
            Self(format!("[{host}]:{port}"))
        } else {
            Self(format!("{host}:{port}"))
        }
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

// === impl Registration ===

impl Registration {
    fn address(&self) -> RankAddress {
        RankAddress { rank_ip: self.rank_ip.clone(), rank_port: self.rank_port }
    }
}

// === impl ServerInfo ===

impl ServerInfo {
    fn of(compat: &Compat) -> Self {
        Self {
            attn_tp_size: 1,
            attn_cp_size: 1,
            dp_size: 1,
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
