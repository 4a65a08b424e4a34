//! Workers that do everything.

use std::collections::BTreeSet;

use http::Method;
use rollscope_testkit::{CallEnd, Client, End, FakeWorker, Gate, Script, refusing_address};

use crate::harness::{TestGateway, legs};

const REPLY: &str =
    r#"{"text":"ü","meta_info":{"id":"x","finish_reason":{"type":"stop"},"n":0.10000000149, "e":1E2}}"#;

#[tokio::test]
async fn a_request_and_its_reply_pass_byte_for_byte() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, REPLY));
    let gateway = TestGateway::regular(&[&worker]).await;
    let body = r#"{ "text":"é", "sampling_params":{"temperature":0.1,"x":1e-2},"return_routed_experts":true,"bootstrap_room":7 }"#;
    for method in [Method::POST, Method::PUT] {
        let headers = [
            ("x-rollscope-step", "1"),
            ("accept-encoding", "gzip"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("proxy-authorization", "Basic eDp5"),
        ];
        let reply = Client::call(gateway.address, method.clone(), "/generate?a=1", &headers, body).await;
        assert_eq!((reply.status.as_u16(), reply.header("content-type")), (200, Some("application/json")));
        assert_eq!(reply.header("content-length"), Some(&*REPLY.len().to_string()));
        assert_eq!(reply.text().await, REPLY);
        let call = worker.ended("/generate", 1).await.pop().unwrap();
        assert_eq!((&*call.request.method, &*call.request.target), (method.as_str(), "/generate?a=1"));
        assert_eq!(call.request.text(), body);
        assert_eq!(call.request.header("x-rollscope-step"), Some("1"));
        assert_eq!(call.request.header("accept-encoding"), Some("gzip"));
        assert_eq!(call.request.header("x-hop"), None);
        assert_eq!(call.request.header("proxy-authorization"), None);
        assert_eq!(call.request.header("host"), Some(&*worker.address().to_string()));
    }
    gateway.settled(&[("completed", 2)]).await;
}

#[tokio::test]
async fn connections_are_kept_and_a_broken_one_is_not_the_clients_business() {
    let worker = FakeWorker::start().await;
    // The worker closes the connection as soon as it has answered the second call.
    let scripts = [Script::json(200, "{}"), Script::json(200, "{}").close(), Script::json(200, "{}")];
    worker.on_next("/generate", scripts);
    let gateway = TestGateway::regular(&[&worker]).await;
    for count in 1..=9 {
        assert_eq!(gateway.generate("{}").await.text().await, "{}");
        // Closed by then, if it is to be: a request into a connection that closes under it can not be sent again.
        worker.ended("/generate", count).await;
    }
    let calls = worker.calls("/generate");
    let connections: BTreeSet<usize> = calls.iter().map(|call| call.connection).collect();
    // One that was closed, one in its place, and one by which the worker was asked who it is.
    assert!(calls.len() == 9 && (2..=3).contains(&connections.len()), "{connections:?}");
    gateway.settled(&[("completed", 9)]).await;
}

#[tokio::test]
async fn connections_are_kept_no_longer_than_is_asked_for() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, "{}"));
    let args = format!("--worker-urls {} --worker-idle-timeout-secs 0", worker.url());
    let gateway = TestGateway::start(&args).await;
    for _ in 0..3 {
        assert_eq!(gateway.generate("{}").await.text().await, "{}");
    }
    let connections: BTreeSet<usize> = worker.calls("/generate").iter().map(|call| call.connection).collect();
    assert_eq!(connections.len(), 3);
}

#[tokio::test]
async fn a_request_that_may_have_been_seen_is_not_sent_twice() {
    let worker = FakeWorker::start().await;
    worker.on_next("/generate", [Script::json(200, "{}"), Script::new().reset()]);
    let gateway = TestGateway::regular(&[&worker]).await;
    assert_eq!(gateway.generate("{}").await.status, 200);
    let reply = gateway.generate("{}").await;
    assert_eq!(reply.status, 502);
    assert!(reply.text().await.contains("connection lost before the reply"));
    assert_eq!(worker.calls("/generate").len(), 2);
    gateway.settled(&[("completed", 1), ("failed", 1)]).await;
}

