//! Faults that users of other gateways reported and that no other test is about; `docs/field-faults.md` lists all.

use rollscope_testkit::{Client, FakeWorker, Gate, Script};
use rollscope_trace::{Measure, Outcome};
use serde_json::Value;

use crate::harness::TestGateway;
use crate::pair::{PREFILL, pair_of};

#[tokio::test]
async fn a_batch_of_many_gets_as_many_rooms_and_keeps_its_order() {
    const SAMPLES: usize = 33;
    let elements: Vec<String> =
        (0..SAMPLES).map(|at| format!(r#"{{"text":"{at}","meta_info":{{"id":"{at}"}}}}"#)).collect();
    let elements = format!("[{}]", elements.join(","));
    let (prefill, decode) = pair_of(Script::json(200, &elements), Script::json(200, &elements)).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    let texts = vec!["\"a\""; SAMPLES].join(",");
    let body = format!(r#"{{"text":[{texts}],"sampling_params":{{"max_new_tokens":8}}}}"#);
    assert_eq!(gateway.generate(&body).await.text().await, elements);
    let sent: Value = serde_json::from_str(&decode.calls("/generate")[0].request.text()).unwrap();
    let mut rooms: Vec<u64> =
        sent["bootstrap_room"].as_array().unwrap().iter().map(|room| room.as_u64().unwrap()).collect();
    rooms.sort_unstable();
    rooms.dedup();
    assert_eq!(rooms.len(), SAMPLES);
    assert!(
        ["bootstrap_host", "bootstrap_port"]
            .iter()
            .all(|name| sent[name].as_array().unwrap().len() == SAMPLES)
    );
}

#[tokio::test]
async fn a_stream_is_load_until_its_body_ends() {
    let (worker, gate) = (FakeWorker::start().await, Gate::new());
    let last = r#"{"meta_info":{"finish_reason":{"type":"stop"}}}"#;
    worker.on("/generate", Script::sse().event("{}").wait(&gate).event(last).event("[DONE]").end());
    let gateway = TestGateway::regular(&[&worker]).await;
    let mut reply = gateway.generate(r#"{"stream":true}"#).await;
    assert!(reply.next().await.is_some());
    let in_flight = format!("rollscope_worker_in_flight{{worker=\"{}\",role=\"regular\"}}", worker.url());
    assert_eq!(gateway.figures().await[&in_flight], 1);
    gate.open();
    reply.rest().await;
    assert_eq!(gateway.settled(&[("completed", 1)]).await[&in_flight], 0);
}

#[tokio::test]
async fn two_requests_of_one_name_and_one_trace_are_two_requests() {
    let (prefill, decode) = pair_of(Script::json(200, PREFILL), Script::json(200, PREFILL)).await;
    let gate = Gate::new();
    decode.on("/generate", crate::pair::waiting(&gate, PREFILL));
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    let address = gateway.address;
    let clients = [(); 2].map(|()| {
        tokio::spawn(async move {
            let headers = [("traceparent", "00-1-2-01")];
            Client::post_with(address, "/generate", &headers, r#"{"rid":"same"}"#).await.status
        })
    });
    gate.arrivals(2).await;
    gate.open();
    for client in clients {
        assert_eq!(client.await.unwrap(), 200);
    }
    let profiles = gateway.profiles(2).await;
    assert_ne!(profiles[0].id, profiles[1].id);
    let sent = decode.calls("/generate").iter().map(|call| call.request.text()).collect::<Vec<_>>();
    assert_ne!(sent[0], sent[1], "each has a room of its own");
    gateway.settled(&[("completed", 2)]).await;
}

#[tokio::test]
async fn an_abort_that_names_nobody_is_refused() {
    let (prefill, decode) = pair_of(Script::new(), Script::new()).await;
    for worker in [&prefill, &decode] {
        worker.on("/abort_request", Script::json(200, ""));
    }
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    for (body, status) in [
        (r#"{"rid":""}"#, 400),
        ("{}", 400),
        (r#"{"rid":null,"abort_all":false}"#, 400),
        ("", 400),
        ("no JSON", 400),
        ("[]", 400),
        (r#"{"rid":"x","rid":""}"#, 400),
        (r#"{"abort_all":0}"#, 400),
        (r#"{"rid":"","abort_all":"false"}"#, 400),
        (r#"{"rid":["x"]}"#, 400),
        (r#"{"rid":"","x":NaN}"#, 400),
        (r#"{"rid":"r-1"}"#, 200),
        (r#"{"rid":"","abort_all":true}"#, 200),
        (r#"{"rid":"","rid":"r-2","x":[1]}"#, 200),
        (r#"{"abort_all":"True"}"#, 200),
        (r#"{"abort_all":1}"#, 200),
    ] {
        assert_eq!(Client::post(gateway.address, "/abort_request", body).await.status, status, "{body}");
    }
    for worker in [&prefill, &decode] {
        assert_eq!(worker.calls("/abort_request").len(), 5, "both sides are told");
    }
}

#[tokio::test]
async fn replies_that_say_little_are_read_all_the_same() {
    let abort = r#"{"meta_info":{"id":"a","finish_reason":{"type":"abort"}}}"#;
    let null = r#"{"meta_info":{"id":"a","finish_reason":null}}"#;
    for (script, outcome) in [
        (Script::sse().event(null).event(abort).event("[DONE]").end(), Outcome::Failed),
        (Script::sse().event(null).event("[DONE]").end(), Outcome::Completed),
        (Script::json(200, null), Outcome::Completed),
        (Script::json(200, "{}"), Outcome::Completed),
    ] {
        let worker = FakeWorker::start().await;
        worker.on("/generate", script);
        let gateway = TestGateway::regular(&[&worker]).await;
        gateway.generate("{}").await.text().await;
        let profile = gateway.profiles(1).await.pop().unwrap();
        assert_eq!((profile.outcome, profile.weight_version()), (outcome, None));
        assert_eq!(profile.measure(Measure::CompletionTokens), None, "what is missing is not zero");
    }
}

#[tokio::test]
async fn numbers_that_json_does_not_have_pass_and_are_merged() {
    let prefill =
        r#"{"meta_info":{"pd_transfer_speed_gb_s":NaN,"input_token_logprobs":[[-Infinity,1,null]]}}"#;
    let decode = r#"{"meta_info":{"queue_time":Infinity,"output_token_logprobs":[[null,2,null]]}}"#;
    let (prefill, decode) = pair_of(Script::json(200, prefill), Script::json(200, decode)).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    assert_eq!(
        gateway.generate(r#"{"return_logprob":true}"#).await.text().await,
        r#"{"meta_info":{"pd_transfer_speed_gb_s":NaN,"input_token_logprobs":[[-Infinity,1,null]],"queue_time":Infinity,"output_token_logprobs":[[null,2,null]]}}"#
    );
    let profile = gateway.profiles(1).await.pop().unwrap();
    assert_eq!(profile.measure(Measure::TransferSpeed), None);
    assert!(profile.legs[0].report.measures.get(Measure::TransferSpeed).unwrap().fault.is_some());
}

#[tokio::test]
async fn what_clients_make_up_makes_no_series_and_no_success() {
    let worker = FakeWorker::start().await;
    worker.on("/v1/chat/completions", Script::json(404, r#"{"error":{"message":"no such model"}}"#));
    let gateway = TestGateway::regular(&[&worker]).await;
    let ask = async |number: usize| {
        let body = format!(r#"{{"model":"m-{number}","messages":[]}}"#);
        let reply = Client::post(gateway.address, "/v1/chat/completions", &body).await;
        assert_eq!((reply.status.as_u16(), reply.text().await.contains("no such model")), (404, true));
        let reply = Client::post(gateway.address, &format!("/scan-{number}?q={number}"), "{}").await;
        assert_eq!(reply.status, 404);
        reply.text().await;
    };
    let page = async || Client::get(gateway.address, "/metrics").await.text().await;
    ask(0).await;
    gateway.settled(&[("failed", 2), ("completed", 0)]).await;
    let lines = page().await.lines().count();
    for number in 1..100 {
        ask(number).await;
    }
    let figures = gateway.settled(&[("failed", 200), ("completed", 0)]).await;
    assert_eq!(figures["smg_http_responses_total{status_code=\"404\"}"], 200);
    let page = page().await;
    assert_eq!(page.lines().count(), lines, "{page}");
    assert!(["m-7", "scan"].iter().all(|made_up| !page.contains(made_up)), "{page}");
}

#[tokio::test]
async fn a_finish_by_error_is_no_success_whatever_the_status() {
    let error = r#"{"meta_info":{"finish_reason":{"type":"error","message":"worker gone"}}}"#;
    let (prefill, decode) = pair_of(Script::json(200, error), Script::new().hang()).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    let reply = gateway.generate("{}").await;
    // The worker's own, as is its body.
    assert_eq!(reply.status, 200);
    assert_eq!(reply.text().await, error);
    gateway.settled(&[("failed", 1), ("completed", 0)]).await;
}
