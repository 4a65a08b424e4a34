//! The gateway's own figures in Prometheus' text format: `/metrics`.
//!
//! Labels are the registered workers and closed sets of words, so that the page can not grow with what clients
//! send.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use rollscope_route::Counts;

use crate::body::{ReplyBody, whole};
use crate::control::FanOut;
use crate::core::{Core, Counters};
use crate::reply::response;

/// A page in the making.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

// === impl Page ===

impl Page {
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let braces = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        self.write(format_args!("{name}{braces} {value}\n"));
    }

    fn counter(&mut self, name: &str, help: &str, value: &AtomicU64) {
        self.family(name, "counter", help);
        self.sample(name, &[], value.load(Ordering::Relaxed));
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        let written = self.0.write_fmt(text);
        debug_assert!(written.is_ok(), "a string takes what is written");
    }
}

/// GET /metrics.
pub(crate) fn page(core: &Core) -> Response<ReplyBody> {
    respond(text(core))
}

/// A page as a reply.
pub(crate) fn respond(page: String) -> Response<ReplyBody> {
    let headers = HeaderMap::from_iter([(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
    )]);
    response(StatusCode::OK, headers, whole(page.into_bytes()))
}

fn text(core: &Core) -> String {
    let mut page = Page::default();
    let requests = core.requests.counts();
    page.family("rollscope_requests_started_total", "counter", "Requests taken.");
    page.sample("rollscope_requests_started_total", &[], requests.started);
    page.family("rollscope_requests_total", "counter", "Requests that have ended, by how they ended.");
    for (outcome, count) in by_outcome(&requests) {
        page.sample("rollscope_requests_total", &[("outcome", outcome)], count);
    }
    page.family("rollscope_requests_live", "gauge", "Requests that have not ended.");
    page.sample("rollscope_requests_live", &[], requests.live);

    // One snapshot for all families, so that a worker's figures add up.
    let fleet = core.registry.fleet();
    let workers: Vec<_> = fleet.all().map(|worker| (worker, worker.counts())).collect();
    page.family("rollscope_legs_started_total", "counter", "Calls to a worker.");
    for (worker, counts) in &workers {
        let labels = [("worker", &*worker.name), ("role", worker.role.kind().name())];
        page.sample("rollscope_legs_started_total", &labels, counts.started);
    }
    page.family("rollscope_legs_total", "counter", "Calls to a worker that have ended, by how they ended.");
    for (worker, counts) in &workers {
        for (outcome, count) in by_outcome(counts) {
            let labels =
                [("worker", &*worker.name), ("role", worker.role.kind().name()), ("outcome", outcome)];
            page.sample("rollscope_legs_total", &labels, count);
        }
    }
    page.family("rollscope_worker_in_flight", "gauge", "Calls to a worker that have not ended.");
    for (worker, counts) in &workers {
        let labels = [("worker", &*worker.name), ("role", worker.role.kind().name())];
        page.sample("rollscope_worker_in_flight", &labels, counts.live);
    }

    let counters = &core.counters;
    page.family(
        "rollscope_merges_total",
        "counter",
        "Replies of pairs, with or without the prefill worker's share.",
    );
    for (result, counter) in [("merged", &counters.merged), ("unmerged", &counters.unmerged)] {
        page.sample("rollscope_merges_total", &[("result", result)], counter.load(Ordering::Relaxed));
    }
    fan_outs(&mut page, counters);
    page.family("rollscope_queue_waiting", "gauge", "Requests that wait for their turn.");
    page.sample("rollscope_queue_waiting", &[], core.limits.waiting() as u64);
    page.family("rollscope_queue_refused_total", "counter", "Requests that were refused instead of served.");
    for (reason, count) in [("full", &core.limits.refused), ("timeout", &core.limits.timed_out)] {
        page.sample("rollscope_queue_refused_total", &[("reason", reason)], count.load(Ordering::Relaxed));
    }
    let dropped = "Request profiles that the recorder did not take.";
    page.counter("rollscope_records_dropped_total", dropped, &counters.records_dropped);
    let errors = "Connections that could not be accepted.";
    page.counter("rollscope_accept_errors_total", errors, &counters.accept_errors);
    page.into_text()
}

fn fan_outs(page: &mut Page, counters: &Counters) {
    let help = "Answers of workers to calls that went to all of them.";
    page.family("rollscope_fan_out_answers_total", "counter", help);
    for fan_out in FanOut::ALL {
        let tally = counters.fan_outs.of(fan_out);
        for (result, count) in [("ok", &tally.ok), ("failed", &tally.failed)] {
            let labels = [("path", fan_out.path()), ("result", result)];
            page.sample("rollscope_fan_out_answers_total", &labels, count.load(Ordering::Relaxed));
        }
    }
}

fn by_outcome(counts: &Counts) -> [(&'static str, u64); 4] {
    [
        ("completed", counts.completed),
        ("truncated", counts.truncated),
        ("failed", counts.failed),
        ("aborted", counts.aborted),
    ]
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
