//! Command lines and calls that SGLang's router takes, and what it tells beside.

use http::Method;
use rollscope_testkit::{Client, FakeWorker, Script, patient, refusing_address};
use serde_json::{Value, json};

use crate::checks::shown;
use crate::harness::TestGateway;

async fn get(gateway: &TestGateway, path: &str) -> Value {
    serde_json::from_str(&Client::get(gateway.address, path).await.text().await).unwrap()
}

#[tokio::test]
async fn a_worker_that_is_named_twice_is_one() {
    let worker = FakeWorker::start().await;
    let gateway = TestGateway::start(&format!("--worker-urls {0} {0}", worker.url())).await;
    assert_eq!(get(&gateway, "/list_workers").await["urls"], json!([worker.url()]));
    gateway.tells("worker URL given twice, it is one worker").await;
}

#[tokio::test]
async fn prefill_workers_of_one_bootstrap_port_serve() {
    let (first, second) = (FakeWorker::start().await, FakeWorker::start().await);
    let decode = FakeWorker::start().await;
    for worker in [&first, &second, &decode] {
        worker.on("/generate", Script::json(200, r#"{"meta_info":{"finish_reason":{"type":"stop"}}}"#));
    }
    let more = format!("--prefill {} 8998", second.url());
    let gateway = TestGateway::pair(first.address(), decode.address(), &more).await;
    gateway.tells("two workers on one host have the same bootstrap port").await;
    for _ in 0..2 {
        assert_eq!(gateway.generate("{}").await.status, 200);
    }
    assert_eq!([&first, &second].map(|worker| worker.calls("/generate").len()), [1, 1]);
}

#[tokio::test]
async fn no_requests_a_second_means_any_number() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, r#"{"meta_info":{"finish_reason":{"type":"stop"}}}"#));
    let args = format!("--worker-urls {} --rate-limit-tokens-per-second 0 --queue-size 0", worker.url());
    let gateway = TestGateway::start(&args).await;
    for _ in 0..3 {
        assert_eq!(gateway.generate("{}").await.status, 200);
    }
}

#[tokio::test]
async fn without_an_interval_a_healthy_worker_is_not_checked_again() {
    let (well, ill) = (FakeWorker::start().await, FakeWorker::start().await);
    well.on("/health", Script::json(200, ""));
    well.on("/server_info", Script::json(200, "{}"));
    ill.on("/health", Script::json(503, ""));
    let args = format!("--worker-urls {} {} --health-check-interval-secs 0", well.url(), ill.url());
    let gateway = TestGateway::start(&args).await;
    ill.arrived("/health", 4).await;
    assert_eq!(well.calls("/health").len(), 1);
    // The one that is ill is, until it is well.
    ill.on("/health", Script::json(200, ""));
    ill.on("/server_info", Script::json(200, "{}"));
    patient("both are healthy", async { while get(&gateway, "/readiness").await["healthy_workers"] != 2 {} })
        .await;
}

#[tokio::test]
async fn workers_are_shown_with_what_they_say_of_themselves() {
    let worker = FakeWorker::start().await;
    let info = r#"{"served_model_name":"m","model_path":"/models/m","tp_size":2,"dp_size":1,"disaggregation_mode":"null","api_key":"KEY","x":{}}"#;
    worker.on("/server_info", Script::json(200, info));
    let gateway = TestGateway::start("").await;
    let body = json!({ "url": worker.url(), "priority": 7, "labels": { "rack": "r", "tp_size": "own" } });
    assert_eq!(Client::post(gateway.address, "/workers", &body.to_string()).await.status, 201);
    shown(&gateway, "what it says", |worker| worker["model_id"] == "m").await;
    let shown = get(&gateway, "/workers").await["workers"][0].clone();
    let metadata = json!({
        "served_model_name": "m", "model_path": "/models/m", "tp_size": "own", "dp_size": "1",
        "disaggregation_mode": "null", "rack": "r"
    });
    assert_eq!(shown["metadata"], metadata);
    let rest = ["priority", "cost", "connection_mode", "disable_health_check"].map(|key| &shown[key]);
    assert_eq!(rest, [&json!(7), &json!(1.0), &json!("HTTP"), &json!(true)]);

    // One that has said nothing is shown all the same.
    let dead = refusing_address().await;
    let gateway = TestGateway::start(&format!("--worker-urls http://{dead}")).await;
    let shown = get(&gateway, "/workers").await["workers"][0].clone();
    assert_eq!((&shown["model_id"], &shown["metadata"]), (&json!("unknown"), &json!({})));
}

#[tokio::test]
async fn the_fleet_can_be_looked_at_by_its_heads() {
    let gateway = TestGateway::start("--worker-urls http://a:1 --admin-api-key ROOT").await;
    let id = {
        let key = [("authorization", "Bearer ROOT")];
        let listed = Client::call(gateway.address, Method::GET, "/workers", &key, "").await.text().await;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        listed["workers"][0]["id"].as_str().unwrap().to_owned()
    };
    for path in ["/workers".to_owned(), format!("/workers/{id}")] {
        let mut statuses = Vec::new();
        for key in [&[("authorization", "Bearer ROOT")][..], &[]] {
            let reply = Client::call(gateway.address, Method::HEAD, &path, key, "").await;
            statuses.push(reply.status.as_u16());
        }
        let got = Client::get(gateway.address, &path).await.status.as_u16();
        assert_eq!(statuses, [200, got], "{path}: who may look is asked the same");
    }
}

#[tokio::test]
async fn readiness_tells_how_many_workers_are_available() {
    let (well, ill) = (FakeWorker::start().await, FakeWorker::start().await);
    well.on("/health", Script::json(200, ""));
    ill.on("/health", Script::json(503, ""));
    let args = format!("--worker-urls {} {} --health-check-interval-secs 60", well.url(), ill.url());
    let gateway = TestGateway::start(&args).await;
    let expected = json!({ "status": "ready", "healthy_workers": 1, "total_workers": 2 });
    patient("the first checks", async { while get(&gateway, "/readiness").await != expected {} }).await;
}

#[tokio::test]
async fn an_errors_code_is_in_a_header_too() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(400, r#"{"error":"its own"}"#));
    let gateway = TestGateway::regular(&[&worker]).await;
    for (method, path, body, code) in [
        (Method::POST, "/generate", "{bad", Some("malformed_request")),
        (Method::GET, "/generate", "", Some("method_not_allowed")),
        (Method::GET, "/workers/none", "", Some("unknown_worker")),
        (Method::POST, "/generate", "{}", None),
        (Method::GET, "/health", "", None),
    ] {
        let reply = Client::call(gateway.address, method, path, &[], body).await;
        assert_eq!(reply.header("x-smg-error-code"), code, "{path} {body}");
        let told: Value = serde_json::from_str(&reply.text().await).unwrap_or_default();
        assert_eq!(told["error"]["code"].as_str(), code, "{path} {body}");
    }
}
