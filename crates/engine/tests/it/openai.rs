//! OpenAI's interface: the same output in other words.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Pair, Server};

const PROMPT: &str = "47+85+19=?\n";

/// The events of a stream, the last one's mark left out.
async fn stream(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let (status, text) = server.text(Method::POST, path, &body.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let events = text.strip_suffix("data: [DONE]\n\n").expect("a stream ends with [DONE]");
    let data = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
    events.split_terminator("\n\n").map(data).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_say_what_generate_says() {
    let server = Server::start(&["--served-model-name", "adder"]).await;
    let generate = json!({"text": PROMPT, "return_logprob": true, "top_logprobs_num": 2,
        "sampling_params": {"temperature": 0, "max_new_tokens": 60}});
    let expected = server.generate(&generate).await;
    let body = json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 60, "logprobs": 2, "user": "me"});
    let (status, reply) = server.post("/v1/completions", &body).await;
    assert_eq!(status, StatusCode::OK, "{reply}");
    let choice = &reply["choices"][0];
    assert_eq!((&reply["object"], &reply["model"]), (&json!("text_completion"), &json!("adder")));
    assert_eq!(reply["metadata"], json!({"weight_version": "default"}));
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&expected["text"], &json!("stop")));
    let meta = &expected["meta_info"];
    let completion = meta["completion_tokens"].as_u64().unwrap();
    let prompt = meta["prompt_tokens"].as_u64().unwrap();
    assert_eq!(reply["usage"]["completion_tokens"], completion);
    assert_eq!(reply["usage"]["total_tokens"], prompt + completion);
    for (place, logprob) in choice["logprobs"]["token_logprobs"].as_array().unwrap().iter().enumerate() {
        let single = |logprob: &Value| logprob.as_f64().unwrap() as f32;
        assert!((single(logprob) - single(&meta["output_token_logprobs"][place][0])).abs() < 1e-7);
        assert_eq!(choice["logprobs"]["top_logprobs"][place].as_object().unwrap().len(), 2);
    }
    let mut streamed = body.clone();
    streamed["stream_options"] = json!({"include_usage": true});
    let events = stream(&server, "/v1/completions", &streamed).await;
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(expected["text"], text);
    assert_eq!(events.last().unwrap()["usage"], reply["usage"]);
    for event in &events {
        let is_end = event["choices"][0]["finish_reason"].is_string();
        assert_eq!(event["metadata"], if is_end { reply["metadata"].clone() } else { Value::Null });
    }

    // Lists of prompts, several replies each, tokens in place of text.
    let body = json!({"prompt": ["1+2=?\n", "3+4=?\n"], "n": 2, "temperature": 0, "max_tokens": 20});
    let (_, reply) = server.post("/v1/completions", &body).await;
    let texts: Vec<_> =
        reply["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect();
    assert_eq!(texts, ["1+2=3\n#3", "1+2=3\n#3", "3+4=7\n#7", "3+4=7\n#7"]);
    assert_eq!(reply["usage"]["prompt_tokens"], 2 * 7);
    let (_, reply) = server.post("/v1/completions", &json!({"prompt": [49, 43, 50], "max_tokens": 1})).await;
    assert_eq!(
        (&reply["usage"]["prompt_tokens"], &reply["choices"][0]["finish_reason"]),
        (&json!(3), &json!("length"))
    );
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chats_follow_the_checkpoints_template() {
    let server = Server::start(&[]).await;
    // The bundled template ends a user's message with a line feed, and leaves roles out.
    let expected = server
        .generate(&json!({"input_ids": PROMPT.as_bytes(), "sampling_params": {"temperature": 0, "max_new_tokens": 60}}))
        .await;
    for content in [json!(PROMPT.trim_end()), json!([{"type": "text", "text": PROMPT}])] {
        let body = json!({
            "messages": [{"role": "user", "content": content}],
            "temperature": 0, "max_completion_tokens": 60, "logprobs": true, "top_logprobs": 1,
        });
        let (status, reply) = server.post("/v1/chat/completions", &body).await;
        assert_eq!(status, StatusCode::OK, "{reply}");
        let choice = &reply["choices"][0];
        assert_eq!(choice["message"], json!({"role": "assistant", "content": expected["text"]}));
        let first = &choice["logprobs"]["content"][0];
        assert_eq!((&first["token"], &first["top_logprobs"][0]["token"]), (&json!("4"), &json!("4")));
        let events = stream(&server, "/v1/chat/completions", &body).await;
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        let deltas = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
        assert_eq!(expected["text"], deltas.collect::<String>());
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
    }
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pair_answers_and_bad_calls_are_refused() {
    let pair = Pair::start(&[]).await;
    let body = pair.paired(&json!({"prompt": "1+2=?\n", "temperature": 0, "max_tokens": 20}));
    let (prefill, decode) =
        tokio::join!(pair.prefill.post("/v1/completions", &body), pair.decode.post("/v1/completions", &body));
    assert_eq!(prefill.0, StatusCode::OK);
    assert_eq!(decode.1["choices"][0]["text"], "1+2=3\n#3");
    pair.until_free().await;

    let server = Server::start(&[]).await;
    let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
    for (path, body, reason) in [
        ("completions", json!({}), "prompt is missing"),
        ("completions", json!({"prompt": "1", "echo": true}), "echo is not supported"),
        ("completions", json!({"prompt": "1", "temperature": -1}), "temperature"),
        (
            "completions",
            json!({"prompt": "1", "frequency_penalty": 3}),
            "frequency_penalty must be in [-2, 2]",
        ),
        (
            "completions",
            json!({"prompt": "1", "response_format": {"type": "json_object"}}),
            "response_format",
        ),
        ("completions", json!({"prompt": [9999]}), "vocabulary"),
        ("chat/completions", json!({"messages": []}), "messages is missing or empty"),
        ("chat/completions", json!({"messages": [{"content": "x"}]}), "role"),
        (
            "chat/completions",
            json!({"messages": [{"role": "user", "content": image}]}),
            "image_url is not supported",
        ),
        (
            "chat/completions",
            json!({"messages": [{"role": "user", "content": ""}], "tools": [1]}),
            "tools is not",
        ),
        ("chat/completions", json!({"messages": [{"role": "user", "content": "1"}], "n": 0}), "n must be"),
    ] {
        let (status, reply) = server.post(&format!("/v1/{path}"), &body).await;
        let message = reply["error"]["message"].as_str().unwrap_or_default();
        assert!(status == StatusCode::BAD_REQUEST && message.contains(reason), "{body}: {status} {reply}");
    }
    server.until_free().await;
}
