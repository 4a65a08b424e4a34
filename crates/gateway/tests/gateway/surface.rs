//! Who may call, how many at once, from which pages, and under which name.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use futures_util::future::join_all;
use http::Method;
use rollscope_testkit::{Client, FakeWorker, Gate, Reply, Script, patient};

use crate::harness::TestGateway;

const REPLY: &str = r#"{"text":"x","meta_info":{"finish_reason":{"type":"stop"}}}"#;

async fn worker() -> FakeWorker {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, REPLY));
    for path in [
        "/v1/models",
        "/v1/embeddings",
        "/flush_cache",
        "/%66lush_cache",
        "/release%5Fmemory_occupation",
        "/update_weights_from_tensor",
        "/v1/loads",
        "/health_generate",
    ] {
        worker.on(path, Script::json(200, "{}"));
    }
    worker.on("/metrics", Script::json(200, "a 1\n"));
    let info = r#"{"api_key":"user","admin_api_key":"root","port":1,"internal_states":[{"api_key":"user"}]}"#;
    for path in ["/server_info", "/get_server_info"] {
        worker.on(path, Script::json(200, info));
    }
    worker
}

async fn status(address: SocketAddr, method: &Method, path: &str, key: &str) -> u16 {
    let value = format!("Bearer {key}");
    let headers = [("authorization", value.as_str())];
    let headers = if key.is_empty() { &[][..] } else { &headers[..] };
    let body = if path == "/generate" { "{}" } else { "" };
    Client::call(address, method.clone(), path, headers, body).await.status.as_u16()
}

#[tokio::test]
async fn a_key_opens_what_it_is_for() {
    let worker = worker().await;
    let keys = "--api-key user --admin-api-key root --control-plane-api-keys 7:x:user:look";
    let gateway = TestGateway::start(&format!("--worker-urls {} {keys}", worker.url())).await;
    let (get, post) = (Method::GET, Method::POST);
    for (method, path, expected) in [
        (&get, "/health", [200, 200, 200, 200, 200]),
        (&get, "/readiness", [200, 200, 200, 200, 200]),
        (&get, "/metrics", [200, 200, 200, 200, 200]),
        (&get, "/v1/models", [401, 401, 200, 403, 200]),
        (&get, "/server_info", [401, 401, 200, 403, 200]),
        (&get, "/get_server_info", [401, 401, 200, 403, 200]),
        (&post, "/generate", [401, 401, 200, 403, 200]),
        (&post, "/%67enerate", [401, 401, 400, 403, 400]),
        (&post, "/v1/embeddings", [401, 401, 200, 403, 200]),
        (&get, "/workers", [401, 401, 403, 200, 200]),
        (&get, "/get_loads", [401, 401, 403, 200, 200]),
        (&post, "/flush_cache", [401, 401, 403, 403, 200]),
        (&post, "/%66lush_cache", [401, 401, 403, 403, 200]),
        (&post, "/release%5Fmemory_occupation", [401, 401, 403, 403, 200]),
        (&post, "/update_weights_from_tensor", [401, 401, 403, 403, 200]),
        (&post, "//update_weights_from_tensor", [401, 401, 403, 403, 404]),
        (&post, "/workers", [401, 401, 403, 403, 400]),
        (&get, "/rollscope/v1/spans", [401, 401, 404, 403, 404]),
    ] {
        let mut statuses = Vec::new();
        for key in ["", "other", "user", "look", "root"] {
            statuses.push(status(gateway.address, method, path, key).await);
        }
        assert_eq!(statuses, expected, "{method} {path}");
    }
    for path in ["/generate", "/flush_cache"] {
        assert_eq!(worker.calls(path)[0].request.header("authorization"), Some("Bearer user"), "{path}");
    }
}

