//! The gateway's own figures in Prometheus' text format: `/metrics`.
//!
//! Labels are the registered workers and closed sets of words, so that the page can not grow with what clients
//! send. What SGLang's router counts too has its name here, beginning with `smg_`.

use std::fmt;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use rollscope_route::{BreakerState, Counts, HealthState};

use crate::body::{ReplyBody, whole};
use crate::control::FanOut;
use crate::core::{Core, Counters};
use crate::durations::{ENDPOINTS, Histogram, OfEndpoint};
use crate::pool::PooledWorker;
use crate::reply::response;

/// A figure that somebody else has counted.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// As Prometheus wants it: it ends in `_total`.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// So far.
    pub value: u64,
}

/// Reads what somebody else has counted.
pub(crate) struct ForeignCounters(Box<dyn Fn() -> Vec<Counter> + Send + Sync>);

/// One of the histograms of a kind of request.
type Pick = fn(&OfEndpoint) -> &Histogram;

/// SGLang's router knows others.
const CONNECTION_MODE: (&str, &str) = ("connection_mode", "http");

/// A page in the making.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

// === impl ForeignCounters ===

impl ForeignCounters {
    pub(crate) fn new(read: impl Fn() -> Vec<Counter> + Send + Sync + 'static) -> Self {
        Self(Box::new(read))
    }
}

impl fmt::Debug for ForeignCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((self.0)()).finish()
    }
}

// === impl Page ===

impl Page {
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl fmt::Display) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let braces = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        self.write(format_args!("{name}{braces} {value}\n"));
    }

    fn sample_if_any(&mut self, name: &str, labels: &[(&str, &str)], count: &AtomicU64) {
        let count = count.load(Ordering::Relaxed);
        if count > 0 {
            self.sample(name, labels, count);
        }
    }

    /// The samples of a histogram, if there is anything in it.
    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], bounds_s: &[f64], histogram: &Histogram) {
        let (counts, sum_s) = histogram.cumulative();
        let count = counts.last().copied().unwrap_or(0);
        if count == 0 {
            return;
        }
        let bounds = bounds_s.iter().map(ToString::to_string);
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(counts) {
            let labels = [labels, &[("le", &*bound)]].concat();
            self.sample(&format!("{name}_bucket"), &labels, count);
        }
        self.sample(&format!("{name}_sum"), labels, sum_s);
        self.sample(&format!("{name}_count"), labels, count);
    }

    fn counter(&mut self, name: &str, help: &str, value: &AtomicU64) {
        self.family(name, "counter", help);
        self.sample(name, &[], value.load(Ordering::Relaxed));
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
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
    requests(&mut page, core);
    durations(&mut page, core);
    calls(&mut page, core);
    workers(&mut page, core);
    merges(&mut page, &core.counters);
    fan_outs(&mut page, &core.counters);
    queue(&mut page, core);
    let dropped = "Request profiles that the recorder did not take.";
    page.counter("rollscope_records_dropped_total", dropped, &core.counters.records_dropped);
    clients(&mut page, core);
    let errors = "Connections that could not be accepted.";
    page.counter("rollscope_accept_errors_total", errors, &core.counters.accept_errors);
    let jumps =
        "Times that the system's clock was set. Recorded times go on as before until no request comes.";
    page.counter("rollscope_clock_jumps_total", jumps, &core.clock.jumps);
    let ahead = "By how much the system's clock has been set ahead of recorded times.";
    page.family("rollscope_clock_ahead_seconds", "gauge", ahead);
    let ahead_ns = core.clock.ahead_ns.load(Ordering::Relaxed);
    page.sample("rollscope_clock_ahead_seconds", &[], ahead_ns as f64 / 1e9);
    for counter in core.others.get().map(|others| (others.0)()).unwrap_or_default() {
        page.family(counter.name, "counter", counter.help);
        page.sample(counter.name, &[], counter.value);
    }
    page.into_text()
}

