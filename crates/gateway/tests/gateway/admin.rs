//! Everything that is no generation: workers that come and go, probes, fan-out, figures, the mount.

use std::sync::Arc;
use std::time::Instant;

use http::{Method, Response};
use http_body_util::{BodyExt as _, Full};
use rollscope_config::{Options as _, Published};
use rollscope_gateway::{BoxError, Gateway, GatewayOptions, Mount};
use rollscope_testkit::{Client, FakeWorker, Gate, Script, refusing_address};
use rollscope_trace::Measure;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::TestGateway;

async fn call(gateway: &TestGateway, method: Method, path: &str, body: &str) -> (u16, Value) {
    let reply = Client::call(gateway.address, method, path, &[], body).await;
    let status = reply.status.as_u16();
    let text = reply.text().await;
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

#[tokio::test]
async fn what_is_at_a_worker_that_has_been_taken_out_can_be_aborted() {
    let worker = FakeWorker::start().await;
    let gate = Gate::new();
    worker.on("/generate", Script::sse().event("{}").wait(&gate).event("[DONE]").end());
    worker.on("/abort_request", Script::json(200, ""));
    worker.on("/flush_cache", Script::json(200, ""));
    let gateway = TestGateway::regular(&[&worker]).await;
    let mut live = gateway.generate(r#"{"rid":"R1","stream":true}"#).await;
    assert!(live.next().await.is_some());
    let removed = call(&gateway, Method::POST, &format!("/remove_worker?url={}", worker.url()), "").await;
    assert_eq!(removed.0, 200);
    for body in [r#"{"rid":"R1"}"#, r#"{"abort_all":true}"#] {
        let (status, reply) = call(&gateway, Method::POST, "/abort_request", body).await;
        assert_eq!((status, &reply["results"][0]["worker"]), (200, &json!(worker.url())));
    }
    assert_eq!(worker.calls("/abort_request").len(), 2);
    assert_eq!(call(&gateway, Method::POST, "/flush_cache", "").await.1, json!({ "results": [] }));
    gate.open();
    live.rest().await;
    gateway.settled(&[("completed", 1)]).await;
    assert_eq!(
        call(&gateway, Method::POST, "/abort_request", r#"{"rid":"R1"}"#).await.1["results"],
        json!([])
    );
}

#[tokio::test]
async fn a_worker_that_has_been_taken_out_and_hangs_makes_no_abort_fail() {
    let (worker, hanging, gate) = (FakeWorker::start().await, FakeWorker::start().await, Gate::new());
    hanging.on("/generate", Script::sse().event("{}").wait(&gate).event("[DONE]").end());
    hanging.on("/abort_request", Script::new().hang());
    worker.on("/abort_request", Script::json(200, ""));
    let args = format!("--worker-urls {} --control-timeout-secs 1", hanging.url());
    let gateway = TestGateway::start(&args).await;
    let mut live = gateway.generate(r#"{"rid":"R1","stream":true}"#).await;
    assert!(live.next().await.is_some());
    assert_eq!(
        call(&gateway, Method::POST, &format!("/remove_worker?url={}", hanging.url()), "").await.0,
        200
    );
    let registration = json!({ "url": worker.url() }).to_string();
    assert_eq!(call(&gateway, Method::POST, "/workers", &registration).await.0, 201);
    let (status, reply) = call(&gateway, Method::POST, "/abort_request", r#"{"rid":"R1"}"#).await;
    let told = |at: usize| (&reply["results"][at]["worker"], &reply["results"][at]["status"]);
    assert_eq!(status, 200, "{reply}");
    assert_eq!(told(0), (&json!(worker.url()), &json!(200)));
    assert_eq!(told(1), (&json!(hanging.url()), &json!(504)));
    gate.open();
    live.rest().await;
}

#[tokio::test]
async fn workers_come_and_go() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, "{}"));
    let gateway = TestGateway::start("").await;
    assert_eq!(call(&gateway, Method::GET, "/readiness", "").await.0, 503);
    assert_eq!(call(&gateway, Method::GET, "/health", "").await, (200, json!("OK")));
    assert_eq!(call(&gateway, Method::GET, "/liveness", "").await.0, 200);
    let registration = json!({ "url": worker.url(), "worker_type": "regular" }).to_string();
    let (status, reply) = call(&gateway, Method::POST, "/workers", &registration).await;
    assert_eq!((status, &reply["status"]), (201, &json!("registered")));
    let id = reply["worker_id"].as_str().unwrap().to_owned();
    assert_eq!(call(&gateway, Method::GET, "/readiness", "").await.0, 200);
    assert_eq!(gateway.generate("{}").await.text().await, "{}");
    gateway.settled(&[("completed", 1)]).await;

    let (_, list) = call(&gateway, Method::GET, "/workers", "").await;
    assert_eq!((&list["total"], &list["stats"]["regular_count"]), (&json!(1), &json!(1)));
    let shown = &list["workers"][0];
    assert_eq!((&shown["id"], &shown["url"]), (&json!(id), &json!(worker.url())));
    assert_eq!((&shown["worker_type"], &shown["legs"]["completed"]), (&json!("regular"), &json!(1)));
    assert_eq!(call(&gateway, Method::GET, &format!("/workers/{id}"), "").await.1, *shown);

    // The same address registered anew is another worker, with books of its own.
    let (_, again) = call(&gateway, Method::POST, "/workers", &registration).await;
    assert_ne!(again["worker_id"], json!(id));
    let (_, list) = call(&gateway, Method::GET, "/workers", "").await;
    assert_eq!((&list["total"], &list["workers"][0]["legs"]["started"]), (&json!(1), &json!(0)));
    assert_eq!(call(&gateway, Method::DELETE, &format!("/workers/{id}"), "").await.0, 404);
    let id = again["worker_id"].as_str().unwrap();
    let gate = Gate::new();
    worker.on("/generate", Script::sse().event("{}").wait(&gate).event("[DONE]").end());
    let mut live = gateway.generate("{}").await;
    assert!(live.next().await.is_some());
    assert_eq!(call(&gateway, Method::DELETE, &format!("/workers/{id}"), "").await.0, 200);
    assert_eq!(call(&gateway, Method::GET, "/workers", "").await.1["total"], 0);
    assert_eq!(gateway.generate("{}").await.status, 503);
    gate.open();
    assert_eq!(live.text().await, "data: [DONE]\n\n");
    gateway.stop().await;
}

#[tokio::test]
async fn a_pair_is_registered_with_its_port() {
    let gateway = TestGateway::start("--pd-disaggregation").await;
    for body in [
        r#"{"url":"http://a:1","worker_type":"prefill","bootstrap_port":8998}"#,
        r#"{"url":"http://b:1","worker_type":"decode"}"#,
    ] {
        assert_eq!(call(&gateway, Method::POST, "/workers", body).await.0, 201);
    }
    let (_, list) = call(&gateway, Method::GET, "/workers", "").await;
    assert_eq!(list["workers"][0]["bootstrap_port"], 8998);
    assert_eq!(list["stats"], json!({ "prefill_count": 1, "decode_count": 1, "regular_count": 0 }));
    assert_eq!(call(&gateway, Method::GET, "/readiness", "").await.0, 200);
}

#[tokio::test]
async fn who_is_registered_again_keeps_what_is_not_said_anew() {
    let gateway = TestGateway::start("--pd-disaggregation --prefill http://a:1 8998").await;
    let (_, list) = call(&gateway, Method::GET, "/workers", "").await;
    let (status, reply) = call(&gateway, Method::POST, "/workers", r#"{"url":"http://a:1/"}"#).await;
    assert_eq!((status, &reply["replaced"]), (201, &list["workers"][0]["id"]));
    gateway.tells("worker is registered anew: http://a:1").await;
    for (body, expected) in [
        (r#"{"url":"http://a:1"}"#, ["prefill", "8998"]),
        (r#"{"url":"http://a:1","bootstrap_port":9}"#, ["prefill", "9"]),
        (r#"{"url":"http://a:1","worker_type":"decode"}"#, ["decode", "null"]),
        (r#"{"url":"http://a:1"}"#, ["decode", "null"]),
    ] {
        assert_eq!(call(&gateway, Method::POST, "/workers", body).await.0, 201, "{body}");
        let (_, list) = call(&gateway, Method::GET, "/workers", "").await;
        let shown = &list["workers"][0];
        let shown = [shown["worker_type"].as_str().unwrap().to_owned(), shown["bootstrap_port"].to_string()];
        assert_eq!((&list["total"], shown), (&json!(1), expected.map(str::to_owned)), "{body}");
    }
}

#[tokio::test]
async fn a_rank_takes_no_other_ranks_place() {
    let gateway = TestGateway::start("--pd-disaggregation --prefill http://a:1@0 8998").await;
    let (status, reply) = call(&gateway, Method::POST, "/workers", r#"{"url":"http://a:1@1"}"#).await;
    assert_eq!(status, 400, "it is no other rank's heir: {reply}");
    let body = r#"{"url":"http://a:1@1","worker_type":"prefill"}"#;
    let (_, second) = call(&gateway, Method::POST, "/workers", body).await;
    assert_eq!(second.get("replaced"), None, "{second}");
    let (_, list) = call(&gateway, Method::GET, "/workers", "").await;
    assert_eq!((&list["total"], &list["workers"][0]["bootstrap_port"]), (&json!(2), &json!(8998)));
    assert_eq!(list["workers"][1].get("bootstrap_port"), None, "{list}");
    let (_, again) = call(&gateway, Method::POST, "/workers", r#"{"url":"http://a:1@1"}"#).await;
    assert_eq!(again["replaced"], second["worker_id"]);
    // The URL takes the place of all of its ranks.
    let (_, whole) = call(&gateway, Method::POST, "/workers", r#"{"url":"http://a:1"}"#).await;
    assert_eq!(whole["replaced"], list["workers"][0]["id"]);
    assert_eq!(call(&gateway, Method::GET, "/workers", "").await.1["total"], 1);
}

#[tokio::test]
async fn a_worker_that_can_not_be_is_refused_with_a_sentence() {
    for (args, body, sentence) in [
        ("", "", "the body must be an object"),
        ("", r#"{"url":"http://a:1@x"}"#, "no user name"),
        ("", r#"{"url":"http://a:1","worker_type":"prefill"}"#, "worker_type regular"),
        ("", r#"{"url":"http://a:1","bootstrap_port":1}"#, "only a prefill worker"),
        ("--pd-disaggregation", r#"{"url":"http://a:1"}"#, "worker_type prefill or decode"),
        (
            "--pd-disaggregation",
            r#"{"url":"http://a:1","worker_type":"prefill","bootstrap_port":0}"#,
            "bootstrap_port can not be 0",
        ),
        ("--pd-disaggregation", r#"{"url":"http://a:1","worker_type":"other"}"#, "unknown variant"),
    ] {
        let gateway = TestGateway::start(args).await;
        let (status, reply) = call(&gateway, Method::POST, "/workers", body).await;
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(sentence), "{body}: {message}");
    }
}

#[tokio::test]
async fn the_first_worker_speaks_for_the_fleet() {
    let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
    for path in ["/v1/models", "/get_model_info", "/model_info", "/get_server_info", "/server_info"] {
        prefill.on(path, Script::json(200, "{\"is\":\"prefill\"}"));
    }
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    for path in ["/v1/models", "/get_model_info", "/model_info", "/get_server_info?x=1", "/server_info"] {
        assert_eq!(call(&gateway, Method::GET, path, "").await, (200, json!({ "is": "prefill" })), "{path}");
    }
    assert_eq!(prefill.calls("/get_server_info")[0].request.target, "/get_server_info?x=1");
    // A kept connection that breaks is no reason for a GET to fail.
    prefill.on_next("/server_info", [Script::new().reset(), Script::json(200, "{}")]);
    assert_eq!(call(&gateway, Method::GET, "/server_info", "").await.0, 200);
    // A reply that is cut off is none.
    let large = "x".repeat(65 << 20);
    prefill.on("/v1/models", Script::json(200, &large));
    let (status, reply) = call(&gateway, Method::GET, "/v1/models", "").await;
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(status == 502 && message.contains("reply larger than"), "{message}");
    let gateway = TestGateway::start("").await;
    assert_eq!(call(&gateway, Method::GET, "/server_info", "").await.0, 503);
}

#[tokio::test]
async fn all_workers_are_asked_and_each_answer_is_shown() {
    let (first, second) = (FakeWorker::start().await, FakeWorker::start().await);
    first.on("/flush_cache", Script::json(200, "{\"n\": 1.0}"));
    second.on("/flush_cache", Script::json(400, "pending \"requests\""));
    let gateway = TestGateway::regular(&[&first, &second]).await;
    let reply = Client::call(gateway.address, Method::POST, "/flush_cache?timeout=1", &[], "").await;
    assert_eq!(reply.status, 400);
    assert_eq!(
        reply.text().await,
        format!(
            "{{\"results\":[{{\"worker\":\"{}\",\"status\":200,\"body\":{{\"n\": 1.0}}}},\
             {{\"worker\":\"{}\",\"status\":400,\"body\":\"pending \\\"requests\\\"\"}}]}}",
            first.url(),
            second.url()
        )
    );
    assert_eq!(first.calls("/flush_cache")[0].request.target, "/flush_cache?timeout=1");
    // Only what is not encoded can be shown.
    let encodings = [("accept-encoding", "gzip")];
    Client::call(gateway.address, Method::POST, "/flush_cache", &encodings, "").await.text().await;
    assert_eq!(first.calls("/flush_cache")[1].request.header("accept-encoding"), Some("identity"));
    for worker in [&first, &second] {
        worker.on("/abort_request", Script::head(200, &[], Some(0)));
    }
    let body = r#"{"rid":"x"}"#;
    let (status, reply) = call(&gateway, Method::POST, "/abort_request", body).await;
    assert_eq!((status, &reply["results"][1]["body"]), (200, &json!("")));
    assert_eq!(second.calls("/abort_request")[0].request.text(), body);

    let gateway = TestGateway::start(&format!("--worker-urls http://{}", refusing_address().await)).await;
    let (status, reply) = call(&gateway, Method::GET, "/flush_cache", "").await;
    assert!(
        status == 502 && reply["results"][0]["body"].as_str().unwrap().contains("no connection"),
        "{reply}"
    );
}

#[tokio::test]
async fn the_figures_are_prometheus_text() {
    let worker = FakeWorker::start().await;
    let gateway = TestGateway::regular(&[&worker]).await;
    let reply = Client::get(gateway.address, "/metrics").await;
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let page = reply.text().await;
    let families: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let name = name.split('{').next().unwrap();
        let parts = ["_bucket", "_sum", "_count"].map(|suffix| name.strip_suffix(suffix));
        let family = parts.into_iter().flatten().find(|family| families.contains(family)).unwrap_or(name);
        assert!(families.contains(&family), "{line}");
        value.parse::<f64>().unwrap();
    }
    let in_flight = format!("rollscope_worker_in_flight{{worker=\"{}\",role=\"regular\"}} 0", worker.url());
    assert!(page.contains(&in_flight));
    // What is taken out leaves no series behind.
    let remove = format!("/remove_worker?url={}", worker.url());
    assert_eq!(call(&gateway, Method::POST, &remove, "").await.0, 200);
    let page = Client::get(gateway.address, "/metrics").await.text().await;
    assert!(!page.contains(&worker.url()), "{page}");
}

#[tokio::test]
async fn durations_are_told_of_streams_and_of_what_is_asked_for() {
    let worker = FakeWorker::start().await;
    let event = |n: u32, finish: &str| {
        format!(r#"{{"text":"x","meta_info":{{"completion_tokens":{n},"finish_reason":{finish}}}}}"#)
    };
    let stream =
        Script::sse().event(&event(1, "null")).event(&event(5, r#"{"type":"stop"}"#)).event("[DONE]").end();
    worker.on_each("/generate", move |request| {
        if request.text().contains("stream") { stream.clone() } else { Script::json(200, "{}") }
    });
    for path in ["/made/up/1", "/made/up/2"] {
        worker.on(path, Script::json(200, "{}"));
    }
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2},"completion_tokens":8}}"#;
    let chat =
        Script::sse().event(r#"{"choices":[{"delta":{"content":"x"}}]}"#).event(usage).event("[DONE]").end();
    worker.on_each("/v1/chat/completions", move |request| {
        if request.text().contains("stream") { chat.clone() } else { Script::json(200, usage) }
    });
    let gateway = TestGateway::regular(&[&worker]).await;
    for body in [r#"{"stream":true}"#, "{}"] {
        gateway.generate(body).await.text().await;
    }
    for path in ["/v1/chat/completions", "/made/up/1", "/made/up/2"] {
        Client::post(gateway.address, path, r#"{"model":"any"}"#).await.text().await;
    }
    let body = r#"{"model":"any","stream":true}"#;
    Client::post(gateway.address, "/v1/chat/completions", body).await.text().await;
    assert_eq!(Client::get(gateway.address, "/generate").await.status, 405);
    for profile in &gateway.profiles(4).await[2..] {
        let measures = [Measure::PromptTokens, Measure::CachedTokens, Measure::CompletionTokens];
        assert_eq!(measures.map(|measure| profile.measure(measure)), [Some(3.0), Some(2.0), Some(8.0)]);
    }
    let figures = gateway.settled(&[("completed", 6)]).await;
    let count = |family: &str, endpoint: &str| {
        let labels = format!(
            "router_type=\"http\",backend_type=\"regular\",connection_mode=\"http\",endpoint=\"{endpoint}\""
        );
        figures.get(&format!("smg_router_{family}_seconds_count{{{labels}}}")).copied()
    };
    let counts = |family: &str| ["generate", "chat", "other"].map(|endpoint| count(family, endpoint));
    assert_eq!(counts("request_duration"), [Some(2), Some(2), Some(2)]);
    assert_eq!(counts("ttft"), [Some(1), Some(1), None]);
    assert_eq!(counts("tpot"), [Some(1), Some(1), None]);
    assert_eq!(figures["smg_http_responses_total{status_code=\"405\"}"], 1);
    assert!(!figures.keys().any(|name| name.contains("made") || name.contains("any")), "{figures:?}");

    // A worker that has been taken out leaves no series behind.
    let listed = call(&gateway, Method::GET, "/workers", "").await.1;
    let path = format!("/workers/{}", listed["workers"][0]["id"].as_str().unwrap());
    assert_eq!(call(&gateway, Method::DELETE, &path, "").await.0, 200);
    let figures = gateway.figures().await;
    assert!(!figures.keys().any(|name| name.contains(&worker.url())), "{figures:?}");
    assert_eq!(figures["smg_worker_pool_size{worker_type=\"regular\",connection_mode=\"http\"}"], 0);
}

#[tokio::test]
async fn tokens_are_timed_without_a_recorder_and_a_comment_is_none() {
    let (ping, token) = (Gate::new(), Gate::new());
    let last = r#"{"meta_info":{"completion_tokens":5,"finish_reason":{"type":"stop"}}}"#;
    let stream = Script::sse().wait(&ping).send(": ping\n\n").wait(&token).event(last).event("[DONE]").end();
    let worker = FakeWorker::start().await;
    worker.on("/generate", stream);
    let options = GatewayOptions::from_args(["--worker-urls", &worker.url()]).unwrap();
    let gateway = Gateway::new(Published::publish(options), None, None).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(gateway.serve(listener, std::future::pending()));

    let asked = Instant::now();
    let client = tokio::spawn(async move { Client::post(address, "/generate", r#"{"stream":true}"#).await });
    ping.arrivals(1).await;
    ping.open();
    let mut reply = client.await.unwrap();
    assert_eq!(reply.next().await.unwrap(), ": ping\n\n");
    let (pinged, until_ping) = (Instant::now(), asked.elapsed());
    // From the comment to the first token it takes longer than from the request to the comment.
    while pinged.elapsed() <= until_ping {
        tokio::task::yield_now().await;
    }
    let until_token = pinged.elapsed();
    token.open();
    reply.text().await;
    let page = Client::get(address, "/metrics").await.text().await;
    let figure = |name: &str| -> f64 {
        let is_it = |line: &&str| line.starts_with(name) && line.contains("endpoint=\"generate\"");
        page.lines().find(is_it).and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).unwrap_or_default()
    };
    assert!(figure("smg_router_ttft_seconds_sum") >= until_token.as_secs_f64(), "{page}");
    assert_eq!(figure("smg_router_ttft_seconds_count").to_string(), "1");
    assert_eq!(figure("smg_router_tpot_seconds_count").to_string(), "1");
    served.abort();
}

#[tokio::test]
async fn what_is_mounted_gets_its_paths_and_nothing_else() {
    let mount: Mount = Arc::new(|request| {
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let reply = Full::new([path.as_bytes(), b" ", &body].concat().into());
            Response::new(reply.map_err(|never| -> BoxError { match never {} }).boxed_unsync())
        })
    });
    let options = GatewayOptions::from_args([""; 0]).unwrap();
    let gateway = Gateway::new(Published::publish(options), None, Some(mount)).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(gateway.serve(listener, std::future::pending()));
    let reply = Client::post(address, "/rollscope/v1/spans", "x").await;
    assert_eq!(reply.text().await, "/rollscope/v1/spans x");
    assert_eq!(Client::get(address, "/other").await.status, 503);
    served.abort();
    let gateway = TestGateway::start("").await;
    let (status, reply) = call(&gateway, Method::GET, "/rollscope/v1/spans", "").await;
    assert_eq!((status, &reply["error"]["code"]), (404, &json!("not_recording")));
}

#[tokio::test]
async fn a_call_that_hangs_at_one_worker_is_answered_with_what_the_others_said() {
    let (first, second) = (FakeWorker::start().await, FakeWorker::start().await);
    let paths = [
        ("/flush_cache", "/flush_cache"),
        ("/abort_request", "/abort_request"),
        ("/pause_generation", "/pause_generation"),
        ("/continue_generation", "/continue_generation"),
        ("/release_memory_occupation", "/release_memory_occupation"),
        ("/resume_memory_occupation", "/resume_memory_occupation"),
        ("/update_weights_from_disk", "/update_weights_from_disk"),
        ("/get_loads", "/v1/loads"),
    ];
    for (_, asked) in paths {
        first.on(asked, Script::json(200, "{\"is\":1}"));
        second.on(asked, Script::json(200, "null"));
    }
    let gateway = TestGateway::regular(&[&first, &second]).await;
    for (path, asked) in paths {
        let method = if path == "/get_loads" { Method::GET } else { Method::POST };
        let body = if path == "/abort_request" { r#"{"abort_all":true}"# } else { "{}" };
        let (status, reply) = call(&gateway, method, path, body).await;
        assert_eq!((status, &reply["results"][0]["body"]), (200, &json!({ "is": 1 })), "{path}");
        assert_eq!(first.calls(asked).len(), 1, "{path}");
    }
    assert_eq!(first.calls("/v1/loads")[0].request.target, "/v1/loads?include=core");

    second.on("/flush_cache", Script::new().hang());
    // Long enough for the one that answers, however busy the machine is.
    let args = format!("--worker-urls {} {} --control-timeout-secs 4", first.url(), second.url());
    let gateway = TestGateway::start(&args).await;
    let (status, reply) = call(&gateway, Method::POST, "/flush_cache", "").await;
    let late = reply["results"][1]["body"].as_str().unwrap();
    assert!(status == 504 && late.contains("not finished within 4s"), "{reply}");
    assert_eq!(reply["results"][0]["status"], 200);
    let figures = gateway.figures().await;
    let answers = |result: &str| {
        let labels = format!("path=\"/flush_cache\",result=\"{result}\"");
        figures[&format!("rollscope_fan_out_answers_total{{{labels}}}")]
    };
    assert_eq!((answers("ok"), answers("failed")), (1, 1));
}

#[tokio::test]
async fn a_worker_is_registered_anew_when_it_changes() {
    let gateway = TestGateway::start("--pd-disaggregation").await;
    let body = r#"{"url":"http://a:1","worker_type":"prefill","bootstrap_port":8998}"#;
    let (_, reply) = call(&gateway, Method::POST, "/workers", body).await;
    let id = reply["worker_id"].as_str().unwrap().to_owned();
    let path = format!("/workers/{id}");
    let (status, changed) = call(&gateway, Method::PUT, &path, r#"{"bootstrap_port":9000}"#).await;
    assert_eq!((status, &changed["bootstrap_port"]), (200, &json!(9000)), "{changed}");
    assert_eq!(changed["worker_type"], "prefill");
    assert_eq!(call(&gateway, Method::GET, &path, "").await.0, 404);
    let path = format!("/workers/{}", changed["id"].as_str().unwrap());
    let (_, changed) = call(&gateway, Method::PUT, &path, r#"{"worker_type":"decode"}"#).await;
    assert_eq!((&changed["worker_type"], changed.get("bootstrap_port")), (&json!("decode"), None));
    let path = format!("/workers/{}", changed["id"].as_str().unwrap());
    for (body, sentence) in [
        (r#"{"priorities":1}"#, "unknown field `priorities`"),
        (r#"{"priority":-1}"#, "priority"),
        (r#"{"labels":["a"]}"#, "labels"),
        (r#"{"bootstrap_port":1}"#, "only a prefill worker"),
        (r#"{"worker_type":"regular"}"#, "worker_type prefill or decode"),
    ] {
        let (status, reply) = call(&gateway, Method::PUT, &path, body).await;
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(sentence), "{body}: {message}");
    }
    let reply = Client::call(gateway.address, Method::PATCH, &path, &[], "").await;
    assert_eq!((reply.status.as_u16(), reply.header("allow")), (405, Some("GET, HEAD, PUT, DELETE")));
}

#[tokio::test]
async fn what_is_noted_of_a_worker_is_kept_and_shown() {
    let gateway = TestGateway::start("").await;
    let worker = async || call(&gateway, Method::GET, "/workers", "").await.1["workers"][0].clone();
    let check = async |what: &str, priority: u32, cost: f64, labels: Value| {
        let shown = worker().await;
        assert_eq!(
            (&shown["priority"], &shown["cost"], &shown["metadata"]),
            (&json!(priority), &json!(cost), &labels),
            "{what}"
        );
        shown["id"].as_str().unwrap().to_owned()
    };
    let post = async |body: &str| assert_eq!(call(&gateway, Method::POST, "/workers", body).await.0, 201);
    post(r#"{"url":"http://a:1"}"#).await;
    check("nothing is noted", 50, 1.0, json!({})).await;
    post(r#"{"url":"http://a:1","priority":7,"labels":{"rack":"r1"}}"#).await;
    let id = check("noted by POST", 7, 1.0, json!({"rack": "r1"})).await;
    let put = async |id: &str, body: &str| call(&gateway, Method::PUT, &format!("/workers/{id}"), body).await;
    let (status, told) = put(&id, r#"{"cost":2.5,"labels":{"zone":"z"}}"#).await;
    assert_eq!((status, &told["cost"], &told["priority"]), (200, &json!(2.5), &json!(7)), "{told}");
    let again = check("noted by PUT", 7, 2.5, json!({"rack": "r1", "zone": "z"})).await;
    assert_eq!(again, id, "what is only noted makes no other worker of it");
    put(&id, r#"{"labels":{"row":"1"}}"#).await;
    assert_eq!(put(&id, r#"{"labels":{"row":null,"none":null}}"#).await.0, 200);
    check("taken off by PUT", 7, 2.5, json!({"rack": "r1", "zone": "z"})).await;
    let large = |name: &str| json!({ "labels": { name: "x".repeat(40 << 10) } }).to_string();
    assert_eq!(put(&id, &large("a")).await.0, 200);
    let (status, told) = put(&id, &large("b")).await;
    assert!(status == 400 && told.to_string().contains("labels of more than 65536 bytes"), "{told}");
    assert_eq!(put(&id, r#"{"labels":{"a":null}}"#).await.0, 200);
    let (_, told) = put(&id, r#"{"api_key":"k","priority":1}"#).await;
    let again = check("with another key", 1, 2.5, json!({"rack": "r1", "zone": "z"})).await;
    assert_eq!((&told["id"], again == id), (&json!(again), false));
    post(r#"{"url":"http://a:1","labels":{"rack":"r2"}}"#).await;
    check("registered again", 1, 2.5, json!({"rack": "r2", "zone": "z"})).await;
    post(r#"{"url":"http://a:1","api_key":"other"}"#).await;
    check("registered again with another key", 1, 2.5, json!({"rack": "r2", "zone": "z"})).await;
}

#[tokio::test]
async fn older_trainers_name_workers_in_the_query() {
    let gateway = TestGateway::start("").await;
    let add = "/add_worker?url=http%3A%2F%2Fa%3A1";
    assert_eq!(call(&gateway, Method::POST, add, "").await.0, 201);
    assert_eq!(call(&gateway, Method::POST, "/add_worker?url=http://b:1", "").await.0, 201);
    let listed = call(&gateway, Method::GET, "/list_workers", "").await.1;
    assert_eq!(listed, json!({ "urls": ["http://a:1", "http://b:1"] }));
    let remove = "/remove_worker?url=http://a:1/";
    assert_eq!(call(&gateway, Method::POST, remove, "").await.0, 200);
    assert_eq!(call(&gateway, Method::POST, remove, "").await.0, 404);
    assert_eq!(call(&gateway, Method::GET, "/list_workers", "").await.1["urls"], json!(["http://b:1"]));
    for (path, sentence) in [
        ("/add_worker", "/add_worker?url=http://HOST:PORT"),
        ("/add_worker?url=b:1", "must look like http://HOST:PORT"),
        ("/add_worker?url=http://b:1&worker_type=other", "must be regular, prefill or decode: other"),
        ("/add_worker?url=http://b:1&bootstrap_port=x", "must be a port number: x"),
    ] {
        let (status, reply) = call(&gateway, Method::POST, path, "").await;
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(sentence), "{path}: {message}");
    }
}

#[tokio::test]
async fn what_no_pair_can_answer_is_refused_and_forwarded_elsewhere() {
    let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
    prefill.on("/v1/tokenize", Script::json(200, "{\"tokens\":[1]}"));
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    assert_eq!(call(&gateway, Method::POST, "/v1/tokenize", "{}").await, (200, json!({ "tokens": [1] })));
    let others = ["/v1/embeddings", "/rerank", "/v1/rerank", "/v1/responses", "/v1/classify", "/other"];
    for path in others {
        let (status, reply) = call(&gateway, Method::POST, path, "{}").await;
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(status == 404 && message.contains("--pd-disaggregation"), "{path}: {message}");
        assert!(message.ends_with(path), "{message}");
    }
    let worker = FakeWorker::start().await;
    let gateway = TestGateway::regular(&[&worker]).await;
    for path in others.into_iter().chain(["/v1/tokenize", "/v1/detokenize"]) {
        worker.on(path, Script::json(200, "{\"x\":1.0}"));
        assert_eq!(gateway_text(&gateway, path).await, "{\"x\":1.0}");
        assert_eq!(worker.calls(path)[0].request.text(), "{ }");
    }
}

async fn gateway_text(gateway: &TestGateway, path: &str) -> String {
    Client::post(gateway.address, path, "{ }").await.text().await
}

#[tokio::test]
async fn a_fleet_generates_when_a_worker_of_each_role_does() {
    let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
    prefill.on("/health_generate", Script::json(200, ""));
    decode.on("/health_generate", Script::json(200, ""));
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    assert_eq!(call(&gateway, Method::GET, "/health_generate", "").await.0, 200);
    decode.on("/health_generate", Script::json(503, "stuck"));
    let (status, reply) = call(&gateway, Method::GET, "/health_generate", "").await;
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(status == 503 && message.contains("stuck"), "{message}");
    let gateway = TestGateway::start("").await;
    assert_eq!(call(&gateway, Method::GET, "/health_generate", "").await.0, 503);
}

#[tokio::test]
async fn the_workers_figures_are_one_page_whatever_they_have_in_common() {
    let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
    let page = |text: &str| Script::head(200, &[("content-type", "text/plain")], Some(text.len())).send(text);
    prefill.on(
        "/metrics",
        page(
            "# HELP sglang:run Running.\n# TYPE sglang:run gauge\nsglang:run{model_name=\"m\"} 1\nidle NaN\n\
             # TYPE rollscope_engine_up counter\nrollscope_engine_up 7\nrollscope:engine:lines_dropped 7\n",
        ),
    );
    decode.on("/metrics", page("# TYPE sglang:run gauge\nsglang:run{model_name=\"m\",dp_rank=\"0\"} 2\n"));
    let dead = refusing_address().await;
    let more = format!("--decode http://{dead}");
    let gateway = TestGateway::pair(prefill.address(), decode.address(), &more).await;
    let reply = Client::get(gateway.address, "/engine_metrics").await;
    assert_eq!(reply.status, 200);
    let (p, d) = (prefill.url(), decode.url());
    assert_eq!(
        reply.text().await,
        format!(
            "# HELP sglang_run Running.\n# TYPE sglang_run gauge\nsglang_run{{worker_addr=\"{p}\",model_name=\"m\"}} 1\n\
             sglang_run{{worker_addr=\"{d}\",model_name=\"m\",dp_rank=\"0\"}} 2\n\
             # HELP rollscope_engine_up Whether a worker has told its figures.\n\
             # TYPE rollscope_engine_up gauge\n\
             rollscope_engine_up{{worker_addr=\"{p}\",role=\"prefill\"}} 1\n\
             rollscope_engine_up{{worker_addr=\"{d}\",role=\"decode\"}} 1\n\
             rollscope_engine_up{{worker_addr=\"http://{dead}\",role=\"decode\"}} 0\n\
             # HELP rollscope_engine_lines_dropped Lines of a worker's page that can not be shown.\n\
             # TYPE rollscope_engine_lines_dropped gauge\n\
             rollscope_engine_lines_dropped{{worker_addr=\"{p}\",role=\"prefill\"}} 3\n\
             rollscope_engine_lines_dropped{{worker_addr=\"{d}\",role=\"decode\"}} 0\n\
             rollscope_engine_lines_dropped{{worker_addr=\"http://{dead}\",role=\"decode\"}} 0\n"
        )
    );
}