#[tokio::test]
async fn a_worker_s_key_is_neither_told_nor_used_for_those_without_one() {
    let worker = worker().await;
    let gateway = TestGateway::start(&format!("--worker-urls {} --api-key user", worker.url())).await;
    for path in ["/server_info", "/get_server_info"] {
        let headers = [("authorization", "Bearer user")];
        let reply = Client::call(gateway.address, Method::GET, path, &headers, "").await;
        let shown = r#"{"api_key":null,"admin_api_key":null,"port":1,"internal_states":[{"api_key":null}]}"#;
        assert_eq!(reply.text().await, shown, "{path}");
    }
    let encoded = Script::head(200, &[("content-encoding", "gzip")], Some(6)).send("secret");
    worker.on_next("/server_info", [encoded]);
    let headers = [("authorization", "Bearer user")];
    let refused = Client::call(gateway.address, Method::GET, "/server_info", &headers, "").await;
    assert_eq!(refused.status, 502);
    assert!(refused.text().await.contains("the worker's reply is encoded"));
    for (asked, path) in [("/engine_metrics", "/metrics"), ("/health_generate", "/health_generate")] {
        for key in ["", "other", "user"] {
            assert_eq!(status(gateway.address, &Method::GET, asked, key).await, 200);
        }
        let calls = worker.calls(path);
        let keys: Vec<_> = calls.iter().map(|call| call.request.header("authorization")).collect();
        assert_eq!(keys, [None, None, Some("Bearer user")], "{asked}");
    }
    // Where requests need no key, whoever asks is served by the workers' own.
    let gateway = TestGateway::start("").await;
    let registration = format!(r#"{{"url":"{}","api_key":"its own"}}"#, worker.url());
    assert_eq!(Client::post(gateway.address, "/workers", &registration).await.status, 201);
    assert_eq!(status(gateway.address, &Method::GET, "/engine_metrics", "").await, 200);
    assert_eq!(worker.calls("/metrics")[3].request.header("authorization"), Some("Bearer its own"));
    let reply = Client::get(gateway.address, "/server_info").await.text().await;
    assert!(!reply.contains("user") && !reply.contains("root"), "{reply}");
}

#[tokio::test]
async fn what_exceeds_the_limit_waits_and_what_exceeds_the_queue_is_refused() {
    let worker = worker().await;
    let gate = Gate::new();
    worker.on("/generate", Script::new().wait(&gate).raw(one_reply()));
    let limits = "--max-concurrent-requests 1 --queue-size 1 --queue-timeout-secs 3600";
    let gateway = TestGateway::start(&format!("--worker-urls {} {limits}", worker.url())).await;
    let address = gateway.address;
    let ask = move || tokio::spawn(async move { Client::post(address, "/generate", "{}").await });
    let first = ask();
    worker.arrived("/generate", 1).await;
    let second = ask();
    waiting(&gateway, 1).await;
    let refused = gateway.generate("{}").await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (429, Some("1")));
    assert!(refused.text().await.contains("1 requests wait already"));
    // One that leaves the queue makes place.
    second.abort();
    waiting(&gateway, 0).await;
    let third = ask();
    waiting(&gateway, 1).await;
    assert_eq!(worker.calls("/generate").len(), 1);
    gate.open();
    for asked in [first, third] {
        assert_eq!(asked.await.unwrap().text().await, REPLY);
    }
    let figures = gateway.settled(&[("completed", 2), ("failed", 1), ("aborted", 1)]).await;
    assert_eq!(figures["rollscope_queue_refused_total{reason=\"full\"}"], 1);
    let profiles = gateway.profiles(4).await;
    assert_eq!(profiles.iter().filter(|profile| profile.status == Some(429)).count(), 1, "{profiles:#?}");
}

#[tokio::test]
async fn what_waits_for_too_long_is_refused() {
    let worker = worker().await;
    let gate = Gate::new();
    worker.on("/generate", Script::new().wait(&gate).raw(one_reply()));
    let limits = "--max-concurrent-requests 1 --queue-timeout-secs 1";
    let gateway = TestGateway::start(&format!("--worker-urls {} {limits}", worker.url())).await;
    let address = gateway.address;
    let first = tokio::spawn(async move { Client::post(address, "/generate", "{}").await });
    worker.arrived("/generate", 1).await;
    let refused = gateway.generate("{}").await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (503, Some("1")));
    assert!(refused.text().await.contains("--queue-timeout-secs"));
    gate.open();
    assert_eq!(first.await.unwrap().text().await, REPLY);
    let figures = gateway.settled(&[("completed", 1), ("failed", 1)]).await;
    assert_eq!(figures["rollscope_queue_refused_total{reason=\"timeout\"}"], 1);
}

