//! A rollout as slime makes it: its calls to the router, with its payloads, and what it reads of the replies.

use http::Method;
use rollscope_testkit::{Client, FakeWorker, Gate, Script};
use serde_json::{Value, json};

use crate::harness::TestGateway;
use crate::pair::waiting;

/// Spaced as Python's `json` does it.
const TEXT: &str = r#"{"input_ids": [1, 2, 3], "sampling_params": {"temperature": 1.0, "top_p": 0.95, "top_k": -1, "max_new_tokens": 8192, "stop": null, "stop_token_ids": [151643], "skip_special_tokens": true, "no_stop_trim": true, "spaces_between_special_tokens": false, "sampling_seed": 42, "custom_params": {"return_top_p_token_ids": true}}, "return_logprob": true, "return_routed_experts": true}"#;
const IMAGE: &str = r#"{"text": "<image>\u6570", "image_data": ["data:image/png;base64,iVBORw0KGgo="], "sampling_params": {"temperature": 0.8, "top_p": 1.0, "repetition_penalty": 1.05, "min_new_tokens": 1}, "return_logprob": true}"#;

/// Of three tokens of a prompt and two of a reply, one layer and one expert a token.
const EXPERTS: [&str; 3] = ["AAAAAAEAAAACAAAA", "AwAAAA==", "AAAAAAEAAAACAAAAAwAAAA=="];

fn reply(ids: &[u32], experts: &str, finish: &Value) -> String {
    let logprobs: Vec<_> = ids.iter().map(|id| json!([-0.25, id, null])).collect();
    json!({
        "text": "",
        "output_ids": ids,
        "meta_info": {
            "id": "x",
            "finish_reason": finish,
            "prompt_tokens": 3,
            "completion_tokens": ids.len(),
            "weight_version": "7",
            "routed_experts": experts,
            "top_p_token_ids": "BwAAAAgAAAA=",
            "top_p_token_offsets": "AAAAAAEAAAACAAAA",
            "output_token_logprobs": logprobs,
        }
    })
    .to_string()
}

async fn call(gateway: &TestGateway, method: Method, path: &str, body: &str) -> (u16, Value) {
    let reply = Client::call(gateway.address, method, path, &[], body).await;
    let status = reply.status.as_u16();
    (status, serde_json::from_str(&reply.text().await).unwrap())
}

/// As its engines make themselves known.
async fn register(gateway: &TestGateway, worker: &FakeWorker, kind: &str) {
    let mut body = json!({ "url": worker.url(), "worker_type": kind });
    if kind == "prefill" {
        body["bootstrap_port"] = json!(8998);
    }
    let (status, told) = call(gateway, Method::POST, "/workers", &body.to_string()).await;
    assert!((200..300).contains(&status), "{told}");
}

