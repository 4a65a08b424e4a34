//! What is recorded of what was asked and answered, if that is asked for.

use rollscope_testkit::{Client, FakeWorker, Script};
use rollscope_trace::{Attr, Profile};

use crate::harness::TestGateway;
use crate::pair::{DECODE, PREFILL, pair_of};

const REPLY: &str = r#"{"text":"two\n","output_ids":[5,6],"meta_info":{"completion_tokens":2,"finish_reason":{"type":"stop"},"output_token_logprobs":[[-0.5,5,"two"],[-1,6,"\n"]]}}"#;
const TOKENS: &str = r#"[[-0.5,5,"two"],[-1,6,"\n"]]"#;

async fn recording(worker: &FakeWorker, more: &str) -> TestGateway {
    TestGateway::start(&format!("--worker-urls {} --record-text {more}", worker.url())).await
}

/// The prompt, the output and its tokens; what is not there is empty.
fn said(profile: &Profile) -> [&str; 3] {
    ["prompt_text", "output_text", "output_token_logprobs"].map(|name| text(profile, name))
}

fn text<'a>(profile: &'a Profile, name: &str) -> &'a str {
    match profile.attrs.iter().find(|(other, _)| **other == *name) {
        Some((_, Attr::Text(text))) => text,
        _ => "",
    }
}

fn events(payloads: &[String]) -> Script {
    payloads.iter().fold(Script::sse(), |script, payload| script.event(payload)).event("[DONE]").end()
}

#[tokio::test]
async fn nothing_is_recorded_of_texts_unless_asked_for() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, REPLY));
    let gateway = TestGateway::regular(&[&worker]).await;
    gateway.generate(r#"{"text":"1+1"}"#).await.text().await;
    assert_eq!(gateway.profiles(1).await[0].attrs, []);
}

