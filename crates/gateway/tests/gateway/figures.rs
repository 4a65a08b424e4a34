//! `/metrics` by the names and labels of SGLang's router.

use rollscope_testkit::{Client, FakeWorker, Script, patient};
use tokio::net::TcpStream;

use crate::harness::{Figures, TestGateway};

fn of<'a>(figures: &'a Figures, name: &str) -> Vec<(&'a str, u64)> {
    let labels =
        |(sample, count): (&'a String, &u64)| Some((sample.strip_prefix(name)?.strip_prefix('{')?, *count));
    figures.iter().filter_map(labels).map(|(labels, count)| (labels.trim_end_matches('}'), count)).collect()
}

#[tokio::test]
async fn a_call_is_counted_by_its_path_as_it_is_read() {
    let worker = FakeWorker::start().await;
    worker.on("/%67enerate", Script::json(200, "{}"));
    let gateway = TestGateway::regular(&[&worker]).await;
    assert_eq!(Client::post(gateway.address, "/%67enerate", "{}").await.status, 200);
    let figures = gateway.settled(&[("completed", 1)]).await;
    assert_eq!(figures["smg_http_requests_total{method=\"POST\",path=\"/generate\"}"], 1);
    for name in ["smg_router_requests_total", "smg_router_request_duration_seconds_count"] {
        let [(labels, 1)] = of(&figures, name)[..] else { panic!("{name}") };
        assert!(labels.contains("endpoint=\"generate\""), "{labels}");
    }
    assert_eq!(&*gateway.profiles(1).await[0].endpoint, "/generate");
}

#[tokio::test]
async fn what_sglangs_router_counts_has_its_names() {
    let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
    let reply = r#"{"meta_info":{"finish_reason":{"type":"stop"}}}"#;
    let stream = || Script::sse().event(reply).event("[DONE]").end();
    prefill.on("/generate", Script::json(200, reply));
    decode.on_next("/generate", [Script::json(200, reply), stream(), stream(), Script::json(500, "{}")]);
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "--decode-policy random").await;
    for body in ["{}", r#"{"stream":true}"#, r#"{"stream":true}"#, "{}", "{bad"] {
        gateway.generate(body).await.text().await;
    }
    Client::get(gateway.address, "/workers/0123").await.text().await;
    Client::get(gateway.address, "/made/up").await.text().await;
    let figures = gateway.settled(&[("completed", 3), ("failed", 2)]).await;

    let pair = r#"router_type="http",backend_type="pd",connection_mode="http",endpoint="generate""#;
    assert_eq!(
        of(&figures, "smg_router_requests_total"),
        [(&*format!(r#"{pair},streaming="false""#), 2), (&*format!(r#"{pair},streaming="true""#), 2)]
    );
    assert_eq!(of(&figures, "smg_router_request_duration_seconds_count"), [(pair, 5)]);
    assert_eq!(
        of(&figures, "smg_worker_selection_total"),
        [
            (r#"worker_type="decode",connection_mode="http",policy="random""#, 4),
            (r#"worker_type="prefill",connection_mode="http",policy="round_robin""#, 4)
        ]
    );
    let outcomes = |worker: &FakeWorker, role: &str| {
        let labels = |outcome| format!(r#"worker="{}",role="{role}",outcome="{outcome}""#, worker.url());
        ["success", "failure"]
            .map(|outcome| figures[&format!("smg_worker_cb_outcomes_total{{{}}}", labels(outcome))])
    };
    assert_eq!(outcomes(&decode, "decode"), [3, 1]);
    assert_eq!(outcomes(&prefill, "prefill")[1], 0);
    assert_eq!(
        of(&figures, "smg_worker_pool_size"),
        [
            (r#"worker_type="decode",connection_mode="http""#, 1),
            (r#"worker_type="prefill",connection_mode="http""#, 1)
        ]
    );
    let mut calls = of(&figures, "smg_http_requests_total");
    calls.retain(|(labels, _)| !labels.contains("/metrics"));
    let expected = [
        (r#"method="GET",path="/workers/{id}""#, 1),
        (r#"method="GET",path="other""#, 1),
        (r#"method="POST",path="/generate""#, 5),
    ];
    assert_eq!(calls, expected);
    let mut answered = of(&figures, "smg_http_request_duration_seconds_count");
    answered.retain(|(labels, _)| !labels.contains("/metrics"));
    assert_eq!(answered, expected);
    // The one that asks, and one that is kept.
    let kept = TcpStream::connect(gateway.address).await.unwrap();
    let connections = async |count: u64| {
        let names = ["smg_http_connections_active", "rollscope_client_connections"];
        let is_it = |figures: &Figures| names.iter().all(|name| figures[*name] == count);
        patient("so many connections", async { while !is_it(&gateway.figures().await) {} }).await;
    };
    connections(2).await;
    drop(kept);
    connections(1).await;
    gateway.stop().await;
}
