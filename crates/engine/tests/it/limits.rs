//! Requests that have nearly reached a time limit.
//!
//! A limit counts time outside pauses. A pause begins when most of it has passed, and is the end of its passing: what a request
//! waits for comes in the pause, however long that takes. Where the pause came too late, or a server has not introduced itself
//! within the time that no pause prolongs, the next request has another try.

use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::peer::{
    ABORT, DONE, PAGE_BYTES, PAGES, PREPARE, Peer, RECEIVED, ROW, WELCOME, greeted, page, raw_prefill, row,
    suitable_info, welcomed,
};
use crate::support::{PATIENCE, Pair, Server, bootstrap_port, fresh_room, greedy, live};

const LIMIT: Duration = Duration::from_secs(6);
const MOST_OF_IT: Duration = Duration::from_millis(4500);
/// Less than the 10 s that a server has to introduce itself.
const INTRODUCED: Duration = Duration::from_secs(8);

fn request(room: u64, bootstrap_port: u16) -> Value {
    json!({
        "text": "47+85+19=?\n", "sampling_params": greedy(1),
        "bootstrap_host": "127.0.0.1", "bootstrap_port": bootstrap_port, "bootstrap_room": room,
    })
}

/// Lets most of the limit pass, and stops the clock. Returns whether that was in time, for what began then.
async fn nearly_reach_limit(server: &Server, began: Instant) -> bool {
    tokio::time::sleep_until((began + MOST_OF_IT).into()).await;
    let (status, _) = server.post("/pause_generation", &json!({"mode": "in_place"})).await;
    assert_eq!(status, StatusCode::OK);
    began.elapsed() < LIMIT
}

/// How many requests a server has taken in so far.
async fn taken_in(server: &Server) -> String {
    server.metric("num_requests_total", "").await
}

async fn go_on(server: &Server) {
    assert_eq!(server.post("/continue_generation", &json!({})).await.0, StatusCode::OK);
}

/// Repeats a try until it was in time, which is then to have ended well. A try takes a new room.
async fn until_in_time(attempt: impl AsyncFn(u64) -> (bool, StatusCode, Value)) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (in_time, status, reply) = attempt(fresh_room()).await;
        if in_time {
            assert_eq!(status, StatusCode::OK, "{reply}");
            assert_eq!(reply["meta_info"]["finish_reason"]["type"], "length", "{reply}");
            return;
        }
        assert!(Instant::now() < deadline, "the pause never comes in time");
    }
}

