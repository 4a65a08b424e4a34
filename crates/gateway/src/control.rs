//! Calls that are no generations: answered by the first worker, or by all of them.

use std::sync::Arc;

use futures_util::future::join_all;
use http::header::CONTENT_LENGTH;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use rollscope_wire::Chunks;
use serde::de::IgnoredAny;

use crate::body::{ReplyBody, whole};
use crate::core::Core;
use crate::exchange::exchange;
use crate::fault::{Refusal, UpstreamFault};
use crate::outbound::{Outbound, end_to_end};
use crate::pool::PooledWorker;
use crate::reply::{WorkerReply, json, response};
use crate::request::read_body;

/// A longer reply to such a call is none.
const MAX_REPLY_BYTES: usize = 64 << 20;

/// Asks the first worker that is available: in a disaggregated fleet the first prefill worker.
pub(crate) async fn ask_first(
    core: &Core,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Refusal> {
    let kind = core.roles()[0];
    let fleet = core.registry.fleet();
    let worker = core.first_of(&fleet, kind).ok_or(Refusal::NoWorker(kind))?;
    let outbound = outbound(core, request).await?;
    let reply = call(core, worker, &outbound).await.map_err(|fault| worker_fault(worker, fault))?;
    let mut headers = end_to_end(&reply.head.headers);
    headers.remove(CONTENT_LENGTH);
    Ok(response(reply.status(), headers, whole(reply.body)))
}

/// Asks every worker at once: `{"results": [{"worker", "status", "body"}]}`. The status is the worst of theirs, one
/// that can not be reached counting as 502.
pub(crate) async fn ask_all(core: &Core, request: Request<Incoming>) -> Result<Response<ReplyBody>, Refusal> {
    let mut outbound = outbound(core, request).await?;
    outbound.ask_for_identity();
    let fleet = core.registry.fleet();
    let asked = fleet.all().map(|worker| async {
        let (status, body) = match call(core, worker, &outbound).await {
            Ok(reply) => (reply.status(), embedded(&reply.body)),
            Err(fault) => (StatusCode::BAD_GATEWAY, serde_json::Value::from(fault.to_string()).to_string()),
        };
        let worker = serde_json::Value::from(worker.url.as_str());
        (status, format!("{{\"worker\":{worker},\"status\":{},\"body\":{body}}}", status.as_u16()))
    });
    let results = join_all(asked).await;
    let worst = results.iter().map(|(status, _)| *status).max().unwrap_or(StatusCode::OK);
    let results: Vec<String> = results.into_iter().map(|(_, result)| result).collect();
    Ok(json(worst, format!("{{\"results\":[{}]}}", results.join(",")).into_bytes()))
}

async fn outbound(core: &Core, request: Request<Incoming>) -> Result<Outbound, Refusal> {
    let (head, incoming) = request.into_parts();
    let body = read_body(incoming, core.options.startup().max_payload_size).await?;
    Ok(Outbound::forward(&head, body))
}

pub(crate) async fn call(
    core: &Core,
    worker: &Arc<PooledWorker>,
    outbound: &Outbound,
) -> Result<WorkerReply, UpstreamFault> {
    let limit = core.request_limit();
    let called = async {
        let mut exchange = exchange(worker, outbound, core.connect_limit()).await?;
        let mut body = Chunks::new();
        while let Some(piece) = exchange.body.next().await? {
            body.push(piece);
            if body.len() > MAX_REPLY_BYTES {
                return Err(UpstreamFault::TooLarge { limit_bytes: MAX_REPLY_BYTES });
            }
        }
        Ok(WorkerReply { head: exchange.head, body })
    };
    tokio::time::timeout(limit, called).await.unwrap_or(Err(UpstreamFault::Timeout { limit }))
}

fn worker_fault(worker: &PooledWorker, fault: UpstreamFault) -> Refusal {
    Refusal::Worker { role: worker.role.kind(), url: worker.url.to_string(), fault }
}

/// A body as a JSON value: itself if it is JSON, else a string.
fn embedded(body: &Chunks) -> String {
    let bytes = body.to_bytes();
    match (serde_json::from_slice::<IgnoredAny>(&bytes), std::str::from_utf8(&bytes)) {
        (Ok(_), Ok(text)) => text.to_owned(),
        _ => serde_json::Value::from(String::from_utf8_lossy(&bytes)).to_string(),
    }
}