#[tokio::test]
async fn what_exceeds_the_rate_is_refused_and_is_not_paid_for_by_those_after_it() {
    let worker = worker().await;
    let rate = "--rate-limit-tokens-per-second 1 --queue-size 1000 --queue-timeout-secs 1";
    let gateway = TestGateway::start(&format!("--worker-urls {} {rate}", worker.url())).await;
    // More than a machine serves in as many seconds.
    let mut statuses = BTreeMap::new();
    for reply in join_all((0..200).map(|_| gateway.generate("{}"))).await {
        *statuses.entry(reply.status.as_u16()).or_insert(0) += 1;
    }
    assert!(statuses.keys().eq([&200, &503]), "{statuses:?}");
    let later = async { while gateway.generate("{}").await.status != 200 {} };
    patient("a request that is served soon after", later).await;
    gateway.settled(&[]).await;
}

#[tokio::test]
async fn pages_of_the_named_origins_may_call() {
    let worker = worker().await;
    let urls = format!("--worker-urls {}", worker.url());
    let asked = |gateway: &TestGateway, method, origin| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "content-type"),
        ];
        let address = gateway.address;
        async move { Client::call(address, method, "/generate", &headers, "{}").await }
    };
    let allowed = |reply: &Reply| reply.header("access-control-allow-origin").map(str::to_owned);
    let gateway =
        TestGateway::start(&format!("{urls} --cors-allowed-origins http://page http://other")).await;
    let preflight = asked(&gateway, Method::OPTIONS, "http://page").await;
    assert_eq!((preflight.status.as_u16(), allowed(&preflight).as_deref()), (204, Some("http://page")));
    assert_eq!(preflight.header("access-control-allow-headers"), Some("content-type"));
    let reply = asked(&gateway, Method::POST, "http://page").await;
    assert_eq!((reply.status.as_u16(), allowed(&reply).as_deref()), (200, Some("http://page")));
    let counted = gateway.figures().await;
    assert_eq!(counted["smg_http_requests_total{method=\"OPTIONS\",path=\"/generate\"}"], 1);
    assert_eq!(counted["smg_http_responses_total{status_code=\"204\"}"], 1);
    let preflight = asked(&gateway, Method::OPTIONS, "http://evil").await;
    assert_eq!((preflight.status.as_u16(), allowed(&preflight)), (405, None));
    assert_eq!(allowed(&asked(&gateway, Method::POST, "http://evil").await), None);
    let gateway = TestGateway::start(&urls).await;
    assert_eq!(allowed(&asked(&gateway, Method::POST, "http://page").await), None);
    let gateway = TestGateway::start(&format!("{urls} --cors-allowed-origins *")).await;
    assert_eq!(allowed(&asked(&gateway, Method::POST, "http://any").await).as_deref(), Some("http://any"));
}

#[tokio::test]
async fn a_request_keeps_its_name_or_gets_one() {
    let worker = worker().await;
    let gateway = TestGateway::start(&format!("--worker-urls {}", worker.url())).await;
    for (header, given) in [("x-request-id", "a"), ("x-correlation-id", "b"), ("request-id", "c")] {
        let reply = Client::post_with(gateway.address, "/generate", &[(header, given)], "{}").await;
        assert_eq!(reply.header("x-request-id"), Some(given));
    }
    let reply = gateway.generate("{}").await;
    assert_eq!(reply.header("x-request-id").map(str::len), Some(32));
}

#[tokio::test]
async fn figures_can_have_a_listener_of_their_own() {
    let address = crate::harness::metrics_listener().await;
    let reply = Client::get(address, "/metrics").await;
    assert_eq!(reply.status, 200);
    assert!(reply.text().await.contains("rollscope_requests_live 0"));
    assert_eq!(Client::get(address, "/workers").await.status, 404);
    let reply = Client::post(address, "/metrics", "").await;
    assert_eq!((reply.status.as_u16(), reply.header("allow")), (405, Some("GET, HEAD")));
}

fn one_reply() -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{REPLY}", REPLY.len())
}

/// Waits until so many requests wait for their turn.
async fn waiting(gateway: &TestGateway, count: u64) {
    patient("requests in the queue", async {
        while gateway.figures().await["rollscope_queue_waiting"] != count {}
    })
    .await;
}
