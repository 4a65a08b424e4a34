//! The driver against a real HTTP server that answers as told.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use parking_lot::Mutex;
use rollscope_rollout::{Event, Prompt, Rollout, RolloutError, RolloutOptions};
use serde_json::{Value, json};

type Answer = dyn Fn(&HeaderMap, &Value) -> (StatusCode, Value) + Send + Sync;

struct Server {
    answer: Box<Answer>,
    ingested: Mutex<Vec<Value>>,
    ended: Mutex<Vec<String>>,
}

async fn serve(answer: Box<Answer>) -> (Arc<Server>, String) {
    let server = Arc::new(Server { answer, ingested: Mutex::default(), ended: Mutex::default() });
    let generate = |State(server): State<Arc<Server>>, headers: HeaderMap, body: String| async move {
        let (status, body) = (server.answer)(&headers, &serde_json::from_str(&body).unwrap());
        (status, body.to_string()).into_response()
    };
    let ingest = |State(server): State<Arc<Server>>, body: String| async move {
        server.ingested.lock().extend(body.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()));
        Response::new(axum::body::Body::empty())
    };
    // It is busy when it is first asked to end a step.
    let end = |State(server): State<Arc<Server>>, Path(step): Path<String>, body: String| async move {
        let rollout_time = &serde_json::from_str::<Value>(&body).unwrap()["rollout_time"];
        assert!(rollout_time.as_f64() > Some(0.0));
        let mut ended = server.ended.lock();
        ended.push(step);
        let status = if ended.len() == 1 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        (status, json!({"step": 5, "data": {"perf/rollout_time": rollout_time}}).to_string())
    };
    let routes = Router::new()
        .route("/rollscope/steps/{step}/end", post(end))
        .route("/generate", post(generate))
        .route("/rollscope/v1/spans", post(ingest))
        .with_state(Arc::clone(&server));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (server, url)
}

fn options(url: String) -> RolloutOptions {
    RolloutOptions {
        url,
        prompts: Prompt::bundled().unwrap()[..3].to_vec(),
        prompts_per_step: 2,
        samples_per_prompt: 2,
        steps: 2,
        first_step: 5,
        concurrency: 3,
        temperature: 1.0,
        top_p: 1.0,
        max_new_tokens: 64,
        seed: None,
        attempts: 3,
        record_text: false,
        out: None,
    }
}

fn sum(body: &Value) -> String {
    let text = body["text"].as_str().unwrap().trim_end_matches("=?\n");
    text.split('+').map(|term| term.parse::<u32>().unwrap()).sum::<u32>().to_string()
}

fn good(body: &Value) -> Value {
    let meta = json!({"finish_reason": {"type": "stop", "matched": 257}, "weight_version": "v1",
        "output_token_logprobs": [[-0.5, 1, null], [null, 2, null]]});
    json!({"text": format!("#{}", sum(body)), "output_ids": [1, 2], "meta_info": meta})
}

