//! Every way in which a worker, or one half of a pair, can fail before the first token, unary and streamed: what the client gets,
//! what the other half sees, and that the books balance.

use rollscope_testkit::{CallEnd, Client, End, FakeWorker, Gate, Script, refusing_address};
use rollscope_trace::LegRole;

use crate::harness::{TestGateway, legs};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Unary,
    Stream,
    Batch,
    Chat,
    ChatStream,
}

/// A way to fail.
struct Fault {
    name: &'static str,
    /// Nothing: the worker refuses connections.
    script: Option<Script>,
    /// The client's reply.
    status: u16,
    body: &'static str,
    /// How the leg ends.
    leg: &'static str,
}

const SHAPES: [Shape; 5] = [Shape::Unary, Shape::Stream, Shape::Batch, Shape::Chat, Shape::ChatStream];
const ABORT: &str = r#"{"text":"","meta_info":{"id":"x","finish_reason":{"type":"abort","message":"out of memory","status_code":null}}}"#;
const CHAT_ABORT: &str =
    r#"{"choices":[{"index":0,"delta":{"content":"out of memory"},"finish_reason":"abort"}]}"#;
/// What follows the end of a choice if it is asked for.
const CHAT_USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":3}}"#;
const ERROR: &str = r#"{"error":{"message":"out of memory"}}"#;

// === impl Fault ===

impl Fault {
    /// Options by which one that hangs is given up.
    fn limits(&self) -> &'static str {
        match self.name {
            "hang" => "--request-timeout-secs 1",
            // The head must come, however late.
            "hang after head" => "--stream-idle-timeout-secs 1",
            _ => "",
        }
    }
}

// === impl Shape ===

impl Shape {
    fn route(self) -> &'static str {
        match self {
            Self::Unary | Self::Stream | Self::Batch => "/generate",
            Self::Chat | Self::ChatStream => "/v1/chat/completions",
        }
    }

    fn is_stream(self) -> bool {
        matches!(self, Self::Stream | Self::ChatStream)
    }

    fn request(self) -> &'static str {
        match self {
            Self::Unary => r#"{"text":"a","rid":"r-1"}"#,
            Self::Stream => r#"{"text":"a","rid":"r-1","stream":true}"#,
            Self::Batch => r#"{"text":["a","b"],"rid":["r-1","r-2"]}"#,
            Self::Chat => r#"{"messages":[],"rid":"r-1"}"#,
            Self::ChatStream => r#"{"messages":[],"rid":"r-1","stream":true}"#,
        }
    }

    /// The head of a good reply.
    fn head(self) -> Script {
        match self {
            Self::Stream | Self::ChatStream => Script::sse(),
            Self::Unary | Self::Batch | Self::Chat => {
                Script::head(200, &[("content-type", "application/json")], Some(500))
            }
        }
    }

    /// A reply by which the worker gives up.
    fn abort(self) -> Script {
        match self {
            Self::Unary => Script::json(200, ABORT),
            Self::Stream => Script::sse().event(ABORT).event("[DONE]").end(),
            Self::Chat => Script::json(200, CHAT_ABORT),
            Self::ChatStream => Script::sse().event(CHAT_ABORT).event(CHAT_USAGE).event("[DONE]").end(),
            Self::Batch => {
                let good = r#"{"text":"a","meta_info":{"finish_reason":{"type":"stop"}}}"#;
                Script::json(200, &format!("[{good},{ABORT}]"))
            }
        }
    }
}

