//! Calls that are no generations: answered by the first worker, or by all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::header::{CONTENT_LENGTH, HeaderMap};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, request};
use hyper::body::Incoming;
use rollscope_wire::Chunks;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::abort::ABORT_LIMIT;
use crate::access::Caller;
use crate::body::{ReplyBody, whole};
use crate::called_off::Whom;
use crate::core::Core;
use crate::exchange::{UpstreamBody, exchange};
use crate::fault::{Refusal, UpstreamFault};
use crate::inbound::read_body;
use crate::leg::is_plain;
use crate::options::GatewayOptions;
use crate::outbound::{Outbound, end_to_end};
use crate::pool::PooledWorker;
use crate::reply::{WorkerReply, json, response};
use crate::secrets::without_secrets;

/// What every worker is told or asked at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FanOut {
    FlushCache,
    AbortRequest,
    PauseGeneration,
    ContinueGeneration,
    ReleaseMemory,
    ResumeMemory,
    UpdateWeights,
    Loads,
}

/// How fan-outs went, by what each worker answered.
#[derive(Debug, Default)]
pub(crate) struct Tallies([Tally; FanOut::ALL.len()]);

/// Answers of workers to one kind of fan-out.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// With a status of 200 to 299.
    pub(crate) ok: AtomicU64,
    /// With another one, or not at all.
    pub(crate) failed: AtomicU64,
}

/// Body of `/abort_request`, as far as it is read: of a name that is there twice the last counts, as workers have it.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
struct AbortCall(serde_json::Map<String, serde_json::Value>);

/// A longer reply to such a call is none.
const MAX_REPLY_BYTES: usize = 64 << 20;
/// A worker that is asked to generate one token gets what SGLang gives itself, and a little for the way.
const GENERATE_LIMIT: Duration = Duration::from_secs(22);