fn requests(page: &mut Page, core: &Core) {
    let requests = core.requests.counts();
    page.family("rollscope_requests_started_total", "counter", "Requests taken.");
    page.sample("rollscope_requests_started_total", &[], requests.started);
    page.family("rollscope_requests_total", "counter", "Requests that have ended, by how they ended.");
    for (outcome, count) in by_outcome(&requests) {
        page.sample("rollscope_requests_total", &[("outcome", outcome)], count);
    }
    page.family("rollscope_requests_live", "gauge", "Requests that have not ended, waiting ones among them.");
    page.sample("rollscope_requests_live", &[], requests.live);
    page.family("smg_http_responses_total", "counter", "Replies of all routes, by status.");
    for (status, count) in (100_u16..).zip(&core.statuses) {
        page.sample_if_any("smg_http_responses_total", &[("status_code", &status.to_string())], count);
    }
}

fn durations(page: &mut Page, core: &Core) {
    let families: [(&str, &str, Pick); 3] = [
        (
            "smg_router_request_duration_seconds",
            "From a request's arrival to the last byte of its reply.",
            |of| &of.request,
        ),
        ("smg_router_ttft_seconds", "From a request's arrival to the first event of its stream.", |of| {
            &of.first_token
        }),
        ("smg_router_tpot_seconds", "Of a stream, for each token but the first.", |of| &of.per_token),
    ];
    for (name, help, histogram) in families {
        page.family(name, "histogram", help);
        for (path, endpoint) in ENDPOINTS {
            let labels = of_endpoint(core, endpoint);
            page.histogram(name, &labels, &core.durations.bounds_s, histogram(core.durations.of(path)));
        }
    }
    let name = "smg_router_requests_total";
    page.family(name, "counter", "Requests that have been read.");
    for (path, endpoint) in ENDPOINTS {
        for (streaming, count) in ["false", "true"].into_iter().zip(&core.durations.of(path).asked) {
            let labels = [&of_endpoint(core, endpoint)[..], &[("streaming", streaming)]].concat();
            page.sample_if_any(name, &labels, count);
        }
    }
}

/// Labels of what is told of an endpoint.
fn of_endpoint(core: &Core, endpoint: &'static str) -> [(&'static str, &'static str); 4] {
    [("router_type", "http"), ("backend_type", core.mode.name()), CONNECTION_MODE, ("endpoint", endpoint)]
}

/// Calls of all routes, and connections.
fn calls(page: &mut Page, core: &Core) {
    let name = "smg_http_requests_total";
    page.family(name, "counter", "Calls of all routes.");
    for (method, path, call) in core.calls.all() {
        page.sample_if_any(name, &[("method", method), ("path", path)], &call.begun);
    }
    let name = "smg_http_request_duration_seconds";
    page.family(name, "histogram", "From the head of a call to that of its reply.");
    for (method, path, call) in core.calls.all() {
        let labels = [("method", method), ("path", path)];
        page.histogram(name, &labels, &core.durations.bounds_s, &call.answered);
    }
    let name = "smg_http_connections_active";
    page.family(name, "gauge", "Connections of clients, as SGLang's router calls them.");
    page.sample(name, &[], core.clients.open.load(Ordering::Relaxed));
}

