//! Several data-parallel ranks in one server, and what is told of each.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use rollscope_fpm::{Base, Heard, Subscription, What};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::support::{PATIENCE, Pair, SLOW, Server, bootstrap_port, endless, fresh_room, greedy, live};

const PROMPT: &str = "47+85+19=?\n";

fn short() -> Value {
    json!({"text": PROMPT, "sampling_params": greedy(30)})
}

fn rank_of(reply: &Value) -> u64 {
    reply["meta_info"]["dp_rank"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_to_ranks_in_turn_or_as_asked() {
    let server = Server::start(&["--dp-size", "2", "--enable-forward-pass-metrics"]).await;
    let info = server.get("/server_info").await;
    assert_eq!((&info["dp_size"], info["internal_states"].as_array().unwrap().len()), (&json!(2), 2));
    let mut replies = Vec::new();
    for _ in 0..4 {
        replies.push(server.generate(&short()).await);
    }
    assert_eq!(replies.iter().map(rank_of).collect::<Vec<_>>(), [0, 1, 0, 1]);
    // Each has a prefix cache of its own, which changes no bit.
    assert!(replies.iter().all(|reply| reply["output_ids"] == replies[0]["output_ids"]));
    for name in ["routed_dp_rank", "data_parallel_rank"] {
        for rank in [1, 0, 1] {
            let mut body = short();
            body[name] = json!(rank);
            assert_eq!(rank_of(&server.generate(&body).await), rank);
        }
        let mut body = short();
        body[name] = json!(2);
        let (status, reply) = server.post("/generate", &body).await;
        assert!(
            status == StatusCode::BAD_REQUEST && reply.to_string().contains("must be in 0..2, got 2"),
            "{reply}"
        );
    }
    let all = server.get("/v1/loads").await["loads"].clone();
    assert_eq!(
        (&all[0]["dp_rank"], &all[1]["dp_rank"], all.as_array().unwrap().len()),
        (&json!(0), &json!(1), 2)
    );
    let one = server.get("/v1/loads?dp_rank=1&include=core").await["loads"].clone();
    assert_eq!((&one[0]["dp_rank"], one.as_array().unwrap().len()), (&json!(1), 1));
    let (status, page) = server.text(Method::GET, "/v1/loads?format=prometheus", "").await;
    assert_eq!(status, StatusCode::OK);
    for line in [
        "# TYPE sglang_num_running_reqs gauge\nsglang_num_running_reqs{dp_rank=\"0\"} 0\nsglang_num_running_reqs{dp_rank=\"1\"} 0\n",
        "\nsglang_max_total_num_tokens{dp_rank=\"1\"} 65536\n",
        "\nsglang_queues_waiting{dp_rank=\"1\"} 0\n",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    let (_, page) = server.text(Method::GET, "/metrics", "").await;
    for (rank, requests) in [(0, 4), (1, 6)] {
        let line = page.lines().find(|line| {
            line.contains("num_requests_total{") && line.contains(&format!("dp_rank=\"{rank}\""))
        });
        assert!(line.unwrap().ends_with(&format!(" {requests}")), "{page}");
    }
    assert_eq!(page.matches("# TYPE sglang:num_requests_total counter").count(), 1);
    assert_eq!(server.text(Method::GET, "/health_generate", "").await.0, StatusCode::OK);
    let base: Base =
        info["internal_states"][0]["forward_pass_metrics_ipc_name"].as_str().unwrap().parse().unwrap();
    for rank in 0..2 {
        let (tell, mut heard) = mpsc::channel(64);
        let _subscription = Subscription::start(base.of_rank(rank).unwrap(), (), tell);
        let Heard { what: What::Message(message), .. } = timeout(PATIENCE, async {
            loop {
                let heard = heard.recv().await.unwrap();
                if matches!(heard.what, What::Message(_)) {
                    return heard;
                }
            }
        })
        .await
        .unwrap() else {
            unreachable!()
        };
        assert_eq!(message.metrics.unwrap().dp_rank, rank);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_concerns_the_server_concerns_all_ranks() {
    let server = Server::start(&[&SLOW[..], &["--dp-size", "2"]].concat()).await;
    let body = endless("both");
    let stop = async {
        for rank in 0..2 {
            server.until_rank(rank, "it runs", |load| load["num_running_reqs"] == 1).await;
        }
        let (status, reply) = server.post("/release_memory_occupation", &json!({})).await;
        assert!(status == StatusCode::BAD_REQUEST && reply.to_string().contains("2 requests are"), "{reply}");
        server.post("/abort_request", &json!({"rid": "both"})).await;
    };
    let (ended, ()) = tokio::join!(join_all([server.generate(&body), server.generate(&body)]), stop);
    assert!(ended.iter().all(|reply| reply["meta_info"]["finish_reason"]["type"] == "abort"));
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn halves_of_a_request_meet_at_the_rank_of_its_room() {
    let alone = Server::start(&[]).await;
    let expected = alone.generate(&short()).await;
    let pair = Pair::start_with(&["--dp-size", "3"], &["--dp-size", "2"]).await;
    for _ in 0..6 {
        let body = pair.paired(&short());
        let room = body["bootstrap_room"].as_u64().unwrap();
        let (prefill, decode) = tokio::join!(pair.prefill.generate(&body), pair.decode.generate(&body));
        assert_eq!((rank_of(&prefill), rank_of(&decode)), (room % 3, room % 2));
        assert_eq!(decode["output_ids"], expected["output_ids"]);
    }
    // Or where they are sent.
    let mut prefill_body = pair.paired(&short());
    let room = prefill_body["bootstrap_room"].as_u64().unwrap();
    let mut decode_body = prefill_body.clone();
    prefill_body["routed_dp_rank"] = json!((room + 1) % 3);
    (decode_body["disagg_prefill_dp_rank"], decode_body["routed_dp_rank"]) =
        (json!((room + 1) % 3), json!(1));
    let (prefill, decode) =
        tokio::join!(pair.prefill.generate(&prefill_body), pair.decode.generate(&decode_body));
    assert_eq!((rank_of(&prefill), rank_of(&decode)), ((room + 1) % 3, 1));
    assert_eq!(decode["output_ids"], expected["output_ids"]);
    decode_body["disagg_prefill_dp_rank"] = json!(3);
    // The other half learns of it.
    prefill_body["routed_dp_rank"] = Value::Null;
    let ((status, reply), (_, told)) = tokio::join!(
        pair.decode.post("/generate", &decode_body),
        pair.prefill.post("/generate", &prefill_body)
    );
    assert!(told.to_string().contains("decode server gave the request up: disagg_prefill_dp_rank"), "{told}");
    assert!(
        status == StatusCode::BAD_REQUEST
            && reply.to_string().contains("disagg_prefill_dp_rank must be in 0..3"),
        "{reply}"
    );
    // Two live requests have no room in common, whichever ranks there are.
    let (body, waits) =
        (pair.paired(&short()), |load: &Value| load["disaggregation"]["decode_transfer_queue_reqs"] == 1);
    let second = async {
        let rank = (body["bootstrap_room"].as_u64().unwrap() % 2) as usize;
        pair.decode.until_rank(rank, "it is in transfer", waits).await;
        let (status, reply) = pair.decode.post("/generate", &body).await;
        assert!(status == StatusCode::BAD_REQUEST && reply.to_string().contains("in use"), "{reply}");
        pair.decode.post("/abort_request", &json!({"abort_all": true})).await;
    };
    tokio::join!(pair.decode.post("/generate", &body), second);
    // Nor wherever they are sent.
    let mut bodies = [pair.paired(&short()), Value::Null];
    bodies[1] = bodies[0].clone();
    for (rank, body) in bodies.iter_mut().enumerate() {
        body["routed_dp_rank"] = json!(rank);
    }
    let second = async {
        pair.decode.until("it is in transfer", waits).await;
        let (status, reply) = pair.decode.post("/generate", &bodies[1]).await;
        assert!(status == StatusCode::BAD_REQUEST && reply.to_string().contains("in use"), "{reply}");
        pair.decode.post("/abort_request", &json!({"abort_all": true})).await;
    };
    tokio::join!(pair.decode.post("/generate", &bodies[0]), second);
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn halves_at_different_ranks_are_refused_by_name() {
    let pair = Pair::start_with(&["--dp-size", "3"], &["--max-total-tokens", "64"]).await;
    let misled = |body: &Value| {
        let body = pair.paired(body);
        let room = body["bootstrap_room"].as_u64().unwrap();
        let (asked, found) = ((room + 1) % 3, room % 3);
        let mut prefill = body.clone();
        prefill["routed_dp_rank"] = json!(asked);
        (prefill, body, asked, found)
    };
    for prefill_first in [true, false] {
        let (prefill, decode, asked, found) = misled(&short());
        let (first, second) = if prefill_first {
            let second = async {
                let waits = |load: &Value| load["disaggregation"]["prefill_bootstrap_queue_reqs"] == 1;
                pair.prefill.until_rank(asked as usize, "prefill waits", waits).await;
                pair.decode.post("/generate", &decode).await
            };
            tokio::join!(pair.prefill.post("/generate", &prefill), second)
        } else {
            let second = async {
                let waits = |load: &Value| load["disaggregation"]["decode_transfer_queue_reqs"] == 1;
                pair.decode.until("decode waits", waits).await;
                pair.prefill.post("/generate", &prefill).await
            };
            let (decode, prefill) = tokio::join!(pair.decode.post("/generate", &decode), second);
            (prefill, decode)
        };
        for ((status, reply), expected) in [
            (first, format!("decode server announced bootstrap_room at another data-parallel rank: {found}")),
            (second, format!("bootstrap_room is at another data-parallel rank: {asked}")),
        ] {
            assert_eq!(
                (status, &reply["error"]["message"]),
                (StatusCode::BAD_REQUEST, &json!(expected)),
                "prefill first: {prefill_first}"
            );
        }
    }
    // What decode gives up reaches the request all the same.
    let (prefill, decode, asked, _) =
        misled(&json!({"input_ids": vec![49; 70], "sampling_params": greedy(4)}));
    let refused = async {
        pair.prefill.until_rank(asked as usize, "prefill waits", |load| live(load) == 1).await;
        pair.decode.post("/generate", &decode).await
    };
    let ((status, reply), _) = tokio::join!(pair.prefill.post("/generate", &prefill), refused);
    assert!(
        status == StatusCode::BAD_REQUEST && reply.to_string().contains("decode server gave the request up"),
        "{reply}"
    );
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_one_rank_needs_is_released_by_none_and_all_else_stays() {
    let server = Server::start(&["--dp-size", "2"]).await;
    let weights = json!({"tags": ["weights"]});
    server.post("/release_memory_occupation", &weights).await;
    let bodies = [0, 1].map(|rank| {
        let mut body = short();
        body["routed_dp_rank"] = json!(rank);
        body
    });
    let ask = async {
        server.until_rank(0, "it waits", |load| live(load) == 1).await;
        let (status, reply) = server.post("/release_memory_occupation", &json!({})).await;
        assert!(status == StatusCode::BAD_REQUEST && reply.to_string().contains("1 request is"), "{reply}");
        // The weights are still not there, for either rank.
        let resume = async {
            server.until_rank(1, "it waits", |load| live(load) == 1).await;
            server.post("/resume_memory_occupation", &weights).await;
        };
        tokio::join!(server.generate(&bodies[1]), resume).0
    };
    let (first, second) = tokio::join!(server.generate(&bodies[0]), ask);
    assert_eq!(first["output_ids"], second["output_ids"]);
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bootstrap_server_tells_of_ranks_and_takes_their_addresses() {
    let prefill = Pair::start_prefill(&["--dp-size", "2"]).await;
    let bootstrap = prefill.at(bootstrap_port(&prefill).await);
    let route = |ranks: [i64; 4]| {
        let [dp, cp, tp, pp] = ranks;
        format!("/route?prefill_dp_rank={dp}&prefill_cp_rank={cp}&target_tp_rank={tp}&target_pp_rank={pp}")
    };
    let info = bootstrap.get(&route([-1; 4])).await;
    assert_eq!(
        (&info["dp_size"], &info["follow_bootstrap_room"], &info["page_size"]),
        (&json!(2), &json!(true), &json!(16))
    );
    let first = bootstrap.get(&route([0; 4])).await;
    let second = bootstrap.get(&route([1, 0, 0, 0])).await;
    assert_ne!(first["rank_port"], second["rank_port"]);
    for (path, status) in [
        (route([2, 0, 0, 0]), StatusCode::NOT_FOUND),
        (route([0, 1, 0, 0]), StatusCode::NOT_FOUND),
        ("/route?prefill_dp_rank=0".to_owned(), StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(bootstrap.text(Method::GET, &path, "").await.0, status, "{path}");
    }
    assert_eq!(bootstrap.text(Method::DELETE, "/route", "").await.0, StatusCode::METHOD_NOT_ALLOWED);
    let rank = json!({
        "attn_tp_size": 1, "attn_tp_rank": 0, "attn_dp_size": 2, "attn_dp_rank": 1, "pp_size": 1, "pp_rank": 0,
        "system_dp_size": 2, "system_dp_rank": 1, "rank_ip": "127.0.0.9", "rank_port": 77,
        "page_size": 16, "kv_cache_dtype": "float32", "load_balance_method": "follow_bootstrap_room",
    });
    for (field, value) in [
        ("page_size", json!(8)),
        ("system_dp_rank", json!(2)),
        ("system_dp_size", json!(1)),
        ("attn_tp_size", json!(2)),
        ("rank_port", json!("x")),
    ] {
        let mut wrong = rank.clone();
        wrong[field] = value;
        let (status, why) = bootstrap.put("/route", &wrong).await;
        assert!(status.is_client_error(), "{field}: {status} {why}");
    }
    assert_eq!(bootstrap.put("/route", &rank).await, (StatusCode::OK, "OK".to_owned()));
    assert_eq!(bootstrap.get(&route([1, 0, 0, 0])).await, json!({"rank_ip": "127.0.0.9", "rank_port": 77}));
    assert_eq!(bootstrap.get(&route([0; 4])).await, first);
    assert_eq!(bootstrap.text(Method::GET, "/health", "").await, (StatusCode::OK, "OK".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bootstrap_server_tells_at_which_rank_a_room_is() {
    let prefill = Pair::start_prefill(&["--dp-size", "2"]).await;
    let bootstrap = prefill.at(bootstrap_port(&prefill).await);
    let rooms = [fresh_room(), fresh_room(), fresh_room()];
    let query = json!({"bootstrap_rooms": rooms});
    let post = async |path: &str, body: &Value| {
        let (status, answer) = bootstrap.post_json(path, body).await;
        (status, serde_json::from_str(&answer).unwrap_or(Value::String(answer)))
    };
    assert_eq!(post("/query_dp_ranks", &query).await, (StatusCode::OK, json!({})));
    // One that is where its room says, and one that is where it was sent.
    let mut bodies = [short(), short()];
    for (body, room) in bodies.iter_mut().zip(rooms) {
        body["bootstrap_room"] = json!(room);
    }
    bodies[1]["routed_dp_rank"] = json!(rooms[0] % 2);
    let ask = async {
        let rank = (rooms[0] % 2) as usize;
        prefill.until_rank(rank, "both are there", |load| live(load) == 2).await;
        let expected = json!({rooms[0].to_string(): rank, rooms[1].to_string(): rank});
        assert_eq!(post("/query_dp_ranks", &query).await, (StatusCode::OK, expected));
        prefill.post("/abort_request", &json!({"abort_all": true})).await;
    };
    tokio::join!(prefill.post("/generate", &bodies[0]), prefill.post("/generate", &bodies[1]), ask);
    assert_eq!(post("/query_dp_ranks", &query).await, (StatusCode::OK, json!({})));
    for bad in [json!({}), json!({"bootstrap_rooms": [-1]}), json!({"bootstrap_rooms": 1})] {
        assert!(post("/query_dp_ranks", &bad).await.0.is_client_error(), "{bad}");
    }
    let (status, why) = post("/register_dp_rank", &json!({"bootstrap_room": 1, "dp_rank": 0})).await;
    assert!(
        status == StatusCode::BAD_REQUEST && why.to_string().contains("register_dp_rank is not"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_profile_tells_what_the_schedulers_did() {
    let server = Server::start(&["--dp-size", "2"]).await;
    let dir = tempfile::tempdir().unwrap();
    let output_dir = dir.path().join("profiles");
    let (status, reply) = server.text(Method::POST, "/stop_profile", "").await;
    assert!(status == StatusCode::BAD_REQUEST && reply.contains("not in progress"), "{status} {reply}");
    let mut passes = Vec::new();
    for (steps, expected) in [(Value::Null, 5), (json!(2), 2)] {
        let start = json!({"output_dir": output_dir, "num_steps": steps, "activities": ["CPU"]});
        let started = server.text(Method::POST, "/start_profile", &start.to_string()).await;
        assert_eq!(started, (StatusCode::OK, "Start profiling.\n".to_owned()));
        let (status, reply) = server.text(Method::POST, "/start_profile", "{}").await;
        assert!(status == StatusCode::BAD_REQUEST && reply.contains("in progress"), "{status} {reply}");
        let mut body =
            json!({"input_ids": [50, 51, 52], "sampling_params": {"max_new_tokens": 5, "ignore_eos": true}});
        body["routed_dp_rank"] = json!(1);
        server.generate(&body).await;
        if !steps.is_null() {
            // It ends by itself, though the other rank has made no step.
            let deadline = Instant::now() + PATIENCE;
            let traces = || std::fs::read_dir(&output_dir).unwrap().map(|entry| entry.unwrap().path());
            while traces().filter(|path| path.extension().is_some_and(|kind| kind == "json")).count() < 2 {
                assert!(Instant::now() < deadline, "it never ends");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        let (status, told) = server.text(Method::GET, "/stop_profile", "").await;
        assert_eq!(status, StatusCode::OK, "{told}");
        let path = told.trim_end().trim_end_matches('.').split(" is in ").nth(1).unwrap();
        let trace: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let forward: Vec<_> = events.iter().filter(|event| event["name"] == "forward").collect();
        assert_eq!(forward.len(), expected);
        assert!(forward.iter().all(|event| event["ph"] == "X" && event["tid"] == 1));
        assert_eq!(
            forward[0]["args"],
            json!({"prompt_tokens": 3, "decode_requests": 0, "decode_kv_tokens": 0})
        );
        assert_eq!(
            forward[1]["args"],
            json!({"prompt_tokens": 0, "decode_requests": 1, "decode_kv_tokens": 4})
        );
        for event in events.iter().filter(|event| event["ph"] == "X") {
            assert!(event["ts"].as_f64().unwrap() > 1e15 && event["dur"].as_f64().unwrap() >= 0.0, "{event}");
        }
        let threads = events.iter().filter(|event| event["name"] == "thread_name");
        assert_eq!(
            threads.map(|event| event["args"]["name"].as_str().unwrap()).collect::<Vec<_>>(),
            ["scheduler DP0", "scheduler DP1"]
        );
        passes.push(path.to_owned());
    }
    assert_ne!(passes[0], passes[1]);
    for (body, reason) in [
        (json!({"num_steps": 0}), "num_steps must be at least 1"),
        (json!({"start_step": 5}), "start_step is not supported"),
        (json!({"output_dir": "/proc/nowhere"}), "output_dir: /proc/nowhere"),
    ] {
        let (status, reply) = server.text(Method::POST, "/start_profile", &body.to_string()).await;
        assert!(status == StatusCode::BAD_REQUEST && reply.contains(reason), "{status} {reply}");
    }
}
