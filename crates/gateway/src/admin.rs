//! Workers that come and go: `/workers`.

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use rollscope_route::{HealthState, Role, RoleKind, UrlError, WorkerUrl};
use serde::{Deserialize, Serialize};

use crate::body::ReplyBody;
use crate::core::{Core, Mode};
use crate::fault::Refusal;
use crate::pool::{Pool, PooledWorker};
use crate::reply::json;
use crate::request::read_body;

/// Body of POST /workers.
#[derive(Debug, Deserialize)]
struct Registration {
    url: String,
    worker_type: Option<WorkerType>,
    bootstrap_port: Option<u16>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WorkerType {
    Regular,
    Prefill,
    Decode,
}

/// A worker as it is shown.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    id: &'a str,
    url: &'a str,
    worker_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bootstrap_port: Option<u16>,
    /// Whether its checks do not fail; true while it has not been checked.
    is_healthy: bool,
    /// Of its circuit breaker: closed, open or `half_open`.
    breaker: &'static str,
    /// Legs in flight.
    load: u64,
    legs: Legs,
}

#[derive(Debug, Serialize)]
struct Legs {
    started: u64,
    completed: u64,
    truncated: u64,
    failed: u64,
    aborted: u64,
    live: u64,
}

/// Why a worker can not be registered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("the body must be an object with url, and optionally worker_type and bootstrap_port: {0}")]
    Body(serde_json::Error),
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error("a gateway with --pd-disaggregation takes workers of worker_type prefill or decode")]
    NotPaired,
    #[error("a gateway without --pd-disaggregation takes workers of worker_type regular")]
    NotRegular,
    #[error("only a prefill worker has a bootstrap_port")]
    Port,
}

/// A request may be larger, a registration not.
const MAX_REGISTRATION_BYTES: usize = 64 << 10;

/// GET /workers.
pub(crate) fn list(core: &Core) -> Response<ReplyBody> {
    let fleet = core.registry.fleet();
    let workers: Vec<_> = fleet.all().map(|worker| show(worker)).collect();
    let count = |kind: RoleKind| fleet.of(kind).len();
    let stats = serde_json::json!({
        "prefill_count": count(RoleKind::Prefill),
        "decode_count": count(RoleKind::Decode),
        "regular_count": count(RoleKind::Regular),
    });
    written(
        StatusCode::OK,
        &serde_json::json!({ "total": workers.len(), "workers": workers, "stats": stats }),
    )
}

/// GET /workers/ID.
pub(crate) fn get(core: &Core, id: &str) -> Result<Response<ReplyBody>, Refusal> {
    let fleet = core.registry.fleet();
    let worker = fleet.get(id).ok_or_else(|| unknown(id))?;
    Ok(written(StatusCode::OK, &show(worker)))
}

/// POST /workers.
pub(crate) async fn add(core: &Core, request: Request<Incoming>) -> Result<Response<ReplyBody>, Refusal> {
    let body = read_body(request.into_body(), MAX_REGISTRATION_BYTES).await?.to_bytes();
    let (url, role) = registration(core.mode, &body)?;
    let worker = core.registry.add(url, role, Pool::default(), &mut rand::rng());
    let reply = serde_json::json!({
        "status": "registered",
        "worker_id": worker.id.as_str(),
        "url": worker.url.as_str(),
        "worker_type": role.kind().name(),
    });
    Ok(written(StatusCode::CREATED, &reply))
}

/// DELETE /workers/ID. What is in flight there goes on.
pub(crate) fn remove(core: &Core, id: &str) -> Result<Response<ReplyBody>, Refusal> {
    let worker = core.registry.remove(id).ok_or_else(|| unknown(id))?;
    let reply = serde_json::json!({ "status": "removed", "worker_id": id, "url": worker.url.as_str() });
    Ok(written(StatusCode::OK, &reply))
}

/// GET /readiness: whether every role that a request needs has a worker that is available.
pub(crate) fn readiness(core: &Core) -> Response<ReplyBody> {
    let fleet = core.registry.fleet();
    let missing =
        core.roles().iter().filter(|kind| !fleet.of(**kind).iter().any(|worker| core.is_available(worker)));
    let missing: Vec<_> = missing.map(|kind| kind.name()).collect();
    let total = fleet.all().count();
    if missing.is_empty() {
        return written(StatusCode::OK, &serde_json::json!({ "status": "ready", "total_workers": total }));
    }
    let reply = serde_json::json!({ "status": "not ready", "total_workers": total, "missing": missing });
    written(StatusCode::SERVICE_UNAVAILABLE, &reply)
}

fn registration(mode: Mode, body: &[u8]) -> Result<(WorkerUrl, Role), Unfit> {
    let Registration { url, worker_type, bootstrap_port } =
        serde_json::from_slice(body).map_err(Unfit::Body)?;
    let role = match (mode, worker_type) {
        (Mode::Regular, None | Some(WorkerType::Regular)) => Role::Regular,
        (Mode::Pair, Some(WorkerType::Prefill)) => Role::Prefill { bootstrap_port },
        (Mode::Pair, Some(WorkerType::Decode)) => Role::Decode,
        (Mode::Pair, None | Some(WorkerType::Regular)) => return Err(Unfit::NotPaired),
        (Mode::Regular, Some(WorkerType::Prefill | WorkerType::Decode)) => return Err(Unfit::NotRegular),
    };
    if bootstrap_port.is_some() && !matches!(role, Role::Prefill { .. }) {
        return Err(Unfit::Port);
    }
    Ok((WorkerUrl::parse(&url)?, role))
}

fn show(worker: &PooledWorker) -> Shown<'_> {
    let counts = worker.counts();
    Shown {
        id: worker.id.as_str(),
        url: worker.url.as_str(),
        worker_type: worker.role.kind().name(),
        bootstrap_port: match worker.role {
            Role::Prefill { bootstrap_port } => bootstrap_port,
            Role::Regular | Role::Decode => None,
        },
        is_healthy: worker.health() != HealthState::Unhealthy,
        breaker: worker.breaker().name(),
        load: counts.live,
        legs: Legs {
            started: counts.started,
            completed: counts.completed,
            truncated: counts.truncated,
            failed: counts.failed,
            aborted: counts.aborted,
            live: counts.live,
        },
    }
}

fn unknown(id: &str) -> Refusal {
    Refusal::UnknownWorker { id: id.to_owned() }
}

fn written(status: StatusCode, reply: &impl Serialize) -> Response<ReplyBody> {
    json(status, serde_json::to_vec(reply).unwrap_or_default())
}
