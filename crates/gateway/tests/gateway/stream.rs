//! Streams of pairs: the first event at once, the merge into what follows, and breaks.

use rollscope_testkit::{CallEnd, Client, End, FakeWorker, Gate, Reply, Script, patient};
use serde_json::Value;

use crate::harness::{TestGateway, legs};
use crate::pair::{PREFILL, pair_of, waiting};

const SHARE: &str = r#""pd_prefill_forward_duration":0.10000000149011612,"pd_transfer_total_mb":1.50,"#;

/// An event of decode's.
fn event(tokens: u32, finish: &str) -> String {
    format!(
        r#"{{"text":"t","meta_info":{{"id":"d","finish_reason":{finish},"completion_tokens":{tokens}}}}}"#
    )
}

fn merged(event: &str) -> String {
    event.replacen(r#""meta_info":{"#, &format!("\"meta_info\":{{{SHARE}"), 1)
}

fn sse(events: &[&str]) -> String {
    events.iter().flat_map(|event| ["data: ", event, "\n\n"]).collect()
}

fn last_events() -> Script {
    Script::sse().event(PREFILL).event("[DONE]").end()
}

async fn piece(reply: &mut Reply) -> String {
    String::from_utf8(reply.next().await.unwrap().to_vec()).unwrap()
}

async fn gateway(prefill: &FakeWorker, decode: &FakeWorker) -> TestGateway {
    TestGateway::pair(prefill.address(), decode.address(), "--merge-wait-secs 60").await
}

#[tokio::test]
async fn what_prefill_measured_is_merged_into_the_events_that_follow_it() {
    let first = Gate::new();
    let (one, two) = (event(1, "null"), event(2, r#"{"type":"stop"}"#));
    let script = Script::sse().event(&one).wait(&first).event(&two).event("[DONE]").end();
    let (prefill, decode) = pair_of(last_events(), script).await;
    let gateway = gateway(&prefill, &decode).await;
    let mut reply = gateway.generate(r#"{"stream":true}"#).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let head = reply.next().await.unwrap();
    assert!(head.starts_with(b"data: {\"text\""));
    prefill.ended("/generate", 1).await;
    first.open();
    let (rest, end) = reply.rest().await;
    let all = String::from_utf8_lossy(&head).into_owned() + &rest;
    assert!(all.ends_with(&sse(&[&merged(&two), "[DONE]"])), "{all}");
    assert_eq!(end, End::Clean);
    let figures = gateway.settled(&[("completed", 1)]).await;
    assert_eq!(figures["rollscope_merges_total{result=\"merged\"}"], 1);
}

#[tokio::test]
async fn the_first_event_waits_for_nothing_and_the_last_for_prefill() {
    let (slow, tail) = (Gate::new(), Gate::new());
    let (one, two) = (event(1, "null"), event(2, r#"{"type":"length","length":2}"#));
    let decode = Script::sse().event(&one).wait(&tail).event(&two).event("[DONE]").end();
    let (prefill, decode) = pair_of(waiting(&slow, PREFILL), decode).await;
    let gateway = gateway(&prefill, &decode).await;
    let mut reply = gateway.generate(r#"{"stream":true}"#).await;
    // The prefill worker has not said a word.
    assert_eq!(piece(&mut reply).await, sse(&[&one]));
    tail.open();
    decode.ended("/generate", 1).await;
    slow.open();
    assert_eq!(reply.rest().await, (sse(&[&merged(&two), "[DONE]"]), End::Clean));
    gateway.settled(&[("completed", 1)]).await;
}

#[tokio::test]
async fn the_last_event_waits_no_longer_than_it_may() {
    let two = event(2, r#"{"type":"stop"}"#);
    let (prefill, decode) =
        pair_of(Script::new().hang(), Script::sse().event(&two).event("[DONE]").end()).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "--merge-wait-secs 0.02").await;
    let reply = gateway.generate(r#"{"stream":true}"#).await;
    assert_eq!(reply.rest().await, (sse(&[&two, "[DONE]"]), End::Clean));
    assert_eq!(prefill.ended("/generate", 1).await[0].end, Some(CallEnd::PeerLeft));
    let figures = gateway.settled(&[("completed", 1)]).await;
    assert_eq!(figures["rollscope_merges_total{result=\"unmerged\"}"], 1);
}

#[tokio::test]
async fn a_client_that_leaves_while_the_last_event_is_held_has_not_had_it() {
    let (one, two) = (event(1, "null"), event(2, r#"{"type":"stop"}"#));
    let decode = Script::sse().event(&one).event(&two).event("[DONE]").end();
    let (prefill, decode) = pair_of(Script::new().hang(), decode).await;
    let gateway = gateway(&prefill, &decode).await;
    let mut reply = gateway.generate(r#"{"stream":true}"#).await;
    assert_eq!(piece(&mut reply).await, sse(&[&one]));
    decode.ended("/generate", 1).await;
    reply.leave();
    assert_eq!(prefill.ended("/generate", 1).await[0].end, Some(CallEnd::PeerLeft));
    gateway.settled(&[("aborted", 1), ("completed", 0)]).await;
}

#[tokio::test]
async fn logprobs_are_joined_in_the_event_that_has_them() {
    let with_list = r#"{"meta_info":{"finish_reason":null,"input_token_logprobs":[]}}"#;
    let last = r#"{"meta_info":{"finish_reason":{"type":"stop"}}}"#;
    for list_first in [true, false] {
        let gate = Gate::new();
        let script = if list_first { Script::sse().event(with_list) } else { Script::sse() };
        let script = script.event(last).event("[DONE]").end();
        let (prefill, decode) = pair_of(waiting(&gate, PREFILL), script).await;
        let gateway = gateway(&prefill, &decode).await;
        let address = gateway.address;
        let body = r#"{"stream":true,"return_logprob":true}"#;
        let reply = tokio::spawn(async move { Client::post(address, "/generate", body).await.rest().await });
        // Decode has said all it had to say before prefill says a word.
        decode.ended("/generate", 1).await;
        gate.arrivals(1).await;
        gate.open();
        let (body, end) = reply.await.unwrap();
        assert_eq!(end, End::Clean);
        let events: Vec<Value> = body
            .split_terminator("\n\n")
            .filter(|event| !event.contains("[DONE]"))
            .map(|event| serde_json::from_str(event.trim_start_matches("data: ")).unwrap())
            .collect();
        let joined: Vec<bool> =
            events.iter().map(|event| event["meta_info"]["input_token_logprobs"][1][1] == 2).collect();
        assert_eq!(joined, if list_first { vec![true, false] } else { vec![true] }, "{body}");
    }
}

#[tokio::test]
async fn logprobs_of_an_event_that_was_held_in_vain_are_joined_in_the_last_one() {
    let with_list = r#"{"meta_info":{"finish_reason":null,"input_token_logprobs":[]}}"#;
    let last = r#"{"meta_info":{"finish_reason":{"type":"stop"}}}"#;
    let (of_prefill, of_decode) = (Gate::new(), Gate::new());
    let stream = Script::sse().event(with_list).wait(&of_decode).event(last).event("[DONE]").end();
    let (prefill, decode) = pair_of(waiting(&of_prefill, PREFILL), stream).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "--merge-wait-secs 0.05").await;
    let mut reply = gateway.generate(r#"{"stream":true,"return_logprob":true}"#).await;
    assert_eq!(piece(&mut reply).await, sse(&[with_list]));
    of_prefill.open();
    patient("the end of the prefill's leg", async {
        while legs(&gateway.figures().await, prefill.address(), "completed") == 0 {}
    })
    .await;
    of_decode.open();
    let joined = r#""input_token_logprobs":[[null,1,null],[-0.5,2,null]],"#;
    let merged = last.replacen(r#""meta_info":{"#, &format!("\"meta_info\":{{{SHARE}{joined}"), 1);
    assert_eq!(reply.rest().await, (sse(&[&merged, "[DONE]"]), End::Clean));
    let figures = gateway.settled(&[("completed", 1)]).await;
    assert_eq!(figures["rollscope_merges_total{result=\"merged\"}"], 1);
}

#[tokio::test]
async fn events_are_cut_out_of_whatever_the_network_makes_of_them() {
    let last = event(2, r#"{"type":"stop"}"#);
    let stream = format!(": hi\r\n\r\ndata: {}\r\n\r\ndata:{last}\n\ndata: [DONE]", event(1, "null"));
    let whole = stream.replace(&last, &merged(&last));
    for size in [1, 7, 1000] {
        let mut script = Script::sse();
        for piece in stream.as_bytes().chunks(size) {
            script = script.send(std::str::from_utf8(piece).unwrap());
        }
        let (prefill, decode) = pair_of(last_events(), script.end()).await;
        let gateway = gateway(&prefill, &decode).await;
        let (body, end) = gateway.generate(r#"{"stream":true}"#).await.rest().await;
        // The first event may or may not have met the prefill's reply.
        let body = body.replacen(&merged(&event(1, "null")), &event(1, "null"), 1);
        assert_eq!((body, end), (whole.clone(), End::Clean), "pieces of {size}");
    }
}

/// A stream of decode's, and what the client gets of it.
struct Split {
    name: &'static str,
    stream: String,
    merged: String,
}

fn splits() -> [Split; 2] {
    let chunk = |text: &str, list: &str, finish: &str| {
        format!(r#"{{"text":"{text}","meta_info":{{{list}"finish_reason":{finish}}}}}"#)
    };
    let (none, prompts) =
        (r#""input_token_logprobs":[],"#, r#""input_token_logprobs":[[null,1,null],[-0.5,2,null]],"#);
    let done = r#"{"type":"stop"}"#;
    let pair = |line_end: &str, chunks: [String; 2], tail: &str| {
        let [first, last] = chunks;
        format!(": hi{line_end}{line_end}data: {first}{line_end}{line_end}data:{last}{line_end}{tail}")
    };
    [
        Split {
            name: "cumulative",
            stream: pair("\n", [chunk("a", none, "null"), chunk("aé", none, done)], "\ndata: [DONE]\n\n"),
            merged: pair(
                "\n",
                [merged(&chunk("a", prompts, "null")), merged(&chunk("aé", prompts, done))],
                "\ndata: [DONE]\n\n",
            ),
        },
        Split {
            name: "incremental, CRLF, without an end",
            stream: pair("\r\n", [chunk("a", none, "null"), chunk("é", "", done)], ": bye"),
            merged: pair(
                "\r\n",
                [merged(&chunk("a", prompts, "null")), merged(&chunk("é", "", done))],
                ": bye",
            ),
        },
    ]
}

#[tokio::test]
async fn an_event_of_several_data_lines_is_an_event() {
    let lines = "data: {\ndata: \"text\": \"a\"}\n\n";
    let mark = "data: [DONE]\n\n";
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::sse().send(lines).send(mark).end());
    let gateway = TestGateway::regular(&[&worker]).await;
    let ask = r#"{"text":"a","stream":true}"#;
    assert_eq!(gateway.generate(ask).await.rest().await, (format!("{lines}{mark}"), End::Clean));
    gateway.settled(&[("completed", 1)]).await;

    // Nor is the first one of a pair held back for another.
    let (prefill, decode, gate) = (FakeWorker::start().await, FakeWorker::start().await, Gate::new());
    prefill.on("/generate", Script::sse().send(lines).send(mark).end());
    decode.on("/generate", Script::sse().send(lines).wait(&gate).send(mark).end());
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    let mut reply = patient("the head", gateway.generate(ask)).await;
    assert_eq!(piece(&mut reply).await, lines);
    gate.open();
    assert_eq!(reply.rest().await, (mark.to_owned(), End::Clean));
    gateway.settled(&[("completed", 1)]).await;
}

#[tokio::test]
async fn every_split_point_of_a_stream_gives_the_same_reply() {
    for Split { name, stream, merged } in splits() {
        let (prefill, decode) = pair_of(Script::json(200, PREFILL), Script::new()).await;
        let gateway = gateway(&prefill, &decode).await;
        let places: Vec<usize> = (1..stream.len()).filter(|place| stream.is_char_boundary(*place)).collect();
        for place in &places {
            let (head, tail) = stream.split_at(*place);
            decode.on("/generate", Script::sse().send(head).send(tail).end());
            // Its list of log-probabilities has the first event wait for the prefill's reply.
            let reply = gateway.generate(r#"{"stream":true,"return_logprob":true}"#).await;
            assert_eq!(reply.rest().await, (merged.clone(), End::Clean), "{name}, split at {place}");
        }
        let figures = gateway.settled(&[("completed", places.len() as u64)]).await;
        assert_eq!(figures["rollscope_merges_total{result=\"merged\"}"], places.len() as u64);
    }
}

#[tokio::test]
async fn a_streamed_batch_is_merged_sample_by_sample() {
    let part = |index: u32, member: &str, finish: &str| {
        format!(r#"{{"index":{index},"meta_info":{{{member}"finish_reason":{finish}}}}}"#)
    };
    let done = r#"{"type":"stop"}"#;
    let prefill =
        [part(0, "\"pd_prefill_retry_count\":4,", done), part(1, "\"pd_prefill_retry_count\":5,", done)];
    let decode = [part(1, "", done), part(0, "", done)];
    let stream =
        |events: &[String; 2]| Script::sse().event(&events[0]).event(&events[1]).event("[DONE]").end();
    let (prefill, decode) = pair_of(stream(&prefill), stream(&decode)).await;
    let gateway = gateway(&prefill, &decode).await;
    let (body, end) = gateway.generate(r#"{"text":["a","b"],"stream":true}"#).await.rest().await;
    let expected = [
        part(1, "\"pd_prefill_retry_count\":5,", done),
        part(0, "\"pd_prefill_retry_count\":4,", done),
        "[DONE]".to_owned(),
    ];
    assert_eq!((body, end), (sse(&expected.each_ref().map(|event| &**event)), End::Clean));
}

#[tokio::test]
async fn a_stream_that_is_not_read_and_breaks_ends_in_an_error_event_of_its_api() {
    let worker = FakeWorker::start().await;
    let gateway =
        TestGateway::start(&format!("--worker-urls {} --disable-circuit-breaker", worker.url())).await;
    let delta = |number: u32| format!("event: x\ndata: {{\"sequence_number\":{number}}}\n\n");
    let paths = ["/v1/responses", "/v1/messages", "/v1/other"];
    for path in paths {
        for (received, begin) in [
            (": hi\n\n".to_owned() + &delta(0) + &delta(1), ""),
            (delta(0) + &delta(1) + "event: x\nda", "\n\n"),
            (delta(0) + &delta(1) + "data: " + &"x".repeat(70 << 10), "\n\n"),
            (delta(0) + &delta(1) + "data: " + &"x".repeat(70 << 10) + "\n", "\n\n"),
        ] {
            let stream = received
                .as_bytes()
                .chunks(1 << 10)
                .fold(Script::sse(), |script, piece| script.send(std::str::from_utf8(piece).unwrap()));
            worker.on(path, stream.close());
            let (body, end) = Client::post(gateway.address, path, "{}").await.rest().await;
            assert_eq!(end, End::Cut, "{path}");
            let said = body.strip_prefix(&*received).unwrap().strip_prefix(begin).unwrap();
            let name = if path == "/v1/other" { "" } else { "event: error\n" };
            let data = said.strip_prefix(name).and_then(|said| said.strip_prefix("data: ")).unwrap();
            let data: Value = serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap();
            let message = match path {
                "/v1/responses" => {
                    let told = (&data["type"], &data["code"], &data["sequence_number"], &data["param"]);
                    assert_eq!(told, (&"error".into(), &"worker_error".into(), &2.into(), &Value::Null));
                    &data["message"]
                }
                "/v1/messages" => {
                    assert_eq!(
                        (&data["type"], &data["error"]["type"]),
                        (&"error".into(), &"api_error".into())
                    );
                    &data["error"]["message"]
                }
                _ => &data["error"]["message"],
            };
            assert!(message.as_str().unwrap().contains("reply cut"), "{message}");
        }
    }
    // To what is no stream of events, or is encoded, or has a length, nothing is added.
    for headers in [
        &[("content-type", "application/json"), ("transfer-encoding", "chunked")][..],
        &[
            ("content-type", "text/event-stream"),
            ("content-encoding", "gzip"),
            ("transfer-encoding", "chunked"),
        ],
        &[("content-type", "text/event-stream"), ("content-length", "100")],
    ] {
        let is_chunked = headers.iter().any(|(name, _)| *name == "transfer-encoding");
        let piece = if is_chunked { "8\r\ndata: 1\n\r\n" } else { "data: 1\n" };
        worker.on("/v1/responses", Script::head(200, headers, None).raw(piece).close());
        let reply = Client::post(gateway.address, "/v1/responses", "{}").await.rest().await;
        assert_eq!(reply, ("data: 1\n".to_owned(), End::Cut));
    }
    gateway.settled(&[("truncated", 4 * 3 + 3)]).await;
}

#[tokio::test]
async fn a_sample_that_never_finishes_is_a_failure_whatever_the_streams_mark_says() {
    let part =
        |index: u32, finish: &str| format!(r#"{{"index":{index},"meta_info":{{"finish_reason":{finish}}}}}"#);
    let done = r#"{"type":"stop"}"#;
    let batch = r#"{"text":["a","b"],"stream":true}"#;
    for (what, body, events, sample) in [
        ("null to the end", batch, vec![part(0, done), part(1, "null")], Some(1)),
        ("never heard of", batch, vec![part(1, "null"), part(1, done)], Some(0)),
        ("alone", r#"{"stream":true}"#, vec![part(0, "null")], None),
        ("finished", batch, vec![part(1, done), part(0, "null"), part(0, done)], None),
        ("says nothing", batch, vec![r#"{"index":0}"#.to_owned(), r#"{"index":1}"#.to_owned()], None),
        ("says not whose it is", batch, vec![event(1, done), event(1, done)], None),
    ] {
        let stream =
            events.iter().fold(Script::sse(), |stream, event| stream.event(event)).event("[DONE]").end();
        let worker = FakeWorker::start().await;
        worker.on("/generate", stream.clone());
        let (prefill, decode) = pair_of(Script::json(200, PREFILL), stream).await;
        for gateway in [
            TestGateway::regular(&[&worker]).await,
            TestGateway::pair(prefill.address(), decode.address(), "").await,
        ] {
            let (_, end) = gateway.generate(body).await.rest().await;
            assert_eq!(end, End::Clean, "{what}: it is passed on as it came");
            gateway.settled(&[(if sample.is_some() { "failed" } else { "completed" }, 1)]).await;
            let profile = gateway.profiles(if body == batch { 2 } else { 1 }).await.remove(0);
            let told = sample
                .map(|index: u32| format!("the stream ended without the finish reason of sample {index}"));
            assert_eq!(profile.error.as_deref(), told.as_deref(), "{what}");
        }
    }
}

#[tokio::test]
async fn a_break_after_the_first_event_is_told_and_the_other_is_cancelled() {
    for (what, end) in
        [("reset", Script::reset as fn(Script) -> Script), ("close", Script::close), ("end", Script::end)]
    {
        let first = event(1, "null");
        let (prefill, decode) = pair_of(Script::new().hang(), end(Script::sse().event(&first))).await;
        let gateway = gateway(&prefill, &decode).await;
        let (body, end) = gateway.generate(r#"{"stream":true}"#).await.rest().await;
        assert_eq!(end, End::Cut, "{what}");
        let mut events = body.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
        assert_eq!(events.next(), Some(&*first), "{what}");
        let error: Value = serde_json::from_str(events.next().unwrap()).unwrap();
        assert_eq!(error["error"]["code"], "decode_server_error", "{what}");
        assert_eq!(prefill.ended("/generate", 1).await[0].end, Some(CallEnd::PeerLeft), "{what}");
        gateway.settled(&[("truncated", 1)]).await;
    }
}

#[tokio::test]
async fn a_prefill_that_fails_after_the_first_event_costs_only_its_share() {
    let (fail, tail) = (Gate::new(), Gate::new());
    let (one, two) = (event(1, "null"), event(2, r#"{"type":"stop"}"#));
    let decode = Script::sse().event(&one).wait(&tail).event(&two).event("[DONE]").end();
    let (prefill, decode) = pair_of(Script::new().wait(&fail).reset(), decode).await;
    let gateway = gateway(&prefill, &decode).await;
    let mut reply = gateway.generate(r#"{"stream":true}"#).await;
    assert_eq!(piece(&mut reply).await, sse(&[&one]));
    fail.open();
    prefill.ended("/generate", 1).await;
    tail.open();
    assert_eq!(reply.rest().await, (sse(&[&two, "[DONE]"]), End::Clean));
    let figures = gateway.settled(&[("completed", 1)]).await;
    assert_eq!(figures["rollscope_merges_total{result=\"unmerged\"}"], 1);
}

#[tokio::test]
async fn openai_streams_pass_untouched_in_pairs() {
    let chunk = r#"{"choices":[{"delta":{"content":"a"}}],"meta_info":{}}"#;
    let (prefill, decode) = pair_of(Script::new(), Script::new()).await;
    let path = "/v1/chat/completions";
    prefill.on(path, Script::sse().event(PREFILL).event("[DONE]").end());
    decode.on(path, Script::sse().event(chunk).event("[DONE]").end());
    let gateway = gateway(&prefill, &decode).await;
    let reply = Client::post(gateway.address, path, r#"{"messages":[],"stream":true}"#).await;
    assert_eq!(reply.rest().await, (sse(&[chunk, "[DONE]"]), End::Clean));
    decode.on(path, Script::sse().event(chunk).end());
    let reply = Client::post(gateway.address, path, r#"{"messages":[],"stream":true}"#).await;
    assert_eq!(reply.rest().await.1, End::Cut);
    gateway.settled(&[("completed", 1), ("truncated", 1)]).await;
}
