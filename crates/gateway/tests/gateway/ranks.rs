//! Workers that are data-parallel ranks of one server.

use rollscope_testkit::{Client, FakeWorker, Script, patient};
use serde_json::Value;

use crate::harness::TestGateway;

const REPLY: &str = r#"{"text":"x","meta_info":{"finish_reason":{"type":"stop"}}}"#;

async fn server(dp_size: u32) -> FakeWorker {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, REPLY));
    worker.on("/server_info", Script::json(200, &format!(r#"{{"dp_size":{dp_size}}}"#)));
    for path in ["/metrics", "/flush_cache", "/health"] {
        worker.on(path, Script::json(200, ""));
    }
    worker
}

fn bodies(worker: &FakeWorker) -> Vec<Value> {
    let calls = worker.calls("/generate");
    calls.iter().map(|call| serde_json::from_str(&call.request.text()).unwrap()).collect()
}

/// Waits until a request is served; gives nothing.
async fn served(gateway: &TestGateway, body: &str) {
    patient("a request that is served", async { while gateway.generate(body).await.status != 200 {} }).await;
}

#[tokio::test]
async fn each_rank_has_its_load_and_is_named_to_the_worker() {
    let worker = server(2).await;
    let url = worker.url();
    let gateway = TestGateway::start(&format!("--worker-urls {url}@0 {url}@1")).await;
    for _ in 0..2 {
        assert_eq!(gateway.generate(r#"{"text":"a","x":1.0}"#).await.text().await, REPLY);
    }
    let mut sent: Vec<_> = worker.calls("/generate").iter().map(|call| call.request.text()).collect();
    sent.sort();
    assert_eq!(
        sent,
        [0, 1].map(|rank| format!(
            r#"{{"routed_dp_rank":{rank},"data_parallel_rank":{rank},"text":"a","x":1.0}}"#
        ))
    );
    let figures = gateway.settled(&[("completed", 2)]).await;
    for rank in 0..2 {
        let labels = format!("worker=\"{url}@{rank}\",role=\"regular\"");
        assert_eq!(figures[&format!("rollscope_legs_started_total{{{labels}}}")], 1);
    }
    let reply = Client::post(gateway.address, "/flush_cache", "").await.text().await;
    assert_eq!(reply.matches("worker").count(), 1, "a server is asked once: {reply}");
    Client::get(gateway.address, "/engine_metrics").await.text().await;
    assert_eq!(worker.calls("/metrics").len(), 1);

    // A client's own choice is kept to, and one that cannot be is refused.
    served(&gateway, r#"{"text":"a","data_parallel_rank":1}"#).await;
    let last = bodies(&worker).pop().unwrap();
    assert_eq!((&last["routed_dp_rank"], &last["data_parallel_rank"]), (&1.into(), &1.into()));
    let refused = gateway.generate(r#"{"routed_dp_rank":2}"#).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().await.contains("data-parallel rank"));
    for odd in ["-1", "\"1\"", "[0,1]", "0.5", "true"] {
        for field in ["routed_dp_rank", "data_parallel_rank"] {
            let refused = gateway.generate(&format!(r#"{{"text":"a","{field}":{odd}}}"#)).await;
            assert_eq!(refused.status, 400, "{field} {odd}");
            assert!(refused.text().await.contains(field), "{field} {odd}");
        }
    }
    // Where no rank is written the worker is to judge.
    let gateway = TestGateway::regular(&[&worker]).await;
    let body = r#"{"text":"a","routed_dp_rank":"1"}"#;
    assert_eq!(gateway.generate(body).await.status, 200);
    assert_eq!(worker.calls("/generate").pop().unwrap().request.text(), body);
}

#[tokio::test]
async fn a_rank_that_is_none_is_not_replaced_by_the_one_beside_it() {
    let (prefill, decode) = (server(4).await, server(4).await);
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    // What the servers say of their ranks is known.
    let known = r#"{"text":"a","data_parallel_rank":3}"#;
    patient("a rank that is written", async {
        loop {
            let is_written = |body: Value| body["disagg_prefill_dp_rank"] == 3;
            if gateway.generate(known).await.status == 200 && bodies(&decode).pop().is_some_and(is_written) {
                return;
            }
        }
    })
    .await;
    let served = bodies(&prefill).len();
    for (odd, body) in [
        ("routed_dp_rank", r#"{"text":"a","routed_dp_rank":"x","data_parallel_rank":3}"#),
        ("data_parallel_rank", r#"{"text":"a","routed_dp_rank":3,"data_parallel_rank":-1}"#),
    ] {
        let refused = gateway.generate(body).await;
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.text().await.contains(odd), "{body}");
    }
    assert_eq!(bodies(&prefill).len(), served);
    // Where no rank is written the workers are to judge.
    assert_eq!(gateway.generate(r#"{"text":"a","routed_dp_rank":"x"}"#).await.status, 200);
    assert_eq!(bodies(&prefill).pop().unwrap()["routed_dp_rank"], "x");
}

#[tokio::test]
async fn a_server_stands_for_its_ranks_when_they_are_asked_for() {
    let worker = server(3).await;
    for more in ["", "--health-check-interval-secs 1"] {
        // One that is starting has yet to say who it is.
        let info = r#"{"dp_size":3}"#;
        worker.on_next("/server_info", [Script::json(503, "starting"), Script::json(200, info)]);
        let gateway = TestGateway::start(&format!("--worker-urls {} --dp-aware {more}", worker.url())).await;
        patient("a worker for each rank", async {
            loop {
                let listed = Client::get(gateway.address, "/list_workers").await.text().await;
                let urls: Value = serde_json::from_str(&listed).unwrap();
                let expected: Vec<String> = (0..3).map(|rank| format!("{}@{rank}", worker.url())).collect();
                if urls["urls"] == serde_json::json!(expected) {
                    return;
                }
            }
        })
        .await;
        served(&gateway, "{}").await;
        assert!(bodies(&worker).pop().unwrap()["routed_dp_rank"].is_u64());
        // By its URL it goes as it came.
        let remove = format!("/remove_worker?url={}", worker.url());
        assert_eq!(Client::post(gateway.address, &remove, "").await.status, 200);
        let listed = Client::get(gateway.address, "/list_workers").await.text().await;
        assert_eq!(listed, r#"{"urls":[]}"#);
        assert_eq!(Client::post(gateway.address, &remove, "").await.status, 404);
    }
}

#[tokio::test]
async fn a_room_leads_to_the_prefill_rank_that_was_chosen() {
    let (prefill, decode) = (server(4).await, server(2).await);
    let args = format!(
        "--pd-disaggregation --prefill {}@3 8998 --decode {}@0 --decode {}@1",
        prefill.url(),
        decode.url(),
        decode.url()
    );
    let gateway = TestGateway::start(&args).await;
    for _ in 0..4 {
        served(&gateway, r#"{"text":"a"}"#).await;
    }
    let (sent, received) = (bodies(&prefill), bodies(&decode));
    assert_eq!((sent.len(), received.len()), (4, 4));
    for body in &sent {
        assert_eq!(body["bootstrap_room"].as_u64().unwrap() % 4, 3);
        assert_eq!((&body["routed_dp_rank"], body.get("disagg_prefill_dp_rank")), (&3.into(), None));
    }
    for body in &received {
        assert_eq!(body["bootstrap_room"].as_u64().unwrap() % 4, 3);
        assert_eq!(body["disagg_prefill_dp_rank"], 3);
    }
    let mut ranks: Vec<_> = received.iter().map(|body| body["routed_dp_rank"].as_u64().unwrap()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 0, 1, 1]);
}
