//! Which worker a request goes to, and what the client is told of it.

use rollscope_testkit::{Client, FakeWorker, Gate, Reply, Script};

use crate::checks::shown;
use crate::harness::TestGateway;

const REPLY: &str = r#"{"text":"x","meta_info":{"finish_reason":{"type":"stop"}}}"#;

async fn fleet(size: usize) -> (Vec<FakeWorker>, String) {
    let mut workers = Vec::new();
    for _ in 0..size {
        let worker = FakeWorker::start().await;
        worker.on("/generate", Script::json(200, REPLY));
        workers.push(worker);
    }
    let urls: Vec<String> = workers.iter().map(FakeWorker::url).collect();
    (workers, format!("--worker-urls {}", urls.join(" ")))
}

async fn explained(gateway: &TestGateway, more: &[(&str, &str)], body: &str) -> Reply {
    let headers: Vec<_> = [("x-rollscope-explain", "1")].iter().chain(more).copied().collect();
    Client::post_with(gateway.address, "/generate", &headers, body).await
}

fn calls(workers: &[FakeWorker]) -> Vec<usize> {
    workers.iter().map(|worker| worker.calls("/generate").len()).collect()
}

/// Of the first worker, when no request is live.
async fn breaker_state(gateway: &TestGateway) -> String {
    gateway.settled(&[]).await;
    let listed = Client::get(gateway.address, "/workers").await.text().await;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    listed["workers"][0]["breaker"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_decision_is_explained_to_who_asks_and_to_the_profile() {
    let (_workers, urls) = fleet(2).await;
    let gateway = TestGateway::start(&urls).await;
    let reply = explained(&gateway, &[], "{}").await;
    let decision = reply.header("x-rollscope-decision").unwrap().to_owned();
    assert_eq!(decision, "round_robin: 1 of 2; worker 1 of 2, 0 in flight");
    assert_eq!(reply.text().await, REPLY);
    let reply = gateway.generate("{}").await;
    assert_eq!(reply.header("x-rollscope-decision"), None);
    drop(reply.text().await);
    assert_eq!(*gateway.profiles(2).await[0].decision, *decision);
    let empty = TestGateway::start("").await;
    let refused = explained(&empty, &[], "{}").await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("x-rollscope-decision"), None);
}

#[tokio::test]
async fn each_side_of_a_pair_has_its_own_policy() {
    let ((prefill, _), (decode, _)) = (fleet(3).await, fleet(2).await);
    let side = |flag: &str, workers: &[FakeWorker]| {
        workers.iter().map(|worker| format!("{flag} {}", worker.url())).collect::<Vec<_>>().join(" ")
    };
    let policies = "--policy random --prefill-policy consistent_hashing --decode-policy round_robin";
    let fleet = [side("--prefill", &prefill), side("--decode", &decode)].join(" ");
    let gateway = TestGateway::start(&format!("--pd-disaggregation {policies} {fleet}")).await;
    for _ in 0..4 {
        let reply = explained(&gateway, &[("x-smg-routing-key", "k")], "{}").await;
        let decision = reply.header("x-rollscope-decision").unwrap().to_owned();
        assert!(decision.starts_with("prefill consistent_hashing: "), "{decision}");
        assert!(decision.contains(" | decode round_robin: "), "{decision}");
        reply.text().await;
    }
    let mut of_prefill = calls(&prefill);
    of_prefill.sort_unstable();
    assert_eq!((of_prefill, calls(&decode)), (vec![0, 0, 4], vec![2, 2]));
}

#[tokio::test]
async fn what_has_the_same_key_or_group_keeps_to_one_worker() {
    for policy in ["consistent_hashing", "manual"] {
        for header in ["x-smg-routing-key", "x-rollscope-group"] {
            let (workers, urls) = fleet(3).await;
            let gateway = TestGateway::start(&format!("{urls} --policy {policy}")).await;
            for _ in 0..6 {
                drop(explained(&gateway, &[(header, "a")], "{}").await.text().await);
            }
            let counts = calls(&workers);
            assert_eq!(
                (counts.iter().sum::<usize>(), counts.contains(&6)),
                (6, true),
                "{policy} by {header}"
            );
        }
    }
}

#[tokio::test]
async fn a_prompt_goes_where_its_beginning_went() {
    for policy in ["cache_aware", "prefix_hash"] {
        for field in ["text", "input_ids"] {
            let (workers, urls) = fleet(3).await;
            let gateway = TestGateway::start(&format!("{urls} --policy {policy}")).await;
            for turn in 0..4 {
                let prompt = if field == "text" {
                    format!("\"{}{}\"", "once upon a time ".repeat(100), "more ".repeat(turn))
                } else {
                    format!("[{}{turn}]", "101,102,103,104,".repeat(100))
                };
                let reply = explained(&gateway, &[], &format!("{{\"{field}\":{prompt}}}")).await;
                assert_eq!(reply.status, 200);
                drop(reply.text().await);
            }
            assert!(calls(&workers).contains(&4), "{policy} by {field}: {:?}", calls(&workers));
        }
    }
}

#[tokio::test]
async fn a_breaker_opens_after_failures_and_closes_after_a_trial() {
    let (workers, urls) = fleet(1).await;
    let breaker = "--cb-failure-threshold 2 --cb-success-threshold 1 --cb-timeout-duration-secs";
    let gateway = TestGateway::start(&format!("{urls} {breaker} 0")).await;
    workers[0].on("/generate", Script::json(500, "broken"));
    for state in ["closed", "open", "open"] {
        assert_eq!(gateway.generate("{}").await.status, 500);
        assert_eq!(breaker_state(&gateway).await, state);
    }
    workers[0].on("/generate", Script::json(200, REPLY));
    assert_eq!(gateway.generate("{}").await.status, 200);
    assert_eq!(breaker_state(&gateway).await, "closed");

    let (workers, urls) = fleet(1).await;
    let gateway = TestGateway::start(&format!("{urls} {breaker} 3600")).await;
    for (status, seen) in [(400, 400), (429, 429), (500, 500), (500, 500), (200, 503)] {
        workers[0].on("/generate", Script::json(status, "said by the worker"));
        let reply = gateway.generate("{}").await;
        assert_eq!(reply.status, seen, "worker says {status}");
        let text = reply.text().await;
        let is_refused = text.contains("no worker is available of 1, 1 open");
        assert_eq!(is_refused, seen == 503, "{text}");
    }
    let gateway = TestGateway::start(&format!("{urls} --disable-circuit-breaker {breaker} 3600")).await;
    workers[0].on("/generate", Script::json(500, "broken"));
    for _ in 0..4 {
        assert_eq!(gateway.generate("{}").await.status, 500);
    }
}

#[tokio::test]
async fn the_only_worker_is_used_while_it_is_on_trial() {
    let (workers, urls) = fleet(1).await;
    let breaker = "--cb-failure-threshold 1 --cb-success-threshold 1 --cb-timeout-duration-secs 0";
    let gateway = TestGateway::start(&format!("{urls} {breaker}")).await;
    workers[0].on("/generate", Script::json(500, "broken"));
    assert_eq!(gateway.generate("{}").await.status, 500);
    let gate = Gate::new();
    let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{REPLY}", REPLY.len());
    workers[0].on("/generate", Script::new().wait(&gate).raw(reply));
    let address = gateway.address;
    let ask = || tokio::spawn(async move { Client::post(address, "/generate", "{}").await });
    let asked: Vec<_> = (0..6).map(|_| ask()).collect();
    workers[0].arrived("/generate", 7).await;
    shown(&gateway, "a worker on trial", |worker| worker["breaker"] == "half_open").await;
    assert_eq!(Client::get(address, "/readiness").await.status, 200);
    gate.open();
    for asked in asked {
        assert_eq!(asked.await.unwrap().status, 200);
    }
    assert_eq!(breaker_state(&gateway).await, "closed");
}

#[tokio::test]
async fn no_more_trials_than_needed_are_made_while_another_worker_can_be_taken() {
    let (workers, urls) = fleet(2).await;
    let breaker = "--cb-failure-threshold 1 --cb-success-threshold 2 --cb-timeout-duration-secs 0";
    let gateway = TestGateway::start(&format!("{urls} {breaker}")).await;
    workers[0].on("/generate", Script::json(500, "broken"));
    // One of two in turn is the broken one's.
    for _ in 0..2 {
        gateway.generate("{}").await.text().await;
    }
    let gate = Gate::new();
    let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{REPLY}", REPLY.len());
    for worker in &workers {
        worker.on("/generate", Script::new().wait(&gate).raw(reply.clone()));
    }
    let address = gateway.address;
    let ask = || tokio::spawn(async move { Client::post(address, "/generate", "{}").await });
    let asked: Vec<_> = (0..12).map(|_| ask()).collect();
    gate.arrivals(12).await;
    assert_eq!(calls(&workers), [1 + 2, 1 + 10], "two of twelve are trials");
    gate.open();
    for asked in asked {
        assert_eq!(asked.await.unwrap().status, 200);
    }
    shown(&gateway, "a worker that works", |worker| worker["breaker"] == "closed").await;
    for _ in 0..4 {
        gateway.generate("{}").await.text().await;
    }
    assert_eq!(calls(&workers), [3 + 2, 11 + 2], "its share again");
}

#[tokio::test]
async fn a_full_worker_is_not_taken_for_a_broken_one() {
    let (workers, urls) = fleet(1).await;
    let breaker = "--cb-failure-threshold 2 --cb-timeout-duration-secs 3600";
    let gateway = TestGateway::start(&format!("{urls} {breaker}")).await;
    for status in [503, 429, 400, 404, 422, 503, 429, 413, 503, 503] {
        workers[0].on("/generate", Script::json(status, "said by the worker"));
        assert_eq!(gateway.generate("{}").await.status, status);
        assert_eq!(breaker_state(&gateway).await, "closed", "after {status}");
    }
    workers[0].on("/generate", Script::json(200, REPLY));
    assert_eq!(gateway.generate("{}").await.status, 200);
}

#[tokio::test]
async fn a_trial_that_its_client_gives_up_leaves_place_for_the_next() {
    let (workers, urls) = fleet(1).await;
    let breaker = "--cb-failure-threshold 1 --cb-success-threshold 1 --cb-timeout-duration-secs 0";
    let gateway = TestGateway::start(&format!("{urls} {breaker}")).await;
    workers[0].on("/generate", Script::json(500, "broken"));
    assert_eq!(gateway.generate("{}").await.status, 500);
    assert_eq!(breaker_state(&gateway).await, "open");
    workers[0].on("/generate", Script::new().hang());
    let address = gateway.address;
    let trial = tokio::spawn(async move { Client::post(address, "/generate", "{}").await });
    workers[0].arrived("/generate", 2).await;
    trial.abort();
    workers[0].ended("/generate", 2).await;
    gateway.settled(&[("failed", 1), ("aborted", 1)]).await;
    assert_eq!(breaker_state(&gateway).await, "open", "it has told nothing");
    workers[0].on("/generate", Script::json(200, REPLY));
    assert_eq!(gateway.generate("{}").await.text().await, REPLY);
    assert_eq!(breaker_state(&gateway).await, "closed");
}