#[tokio::test]
async fn every_sample_is_named_rewarded_and_reported() {
    let seen: Arc<Mutex<Vec<[String; 4]>>> = Arc::default();
    let names = Arc::clone(&seen);
    let (server, url) = serve(Box::new(move |headers, body| {
        let header = |name: &str| headers[format!("x-rollscope-{name}")].to_str().unwrap().to_owned();
        names.lock().push(["step", "group", "sample", "attempt"].map(header));
        (StatusCode::OK, good(body))
    }))
    .await;
    let out = tempfile::tempdir().unwrap();
    let options = RolloutOptions { out: Some(out.path().to_owned()), ..options(url) };
    let mut done = 0;
    let summaries = Rollout::new(options)
        .unwrap()
        .run(|event| done += usize::from(matches!(event, Event::SampleDone(_))))
        .await
        .unwrap();
    assert_eq!(done, 8);
    assert_eq!(summaries.iter().map(|s| s.step).collect::<Vec<_>>(), [5, 6]);
    assert!(summaries.iter().all(|s| (s.completed, s.failed, s.reward_mean) == (4, 0, Some(1.0))));
    for summary in &summaries {
        let told = summary.numbers.as_ref().unwrap()["perf/rollout_time"].as_f64().unwrap();
        assert!((told - summary.duration.as_secs_f64()).abs() < 1e-9, "{told}");
    }
    let mut seen = seen.lock().clone();
    seen.sort();
    let expected = |step: u64| {
        ["0 0", "0 1", "1 0", "1 1"].map(|key| {
            let (group, sample) = key.split_once(' ').unwrap();
            [step.to_string(), group.to_owned(), sample.to_owned(), "0".to_owned()]
        })
    };
    assert_eq!(seen, [expected(5), expected(6)].concat());
    let ingested = server.ingested.lock();
    let of = |kind: &str| ingested.iter().filter(|line| line["type"] == kind).collect::<Vec<_>>();
    assert_eq!((of("span").len(), of("sample").len()), (8, 8));
    assert!(of("sample").iter().all(|line| line["reward"] == 1.0 && line["response_tokens"] == 2));
    assert!(of("sample").iter().all(|line| line["repetition"] == false));
    assert!(of("span").iter().all(|line| line["start"].as_f64() <= line["end"].as_f64()));
    assert_eq!(*server.ended.lock(), ["5", "5", "6"]);
    let written = std::fs::read_to_string(out.path().join("samples-step-000005.jsonl")).unwrap();
    let first: Value = serde_json::from_str(written.lines().next().unwrap()).unwrap();
    assert_eq!((&first["output_logprobs"], &first["weight_version"]), (&json!([-0.5, null]), &json!("v1")));
    assert_eq!(written.lines().count(), 4);
}

#[tokio::test]
async fn what_was_said_is_reported_where_it_is_asked_for() {
    for record_text in [false, true] {
        let (server, url) = serve(Box::new(|_, body| (StatusCode::OK, good(body)))).await;
        let options = RolloutOptions { record_text, steps: 1, ..options(url) };
        Rollout::new(options).unwrap().run(|_| {}).await.unwrap();
        let ingested = server.ingested.lock();
        let turns: Vec<_> = ingested.iter().filter(|line| line["name"] == "turn").collect();
        assert_eq!(turns.len(), if record_text { 4 } else { 0 });
        for turn in turns {
            assert_eq!(turn["start"], turn["end"], "the request took the time");
            let attrs = &turn["attrs"];
            assert_eq!(attrs["output_text"], format!("#{}", sum(&json!({"text": attrs["prompt_text"]}))));
            assert_eq!(attrs["output_token_logprobs"], "[[-0.5,1,null],[null,2,null]]");
        }
        assert!(ingested.iter().all(|line| line["name"] == "turn" || line["attrs"].is_null()));
    }
}

