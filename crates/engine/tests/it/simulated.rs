//! The simulated backend, and the metrics that every server tells.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use serde_json::json;

use crate::lifecycle::numbers;
use crate::support::{PATIENCE, Pair, SLOW, Server, endless};

/// A cost model's file.
fn costs(dir: &tempfile::TempDir, text: &str) -> String {
    let path = dir.path().join("costs.json");
    std::fs::write(&path, text).unwrap();
    format!("sim:{}", path.display())
}

const FAST: &str = r#"{"prefill": {"base_s": 0, "per_token_s": 0},
    "decode": {"base_s": 0.0001, "per_request_s": 0, "per_kv_token_s": 0}, "context_length": 100000}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_simulated_server_serves_what_none_could_compute() {
    let dir = tempfile::tempdir().unwrap();
    let model = costs(&dir, FAST);
    let server = Server::start(&["--model-path", &model, "--max-total-tokens", "1000000"]).await;
    assert_eq!(server.get("/server_info").await["simulated"], true);
    let body =
        json!({"input_ids": vec![7; 50_000], "sampling_params": {"max_new_tokens": 40, "sampling_seed": 5}});
    let first = server.generate(&body).await;
    let again = server.generate(&body).await;
    assert_eq!(first["output_ids"], again["output_ids"]);
    assert_eq!(first["meta_info"]["finish_reason"], json!({"type": "length", "length": 40}));
    assert!(first["text"].as_str().unwrap().bytes().all(|letter| letter.is_ascii_lowercase()), "{first}");
    assert_eq!(again["meta_info"]["cached_tokens"], 49_984);
    server.until_free().await;

    // Stop tokens end nothing that is to be longer; and what was kept has the token in it.
    let all_but_z: Vec<_> = (b'a'..=b'y').collect();
    let body = json!({
        "text": "1", "return_logprob": true,
        "sampling_params": {
            "max_new_tokens": 60, "min_new_tokens": 30, "stop_token_ids": all_but_z, "sampling_seed": 5,
            "top_p": 0.9, "custom_params": {"return_top_p_token_ids": true},
        },
    });
    let pair = Pair::start(&["--model-path", &model]).await;
    for reply in [server.generate(&body).await, pair.generate(&body).await.1] {
        let ids: Vec<i32> = serde_json::from_value(reply["output_ids"].clone()).unwrap();
        assert!(ids.len() > 30 && ids[..30].iter().all(|id| *id == i32::from(b'z')), "{reply}");
        let meta = &reply["meta_info"];
        assert_eq!(numbers(&meta["top_p_token_ids"]), ids, "{reply}");
        let offsets: Vec<_> = (0..=ids.len() as i32).collect();
        assert_eq!(numbers(&meta["top_p_token_offsets"]), offsets);
        assert!(meta["output_token_logprobs"].as_array().unwrap().iter().all(|entry| entry[0] == 0.0));
    }
    server.until_free().await;

    let (_, decode) = pair
        .generate(&json!({"text": "1", "sampling_params": {"max_new_tokens": 40, "sampling_seed": 5}}))
        .await;
    assert_eq!(decode["meta_info"]["completion_tokens"], 40);
    pair.until_free().await;
    let real = Server::start(&[]).await;
    assert_eq!(real.get("/server_info").await["simulated"], false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_counted_is_what_happened() {
    let server = Server::start(&[]).await;
    let (status, _) = server.text(Method::GET, "/health_generate", "").await;
    assert_eq!(status, StatusCode::OK);
    // No client's request.
    assert_eq!(server.metric("num_requests_total", "").await, "0");
    assert_eq!(server.metric("e2e_request_latency_seconds_count", "").await, "0");
    let health = server.metric("generation_tokens_total", "").await;
    server.generate(&json!({"text": "1+2=?\n", "sampling_params": {"max_new_tokens": 0}})).await;
    assert_eq!(server.metric("generation_tokens_total", "").await, health);
    assert_eq!(server.metric("num_requests_total", "").await, "1");
    assert_eq!(server.metric("realtime_tokens_total", "prefill_cache").await, "0");
    server.until_free().await;

    // From token to token, not when the request ends.
    let slow = Server::start(&SLOW).await;
    let body = endless("long").to_string();
    let ask = slow.text(Method::POST, "/generate", &body);
    let watch = async {
        let deadline = Instant::now() + PATIENCE;
        for name in ["inter_token_latency_seconds_count", "realtime_tokens_total"] {
            while slow.metric(name, if name.starts_with("real") { "decode" } else { "" }).await == "0" {
                assert!(Instant::now() < deadline, "{name} waits for the end");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        assert_ne!(slow.metric("utilization", "").await, "0");
        slow.post("/abort_request", &json!({"rid": "long"})).await;
    };
    tokio::join!(ask, watch);
    slow.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_cost_model_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for (text, reason) in [
        ("{", "malformed cost model"),
        (r#"{"prefill": {"base_s": 0}}"#, "malformed cost model"),
        (&FAST.replace("0.0001", "-1"), "times must be from 0"),
        (&FAST.replace("100000", "1"), "context_length from 2"),
    ] {
        let model = costs(&dir, text);
        let error = Server::try_start(&["--model-path", &model]).await.err().unwrap();
        assert!(error.is_configuration() && error.to_string().contains(reason), "{reason}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_have_the_names_of_the_field() {
    let pair = Pair::start(&[]).await;
    let bodies: Vec<_> = (0..3)
        .map(|index| json!({"text": format!("{index}+2=?\n"), "sampling_params": {"max_new_tokens": 9, "ignore_eos": true}}))
        .collect();
    join_all(bodies.iter().map(|body| pair.generate(body))).await;
    pair.until_free().await;
    for (server, kind, expected) in [
        (
            &pair.prefill,
            "prefill",
            vec![
                "num_prefill_inflight_queue_reqs 0",
                "num_requests_total 3",
                "kv_transfer_latency_ms_count 3",
                "kv_transfer_bootstrap_ms_count 3",
                "kv_transfer_alloc_ms_count 3",
            ],
        ),
        (
            &pair.decode,
            "decode",
            vec![
                "num_decode_transfer_queue_reqs 0",
                "generation_tokens_total 24",
                "num_transfer_failed_reqs_total 0",
                "time_to_first_token_seconds_count 3",
                "inter_token_latency_seconds_count 24",
                "e2e_request_latency_seconds_count 3",
            ],
        ),
    ] {
        let (status, page) = server.text(Method::GET, "/metrics", "").await;
        assert_eq!(status, StatusCode::OK);
        let stages: &[_] = match kind {
            "prefill" => &["prefill_bootstrap", "prefill_forward", "prefill_transfer_kv_cache"],
            _ => &["decode_bootstrap", "decode_transferred", "decode_waiting"],
        };
        for stage in stages {
            let label = format!("stage=\"{stage}\"");
            assert_eq!(server.metric("per_stage_req_latency_seconds_count", &label).await, "3");
        }
        let of_stages =
            page.lines().filter(|line| line.starts_with("sglang:per_stage_req_latency_seconds_count"));
        assert_eq!(of_stages.count(), stages.len());
        for line in expected {
            let (name, value) = line.split_once(' ').unwrap();
            let found = page.lines().find(|line| line.starts_with(&format!("sglang:{name}{{")));
            let found = found.unwrap_or_else(|| panic!("no {name}: {page}"));
            assert!(found.ends_with(&format!("}} {value}")), "{found}, expected {value}");
            assert!(found.contains(&format!("engine_type=\"{kind}\"")), "{found}");
        }
        assert!(
            page.lines().all(|line| line.starts_with("# TYPE sglang:") || line.starts_with("sglang:")),
            "{page}"
        );
    }
}
