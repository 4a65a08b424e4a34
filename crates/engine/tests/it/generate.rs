//! One server alone: what `/generate` returns.

use futures_util::future::join_all;
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::support::{Server, greedy};

const PROMPT: &str = "47+85+19=?\n";
const ANSWER: &str = "47+85=132\n132+19=151\n#151";
const EOS: u32 = 257;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_has_text_tokens_and_measurements() {
    let server = Server::start(&["--weight-version", "v7"]).await;
    let reply = server.generate(&json!({"text": PROMPT, "sampling_params": greedy(64), "rid": "mine"})).await;
    assert_eq!(reply["text"], ANSWER);
    assert_eq!(reply["output_ids"].as_array().unwrap().len(), ANSWER.len() + 1);
    let meta = &reply["meta_info"];
    assert_eq!(meta["id"], "mine");
    assert_eq!(meta["finish_reason"], json!({"type": "stop", "matched": EOS}));
    assert_eq!(meta["prompt_tokens"], PROMPT.len() + 1);
    assert_eq!(meta["completion_tokens"], ANSWER.len() + 1);
    assert_eq!(meta["cached_tokens"], 0);
    assert_eq!(meta["weight_version"], "v7");
    for name in ["e2e_latency", "queue_time", "decode_throughput"] {
        assert!(meta[name].as_f64().unwrap() >= 0.0, "{name}: {meta}");
    }
    let in_order = [
        "request_received_ts",
        "api_server_dispatch_finish_ts",
        "forward_entry_time",
        "prefill_finished_time",
        "request_finished_ts",
        "response_sent_to_client_ts",
    ];
    assert!(in_order.map(|name| meta[name].as_f64().unwrap()).is_sorted(), "{meta}");
    assert!(meta.as_object().unwrap().keys().all(|key| !key.starts_with("pd_")), "{meta}");
    assert!(meta.get("input_token_logprobs").is_none());

    let ids: Vec<u32> = [256].into_iter().chain(PROMPT.bytes().map(u32::from)).collect();
    let by_ids = server.generate(&json!({"input_ids": ids, "sampling_params": greedy(64)})).await;
    assert_eq!(by_ids["output_ids"], reply["output_ids"]);
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_answered_in_order() {
    let server = Server::start(&[]).await;
    let reply = server
        .generate(&json!({
            "text": [PROMPT, "1+2=?\n", "3+4=?\n"],
            "sampling_params": [greedy(3), greedy(64), greedy(64)],
            "return_logprob": [true, false, false],
            "rid": "many",
        }))
        .await;
    let texts: Vec<_> =
        reply.as_array().unwrap().iter().map(|reply| reply["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["47+", "1+2=3\n#3", "3+4=7\n#7"]);
    let ids: Vec<_> = reply.as_array().unwrap().iter().map(|reply| &reply["meta_info"]["id"]).collect();
    assert_eq!(ids, ["many_0", "many_1", "many_2"]);
    assert_eq!(reply[0]["meta_info"]["finish_reason"], json!({"type": "length", "length": 3}));
    assert!(reply[0]["meta_info"].get("output_token_logprobs").is_some());
    assert!(reply[1]["meta_info"].get("output_token_logprobs").is_none());
    // A list of one is a list.
    let one = server.generate(&json!({"input_ids": [[1, 2]], "sampling_params": greedy(2)})).await;
    assert_eq!(one.as_array().unwrap().len(), 1);
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_grows_to_the_reply() {
    let server = Server::start(&[]).await;
    let body = json!({"text": PROMPT, "sampling_params": greedy(64), "return_logprob": true});
    let reply = server.generate(&body).await;
    let events = server.stream(&body).await;
    let (last, before) = events.split_last().unwrap();
    for name in ["text", "output_ids"] {
        assert_eq!(last[name], reply[name]);
    }
    assert_eq!(last["meta_info"]["output_token_logprobs"], reply["meta_info"]["output_token_logprobs"]);
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "stop");
    let mut shown = "";
    for event in before {
        assert_eq!(event["meta_info"]["finish_reason"], Value::Null);
        let text = event["text"].as_str().unwrap();
        assert!(text.starts_with(shown) && ANSWER.starts_with(text), "{text:?} after {shown:?}");
        shown = text;
    }

    let events = server.stream(&json!({"text": [PROMPT, "1+2=?\n"], "sampling_params": greedy(64)})).await;
    let text_of = |index: u64| {
        let last = events.iter().rfind(|event| event["index"] == index).unwrap();
        last["text"].as_str().unwrap()
    };
    assert_eq!((text_of(0), text_of(1)), (ANSWER, "1+2=3\n#3"));
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generation_stops_where_it_is_told() {
    let server = Server::start(&[]).await;
    let newline = u32::from(b'\n');
    for (sampling, text, reason) in [
        (json!({"stop": "132\n"}), "47+85=", json!({"type": "stop", "matched": "132\n"})),
        (
            json!({"stop": ["?", "\n1"], "no_stop_trim": true}),
            "47+85=132\n1",
            json!({"type": "stop", "matched": "\n1"}),
        ),
        (json!({"stop": "nowhere"}), ANSWER, json!({"type": "stop", "matched": EOS})),
        (json!({"stop_token_ids": [newline]}), "47+85=132", json!({"type": "stop", "matched": newline})),
        (
            json!({"stop_token_ids": [newline], "no_stop_trim": true}),
            "47+85=132\n",
            json!({"type": "stop", "matched": newline}),
        ),
        (json!({"max_new_tokens": 5}), "47+85", json!({"type": "length", "length": 5})),
        (json!({"max_new_tokens": 0}), "", json!({"type": "length", "length": 0})),
        (
            json!({"skip_special_tokens": false, "no_stop_trim": true}),
            "47+85=132\n132+19=151\n#151<|eos|>",
            json!({"type": "stop", "matched": EOS}),
        ),
    ] {
        let mut sampling = sampling;
        sampling["temperature"] = json!(0);
        let reply = server.generate(&json!({"text": PROMPT, "sampling_params": sampling})).await;
        assert_eq!(reply["text"], text, "{sampling}");
        assert_eq!(reply["meta_info"]["finish_reason"], reason, "{sampling}");
    }
    // The stop token is not chosen before it may be, and counts for nothing when it is ignored.
    for sampling in [json!({"min_new_tokens": 40}), json!({"ignore_eos": true})] {
        let mut sampling = sampling;
        (sampling["temperature"], sampling["max_new_tokens"]) = (json!(0), json!(45));
        let reply = server.generate(&json!({"text": PROMPT, "sampling_params": sampling})).await;
        assert!(reply["meta_info"]["completion_tokens"].as_u64().unwrap() >= 40, "{sampling}: {reply}");
    }
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn penalties_and_biases_change_what_is_chosen() {
    let server = Server::start(&[]).await;
    let generate = async |change: Value| {
        let mut sampling = greedy(40);
        sampling.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let body = json!({"text": PROMPT, "sampling_params": sampling, "return_logprob": true});
        server.generate(&body).await
    };
    let plain = generate(json!({})).await;
    let neutral =
        json!({"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "logit_bias": {}});
    for said in ["text", "output_ids"] {
        assert_eq!(generate(neutral.clone()).await[said], plain[said]);
    }
    // What is ruled in comes each time and is all but certain, what is ruled out never.
    let forced = generate(json!({"logit_bias": {"65": 1e6}})).await;
    assert_eq!(forced["text"], "A".repeat(40));
    assert_eq!(forced["meta_info"]["output_token_logprobs"][0][0].as_f64(), Some(0.0));
    let first = plain["output_ids"][0].as_u64().unwrap();
    let without = generate(json!({"logit_bias": {first.to_string(): -1e9}})).await;
    assert!(without["output_ids"].as_array().unwrap().iter().all(|token| token != first), "{without}");
    // What is penalised for having come is chosen no more when another is as good: of two tokens that are ruled in alike, each
    // has its turn.
    let pair = json!({"65": 1e6, "66": 1e6});
    for penalty in
        [json!({"frequency_penalty": 2}), json!({"presence_penalty": 2}), json!({"repetition_penalty": 2})]
    {
        let mut change = penalty.clone();
        change["logit_bias"] = pair.clone();
        let text = generate(change).await["text"].as_str().unwrap().to_owned();
        assert!(text.contains('A') && text.contains('B'), "{penalty}: {text}");
    }
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_have_the_shapes_asked_for() {
    let server = Server::start(&["--chunked-prefill-size", "3"]).await;
    let prompt: Vec<u32> = [256].into_iter().chain(PROMPT.bytes().map(u32::from)).collect();
    let body = json!({
        "input_ids": prompt,
        "sampling_params": greedy(4),
        "return_logprob": true,
        "logprob_start_len": 2,
        "top_logprobs_num": 3,
        "return_text_in_logprobs": true,
    });
    let meta = server.generate(&body).await["meta_info"].clone();
    let input = meta["input_token_logprobs"].as_array().unwrap();
    let tokens: Vec<_> = input.iter().map(|entry| entry[1].as_u64().unwrap()).collect();
    assert_eq!(tokens, prompt[2..].iter().map(|token| u64::from(*token)).collect::<Vec<_>>());
    assert_eq!(input[0][0], Value::Null);
    assert!(input[1..].iter().all(|entry| entry[0].as_f64().unwrap() <= 0.0), "{meta}");
    assert_eq!(input[0][2], "7");
    let tops = meta["input_top_logprobs"].as_array().unwrap();
    assert_eq!((tops.len(), &tops[0]), (input.len(), &Value::Null));
    assert!(tops[1..].iter().all(|top| top.as_array().unwrap().len() == 3));
    let output = meta["output_token_logprobs"].as_array().unwrap();
    assert_eq!(output.iter().map(|entry| entry[2].as_str().unwrap()).collect::<String>(), "47+8");
    // The greedy choice is the likeliest token.
    for (entry, top) in output.iter().zip(meta["output_top_logprobs"].as_array().unwrap()) {
        assert_eq!((&top[0], top.as_array().unwrap().len()), (entry, 3));
    }
    assert_eq!(meta["output_token_logprobs_length"], 4);

    // The same, whatever the chunks; without a start, the prompt's last token alone.
    let whole = Server::start(&[]).await;
    assert_eq!(whole.generate(&body).await["meta_info"]["input_token_logprobs"], json!(input));
    let mut body = body;
    body["logprob_start_len"] = json!(-1);
    let meta = whole.generate(&body).await["meta_info"].clone();
    assert_eq!(meta["input_token_logprobs"], json!([[null, 10, "\n"]]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_makes_a_sample_repeatable() {
    let server = Server::start(&[]).await;
    let sample = async |seed: Option<i64>| {
        let sampling =
            json!({"temperature": 1.5, "max_new_tokens": 40, "ignore_eos": true, "sampling_seed": seed});
        server.generate(&json!({"text": PROMPT, "sampling_params": sampling})).await["output_ids"].clone()
    };
    assert_eq!(sample(Some(5)).await, sample(Some(5)).await);
    assert_ne!(sample(Some(5)).await, sample(Some(-6)).await);
    assert_ne!(sample(None).await, sample(None).await);
    // The server's own seed fixes those of the requests, in order of arrival.
    let first_of = async || {
        let server = Server::start(&["--random-seed", "11"]).await;
        let sampling = json!({"temperature": 1.5, "max_new_tokens": 40, "ignore_eos": true});
        server.generate(&json!({"text": PROMPT, "sampling_params": sampling})).await["output_ids"].clone()
    };
    assert_eq!(first_of().await, first_of().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_else_is_in_the_batch_changes_nothing() {
    // Few pages and a small batch, so that requests wait for each other as well.
    let args = ["--max-running-requests", "24", "--max-total-tokens", "4096", "--chunked-prefill-size", "48"];
    let server = Server::start(&args).await;
    let body = |index: usize| {
        let ids: Vec<_> = (0..=index * 37 % 300).map(|place| (place * 7 + index * 13) % 256).collect();
        json!({
            "input_ids": ids,
            "sampling_params": {
                "temperature": if index.is_multiple_of(3) { 0.0 } else { 1.0 },
                "top_p": if index.is_multiple_of(5) { 0.9 } else { 1.0 },
                "max_new_tokens": 1 + index * 11 % 60,
                "ignore_eos": true,
                "sampling_seed": index,
            },
            "return_logprob": true,
            "logprob_start_len": 0,
        })
    };
    let said = |reply: &Value| {
        let meta = &reply["meta_info"];
        (
            reply["output_ids"].clone(),
            meta["output_token_logprobs"].clone(),
            meta["input_token_logprobs"].clone(),
        )
    };
    let mut alone = Vec::new();
    for index in 0..64 {
        alone.push(said(&server.generate(&body(index)).await));
    }
    let bodies: Vec<_> = (0..64).map(body).collect();
    let together = join_all(bodies.iter().map(|body| server.generate(body))).await;
    for (index, (alone, together)) in alone.iter().zip(&together).enumerate() {
        assert_eq!(*alone, said(together), "request {index}");
    }
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_makes_no_sense_is_refused_with_a_reason() {
    let limits = ["--context-length", "100", "--max-total-tokens", "64"];
    let queue = ["--max-running-requests", "2", "--max-queued-requests", "3"];
    let server = Server::start(&[limits, queue].concat()).await;
    let with = |sampling: Value| json!({"text": "1", "sampling_params": sampling});
    let cases = [
        (json!({}), "no prompt"),
        (json!({"text": "1", "input_ids": [1]}), "both given"),
        (json!({"text": 5}), "text: expected"),
        (json!({"input_ids": []}), "no tokens"),
        (json!({"input_ids": [[]]}), "no tokens"),
        (json!({"text": []}), "empty"),
        (json!({"input_ids": [1, 320]}), "token 320 is not in the vocabulary of 320"),
        (json!({"input_ids": [-1]}), "token -1"),
        (json!({"input_ids": ["a"]}), "input_ids: expected"),
        (json!({"input_ids": vec![1; 100]}), "longer than the model's context length"),
        (
            json!({"input_ids": vec![1; 60], "sampling_params": {"max_new_tokens": 41}}),
            "maximum context length of 100",
        ),
        (
            json!({"input_ids": vec![1; 60], "sampling_params": {"max_new_tokens": 40}}),
            "99 tokens of KV cache",
        ),
        (with(json!({"temperature": -1})), "temperature"),
        (with(json!({"temperature": "hot"})), "temperature"),
        (with(json!({"top_p": 0})), "top_p"),
        (with(json!({"top_p": 1.1})), "top_p"),
        (with(json!({"top_k": 0})), "top_k"),
        (with(json!({"min_p": 2})), "min_p"),
        (with(json!({"max_new_tokens": -1})), "max_new_tokens"),
        (with(json!({"max_new_tokens": 4, "min_new_tokens": 5})), "min_new_tokens"),
        (with(json!({"stop": [""]})), "stop must"),
        (with(json!({"stop": 5})), "stop"),
        (with(json!({"stop_token_ids": [-5]})), "stop_token_ids"),
        (with(json!({"stop_token_ids": "x"})), "stop_token_ids"),
        (with(json!({"n": 0})), "n must be at least 1"),
        (
            with(json!({"n": 1_u64 << 40})),
            "n is too large: 1099511627776 replies to each prompt, this server holds 5 requests at once",
        ),
        (json!({"text": ["1", "2"], "sampling_params": [{"n": 1}, {"n": 2}]}), "n must be the same"),
        (with(json!({"custom_params": {"return_top_p_token_ids": "yes"}})), "return_top_p_token_ids"),
        (json!({"text": vec!["1"; 6]}), "6 prompts, this server holds 5 requests at once"),
        (json!({"input_ids": vec![[1]; 6]}), "6 prompts, this server holds 5 requests at once"),
        (with(json!({"regex": "a+"})), "regex is not supported"),
        (with(json!({"frequency_penalty": 2.5})), "frequency_penalty must be in [-2, 2]"),
        (with(json!({"presence_penalty": "much"})), "presence_penalty"),
        (with(json!({"repetition_penalty": 0})), "repetition_penalty must be in (0, 2]"),
        (with(json!({"logit_bias": {"320": 1}})), "logit_bias: token 320 is not in the vocabulary of 320"),
        (with(json!({"logit_bias": {"1": 1e31}})), "logit_bias must be within"),
        (with(json!({"logit_bias": {"one": 1}})), "logit_bias"),
        (json!({"text": "1", "image_data": "x.png"}), "image_data is not supported"),
        (json!({"text": ["1", "2"], "lora_path": [null, "a"]}), "lora_path is not supported"),
        (json!({"text": "1", "return_logprob": true, "logprob_start_len": 2}), "logprob_start_len"),
        (json!({"text": "1", "return_logprob": true, "top_logprobs_num": 129}), "top_logprobs_num"),
        (json!({"text": ["1", "2"], "rid": ["a"]}), "rid has 1 entries for 2 requests"),
        (json!({"text": "1", "rid": ""}), "rid must"),
        (json!({"text": "1", "stream": "yes"}), "stream"),
        (json!([1]), "not a JSON object"),
    ];
    for (body, reason) in &cases {
        let (status, reply) = server.post("/generate", body).await;
        let message = reply["error"]["message"].as_str().unwrap_or_default();
        assert!(status == StatusCode::BAD_REQUEST && message.contains(reason), "{body}: {status} {reply}");
        assert_eq!(
            (&reply["error"]["type"], &reply["error"]["code"]),
            (&json!("invalid_request_error"), &json!(400))
        );
    }
    let (status, reply) = server.text(hyper::Method::POST, "/generate", "{\"text\": ").await;
    assert!(status == StatusCode::BAD_REQUEST && reply.contains("not JSON"), "{reply}");
    // Numbers that JSON does not have, or that no float holds.
    for number in ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"] {
        for name in ["temperature", "top_p", "min_p"] {
            let body = format!("{{\"text\": \"1\", \"sampling_params\": {{\"{name}\": {number}}}}}");
            let (status, reply) = server.text(hyper::Method::POST, "/generate", &body).await;
            assert!(status == StatusCode::BAD_REQUEST && reply.contains("not JSON"), "{body}: {reply}");
        }
    }
    // A byte more than a body may have.
    let long = "1".repeat((32 << 20) + 1);
    for path in ["/generate", "/abort_request"] {
        let (status, reply) = server.text(hyper::Method::POST, path, &long).await;
        assert!(
            status == StatusCode::PAYLOAD_TOO_LARGE && reply.contains("\"code\":413"),
            "{status} {reply}"
        );
    }
    // A stream tells it in an event.
    let events = server.stream(&json!({"text": "1", "sampling_params": {"top_p": 0}})).await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["error"]["code"], 400);
    // What asks for nothing, and what is not known, is not in the way.
    let body = json!({
        "text": "1",
        "sampling_params": {"max_new_tokens": 1, "n": 1, "stop_token_ids": [9999], "repetition_penalty": 1.0, "json_schema": null, "new_field": 5},
        "image_data": null,
        "lora_path": [],
        "session_params": {},
        "data_parallel_rank": 0,
        "another_field": [1],
    });
    server.generate(&body).await;
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_computed_is_refused_by_name() {
    let server = Server::start(&[]).await;
    let fields = "input_embeds positional_embed_overrides image_data video_data audio_data token_ids_logprob \
        return_hidden_states return_routed_experts return_entropy session_params lora_path custom_logit_processor";
    let fields = fields.split_whitespace().map(|name| (name, json!({"text": "1", name: ["x"]})));
    let params = "json_schema regex ebnf structural_tag stop_regex";
    let params =
        params.split_whitespace().map(|name| (name, json!({"text": "1", "sampling_params": {name: "x"}})));
    for (name, body) in fields.chain(params) {
        let (status, reply) = server.post("/generate", &body).await;
        let expected = format!("{name} is not supported by this engine");
        assert_eq!((status, &reply["error"]["message"]), (StatusCode::BAD_REQUEST, &json!(expected)));
    }
    server.until_free().await;
}
