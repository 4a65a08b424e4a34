//! What becomes of that which is under way when the time that a gateway lets it have at its end is over.

use rollscope_config::{Options as _, Published};
use rollscope_gateway::{Gateway, GatewayOptions};
use rollscope_testkit::{CallEnd, Client, End, FakeWorker, Gate, Reply, Script, patient};
use rollscope_trace::{Outcome, Profile};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::harness::TestGateway;
use crate::pair::pair_of;

const WHY: &str =
    "the gateway is shutting down, and this was not finished within --shutdown-grace-period-secs";

fn ask(gateway: &TestGateway, body: &'static str) -> JoinHandle<Reply> {
    let address = gateway.address;
    tokio::spawn(async move { Client::post(address, "/generate", body).await })
}

/// The one profile that is left, which must tell the true reason.
async fn profile_of_the_end(gateway: TestGateway) -> Profile {
    let sink = gateway.sink.clone();
    gateway.stop().await;
    let mut profiles = sink.profiles();
    let profile = profiles.pop().unwrap();
    assert_eq!(profile.error.as_deref(), Some(WHY), "{profile:#?}");
    profile
}

async fn assert_told(reply: Reply) {
    assert_eq!(reply.status, 503);
    let told: Value = serde_json::from_str(&reply.text().await).unwrap();
    assert_eq!((&told["error"]["code"], &told["error"]["message"]), (&"shutting_down".into(), &WHY.into()));
}

#[tokio::test]
async fn a_request_that_is_not_answered_yet_is_told_why() {
    for is_pair in [false, true] {
        let (first, second) = pair_of(Script::new().hang(), Script::new().hang()).await;
        let gateway = if is_pair {
            TestGateway::pair(first.address(), second.address(), "--shutdown-grace-period-secs 0").await
        } else {
            TestGateway::start(&format!("--worker-urls {} --shutdown-grace-period-secs 0", first.url())).await
        };
        let asked = ask(&gateway, "{}");
        first.arrived("/generate", 1).await;
        if is_pair {
            second.arrived("/generate", 1).await;
        }
        let profile = profile_of_the_end(gateway).await;
        assert_told(asked.await.unwrap()).await;
        assert_eq!((profile.outcome, profile.status), (Outcome::Failed, Some(503)));
        assert!(profile.legs.iter().all(|leg| leg.outcome == Outcome::Aborted), "{:#?}", profile.legs);
        assert_eq!(first.ended("/generate", 1).await[0].end, Some(CallEnd::PeerLeft));
    }
}

#[tokio::test]
async fn a_stream_is_told_why_by_one_event() {
    for (path, is_pair) in [("/generate", false), ("/generate", true), ("/v1/responses", false)] {
        let (prefill, worker) = pair_of(Script::new().hang(), Script::new()).await;
        worker.on(path, Script::sse().event("{}").hang());
        let gateway = if is_pair {
            TestGateway::pair(prefill.address(), worker.address(), "--shutdown-grace-period-secs 0").await
        } else {
            TestGateway::start(&format!("--worker-urls {} --shutdown-grace-period-secs 0", worker.url()))
                .await
        };
        let mut reply = Client::post(gateway.address, path, r#"{"stream":true}"#).await;
        assert_eq!(&*reply.next().await.unwrap(), b"data: {}\n\n");
        if path == "/generate" {
            assert_eq!(profile_of_the_end(gateway).await.outcome, Outcome::Truncated);
        } else {
            gateway.stop().await;
        }
        let (rest, end) = reply.rest().await;
        let told = rest.strip_prefix(if path == "/generate" { "data: " } else { "event: error\ndata: " });
        let told: Value = serde_json::from_str(told.unwrap().strip_suffix("\n\n").unwrap()).unwrap();
        let message = if path == "/generate" { &told["error"]["message"] } else { &told["message"] };
        assert_eq!((message, end), (&WHY.into(), End::Cut));
    }
}

#[tokio::test]
async fn what_waits_and_what_is_still_sent_is_told_why() {
    let (worker, gate) = (FakeWorker::start().await, Gate::new());
    worker.on("/generate", Script::new().wait(&gate).hang());
    let limits = "--max-concurrent-requests 1 --shutdown-grace-period-secs 0 --queue-timeout-secs 3600";
    let gateway = TestGateway::start(&format!("--worker-urls {} {limits}", worker.url())).await;
    let _served = ask(&gateway, "{}");
    worker.arrived("/generate", 1).await;
    let waits = ask(&gateway, "{}");
    patient("the queue", async { while gateway.figures().await["rollscope_queue_waiting"] != 1 {} }).await;
    assert_eq!(profile_of_the_end(gateway).await.outcome, Outcome::Failed);
    assert_told(waits.await.unwrap()).await;

    let gateway = TestGateway::start("--shutdown-grace-period-secs 0").await;
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    client.write_all(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").await.unwrap();
    patient("the request", async { while gateway.figures().await["rollscope_requests_live"] != 1 {} }).await;
    assert_eq!(profile_of_the_end(gateway).await.outcome, Outcome::Failed);
    let mut told = String::new();
    let _reset_is_an_end_too = client.read_to_string(&mut told).await;
    assert!(told.starts_with("HTTP/1.1 503") && told.contains(WHY), "{told}");
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_not_the_one_that_has_left() {
    let worker = FakeWorker::start().await;
    // More than the sockets hold, and no end.
    worker.on("/generate", Script::head(200, &[], None).raw("{").raw(vec![b' '; 64 << 20]).hang());
    let args = format!("--worker-urls {} --shutdown-grace-period-secs 0", worker.url());
    let gateway = TestGateway::start(&args).await;
    let _takes_nothing = gateway.generate("{}").await;
    assert_eq!(profile_of_the_end(gateway).await.outcome, Outcome::Truncated);
}

#[tokio::test]
async fn the_clients_of_all_threads_are_told() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::sse().event("{}").hang());
    let args =
        ["--worker-urls", &worker.url(), "--disable-health-check", "--shutdown-grace-period-secs", "0"];
    let gateway =
        Gateway::new(Published::publish(GatewayOptions::from_args(args).unwrap()), None, None).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(gateway.serve_on_threads(3, listener, async { drop(stopped.await) }));
    let mut replies = Vec::new();
    for _ in 0..6 {
        let mut reply = Client::post(address, "/generate", r#"{"stream":true}"#).await;
        assert!(reply.next().await.is_some());
        replies.push(reply);
    }
    stop.send(()).unwrap();
    patient("the gateway's end", served).await.unwrap().unwrap();
    for reply in replies {
        let (rest, end) = reply.rest().await;
        assert!(rest.contains(WHY) && end == End::Cut, "{rest}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_live_when_time_is_up_is_cut_and_leaves_its_profile() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::sse().event("{}").hang());
    let args = format!("--worker-urls {} --shutdown-grace-period-secs 0", worker.url());
    let gateway = TestGateway::start(&args).await;
    let mut replies = Vec::new();
    for _ in 0..8 {
        let mut reply = gateway.generate(r#"{"stream":true}"#).await;
        assert!(reply.next().await.is_some());
        replies.push(reply);
    }
    let sink = gateway.sink.clone();
    gateway.stop().await;
    assert_eq!(sink.taken(), 8);
    for reply in replies {
        assert_eq!(reply.rest().await.1, End::Cut);
    }
}
