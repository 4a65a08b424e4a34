//! Workers that come and go: `/workers`, and the older `/add_worker`, `/remove_worker`, `/list_workers`.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use rollscope_route::{Role, RoleKind, UrlError, WorkerAddress};
use serde::{Deserialize, Serialize};

use crate::body::ReplyBody;
use crate::core::{Core, Mode};
use crate::fault::Refusal;
use crate::inbound::read_body;
use crate::options::LogLevel;
use crate::pool::{Origin, Pool, PooledWorker};
use crate::reply::json;
use crate::shown::show;
use crate::tags::{MAX_LABELS_BYTES, Tags};

/// What is asked about the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminCall<'a> {
    /// `/workers`.
    Workers,
    /// `/workers/ID`.
    Worker(&'a str),
    /// `/add_worker?url=URL`, as older trainers call it.
    AddWorker,
    /// `/remove_worker?url=URL`.
    RemoveWorker,
    /// `/list_workers`.
    ListWorkers,
}

/// Body of POST /workers, and an entry of `--workers-file`.
#[derive(Debug, Deserialize)]
pub(crate) struct Registration {
    url: String,
    worker_type: Option<WorkerType>,
    bootstrap_port: Option<u16>,
    /// What the worker is sent as Authorization: Bearer; without it, `--api-key`.
    api_key: Option<String>,
    #[serde(flatten)]
    tags: Tags,
}

/// A worker that can be.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    pub(crate) address: WorkerAddress,
    pub(crate) role: Role,
    key: Option<String>,
    pub(crate) tags: Tags,
}

/// Body of PUT /workers/ID: what is to change.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    worker_type: Option<WorkerType>,
    bootstrap_port: Option<u16>,
    api_key: Option<String>,
    priority: Option<u32>,
    cost: Option<f64>,
    /// `null` takes a label off.
    labels: Option<BTreeMap<String, Option<String>>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WorkerType {
    Regular,
    Prefill,
    Decode,
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
    #[error("bootstrap_port can not be 0")]
    NoPort,
    #[error("labels of more than {MAX_LABELS_BYTES} bytes, names and values of all together")]
    Labels,
    #[error("api_key has a byte that no header may have")]
    Key,
    #[error(
        "the body must be an object with worker_type, bootstrap_port, api_key, priority, cost or labels: {0}"
    )]
    Change(serde_json::Error),
    #[error("the worker must be named in the query: {path}?url=http://HOST:PORT")]
    Unnamed { path: String },
    #[error("worker_type must be regular, prefill or decode: {given}")]
    Type { given: String },
    #[error("bootstrap_port must be a port number: {given}")]
    PortNumber { given: String },
}

/// A request may be larger, a registration not.
const MAX_REGISTRATION_BYTES: usize = 64 << 10;

/// Serves a call about the workers.
pub(crate) async fn serve(
    core: &Core,
    request: Request<Incoming>,
    call: AdminCall<'_>,
) -> Result<Response<ReplyBody>, Refusal> {
    match (call, request.method()) {
        (AdminCall::Workers, &Method::POST) => {
            let body = read_body(core, request.into_body(), MAX_REGISTRATION_BYTES).await?.to_bytes();
            let registration: Registration = serde_json::from_slice(&body).map_err(Unfit::Body)?;
            add(core, &registration)
        }
        (AdminCall::Workers, _) => Ok(list(core)),
        (AdminCall::Worker(id), &Method::PUT) => {
            let body = read_body(core, request.into_body(), MAX_REGISTRATION_BYTES).await?.to_bytes();
            change(core, id, &serde_json::from_slice(&body).map_err(Unfit::Change)?)
        }
        (AdminCall::Worker(id), &Method::DELETE) => remove(core, id),
        (AdminCall::Worker(id), _) => get(core, id),
        (AdminCall::AddWorker, _) => add_by_query(core, request.uri()),
        (AdminCall::RemoveWorker, _) => remove_by_query(core, request.uri()),
        (AdminCall::ListWorkers, _) => Ok(list_urls(core)),
    }
}

