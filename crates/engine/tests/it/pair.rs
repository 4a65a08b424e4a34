//! Prefill and decode servers together, as a router uses them.

use std::time::Instant;

use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::support::{PATIENCE, Pair, SLOW, Server, bootstrap_port, endless, fresh_room, greedy, live};

const PROMPT: &str = "47+85+19=?\n";

fn long(text: &str) -> Value {
    json!({"text": text, "sampling_params": {"max_new_tokens": 2000, "ignore_eos": true}})
}

fn seconds(meta: &Value, name: &str) -> f64 {
    let value = meta[name].as_f64().unwrap_or_else(|| panic!("no {name} in {meta}"));
    assert!(value >= 0.0, "{name} in {meta}");
    value
}

/// Whether a queue of this name has a request of that one.
fn is_in(queue: &str, rid: &str, load: &Value) -> bool {
    let queues = load["inflight"].as_array().unwrap();
    let queue = queues.iter().find(|listed| listed["name"] == queue).unwrap();
    queue["reqs"].as_array().unwrap().iter().any(|request| request["rid"] == rid)
}

/// The port of a listener that says so much to each who connects, and hangs up.
async fn answering(words: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(words).await.ok();
        }
    });
    port
}

/// All ten stages are there, and are where they belong.
fn check_stages(prefill: &Value, decode: &Value) {
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b} in {prefill} {decode}");
    let queue = seconds(prefill, "pd_prefill_bootstrap_queue_duration");
    let bootstrap = seconds(prefill, "pd_prefill_bootstrap_duration");
    close(queue, bootstrap + seconds(prefill, "pd_prefill_alloc_wait_duration"));
    let forward = seconds(prefill, "pd_prefill_forward_duration");
    assert!(seconds(prefill, "pd_prefill_transfer_queue_duration") <= forward, "{prefill}");
    assert!(queue + seconds(prefill, "queue_time") + forward <= seconds(prefill, "e2e_latency"), "{prefill}");
    assert!(seconds(prefill, "pd_transfer_total_mb") > 0.0);
    assert!(seconds(prefill, "pd_transfer_speed_gb_s") > 0.0);
    assert_eq!(prefill["pd_prefill_retry_count"], 0);
    assert_eq!(prefill["finish_reason"], json!({"type": "length", "length": 0}));

    let prealloc = seconds(decode, "pd_decode_prealloc_duration");
    let bootstrap = seconds(decode, "pd_decode_bootstrap_duration");
    close(prealloc, bootstrap + seconds(decode, "pd_decode_alloc_wait_duration"));
    let transfer = seconds(decode, "pd_decode_transfer_duration");
    let forward = seconds(decode, "pd_decode_forward_duration");
    let whole = prealloc + transfer + seconds(decode, "queue_time") + forward;
    assert!(whole <= seconds(decode, "e2e_latency"), "{decode}");
    let foreign = |meta: &Value, prefix| meta.as_object().unwrap().keys().any(|key| key.starts_with(prefix));
    assert!(!foreign(prefill, "pd_decode_") && !foreign(decode, "pd_prefill_"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pair_says_what_one_server_says() {
    let alone = Server::start(&[]).await;
    // Small chunks and pages, so that a prompt is sent in many pieces.
    let pair = Pair::start(&["--chunked-prefill-size", "24", "--page-size", "8"]).await;
    for (prompt, sampling) in [
        (json!({"text": PROMPT}), greedy(64)),
        (json!({"text": "1"}), greedy(1)),
        (json!({"text": "12+7=?\n"}), json!({"max_new_tokens": 60, "sampling_seed": 9, "temperature": 1.3})),
        (
            json!({"input_ids": (0..333).map(|place| place * 31 % 256).collect::<Vec<_>>()}),
            json!({"max_new_tokens": 30, "sampling_seed": 1, "top_p": 0.8, "top_k": 40, "ignore_eos": true}),
        ),
        (json!({"text": PROMPT}), json!({"temperature": 0, "stop": "132"})),
        (json!({"text": PROMPT}), json!({"temperature": 0, "stop_token_ids": [52]})),
        (json!({"text": PROMPT}), json!({"temperature": 0, "max_new_tokens": 0})),
        (json!({"text": PROMPT}), json!({"temperature": 0, "min_new_tokens": 40, "max_new_tokens": 41})),
    ] {
        let mut body = prompt;
        body["sampling_params"] = sampling;
        body["return_logprob"] = json!(true);
        body["logprob_start_len"] = json!(0);
        body["top_logprobs_num"] = json!(2);
        let expected = alone.generate(&body).await;
        let (prefill, decode) = pair.generate(&body).await;
        assert_eq!(
            (&decode["text"], &decode["output_ids"]),
            (&expected["text"], &expected["output_ids"]),
            "{body}"
        );
        let (expected, prefill, decode) =
            (&expected["meta_info"], &prefill["meta_info"], &decode["meta_info"]);
        for name in ["output_token_logprobs", "output_top_logprobs", "finish_reason", "completion_tokens"] {
            assert_eq!(decode[name], expected[name], "{name} of {body}");
        }
        // The prompt's side is the prefill server's to tell: a router puts it before the decode server's, which is empty.
        assert_eq!(prefill["input_token_logprobs"], expected["input_token_logprobs"]);
        assert_eq!(prefill["input_top_logprobs"], expected["input_top_logprobs"]);
        assert_eq!(decode["input_token_logprobs"], json!([]));
        check_stages(prefill, decode);
    }
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_and_streams_report_all_stages() {
    // So few slots and pages that requests wait for both.
    let pair = Pair::start_with(
        &["--max-running-requests", "2"],
        &["--max-running-requests", "3", "--max-total-tokens", "256"],
    )
    .await;
    let texts: Vec<_> = (1..13).map(|term| format!("{term}+{term}=?\n")).collect();
    let body = pair.paired(&json!({"text": texts, "sampling_params": greedy(20)}));
    let (prefill, decode) = tokio::join!(pair.prefill.generate(&body), pair.decode.generate(&body));
    for (index, (prefill, decode)) in
        prefill.as_array().unwrap().iter().zip(decode.as_array().unwrap()).enumerate()
    {
        let sum = 2 * (index + 1);
        assert!(decode["text"].as_str().unwrap().ends_with(&format!("#{sum}")), "{decode}");
        check_stages(&prefill["meta_info"], &decode["meta_info"]);
    }
    let body = pair.paired(&json!({"text": texts, "sampling_params": greedy(20)}));
    let (prefill, decode) = tokio::join!(pair.prefill.stream(&body), pair.decode.stream(&body));
    for index in 0..texts.len() {
        let last = |events: &[Value]| {
            events.iter().rfind(|event| event["index"] == index).unwrap()["meta_info"].clone()
        };
        check_stages(&last(&prefill), &last(&decode));
    }
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_at_once_come_out_as_alone() {
    let alone = Server::start(&[]).await;
    let pair = Pair::start(&["--max-running-requests", "16", "--chunked-prefill-size", "64"]).await;
    let body = |index: usize| {
        let ids: Vec<_> = (0..=index * 29 % 200).map(|place| (place * 5 + index * 17) % 256).collect();
        let sampling = json!({"max_new_tokens": 1 + index % 40, "ignore_eos": true, "sampling_seed": index});
        json!({"input_ids": ids, "sampling_params": sampling, "return_logprob": true})
    };
    let bodies: Vec<_> = (0..48).map(body).collect();
    let expected = join_all(bodies.iter().map(|body| alone.generate(body))).await;
    let found = join_all(bodies.iter().map(|body| pair.generate(body))).await;
    for (expected, (prefill, decode)) in expected.iter().zip(&found) {
        assert_eq!(decode["output_ids"], expected["output_ids"]);
        let name = "output_token_logprobs";
        assert_eq!(decode["meta_info"][name], expected["meta_info"][name]);
        check_stages(&prefill["meta_info"], &decode["meta_info"]);
    }
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn either_half_may_come_first() {
    let pair = Pair::start(&[]).await;
    let ask = json!({"text": PROMPT, "sampling_params": greedy(8)});
    let body = pair.paired(&ask);
    let decode_later = async {
        let load = pair.prefill.until("prefill waits", |load| live(load) == 1).await;
        assert_eq!(load["disaggregation"]["prefill_bootstrap_queue_reqs"], 1);
        pair.decode.generate(&body).await
    };
    let (prefill, decode) = tokio::join!(pair.prefill.generate(&body), decode_later);
    check_stages(&prefill["meta_info"], &decode["meta_info"]);

    let body = pair.paired(&ask);
    let prefill_later = async {
        let is_told = |load: &Value| load["disaggregation"]["decode_transfer_queue_reqs"] == 1;
        pair.decode.until("decode waits", is_told).await;
        pair.prefill.generate(&body).await
    };
    let (decode, prefill) = tokio::join!(pair.decode.generate(&body), prefill_later);
    check_stages(&prefill["meta_info"], &decode["meta_info"]);
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_its_half_of_a_pair_is_refused() {
    let pair = Pair::start(&[]).await;
    let with = |name: &str, value: Value| {
        let mut body = pair.paired(&json!({"text": PROMPT}));
        body[name] = value;
        body
    };
    let neither = json!({"text": PROMPT});
    let cases = [
        (&pair.prefill, neither.clone(), "bootstrap_room"),
        (&pair.decode, neither, "bootstrap_room"),
        (&pair.decode, with("bootstrap_host", Value::Null), "bootstrap_host"),
        (&pair.prefill, with("bootstrap_room", json!(0)), "bootstrap_room must be"),
        (&pair.decode, with("bootstrap_room", json!(1_u64 << 63)), "bootstrap_room must be"),
        (&pair.decode, with("bootstrap_room", json!(-4)), "bootstrap_room"),
        (&pair.decode, with("bootstrap_room", json!([1, 2])), "bootstrap_room has 2 entries"),
        (&pair.decode, with("bootstrap_port", json!(70_000)), "bootstrap_port"),
        (&pair.decode, with("bootstrap_host", json!("a b")), "bootstrap_host must be"),
        (&pair.decode, with("bootstrap_host", json!("a".repeat(5000))), "bootstrap_host must be"),
        (&pair.decode, with("sampling_params", json!({"n": 0})), "n must be"),
    ];
    for (server, body, reason) in cases {
        let (status, reply) = server.post("/generate", &body).await;
        let message = reply["error"]["message"].as_str().unwrap_or_default();
        assert!(status == StatusCode::BAD_REQUEST && message.contains(reason), "{body}: {status} {reply}");
    }
    // The largest room, and rooms that count up from one.
    let (prefill, decode) = {
        let body = with("bootstrap_room", json!(i64::MAX));
        tokio::join!(pair.prefill.generate(&body), pair.decode.generate(&body))
    };
    check_stages(&prefill["meta_info"], &decode["meta_info"]);
    let mut body =
        json!({"text": ["1+2=?\n", "3+4=?\n"], "sampling_params": greedy(20), "bootstrap_room": 1_u64 << 40});
    (body["bootstrap_host"], body["bootstrap_port"]) = (json!("127.0.0.1"), json!(pair.bootstrap_port));
    let (_, decode) = tokio::join!(pair.prefill.generate(&body), pair.decode.generate(&body));
    assert_eq!(decode[1]["text"], "3+4=7\n#7");
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_room_has_one_live_request() {
    let pair = Pair::start(&[]).await;
    let body = pair.paired(&json!({"text": PROMPT, "sampling_params": greedy(64)}));
    for (first, second) in [(&pair.prefill, &pair.decode), (&pair.decode, &pair.prefill)] {
        let collide = async {
            first.until("the first is there", |load| live(load) == 1).await;
            let (status, reply) = first.post("/generate", &body).await;
            let message = reply["error"]["message"].as_str().unwrap();
            assert!(status == StatusCode::BAD_REQUEST && message.contains("in use"), "{status} {reply}");
            let events = first.stream(&body).await;
            assert_eq!(events[0]["meta_info"]["finish_reason"]["status_code"], 400);
            // The first one is none the worse, and the room is free when it has ended.
            second.generate(&body).await
        };
        tokio::join!(first.generate(&body), collide);
    }
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_of_one_half_ends_the_other() {
    let pair = Pair::start(&[]).await;
    let abort = json!({"rid": "this one"});
    // Before the other has come: it fails when it comes.
    let halves = [(&pair.prefill, &pair.decode, "prefill"), (&pair.decode, &pair.prefill, "decode")];
    for (aborted, other, name) in halves {
        let mut body = pair.paired(&long(PROMPT));
        body["rid"] = json!("this one");
        let end = async {
            aborted
                .until("it waits for the other", |load| {
                    let part = &load["disaggregation"];
                    part["prefill_bootstrap_queue_reqs"] == 1 || part["decode_transfer_queue_reqs"] == 1
                })
                .await;
            aborted.post("/abort_request", &abort).await;
        };
        let ((status, reply), ()) = tokio::join!(aborted.post("/generate", &body), end);
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{reply}");
        let (status, reply) = other.post("/generate", &body).await;
        let message = reply["error"]["message"].as_str().unwrap();
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(
            message.contains(&format!("{name} server gave the request up: Aborted by AbortReq.")),
            "{reply}"
        );
    }
    pair.until_free().await;
    // When the transfer is over, the decode half is on its own.
    let pair = Pair::start(&SLOW).await;
    let body = pair.paired(&endless("this one"));
    let end = async {
        pair.decode.until("it runs", |load| load["num_running_reqs"] == 1).await;
        pair.decode.post("/abort_request", &abort).await;
    };
    let (prefill, decode, ()) = tokio::join!(pair.prefill.generate(&body), pair.decode.generate(&body), end);
    assert_eq!(prefill["meta_info"]["finish_reason"]["type"], "length");
    assert_eq!(decode["meta_info"]["finish_reason"]["type"], "abort");
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_room_that_one_half_was_given_up_of_ends_both_halves_at_once_until_it_is_forgotten() {
    let pair = Pair::start(&[]).await;
    let (body, abort) = (pair.paired(&long(PROMPT)), json!({"abort_all": true}));
    let waits = |load: &Value| load["disaggregation"]["decode_transfer_queue_reqs"] == 1;
    let alone = async |pair: &Pair, body: &Value| {
        let end = async {
            pair.decode.until("it waits for prefill", waits).await;
            pair.decode.post("/abort_request", &abort).await;
        };
        tokio::join!(pair.decode.post("/generate", body), end);
        // What comes after it on the connection has come.
        pair.generate(&json!({"text": PROMPT, "sampling_params": greedy(4)})).await;
    };
    alone(&pair, &body).await;
    let told = "decode server gave the request up: Aborted by AbortReq.";
    for (first, second) in [(&pair.prefill, &pair.decode), (&pair.decode, &pair.prefill)] {
        for server in [first, second] {
            let (status, reply) = server.post("/generate", &body).await;
            assert_eq!(
                (status, &reply["error"]["message"]),
                (StatusCode::INTERNAL_SERVER_ERROR, &json!(told))
            );
        }
    }
    pair.until_free().await;

    // However often it is tried meanwhile. Halves between which it is forgotten end by their limits.
    let limits = [["--disaggregation-bootstrap-timeout", "3"], ["--disaggregation-waiting-timeout", "3"]];
    let pair = Pair::start_with(&limits[0], &limits[1]).await;
    let mut body = pair.paired(&long(PROMPT));
    alone(&pair, &body).await;
    body["sampling_params"] = greedy(4);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (prefill, decode) =
            tokio::join!(pair.prefill.post("/generate", &body), pair.decode.post("/generate", &body));
        if (prefill.0, decode.0) == (StatusCode::OK, StatusCode::OK) {
            break check_stages(&prefill.1["meta_info"], &decode.1["meta_info"]);
        }
        assert!(Instant::now() < deadline, "the room is never free: {} {}", prefill.1, decode.1);
    }
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_one_half_ends_the_other() {
    let small = ["--max-total-tokens", "64"];
    let body = json!({"input_ids": vec![49; 70], "sampling_params": greedy(4)});
    for (prefill, decode, refuses) in [(&small[..], &[][..], "prefill"), (&[][..], &small[..], "decode")] {
        let pair = Pair::start_with(prefill, decode).await;
        let (refusing, other) = match refuses {
            "prefill" => (&pair.prefill, &pair.decode),
            _ => (&pair.decode, &pair.prefill),
        };
        for refused_first in [true, false] {
            let body = pair.paired(&body);
            let waits = |load: &Value| {
                let part = &load["disaggregation"];
                part["prefill_bootstrap_queue_reqs"] == 1 || part["decode_transfer_queue_reqs"] == 1
            };
            let ((status, reply), (other_status, other_reply)) = if refused_first {
                (refusing.post("/generate", &body).await, other.post("/generate", &body).await)
            } else {
                let refuse = async {
                    other.until("it waits for the other", waits).await;
                    refusing.post("/generate", &body).await
                };
                tokio::join!(refuse, other.post("/generate", &body))
            };
            assert_eq!(status, StatusCode::BAD_REQUEST, "{reply}");
            assert_eq!(other_status, StatusCode::BAD_REQUEST, "{other_reply}");
            let expected = format!("{refuses} server gave the request up: The request needs");
            let message = other_reply["error"]["message"].as_str().unwrap();
            assert!(message.contains(&expected), "{message}");
        }
        pair.until_free().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_from_one_half_ends_the_other() {
    let pair = Pair::start(&[]).await;
    for (left, other) in [(&pair.decode, &pair.prefill), (&pair.prefill, &pair.decode)] {
        let body = pair.paired(&long(PROMPT)).to_string();
        let waits = |load: &Value| {
            let part = &load["disaggregation"];
            part["prefill_bootstrap_queue_reqs"] == 1 || part["decode_transfer_queue_reqs"] == 1
        };
        tokio::select! {
            _ = left.send(Method::POST, "/generate", &body) => panic!("it ended by itself"),
            _ = left.until("it waits for the other", waits) => {}
        }
        left.until_free().await;
        let (status, reply) = other.text(Method::POST, "/generate", &body).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(reply.contains("server gave the request up"), "{reply}");
        pair.until_free().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_prefill_server_fails_its_rooms_and_is_found_again() {
    let Pair { prefill, decode, bootstrap_port: port } = Pair::start(&SLOW).await;
    let paired = |mut body: Value| {
        (body["bootstrap_host"], body["bootstrap_port"]) = (json!("127.0.0.1"), json!(port));
        body["bootstrap_room"] = json!(fresh_room());
        body
    };
    let (transferred, waiting) = (paired(endless("transferred")), paired(endless("waiting")));
    let kill = async {
        prefill.generate(&transferred).await;
        decode
            .until("one runs and one waits", |load| {
                load["num_running_reqs"] == 1 && load["disaggregation"]["decode_transfer_queue_reqs"] == 1
            })
            .await;
        prefill.kill().await;
        // What was transferred goes on, what was not fails with a reason.
        decode.until("one is left", |load| live(load) == 1).await;
        assert_eq!(decode.load().await["num_running_reqs"], 1);
        decode.post("/abort_request", &json!({"rid": "transferred"})).await;
    };
    let (first, (status, reply), ()) =
        tokio::join!(decode.generate(&transferred), decode.post("/generate", &waiting), kill);
    assert_eq!(first["meta_info"]["finish_reason"]["message"], "Aborted");
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(reply["error"]["message"].as_str().unwrap().contains("connection to prefill server"), "{reply}");
    decode.until_free().await;

    // A new server at the old address.
    let deadline = Instant::now() + PATIENCE;
    let prefill = loop {
        let port = port.to_string();
        let args = ["--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", &port];
        match Server::try_start(&[&SLOW[..], &args[..]].concat()).await {
            Ok(server) => break server,
            Err(error) => assert!(Instant::now() < deadline, "the port is never free: {error}"),
        }
    };
    assert_eq!(bootstrap_port(&prefill).await, port);
    let body = paired(json!({"text": PROMPT, "sampling_params": greedy(4)}));
    let (prefill_reply, decode_reply) = tokio::join!(prefill.generate(&body), decode.generate(&body));
    check_stages(&prefill_reply["meta_info"], &decode_reply["meta_info"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_do_not_fit_refuse_each_other_by_name() {
    let pair = Pair::start_with(&["--page-size", "16"], &["--page-size", "32"]).await;
    let body = pair.paired(&json!({"text": PROMPT}));
    let (status, reply) = pair.decode.post("/generate", &body).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(message.contains("page size differs: prefill 16, decode 32"), "{message}");
    pair.decode.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_waits_for_ever() {
    let bootstrap = ["--disaggregation-bootstrap-timeout", "0.2"];
    let pair = Pair::start_with(&bootstrap, &["--disaggregation-waiting-timeout", "0.2"]).await;
    let alone = Server::start(&[&["--disaggregation-mode", "decode"], &bootstrap[..]].concat()).await;
    let mut nobody = pair.paired(&long(PROMPT));
    nobody["bootstrap_port"] = json!(1);
    // Takes connections, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut never = pair.paired(&long(PROMPT));
    never["bootstrap_port"] = json!(silent.local_addr().unwrap().port());
    // One that hangs up, and one that is something else.
    let [mut hangs_up, mut strange] = [long(PROMPT), long(PROMPT)].map(|body| pair.paired(&body));
    hangs_up["bootstrap_port"] = json!(answering(b"").await);
    strange["bootstrap_port"] = json!(answering(b"220 mail.example ESMTP\r\n").await);
    for (server, body, state) in [
        (&pair.prefill, pair.paired(&long(PROMPT)), "Bootstrapping"),
        (&pair.decode, pair.paired(&long(PROMPT)), "WaitingForInput"),
        (&alone, nobody, "Bootstrapping"),
        (&alone, never, "Bootstrapping"),
        (&alone, hangs_up, "Bootstrapping"),
        (&alone, strange, "Bootstrapping"),
    ] {
        let (status, reply) = server.post("/generate", &body).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        let expected = format!("Request {} timed out after 0.2s in KVPoll.{state}", body["bootstrap_room"]);
        assert_eq!(reply["error"]["message"], expected);
        server.until_free().await;
    }
    for (server, bootstrap, transfer) in
        [(&pair.prefill, "1", "0"), (&pair.decode, "0", "1"), (&alone, "4", "0")]
    {
        assert_eq!(server.metric("num_bootstrap_failed_reqs_total", "").await, bootstrap);
        assert_eq!(server.metric("num_transfer_failed_reqs_total", "").await, transfer);
        assert_eq!(server.metric("kv_transfer_timeouts_total", "stage=\"bootstrap\"").await, bootstrap);
        assert_eq!(server.metric("kv_transfer_timeouts_total", "stage=\"transfer\"").await, transfer);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_finds_a_request_in_whichever_queue_of_decode() {
    let one = [&SLOW[..], &["--max-running-requests", "1"]].concat();
    let pair = Pair::start_with(&SLOW, &one).await;
    let bodies = ["running", "waiting", "transfer", "prealloc"].map(|rid| pair.paired(&endless(rid)));
    let [running, waiting, transfer, mut prealloc] = bodies;
    prealloc["bootstrap_port"] = json!(1);
    let abort = async {
        pair.decode.until("it runs", |load| is_in("running", "running", load)).await;
        // The others have come to where they stay; who runs is to give its pages back first.
        let stay = async |queue: &str| pair.decode.until(queue, |load| is_in(queue, queue, load)).await;
        let told = async {
            tokio::join!(stay("waiting"), stay("transfer"), stay("prealloc"));
            pair.decode.post("/pause_generation", &json!({"mode": "retract"})).await;
            let load = pair.decode.load().await;
            assert!(is_in("retracted", "running", &load), "{load}");
            for (rid, left) in [("prealloc", 3), ("transfer", 2), ("waiting", 1), ("running", 0)] {
                pair.decode.post("/abort_request", &json!({"rid": rid})).await;
                assert_eq!(live(&pair.decode.load().await), left, "{rid}");
            }
        };
        let others = async {
            tokio::join!(
                pair.prefill.generate(&waiting),
                pair.decode.post("/generate", &waiting),
                pair.decode.post("/generate", &transfer),
                pair.decode.post("/generate", &prealloc),
            )
        };
        tokio::join!(others, told).0
    };
    let (_, of_running, (_, of_waiting, of_transfer, of_prealloc)) =
        tokio::join!(pair.prefill.generate(&running), pair.decode.post("/generate", &running), abort);
    // The first one has been retracted, and waits as well.
    let (aborted, waiting) = (json!("Aborted by AbortReq."), json!("Abort in waiting queue"));
    for (status, reply) in [of_running, of_waiting] {
        assert_eq!((status, &reply["meta_info"]["finish_reason"]["message"]), (StatusCode::OK, &waiting));
    }
    for (status, reply) in [of_transfer, of_prealloc] {
        assert_eq!((status, &reply["error"]["message"]), (StatusCode::INTERNAL_SERVER_ERROR, &aborted));
    }
    pair.decode.post("/continue_generation", &json!({})).await;
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_finds_a_request_in_whichever_queue_of_prefill() {
    // A prompt takes more than a minute in more than two hundred chunks, and there are pages for one.
    let costs = r#"{"prefill": {"base_s": 0, "per_token_s": 0.02}, "context_length": 65536,
        "decode": {"base_s": 0, "per_request_s": 0, "per_kv_token_s": 0}}"#;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("costs.json"), costs).unwrap();
    let model = format!("sim:{}", dir.path().join("costs.json").display());
    let prefill = ["--model-path", &model, "--chunked-prefill-size", "16", "--max-total-tokens", "4096"];
    let pair = Pair::start_with(&prefill, &["--model-path", &model]).await;
    let ask = |rid: &str| {
        pair.paired(&json!({"rid": rid, "input_ids": vec![49; 4000], "sampling_params": greedy(4)}))
    };
    let halves = async |body: &Value| {
        tokio::join!(pair.prefill.post("/generate", body), pair.decode.post("/generate", body))
    };
    let abort = async |server: &Server, rid: &str| {
        server.post("/abort_request", &json!({"rid": rid})).await;
    };
    let (running, waiting, transfer) = ("Aborted", "Abort in waiting queue", "Aborted by AbortReq.");
    let told = |reply: &Value, by: &str, why: &str| {
        let expected = format!("{by} server gave the request up: {why}");
        assert_eq!(reply["error"]["message"], expected, "{reply}");
    };
    let (runs, waits) = (ask("runs"), ask("waits"));
    let end = async {
        pair.prefill.until("it runs", |load| is_in("running", "runs", load)).await;
        let end = async {
            pair.prefill.until("it waits", |load| is_in("waiting", "waits", load)).await;
            abort(&pair.prefill, "waits").await;
        };
        let ((prefill, decode), ()) = tokio::join!(halves(&waits), end);
        assert_eq!(prefill.1["meta_info"]["finish_reason"]["message"], waiting);
        told(&decode.1, "prefill", waiting);
        // Some of its pages have been sent, and it gives all of them back.
        pair.decode
            .until("pages are under way", |load| {
                let queues = load["inflight"].as_array().unwrap();
                let transfer = queues.iter().find(|listed| listed["name"] == "transfer").unwrap();
                transfer["reqs"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|request| request["waiting_for_input"] == false)
            })
            .await;
        pair.prefill.post("/pause_generation", &json!({"mode": "retract"})).await;
        let load = pair.prefill.load().await;
        assert!(is_in("waiting", "runs", &load) && load["num_running_reqs"] == 0, "{load}");
        abort(&pair.decode, "runs").await;
    };
    let ((prefill, decode), ()) = tokio::join!(halves(&runs), end);
    told(&prefill.1, "decode", transfer);
    assert_eq!(decode.1["error"]["message"], transfer);
    pair.prefill.post("/continue_generation", &json!({})).await;
    pair.until_free().await;
    // Between two chunks.
    for (aborts, by) in [(&pair.prefill, "prefill"), (&pair.decode, "decode")] {
        let body = ask("between");
        let end = async {
            pair.prefill.until("it runs", |load| is_in("running", "between", load)).await;
            abort(aborts, "between").await;
        };
        let ((prefill, decode), ()) = tokio::join!(halves(&body), end);
        if by == "prefill" {
            assert_eq!(prefill.1["meta_info"]["finish_reason"]["message"], running);
            told(&decode.1, by, running);
        } else {
            told(&prefill.1, by, transfer);
            assert_eq!(decode.1["error"]["message"], transfer);
        }
        pair.until_free().await;
    }
}