#[tokio::test]
async fn a_nucleus_asks_for_the_tokens_that_it_keeps_and_fails_without_them() {
    // Two tokens, of which the first kept one token and the second two.
    let kept = [("top_p_token_ids", "AQAAAAIAAAADAAAA"), ("top_p_token_offsets", "AAAAAAEAAAADAAAA")];
    for (tells, completed) in [(true, 4), (false, 0)] {
        let (_, url) = serve(Box::new(move |_, body| {
            let asked = &body["sampling_params"]["custom_params"];
            assert_eq!(asked, &json!({"return_top_p_token_ids": true}));
            let mut reply = good(body);
            for (name, value) in kept.into_iter().filter(|_| tells) {
                reply["meta_info"][name] = json!(value);
            }
            (StatusCode::OK, reply)
        }))
        .await;
        let mut samples = Vec::new();
        let options = RolloutOptions { steps: 1, top_p: 0.9, ..options(url) };
        let outcome = Rollout::new(options)
            .unwrap()
            .run(|event| {
                if let Event::SampleDone(sample) = event {
                    samples.push(sample.clone());
                }
            })
            .await;
        match outcome {
            Ok(summaries) => {
                assert_eq!((tells, summaries[0].completed), (true, completed));
                assert!(samples.iter().all(|sample| sample.top_p_token_ids.as_deref() == Some(kept[0].1)));
            }
            Err(RolloutError::StepFailed { last, .. }) => {
                assert!(!tells && last.contains("lacks top_p_token_ids"), "{last}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn a_failed_call_is_the_next_attempt_and_a_refused_one_is_not_tried_again() {
    let (_, url) = serve(Box::new(|headers, body| {
        match (
            headers["x-rollscope-sample"].to_str().unwrap(),
            headers["x-rollscope-attempt"].to_str().unwrap(),
        ) {
            ("0", "0") => (StatusCode::BAD_GATEWAY, json!({"error": {"message": "decode is away"}})),
            ("0", "1") => {
                (StatusCode::OK, json!({"text": "", "meta_info": {"finish_reason": {"type": "abort"}}}))
            }
            ("1", _) => (StatusCode::BAD_REQUEST, json!({"error": {"message": "prompt too long"}})),
            _ => (StatusCode::OK, good(body)),
        }
    }))
    .await;
    let mut errors = Vec::new();
    let options = RolloutOptions { steps: 1, ..options(url) };
    let summaries = Rollout::new(options)
        .unwrap()
        .run(|event| {
            if let Event::SampleDone(sample) = event {
                errors.extend(sample.error.clone());
            }
        })
        .await
        .unwrap();
    assert_eq!((summaries[0].completed, summaries[0].failed, summaries[0].retries), (2, 2, 4));
    assert_eq!(errors, ["400 Bad Request: prompt too long", "400 Bad Request: prompt too long"]);
}

#[tokio::test]
async fn a_step_without_a_single_sample_ends_the_rollout() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let options = RolloutOptions { attempts: 1, ..options(url) };
    let error = Rollout::new(options).unwrap().run(|_| {}).await.unwrap_err();
    assert!(matches!(error, RolloutError::StepFailed { step: 5, .. }), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn an_address_that_is_none_is_refused_before_anything_is_sent() {
    for url in ["", "localhost:8000", "ftp://x", "https://x"] {
        assert!(matches!(Rollout::new(options(url.to_owned())), Err(RolloutError::Url { .. })), "{url}");
    }
}

#[tokio::test]
async fn what_a_worker_does_not_say_is_not_reported_as_zero() {
    let (server, url) = serve(Box::new(|headers, body| {
        let meta = match headers["x-rollscope-sample"].to_str().unwrap() {
            "0" => json!({}),
            _ => json!({"finish_reason": {"type": "length"}, "completion_tokens": 7, "weight_version": 3}),
        };
        (StatusCode::OK, json!({"text": format!("#{}", sum(body)), "meta_info": meta}))
    }))
    .await;
    let options = RolloutOptions { steps: 1, prompts_per_step: 1, ..options(url) };
    let mut versions = Vec::new();
    let summaries = Rollout::new(options)
        .unwrap()
        .run(|event| {
            if let Event::SampleDone(sample) = event {
                versions.push(sample.weight_version.clone());
            }
        })
        .await
        .unwrap();
    assert_eq!((summaries[0].completed, summaries[0].tokens), (2, 7));
    versions.sort();
    assert_eq!(versions, [None, Some("3".to_owned())]);
    let ingested = server.ingested.lock();
    let told = |sample: &str| {
        let is_it = |line: &&Value| line["type"] == "sample" && line["sample"] == sample;
        let line = ingested.iter().find(is_it).unwrap();
        (line.get("truncated").cloned(), line.get("response_tokens").cloned())
    };
    assert_eq!(told("0"), (None, None));
    assert_eq!(told("1"), (Some(json!(true)), Some(json!(7))));
}

#[tokio::test]
async fn nothing_to_sample_is_refused() {
    let none = || options("http://127.0.0.1:1".to_owned());
    for options in [
        RolloutOptions { prompts: Vec::new(), ..none() },
        RolloutOptions { prompts_per_step: 0, ..none() },
        RolloutOptions { samples_per_prompt: 0, ..none() },
    ] {
        assert!(matches!(Rollout::new(options), Err(RolloutError::NothingToSample)));
    }
}