fn list(core: &Core) -> Response<ReplyBody> {
    let fleet = core.registry.fleet();
    let workers: Vec<_> = fleet.all().map(|worker| show(core, worker)).collect();
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

fn get(core: &Core, id: &str) -> Result<Response<ReplyBody>, Refusal> {
    let fleet = core.registry.fleet();
    let worker = fleet.get(id).ok_or_else(|| unknown(id))?;
    Ok(written(StatusCode::OK, &show(core, worker)))
}

fn add(core: &Core, registration: &Registration) -> Result<Response<ReplyBody>, Refusal> {
    let address = WorkerAddress::parse(&registration.url).map_err(Unfit::from)?;
    let fleet = core.registry.fleet();
    let known = fleet.all().find(|worker| worker.address().overlaps(&address));
    let fit = registration.over(known).fit(core.mode)?;
    let link = match known.filter(|_| registration.api_key.is_none()) {
        Some(known) => known.link.again(Origin::Named),
        None => fit.link(core, Origin::Named)?,
    };
    *link.tags.lock() = fit.tags;
    let (worker, replaced) = core.registry.replace(fit.address, fit.role, link, &mut rand::rng());
    let mut reply = serde_json::json!({
        "status": "registered",
        "worker_id": worker.id.as_str(),
        "url": &*worker.name,
        "worker_type": worker.role.kind().name(),
    });
    if let Some(first) = replaced.first() {
        reply["replaced"] = first.id.as_str().into();
        core.notices.tell(LogLevel::Info, format_args!("worker is registered anew: {}", worker.name));
    }
    Ok(written(StatusCode::CREATED, &reply))
}

/// What a worker is registered for can not change under requests that are in flight there: it is registered anew, and
/// what is in flight ends at the old one. What is only noted of it changes as it stands.
fn change(core: &Core, id: &str, change: &Change) -> Result<Response<ReplyBody>, Refusal> {
    let fleet = core.registry.fleet();
    let worker = fleet.get(id).ok_or_else(|| unknown(id))?;
    let mut noted = worker.link.tags.lock();
    let tags = change.over(&noted)?;
    if change.worker_type.is_none() && change.bootstrap_port.is_none() && change.api_key.is_none() {
        *noted = tags;
        drop(noted);
        return Ok(written(StatusCode::OK, &show(core, worker)));
    }
    drop(noted);
    let (kind, port) = changed(worker.role, change.worker_type, change.bootstrap_port);
    let role = role(core.mode, Some(kind), port)?;
    let origin = worker.link.origin;
    let link = match &change.api_key {
        Some(key) => core.links.to(Some(key), origin).map_err(|_| Unfit::Key)?,
        None => worker.link.again(origin),
    };
    *link.tags.lock() = tags;
    let again = core.registry.add(worker.address(), role, link, &mut rand::rng());
    Ok(written(StatusCode::OK, &show(core, &again)))
}

/// A role of which some is to be otherwise, and the rest as it is.
fn changed(role: Role, kind: Option<WorkerType>, port: Option<u16>) -> (WorkerType, Option<u16>) {
    let (known, known_port) = match role {
        Role::Prefill { bootstrap_port } => (WorkerType::Prefill, bootstrap_port),
        Role::Regular => (WorkerType::Regular, None),
        Role::Decode => (WorkerType::Decode, None),
    };
    let kind = kind.unwrap_or(known);
    (kind, port.or(known_port.filter(|_| matches!(kind, WorkerType::Prefill))))
}

/// What is in flight there goes on. One that a source has named stays out for as long as that names it.
fn remove(core: &Core, id: &str) -> Result<Response<ReplyBody>, Refusal> {
    let fleet = core.registry.fleet();
    let worker = fleet.get(id).ok_or_else(|| unknown(id))?;
    core.leave_out(worker);
    core.registry.remove(id).ok_or_else(|| unknown(id))?;
    let reply = serde_json::json!({ "status": "removed", "worker_id": id, "url": &*worker.name });
    Ok(written(StatusCode::OK, &reply))
}

fn add_by_query(core: &Core, uri: &Uri) -> Result<Response<ReplyBody>, Refusal> {
    let worker_type = match in_query(uri, "worker_type") {
        None => None,
        Some(given) => Some(WorkerType::named(&given).ok_or(Unfit::Type { given })?),
    };
    let bootstrap_port = match in_query(uri, "bootstrap_port") {
        None => None,
        Some(given) => Some(given.parse().map_err(|_| Unfit::PortNumber { given })?),
    };
    let (url, api_key) = (named_worker(uri)?, in_query(uri, "api_key"));
    add(core, &Registration { url, worker_type, bootstrap_port, api_key, tags: Tags::default() })
}

/// A URL without a rank means all ranks that stand for it, as where it is added; the reply names the first.
fn remove_by_query(core: &Core, uri: &Uri) -> Result<Response<ReplyBody>, Refusal> {
    let given = named_worker(uri)?;
    let address = WorkerAddress::parse(&given).map_err(Unfit::from)?;
    let fleet = core.registry.fleet();
    let is_meant =
        |known: WorkerAddress| known == address || (address.rank.is_none() && known.url == address.url);
    let mut meant = fleet.all().filter(|worker| is_meant(worker.address()));
    let first = meant.next().ok_or_else(|| unknown(&given))?;
    let reply = remove(core, first.id.as_str())?;
    for rank in meant {
        // One that has gone meanwhile is as it should be.
        let _gone = remove(core, rank.id.as_str());
    }
    Ok(reply)
}

fn list_urls(core: &Core) -> Response<ReplyBody> {
    let fleet = core.registry.fleet();
    let urls: Vec<String> = fleet.all().map(|worker| worker.address().to_string()).collect();
    written(StatusCode::OK, &serde_json::json!({ "urls": urls }))
}

fn named_worker(uri: &Uri) -> Result<String, Unfit> {
    in_query(uri, "url").ok_or_else(|| Unfit::Unnamed { path: uri.path().to_owned() })
}

fn in_query(uri: &Uri, name: &str) -> Option<String> {
    let pairs = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// GET /readiness: whether every role that a request needs has a worker that is available.
pub(crate) fn readiness(core: &Core) -> Response<ReplyBody> {
    let fleet = core.registry.fleet();
    let healthy = fleet.all().filter(|worker| core.is_available(worker)).count();
    let missing =
        core.roles().iter().filter(|kind| !fleet.of(**kind).iter().any(|worker| core.is_available(worker)));
    let missing: Vec<_> = missing.map(|kind| kind.name()).collect();
    let total = fleet.all().count();
    if missing.is_empty() {
        let reply =
            serde_json::json!({ "status": "ready", "healthy_workers": healthy, "total_workers": total });
        return written(StatusCode::OK, &reply);
    }
    let reply = serde_json::json!({
        "status": "not ready", "healthy_workers": healthy, "total_workers": total, "missing": missing
    });
    written(StatusCode::SERVICE_UNAVAILABLE, &reply)
}

fn role(mode: Mode, worker_type: Option<WorkerType>, bootstrap_port: Option<u16>) -> Result<Role, Unfit> {
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
    if bootstrap_port == Some(0) {
        return Err(Unfit::NoPort);
    }
    Ok(role)
}

fn unknown(id: &str) -> Refusal {
    Refusal::UnknownWorker { id: id.to_owned() }
}

fn written(status: StatusCode, reply: &impl Serialize) -> Response<ReplyBody> {
    json(status, serde_json::to_vec(reply).unwrap_or_default())
}

// === impl WorkerType ===

impl WorkerType {
    fn named(name: &str) -> Option<Self> {
        [(Self::Regular, "regular"), (Self::Prefill, "prefill"), (Self::Decode, "decode")]
            .into_iter()
            .find_map(|(kind, spelling)| (spelling == name).then_some(kind))
    }
}

// === impl Registration ===

impl Registration {
    /// With what it does not say as it is known of the worker in whose place it comes, if there is one.
    fn over(&self, known: Option<&Arc<PooledWorker>>) -> Self {
        let (worker_type, bootstrap_port, tags) = match known {
            Some(known) => {
                let (kind, port) = changed(known.role, self.worker_type, self.bootstrap_port);
                (Some(kind), port, known.link.tags.lock().amended(&self.tags))
            }
            None => (self.worker_type, self.bootstrap_port, self.tags.clone()),
        };
        Self { url: self.url.clone(), worker_type, bootstrap_port, api_key: self.api_key.clone(), tags }
    }

    /// What is registered, if it can be.
    pub(crate) fn fit(&self, mode: Mode) -> Result<Fit, Unfit> {
        if !self.tags.fits() {
            return Err(Unfit::Labels);
        }
        Ok(Fit {
            address: WorkerAddress::parse(&self.url)?,
            role: role(mode, self.worker_type, self.bootstrap_port)?,
            key: self.api_key.clone(),
            tags: self.tags.clone(),
        })
    }
}

// === impl Change ===

impl Change {
    /// What is noted of a worker, with what is to change.
    fn over(&self, noted: &Tags) -> Result<Tags, Unfit> {
        let mut labels = noted.labels.clone().unwrap_or_default();
        for (name, value) in self.labels.iter().flatten() {
            match value {
                Some(value) => drop(labels.insert(name.clone(), value.clone())),
                None => drop(labels.remove(name)),
            }
        }
        let (priority, cost) = (self.priority.or(noted.priority), self.cost.or(noted.cost));
        let tags = Tags { priority, cost, labels: Some(labels) };
        if tags.fits() { Ok(tags) } else { Err(Unfit::Labels) }
    }
}

// === impl Fit ===

impl Fit {
    pub(crate) fn new(address: WorkerAddress, role: Role) -> Self {
        Self { address, role, key: None, tags: Tags::default() }
    }

    /// Whether it is the same worker, whatever is noted of it.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.address, self.role, &self.key) == (&other.address, other.role, &other.key)
    }

    pub(crate) fn register(&self, core: &Core, origin: Origin) -> Result<Arc<PooledWorker>, Unfit> {
        let link = self.link(core, origin)?;
        *link.tags.lock() = self.tags.clone();
        Ok(core.registry.add(self.address.clone(), self.role, link, &mut rand::rng()))
    }

    fn link(&self, core: &Core, origin: Origin) -> Result<Pool, Unfit> {
        let key = self.key.as_deref().or(core.options.startup().api_key.as_deref());
        core.links.to(key, origin).map_err(|_| Unfit::Key)
    }
}
