//! Further tries: where they are made, what they need, and what must not reach them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rollscope_testkit::{Client, FakeWorker, Gate, Script, patient, refusing_address};
use rollscope_trace::Outcome;
use serde_json::Value;

use crate::harness::{TestGateway, legs};
use crate::pair::{DECODE, PREFILL, pair_of, waiting};

async fn outcomes(gateway: &TestGateway) -> (u32, Vec<Outcome>) {
    let profile = gateway.profiles(1).await.pop().unwrap();
    (profile.retries, profile.legs.iter().map(|leg| leg.outcome).collect())
}

fn rooms(worker: &FakeWorker) -> Vec<u64> {
    let room =
        |text: String| serde_json::from_str::<Value>(&text).unwrap()["bootstrap_room"].as_u64().unwrap();
    worker.calls("/generate").iter().map(|call| room(call.request.text())).collect()
}

#[tokio::test]
async fn a_worker_that_can_not_be_reached_is_not_the_clients_business() {
    let (dead, worker) = (refusing_address().await, FakeWorker::start().await);
    worker.on("/generate", Script::json(200, "{}"));
    let gateway = TestGateway::start(&format!("--worker-urls http://{dead} {}", worker.url())).await;
    assert_eq!(gateway.generate("{}").await.text().await, "{}");
    assert_eq!(outcomes(&gateway).await, (1, vec![Outcome::Failed, Outcome::Completed]));
    let figures = gateway.settled(&[("completed", 1), ("failed", 0)]).await;
    assert_eq!((legs(&figures, dead, "failed"), legs(&figures, worker.address(), "completed")), (1, 1));
}

#[tokio::test]
async fn tries_are_few_and_the_last_failure_is_told() {
    let mut urls = Vec::new();
    for _ in 0..5 {
        urls.push(format!("http://{}", refusing_address().await));
    }
    let gateway = TestGateway::start(&format!("--worker-urls {}", urls.join(" "))).await;
    let reply = gateway.generate("{}").await;
    assert_eq!(reply.status, 502);
    assert!(reply.text().await.contains("no connection"));
    assert_eq!(outcomes(&gateway).await, (2, vec![Outcome::Failed; 3]));
}

