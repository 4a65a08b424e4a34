//! Pairs: what is sent to both, and the merge of unary replies.

use rollscope_testkit::{Client, FakeWorker, Gate, Script};
use rollscope_trace::Outcome;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::{TestGateway, legs};

pub(crate) const PREFILL: &str = r#"{"text":"","meta_info":{"id":"p","finish_reason":{"type":"length","length":0},"prompt_tokens":3,"pd_prefill_forward_duration":0.10000000149011612,"pd_transfer_total_mb":1.50,"input_token_logprobs":[[null,1,null],[-0.5,2,null]]}}"#;
pub(crate) const DECODE: &str = r#"{"text":"ü\n","unknown":[1e2, {"meta_info":{}}],"meta_info":{"id":"d","finish_reason":{"type":"stop"},"completion_tokens":7,"pd_decode_forward_duration":1E-1,"input_token_logprobs":[]}, "tail":0.10}"#;

pub(crate) async fn pair_of(prefill: Script, decode: Script) -> (FakeWorker, FakeWorker) {
    let workers = (FakeWorker::start().await, FakeWorker::start().await);
    workers.0.on("/generate", prefill);
    workers.1.on("/generate", decode);
    workers
}

/// A reply that comes once the gate is open.
pub(crate) fn waiting(gate: &Gate, body: &str) -> Script {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Script::new().wait(gate).raw(head).send(body)
}

fn request(worker: &FakeWorker) -> Value {
    serde_json::from_str(&worker.calls("/generate").pop().unwrap().request.text()).unwrap()
}

#[tokio::test]
async fn both_get_the_same_request_with_fresh_bootstrap_fields() {
    let (prefill, decode) = pair_of(Script::json(200, PREFILL), Script::json(200, DECODE)).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    let body =
        r#"{ "text":"a","sampling_params":{"temperature":0.1,"own":1e-2}, "bootstrap_room":5,"x":[] }"#;
    let headers = [("x-rollscope-sample", "s"), ("accept-encoding", "gzip, br")];
    let mut rooms = Vec::new();
    for _ in 0..2 {
        Client::post_with(gateway.address, "/generate", &headers, body).await.text().await;
        let (to_prefill, to_decode) =
            (prefill.calls("/generate").pop().unwrap(), decode.calls("/generate").pop().unwrap());
        assert_eq!(to_prefill.request.text(), to_decode.request.text());
        assert!(
            to_decode
                .request
                .text()
                .ends_with(r#" "text":"a","sampling_params":{"temperature":0.1,"own":1e-2},"x":[] }"#)
        );
        for call in [to_prefill, to_decode] {
            assert_eq!(call.request.header("x-rollscope-sample"), Some("s"));
            assert_eq!(call.request.header("accept-encoding"), Some("identity"));
        }
        let sent = request(&decode);
        assert_eq!((&sent["bootstrap_host"], &sent["bootstrap_port"]), (&json!("127.0.0.1"), &json!(8998)));
        rooms.push(sent["bootstrap_room"].as_u64().unwrap());
    }
    assert!(
        rooms.iter().all(|room| (1..1 << 53).contains(room)) && rooms[0] != rooms[1] && !rooms.contains(&5)
    );
    gateway.settled(&[("completed", 2)]).await;
}

#[tokio::test]
async fn a_pair_is_reached_by_ipv6() {
    let any = std::net::SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 0));
    // Some containers have no IPv6 at all, and then no interface has an address of it.
    if std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default().is_empty() {
        eprintln!("not tested: this machine has no IPv6");
        return;
    }
    let listener = TcpListener::bind(any).await.unwrap();
    let (prefill, decode) = (FakeWorker::start_at(any).await, FakeWorker::start_at(any).await);
    prefill.on("/generate", Script::json(200, PREFILL));
    decode.on("/generate", Script::json(200, DECODE));
    let args = format!("--pd-disaggregation --prefill {} 8998 --decode {}", prefill.url(), decode.url());
    let gateway = TestGateway::listening(listener, &args, usize::MAX);
    assert!(gateway.generate("{}").await.text().await.contains("pd_prefill_forward_duration"));
    assert_eq!(request(&decode)["bootstrap_host"], "[::1]");
    let authority = decode.url().replace("http://", "");
    assert_eq!(decode.calls("/generate")[0].request.header("host"), Some(&*authority));
    gateway.settled(&[("completed", 1)]).await;
}

