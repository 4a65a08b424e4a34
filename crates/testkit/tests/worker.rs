//! The fake worker and the client, against each other.

use http::Method;
use rollscope_testkit::{CallEnd, Client, End, FakeWorker, Gate, Script, refusing_address};

#[tokio::test]
async fn calls_are_recorded_and_scripts_played_in_turn() {
    let worker = FakeWorker::start().await;
    worker.on_next("/generate", [Script::json(200, "{\"a\":1}"), Script::json(500, "{}")]);
    for (status, body) in [(200, "{\"a\":1}"), (500, "{}"), (500, "{}")] {
        let reply = Client::post_with(worker.address(), "/generate?x=1", &[("x-y", "z")], "{\"n\":1}").await;
        assert_eq!(reply.status, status);
        assert_eq!(reply.text().await, body);
    }
    let calls = worker.ended("/generate", 3).await;
    assert_eq!(calls.len(), 3);
    assert_eq!((&calls[1].request.target[..], &calls[1].request.text()[..]), ("/generate?x=1", "{\"n\":1}"));
    assert_eq!((calls[1].request.header("x-y"), calls[1].connection), (Some("z"), 1));
    assert_eq!(Client::get(worker.address(), "/other").await.status, 404);
}

#[tokio::test]
async fn breaks_are_breaks_on_the_wire() {
    let worker = FakeWorker::start().await;
    worker.on("/half", Script::head(200, &[], Some(10)).send("half").close());
    worker.on("/cut", Script::sse().event("1").reset());
    worker.on("/none", Script::new().reset());
    let half = Client::get(worker.address(), "/half").await;
    assert_eq!(half.rest().await, ("half".into(), End::Cut));
    assert_eq!(Client::get(worker.address(), "/cut").await.rest().await.1, End::Cut);
    assert!(Client::try_call(worker.address(), Method::GET, "/none", &[], "").await.is_err());
    assert!(Client::try_call(refusing_address().await, Method::GET, "/", &[], "").await.is_err());
}

#[tokio::test]
async fn a_peer_that_leaves_is_seen() {
    let (worker, gate) = (FakeWorker::start().await, Gate::new());
    worker.on("/hang", Script::sse().event("1").hang());
    worker.on("/wait", Script::new().wait(&gate));
    let mut reply = Client::get(worker.address(), "/hang").await;
    assert_eq!(reply.next().await.as_deref(), Some(&b"data: 1\n\n"[..]));
    reply.leave();
    assert_eq!(worker.ended("/hang", 1).await[0].end, Some(CallEnd::PeerLeft));

    let waiting = tokio::spawn(Client::get(worker.address(), "/wait"));
    gate.arrivals(1).await;
    assert_eq!(worker.calls("/wait")[0].end, None);
    waiting.abort();
    assert_eq!(worker.ended("/wait", 1).await[0].end, Some(CallEnd::PeerLeft));
}

#[tokio::test]
async fn a_stopped_worker_comes_back_at_its_address() {
    let worker = FakeWorker::start().await;
    let address = worker.address();
    worker.on("/", Script::sse().event("1").hang());
    let mut reply = Client::get(address, "/").await;
    assert!(reply.next().await.is_some());
    drop(worker);
    assert_eq!(reply.rest().await.1, End::Cut);
    let worker = FakeWorker::start_at(address).await;
    worker.on("/", Script::json(200, "{}"));
    assert_eq!(Client::get(address, "/").await.text().await, "{}");
}