#[tokio::test]
async fn a_stream_passes_event_by_event_as_it_comes() {
    let (worker, gate) = (FakeWorker::start().await, Gate::new());
    let first = r#"{"text":"a","meta_info":{"finish_reason":null}}"#;
    let script =
        Script::sse().event(first).send(": ping\r\n\r\nda").wait(&gate).send("ta: {}\n\n").event("[DONE]");
    worker.on("/generate", script.end());
    let gateway = TestGateway::regular(&[&worker]).await;
    let mut reply = gateway.generate(r#"{"stream":true}"#).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let mut begin = Vec::new();
    while begin.len() < format!("data: {first}\n\n: ping\r\n\r\n").len() {
        begin.extend(reply.next().await.unwrap());
    }
    assert_eq!(String::from_utf8(begin).unwrap(), format!("data: {first}\n\n: ping\r\n\r\n"));
    gate.open();
    assert_eq!(reply.rest().await, ("data: {}\n\ndata: [DONE]\n\n".into(), End::Clean));
    gateway.settled(&[("completed", 1)]).await;
}

#[tokio::test]
async fn a_stream_that_breaks_ends_in_an_error_event_and_a_cut() {
    let event = r#"{"text":"a","meta_info":{"finish_reason":null}}"#;
    for (what, script) in [
        ("reset", Script::sse().event(event).send("data: {\"te").reset()),
        ("close", Script::sse().event(event).send("data: {\"te").close()),
        ("no last event", Script::sse().event(event).end()),
    ] {
        let worker = FakeWorker::start().await;
        worker.on("/generate", script);
        let gateway = TestGateway::regular(&[&worker]).await;
        let reply = gateway.generate(r#"{"stream":true}"#).await;
        assert_eq!(reply.status, 200);
        let (body, end) = reply.rest().await;
        assert_eq!(end, End::Cut, "{what}");
        let mut events = body.split_terminator("\n\n");
        assert_eq!(events.next(), Some(&*format!("data: {event}")), "{what}");
        let error: serde_json::Value =
            serde_json::from_str(events.next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(error["error"]["code"], "worker_error", "{what}");
        assert!(error["error"]["message"].as_str().unwrap().contains(&worker.url()), "{what}: {error}");
        assert_eq!(events.next(), None, "{what}");
        let figures = gateway.settled(&[("truncated", 1)]).await;
        assert_eq!(legs(&figures, worker.address(), "truncated"), 1);
    }
}

#[tokio::test]
async fn failures_have_a_status_and_a_sentence_and_others_go_on() {
    for (what, script, status, body, outcome) in [
        ("refusal", Script::json(400, r#"{"error":{"message":"too long"}}"#), 400, "too long", "failed"),
        ("overload", Script::json(503, "busy"), 503, "busy", "failed"),
        ("reset", Script::new().reset(), 502, "connection lost before the reply", "failed"),
        (
            "abort",
            Script::json(200, r#"{"meta_info":{"finish_reason":{"type":"abort","message":"no"}}}"#),
            200,
            r#""abort""#,
            "failed",
        ),
    ] {
        let worker = FakeWorker::start().await;
        worker.on_next("/generate", [script, Script::json(200, REPLY)]);
        let gateway = TestGateway::regular(&[&worker]).await;
        let reply = gateway.generate("{}").await;
        assert_eq!(reply.status, status, "{what}");
        assert!(reply.text().await.contains(body), "{what}");
        assert_eq!(gateway.generate("{}").await.text().await, REPLY, "{what}");
        let figures = gateway.settled(&[(outcome, 1), ("completed", 1)]).await;
        assert_eq!(legs(&figures, worker.address(), outcome), 1, "{what}");
    }
}

#[tokio::test]
async fn a_reply_cut_in_its_middle_is_cut_for_the_client_too() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::head(200, &[], Some(1000)).send("{\"text\":").reset());
    let gateway = TestGateway::regular(&[&worker]).await;
    assert_eq!(gateway.generate("{}").await.rest().await, ("{\"text\":".into(), End::Cut));
    gateway.settled(&[("truncated", 1)]).await;
}

#[tokio::test]
async fn an_unreachable_worker_is_502_and_none_is_503() {
    let address = refusing_address().await;
    let gateway = TestGateway::start(&format!("--worker-urls http://{address}")).await;
    let reply = gateway.generate("{}").await;
    assert_eq!(reply.status, 502);
    let body = reply.text().await;
    assert!(body.contains(&format!("regular worker http://{address}: no connection")), "{body}");

    let gateway = TestGateway::start("").await;
    let reply = gateway.generate("{}").await;
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (503, Some("1")));
    assert!(reply.text().await.contains("no regular worker is registered"));
    gateway.settled(&[("failed", 1)]).await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_call_and_is_counted() {
    for (what, script) in [
        ("before the head", Script::new().hang()),
        ("in a reply", Script::head(200, &[], Some(100)).send("{").hang()),
        ("in a stream", Script::sse().event("{}").hang()),
    ] {
        let worker = FakeWorker::start().await;
        worker.on("/generate", script);
        worker.on("/abort_request", Script::json(200, ""));
        let gateway = TestGateway::regular(&[&worker]).await;
        let address = gateway.address;
        let client = tokio::spawn(async move {
            let reply = Client::post(address, "/generate", r#"{"rid":"a\"b","stream":true}"#).await;
            reply.rest().await
        });
        worker.arrived("/generate", 1).await;
        client.abort();
        assert_eq!(worker.ended("/generate", 1).await[0].end, Some(CallEnd::PeerLeft), "{what}");
        let abort = worker.arrived("/abort_request", 1).await;
        assert_eq!(abort[0].request.text(), r#"{"rid":"a\"b"}"#, "{what}");
        let figures = gateway.settled(&[("aborted", 1)]).await;
        assert_eq!(legs(&figures, worker.address(), "aborted"), 1, "{what}");
    }
}

#[tokio::test]
async fn a_worker_that_is_silent_for_too_long_is_given_up() {
    let worker = FakeWorker::start().await;
    // The second begins its reply within the limit, however busy the machine is.
    for (limit_s, script, status, outcome) in
        [(1, Script::new().hang(), 504, "failed"), (4, Script::sse().event("{}").hang(), 200, "truncated")]
    {
        let limit = format!("--request-timeout-secs {limit_s}");
        let gateway = TestGateway::start(&format!("--worker-urls {} {limit}", worker.url())).await;
        worker.on("/generate", script);
        let reply = gateway.generate("{}").await;
        assert_eq!(reply.status, status);
        let (body, end) = reply.rest().await;
        assert!(body.contains(&format!("reply not finished within {limit_s}s")), "{body}");
        assert_eq!(end == End::Cut, status == 200);
        gateway.settled(&[(outcome, 1)]).await;
    }
}

#[tokio::test]
async fn what_the_gateway_does_not_know_it_forwards() {
    let worker = FakeWorker::start().await;
    worker.on("/v1/embeddings", Script::json(200, "[1]"));
    worker.on("/v1/chat/completions", Script::json(200, "{\"choices\":[]}"));
    let head = [("x-y", "z"), ("content-length", "5")];
    worker.on_each("/head", move |_| Script::head(200, &head, None));
    worker.on("/empty", Script::head(204, &[], None));
    let gateway = TestGateway::regular(&[&worker]).await;
    assert_eq!(Client::post(gateway.address, "/v1/embeddings?q=1", "[ 1, 2 ]").await.text().await, "[1]");
    assert_eq!(worker.calls("/v1/embeddings")[0].request.text(), "[ 1, 2 ]");
    let chat = r#"{"messages": [], "stream" :false}"#;
    assert_eq!(
        Client::post(gateway.address, "/v1/chat/completions", chat).await.text().await,
        "{\"choices\":[]}"
    );
    assert_eq!(worker.calls("/v1/chat/completions")[0].request.text(), chat);
    let reply = Client::call(gateway.address, Method::HEAD, "/head", &[], "").await;
    assert_eq!((reply.header("x-y"), reply.header("content-length")), (Some("z"), Some("5")));
    assert_eq!(Client::get(gateway.address, "/empty").await.status, 204);
    assert_eq!(Client::get(gateway.address, "/nothing").await.status, 404);
    gateway.settled(&[("completed", 4), ("failed", 1)]).await;
}

#[tokio::test]
async fn bodies_and_live_requests_are_limited() {
    let (worker, gate) = (FakeWorker::start().await, Gate::new());
    worker.on(
        "/generate",
        Script::new().wait(&gate).raw(&b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"[..]),
    );
    let args = format!(
        "--worker-urls {} --max-payload-size 20 --max-concurrent-requests 1 --queue-size 0",
        worker.url()
    );
    let gateway = TestGateway::start(&args).await;
    let reply = gateway.generate(&format!("{{\"text\":\"{}\"}}", "x".repeat(20))).await;
    assert_eq!(reply.status, 413);
    assert!(reply.text().await.contains("--max-payload-size, 20 bytes"));

    let address = gateway.address;
    let first = tokio::spawn(async move { Client::post(address, "/generate", "{}").await.text().await });
    gate.arrivals(1).await;
    let reply = gateway.generate("{}").await;
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (429, Some("1")));
    gate.open();
    assert_eq!(first.await.unwrap(), "{}");
    gateway.settled(&[("completed", 1), ("failed", 2)]).await;
}

#[tokio::test]
async fn malformed_requests_are_refused_with_the_place() {
    let worker = FakeWorker::start().await;
    let gateway = TestGateway::regular(&[&worker]).await;
    for (body, sentence) in [
        ("", "unexpected end at byte 0"),
        ("{\"text\":}", "unexpected byte at byte 8"),
        ("[1]", "not an object at byte 0"),
    ] {
        let reply = gateway.generate(body).await;
        assert_eq!(reply.status, 400);
        let error: serde_json::Value = serde_json::from_str(&reply.text().await).unwrap();
        assert_eq!(error["error"]["message"], format!("malformed request: {sentence}"));
    }
    let reply = Client::get(gateway.address, "/generate").await;
    assert_eq!(reply.status, 405);
    assert!(worker.calls("/generate").is_empty());
}

#[tokio::test]
async fn requests_are_spread_and_a_live_one_is_finished_before_the_end() {
    let (first, second, gate) = (FakeWorker::start().await, FakeWorker::start().await, Gate::new());
    for worker in [&first, &second] {
        worker.on("/generate", Script::json(200, "{}"));
    }
    let gateway = TestGateway::regular(&[&first, &second]).await;
    for _ in 0..4 {
        gateway.generate("{}").await.text().await;
    }
    assert_eq!((first.calls("/generate").len(), second.calls("/generate").len()), (2, 2));

    first.on("/generate", Script::sse().event("{}").wait(&gate).event("[DONE]").end());
    let mut reply = gateway.generate("{}").await;
    assert!(reply.next().await.is_some());
    let address = gateway.address;
    let stopping = gateway.begin_stop();
    while Client::try_call(address, Method::GET, "/health", &[], "").await.is_ok() {}
    assert!(!stopping.is_finished());
    gate.open();
    assert_eq!(reply.rest().await, ("data: [DONE]\n\n".into(), End::Clean));
    stopping.await.unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_with_the_last_event_has_had_the_whole_reply() {
    let finish = r#"{"meta_info":{"finish_reason":{"type":"stop"}}}"#;
    for (what, events, outcome) in [
        ("mark", &["{}", "[DONE]"][..], "completed"),
        ("finish reason", &["{}", finish], "completed"),
        ("neither", &["{}", "{}"], "aborted"),
    ] {
        let worker = FakeWorker::start().await;
        let script = events.iter().fold(Script::sse(), |script, event| script.event(event));
        worker.on("/generate", script.hang());
        let gateway = TestGateway::regular(&[&worker]).await;
        let mut reply = gateway.generate(r#"{"stream":true}"#).await;
        let last = format!("data: {}\n\n", events[1]);
        let mut received = Vec::new();
        while !received.ends_with(last.as_bytes()) || received.len() == last.len() {
            received.extend(reply.next().await.unwrap());
        }
        reply.leave();
        assert_eq!(worker.ended("/generate", 1).await[0].end, Some(CallEnd::PeerLeft), "{what}");
        let figures = gateway.settled(&[(outcome, 1)]).await;
        assert_eq!(legs(&figures, worker.address(), outcome), 1, "{what}");
    }
}

#[tokio::test]
async fn an_event_that_passes_in_pieces_is_not_continued_by_the_error() {
    let large = "x".repeat(100_000);
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::sse().send(&format!("data: {large}")).reset());
    let args = format!("--worker-urls {} --max-merge-bytes 1024", worker.url());
    let gateway = TestGateway::start(&args).await;
    let (body, end) = gateway.generate(r#"{"stream":true}"#).await.rest().await;
    assert_eq!(end, End::Cut);
    let error = body.rsplit_once("\n\ndata: ").map(|(_, error)| error.to_owned());
    assert!(error.is_some_and(|error| error.contains("worker_error")), "{}", &body[body.len() - 200..]);
}