fn faults(shape: Shape) -> Vec<Fault> {
    let half = if shape.is_stream() { "data: {\"te" } else { "{\"te" };
    let fault = |name, script, status, body, leg| Fault { name, script: Some(script), status, body, leg };
    let (refused, lost, cut) = ("no connection", "connection lost before the reply", "reply cut");
    let error = if shape.is_stream() {
        Script::sse().event(ERROR).event("[DONE]").end()
    } else {
        Script::json(200, ERROR)
    };
    let mut faults = vec![
        Fault { name: "refuse", script: None, status: 502, body: refused, leg: "failed" },
        fault("reset before head", Script::new().reset(), 502, lost, "failed"),
        fault("close before head", Script::new().close(), 502, lost, "failed"),
        fault("garbage", Script::new().raw("no HTTP\r\n\r\n").close(), 502, lost, "failed"),
        fault("reset after head", shape.head().reset(), 502, cut, "truncated"),
        fault("close after head", shape.head().close(), 502, cut, "truncated"),
        fault("half body", shape.head().send(half).close(), 502, cut, "truncated"),
        fault("hang", Script::new().hang(), 504, "reply not finished within 1s", "failed"),
        fault("hang after head", shape.head().hang(), 504, "reply not finished within 1s", "truncated"),
        fault(
            "4xx",
            Script::json(400, r#"{"error":{"message":"prompt too long"}}"#),
            400,
            r#"{"error":{"message":"prompt too long"}}"#,
            "failed",
        ),
        fault("429", Script::json(429, "queue full"), 429, "queue full", "failed"),
        fault("5xx", Script::json(500, "scheduler died"), 500, "scheduler died", "failed"),
        fault("200 abort", shape.abort(), 200, "out of memory", "failed"),
        fault("200 error", error, 200, "out of memory", "failed"),
    ];
    if shape.is_stream() {
        let unended = Script::sse().event(CHAT_USAGE).end();
        for (name, script) in [
            ("no last event", unended),
            ("no event", Script::sse().end()),
            ("comments alone", Script::sse().send(": alive\n\n").end()),
            ("a last mark alone", Script::sse().event("[DONE]").end()),
        ] {
            faults.push(fault(name, script, 502, "reply ended without its last event", "truncated"));
        }
    }
    faults
}

/// Good statuses whose bodies are no replies.
fn no_replies() -> Vec<Fault> {
    let fault = |name, script, leg| {
        let body = "reply with a good status is no JSON object";
        Fault { name, script: Some(script), status: 502, body, leg }
    };
    let unsized_head = || Script::new().raw("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
    let page = "<html>in maintenance</html>";
    let html = Script::head(200, &[("content-type", "text/html")], Some(page.len())).send(page);
    vec![
        fault("200 no JSON", Script::json(200, "<html>"), "failed"),
        fault("200 a page", html, "failed"),
        fault("200 a page in chunks", Script::chunked(200, "text/html").send(page).end(), "failed"),
        fault("200 no object", Script::json(200, "[1]"), "failed"),
        fault("200 text behind it", Script::json(200, "{}<html>"), "failed"),
        fault(
            "200 another behind it",
            Script::chunked(200, "application/json").send("{}\n{}").end(),
            "failed",
        ),
        fault("200 odd and more behind it", Script::json(200, r#"{"a" 1}}"#), "failed"),
        fault("200 empty", Script::json(200, ""), "truncated"),
        fault("200 no chunk", Script::chunked(200, "application/json").end(), "truncated"),
        fault("200 half", Script::json(200, r#"{"text":"a}","meta_info":{}"#), "truncated"),
        fault("closed without a length or a byte", unsized_head().close(), "truncated"),
        fault("cut without a length", unsized_head().raw("{\"te").close(), "truncated"),
    ]
}

/// Whether the client of one worker has the beginning of what turns out to be none: it comes in pieces.
fn is_begun(fault: &Fault) -> bool {
    fault.name == "cut without a length"
}

/// A worker that fails so, or the address of none.
async fn failing(fault: &Fault, route: &str) -> (Option<FakeWorker>, std::net::SocketAddr) {
    let Some(script) = &fault.script else { return (None, refusing_address().await) };
    let worker = FakeWorker::start().await;
    worker.on(route, script.clone());
    worker.on("/health", Script::new().reset());
    let address = worker.address();
    (Some(worker), address)
}

async fn check(fault: &Fault, failing_role: LegRole, shape: Shape) {
    let prefill_fails = failing_role == LegRole::Prefill;
    let (hangs, is_refused) = (fault.name.starts_with("hang"), fault.script.is_none());
    let what = format!("{} of {}, {shape:?}", fault.name, failing_role.name());
    let route = shape.route();
    let (_failing, failing) = failing(fault, route).await;
    let other = FakeWorker::start().await;
    // A decode worker may have announced its stream long before its first token.
    let waits = if shape.is_stream() && prefill_fails { Script::sse().hang() } else { Script::new().hang() };
    other.on(route, waits);
    other.on("/abort_request", Script::json(200, ""));
    other.on("/health", Script::json(200, ""));
    let (prefill, decode) =
        if prefill_fails { (failing, other.address()) } else { (other.address(), failing) };
    let gateway = TestGateway::pair(prefill, decode, fault.limits()).await;
    let reply = Client::post(gateway.address, route, shape.request()).await;
    assert_eq!(reply.status, fault.status, "{what}");
    // Who is given up is so before the client has its answer.
    if !hangs {
        let figures = gateway.figures().await;
        let is_others =
            |name: &str| name.starts_with("rollscope_worker_in_flight{") && name.contains(&other.url());
        let others: Vec<u64> =
            figures.iter().filter(|(name, _)| is_others(name)).map(|(_, count)| *count).collect();
        assert_eq!(others, [0], "{what}: {figures:#?}");
    }
    let code = if prefill_fails { "prefill_server_error" } else { "decode_server_error" };
    let body = reply.text().await;
    assert!(body.contains(fault.body), "{what}: {body}");
    assert_eq!(body.contains(code), fault.status > 501, "{what}: {body}");
    for call in other.calls(route).iter().take(1) {
        assert_ne!(call.end, Some(CallEnd::Played), "{what}");
        assert_eq!(other.ended(route, 1).await[0].end, Some(CallEnd::PeerLeft), "{what}");
    }
    let figures = gateway.settled(&[("failed", 1), ("completed", 0), ("aborted", 0)]).await;
    assert_eq!(legs(&figures, failing, fault.leg), 1, "{what}: {figures:#?}");
    // A refused connection may be noticed before the other worker is called at all.
    if !is_refused || !other.calls(route).is_empty() {
        // The other one's time is up at the same moment.
        let given_up = ["aborted", "failed", "truncated"];
        let given_up = &given_up[..if hangs { 3 } else { 1 }];
        let count: u64 = given_up.iter().map(|end| legs(&figures, other.address(), end)).sum();
        assert_eq!(count, 1, "{what}: {figures:#?}");
        let told = other.arrived("/abort_request", 1).await;
        assert_eq!(told[0].request.text(), r#"{"rid":"r-1"}"#, "{what}");
    }
}

async fn check_all(failing_role: LegRole, shape: Shape) {
    for fault in faults(shape) {
        // What a stream of decode says in events has been passed on.
        let is_event = fault.name.starts_with("200") || fault.name == "no last event";
        let is_last_word = shape.is_stream() && is_event;
        if !(is_last_word && failing_role == LegRole::Decode) {
            check(&fault, failing_role, shape).await;
        }
    }
}

#[tokio::test]
async fn prefill_fails() {
    futures_util::future::join_all(SHAPES.map(|shape| check_all(LegRole::Prefill, shape))).await;
}

#[tokio::test]
async fn a_prefill_reply_that_is_none_is_a_failure() {
    for shape in SHAPES {
        for fault in no_replies() {
            check(&fault, LegRole::Prefill, shape).await;
        }
    }
}

#[tokio::test]
async fn a_decode_reply_that_is_none_is_a_failure() {
    for shape in SHAPES {
        for fault in no_replies() {
            check(&fault, LegRole::Decode, shape).await;
        }
    }
}

#[tokio::test]
async fn a_reply_of_one_worker_that_is_none_is_a_failure() {
    for shape in SHAPES {
        for fault in no_replies() {
            let what = format!("{}, {shape:?}", fault.name);
            let (worker, address) = failing(&fault, shape.route()).await;
            let worker = worker.unwrap();
            let gateway = TestGateway::regular(&[&worker]).await;
            let reply = Client::post(gateway.address, shape.route(), shape.request()).await;
            let outcome = if is_begun(&fault) {
                assert_eq!((reply.status.as_u16(), reply.rest().await.1), (200, End::Cut), "{what}");
                "truncated"
            } else {
                assert_eq!(reply.status, 502, "{what}");
                let body = reply.text().await;
                assert!(body.contains(fault.body) && body.contains("worker_error"), "{what}: {body}");
                "failed"
            };
            let figures = gateway.settled(&[(outcome, 1), ("completed", 0)]).await;
            assert_eq!(legs(&figures, address, fault.leg), 1, "{what}: {figures:#?}");
        }
    }
}

/// Of one worker its client may have the beginning of what fails.
async fn check_one(fault: &Fault, shape: Shape) {
    let what = format!("{}, {shape:?}", fault.name);
    let (_failing, address) = failing(fault, shape.route()).await;
    let gateway = TestGateway::start(&format!("--worker-urls http://{address} {}", fault.limits())).await;
    let reply = Client::post(gateway.address, shape.route(), shape.request()).await;
    let status = reply.status.as_u16();
    let (body, end) = reply.rest().await;
    let is_begun = status == 200 && fault.status != 200;
    assert!(is_begun || status == fault.status, "{what}: {status}");
    assert_eq!(end, if is_begun { End::Cut } else { End::Clean }, "{what}: {body}");
    assert!(body.contains(fault.body) || (is_begun && !shape.is_stream()), "{what}: {body}");
    let figures = gateway.settled(&[("completed", 0), ("aborted", 0)]).await;
    assert_eq!(legs(&figures, address, fault.leg), 1, "{what}: {figures:#?}");
}

#[tokio::test]
async fn one_worker_fails() {
    let check_all = |shape: Shape| async move {
        for fault in faults(shape) {
            check_one(&fault, shape).await;
        }
    };
    futures_util::future::join_all(SHAPES.map(check_all)).await;
}

#[tokio::test]
async fn a_reply_is_judged_alike_when_it_comes_in_pieces() {
    for (first, second, is_reply) in [
        ("{}\n", "{}", false),
        (r#"[{"a":1},{"#, "}]]", false),
        (r#"{"a" "#, "1}}", false),
        ("{'text': 'x',", "'y':[", false),
        (r#"{"a" "#, r#"1,"b":{"c":"}"}}"#, true),
    ] {
        let (worker, gate) = (FakeWorker::start().await, Gate::new());
        let head = Script::chunked(200, "application/json");
        worker.on("/generate", head.send(first).wait(&gate).send(second).end());
        let gateway = TestGateway::regular(&[&worker]).await;
        let reply = gateway.generate("{}").await;
        gate.open();
        let is_whole = reply.rest().await == (format!("{first}{second}"), End::Clean);
        assert_eq!(is_whole, is_reply, "{first}{second}");
        gateway.settled(&[(if is_reply { "completed" } else { "truncated" }, 1)]).await;
    }
}

#[tokio::test]
async fn a_stream_of_one_worker_without_an_event_is_no_clean_end() {
    for shape in [Shape::Stream, Shape::ChatStream] {
        for (what, script, begin) in [
            ("no event", Script::sse().end(), ""),
            ("comments alone", Script::sse().send(": alive\n\n").end(), ": alive\n\n"),
            ("a last mark alone", Script::sse().event("[DONE]").end(), "data: [DONE]\n\n"),
        ] {
            let worker = FakeWorker::start().await;
            worker.on(shape.route(), script);
            let gateway = TestGateway::regular(&[&worker]).await;
            let reply = Client::post(gateway.address, shape.route(), shape.request()).await;
            let (body, end) = reply.rest().await;
            let error = body.strip_prefix(begin).and_then(|rest| rest.strip_prefix("data: {\"error\":"));
            let error = error.unwrap_or_else(|| panic!("{what}, {shape:?}: {body}"));
            assert!(error.contains("reply ended without its last event"), "{what}, {shape:?}: {body}");
            assert_eq!(end, End::Cut, "{what}, {shape:?}");
            let figures = gateway.settled(&[("truncated", 1), ("completed", 0)]).await;
            assert_eq!(legs(&figures, worker.address(), "truncated"), 1, "{what}, {shape:?}");
        }
    }
}

#[tokio::test]
async fn a_reply_that_nobody_reads_is_whatever_it_is() {
    let worker = FakeWorker::start().await;
    for (path, body) in [("/v1/embeddings", "<html>"), ("/anything", ""), ("/v1/rerank", "[1]")] {
        worker.on(path, Script::json(200, body));
        let gateway = TestGateway::regular(&[&worker]).await;
        let reply = Client::post(gateway.address, path, "{}").await;
        assert_eq!((reply.status.as_u16(), &*reply.text().await), (200, body), "{path}");
        gateway.settled(&[("completed", 1)]).await;
    }
}

#[tokio::test]
async fn decode_fails() {
    futures_util::future::join_all(SHAPES.map(|shape| check_all(LegRole::Decode, shape))).await;
}

#[tokio::test]
async fn a_streamed_abort_of_decode_is_passed_on_and_counted_as_failed() {
    for (shape, events) in [
        (Shape::Stream, &[ABORT, "[DONE]"][..]),
        (Shape::ChatStream, &[CHAT_ABORT, CHAT_USAGE, "[DONE]"]),
        (Shape::ChatStream, &[CHAT_USAGE, ERROR, "[DONE]"]),
    ] {
        let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
        prefill.on(shape.route(), Script::new().hang());
        decode
            .on(shape.route(), events.iter().fold(Script::sse(), |script, event| script.event(event)).end());
        let gateway = TestGateway::pair(prefill.address(), decode.address(), "--merge-wait-secs 600").await;
        let body = Client::post(gateway.address, shape.route(), shape.request()).await.text().await;
        assert_eq!(body, format!("data: {}\n\n", events.join("\n\ndata: ")));
        assert_eq!(prefill.ended(shape.route(), 1).await[0].end, Some(CallEnd::PeerLeft));
        let figures = gateway.settled(&[("failed", 1)]).await;
        assert_eq!(legs(&figures, decode.address(), "failed"), 1, "{events:?}");
        assert_eq!(legs(&figures, prefill.address(), "aborted"), 1, "{events:?}");
    }
}

#[tokio::test]
async fn an_abort_of_one_worker_is_passed_on_and_counted_as_failed() {
    for shape in SHAPES {
        let worker = FakeWorker::start().await;
        worker.on(shape.route(), shape.abort());
        let gateway = TestGateway::regular(&[&worker]).await;
        let reply = Client::post(gateway.address, shape.route(), shape.request()).await;
        assert_eq!(reply.status, 200, "{shape:?}");
        assert!(reply.text().await.contains("out of memory"), "{shape:?}");
        let figures = gateway.settled(&[("failed", 1), ("completed", 0)]).await;
        assert_eq!(legs(&figures, worker.address(), "failed"), 1, "{shape:?}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_cancels_both() {
    for (what, prefill_script, decode_script) in [
        ("both silent", Script::new().hang(), Script::new().hang()),
        ("prefill done", Script::json(200, "{}"), Script::new().hang()),
        ("decode announced", Script::new().hang(), Script::sse().hang()),
        ("decode streaming", Script::new().hang(), Script::sse().event(r#"{"meta_info":{}}"#).hang()),
        ("decode half done", Script::new().hang(), Script::head(200, &[], Some(99)).send("{").hang()),
    ] {
        let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
        prefill.on("/generate", prefill_script);
        decode.on("/generate", decode_script);
        let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
        let address = gateway.address;
        let client = tokio::spawn(async move { Client::post(address, "/generate", "{}").await.rest().await });
        prefill.arrived("/generate", 1).await;
        decode.arrived("/generate", 1).await;
        if what == "prefill done" {
            prefill.ended("/generate", 1).await;
        }
        client.abort();
        assert_eq!(decode.ended("/generate", 1).await[0].end, Some(CallEnd::PeerLeft), "{what}");
        prefill.ended("/generate", 1).await;
        let figures = gateway.settled(&[("aborted", 1)]).await;
        assert_eq!(legs(&figures, decode.address(), "aborted"), 1, "{what}");
    }
}

#[tokio::test]
async fn the_next_request_is_served_as_if_nothing_had_been() {
    let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
    prefill.on("/generate", Script::json(200, r#"{"meta_info":{"pd_prefill_retry_count":0}}"#));
    decode.on("/generate", Script::new().hang());
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    let address = gateway.address;
    let live = tokio::spawn(async move { Client::post(address, "/generate", "{}").await });
    decode.arrived("/generate", 1).await;
    let decode_address = decode.address();
    drop(decode);
    let reply = live.await.unwrap();
    assert_eq!(reply.status, 502);
    assert!(reply.text().await.contains(&format!("decode worker http://{decode_address}: connection lost")));
    assert!(gateway.generate("{}").await.text().await.contains("no connection"));
    let decode = FakeWorker::start_at(decode_address).await;
    decode.on("/generate", Script::json(200, r#"{"meta_info":{}}"#));
    assert_eq!(gateway.generate("{}").await.text().await, r#"{"meta_info":{"pd_prefill_retry_count":0}}"#);
    gateway.settled(&[("completed", 1), ("failed", 2)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_books_balance_at_any_moment() {
    let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
    let ok = |body: &str| Script::json(200, body);
    let turns = std::sync::atomic::AtomicUsize::new(0);
    decode.on_each("/generate", move |_| {
        match turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 4 {
            0 => Script::new().reset(),
            1 => Script::json(503, "busy"),
            2 => Script::sse().event(r#"{"meta_info":{}}"#).reset(),
            _ => Script::json(200, r#"{"meta_info":{}}"#),
        }
    });
    prefill.on("/generate", ok(r#"{"meta_info":{}}"#));
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    let address = gateway.address;
    let clients: Vec<_> = (0..8)
        .map(|client| {
            tokio::spawn(async move {
                for round in 0..10 {
                    let reply = Client::post(address, "/generate", "{}").await;
                    if (client + round) % 3 > 0 {
                        reply.rest().await;
                    }
                }
            })
        })
        .collect();
    while clients.iter().any(|client| !client.is_finished()) {
        let figures = gateway.figures().await;
        let of = |name: &str| figures[name];
        let ended: u64 = figures
            .iter()
            .filter(|(name, _)| name.starts_with("rollscope_requests_total"))
            .map(|(_, n)| n)
            .sum();
        assert_eq!(of("rollscope_requests_started_total"), ended + of("rollscope_requests_live"));
        for worker in [&prefill, &decode] {
            let of = |prefix: &str| {
                let is_it = |name: &str| name.starts_with(prefix) && name.contains(&worker.url());
                figures.iter().filter(|(name, _)| is_it(name)).map(|(_, count)| count).sum::<u64>()
            };
            assert_eq!(
                of("rollscope_legs_started_total"),
                of("rollscope_legs_total") + of("rollscope_worker_in_flight")
            );
        }
    }
    let figures = gateway.settled(&[]).await;
    assert_eq!(figures["rollscope_requests_started_total"], 80);
}