/// A prefill server with a limit, whose decode server comes just before that.
async fn check_bootstrap(limit: &str) {
    let prefill = Pair::start_prefill(&[limit, "6"]).await;
    let bootstrap_port = bootstrap_port(&prefill).await;
    until_in_time(async |room| {
        let (mut decode, _) = Peer::decode(bootstrap_port, 0).await;
        let (body, count, began) = (request(room, 1), taken_in(&prefill).await, Instant::now());
        let meet = async {
            while taken_in(&prefill).await == count {
                assert!(began.elapsed() < PATIENCE, "it never comes");
            }
            let in_time = nearly_reach_limit(&prefill, began).await;
            // The second time is an error, and tells that the first was heard.
            decode.prepare(room, 1).await;
            decode.prepare(room, 1).await;
            assert_eq!(decode.receive().await.0, ABORT);
            go_on(&prefill).await;
            if in_time {
                assert_eq!((decode.receive().await.0, decode.receive().await.0), (PAGES, ROW));
                decode.send(DONE, &room.to_le_bytes()).await;
            }
            in_time
        };
        let ((status, reply), in_time) = tokio::join!(prefill.post("/generate", &body), meet);
        (in_time, status, reply)
    })
    .await;
    prefill.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_met_just_before_the_bootstrap_limit_is_served() {
    check_bootstrap("--disaggregation-bootstrap-timeout").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_met_just_before_the_transfer_limit_is_served() {
    check_bootstrap("--disaggregation-transfer-timeout").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_confirmed_just_before_the_transfer_limit_was_sent() {
    let prefill = Pair::start_prefill(&["--disaggregation-transfer-timeout", "6"]).await;
    let bootstrap_port = bootstrap_port(&prefill).await;
    until_in_time(async |room| {
        let (mut decode, _) = Peer::decode(bootstrap_port, 0).await;
        let (body, began) = (request(room, 1), Instant::now());
        let confirm = async {
            decode.prepare(room, 1).await;
            // Unless it came too late for this already.
            if decode.receive().await.0 != PAGES || decode.receive().await.0 != ROW {
                return false;
            }
            let in_time = nearly_reach_limit(&prefill, began).await;
            decode.send(DONE, &room.to_le_bytes()).await;
            in_time
        };
        let ((status, reply), in_time) = tokio::join!(prefill.post("/generate", &body), confirm);
        // It has ended in the pause.
        go_on(&prefill).await;
        (in_time, status, reply)
    })
    .await;
    prefill.until_free().await;
}

/// A decode server with an option, whose prefill server sends what comes late just before the limit, and all else at once.
async fn check_decode(limit: &str, at_once: usize) {
    let decode = Server::start(&["--disaggregation-mode", "decode", limit, "6"]).await;
    let info = suitable_info(&decode).await;
    until_in_time(async |room| {
        let (port, transfer) = raw_prefill(info.clone()).await;
        let (body, began) = (request(room, port), Instant::now());
        let send = async {
            let mut prefill = welcomed(&transfer).await;
            if prefill.receive().await.0 != PREPARE {
                return false;
            }
            let frames = [page(room, 0, PAGE_BYTES), row(room, room, 52)];
            for (place, (kind, body)) in frames.iter().enumerate() {
                if place == at_once && !nearly_reach_limit(&decode, began).await {
                    go_on(&decode).await;
                    return false;
                }
                // What is confirmed is heard before what the server is told next.
                prefill.send(*kind, body).await;
                if prefill.receive().await.0 != RECEIVED {
                    return false;
                }
            }
            go_on(&decode).await;
            assert_eq!(prefill.receive().await.0, DONE);
            true
        };
        let ((status, reply), in_time) = tokio::join!(decode.post("/generate", &body), send);
        (in_time, status, reply)
    })
    .await;
    decode.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_come_just_before_the_waiting_limit_are_taken() {
    check_decode("--disaggregation-waiting-timeout", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_come_just_before_the_transfer_limit_are_taken() {
    check_decode("--disaggregation-transfer-timeout", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_comes_just_before_the_transfer_limit_is_taken() {
    check_decode("--disaggregation-transfer-timeout", 1).await;
}

/// A decode server with a limit, whose prefill server agrees just before that.
async fn check_prealloc(limit: &str) {
    let decode = Server::start(&["--disaggregation-mode", "decode", limit, "6"]).await;
    let info = suitable_info(&decode).await;
    until_in_time(async |room| {
        let (port, transfer) = raw_prefill(info.clone()).await;
        let (body, mut other, began) = (request(room, port), request(fresh_room(), port), Instant::now());
        other["rid"] = json!("other");
        let meet = async {
            let mut prefill = greeted(&transfer).await;
            decode.until("both are there", |load| live(load) == 2).await;
            let in_time = nearly_reach_limit(&decode, began).await;
            decode.post("/abort_request", &json!({"rid": "other"})).await;
            let in_time = in_time && began.elapsed() < INTRODUCED;
            // It is told of once they have agreed.
            if in_time {
                prefill.send(WELCOME, &[]).await;
                assert_eq!(prefill.receive().await.0, ABORT);
            }
            go_on(&decode).await;
            if in_time {
                assert_eq!(prefill.receive().await.0, PREPARE);
                for (kind, body) in [page(room, 0, PAGE_BYTES), row(room, room, 52)] {
                    prefill.send(kind, &body).await;
                    assert_eq!(prefill.receive().await.0, RECEIVED);
                }
                assert_eq!(prefill.receive().await.0, DONE);
            }
            in_time
        };
        let ((status, reply), _, in_time) =
            tokio::join!(decode.post("/generate", &body), decode.post("/generate", &other), meet);
        (in_time, status, reply)
    })
    .await;
    decode.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefill_server_that_agrees_just_before_the_bootstrap_limit_is_met() {
    check_prealloc("--disaggregation-bootstrap-timeout").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefill_server_that_agrees_just_before_the_transfer_limit_is_met() {
    check_prealloc("--disaggregation-transfer-timeout").await;
}
