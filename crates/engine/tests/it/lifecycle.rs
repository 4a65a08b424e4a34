//! The life of a request: queues, time limits, pauses, retraction, the prefix cache, and what metadata rows carry.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{PATIENCE, Pair, SLOW, Server, endless, fresh_room, greedy, live};

const PROMPT: &str = "47+85+19=?\n";

fn long(text: &str) -> Value {
    json!({"text": text, "sampling_params": {"max_new_tokens": 2000, "ignore_eos": true}})
}

/// The numbers of a base64 list of little-endian int32.
pub(crate) fn numbers(list: &Value) -> Vec<i32> {
    let bytes = STANDARD.decode(list.as_str().unwrap_or_else(|| panic!("no list: {list}"))).unwrap();
    bytes.chunks_exact(4).map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_transfer_limit_ends_requests_as_its_table_says() {
    // The limit of the transfer is the first that is reached.
    let pair = Pair::start(&["--disaggregation-transfer-timeout", "0.2"]).await;
    let mut nobody = pair.paired(&long(PROMPT));
    nobody["bootstrap_port"] = json!(1);
    let message = |body: &Value, state: &str| {
        json!(format!("Request {} timed out after 0.2s in KVPoll.{state}", body["bootstrap_room"]))
    };
    for (server, body) in [(&pair.prefill, pair.paired(&long(PROMPT))), (&pair.decode, nobody)] {
        // Not an error of HTTP: the reply's finish reason tells.
        let reply = server.generate(&body).await;
        let expected = json!({"type": "abort", "message": message(&body, "Bootstrapping"), "status_code": 504, "err_type": null});
        assert_eq!(reply["meta_info"]["finish_reason"], expected);
        // A stream tells it as well.
        let mut body = body;
        body["bootstrap_room"] = json!(fresh_room());
        let finish = &server.stream(&body).await.pop().unwrap()["meta_info"]["finish_reason"];
        assert_eq!(
            (&finish["status_code"], &finish["message"]),
            (&json!(504), &message(&body, "Bootstrapping"))
        );
        server.until_free().await;
        for (name, label, expected) in [
            ("num_bootstrap_failed_reqs_total", "", "2"),
            ("num_transfer_failed_reqs_total", "", "0"),
            ("kv_transfer_timeouts_total", "stage=\"bootstrap\"", "2"),
            ("kv_transfer_timeouts_total", "stage=\"transfer\"", "0"),
        ] {
            assert_eq!(server.metric(name, label).await, expected, "{name} {label}");
        }
    }
    // One that has met the other server ends otherwise. Meeting takes the first of them a while, perhaps too long.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let body = pair.paired(&long(PROMPT));
        let (status, reply) = pair.decode.post("/generate", &body).await;
        if status == StatusCode::OK {
            assert_eq!(reply["meta_info"]["finish_reason"]["message"], message(&body, "Bootstrapping"));
            assert!(Instant::now() < deadline, "they never meet");
            continue;
        }
        assert_eq!((status.as_u16(), &reply["error"]["message"]), (500, &message(&body, "WaitingForInput")));
        break;
    }
    pair.until_free().await;
    assert_eq!(pair.decode.metric("num_transfer_failed_reqs_total", "").await, "1");
    assert_eq!(pair.decode.metric("kv_transfer_timeouts_total", "stage=\"transfer\"").await, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_too_long_to_be_computed_is_turned_away() {
    let limit = [&SLOW[..], &["--max-running-requests", "1", "--request-waiting-timeout", "0.2"]].concat();
    let (alone, pair) = (Server::start(&limit).await, Pair::start_with(&SLOW, &limit).await);
    for (server, prefill) in [(&alone, None), (&pair.decode, Some(&pair.prefill))] {
        let ask = async |rid: &str| {
            let body = if prefill.is_some() { pair.paired(&endless(rid)) } else { endless(rid) };
            let other_half = async {
                if let Some(prefill) = prefill {
                    prefill.generate(&body).await;
                }
            };
            tokio::join!(server.post("/generate", &body), other_half).0
        };
        let late = async {
            server.until("it runs", |load| load["num_running_reqs"] == 1).await;
            let (status, reply) = ask("late").await;
            let message = reply["error"]["message"].as_str().unwrap_or_default();
            assert_eq!(
                (status, message),
                (StatusCode::SERVICE_UNAVAILABLE, "Request waiting timeout reached.")
            );
            // It harms nobody else.
            assert_eq!(server.load().await["num_running_reqs"], 1);
            server.post("/abort_request", &json!({"rid": "first"})).await;
        };
        let ((_, first), ()) = tokio::join!(ask("first"), late);
        assert_eq!(first["meta_info"]["finish_reason"]["message"], "Aborted");
        server.until_free().await;
    }
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_stand_still_in_a_pause_and_without_memory() {
    let limit = Duration::from_millis(500);
    let server = Pair::start_prefill(&["--disaggregation-bootstrap-timeout", "0.5"]).await;
    for (stop, go_on) in [
        ("/pause_generation", "/continue_generation"),
        ("/release_memory_occupation", "/resume_memory_occupation"),
    ] {
        server.post(stop, &json!({"mode": "in_place"})).await;
        let mut body = long(PROMPT);
        body["bootstrap_room"] = json!(fresh_room());
        let wait = async {
            server.until("it waits", |load| live(load) == 1).await;
            // Longer than the limit, of which nothing passes.
            tokio::time::sleep(limit * 2).await;
            assert_eq!(server.load().await["queues"]["paused"], 1);
            let before = Instant::now();
            server.post(go_on, &json!({})).await;
            before
        };
        let end = async {
            let reply = server.post("/generate", &body).await;
            (reply, Instant::now())
        };
        let (((status, reply), end), before) = tokio::join!(end, wait);
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(message.contains("after 0.5s in KVPoll.Bootstrapping"), "{reply}");
        // All of the limit was left.
        assert!(end - before >= limit, "{stop}: it ended {:?} after", end - before);
    }
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_one_harms_no_other() {
    let pair = Pair::start_with(&["--disaggregation-bootstrap-timeout", "0.3"], &[]).await;
    let late = pair.paired(&long(PROMPT));
    // While that one waits, and after, others come through: with both halves in time, whenever that is.
    let others = async {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let body = pair.paired(&json!({"text": PROMPT, "sampling_params": greedy(64)}));
            let ((status, _), (_, decode)) =
                tokio::join!(pair.prefill.post("/generate", &body), pair.decode.post("/generate", &body));
            if status == StatusCode::OK {
                return decode;
            }
            assert!(Instant::now() < deadline, "none is in time");
        }
    };
    let ((status, reply), decode) = tokio::join!(pair.prefill.post("/generate", &late), others);
    assert!(decode["text"].as_str().unwrap().ends_with("#151"), "{decode}");
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        reply["error"]["message"].as_str().unwrap().contains("after 0.3s in KVPoll.Bootstrapping"),
        "{reply}"
    );
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_begins_nothing_and_says_so() {
    let mut server = Server::start(&["--shutdown-timeout", "86400"]).await;
    let healthy = async || server.text(Method::GET, "/health_generate", "").await;
    for (stop, go_on, tags, reason) in [
        ("/pause_generation", "/continue_generation", json!({}), "generation is paused"),
        (
            "/release_memory_occupation",
            "/resume_memory_occupation",
            json!({"tags": ["kv_cache"]}),
            "the memory of the KV cache is released",
        ),
        (
            "/release_memory_occupation",
            "/resume_memory_occupation",
            json!({"tags": ["weights"]}),
            "the memory of the weights is released",
        ),
    ] {
        server.post(stop, &tags).await;
        let (status, reply) = healthy().await;
        assert!(status == StatusCode::SERVICE_UNAVAILABLE && reply.contains(reason), "{status} {reply}");
        let body = json!({"text": PROMPT, "sampling_params": greedy(4)});
        let watch = async {
            let load = server.until("it is there", |load| live(load) == 1).await;
            assert_eq!(
                (&load["num_running_reqs"], &load["num_used_tokens"]),
                (&json!(0), &json!(0)),
                "{load}"
            );
            server.post(go_on, &json!({})).await;
        };
        tokio::join!(server.generate(&body), watch);
        assert_eq!(healthy().await.0, StatusCode::OK);
    }
    // Told to stop, it does not wait for what cannot go on.
    server.post("/pause_generation", &json!({"mode": "in_place"})).await;
    let stop = server.stop();
    let body = long(PROMPT);
    let watch = async {
        server.until("it is held", |load| live(load) == 1).await;
        stop.send(()).unwrap();
    };
    let ((status, reply), ()) = tokio::join!(server.post("/generate", &body), watch);
    assert!(
        status == StatusCode::SERVICE_UNAVAILABLE && reply.to_string().contains("shutting down"),
        "{reply}"
    );
    server.ended().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_half_of_a_pair_is_healthy_by_itself() {
    let pair = Pair::start(&[]).await;
    for server in [&pair.prefill, &pair.decode] {
        assert_eq!(server.text(Method::GET, "/health_generate", "").await.0, StatusCode::OK);
        let body = json!({
            "text": PROMPT, "bootstrap_host": "2.2.2.2", "bootstrap_room": 0, "sampling_params": greedy(1),
        });
        let replies = join_all([server.generate(&body), server.generate(&body)]).await;
        assert_eq!(replies[1]["meta_info"]["completion_tokens"], 1);
        server.until_free().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_requests_or_ends_them() {
    let server = Server::start(&["--max-running-requests", "2"]).await;
    let mut body = json!({"text": PROMPT, "return_logprob": true});
    body["sampling_params"] = json!({"max_new_tokens": 1500, "ignore_eos": true, "sampling_seed": 4});
    let expected = server.generate(&body).await;
    for mode in ["in_place", "retract"] {
        let deadline = Instant::now() + PATIENCE;
        loop {
            server.post("/pause_generation", &json!({"mode": "in_place"})).await;
            let bodies = [&body; 3];
            let all = join_all(bodies.iter().map(|body| server.generate(body)));
            let pause = async {
                server.until("all are there", |load| live(load) == 3).await;
                // Some of them is computed between the two.
                server.post("/continue_generation", &json!({})).await;
                server.post("/pause_generation", &json!({"mode": mode})).await;
                let load = server.load().await;
                if mode == "retract" {
                    assert_eq!((&load["num_running_reqs"], &load["num_used_tokens"]), (&json!(0), &json!(0)));
                }
                let (status, body) = server.text(Method::GET, "/flush_cache", "").await;
                assert_eq!(status.is_success(), live(&load) == 0, "{body}");
                server.post("/continue_generation", &json!({})).await;
                live(&load) == 3
            };
            let (replies, is_held) = tokio::join!(all, pause);
            for reply in replies {
                assert_eq!(reply["output_ids"], expected["output_ids"], "{mode}");
                let logprobs = |reply: &Value| reply["meta_info"]["output_token_logprobs"].clone();
                assert_eq!(logprobs(&reply), logprobs(&expected), "{mode}");
            }
            // Unless the pause came too late for them.
            if is_held {
                break;
            }
            assert!(Instant::now() < deadline, "they always end before");
        }
    }
    let slow = Server::start(&SLOW).await;
    let pause = async {
        slow.until("it runs", |load| load["num_running_reqs"] == 1).await;
        let (status, reply) = slow.post("/pause_generation", &json!({})).await;
        let paused = json!({"message": "Generation paused successfully.", "status": "ok"});
        assert_eq!((status, reply), (StatusCode::OK, paused));
        assert_eq!(live(&slow.load().await), 0);
    };
    let body = endless("it");
    let (reply, ()) = tokio::join!(slow.generate(&body), pause);
    assert_eq!(reply["meta_info"]["finish_reason"]["type"], "abort");
    server.post("/pause_generation", &json!({})).await;
    let (status, reply) = server.post("/pause_generation", &json!({"mode": "slowly"})).await;
    assert!(
        status == StatusCode::BAD_REQUEST && reply["error"]["message"].as_str().unwrap().contains("mode")
    );
    // What comes in a pause is held, and may be aborted.
    let mut held = long(PROMPT);
    held["rid"] = json!("held");
    let abort = async {
        server.until("it is held", |load| live(load) == 1).await;
        server.post("/abort_request", &json!({"rid": "held"})).await;
    };
    let (reply, ()) = tokio::join!(server.generate(&held), abort);
    assert_eq!(reply["meta_info"]["finish_reason"]["type"], "abort");
    server.post("/continue_generation", &json!({})).await;
    server.generate(&json!({"text": PROMPT, "sampling_params": greedy(4)})).await;
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_lose_their_pages_lose_no_token() {
    let alone = Server::start(&[]).await;
    // So few pages that not all replies fit at once, and none reserved.
    let tight =
        ["--max-total-tokens", "512", "--num-reserved-decode-tokens", "0", "--chunked-prefill-size", "16"];
    let small = Server::start(&tight).await;
    let pair = Pair::start_with(&[], &tight).await;
    let bodies: Vec<_> = (0..6)
        .map(|index| {
            json!({
                "text": format!("{index}7+8{index}+19=?\n"),
                "return_logprob": true, "logprob_start_len": 0,
                "sampling_params": {"max_new_tokens": 300, "ignore_eos": true, "sampling_seed": index},
            })
        })
        .collect();
    let expected = join_all(bodies.iter().map(|body| alone.generate(body))).await;
    // All are there before the first goes on, so that they do not fit.
    let held = async |server: &Server| {
        server.until("all are there", |load| live(load) == bodies.len() as u64).await;
        server.post("/continue_generation", &json!({})).await;
    };
    for server in [&small, &pair.decode] {
        server.post("/pause_generation", &json!({"mode": "in_place"})).await;
    }
    let (found, ()) = tokio::join!(join_all(bodies.iter().map(|body| small.generate(body))), held(&small));
    let (paired, ()) =
        tokio::join!(join_all(bodies.iter().map(|body| pair.generate(body))), held(&pair.decode));
    let mut retractions = [0; 2];
    for ((expected, found), (_, decode)) in expected.iter().zip(&found).zip(&paired) {
        for (place, found) in [found, decode].into_iter().enumerate() {
            assert_eq!(found["output_ids"], expected["output_ids"]);
            let (found, expected) = (&found["meta_info"], &expected["meta_info"]);
            assert_eq!(found["output_token_logprobs"], expected["output_token_logprobs"]);
            if place == 0 {
                assert_eq!(found["input_token_logprobs"], expected["input_token_logprobs"]);
            }
            retractions[place] += found["num_retractions"].as_u64().unwrap();
        }
    }
    assert!(retractions.iter().all(|count| *count > 0), "{retractions:?}");
    small.until_free().await;
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_beginnings_are_counted_and_change_nothing() {
    let without = Server::start(&["--disable-radix-cache"]).await;
    let server = Server::start(&["--page-size", "8"]).await;
    let pair = Pair::start(&["--page-size", "8"]).await;
    let ids = |len: usize| (0..len).map(|place| place * 31 % 250).collect::<Vec<_>>();
    // What is asked, and how many of its tokens were there: whole pages, of which at least one token is computed, and none
    // whose log-probability is asked for.
    let mut body = json!({"sampling_params": {"max_new_tokens": 20, "ignore_eos": true, "sampling_seed": 7}});
    for (prompt, changes, cached) in [
        (ids(40), json!({}), 0),
        (ids(40), json!({}), 32),
        (ids(41), json!({}), 40),
        (ids(100), json!({"return_logprob": true}), 40),
        (ids(100), json!({"return_logprob": true}), 96),
        (ids(100), json!({"return_logprob": true, "logprob_start_len": 20}), 16),
        (ids(100), json!({"extra_key": "tenant"}), 0),
        (ids(100), json!({"extra_key": "tenant"}), 96),
        (ids(7), json!({}), 0),
    ] {
        let mut body = body.clone();
        body["input_ids"] = json!(prompt);
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let expected = without.generate(&body).await;
        let found = server.generate(&body).await;
        let (prefill, decode) = pair.generate(&body).await;
        for reply in [&found, &decode] {
            assert_eq!(reply["output_ids"], expected["output_ids"], "{body}");
            let (reply, expected) = (&reply["meta_info"], &expected["meta_info"]);
            assert_eq!(reply["output_token_logprobs"], expected["output_token_logprobs"]);
            assert_eq!(reply["cached_tokens"], cached, "{body}");
            assert_eq!(reply["cached_tokens_details"], json!({"device": cached, "host": 0}));
            assert_eq!(expected["cached_tokens"], 0);
        }
        assert_eq!(prefill["meta_info"]["cached_tokens"], cached);
        assert_eq!(found["meta_info"]["input_token_logprobs"], expected["meta_info"]["input_token_logprobs"]);
    }
    server.until_free().await;
    pair.until_free().await;
    // Nothing is left after a flush, which `until_free` is.
    body["input_ids"] = json!(ids(100));
    assert_eq!(server.generate(&body).await["meta_info"]["cached_tokens"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_cache_gives_way() {
    let server = Server::start(&["--max-total-tokens", "256"]).await;
    let body = |first: usize| json!({"input_ids": (0..100).map(|place| (first + place) % 250).collect::<Vec<_>>(), "sampling_params": greedy(8)});
    for round in 0..2 {
        for first in 0..6 {
            let reply = server.generate(&body(first)).await;
            assert_eq!(reply["meta_info"]["cached_tokens"], 0, "{round} {first}");
        }
    }
    assert_eq!(server.generate(&body(5)).await["meta_info"]["cached_tokens"], 96);
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_tokens_are_told_alike_alone_and_in_a_pair() {
    let alone = Server::start(&[]).await;
    let pair = Pair::start(&[]).await;
    let opted = |sampling: Value| {
        let mut body = json!({"text": PROMPT, "return_logprob": true, "sampling_params": sampling});
        let params = &mut body["sampling_params"];
        params["custom_params"] = json!({"return_top_p_token_ids": true, "of_others": 1});
        (params["sampling_seed"], params["max_new_tokens"]) = (json!(3), json!(24));
        body
    };
    for (sampling, most) in [
        (json!({"top_p": 0.9, "temperature": 1.5}), 320),
        (json!({"top_k": 3}), 3),
        (json!({"min_p": 0.2, "temperature": 2}), 5),
        (json!({"temperature": 0}), 1),
    ] {
        let body = opted(sampling);
        let expected = alone.generate(&body).await;
        let (_, decode) = pair.generate(&body).await;
        let meta = &expected["meta_info"];
        for name in ["top_p_token_ids", "top_p_token_offsets", "output_token_logprobs"] {
            assert_eq!(decode["meta_info"][name], meta[name], "{name} {body}");
        }
        let (ids, offsets) = (numbers(&meta["top_p_token_ids"]), numbers(&meta["top_p_token_offsets"]));
        let tokens = expected["output_ids"].as_array().unwrap();
        assert_eq!((offsets.len(), offsets[0]), (tokens.len() + 1, 0));
        assert_eq!(*offsets.last().unwrap() as usize, ids.len());
        for (place, token) in tokens.iter().enumerate() {
            let kept = &ids[offsets[place] as usize..offsets[place + 1] as usize];
            assert!((1..=most).contains(&kept.len()) && kept.contains(&(token.as_i64().unwrap() as i32)));
            let logprob = meta["output_token_logprobs"][place][0].as_f64().unwrap();
            assert!(logprob <= 0.0 && (kept.len() > 1 || logprob == 0.0), "{logprob} {kept:?}");
        }
        // Only at the end of a stream.
        let events = alone.stream(&body).await;
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last["meta_info"]["top_p_token_ids"], meta["top_p_token_ids"]);
        assert!(before.iter().all(|event| event["meta_info"].get("top_p_token_ids").is_none()));
    }
    // Without a filter, without log-probabilities, or without being asked there are none.
    let mut silent = opted(json!({"top_p": 0.9}));
    silent["return_logprob"] = json!(false);
    let mut unasked = opted(json!({"top_p": 0.9}));
    unasked["sampling_params"]["custom_params"] = json!({});
    for body in [opted(json!({})), silent, unasked] {
        let meta = &alone.generate(&body).await["meta_info"];
        assert!(meta.get("top_p_token_ids").is_none() && meta.get("top_p_token_offsets").is_none(), "{meta}");
    }
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_may_tell_of_the_prefill_side() {
    let told = ["--disaggregation-prefill-timing", "--chunked-prefill-size", "4"];
    let pair = Pair::start(&told).await;
    let (prefill, decode) = pair.generate(&json!({"text": PROMPT, "sampling_params": greedy(8)})).await;
    let (prefill, decode) = (&prefill["meta_info"], &decode["meta_info"]);
    for name in [
        "pd_prefill_bootstrap_queue_duration",
        "pd_prefill_bootstrap_duration",
        "pd_prefill_alloc_wait_duration",
    ] {
        // A duration of zero is not told in a row.
        assert!(decode.get(name).is_some() || prefill[name] == 0.0, "{name}: {prefill} {decode}");
    }
    assert_eq!(decode["pd_prefill_retry_count"], 0);
    // A router writes prefill's own over them, which changes nothing; what the transfer is part of is not told.
    let is_told = |name: &str| name.starts_with("pd_prefill_") || name.starts_with("pd_transfer_");
    for (name, value) in decode.as_object().unwrap().iter().filter(|(name, _)| is_told(name)) {
        assert_eq!(value, &prefill[name], "{name}: {prefill} {decode}");
    }
    pair.until_free().await;
    // Both must be told to.
    let pair = Pair::start_with(&told, &[]).await;
    let (status, reply) = pair.decode.post("/generate", &pair.paired(&json!({"text": PROMPT}))).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(reply["error"]["message"].as_str().unwrap().contains("disaggregation_prefill_timing"), "{reply}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_may_have_several_replies() {
    let server = Server::start(&[]).await;
    let pair = Pair::start(&[]).await;
    let mut body = json!({
        "text": ["1+2=?\n", "3+4=?\n"], "rid": "many",
        "sampling_params": {"n": 3, "max_new_tokens": 12, "temperature": 2, "sampling_seed": 5},
    });
    let replies = server.generate(&body).await;
    let replies = replies.as_array().unwrap();
    assert_eq!(replies.len(), 6);
    assert_ne!(replies[0]["output_ids"], replies[1]["output_ids"]);
    for (index, reply) in replies.iter().enumerate() {
        assert_eq!(reply["meta_info"]["id"], format!("many_{index}"));
        // As the one reply with its seed.
        let text = &body["text"][index / 3];
        let one = json!({
            "text": text,
            "sampling_params": {"max_new_tokens": 12, "temperature": 2, "sampling_seed": 5 + index % 3},
        });
        assert_eq!(server.generate(&one).await["output_ids"], reply["output_ids"]);
    }
    // As a router sends it, with lists as long as the outputs; and one prompt that is no list.
    let rooms: Vec<_> = (0..6).map(|_| fresh_room()).collect();
    body["bootstrap_host"] = json!(vec!["127.0.0.1"; 6]);
    (body["bootstrap_port"], body["bootstrap_room"]) = (json!(vec![pair.bootstrap_port; 6]), json!(rooms));
    let (_, decode) = tokio::join!(pair.prefill.generate(&body), pair.decode.generate(&body));
    for (alone, decode) in replies.iter().zip(decode.as_array().unwrap()) {
        assert_eq!(alone["output_ids"], decode["output_ids"]);
    }
    let one = json!({"text": "1+2=?\n", "sampling_params": {"n": 2, "temperature": 0, "max_new_tokens": 20}});
    assert_eq!(server.generate(&one).await[1]["text"], "1+2=3\n#3");
    server.until_free().await;
}