fn workers(page: &mut Page, core: &Core) {
    // One snapshot for all families, so that a worker's figures add up.
    let fleet = core.registry.fleet();
    let workers: Vec<_> = fleet.all().map(|worker| (worker, worker.counts())).collect();
    let labels = |worker: &'_ PooledWorker| {
        [("worker", worker.name.to_string()), ("role", worker.role.kind().name().to_owned())]
    };
    let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&PooledWorker, &Counts) -> u64| {
        page.family(name, kind, help);
        for (worker, counts) in &workers {
            let labels = labels(worker);
            let labels = [(labels[0].0, &*labels[0].1), (labels[1].0, &*labels[1].1)];
            page.sample(name, &labels, value(worker, counts));
        }
    };
    family("rollscope_legs_started_total", "counter", "Calls to a worker.", &|_, counts| counts.started);
    family("rollscope_worker_in_flight", "gauge", "Calls to a worker that have not ended.", &|_, counts| {
        counts.live
    });
    family("smg_worker_requests_active", "gauge", "The same, as SGLang's router calls it.", &|_, counts| {
        counts.live
    });
    family("smg_worker_health", "gauge", "0 while a worker's checks fail, else 1.", &|worker, _| {
        u64::from(worker.health() != HealthState::Unhealthy)
    });
    family(
        "smg_worker_cb_state",
        "gauge",
        "Circuit breaker: 0 closed, 1 open, 2 half open.",
        &|worker, _| match worker.breaker() {
            BreakerState::Closed => 0,
            BreakerState::Open => 1,
            BreakerState::HalfOpen => 2,
        },
    );
    page.family("rollscope_legs_total", "counter", "Calls to a worker that have ended, by how they ended.");
    for (worker, counts) in &workers {
        for (outcome, count) in by_outcome(counts) {
            let labels =
                [("worker", &*worker.name), ("role", worker.role.kind().name()), ("outcome", outcome)];
            page.sample("rollscope_legs_total", &labels, count);
        }
    }
    let name = "smg_worker_cb_outcomes_total";
    page.family(name, "counter", "Calls to a worker that tell its circuit breaker something.");
    for (worker, _) in &workers {
        let verdicts = worker.verdicts();
        for (outcome, count) in [("success", verdicts.successes), ("failure", verdicts.failures)] {
            let labels =
                [("worker", &*worker.name), ("role", worker.role.kind().name()), ("outcome", outcome)];
            page.sample(name, &labels, count);
        }
    }
    page.family("smg_worker_pool_size", "gauge", "Registered workers.");
    for kind in core.roles() {
        let labels = [("worker_type", kind.name()), CONNECTION_MODE];
        page.sample("smg_worker_pool_size", &labels, fleet.of(*kind).len());
    }
    let name = "smg_worker_selection_total";
    page.family(name, "counter", "Choices of a worker for a request.");
    for kind in core.roles() {
        let chooser = core.choosers.of(*kind);
        let labels = [("worker_type", kind.name()), CONNECTION_MODE, ("policy", chooser.kind.name())];
        page.sample(name, &labels, chooser.chosen.load(Ordering::Relaxed));
    }
    page.family("rollscope_workers_draining", "gauge", "Workers that have been taken out and still serve.");
    page.sample("rollscope_workers_draining", &[], core.registry.draining().len());
}

fn merges(page: &mut Page, counters: &Counters) {
    let help = "Replies of pairs, with or without the prefill worker's share.";
    page.family("rollscope_merges_total", "counter", help);
    for (result, counter) in [("merged", &counters.merged), ("unmerged", &counters.unmerged)] {
        page.sample("rollscope_merges_total", &[("result", result)], counter.load(Ordering::Relaxed));
    }
}

fn queue(page: &mut Page, core: &Core) {
    page.family("rollscope_queue_waiting", "gauge", "Requests that wait for their turn.");
    page.sample("rollscope_queue_waiting", &[], core.limits.waiting());
    page.family("rollscope_queue_refused_total", "counter", "Requests that were refused instead of served.");
    for (reason, count) in [("full", &core.limits.refused), ("timeout", &core.limits.timed_out)] {
        page.sample("rollscope_queue_refused_total", &[("reason", reason)], count.load(Ordering::Relaxed));
    }
}

fn clients(page: &mut Page, core: &Core) {
    page.family("rollscope_client_connections", "gauge", "Connections of clients.");
    page.sample("rollscope_client_connections", &[], core.clients.open.load(Ordering::Relaxed));
    let refused = "Connections that were refused since there were too many.";
    page.counter("rollscope_client_connections_refused_total", refused, &core.clients.refused);
    if core.tls.is_some() {
        let failed = "Connections whose client and the gateway did not come to terms about TLS.";
        page.counter("rollscope_tls_handshakes_failed_total", failed, &core.clients.handshakes_failed);
    }
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
