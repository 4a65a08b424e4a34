//! Requests that are aborted while no worker has them yet.

use std::net::SocketAddr;

use rollscope_testkit::{CallEnd, Client, FakeWorker, Gate, Reply, Script, patient};
use rollscope_trace::Outcome;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::harness::TestGateway;
use crate::pair::waiting;

const REPLY: &str = r#"{"text":"x","meta_info":{"finish_reason":{"type":"stop"}}}"#;

/// A gateway with one place, a worker that has a request until the gate opens, and its client.
async fn busy() -> (TestGateway, FakeWorker, Gate, JoinHandle<Reply>) {
    let (worker, gate) = (FakeWorker::start().await, Gate::new());
    for path in ["/generate", "/v1/chat/completions", "/v1/completions", "/v1/responses"] {
        worker.on(path, waiting(&gate, REPLY));
    }
    worker.on("/abort_request", Script::json(200, ""));
    let limits = "--max-concurrent-requests 1 --queue-timeout-secs 3600";
    let gateway = TestGateway::start(&format!("--worker-urls {} {limits}", worker.url())).await;
    let first = ask(gateway.address, "/generate", r#"{"rid":"first"}"#);
    worker.arrived("/generate", 1).await;
    (gateway, worker, gate, first)
}

fn ask(address: SocketAddr, path: &'static str, body: &str) -> JoinHandle<Reply> {
    let body = body.to_owned();
    tokio::spawn(async move { Client::post(address, path, &body).await })
}

async fn wait_for_queue(gateway: &TestGateway, count: u64) {
    patient("the queue", async { while gateway.figures().await["rollscope_queue_waiting"] != count {} })
        .await;
}

async fn abort(gateway: &TestGateway, body: &str) {
    assert_eq!(Client::post(gateway.address, "/abort_request", body).await.status, 200);
}

/// The payloads of an event stream.
fn events(body: &str) -> Vec<Value> {
    let payloads = body.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
    let payloads: Vec<_> = payloads.collect();
    let (done, payloads) = payloads.split_last().unwrap();
    assert_eq!(*done, "[DONE]", "{body}");
    payloads.iter().map(|payload| serde_json::from_str(payload).unwrap()).collect()
}

#[tokio::test]
async fn what_waits_is_aborted_as_sglang_answers_it() {
    let (gateway, worker, gate, first) = busy().await;
    let asked = [
        ("/generate", r#"{"rid":"a","return_logprob":true,"input_ids":[1]}"#),
        ("/generate", r#"{"text":["a","b"],"rid":["b-0","b-1"]}"#),
        ("/generate", r#"{"text":["a","b"],"rid":"c","stream":true}"#),
        ("/v1/chat/completions", r#"{"model":"m","messages":[],"n":2}"#),
        ("/v1/chat/completions", r#"{"model":"m","messages":[],"n":2,"stream":true}"#),
        ("/v1/completions", r#"{"prompt":"a"}"#),
        ("/v1/responses", r#"{"input":"a"}"#),
    ];
    let waiting = asked.map(|(path, body)| ask(gateway.address, path, body));
    wait_for_queue(&gateway, asked.len() as u64).await;
    abort(&gateway, r#"{"abort_all":true}"#).await;
    let mut replies = Vec::new();
    for (asked, (path, _)) in waiting.into_iter().zip(asked) {
        let reply = patient("the reply", asked).await.unwrap();
        assert_eq!(reply.status, if path == "/v1/responses" { 499 } else { 200 }, "{path}");
        replies.push(reply.text().await);
    }
    wait_for_queue(&gateway, 0).await;
    let abort = |id: &str| {
        let finish = json!({ "type": "abort", "message": "Abort in waiting queue" });
        json!({ "text": "", "output_ids": [], "meta_info": { "id": id, "finish_reason": finish, "completion_tokens": 0 } })
    };
    let value = |reply: &str| serde_json::from_str::<Value>(reply).unwrap();
    let mut with_lists = abort("a");
    with_lists["meta_info"]["input_token_logprobs"] = json!([]);
    with_lists["meta_info"]["output_token_logprobs"] = json!([]);
    assert_eq!(value(&replies[0]), with_lists);
    assert_eq!(value(&replies[1]), json!([abort("b-0"), abort("b-1")]));
    let parts = [0, 1].map(|index| {
        let mut part = abort(&format!("c_{index}"));
        part["index"] = json!(index);
        part
    });
    assert_eq!(events(&replies[2]), parts);
    let chat = value(&replies[3]);
    assert_eq!((&chat["object"], &chat["model"]), (&json!("chat.completion"), &json!("m")));
    for (index, choice) in chat["choices"].as_array().unwrap().iter().enumerate() {
        let told = (&choice["index"], &choice["finish_reason"], &choice["message"]["content"]);
        assert_eq!(told, (&json!(index), &json!("abort"), &json!("")));
    }
    assert_eq!((chat["choices"].as_array().unwrap().len(), &chat["usage"]["total_tokens"]), (2, &json!(0)));
    let chunks = events(&replies[4]);
    assert_eq!(chunks.len(), 2);
    for (index, chunk) in chunks.iter().enumerate() {
        let choice = &chunk["choices"][0];
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(index), &json!("abort")));
    }
    let completion = value(&replies[5]);
    assert_eq!((&completion["object"], &completion["model"]), (&json!("text_completion"), &json!("default")));
    assert_eq!(completion["choices"][0]["text"], "");
    assert_eq!(value(&replies[6])["error"]["code"], "aborted");

    gate.open();
    assert_eq!(first.await.unwrap().text().await, REPLY);
    // One that comes afterwards is not meant.
    assert_eq!(gateway.generate("{}").await.text().await, REPLY);
    gateway.settled(&[("completed", 2), ("aborted", asked.len() as u64)]).await;
    assert_eq!(worker.calls("/generate").len(), 2);
    assert_eq!(worker.calls("/abort_request")[0].request.text(), r#"{"abort_all":true}"#);
    for profile in gateway.profiles(2 + 10).await {
        let is_aborted = profile.outcome == Outcome::Aborted;
        assert_eq!(is_aborted, profile.legs.is_empty());
        let why = profile.error.as_deref().unwrap_or_default();
        assert_eq!(is_aborted, why == "aborted by /abort_request before a worker had it", "{why}");
    }
}

#[tokio::test]
async fn an_abort_by_name_ends_who_waits_by_that_name_and_nobody_else() {
    let (gateway, worker, gate, first) = busy().await;
    let meant = ["r-1", "r-1", "r-12"]
        .map(|rid| ask(gateway.address, "/generate", &json!({ "rid": rid }).to_string()));
    // The rest of what it asks has not been read when it is aborted.
    let large = json!({ "text": "x".repeat(1 << 20), "rid": "r-1" }).to_string();
    let large = ask(gateway.address, "/generate", &large);
    let others = [r#"{"rid":"r-2"}"#, "{}", r#"{"text":["a","b"],"rid":["r-1","r-2"]}"#];
    let others = others.map(|body| ask(gateway.address, "/generate", body));
    wait_for_queue(&gateway, 7).await;
    abort(&gateway, r#"{"rid":"r-1"}"#).await;
    for asked in meant.into_iter().chain([large]) {
        let told: Value =
            serde_json::from_str(&patient("the reply", asked).await.unwrap().text().await).unwrap();
        assert_eq!(told["meta_info"]["finish_reason"]["type"], "abort");
    }
    wait_for_queue(&gateway, 3).await;
    gate.open();
    first.await.unwrap();
    for other in others {
        assert_eq!(other.await.unwrap().text().await, REPLY);
    }
    gateway.settled(&[("completed", 4), ("aborted", 4)]).await;
    assert_eq!(worker.calls("/generate").len(), 4);
}

#[tokio::test]
async fn an_abort_while_a_request_is_read_is_not_lost() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, REPLY));
    worker.on("/abort_request", Script::json(200, ""));
    let gateway = TestGateway::regular(&[&worker]).await;
    for call in [r#"{"abort_all":true}"#, r#"{"rid":"r-1"}"#] {
        let mut client = TcpStream::connect(gateway.address).await.unwrap();
        let body = r#"{"rid":"r-1"}"#;
        let length = body.len();
        let head = format!(
            "POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        client.write_all((head + &body[..5]).as_bytes()).await.unwrap();
        patient("the request", async { while gateway.figures().await["rollscope_requests_live"] != 1 {} })
            .await;
        abort(&gateway, call).await;
        client.write_all(&body.as_bytes()[5..]).await.unwrap();
        let mut reply = String::new();
        patient("the reply", client.read_to_string(&mut reply)).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("Abort in waiting queue"), "{reply}");
    }
    assert_eq!(worker.calls("/generate").len(), 0);
    gateway.settled(&[("aborted", 2)]).await;
}

#[tokio::test]
async fn an_abort_while_another_worker_is_tried_is_not_lost() {
    // A pair whose prefill worker breaks each connection, until the abort has come.
    let (prefill, decode) = (TcpListener::bind(("127.0.0.1", 0)).await.unwrap(), FakeWorker::start().await);
    decode.on("/generate", Script::new().hang());
    let gate = Gate::new();
    decode
        .on("/abort_request", Script::new().wait(&gate).raw("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"));
    let gateway = TestGateway::pair(prefill.local_addr().unwrap(), decode.address(), "").await;
    let asked = ask(gateway.address, "/generate", r#"{"rid":"r-1"}"#);
    // Half of the pair fails, and the other half is being told to forget the request before it is sent again.
    let (mut broken, _) = prefill.accept().await.unwrap();
    broken.read_exact(&mut [0]).await.unwrap();
    decode.arrived("/generate", 1).await;
    drop(prefill);
    drop(broken);
    decode.arrived("/abort_request", 1).await;
    let call = ask(gateway.address, "/abort_request", r#"{"rid":"r-1"}"#);
    decode.arrived("/abort_request", 2).await;
    gate.open();
    assert_eq!(decode.ended("/generate", 1).await[0].end, Some(CallEnd::PeerLeft));
    drop(call.await.unwrap());
    let told: Value = serde_json::from_str(&asked.await.unwrap().text().await).unwrap();
    assert_eq!(told["meta_info"]["finish_reason"]["type"], "abort");
    assert_eq!(decode.calls("/generate").len(), 1);
    gateway.settled(&[("aborted", 1)]).await;
}