/// A gateway as it starts one, and the workers of a fleet.
async fn fleet(is_pair: bool) -> (TestGateway, Vec<(FakeWorker, &'static str)>) {
    let pair = if is_pair { "--pd-disaggregation" } else { "" };
    let args = format!("{pair} --disable-health-check --disable-circuit-breaker --policy consistent_hashing");
    let roles: &[&str] = if is_pair { &["prefill", "decode"] } else { &["regular"] };
    let mut workers = Vec::new();
    for role in roles {
        workers.push((FakeWorker::start().await, *role));
    }
    (TestGateway::start(&args).await, workers)
}

#[tokio::test]
async fn engines_come_generate_and_go() {
    for is_pair in [false, true] {
        let (gateway, workers) = fleet(is_pair).await;
        // It tries again each second on whatever is not 2xx.
        let (status, told) = call(&gateway, Method::POST, "/generate", TEXT).await;
        assert_eq!((status, &told["error"]["code"]), (503, &json!("no_available_workers")));
        let stop = json!({ "type": "stop", "matched": 151_643 });
        for (worker, role) in &workers {
            let experts = match *role {
                "prefill" => EXPERTS[0],
                "decode" => EXPERTS[1],
                _ => EXPERTS[2],
            };
            worker.on("/generate", Script::json(200, &reply(&[7, 8], experts, &stop)));
            register(&gateway, worker, role).await;
        }
        let (_, listed) = call(&gateway, Method::GET, "/workers", "").await;
        let listed = listed["workers"].as_array().unwrap();
        let urls: Vec<_> = listed.iter().map(|worker| worker["url"].clone()).collect();
        assert_eq!(urls, workers.iter().map(|(worker, _)| json!(worker.url())).collect::<Vec<_>>());

        for payload in [TEXT, IMAGE] {
            let headers = [("x-smg-routing-key", "session"), ("content-type", "application/json")];
            let answer = Client::post_with(gateway.address, "/generate", &headers, payload).await;
            assert_eq!(
                (answer.status.as_u16(), answer.header("content-type")),
                (200, Some("application/json"))
            );
            let answer: Value = serde_json::from_str(&answer.text().await).unwrap();
            let expected: Value = serde_json::from_str(&reply(&[7, 8], EXPERTS[2], &stop)).unwrap();
            assert_eq!(answer, expected);
            for (worker, _) in &workers {
                let sent = worker.calls("/generate").pop().unwrap().request.text();
                let own = payload.strip_prefix('{').unwrap();
                assert!(sent.ends_with(own) && sent.starts_with('{'), "{sent}");
                assert_eq!(sent.len() == payload.len(), !is_pair, "{sent}");
            }
        }
        for worker in listed {
            let path = format!("/workers/{}", worker["id"].as_str().unwrap());
            assert_eq!(call(&gateway, Method::DELETE, &path, "").await.0, 200);
        }
        assert_eq!(call(&gateway, Method::GET, "/workers", "").await.1["workers"], json!([]));
        assert_eq!(call(&gateway, Method::POST, "/generate", TEXT).await.0, 503);
        gateway.settled(&[("completed", 2), ("failed", 2)]).await;
    }
}

/// At the end of a rollout the engines themselves are told to abort; what they have by then is kept for the next one.
#[tokio::test]
async fn what_is_aborted_at_the_engines_comes_back_with_its_tokens() {
    for is_pair in [false, true] {
        let (gateway, workers) = fleet(is_pair).await;
        let gate = Gate::new();
        for (worker, role) in &workers {
            let length = json!({ "type": "length", "length": 0 });
            let abort = json!({ "type": "abort", "message": "Abort in waiting queue", "status_code": null });
            let script = match *role {
                "prefill" => Script::json(200, &reply(&[], EXPERTS[0], &length)),
                "decode" => waiting(&gate, &reply(&[7, 8], EXPERTS[1], &abort)),
                _ => waiting(&gate, &reply(&[7, 8], EXPERTS[2], &abort)),
            };
            worker.on("/generate", script);
            worker.on("/abort_request", Script::json(200, ""));
            register(&gateway, worker, role).await;
        }
        let abort = async {
            let (_, listed) = call(&gateway, Method::GET, "/workers", "").await;
            for (worker, _) in &workers {
                worker.arrived("/generate", 1).await;
                assert!(
                    listed["workers"].as_array().unwrap().iter().any(|shown| shown["url"] == worker.url())
                );
                Client::post(worker.address(), "/abort_request", r#"{"abort_all": true}"#).await.text().await;
            }
            gate.open();
        };
        let ((status, answer), ()) = tokio::join!(call(&gateway, Method::POST, "/generate", TEXT), abort);
        assert_eq!((status, &answer["output_ids"]), (200, &json!([7, 8])), "{answer}");
        let meta = &answer["meta_info"];
        assert_eq!((&meta["finish_reason"]["type"], &meta["weight_version"]), (&json!("abort"), &json!("7")));
        assert_eq!(meta["output_token_logprobs"], json!([[-0.25, 7, null], [-0.25, 8, null]]));
        // The gateway itself has told nobody to forget it.
        for (worker, _) in &workers {
            assert_eq!(worker.calls("/abort_request").len(), 1);
        }
        gateway.settled(&[("failed", 1)]).await;
    }
}
