//! One server alone: what it tells of itself, and how it is told to stop.

use std::time::Instant;

use futures_util::future::join_all;
use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use rollscope_config::{Options, Published};
use rollscope_engine::{Engine, EngineError, EngineOptions};
use serde_json::{Value, json};

use crate::support::{PATIENCE, SLOW, Server, endless, live, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_tells_what_it_is() {
    let server = Server::start(&["--served-model-name", "adder", "--random-seed", "3"]).await;
    let info = server.get("/server_info").await;
    assert_eq!(info, server.get("/get_server_info").await);
    let state = &info["internal_states"][0];
    assert_eq!(
        (&info["port"], &info["disaggregation_mode"], &info["tp_size"]),
        (&json!(0), &json!("null"), &json!(1))
    );
    assert_eq!(state["port"], server.address.port());
    assert_eq!(
        state["overrides"],
        json!([{"source": "engine.listener", "fields": {"port": server.address.port()}}])
    );
    // What is in force stands under its namespace too.
    assert_eq!(state["namespaces"]["serving"]["port"], server.address.port());
    assert_eq!(state["namespaces"]["observability"]["enable_forward_pass_metrics"], false);
    let memory = &state["memory_usage"];
    assert_eq!((&memory["token_capacity"], &memory["graph"]), (&json!(65_536), &json!(0.0)));
    let gib = |name: &str| memory[name].as_f64().unwrap();
    assert!(gib("weight") > 0.0 && gib("weight") < 0.1 && gib("kvcache") > 0.0, "{memory}");

    let model = server.get("/model_info").await;
    assert_eq!(model, server.get("/get_model_info").await);
    assert_eq!((&model["model_type"], &model["is_generation"]), (&json!("llama"), &json!(true)));
    assert_eq!(server.get("/weight_version").await, json!({"weight_version": "default"}));
    assert_eq!(server.get("/get_weight_version").await, json!({"weight_version": "default"}));
    assert_eq!(server.get("/v1/models").await["data"][0]["id"], "adder");
    for path in ["/health", "/health_generate"] {
        assert_eq!(server.text(Method::GET, path, "").await, (StatusCode::OK, String::new()));
    }
    for (path, status) in [("/nowhere", StatusCode::NOT_FOUND), ("/generate", StatusCode::METHOD_NOT_ALLOWED)]
    {
        let (found, body) = server.text(Method::GET, path, "").await;
        assert!(found == status && body.contains("\"error\""), "{path}: {found} {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_add_up() {
    let limits = ["--max-running-requests", "3", "--num-reserved-decode-tokens", "4096"];
    let server = Server::start(&[&SLOW[..], &limits[..]].concat()).await;
    let bodies: Vec<_> = (0..8).map(|index| endless(&format!("long {index}"))).collect();
    let all = join_all(bodies.iter().map(|body| server.generate(body)));
    let watch = async {
        let load = server.until("all are there", |load| live(load) == 8).await;
        assert_eq!((&load["num_running_reqs"], &load["num_waiting_reqs"]), (&json!(3), &json!(5)));
        let inflight = load["inflight"].as_array().unwrap();
        let names: Vec<_> = inflight.iter().map(|queue| (&queue["name"], &queue["num_reqs"])).collect();
        assert_eq!(names, [(&json!("running"), &json!(3)), (&json!("waiting"), &json!(5))]);
        let first = &inflight[1]["reqs"][0];
        assert_eq!((&first["seqlen"], &first["stage"]), (&json!(7), &json!("waiting")));
        // Which of them run is up to the order in which they came in.
        let mut rids: Vec<_> = inflight
            .iter()
            .flat_map(|queue| queue["reqs"].as_array().unwrap())
            .map(|request| request["rid"].as_str().unwrap().to_owned())
            .collect();
        rids.sort();
        assert_eq!(rids, (0..8).map(|index| format!("long {index}")).collect::<Vec<_>>());
        assert!(first["age_s"].as_f64().unwrap() >= 0.0 && inflight[0]["reqs"][0].get("age_s").is_none());
        // Six of its tokens a prompt, and begin-of-sequence.
        assert_eq!(load["num_waiting_uncached_tokens"], 5 * 7);
        // A running request holds the pages of what is reserved for it: 7 + 4096 tokens in pages of 16.
        assert_eq!(load["num_used_tokens"], 3 * 4112);
        assert_eq!(load["queues"]["waiting"], 5);
        assert_eq!(load["disaggregation"], json!({"mode": "null"}));
        let core = server.get("/v1/loads?include=core").await["loads"][0].clone();
        assert!(core.get("memory").is_none() && core.get("num_running_reqs").is_some(), "{core}");
        assert_eq!(server.get("/v1/loads?dp_rank=1").await["loads"], json!([]));
        for query in ["include=cores", "format=xml", "dp_rank=first"] {
            let (status, _) = server.text(Method::GET, &format!("/v1/loads?{query}"), "").await;
            assert_eq!(status, StatusCode::BAD_REQUEST);
        }
        let (status, body) = server.text(Method::GET, "/flush_cache", "").await;
        assert!(status == StatusCode::BAD_REQUEST && body.contains("8 requests"), "{status} {body}");
        server.post("/abort_request", &json!({"abort_all": true})).await;
        assert_eq!(live(&server.load().await), 0);
    };
    let (replies, ()) = tokio::join!(all, watch);
    let mut told: Vec<_> =
        replies.iter().map(|reply| reply["meta_info"]["finish_reason"].to_string()).collect();
    told.sort();
    let abort = |message: &str| {
        json!({"type": "abort", "message": message, "status_code": null, "err_type": null}).to_string()
    };
    let (waiting, running) = (abort("Abort in waiting queue"), abort("Aborted"));
    assert_eq!(told, [vec![waiting; 5], vec![running; 3]].concat());
    let (status, _) = server.text(Method::POST, "/flush_cache?timeout=5", "").await;
    assert_eq!(status, StatusCode::OK);
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_ends_exactly_those_of_the_name() {
    let server = Server::start(&SLOW).await;
    let bodies = ["one", "one_more", "two", "two"].map(endless);
    let mut batch = endless("batch");
    batch["text"] = json!(["1+2=?\n", "3+4=?\n"]);
    let all = join_all(bodies.iter().chain([&batch]).map(|body| server.generate(body)));
    let abort = async {
        server.until("all run", |load| load["num_running_reqs"] == 6).await;
        let aborts = [
            (json!({"rid": ""}), 6),
            (json!({}), 6),
            (json!({"rid": "on"}), 6),
            (json!({"rid": "one"}), 5),
            (json!({"rid": "two"}), 3),
            (json!({"rid": "batch_1"}), 2),
            (json!({"rid": "batch"}), 1),
            (json!({"rid": "nobody", "abort_all": true}), 0),
        ];
        for (body, left) in aborts {
            let (status, reply) = server.post("/abort_request", &body).await;
            assert_eq!((status, reply), (StatusCode::OK, json!("")), "{body}");
            assert_eq!(live(&server.load().await), left, "{body}");
        }
    };
    let (replies, ()) = tokio::join!(all, abort);
    let reason = json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null});
    for reply in &replies[..4] {
        assert_eq!(reply["meta_info"]["finish_reason"], reason);
        // What was there is kept.
        let tokens = reply["meta_info"]["completion_tokens"].as_u64().unwrap() as usize;
        assert_eq!(reply["output_ids"].as_array().unwrap().len(), tokens);
    }
    assert_eq!(replies[4][1]["meta_info"]["finish_reason"], reason);
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_stream_says_so_in_its_last_event() {
    let server = Server::start(&SLOW).await;
    let body = endless("streamed");
    let abort = async {
        server.until("it runs", |load| load["num_running_reqs"] == 1).await;
        server.post("/abort_request", &json!({"rid": "streamed"})).await;
    };
    let (events, ()) = tokio::join!(server.stream(&body), abort);
    assert_eq!(events.last().unwrap()["meta_info"]["finish_reason"]["type"], "abort");
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_ends_its_request() {
    let server = Server::start(&SLOW).await;
    // Unary: nothing was sent yet.
    let body = endless("gone").to_string();
    tokio::select! {
        _ = server.send(Method::POST, "/generate", &body) => panic!("it ended by itself"),
        _ = server.until("it runs", |load| load["num_running_reqs"] == 1) => {}
    }
    server.until_free().await;
    // Streamed: in the middle of the body.
    let mut body = endless("gone");
    body["stream"] = json!(true);
    let mut response = server.send(Method::POST, "/generate", &body.to_string()).await;
    response.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(live(&server.load().await), 1);
    drop(response);
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_refuses_with_503() {
    let limits = ["--max-running-requests", "1", "--max-queued-requests", "2"];
    let server = Server::start(&[&SLOW[..], &limits[..]].concat()).await;
    let bodies: Vec<_> = (0..3).map(|index| endless(&index.to_string())).collect();
    let fill = join_all(bodies.iter().map(|body| server.post("/generate", body)));
    let refused = async {
        server.until("full", |load| load["num_waiting_reqs"] == 2).await;
        let (status, reply) = server.post("/generate", &endless("too many")).await;
        assert_eq!((status, &reply["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!(503)));
        let events = server.stream(&endless("too many")).await;
        assert_eq!(events[0]["meta_info"]["finish_reason"]["status_code"], 503);
        // Who is asked whether tokens come says so.
        let healthy = server.text(Method::GET, "/health_generate", "").await;
        assert_eq!(healthy, (StatusCode::OK, String::new()));
        server.post("/abort_request", &json!({"abort_all": true})).await;
    };
    tokio::join!(fill, refused);
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_request_is_not_overtaken_by_smaller_ones() {
    let server = Server::start(&[&SLOW[..], &["--max-total-tokens", "4096"]].concat()).await;
    // With 512 tokens reserved for each: there is room for the third beside the first, but the second was there before it.
    let sized = |rid: &str, token: u32, tokens: usize| {
        let sampling = json!({"max_new_tokens": 1000, "ignore_eos": true});
        json!({"rid": rid, "input_ids": vec![token; tokens], "sampling_params": sampling})
    };
    let bodies = [sized("first", 49, 3000), sized("large", 50, 1000), sized("small", 51, 10)];
    let come_to = async |running: u64, waiting: u64| {
        let counts = [("num_running_reqs", running), ("num_waiting_reqs", waiting)];
        let are_so = |load: &Value| counts.iter().all(|(name, count)| load[*name] == *count);
        server.until("as expected", are_so).await
    };
    let watch = async {
        come_to(1, 2).await;
        server.post("/abort_request", &json!({"rid": "first"})).await;
        come_to(2, 0).await;
        server.post("/abort_request", &json!({"abort_all": true})).await;
    };
    // Each comes when the one before is there.
    let large = async {
        come_to(1, 0).await;
        server.generate(&bodies[1]).await
    };
    let small = async {
        come_to(1, 1).await;
        server.generate(&bodies[2]).await
    };
    tokio::join!(server.generate(&bodies[0]), large, small, watch);
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_others_keep_busy_is_healthy() {
    for mode in ["null", "decode"] {
        check_that_a_busy_server_is_healthy(mode).await;
    }
}

async fn check_that_a_busy_server_is_healthy(mode: &str) {
    let one = ["--max-running-requests", "1", "--disaggregation-mode", mode];
    let server = Server::start(&[&SLOW[..], &one[..]].concat()).await;
    let mut body = endless("before it");
    if mode == "decode" {
        body["bootstrap_host"] = json!("2.2.2.2");
    }
    let check = async {
        server.until("it runs", |load| load["num_running_reqs"] == 1).await;
        let healthy = server.text(Method::GET, "/health_generate", "").await;
        assert_eq!(healthy, (StatusCode::OK, String::new()));
        // The check does not stay behind.
        server.until("it is alone", |load| live(load) == 1).await;
        // It is no request that was aborted, and none that failed.
        assert_eq!(server.metric("num_aborted_requests_total", "").await, "0");
        if mode == "decode" {
            assert_eq!(server.metric("num_transfer_failed_reqs_total", "").await, "0");
        }
        server.post("/abort_request", &json!({"abort_all": true})).await;
    };
    tokio::join!(server.generate(&body), check);
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_told_to_stop_lets_requests_end() {
    let mut server = Server::start(&[&SLOW[..], &["--shutdown-timeout", "86400"]].concat()).await;
    let stop = server.stop();
    let body = endless("last");
    let watch = async {
        server.until("it runs", |load| load["num_running_reqs"] == 1).await;
        stop.send(()).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while server.text(Method::GET, "/health", "").await.0 == StatusCode::OK {
            assert!(Instant::now() < deadline, "it goes on");
        }
        let (status, _) = server.post("/generate", &endless("too late")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        // It is still there, and the server with it, until it ends otherwise.
        assert_eq!(server.load().await["num_running_reqs"], 1);
        server.post("/abort_request", &json!({"rid": "last"})).await;
    };
    let (reply, ()) = tokio::join!(server.generate(&body), watch);
    assert_eq!(reply["meta_info"]["finish_reason"]["message"], "Aborted");
    assert_ne!(reply["meta_info"]["completion_tokens"], 0);
    server.ended().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_told_to_stop_waits_only_so_long() {
    let mut server = Server::start(&[&SLOW[..], &["--shutdown-timeout", "0"]].concat()).await;
    let stop = server.stop();
    let body = endless("cut short");
    let watch = async {
        server.until("it runs", |load| load["num_running_reqs"] == 1).await;
        stop.send(()).unwrap();
    };
    let ((status, reply), ()) = tokio::join!(server.post("/generate", &body), watch);
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(reply["error"]["message"].as_str().unwrap().contains("shutting down"), "{reply}");
    server.ended().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_start_says_why() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    let bad = folder.path().to_str().unwrap();
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let prefill = ["--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", &port];
    for (args, is_configuration, reason) in [
        (vec!["--model-path", "/nowhere/to/be/found"], true, "no model directory at /nowhere/to/be/found"),
        (vec!["--model-path", bad], true, "malformed"),
        (vec!["--model-path", "sim:/nowhere.json"], true, "cannot read cost model /nowhere.json"),
        (vec!["--context-length", "4096"], true, "context_length is 4096, the model's limit is 2048"),
        (prefill.to_vec(), false, "cannot listen on 127.0.0.1:"),
    ] {
        let error = Engine::start(Published::publish(options(&args))).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{args:?}: {error}");
        assert_eq!(error.is_configuration(), is_configuration, "{args:?}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    for (args, reason) in
        [(vec!["--model-path", "bundled", "--page-size", "0"], "--page-size"), (vec![], "--model-path")]
    {
        let error = EngineOptions::from_args(args.clone()).unwrap_err();
        assert!(error.to_string().contains(reason), "{args:?}: {error}");
        assert!(EngineError::from(error).is_configuration());
    }
}
