//! The profile that a request leaves, in whatever way it ended.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use rollscope_config::{Options as _, Published};
use rollscope_gateway::{Gateway, GatewayOptions, Mount, ReplyBody};
use rollscope_testkit::{Client, FakeWorker, Script, eventually, patient};
use rollscope_trace::{BatchSlot, Dropped, LegRole, Measure, Outcome, Profile, ProfileSink, StepNumber};
use tokio::net::TcpListener;

use crate::harness::TestGateway;
use crate::pair::{DECODE, PREFILL, pair_of};

#[tokio::test]
async fn a_pairs_profile_holds_both_legs() {
    let (prefill, decode) = pair_of(Script::json(200, PREFILL), Script::json(200, DECODE)).await;
    let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
    let headers = [
        ("x-rollscope-step", "7"),
        ("x-rollscope-group", "g"),
        ("x-rollscope-sample", "s"),
        ("x-rollscope-attempt", "2"),
        ("traceparent", "00-1-2-01"),
        ("x-smg-routing-key", "session"),
    ];
    Client::post_with(gateway.address, "/generate", &headers, r#"{"rid":"r","text":"a"}"#).await.text().await;
    let [profile] = &gateway.profiles(1).await[..] else { panic!("one profile") };
    let join = &profile.join;
    assert_eq!(
        (join.step, join.group.as_deref(), join.sample.as_deref()),
        (Some(StepNumber(7)), Some("g"), Some("s"))
    );
    assert_eq!((join.attempt, join.traceparent.as_deref()), (2, Some("00-1-2-01")));
    assert_eq!((join.session.as_deref(), join.rid.as_deref()), (Some("session"), Some("r")));
    assert_eq!((&*profile.endpoint, profile.stream, profile.batch), ("/generate", false, None));
    assert_eq!((profile.status, profile.outcome, profile.retries), (Some(200), Outcome::Completed, 0));
    assert_eq!(
        &*profile.decision,
        "prefill round_robin: only one; worker 1 of 1, 0 in flight | decode round_robin: only one; worker 1 of 1, 0 in flight"
    );

    assert_eq!(
        profile.legs.iter().map(|leg| leg.role).collect::<Vec<_>>(),
        [LegRole::Prefill, LegRole::Decode]
    );
    for (leg, worker) in profile.legs.iter().zip([&prefill, &decode]) {
        assert_eq!((&*leg.worker.url, leg.worker.instance.len()), (&*worker.url(), 16));
        assert_eq!((leg.status, leg.outcome), (Some(200), Outcome::Completed));
        let first_byte = leg.first_byte.unwrap();
        assert!(leg.dispatch <= first_byte && first_byte <= leg.end && leg.end <= profile.end);
    }
    assert!(profile.first_byte.unwrap() >= profile.legs[1].end && profile.first_byte.unwrap() <= profile.end);
    assert_eq!(profile.measure(Measure::TransferTotal), Some(1.5));
    assert_eq!(profile.measure(Measure::CompletionTokens), Some(7.0));
    assert_eq!(profile.finish().unwrap().kind.name(), "stop");
    assert!(profile.arrival.0 > 1_600_000_000_000_000_000);
}

#[tokio::test]
async fn what_the_prefill_of_a_chat_measured_is_profiled() {
    let usage = |cached: u32| {
        format!(r#""usage":{{"prompt_tokens":9,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#)
    };
    for is_stream in [false, true] {
        let reply = |cached: u32| {
            let last = format!(r#"{{"choices":[],{}}}"#, usage(cached));
            if is_stream {
                let first =
                    r#"{"choices":[{"index":0,"delta":{"content":"no error"},"finish_reason":"stop"}]}"#;
                return Script::sse().event(first).event(&last).event("[DONE]").end();
            }
            Script::json(200, &last)
        };
        let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
        prefill.on("/v1/chat/completions", reply(8));
        decode.on("/v1/chat/completions", reply(0));
        // A stream does not wait for the prefill's reply; its profile does.
        let gateway = TestGateway::pair(prefill.address(), decode.address(), "--merge-wait-secs 600").await;
        let body = format!(r#"{{"messages":[],"stream":{is_stream}}}"#);
        let reply = Client::post(gateway.address, "/v1/chat/completions", &body).await.text().await;
        assert!(reply.contains(&usage(0)), "{reply}");
        let profile = &gateway.profiles(1).await[0];
        assert_eq!(profile.outcome, Outcome::Completed);
        assert_eq!(profile.legs[0].report.measures.good(Measure::CachedTokens), Some(8.0), "{is_stream}");
        assert_eq!(profile.measure(Measure::CachedTokens), Some(8.0), "{is_stream}");
    }
}

#[tokio::test]
async fn a_stream_is_profiled_by_its_last_word() {
    let worker = FakeWorker::start().await;
    let event = |tokens: u32, finish: &str| {
        format!(
            r#"{{"meta_info":{{"completion_tokens":{tokens},"weight_version":"v3","finish_reason":{finish}}}}}"#
        )
    };
    let stream =
        Script::sse().event(&event(1, "null")).event(&event(9, r#"{"type":"length"}"#)).event("[DONE]").end();
    worker.on("/generate", stream);
    let gateway = TestGateway::regular(&[&worker]).await;
    gateway.generate(r#"{"stream":true}"#).await.text().await;
    let profile = &gateway.profiles(1).await[0];
    assert_eq!(
        (profile.stream, profile.outcome, profile.weight_version()),
        (true, Outcome::Completed, Some("v3"))
    );
    assert_eq!(profile.measure(Measure::CompletionTokens), Some(9.0));
    assert_eq!(profile.legs[0].role, LegRole::Regular);
}

#[tokio::test]
async fn a_reply_of_any_size_is_read_while_it_passes() {
    let worker = FakeWorker::start().await;
    let body = format!(
        r#"{{"text":"{0}","meta_info":{{"logprobs":[{0}],"completion_tokens":9,"finish_reason":{{"type":"stop"}}}}}}"#,
        "1".repeat(300_000)
    );
    worker.on("/generate", Script::json(200, &body));
    // What may be held of it is far less than the reply.
    let args = format!("--worker-urls {} --max-merge-bytes 2000", worker.url());
    let gateway = TestGateway::start(&args).await;
    assert_eq!(gateway.generate("{}").await.text().await, body);
    let profile = &gateway.profiles(1).await[0];
    assert_eq!(profile.measure(Measure::CompletionTokens), Some(9.0));
    assert_eq!(profile.finish().unwrap().kind.name(), "stop");
}

#[tokio::test]
async fn a_workers_clock_is_known_from_its_exchanges() {
    const AHEAD_S: f64 = 3600.0;
    let (worker, other) = (FakeWorker::start().await, FakeWorker::start().await);
    worker.on_each("/generate", |request| {
        if request.text().contains("silent") {
            return Script::json(200, r#"{"meta_info":{}}"#);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() + AHEAD_S;
        let stamps = format!(r#""request_received_ts":{now},"response_sent_to_client_ts":{now}"#);
        Script::json(200, &format!(r#"{{"meta_info":{{{stamps}}}}}"#))
    });
    other.on("/generate", Script::json(200, r#"{"meta_info":{}}"#));
    let gateway = TestGateway::regular(&[&worker, &other]).await;
    for _ in 0..3 {
        for _ in [&worker, &other] {
            gateway.generate("{}").await.text().await;
        }
    }
    for _ in [&worker, &other] {
        gateway.generate(r#"{"text":"silent"}"#).await.text().await;
    }
    let (mut least, mut silent) = (u64::MAX, 0);
    for profile in gateway.profiles(8).await {
        let leg = &profile.legs[0];
        let Some(clock) = leg.clock else {
            assert_eq!(*leg.worker.url, *other.url(), "nothing is known of the other one's clock");
            continue;
        };
        assert_eq!(*leg.worker.url, *worker.url());
        let off_ns = (clock.offset_ns - (AHEAD_S * 1e9) as i64).unsigned_abs();
        // A double of this size holds a quarter of a microsecond.
        assert!(off_ns <= clock.bound.0 + 1000, "{clock:?}");
        if let Some(own) = leg.exchange_offset(profile.arrival) {
            least = least.min(own.bound.0);
        } else {
            // Its own exchange tells nothing: it is known from those before it.
            silent += 1;
        }
    }
    assert!(least < u64::MAX && silent == 1);
}

#[tokio::test]
async fn each_sample_of_a_batch_leaves_a_profile() {
    let worker = FakeWorker::start().await;
    let element = |tokens: u32| {
        format!(r#"{{"meta_info":{{"completion_tokens":{tokens},"finish_reason":{{"type":"stop"}}}}}}"#)
    };
    worker.on("/generate", Script::json(200, &format!("[{},{}]", element(3), element(4))));
    let gateway = TestGateway::regular(&[&worker]).await;
    gateway.generate(r#"{"text":["a","b"],"rid":["r0","r1"]}"#).await.text().await;
    let profiles = gateway.profiles(2).await;
    assert_ne!(profiles[0].id, profiles[1].id);
    for (index, profile) in (0_u32..).zip(&profiles) {
        assert_eq!(profile.batch, Some(BatchSlot { index, size: 2 }));
        assert_eq!(profile.join.rid.as_deref(), Some(&*format!("r{index}")));
        assert_eq!(profile.measure(Measure::CompletionTokens), Some(f64::from(3 + index)));
    }
}

#[tokio::test]
async fn whatever_happens_there_is_one_profile_that_says_what() {
    let cases = [
        (Script::json(400, "too long"), Outcome::Failed, Some(400), "worker answered 400"),
        (Script::new().reset(), Outcome::Failed, Some(502), "connection lost"),
        (Script::sse().event("{}").reset(), Outcome::Truncated, Some(200), "reply cut"),
        (Script::head(200, &[], Some(9)).send("{").reset(), Outcome::Truncated, Some(200), "reply cut"),
    ];
    for (script, outcome, status, error) in cases {
        let worker = FakeWorker::start().await;
        worker.on("/generate", script);
        let gateway = TestGateway::regular(&[&worker]).await;
        gateway.generate("{}").await.rest().await;
        let profile = gateway.profiles(1).await.pop().unwrap();
        assert_eq!((profile.outcome, profile.status), (outcome, status), "{error}");
        assert!(profile.error.as_deref().unwrap().contains(error), "{:?}", profile.error);
        assert_eq!(profile.legs.len(), 1, "{error}");
    }
    let gateway = TestGateway::start("").await;
    for body in ["{}", "{", r#"{"text":[]}"#] {
        gateway.generate(body).await.text().await;
    }
    let profiles = gateway.profiles(3).await;
    let statuses: Vec<_> = profiles.iter().map(|profile| profile.status).collect();
    assert_eq!(statuses, [Some(503), Some(400), Some(503)]);
    assert!(profiles.iter().all(|profile| profile.legs.is_empty() && profile.outcome == Outcome::Failed));
}

#[tokio::test]
async fn a_client_that_leaves_leaves_a_profile() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::sse().event(r#"{"meta_info":{"completion_tokens":1}}"#).hang());
    let gateway = TestGateway::regular(&[&worker]).await;
    let mut reply = gateway.generate(r#"{"stream":true}"#).await;
    assert!(reply.next().await.is_some());
    reply.leave();
    let profile = gateway.profiles(1).await.pop().unwrap();
    assert_eq!((profile.outcome, profile.status), (Outcome::Aborted, Some(200)));
    assert_eq!(profile.legs[0].outcome, Outcome::Aborted);
    assert!(profile.first_byte.is_some() && profile.legs[0].first_byte.is_some());
}

#[tokio::test]
async fn a_full_recorder_costs_no_request_and_is_counted() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, "{}"));
    worker.on("/v1/embeddings", Script::json(200, "{}"));
    let gateway = TestGateway::with_sink(&format!("--worker-urls {}", worker.url()), 1).await;
    for _ in 0..3 {
        assert_eq!(gateway.generate("{}").await.text().await, "{}");
    }
    Client::post(gateway.address, "/v1/embeddings", "{}").await.text().await;
    gateway.settled(&[("completed", 4)]).await;
    // Profiles are made and offered when their request is over.
    let dropped = async {
        while gateway.figures().await["rollscope_records_dropped_total"] < 2 {
            tokio::task::yield_now().await;
        }
    };
    patient("the count of what was dropped", dropped).await;
    gateway.profiles(1).await;
    let told = gateway.told();
    assert_eq!(told.iter().filter(|told| told.contains("does not take all")).count(), 1, "{told:?}");
}

type IsLive = Box<dyn Fn(StepNumber) -> bool + Send + Sync>;

/// Notes of each profile whether its step is live when it is offered.
#[derive(Default)]
struct StepSink {
    is_live: OnceLock<IsLive>,
    seen: Mutex<Vec<(StepNumber, bool)>>,
}

impl std::fmt::Debug for StepSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepSink").finish_non_exhaustive()
    }
}

impl ProfileSink for StepSink {
    fn offer(&self, profile: Profile) -> Result<(), Dropped> {
        let step = profile.join.step.unwrap();
        self.seen.lock().push((step, self.is_live.get().unwrap()(step)));
        Ok(())
    }
}

#[tokio::test]
async fn a_step_is_live_until_the_last_of_its_profiles_has_been_offered() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::new().hang());
    let sink = Arc::new(StepSink::default());
    let options = GatewayOptions::from_args(["--worker-urls", &worker.url()]).unwrap();
    let gateway = Gateway::new(Published::publish(options), Some(sink.clone()), None).unwrap();
    let live_steps = gateway.live_steps();
    assert!(sink.is_live.set(Box::new(move |step| live_steps().contains(&step))).is_ok());
    let live_steps = gateway.live_steps();
    let live = || live_steps().into_iter().map(|step| step.0).collect::<Vec<_>>();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(gateway.serve(listener, std::future::pending()));

    let clients = ["7", "7", "9"].map(|step| {
        tokio::spawn(async move {
            let headers = [("x-rollscope-step", step)];
            Client::post_with(address, "/generate", &headers, r#"{"text":["a","b"]}"#).await
        })
    });
    worker.arrived("/generate", 3).await;
    assert_eq!(live(), [7, 9]);
    for (client, left) in clients.into_iter().zip([&[7, 9][..], &[9], &[]]) {
        client.abort();
        eventually("the end of a request", || live() == left).await;
    }
    let expected: Vec<_> = [7, 7, 7, 7, 9, 9].map(|step| (StepNumber(step), true)).into();
    assert_eq!(*sink.seen.lock(), expected);
    served.abort();
}

#[tokio::test]
async fn who_asks_the_recorder_finds_the_profiles_of_what_is_over() {
    let worker = FakeWorker::start().await;
    worker.on_each("/generate", |_| Script::json(200, "{}"));
    let sink = Arc::new(StepSink::default());
    assert!(sink.is_live.set(Box::new(|_| true)).is_ok());
    let mount: Mount = Arc::new({
        let sink = sink.clone();
        move |_| {
            let count = sink.seen.lock().len().to_string();
            Box::pin(
                async move { http::Response::new(ReplyBody::new(Full::from(count).map_err(Into::into))) },
            )
        }
    });
    let options = GatewayOptions::from_args(["--worker-urls", &worker.url()]).unwrap();
    let gateway = Gateway::new(Published::publish(options), Some(sink), Some(mount)).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(gateway.serve(listener, std::future::pending()));
    // A driver says that the step has ended as soon as it has the last reply.
    for over in 1..=20 {
        Client::post_with(address, "/generate", &[("x-rollscope-step", "1")], "{}").await.text().await;
        let seen = Client::post(address, "/rollscope/steps/1/end", "").await.text().await;
        assert_eq!(seen, over.to_string());
    }
    served.abort();
}