#[tokio::test]
async fn a_reply_is_recorded_however_it_comes() {
    let worker = FakeWorker::start().await;
    let gateway = recording(&worker, "").await;
    let (begin, end) = REPLY.split_at(70);
    // More than is kept of a reply to be read later.
    let padded =
        REPLY.replacen("\"meta_info\"", &format!("\"pad\":\"{}\",\"meta_info\"", "x".repeat(100_000)), 1);
    let scripts = [
        Script::json(200, REPLY),
        Script::json(200, &padded),
        Script::chunked(200, "application/json").send(begin).send(end).end(),
        Script::chunked(200, "application/json").send(&padded[..50_000]).send(&padded[50_000..]).end(),
    ];
    let count = scripts.len();
    worker.on_next("/generate", scripts);
    for _ in 0..count {
        let reply = gateway.generate(r#"{"text":"1+1"}"#).await.text().await;
        assert!(reply == REPLY || reply == padded);
    }
    for profile in gateway.profiles(count).await {
        assert_eq!(said(&profile), ["1+1", "two\n", TOKENS]);
        assert_eq!(profile.finish().unwrap().kind.name(), "stop");
    }
    // Token ids are no text, and a request that fails has no answer.
    worker.on("/generate", Script::json(500, r#"{"error":"no"}"#));
    gateway.generate(r#"{"input_ids":[1,2]}"#).await.text().await;
    gateway.generate(r#"{"text":"failing"}"#).await.text().await;
    let profiles = gateway.profiles(count + 2).await;
    assert_eq!(profiles[count..].iter().map(said).collect::<Vec<_>>(), [["", "", ""], ["failing", "", ""]]);
}

#[tokio::test]
async fn of_a_pair_the_answer_is_recorded() {
    let (prefill, decode) = pair_of(Script::json(200, PREFILL), Script::json(200, DECODE)).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "--record-text").await;
    gateway.generate(r#"{"text":"ask"}"#).await.text().await;
    assert_eq!(said(&gateway.profiles(1).await[0]), ["ask", "ü\n", ""]);
}

#[tokio::test]
async fn a_stream_is_recorded_as_a_whole_whichever_way_it_tells() {
    let worker = FakeWorker::start().await;
    let gateway = recording(&worker, "").await;
    let event = |text: &str, tokens: &str, so_far: usize, finish: &str| {
        format!(
            r#"{{"text":"{text}","meta_info":{{"completion_tokens":{so_far},"finish_reason":{finish},"output_token_logprobs":[{tokens}]}}}}"#
        )
    };
    let (stop, tokens) = (r#"{"type":"stop"}"#, TOKENS.trim_matches(['[', ']']).split_once("],[").unwrap());
    let (first, second) = (format!("[{}]", tokens.0), format!("[{}]", tokens.1));
    let both = format!("{first},{second}");
    let everything = [event("two", &first, 1, "null"), event(r"two\n", &both, 2, stop)];
    let news = [event("two", &first, 1, "null"), event(r"\n", &second, 2, stop)];
    // Too large to be kept until the request is over.
    let large = everything
        .clone()
        .map(|event| event.replacen('{', &format!("{{\"pad\":\"{}\",", "x".repeat(100_000)), 1));
    worker.on_next("/generate", [events(&everything), events(&news), events(&large)]);
    for _ in 0..3 {
        gateway.generate(r#"{"text":"1+1","stream":true}"#).await.text().await;
    }
    for profile in gateway.profiles(3).await {
        assert_eq!(said(&profile), ["1+1", "two\n", TOKENS]);
        assert_eq!(profile.finish().unwrap().kind.name(), "stop");
    }
}

#[tokio::test]
async fn what_was_said_before_a_reply_broke_off_is_recorded() {
    /// Reads until there is no more, or until the client has seen enough and leaves.
    async fn read_until(gateway: &TestGateway, body: &str, enough: &str) {
        let (mut reply, mut seen) = (gateway.generate(body).await, String::new());
        while let Some(piece) = reply.next().await {
            seen.push_str(std::str::from_utf8(&piece).unwrap());
            if seen.contains(enough) {
                return reply.leave();
            }
        }
    }
    let event = |text: &str, so_far: usize| {
        format!(r#"{{"text":"{text}","meta_info":{{"completion_tokens":{so_far},"finish_reason":null}}}}"#)
    };
    let begun = || Script::sse().event(&event("t", 1)).event(&event("two", 2));
    let half = || Script::chunked(200, "application/json").send(r#"{"text":"two","meta_"#);
    let worker = FakeWorker::start().await;
    let gateway = recording(&worker, "").await;
    let ways = [
        ("a stream's client leaves", begun().hang(), "two", "aborted"),
        ("a stream is cut", begun().close(), "never", "truncated"),
        ("a reply's client leaves", half().hang(), "two", "aborted"),
        ("a reply is cut", half().close(), "never", "truncated"),
    ];
    for (count, (what, script, enough, outcome)) in ways.into_iter().enumerate() {
        worker.on("/generate", script);
        let body = format!(r#"{{"text":"1+1","stream":{}}}"#, what.starts_with("a stream"));
        read_until(&gateway, &body, enough).await;
        let profile = gateway.profiles(count + 1).await.pop().unwrap();
        assert_eq!((said(&profile), profile.outcome.name()), (["1+1", "two", ""], outcome), "{what}");
    }
    let (prefill, decode) = pair_of(Script::json(200, PREFILL), begun().hang()).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "--record-text").await;
    read_until(&gateway, r#"{"text":"1+1","stream":true}"#, "two").await;
    assert_eq!(said(&gateway.profiles(1).await[0]), ["1+1", "two", ""]);
}

#[tokio::test]
async fn each_item_of_a_batch_has_its_own_texts() {
    let worker = FakeWorker::start().await;
    let gateway = recording(&worker, "").await;
    let item =
        |text: &str| format!(r#"{{"text":"{text}","meta_info":{{"finish_reason":{{"type":"stop"}}}}}}"#);
    let batch = ["a0", "a1", "b0", "b1"].map(item).join(",");
    worker.on("/generate", Script::json(200, &format!("[{batch}]")));
    gateway.generate(r#"{"text":["a","b"],"sampling_params":{"n":2}}"#).await.text().await;
    let expected = [["a", "a0", ""], ["a", "a1", ""], ["b", "b0", ""], ["b", "b1", ""]];
    assert_eq!(gateway.profiles(4).await.iter().map(said).collect::<Vec<_>>(), expected);
    // In a stream each event says whose it is.
    let event = |index: usize, text: &str| item(text).replacen('{', &format!("{{\"index\":{index},"), 1);
    worker.on("/generate", events(&[event(1, "b"), event(0, "a"), event(1, "bb"), event(0, "aa")]));
    gateway.generate(r#"{"text":["x","y"],"stream":true}"#).await.text().await;
    let profiles = gateway.profiles(6).await;
    assert_eq!(profiles[4..].iter().map(said).collect::<Vec<_>>(), [["x", "aa", ""], ["y", "bb", ""]]);
}

#[tokio::test]
async fn openais_routes_are_recorded_too() {
    let worker = FakeWorker::start().await;
    let gateway = recording(&worker, "").await;
    let (chat, completions) = ("/v1/chat/completions", "/v1/completions");
    let messages = r#""messages":[{"role":"system","content":"Add."},{"role":"user","content":[{"type":"text","text":"1+1"}]}]"#;
    let asked = "system: Add.\n\nuser: 1+1";
    let tokens = r#""logprobs":{"content":[{"token":"2","logprob":-0.5,"top_logprobs":[]}]}"#;
    worker.on(
        chat,
        Script::json(
            200,
            &format!(
                r#"{{"choices":[{{"index":0,"message":{{"role":"assistant","content":"2"}},{tokens}}}]}}"#
            ),
        ),
    );
    Client::post(gateway.address, chat, &format!("{{{messages}}}")).await.text().await;
    assert_eq!(said(&gateway.profiles(1).await[0]), [asked, "2", r#"[[-0.5,null,"2"]]"#]);

    let delta = |index: usize, text: &str| {
        format!(r#"{{"choices":[{{"index":{index},"delta":{{"content":"{text}"}}}}]}}"#)
    };
    worker.on(
        chat,
        events(&[delta(0, "a"), delta(1, "b"), delta(0, "a"), r#"{"choices":[],"usage":{}}"#.to_owned()]),
    );
    Client::post(gateway.address, chat, &format!(r#"{{"n":2,"stream":true,{messages}}}"#)).await.text().await;
    let profiles = gateway.profiles(3).await;
    assert_eq!(profiles[1..].iter().map(said).collect::<Vec<_>>(), [[asked, "aa", ""], [asked, "b", ""]]);

    let reply = r#"{"choices":[{"index":0,"text":"c","logprobs":{"tokens":["c"],"token_logprobs":[-2]}},{"index":1,"text":"d"}]}"#;
    worker.on(completions, Script::json(200, reply));
    Client::post(gateway.address, completions, r#"{"prompt":["x","y"]}"#).await.text().await;
    let profiles = gateway.profiles(5).await;
    let expected = [["x", "c", r#"[[-2,null,"c"]]"#], ["y", "d", ""]];
    assert_eq!(profiles[3..].iter().map(said).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn what_is_beyond_the_limit_is_left_out_and_told() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, REPLY));
    let gateway = recording(&worker, "--record-text-limit-bytes 14").await;
    gateway.generate(r#"{"text":"a prompt of some length"}"#).await.text().await;
    let profile = &gateway.profiles(1).await[0];
    assert_eq!(said(profile), ["a prompt of so…", "two\n", r#"[[-0.5,5,"two"]]"#]);
    assert_eq!(text(profile, "texts_cut"), "prompt_text, output_token_logprobs");
}
