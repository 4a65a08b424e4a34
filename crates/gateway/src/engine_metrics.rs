//! The figures of all workers on one page: `/engine_metrics`.

use std::time::Duration;

use futures_util::future::join_all;
use http::uri::PathAndQuery;
use http::{Response, StatusCode};
use rollscope_wire::Chunks;

use crate::access::Caller;
use crate::body::ReplyBody;
use crate::control::call;
use crate::core::Core;
use crate::exposition::{Merged, WORKER};
use crate::metrics::{Page, respond};
use crate::outbound::Outbound;

const UP: &str = "rollscope_engine_up";
const LINES_DROPPED: &str = "rollscope_engine_lines_dropped";

/// GET `/engine_metrics`: each sample gets the label `worker_addr`. A server is asked once, however many of its ranks are
/// registered. One that does not answer, or not with a page, costs only its own figures, and is told of by
/// `rollscope_engine_up`.
pub(crate) async fn page(core: &Core, caller: Caller) -> Response<ReplyBody> {
    let limit = Duration::from_secs(core.options.startup().health_check_timeout_secs);
    let mut outbound = Outbound::get_for(caller, PathAndQuery::from_static("/metrics"));
    outbound.ask_for_identity();
    let fleet = core.registry.fleet();
    let asked = fleet.servers().map(|worker| async {
        let reply = call(core, worker, &outbound, limit).await.ok();
        let reply = reply.filter(|reply| reply.status() == StatusCode::OK);
        (worker.url.as_str(), worker.role.kind().name(), reply.map(|reply| text(&reply.body)))
    });
    let answers = join_all(asked).await;

    let mut merged = Merged::beside(&[UP, LINES_DROPPED]);
    let mut own = Page::default();
    own.family(UP, "gauge", "Whether a worker has told its figures.");
    for (worker, role, page) in &answers {
        let labels = [(WORKER, *worker), ("role", *role)];
        own.sample(UP, &labels, u64::from(page.is_some()));
    }
    own.family(LINES_DROPPED, "gauge", "Lines of a worker's page that can not be shown.");
    for (worker, role, page) in &answers {
        let dropped = page.as_deref().map_or(0, |page| merged.add(worker, page));
        own.sample(LINES_DROPPED, &[(WORKER, *worker), ("role", *role)], dropped);
    }
    respond(merged.into_text() + &own.into_text())
}

fn text(body: &Chunks) -> String {
    String::from_utf8_lossy(&body.to_bytes()).into_owned()
}