/// Asks the first worker that is available: in a disaggregated fleet the first prefill worker.
pub(crate) async fn ask_first(
    core: &Core,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Refusal> {
    let outbound = outbound(core, request).await?;
    Ok(passed_on(first_reply(core, &outbound).await?))
}

/// Asks it what it is and serves. What it says of its secrets is left out.
pub(crate) async fn introduce(
    core: &Core,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Refusal> {
    let mut outbound = outbound(core, request).await?;
    outbound.ask_for_identity();
    let WorkerReply { head, body } = first_reply(core, &outbound).await?;
    if !is_plain(&head.headers) {
        return Err(Refusal::EncodedReply);
    }
    Ok(passed_on(WorkerReply { head, body: without_secrets(&body.to_bytes()).into() }))
}

/// Asks every server at once, each for so long as fits the call: `{"results": [{"worker", "status", "body"}]}`. The
/// status is the worst of the registered ones', one that can not be reached counting as 502 and one that is late as 504.
pub(crate) async fn ask_all(
    core: &Core,
    request: Request<Incoming>,
    fan_out: FanOut,
) -> Result<Response<ReplyBody>, Refusal> {
    let limit = fan_out.limit(core.options.startup());
    let (head, incoming) = request.into_parts();
    let body = read_body(core, incoming, core.options.startup().max_payload_size).await?;
    if fan_out == FanOut::AbortRequest {
        let call: AbortCall = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
        // First this: what is not seen to be called off here has been sent, and the workers are told now.
        core.call_offs.call_off(call.whom()?);
    }
    let mut outbound = Outbound::forward(&fan_out.head(head), body);
    outbound.ask_for_identity();
    let (outbound, fleet) = (&outbound, core.registry.fleet());
    // What is to be aborted may be at a worker that has been taken out. That one may hang: it is not waited for long.
    let draining = if fan_out == FanOut::AbortRequest { core.registry.draining() } else { Vec::new() };
    let mut servers: Vec<_> = fleet.servers().map(|worker| (worker, limit)).collect();
    let registered = servers.len();
    for worker in &draining {
        if servers.iter().all(|(server, _)| server.url != worker.url) {
            servers.push((worker, limit.min(ABORT_LIMIT)));
        }
    }
    let asked = servers.into_iter().map(|(worker, limit)| async move {
        let called = call(core, worker, outbound, limit).await;
        core.counters.fan_outs.count(fan_out, called.as_ref().is_ok_and(|reply| reply.status().is_success()));
        let (status, body) = match called {
            Ok(reply) => (reply.status(), embedded(&reply.body)),
            Err(fault) => (fault.status(), serde_json::Value::from(fault.to_string()).to_string()),
        };
        let worker = serde_json::Value::from(worker.url.as_str());
        (status, format!("{{\"worker\":{worker},\"status\":{},\"body\":{body}}}", status.as_u16()))
    });
    let results = join_all(asked).await;
    let worst = results.iter().take(registered).map(|(status, _)| *status).max().unwrap_or(StatusCode::OK);
    let results: Vec<String> = results.into_iter().map(|(_, result)| result).collect();
    Ok(json(worst, format!("{{\"results\":[{}]}}", results.join(",")).into_bytes()))
}

/// Whether a worker of each role that a request needs generates.
pub(crate) async fn generates(core: &Core, caller: Caller) -> Result<Response<ReplyBody>, Refusal> {
    let fleet = core.registry.fleet();
    let outbound = Outbound::get_for(caller, PathAndQuery::from_static("/health_generate"));
    let asked = core.roles().iter().map(|kind| async {
        let worker = core.first_of(&fleet, *kind).ok_or(Refusal::NoWorker(*kind))?;
        let reply = call(core, worker, &outbound, GENERATE_LIMIT).await;
        let reply = reply.map_err(|fault| worker_fault(worker, fault))?;
        if reply.status().is_success() { Ok(()) } else { Err(Refusal::Reply(Box::new(reply))) }
    });
    join_all(asked).await.into_iter().collect::<Result<(), Refusal>>()?;
    Ok(response(StatusCode::OK, HeaderMap::new(), whole("OK")))
}

async fn first_reply(core: &Core, outbound: &Outbound) -> Result<WorkerReply, Refusal> {
    let kind = core.roles()[0];
    let fleet = core.registry.fleet();
    let worker = core.first_of(&fleet, kind).ok_or(Refusal::NoWorker(kind))?;
    let reply = call(core, worker, outbound, core.request_limit()).await;
    reply.map_err(|fault| worker_fault(worker, fault))
}

fn passed_on(reply: WorkerReply) -> Response<ReplyBody> {
    let mut headers = end_to_end(reply.head.headers);
    headers.remove(CONTENT_LENGTH);
    response(reply.head.status, headers, whole(reply.body))
}

async fn outbound(core: &Core, request: Request<Incoming>) -> Result<Outbound, Refusal> {
    let (head, incoming) = request.into_parts();
    let body = read_body(core, incoming, core.options.startup().max_payload_size).await?;
    Ok(Outbound::forward(&head, body))
}

/// Calls a worker and reads all of its reply, within a limit.
pub(crate) async fn call(
    core: &Core,
    worker: &Arc<PooledWorker>,
    outbound: &Outbound,
    limit: Duration,
) -> Result<WorkerReply, UpstreamFault> {
    call_by(core, worker, outbound, limit, |_| ()).await
}

/// The same, with a say in how the reply is received.
pub(crate) async fn call_by(
    core: &Core,
    worker: &Arc<PooledWorker>,
    outbound: &Outbound,
    limit: Duration,
    prepare: fn(&mut UpstreamBody),
) -> Result<WorkerReply, UpstreamFault> {
    let called = async {
        let mut exchange = exchange(worker, outbound, core.connect_limit, Instant::now(), || true).await?;
        prepare(&mut exchange.body);
        let body = exchange.body.collect(MAX_REPLY_BYTES).await?;
        Ok(WorkerReply { head: exchange.head, body })
    };
    tokio::time::timeout(limit, called).await.unwrap_or(Err(UpstreamFault::Timeout { limit }))
}

fn worker_fault(worker: &PooledWorker, fault: UpstreamFault) -> Refusal {
    Refusal::Worker { role: worker.role.kind(), url: worker.name.to_string(), fault }
}

/// A body as a JSON value: itself if it is JSON, else a string.
fn embedded(body: &Chunks) -> String {
    let bytes = body.to_bytes();
    match (serde_json::from_slice::<IgnoredAny>(&bytes), std::str::from_utf8(&bytes)) {
        (Ok(_), Ok(text)) => text.to_owned(),
        _ => serde_json::Value::from(String::from_utf8_lossy(&bytes)).to_string(),
    }
}

/// Whether SGLang takes a value for `true`, as pydantic reads it.
fn is_true(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Bool(value) => *value,
        serde_json::Value::Number(value) => value.as_f64() == Some(1.0),
        serde_json::Value::String(value) => {
            ["1", "on", "t", "true", "y", "yes"].contains(&&*value.to_ascii_lowercase())
        }
        _ => false,
    }
}

// === impl AbortCall ===

impl AbortCall {
    /// Whom it means; an error if it is not seen to name somebody. Workers that take a name for a prefix would take that for
    /// the prefix of all.
    fn whom(&self) -> Result<Whom, Refusal> {
        match self.0.get("rid").and_then(|rid| rid.as_str()).filter(|rid| !rid.is_empty()) {
            _ if self.0.get("abort_all").is_some_and(is_true) => Ok(Whom::All),
            Some(rid) => Ok(Whom::Named(rid.to_owned())),
            None => Err(Refusal::NamelessAbort),
        }
    }
}

// === impl FanOut ===

impl FanOut {
    pub(crate) const ALL: [Self; 8] = [
        Self::FlushCache,
        Self::AbortRequest,
        Self::PauseGeneration,
        Self::ContinueGeneration,
        Self::ReleaseMemory,
        Self::ResumeMemory,
        Self::UpdateWeights,
        Self::Loads,
    ];

    pub(crate) fn of(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fan_out| fan_out.path() == path)
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::FlushCache => "/flush_cache",
            Self::AbortRequest => "/abort_request",
            Self::PauseGeneration => "/pause_generation",
            Self::ContinueGeneration => "/continue_generation",
            Self::ReleaseMemory => "/release_memory_occupation",
            Self::ResumeMemory => "/resume_memory_occupation",
            Self::UpdateWeights => "/update_weights_from_disk",
            Self::Loads => "/get_loads",
        }
    }

    /// How long a worker may take.
    fn limit(self, options: &GatewayOptions) -> Duration {
        Duration::from_secs(match self {
            Self::ReleaseMemory | Self::ResumeMemory | Self::UpdateWeights => options.weights_timeout_secs,
            Self::FlushCache
            | Self::AbortRequest
            | Self::PauseGeneration
            | Self::ContinueGeneration
            | Self::Loads => options.control_timeout_secs,
        })
    }

    /// What the workers are asked, when this is what the gateway is asked.
    fn head(self, mut head: request::Parts) -> request::Parts {
        if self == Self::Loads {
            let query = head.uri.query().unwrap_or("include=core");
            // A query that has been parsed once is one.
            head.uri = format!("/v1/loads?{query}").parse().unwrap_or_default();
            head.method = Method::GET;
        }
        head
    }
}

// === impl Tallies ===

impl Tallies {
    fn count(&self, fan_out: FanOut, is_ok: bool) {
        let tally = self.of(fan_out);
        if is_ok { &tally.ok } else { &tally.failed }.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, fan_out: FanOut) -> &Tally {
        &self.0[fan_out as usize]
    }
}