#[tokio::test]
async fn both_are_called_at_once() {
    for prefill_answers_first in [true, false] {
        let (early, late) = (Gate::new(), Gate::new());
        let (to_prefill, to_decode) = if prefill_answers_first { (&early, &late) } else { (&late, &early) };
        let (prefill, decode) = pair_of(waiting(to_prefill, PREFILL), waiting(to_decode, DECODE)).await;
        let gateway = TestGateway::pair(prefill.address(), decode.address(), "--merge-wait-secs 60").await;
        let address = gateway.address;
        let reply = tokio::spawn(async move { Client::post(address, "/generate", "{}").await.text().await });
        early.arrivals(1).await;
        late.arrivals(1).await;
        early.open();
        let first = if prefill_answers_first { &prefill } else { &decode };
        first.ended("/generate", 1).await;
        late.open();
        assert!(reply.await.unwrap().contains("pd_prefill_forward_duration"));
    }
}

#[tokio::test]
async fn what_prefill_measured_is_spliced_into_the_reply() {
    let (prefill, decode) = pair_of(Script::json(200, PREFILL), Script::json(200, DECODE)).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    let members = r#""pd_prefill_forward_duration":0.10000000149011612,"pd_transfer_total_mb":1.50,"#;
    let merged = DECODE.replacen(r#""meta_info":{"id""#, &format!("\"meta_info\":{{{members}\"id\""), 1);
    let joined = merged.replace(r#"logprobs":[]"#, r#"logprobs":[[null,1,null],[-0.5,2,null]]"#);
    for (body, expected) in [(r#"{"text":"a"}"#, merged), (r#"{"text":"a","return_logprob":true}"#, joined)] {
        let reply = gateway.generate(body).await;
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(reply.header("content-length"), Some(&*expected.len().to_string()));
        assert_eq!(reply.text().await, expected);
    }
    let figures = gateway.settled(&[("completed", 2)]).await;
    assert_eq!(figures["rollscope_merges_total{result=\"merged\"}"], 2);
    for worker in [&prefill, &decode] {
        assert_eq!(legs(&figures, worker.address(), "completed"), 2);
    }
}

#[tokio::test]
async fn a_batch_gets_lists_and_is_merged_element_by_element() {
    let element = |id: u32, member: &str| format!(r#"{{"meta_info":{{"id":"{id}"{member}}}}}"#);
    let prefill = format!(
        "[{},{}]",
        element(0, r#","pd_prefill_retry_count":0"#),
        element(1, r#","pd_prefill_retry_count":1"#)
    );
    let decode = format!("[{}, {}]", element(2, ""), element(3, ""));
    for body in
        [r#"{"text":["a","b"]}"#, r#"{"input_ids":[[1],[2]]}"#, r#"{"text":"a","sampling_params":{"n":2}}"#]
    {
        let (prefill, decode) = pair_of(Script::json(200, &prefill), Script::json(200, &decode)).await;
        let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
        assert_eq!(
            gateway.generate(body).await.text().await,
            r#"[{"meta_info":{"pd_prefill_retry_count":0,"id":"2"}}, {"meta_info":{"pd_prefill_retry_count":1,"id":"3"}}]"#
        );
        let sent = request(&prefill);
        assert_eq!(
            (&sent["bootstrap_host"], &sent["bootstrap_port"]),
            (&json!(["127.0.0.1", "127.0.0.1"]), &json!([8998, 8998]))
        );
        let rooms = sent["bootstrap_room"].as_array().unwrap();
        assert!(rooms.len() == 2 && rooms[0] != rooms[1], "{rooms:?}");
    }
}

#[tokio::test]
async fn what_can_not_be_merged_passes_as_it_came_and_is_counted() {
    let (malformed, silent) = (r#"{"meta_info":{"id":nul}}"#, r#"{"text":"ü"}"#);
    let json = |body: &str| Script::json(200, body);
    let gzip = Script::head(200, &[("content-encoding", "gzip")], Some(DECODE.len())).send(DECODE);
    let (event, stream) = (r#"{"meta_info":null}"#, "data: {\"meta_info\":null}\n\ndata: [DONE]\n\n");
    for (what, prefill, decode, expected) in [
        ("prefill encoded", gzip.clone(), json(DECODE), DECODE),
        ("a batch against one", json(&format!("[{PREFILL}]")), json(DECODE), DECODE),
        ("decode malformed inside", json(PREFILL), json(malformed), malformed),
        ("decode encoded", json(PREFILL), gzip, DECODE),
        ("prefill breaks after decode", Script::new().hang(), json(DECODE), DECODE),
        ("prefill says nothing", json("{}"), json(DECODE), DECODE),
        ("prefill has measured nothing", json(r#"{"meta_info":{"id":"p"}}"#), json(DECODE), DECODE),
        ("no meta_info", json(PREFILL), json(silent), silent),
        ("a stream without", json(PREFILL), Script::sse().event(event).event("[DONE]").end(), stream),
    ] {
        let (prefill, decode) = pair_of(prefill, decode).await;
        let gateway = TestGateway::pair(prefill.address(), decode.address(), "--merge-wait-secs 0.05").await;
        let reply = gateway.generate("{}").await;
        assert_eq!(reply.status, 200, "{what}");
        assert_eq!(reply.text().await, expected, "{what}");
        let figures = gateway.settled(&[("completed", 1)]).await;
        assert_eq!(figures["rollscope_merges_total{result=\"unmerged\"}"], 1, "{what}");
        assert_eq!(figures["rollscope_merges_total{result=\"merged\"}"], 0, "{what}");
    }
}

#[tokio::test]
async fn a_reply_too_large_to_be_held_passes_unmerged() {
    let large = format!(r#"{{"text":"{}","meta_info":{{}}}}"#, "x".repeat(300_000));
    let (prefill, decode) = pair_of(Script::json(200, PREFILL), Script::json(200, &large)).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "--max-merge-bytes 2000").await;
    assert_eq!(gateway.generate("{}").await.text().await, large);
    decode.on("/generate", Script::json(200, DECODE));
    prefill.on("/generate", Script::json(200, &large));
    assert_eq!(gateway.generate("{}").await.text().await, DECODE);
    let figures = gateway.settled(&[("completed", 2)]).await;
    assert_eq!(figures["rollscope_merges_total{result=\"unmerged\"}"], 2);
    assert_eq!(legs(&figures, prefill.address(), "completed"), 2);
}

#[tokio::test]
async fn a_reply_that_is_just_too_large_is_whole_too() {
    let large = format!(r#"{{"text":"{}","meta_info":{{}}}}"#, "x".repeat(3000));
    let (prefill, decode) = pair_of(Script::json(200, PREFILL), Script::new()).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "--max-merge-bytes 2000").await;
    // All of it has been read by the time that it turns out to be too large.
    let (first, rest) = large.split_at(100);
    let (gate, head) = (Gate::new(), Script::head(200, &[], Some(large.len())));
    decode.on("/generate", head.send(first).wait(&gate).send(rest));
    let address = gateway.address;
    let reply = tokio::spawn(async move { Client::post(address, "/generate", "{}").await.text().await });
    gate.arrivals(1).await;
    gate.open();
    assert_eq!(reply.await.unwrap(), large);
    let figures = gateway.settled(&[("completed", 1)]).await;
    for worker in [&prefill, &decode] {
        assert_eq!(legs(&figures, worker.address(), "completed"), 1);
    }
}

#[tokio::test]
async fn a_prefill_that_ends_after_a_reply_which_does_not_need_it_ends_in_peace() {
    let stream = || Script::sse().event("{}").event("[DONE]").end();
    let chat = "/v1/chat/completions";
    let large = "x".repeat(300_000);
    for (path, to_decode) in [
        (chat, Script::json(200, DECODE)),
        (chat, Script::json(200, &large)),
        (chat, stream()),
        ("/generate", Script::json(200, "{no JSON}")),
        ("/generate", Script::json(200, &large)),
        ("/generate", stream()),
    ] {
        let gate = Gate::new();
        let (prefill, decode) = pair_of(Script::new(), Script::new()).await;
        prefill.on(path, waiting(&gate, PREFILL));
        decode.on(path, to_decode);
        let more = "--merge-wait-secs 60 --max-merge-bytes 2000";
        let gateway = TestGateway::pair(prefill.address(), decode.address(), more).await;
        let reply = Client::post(gateway.address, path, r#"{"messages":[],"rid":"r"}"#).await;
        assert_eq!(reply.status, 200);
        reply.text().await;
        gate.arrivals(1).await;
        gate.open();
        let profile = gateway.profiles(1).await.pop().unwrap();
        assert_eq!((profile.legs[0].outcome, profile.legs[0].status), (Outcome::Completed, Some(200)));
        assert!(prefill.calls("/abort_request").is_empty());
        gateway.settled(&[("completed", 1)]).await;
    }
}

#[tokio::test]
async fn a_prefill_stream_without_its_end_is_no_good_reply() {
    let cut = Script::sse().event(r#"{"meta_info":{"finish_reason":null}}"#).end();
    let (prefill, decode) = pair_of(cut, Script::new().hang()).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    let reply = gateway.generate(r#"{"stream":true}"#).await;
    assert_eq!(reply.status, 502);
    assert!(reply.text().await.contains("reply ended without its last event"));
    let figures = gateway.settled(&[("failed", 1)]).await;
    assert_eq!(legs(&figures, prefill.address(), "truncated"), 1);
    assert_eq!(legs(&figures, decode.address(), "aborted"), 1);
}

#[tokio::test]
async fn openai_replies_are_untouched() {
    let (prefill, decode) = pair_of(Script::new(), Script::new()).await;
    for path in ["/v1/chat/completions", "/v1/completions"] {
        prefill.on(path, Script::json(200, PREFILL));
        decode.on(path, Script::json(200, DECODE));
    }
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    for (path, body, rooms) in [
        ("/v1/chat/completions", r#"{"messages":[]}"#, 1),
        ("/v1/chat/completions", r#"{"messages":[],"n":2}"#, 2),
        ("/v1/completions", r#"{"prompt":["one string"],"echo":false}"#, 1),
    ] {
        assert_eq!(Client::post(gateway.address, path, body).await.text().await, DECODE);
        let sent: Value = serde_json::from_str(&decode.calls(path).pop().unwrap().request.text()).unwrap();
        let room = &sent["bootstrap_room"];
        assert_eq!(room.as_array().map_or(usize::from(room.is_u64()), Vec::len), rooms, "{body}: {sent}");
    }
    let figures = gateway.settled(&[("completed", 3)]).await;
    assert_eq!(figures["rollscope_merges_total{result=\"unmerged\"}"], 0);
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "--max-merge-bytes 1024").await;
    let large = "x".repeat(100_000);
    decode.on("/v1/completions", Script::json(200, &large));
    let reply = Client::post(gateway.address, "/v1/completions", r#"{"prompt":"a"}"#).await;
    assert_eq!(reply.text().await, large);
    let figures = gateway.settled(&[("completed", 1)]).await;
    assert_eq!(figures["rollscope_merges_total{result=\"unmerged\"}"], 0);
}

#[tokio::test]
async fn a_pair_is_needed_and_unknown_paths_are_refused() {
    let (prefill, decode) = pair_of(Script::json(200, PREFILL), Script::json(200, DECODE)).await;
    for (args, missing) in [
        (format!("--pd-disaggregation --decode {}", decode.url()), "prefill"),
        (format!("--pd-disaggregation --prefill {}", prefill.url()), "decode"),
    ] {
        let gateway = TestGateway::start(&args).await;
        let reply = gateway.generate("{}").await;
        assert_eq!(reply.status, 503);
        assert!(reply.text().await.contains(&format!("no {missing} worker is registered")));
    }
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    let reply = Client::post(gateway.address, "/v1/embeddings", "{}").await;
    assert_eq!(reply.status, 404);
    assert!(reply.text().await.contains("can not forward it to one worker: /v1/embeddings"));
    let reply = Client::post_with(gateway.address, "/generate", &[("content-encoding", "gzip")], "x").await;
    assert_eq!(reply.status, 415);
    let reply = gateway.generate("{").await;
    assert_eq!(reply.status, 400);
    assert!(prefill.calls("/generate").is_empty() && decode.calls("/generate").is_empty());
}

#[tokio::test]
async fn a_prefill_without_a_port_sends_null() {
    let (prefill, decode) = pair_of(Script::json(200, PREFILL), Script::json(200, DECODE)).await;
    let args = format!("--pd-disaggregation --prefill {} none --decode {}", prefill.url(), decode.url());
    let gateway = TestGateway::start(&args).await;
    gateway.generate("{}").await.text().await;
    assert_eq!(request(&prefill)["bootstrap_port"], Value::Null);
}