#[tokio::test]
async fn a_pair_is_tried_again_in_a_fresh_room_when_the_old_pair_is_aborted() {
    for (what, fault) in [("refuse", None), ("reset", Some(Script::new().reset()))] {
        for prefill_fails in [true, false] {
            let bad = FakeWorker::start().await;
            let bad_address = match &fault {
                Some(fault) => {
                    bad.on("/generate", fault.clone());
                    bad.address()
                }
                None => refusing_address().await,
            };
            let good = FakeWorker::start().await;
            let other = FakeWorker::start().await;
            other.on("/abort_request", Script::json(200, ""));
            let (body_of_good, body_of_other) =
                if prefill_fails { (PREFILL, DECODE) } else { (DECODE, PREFILL) };
            good.on("/generate", Script::json(200, body_of_good));
            // It waits for its peer, which is not there before the second try.
            let gate = Gate::new();
            other.on("/generate", waiting(&gate, body_of_other));
            let (failing, partner) =
                if prefill_fails { ("prefill", "decode") } else { ("decode", "prefill") };
            let gateway = TestGateway::start(&format!(
                "--pd-disaggregation --{failing} http://{bad_address} --{failing} {} --{partner} {} --merge-wait-secs 60",
                good.url(),
                other.url()
            ))
            .await;
            let address = gateway.address;
            let reply =
                tokio::spawn(async move { Client::post(address, "/generate", r#"{"rid":"r-1"}"#).await });
            good.arrived("/generate", 1).await;
            gate.open();
            let reply = reply.await.unwrap();
            assert_eq!(reply.status, 200, "{what}");
            assert!(reply.text().await.contains("pd_prefill_forward_duration"), "{what}");
            // Where a connection is refused the other half may not have been called for the first try at all.
            let seen = rooms(&other);
            assert!(seen.len() == 2 && seen[0] != seen[1] || seen.len() == 1 && what == "refuse", "{seen:?}");
            assert_eq!(rooms(&good), seen[seen.len() - 1..], "{what}");
            let figures = gateway.settled(&[("completed", 1), ("failed", 0)]).await;
            assert_eq!(legs(&figures, good.address(), "completed"), 1, "{what}");
            assert_eq!(legs(&figures, other.address(), "completed"), 1, "{what}");
            assert_eq!(legs(&figures, bad_address, "failed"), 1, "{what}");
        }
    }
}

#[tokio::test]
async fn a_kept_connection_that_breaks_under_a_pair_is_not_the_clients_business() {
    let (prefill, decode) = pair_of(Script::json(200, PREFILL), Script::new()).await;
    prefill.on("/abort_request", Script::json(200, ""));
    let is_broken = Arc::new(AtomicBool::new(false));
    let breaks = Arc::clone(&is_broken);
    decode.on_each("/generate", move |request| {
        if request.turn > 0 && !breaks.swap(true, Ordering::SeqCst) {
            return Script::new().reset();
        }
        Script::json(200, DECODE)
    });
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    // A connection is kept for a moment only, which a slow machine may miss.
    let mut sent = 0;
    patient("a request by a kept connection", async {
        while !is_broken.load(Ordering::SeqCst) {
            assert_eq!(gateway.generate("{}").await.status, 200);
            sent += 1;
        }
    })
    .await;
    let rooms = rooms(&decode);
    assert!(rooms.len() == sent + 1 && rooms[sent - 1] != rooms[sent], "{rooms:?}");
    gateway.settled(&[("completed", sent as u64), ("failed", 0)]).await;
}

#[tokio::test]
async fn an_abort_by_name_does_not_hit_the_next_request_of_that_name() {
    // The second name is hit by an abort of `r-1` too: it begins alike.
    for rid in ["r-1", "r-10"] {
        let (worker, gate) = (FakeWorker::start().await, Gate::new());
        let is_open = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_open);
        let ok = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        worker.on("/abort_request", Script::new().wait(&gate).raw(ok));
        worker.on_each("/generate", move |request| match request.header("x-try") {
            Some(_) => Script::new().hang(),
            None if seen.load(Ordering::SeqCst) => Script::json(200, r#"{"is":"in time"}"#),
            None => Script::json(200, r#"{"is":"too early"}"#),
        });
        let gateway = TestGateway::regular(&[&worker]).await;
        let address = gateway.address;
        let first = tokio::spawn(async move {
            Client::post_with(address, "/generate", &[("x-try", "1")], r#"{"rid":"r-1"}"#).await
        });
        worker.arrived("/generate", 1).await;
        first.abort();
        worker.arrived("/abort_request", 1).await;
        gateway.settled(&[("aborted", 1)]).await;
        let body = format!(r#"{{"rid":"{rid}"}}"#);
        let second =
            tokio::spawn(async move { Client::post(address, "/generate", &body).await.text().await });
        patient("the second request", async {
            while gateway.figures().await["rollscope_requests_live"] == 0 {}
        })
        .await;
        is_open.store(true, Ordering::SeqCst);
        gate.open();
        assert_eq!(second.await.unwrap(), r#"{"is":"in time"}"#, "{rid}");
        gateway.settled(&[("completed", 1)]).await;
    }
}

/// What the gateway says of a worker's breaker.
async fn breaker(gateway: &TestGateway, worker: &FakeWorker) -> String {
    let listed: Value =
        serde_json::from_str(&Client::get(gateway.address, "/workers").await.text().await).unwrap();
    let workers = listed["workers"].as_array().unwrap();
    let found = workers.iter().find(|other| other["url"] == worker.url()).unwrap();
    found["breaker"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_worker_that_only_waited_for_the_other_is_not_blamed() {
    let more = "--request-timeout-secs 1 --cb-failure-threshold 1";
    for prefill_is_stopped in [true, false] {
        let (prefill, decode) = pair_of(Script::new().hang(), Script::new().hang()).await;
        let (stopped, waiting) = if prefill_is_stopped { (&prefill, &decode) } else { (&decode, &prefill) };
        stopped.on("/health", Script::new().reset());
        waiting.on("/health", Script::json(200, ""));
        let gateway = TestGateway::pair(prefill.address(), decode.address(), more).await;
        let reply = gateway.generate("{}").await;
        assert_eq!(reply.status, 504);
        let body = reply.text().await;
        assert!(body.contains(&stopped.url()) && !body.contains("is up"), "{body}");
        assert_eq!(breaker(&gateway, stopped).await, "open");
        assert_eq!(breaker(&gateway, waiting).await, "closed");
    }
    // A prefill worker's own time may be up first; that it waited in vain it says by 504, long before the gateway would.
    let more = "--request-timeout-secs 4 --cb-failure-threshold 1";
    let (prefill, decode) = pair_of(Script::json(504, "timed out"), Script::new().hang()).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), more).await;
    let reply = gateway.generate("{}").await;
    assert_eq!((reply.status.as_u16(), reply.text().await), (504, "timed out".to_owned()));
    assert_eq!(breaker(&gateway, &prefill).await, "closed");
    // That the transfer between the two has failed SGLang says by 500, and by these words.
    for (error, expected) in [
        ("Request a timed out after 2s in KVPoll.Bootstrapping", "closed"),
        ("KVTransferError(room=1): the peer is gone", "closed"),
        ("out of memory", "open"),
    ] {
        let (prefill, decode) = pair_of(Script::new().hang(), Script::json(500, error)).await;
        let gateway = TestGateway::pair(prefill.address(), decode.address(), more).await;
        assert_eq!(gateway.generate("{}").await.status, 500);
        assert_eq!(breaker(&gateway, &decode).await, expected, "{error}");
    }
}

#[tokio::test]
async fn a_client_that_reads_slowly_does_not_delay_the_prefill_leg() {
    let gate = Gate::new();
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(64 << 20));
    let (prefill, decode) =
        pair_of(waiting(&gate, PREFILL), Script::sse().event(r#"{"meta_info":{}}"#).event(&large).hang())
            .await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    let mut reply = gateway.generate(r#"{"stream":true}"#).await;
    assert!(reply.next().await.is_some());
    gate.arrivals(1).await;
    gate.open();
    // The client reads no further, and what it has not read does not fit between it and the gateway.
    patient("the end of the prefill leg", async {
        while legs(&gateway.figures().await, prefill.address(), "completed") == 0 {}
    })
    .await;
    reply.leave();
    gateway.settled(&[("aborted", 1)]).await;
}

#[tokio::test]
async fn one_that_has_waited_in_vain_waits_no_longer_for_what_the_other_says() {
    let begun = || Script::head(200, &[], Some(99)).hang();
    for (what, prefill_script, decode_script) in
        [("prefill waited", begun(), Script::new().hang()), ("decode waited", Script::new().hang(), begun())]
    {
        let (prefill, decode) = pair_of(prefill_script, decode_script).await;
        for worker in [&prefill, &decode] {
            worker.on("/health", Script::json(200, ""));
        }
        let limits = "--stream-idle-timeout-secs 0.1 --request-timeout-secs 3600 --health-check-timeout-secs 1 --disable-health-check";
        let gateway = TestGateway::pair(prefill.address(), decode.address(), limits).await;
        let reply = gateway.generate("{}").await;
        assert_eq!(reply.status, 504, "{what}");
        gateway.settled(&[("failed", 1)]).await;
    }
}
