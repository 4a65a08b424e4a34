//! Workers that fall ill, recover, and start anew at the same address.

use rollscope_testkit::{Client, FakeWorker, Script, patient};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::harness::TestGateway;

const CHECKS: &str =
    "--health-check-interval-secs 1 --health-failure-threshold 1 --health-success-threshold 1";

/// Waits until the first worker is shown so; gives its id.
pub(crate) async fn shown(gateway: &TestGateway, what: &str, is_it: impl Fn(&Value) -> bool) -> String {
    patient(what, async {
        loop {
            let listed = Client::get(gateway.address, "/workers").await.text().await;
            let worker = &serde_json::from_str::<Value>(&listed).unwrap()["workers"][0];
            if is_it(worker) {
                return worker["id"].as_str().unwrap().to_owned();
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

fn started_at(time: f64) -> Script {
    Script::json(200, &format!(r#"{{"dp_size":1,"internal_states":[{{"startup_time":{time}}}]}}"#))
}

#[tokio::test]
async fn a_worker_whose_checks_fail_gets_nothing_until_they_pass() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, "{}"));
    worker.on("/up", Script::json(503, "loading"));
    let args = format!("--worker-urls {} {CHECKS} --health-check-endpoint /up", worker.url());
    let gateway = TestGateway::start(&args).await;
    shown(&gateway, "an unhealthy worker", |worker| worker["is_healthy"] == false).await;
    let reply = gateway.generate("{}").await;
    assert_eq!(reply.status, 503);
    let text = reply.text().await;
    let why = format!(
        "regular workers: no worker is available of 1, 1 unhealthy; {}: GET /up: status 503",
        worker.url()
    );
    assert!(text.contains(&why) && text.contains(" s ago"), "{text}");
    gateway.tells(&format!("worker is unhealthy: {}, GET /up: status 503", worker.url())).await;
    shown(&gateway, "why", |worker| worker["problem"].as_str().is_some_and(|why| why.starts_with("GET /up")))
        .await;
    assert_eq!(Client::get(gateway.address, "/readiness").await.status, 503);

    worker.on("/up", Script::json(200, "up"));
    shown(&gateway, "a healthy worker", |worker| worker["is_healthy"] == true).await;
    shown(&gateway, "no problem", |worker| worker["problem"].is_null()).await;
    assert_eq!(gateway.generate("{}").await.status, 200);
    assert_eq!(worker.calls("/generate").len(), 1);
    gateway.settled(&[("completed", 1), ("failed", 1)]).await;
}

#[tokio::test]
async fn a_worker_that_starts_anew_is_another_instance() {
    let worker = FakeWorker::start().await;
    worker.on("/health", Script::json(200, ""));
    worker.on("/server_info", started_at(1.25));
    worker.on("/generate", Script::json(500, "broken"));
    let breaker = "--cb-failure-threshold 1 --cb-timeout-duration-secs 3600";
    let gateway = TestGateway::start(&format!("--worker-urls {} {CHECKS} {breaker}", worker.url())).await;
    worker.arrived("/server_info", 2).await;
    assert_eq!(gateway.generate("{}").await.status, 500);
    let old = shown(&gateway, "an open breaker", |worker| worker["breaker"] == "open").await;

    let address = worker.address();
    drop(worker);
    let worker = FakeWorker::start_at(address).await;
    worker.on("/server_info", started_at(2.5));
    worker.on("/generate", Script::json(200, "{}"));
    worker.on("/health", Script::json(200, ""));
    let new = shown(&gateway, "another instance", |worker| worker["id"] != *old).await;
    let listed = Client::get(gateway.address, &format!("/workers/{new}")).await.text().await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((&listed["breaker"], &listed["legs"]["started"]), (&"closed".into(), &0.into()));
    assert_eq!(gateway.generate("{}").await.status, 200);
    assert_eq!(worker.calls("/generate").len(), 1);
    assert_eq!(Client::get(gateway.address, &format!("/workers/{old}")).await.status, 404);
}

#[tokio::test]
async fn a_worker_whose_connections_break_is_asked_who_it_is() {
    // By its checks alone it would be asked in an hour, or never.
    for checks in ["--health-check-interval-secs 3600", ""] {
        let worker = FakeWorker::start().await;
        worker.on("/health", Script::json(200, ""));
        worker.on("/server_info", started_at(1.25));
        worker.on("/generate", Script::new().reset());
        let gateway = TestGateway::start(&format!("--worker-urls {} {checks}", worker.url())).await;
        worker.ended("/server_info", 1).await;
        assert_eq!(gateway.generate("{}").await.status, 502);
        // What it said first is known when it is asked again.
        worker.ended("/server_info", 2).await;
        let old = shown(&gateway, "the worker", |_| true).await;

        let address = worker.address();
        drop(worker);
        assert_eq!(gateway.generate("{}").await.status, 502);
        let worker = FakeWorker::start_at(address).await;
        worker.on("/health", Script::json(200, ""));
        worker.on("/server_info", started_at(2.5));
        shown(&gateway, "another instance", |worker| worker["id"] != *old).await;
    }
}

#[tokio::test]
async fn a_worker_that_restarts_in_a_quiet_moment_is_asked_who_it_is() {
    // What shows it: a kept connection that the worker has closed, or a new one when none had been kept.
    for (checks, is_kept) in
        [("--health-check-interval-secs 3600", true), ("", true), ("--worker-idle-timeout-secs 0.001", false)]
    {
        // As long as the test takes.
        let kept = if is_kept { "--worker-idle-timeout-secs 600" } else { "" };
        let worker = FakeWorker::start().await;
        worker.on("/health", Script::json(200, ""));
        worker.on("/server_info", started_at(1.25));
        worker.on("/generate", Script::json(200, "{}"));
        let gateway = TestGateway::start(&format!("--worker-urls {} {checks} {kept}", worker.url())).await;
        worker.ended("/server_info", 1).await;
        assert_eq!(gateway.generate("{}").await.status, 200);
        if !is_kept {
            // That was by a new connection: it is asked already.
            worker.ended("/server_info", 2).await;
        }
        let old = shown(&gateway, "the worker", |_| true).await;

        let address = worker.address();
        drop(worker);
        let worker = FakeWorker::start_at(address).await;
        worker.on("/health", Script::json(200, ""));
        worker.on("/server_info", started_at(2.5));
        worker.on("/generate", Script::json(200, "{}"));
        if !is_kept {
            assert_eq!(gateway.generate("{}").await.status, 200);
        }
        shown(&gateway, "another instance", |worker| worker["id"] != *old).await;
    }
}

#[tokio::test]
async fn a_check_closes_its_connection() {
    // A kept one that the worker closes would be a reason for the next check.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let args = format!("--worker-urls {url} --disable-health-check --worker-idle-timeout-secs 600");
    let _gateway = TestGateway::start(&args).await;
    patient("the end of a check's connection", async {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while connection.read_buf(&mut asked).await.unwrap() > 0 {
            if asked.ends_with(b"\r\n\r\n") {
                connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                asked.clear();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn workers_in_each_others_place_are_told_of_and_get_nothing() {
    for no_checks in ["", "--disable-health-check"] {
        let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
        for (worker, mode) in [(&prefill, "prefill"), (&decode, "decode")] {
            worker.on("/health", Script::json(200, ""));
            worker.on("/server_info", Script::json(200, &format!(r#"{{"disaggregation_mode":"{mode}"}}"#)));
        }
        // The two are swapped.
        let gateway =
            TestGateway::pair(decode.address(), prefill.address(), &format!("{CHECKS} {no_checks}")).await;
        shown(&gateway, "a worker with a problem", |worker| worker["problem"].is_string()).await;
        shown(&gateway, "a worker that gets nothing", |worker| worker["is_healthy"] == false).await;
        let listed = Client::get(gateway.address, "/workers").await.text().await;
        let sentence =
            "registered as a prefill worker, and says itself that its disaggregation_mode is decode";
        assert!(listed.contains(sentence), "{listed}");
        let reply = gateway.generate("{}").await;
        assert_eq!(reply.status, 503);
        assert!(decode.calls("/generate").is_empty() && prefill.calls("/generate").is_empty());

        // An answer that says nothing takes nothing back.
        for worker in [&prefill, &decode] {
            let asked = worker.calls("/server_info").len();
            worker.on("/server_info", Script::json(404, "nothing"));
            worker.ended("/server_info", asked + 3).await;
        }
        let listed = Client::get(gateway.address, "/workers").await.text().await;
        assert_eq!(
            (listed.matches("problem").count(), gateway.generate("{}").await.status.as_u16()),
            (2, 503)
        );
        for (worker, mode) in [(&prefill, "decode"), (&decode, "prefill")] {
            worker.on("/server_info", Script::json(200, &format!(r#"{{"disaggregation_mode":"{mode}"}}"#)));
            worker.on("/generate", Script::json(200, "{}"));
        }
        let served = async { while gateway.generate("{}").await.status != 200 {} };
        patient("a request that is served", served).await;
    }
}

#[tokio::test]
async fn a_worker_that_never_gets_up_is_taken_out() {
    let worker = FakeWorker::start().await;
    worker.on("/health", Script::json(503, ""));
    let args = format!("--worker-urls {} {CHECKS} --worker-startup-timeout-secs 1", worker.url());
    let gateway = TestGateway::start(&args).await;
    patient("the worker's end", async {
        while !Client::get(gateway.address, "/list_workers").await.text().await.contains("[]") {}
    })
    .await;
}

#[tokio::test]
async fn one_that_hangs_keeps_no_other_from_being_checked_and_asked_for_its_load() {
    let (hanging, other) = (FakeWorker::start().await, FakeWorker::start().await);
    for path in ["/health", "/v1/loads"] {
        hanging.on(path, Script::new().hang());
    }
    other.on_next("/health", [Script::json(503, ""), Script::json(200, "")]);
    let slow = "--health-check-timeout-secs 3600 --policy power_of_two --load-poll-interval-secs 0.01 --max-load-age-secs 3600";
    let urls = format!("{} {}", hanging.url(), other.url());
    let gateway = TestGateway::start(&format!("--worker-urls {urls} {CHECKS} {slow}")).await;
    gateway.tells("worker is healthy").await;
    other.arrived("/v1/loads", 3).await;
    assert_eq!((hanging.calls("/health").len(), hanging.calls("/v1/loads").len()), (1, 1));
}
