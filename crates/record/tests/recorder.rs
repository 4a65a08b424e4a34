//! The recorder end to end: records in, by sink and by HTTP; a run directory out.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use rollscope_fpm::{Address, Pass, Publisher, Subscriptions};
use rollscope_record::{
    MakeGlance, PassSource, PassTroubles, QUEUE_MESSAGES, RecordError, RecordOptions, Recorder,
    RecorderHandle, StepEnd, catch_up, follow_fleet, origin_of, record_passes, routes,
};
use rollscope_run::{LogOptions, Presence, Run, RunInfo, Sealed, WriterState};
use rollscope_trace::{
    CloseReason, Dropped, Join, Leg, LegRole, Nanos, Profile, ProfileSink as _, Record, Report, RequestId,
    SampleMark, Scalar, StepClose, StepNumber, UnixNs, WorkerRef,
};
use rollscope_track::{Target, Tracker};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);

struct Setup {
    _dir: tempfile::TempDir,
    run: Run,
    recorder: Recorder,
    troubles: Arc<Mutex<Vec<String>>>,
}

fn setup(options: RecordOptions) -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let info = RunInfo { producer: "test".into(), created: UnixNs(0), config: json!({}) };
    let run = Run::create(&dir.path().join("run"), &info).unwrap();
    let troubles: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&troubles);
    let on_trouble = Arc::new(move |error: &RecordError| told.lock().push(error.to_string()));
    let recorder = Recorder::start(run.clone(), &RecordOptions { on_trouble, ..options }).unwrap();
    Setup { _dir: dir, run, recorder, troubles }
}

/// Records what a source publishes for as long as the result lives.
fn listen(handle: &RecorderHandle, source: &PassSource) -> Subscriptions<(), PassSource> {
    let (mut subscriptions, heard) = Subscriptions::new(QUEUE_MESSAGES);
    tokio::spawn(record_passes(handle.clone(), heard, PassTroubles::default(), |_, _| {}));
    subscriptions.follow([((), source.clone(), source.endpoint.clone())]);
    subscriptions
}

async fn serve(recorder: &Recorder) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = routes(recorder.handle());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

async fn call(method: &str, url: &str, body: &str) -> (u16, Value) {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let request = http::Request::builder()
        .method(method)
        .uri(url)
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap();
    let reply = client.request(request).await.unwrap();
    let status = reply.status().as_u16();
    let body = reply.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

fn profile(id: u128, join: Join, version: &str) -> Profile {
    let pairs = [
        ("weight_version", Scalar::Text(version)),
        ("completion_tokens", Scalar::Number(20.0)),
        ("e2e_latency", Scalar::Number(0.5)),
        ("queue_time", Scalar::Number(-1.0)),
    ];
    let leg = Leg {
        first_byte: Some(Nanos(1000)),
        report: Report::from_pairs(pairs),
        ..Leg::new(
            LegRole::Regular,
            WorkerRef { url: "http://w".into(), instance: "w".into() },
            Nanos(0),
            Nanos(600_000_000),
        )
    };
    Profile {
        join,
        first_byte: Some(Nanos(1000)),
        decision: "round_robin".into(),
        legs: vec![leg],
        ..Profile::new(RequestId(id), UnixNs(1_700_000_000_000_000_000 + id as i64), Nanos(700_000_000))
    }
}

fn of_sample(step: u64, sample: &str) -> Join {
    Join { step: Some(StepNumber(step)), sample: Some(sample.into()), ..Join::default() }
}

fn closed(run: &Run, step: u64) -> Option<CloseReason> {
    let steps = run.steps().unwrap();
    steps.iter().find(|summary| summary.step.0 == step).and_then(|s| s.close).map(|close| close.reason)
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_told_to_end_answers_with_its_numbers() {
    let Setup { _dir, run, recorder, troubles } = setup(RecordOptions::default());
    let url = serve(&recorder).await;
    let handle = recorder.handle();
    for (id, sample) in [(1, "a"), (2, "b")] {
        handle.offer(profile(id, of_sample(3, sample), "v")).unwrap();
    }
    let lines = r#"{"type":"sample","step":3,"sample":"a","reward":1.0}
        {"type":"sample","step":3,"sample":"b","reward":0.5,"truncated":true}
        {"type":"span","step":3,"sample":"a","name":"reward","start":1700000000.7,"end":1700000000.8}
        broken"#;
    let (status, reply) = call("POST", &format!("{url}/rollscope/v1/spans"), lines).await;
    assert_eq!((status, &reply["accepted"], &reply["rejected"][0]["line"]), (200, &json!(3), &json!(4)));

    let end = r#"{"rollout_time": 4.0, "num_gpus": 2}"#;
    let (status, reply) = call("POST", &format!("{url}/rollscope/steps/3/end"), end).await;
    assert_eq!((status, &reply["step"]), (200, &json!(3)), "{reply}");
    let expected = [
        ("rollout/reward/mean", 0.75),
        ("perf/request/count", 2.0),
        ("perf/request/e2e_latency/mean", 0.5),
        ("perf/rollout_time", 4.0),
        ("perf/tokens_per_gpu_per_sec", 5.0),
        ("perf/anomaly/negative", 2.0),
    ];
    for (name, value) in expected {
        assert_eq!(reply["data"][name], json!(value), "{name} in {reply}");
    }
    let on_disk = run.stats(StepNumber(3)).unwrap().unwrap();
    assert_eq!(reply["data"], on_disk["metrics"]);
    assert_eq!(on_disk["workers"][0]["requests"], json!(2));
    assert_eq!(run.metrics().unwrap()[0].data["rollout/reward/mean"], json!(0.75));
    assert_eq!(closed(&run, 3), Some(CloseReason::Told));

    let (_, reply) = call("GET", &format!("{url}/rollscope/steps/3"), "").await;
    assert_eq!((&reply["state"], &reply["data"]["perf/request/count"]), (&json!("closed"), &json!(2.0)));
    recorder.shutdown().await.unwrap();
    assert_eq!(run.writers().unwrap()[0].state, WriterState::Ended);
    assert!(troubles.lock().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_late_amends_the_step_and_what_was_sent() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    let handle = recorder.handle();
    handle.offer(profile(1, of_sample(1, "a"), "v")).unwrap();
    let end = StepEnd { rollout_time: Some(Nanos(4_000_000_000)), gpus: Some(8) };
    handle.end_step(StepNumber(1), end).unwrap().await.unwrap().unwrap();
    handle.offer(profile(2, of_sample(1, "b"), "v")).unwrap();
    recorder.shutdown().await.unwrap();
    let counts: Vec<_> =
        run.metrics().unwrap().iter().map(|sent| sent.data["perf/request/count"].clone()).collect();
    assert_eq!(counts, [1.0, 2.0]);
    let stats = run.stats(StepNumber(1)).unwrap().unwrap()["metrics"].clone();
    assert_eq!((&stats["perf/request/count"], &stats["perf/rollout_time"]), (&json!(2.0), &json!(4.0)));
    let step = run.steps().unwrap().remove(0);
    assert!(step.late && step.requests == 2, "{step:?}");
    let close = step.close.unwrap();
    assert_eq!(
        (close.reason, close.gpus),
        (CloseReason::Told, Some(8)),
        "what is late does not end it again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tracker_that_is_away_loses_no_step() {
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("away").join("lines.jsonl");
    // Where its folder should be there is a file.
    fs::write(dir.path().join("away"), "").unwrap();
    let target = Target::Jsonl { path: Some(lines.clone()) };
    let options = RecordOptions { trackers: vec![target.clone()], ..RecordOptions::default() };
    let Setup { _dir, run, recorder, troubles } = setup(options);
    let handle = recorder.handle();
    let step = async |step: u64| {
        handle.offer(profile(step.into(), of_sample(step, "a"), "v")).unwrap();
        handle.end_step(StepNumber(step), StepEnd::default()).unwrap().await.unwrap().unwrap();
    };
    step(1).await;
    step(2).await;
    until("it is told that the tracker is away", || !troubles.lock().is_empty());
    fs::remove_file(dir.path().join("away")).unwrap();
    step(3).await;
    recorder.shutdown().await.unwrap();
    assert_eq!(troubles.lock().len(), 1, "told once: {:?}", troubles.lock());
    let sent = fs::read_to_string(&lines).unwrap();
    assert_eq!(sent, fs::read_to_string(run.dir().join("metrics.jsonl")).unwrap());
    // Afterwards there is nothing left to send.
    let mut tracker = Tracker::open(&target, &origin_of(&run)).unwrap();
    assert_eq!(catch_up(&run, &mut tracker).unwrap().0, 0);
}

#[test]
fn steps_that_change_are_replaced_in_a_board_s_file() {
    let dir = tempfile::tempdir().unwrap();
    let info = RunInfo { producer: "test".into(), created: UnixNs(0), config: json!({}) };
    let run = Run::create(&dir.path().join("run"), &info).unwrap();
    let open = || Tracker::open(&"tensorboard".parse().unwrap(), &origin_of(&run)).unwrap();
    for value in [1, 2] {
        for step in 1..=5 {
            let numbers = serde_json::Map::from_iter([("perf/number".to_owned(), json!(value))]);
            run.metrics_log().append(StepNumber(step), &numbers).unwrap();
        }
        assert_eq!(catch_up(&run, &mut open()).unwrap().0, 5);
        assert_eq!([1, 5, 6].map(|step| open().times(step)), [value, value, 0]);
    }
    assert_eq!(catch_up(&run, &mut open()).unwrap().0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_records_are_sealed_without_an_end_of_another_step() {
    let options = RecordOptions { superseded_after: Duration::from_millis(50), ..RecordOptions::default() };
    let Setup { _dir, run, recorder, .. } = setup(options);
    let handle = recorder.handle();
    handle.offer(profile(1, of_sample(1, "a"), "v")).unwrap();
    handle.end_step(StepNumber(1), StepEnd::default()).unwrap().await.unwrap().unwrap();
    handle.offer(profile(2, of_sample(1, "b"), "v")).unwrap();
    let counted = || run.stats(StepNumber(1)).unwrap().unwrap()["metrics"]["perf/request/count"].clone();
    until("the late request is in the numbers", || counted() == json!(2.0));
    assert_eq!(closed(&run, 1), Some(CloseReason::Told));
    recorder.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn to_end_a_step_again_amends_its_end_and_answers_everybody() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    let handle = recorder.handle();
    handle.offer(profile(1, of_sample(1, "a"), "v")).unwrap();
    let end = |seconds: Option<u64>, gpus| {
        let rollout_time = seconds.map(|seconds| Nanos(seconds * 1_000_000_000));
        handle.end_step(StepNumber(1), StepEnd { rollout_time, gpus }).unwrap()
    };
    let (first, second) = (end(Some(4), None), end(Some(5), None));
    for closed in [first.await, second.await] {
        assert_eq!(closed.unwrap().unwrap().metrics["perf/rollout_time"], json!(5.0));
    }
    let third = end(None, Some(2)).await.unwrap().unwrap();
    assert_eq!(third.metrics["perf/rollout_time"], json!(5.0));
    assert_eq!(third.metrics["perf/tokens_per_gpu_per_sec"], json!(2.0));
    recorder.shutdown().await.unwrap();
    let sent = run.metrics().unwrap();
    assert_eq!(
        (sent.len(), &sent[1].data),
        (2, &third.metrics),
        "those told at once are one, and the last one holds"
    );
    assert_eq!(run.steps().unwrap().len(), 1);
}

/// Two recorders at work in one run, each of which the other knows of, and where the numbers go besides.
fn two_recorders(options: &RecordOptions) -> (Setup, Recorder) {
    let first = setup(options.clone());
    let second = Recorder::start(first.run.clone(), options).unwrap();
    for writer in ["gateway", "gateway-2"] {
        until("it is told who is there", || !told_by(&first.run, writer).is_empty());
    }
    (first, second)
}

/// What a recorder tells the others.
fn told_by(run: &Run, writer: &str) -> String {
    fs::read_to_string(run.dir().join("log").join(writer).join("present.json")).unwrap_or_default()
}

fn sent_counts(run: &Run) -> Vec<(u64, f64)> {
    let count = |data: &serde_json::Map<String, Value>| data["perf/request/count"].as_f64().unwrap();
    run.metrics().unwrap().iter().map(|sent| (sent.step.0, count(&sent.data))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_request_at_another_recorder_keeps_its_step_open() {
    let options = RecordOptions { superseded_after: Duration::from_millis(50), ..RecordOptions::default() };
    let (Setup { _dir, run, recorder, troubles }, other) = two_recorders(&options);
    let live = Arc::new(Mutex::new(BTreeSet::from([StepNumber(10)])));
    let of_other = Arc::clone(&live);
    other.handle().ask_live(move || of_other.lock().clone());
    until("the other tells its live request", || told_by(&run, "gateway-2").contains("\"busy\":[10]"));
    let handle = recorder.handle();
    for step in 10..=12 {
        handle.offer(profile(step.into(), of_sample(step, "a"), "v")).unwrap();
    }
    until("step 11 is superseded", || closed(&run, 11) == Some(CloseReason::Superseded));
    assert_eq!(closed(&run, 10), None, "it was quiet here for longer, and goes on elsewhere");
    other.handle().offer(profile(1, of_sample(10, "b"), "v")).unwrap();
    live.lock().clear();
    until("step 10 is superseded", || closed(&run, 10) == Some(CloseReason::Superseded));
    other.shutdown().await.unwrap();
    assert_eq!(closed(&run, 12), None, "the first one goes on with it");
    recorder.shutdown().await.unwrap();
    assert_eq!(sent_counts(&run), [(11, 1.0), (10, 2.0), (12, 1.0)]);
    assert!(troubles.lock().is_empty(), "{troubles:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorder_that_others_survive_leaves_its_steps_to_them() {
    let (Setup { _dir, run, recorder, troubles }, other) = two_recorders(&RecordOptions::default());
    other.handle().offer(profile(1, of_sample(12, "a"), "v")).unwrap();
    other.handle().offer(profile(2, of_sample(13, "a"), "v")).unwrap();
    recorder.handle().offer(profile(3, of_sample(12, "b"), "v")).unwrap();
    other.shutdown().await.unwrap();
    assert_eq!((closed(&run, 12), closed(&run, 13), sent_counts(&run)), (None, None, vec![]));
    recorder.handle().offer(profile(4, of_sample(12, "c"), "v")).unwrap();
    let end = StepEnd { rollout_time: Some(Nanos(9_000_000_000)), gpus: None };
    let ended = recorder.handle().end_step(StepNumber(12), end).unwrap().await.unwrap().unwrap();
    assert_eq!(
        (&ended.metrics["perf/request/count"], &ended.metrics["perf/rollout_time"]),
        (&json!(3.0), &json!(9.0))
    );
    recorder.shutdown().await.unwrap();
    assert_eq!(closed(&run, 13), Some(CloseReason::Shutdown), "of which the first one had nothing");
    assert_eq!(sent_counts(&run), [(12, 3.0), (13, 1.0)]);
    assert!(troubles.lock().is_empty(), "{troubles:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_recorders_that_end_at_once_one_closes_and_sends_what_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("lines.jsonl");
    let trackers = vec![Target::Jsonl { path: Some(lines.clone()) }];
    let options = RecordOptions { trackers, ..RecordOptions::default() };
    let (Setup { _dir, run, recorder, troubles }, other) = two_recorders(&options);
    for (recorder, id) in [(&recorder, 1), (&other, 2)] {
        recorder.handle().offer(profile(id, of_sample(5, &id.to_string()), "v")).unwrap();
    }
    let (one, two) = tokio::join!(recorder.shutdown(), other.shutdown());
    one.and(two).unwrap();
    assert_eq!((closed(&run, 5), sent_counts(&run)), (Some(CloseReason::Shutdown), vec![(5, 2.0)]));
    assert_eq!(
        fs::read_to_string(lines).unwrap(),
        fs::read_to_string(run.dir().join("metrics.jsonl")).unwrap()
    );
    assert!(troubles.lock().is_empty(), "{troubles:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_is_told_when_the_step_was_sent_has_it_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("lines.jsonl");
    let trackers = vec![Target::Jsonl { path: Some(lines.clone()) }];
    let options = RecordOptions { trackers, ..RecordOptions::default() };
    let Setup { _dir, run, recorder, .. } = setup(options.clone());
    recorder.handle().offer(profile(1, of_sample(5, "a"), "v")).unwrap();
    recorder.shutdown().await.unwrap();
    assert_eq!(sent_counts(&run), [(5, 1.0)]);
    let again = Recorder::start(run.clone(), &options).unwrap();
    let end = StepEnd { rollout_time: Some(Nanos(9_000_000_000)), gpus: None };
    again.handle().end_step(StepNumber(5), end).unwrap().await.unwrap().unwrap();
    again.shutdown().await.unwrap();
    let sent = run.metrics().unwrap();
    let times: Vec<_> = sent.iter().map(|sent| (sent.time, sent.data["perf/rollout_time"].clone())).collect();
    assert_eq!(times, [(1, json!(0.7)), (2, json!(9.0))]);
    assert_eq!(
        fs::read_to_string(lines).unwrap(),
        fs::read_to_string(run.dir().join("metrics.jsonl")).unwrap()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_told_to_end_is_never_superseded() {
    let options = RecordOptions { superseded_after: Duration::ZERO, ..RecordOptions::default() };
    let Setup { _dir, run, recorder, .. } = setup(options);
    let handle = recorder.handle();
    handle.offer(profile(1, of_sample(1, "a"), "v")).unwrap();
    let end = StepEnd { rollout_time: Some(Nanos(4_000_000_000)), gpus: None };
    let ended = handle.end_step(StepNumber(1), end).unwrap();
    handle.offer(profile(2, of_sample(2, "a"), "v")).unwrap();
    assert_eq!(ended.await.unwrap().unwrap().metrics["perf/rollout_time"], json!(4.0));
    recorder.shutdown().await.unwrap();
    assert_eq!(closed(&run, 1), Some(CloseReason::Told));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_step_closes_a_quiet_one_and_shutdown_the_rest() {
    let options = RecordOptions { superseded_after: Duration::from_millis(50), ..RecordOptions::default() };
    let Setup { _dir, run, recorder, .. } = setup(options);
    let handle = recorder.handle();
    handle.offer(profile(1, of_sample(1, "a"), "v")).unwrap();
    handle.offer(profile(2, of_sample(2, "a"), "v")).unwrap();
    until("step 1 is superseded", || closed(&run, 1) == Some(CloseReason::Superseded));
    assert_eq!(closed(&run, 2), None);
    recorder.shutdown().await.unwrap();
    assert_eq!(closed(&run, 2), Some(CloseReason::Shutdown));
    let sent: Vec<_> = run.metrics().unwrap().iter().map(|sent| sent.step.0).collect();
    assert_eq!(sent, [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_straggler_keeps_its_step_open() {
    let options = RecordOptions { superseded_after: Duration::from_millis(50), ..RecordOptions::default() };
    let Setup { _dir, run, recorder, .. } = setup(options);
    let handle = recorder.handle();
    let straggles = Arc::new(AtomicBool::new(true));
    let of_step_1 = Arc::clone(&straggles);
    let live = |is_live: bool| is_live.then_some(StepNumber(1)).into_iter().collect::<BTreeSet<_>>();
    handle.ask_live(move || live(of_step_1.load(Ordering::Relaxed)));
    for step in 1..=3 {
        handle.offer(profile(step.into(), of_sample(step, "a"), "v")).unwrap();
    }
    until("step 2 is superseded", || closed(&run, 2) == Some(CloseReason::Superseded));
    assert_eq!(closed(&run, 1), None, "it was quiet for longer, but is not over");
    handle.offer(profile(4, of_sample(1, "b"), "v")).unwrap();
    straggles.store(false, Ordering::Relaxed);
    until("step 1 is superseded", || closed(&run, 1) == Some(CloseReason::Superseded));
    recorder.shutdown().await.unwrap();
    let sent = run.metrics().unwrap();
    let first = sent.iter().find(|sent| sent.step == StepNumber(1)).unwrap();
    assert_eq!(first.data["perf/request/count"], json!(2.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_header_the_weight_version_tells_the_step() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    let handle = recorder.handle();
    for (id, version) in [(1, "v-b"), (2, "v-a"), (3, "v-b")] {
        handle.offer(profile(id, Join::default(), version)).unwrap();
    }
    recorder.shutdown().await.unwrap();
    let requests: Vec<_> = run.steps().unwrap().iter().map(|step| (step.step.0, step.requests)).collect();
    assert_eq!(requests, [(1, 2), (2, 1)]);
    let trace = run.step(StepNumber(1)).unwrap();
    let samples: Vec<_> = trace.samples.iter().map(|sample| sample.key.to_string()).collect();
    assert_eq!(samples, [RequestId(1).to_string(), RequestId(3).to_string()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_drops_counts_and_logs_the_count() {
    let options = RecordOptions { queue_bytes: 4096, ..RecordOptions::default() };
    let Setup { _dir, run, recorder, .. } = setup(options);
    let url = serve(&recorder).await;
    let handle = recorder.handle();
    let mut offered = 0;
    let mut refused = 0;
    // One offer is larger than the queue, so that a refusal does not depend on how fast the writer is.
    let mut huge = profile(9, of_sample(1, "huge"), "v");
    huge.error = Some("x".repeat(5000).into());
    assert_eq!(handle.offer(huge), Err(Dropped));
    for id in 0..200 {
        offered += 1;
        refused += u64::from(handle.offer(profile(id, of_sample(1, &id.to_string()), "v")).is_err());
    }
    let mark = Record::Sample(SampleMark::new(profile(0, of_sample(1, "a"), "v").sample_key(StepNumber(1))));
    assert_eq!(handle.offer_all(vec![mark; 100]), Err(Dropped));
    assert_eq!((handle.dropped_profiles(), handle.dropped_user_records()), (refused + 1, 100));
    // What can never fit is not a matter of waiting, and whoever sent it is told so.
    let line = r#"{"type":"sample","step":1,"sample":"a"}"#.to_owned() + "\n";
    let (status, reply) = call("POST", &format!("{url}/rollscope/v1/spans"), &line.repeat(100)).await;
    assert_eq!(status, 413, "{reply}");
    recorder.shutdown().await.unwrap();
    let (status, reply) = call("POST", &format!("{url}/rollscope/v1/spans"), &line).await;
    assert_eq!(status, 503, "{reply}");
    let dropped = run.dropped().unwrap();
    assert_eq!((dropped.profiles, dropped.user_records), (refused + 1, 100));
    assert_eq!(run.steps().unwrap()[0].requests, offered - refused);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_calls_get_a_sentence() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    let url = serve(&recorder).await;
    for (method, path, body, status, words) in [
        ("POST", "v1/spans", "nonsense", 400, ""),
        ("POST", "steps/x/end", "", 400, "not the number of a step: x"),
        (
            "POST",
            "steps/1/end",
            r#"{"rollout_time": -1}"#,
            400,
            "`rollout_time` is -1, and a number of seconds is wanted",
        ),
        ("POST", "steps/1/end", r#"{"gpus": 1}"#, 400, "`gpus` is not known"),
        ("GET", "steps/77", "", 404, "the run has no step 77"),
        ("POST", "steps/77/end", "", 404, "the run has no step 77"),
        ("GET", "nothing", "", 404, "no such route"),
        ("GET", "v1/spans", "", 405, "Method Not Allowed"),
        ("POST", "steps/%FF/end", "", 400, "UTF-8"),
        ("POST", "v1/spans", &"\n".repeat((16 << 20) + 1), 413, "length limit exceeded"),
        ("POST", "steps/1/end", &" ".repeat((16 << 20) + 1), 413, "length limit exceeded"),
    ] {
        let (got, reply) = call(method, &format!("{url}/rollscope/{path}"), body).await;
        assert_eq!(got, status, "{path}: {reply}");
        assert!(reply["error"]["message"].as_str().unwrap_or_default().contains(words), "{path}: {reply}");
    }
    let (status, reply) = call("POST", &format!("{url}/rollscope/v1/spans"), "\n\n").await;
    assert_eq!((status, reply), (200, json!({"accepted": 0, "rejected": []})));
    recorder.shutdown().await.unwrap();
    assert!(
        run.steps().unwrap().is_empty() && run.metrics().unwrap().is_empty(),
        "a mistyped number is no step"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_recorder_goes_on_with_the_same_run() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    recorder.handle().offer(profile(1, Join::default(), "v-a")).unwrap();
    recorder.shutdown().await.unwrap();
    let second = Recorder::start(run.clone(), &RecordOptions::default()).unwrap();
    let handle: RecorderHandle = second.handle();
    handle.offer(profile(2, Join::default(), "v-b")).unwrap();
    second.shutdown().await.unwrap();
    assert_eq!(handle.offer(profile(3, Join::default(), "v-b")), Err(Dropped));
    assert_eq!(run.steps().unwrap().iter().map(|step| step.step.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(run.writers().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_a_killed_recorder_left_open_is_gone_on_with() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    recorder.shutdown().await.unwrap();
    let mut killed = run.writer("gateway", LogOptions::default()).unwrap();
    let mut first = profile(1, Join::default(), "v-a");
    first.join.step = Some(StepNumber(7));
    killed.append(&Record::Profile(Box::new(first))).unwrap();
    drop(killed);
    let second = Recorder::start(run.clone(), &RecordOptions::default()).unwrap();
    // A live one beside it has steps of its own.
    let third = Recorder::start(run.clone(), &RecordOptions::default()).unwrap();
    second.handle().offer(profile(2, Join::default(), "v-a")).unwrap();
    second.handle().offer(profile(3, Join::default(), "v-b")).unwrap();
    third.shutdown().await.unwrap();
    assert_eq!(closed(&run, 7), None);
    second.shutdown().await.unwrap();
    let steps: Vec<_> = run.steps().unwrap().iter().map(|step| (step.step.0, step.requests)).collect();
    assert_eq!(steps, [(7, 2), (8, 1)]);
    assert_eq!(run.metrics().unwrap()[0].data["perf/request/count"], json!(2.0));
}

/// What a recorder that is killed leaves: requests of step 7, which it told to be open, and of 8, which it has just closed.
fn killed_recorder(run: &Run) {
    let mut killed = run.writer("gateway", LogOptions::default()).unwrap();
    for step in [7, 8] {
        let mut profile = profile(step.into(), Join::default(), "v-a");
        profile.join.step = Some(StepNumber(step));
        killed.append(&Record::Profile(Box::new(profile))).unwrap();
    }
    let (at, reason) = (UnixNs(1_700_000_001_000_000_000), CloseReason::Told);
    let close = StepClose { step: StepNumber(8), at, reason, rollout_time: None, gpus: None };
    killed.append(&Record::Close(close)).unwrap();
    let open = BTreeSet::from([StepNumber(7)]);
    run.peers(&killed).tell(Presence { open, ..Presence::default() }).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_recorder_left_is_sealed_by_one_that_lives() {
    let Setup { _dir, run, recorder, troubles } = setup(RecordOptions::default());
    killed_recorder(&run);
    until("the numbers that it had no time for", || sent_counts(&run) == [(8, 1.0)]);
    recorder.shutdown().await.unwrap();
    assert_eq!(sent_counts(&run), [(8, 1.0), (7, 1.0)]);
    assert_eq!((closed(&run, 7), closed(&run, 8)), (Some(CloseReason::Shutdown), Some(CloseReason::Told)));
    assert!(troubles.lock().is_empty(), "{troubles:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_recorder_left_open_is_gone_on_with_beside_a_writer_that_is_no_recorder() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    recorder.shutdown().await.unwrap();
    killed_recorder(&run);
    let importing = run.writer("import", LogOptions::default()).unwrap();
    let recorder = Recorder::start(run.clone(), &RecordOptions::default()).unwrap();
    recorder.shutdown().await.unwrap();
    assert_eq!(closed(&run, 7), Some(CloseReason::Shutdown));
    drop(importing);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_step_by_a_recorder_that_has_ended_since_stands() {
    let (Setup { _dir, run, recorder, troubles }, other) = two_recorders(&RecordOptions::default());
    for (recorder, id) in [(&recorder, 1), (&other, 2)] {
        recorder.handle().offer(profile(id, of_sample(7, &id.to_string()), "v")).unwrap();
    }
    let end = StepEnd { rollout_time: Some(Nanos(9_000_000_000)), gpus: None };
    other.handle().end_step(StepNumber(7), end).unwrap().await.unwrap().unwrap();
    other.shutdown().await.unwrap();
    recorder.shutdown().await.unwrap();
    assert_eq!(closed(&run, 7), Some(CloseReason::Told));
    assert!(troubles.lock().is_empty(), "{troubles:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_seals_the_log_of_a_recorder_that_has_ended_it_and_is_sealing_it() {
    let (go_on, held) = std::sync::mpsc::sync_channel::<()>(1);
    let held = Mutex::new(held);
    let waiting: MakeGlance = Arc::new(move |_, _| {
        held.lock().recv_timeout(PATIENCE).ok()?;
        None
    });
    let Setup { _dir, run, recorder, .. } =
        setup(RecordOptions { glance: Some(waiting), ..RecordOptions::default() });
    recorder.handle().offer(profile(1, of_sample(1, "a"), "v")).unwrap();
    let ended = recorder.handle().end_step(StepNumber(1), StepEnd::default()).unwrap();
    ended.await.unwrap().unwrap();
    recorder.handle().offer(profile(2, of_sample(2, "a"), "v")).unwrap();
    drop(recorder);
    until("the log ends", || run.writers().unwrap()[0].state == WriterState::Ended);
    let mut sealed = Sealed::default();
    run.seal_interrupted(&mut sealed).unwrap();
    assert_eq!(sealed, Sealed::default());
    drop(go_on);
    until("the second step's numbers", || sent_counts(&run) == [(1, 1.0), (2, 1.0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorder_that_is_let_go_ends_in_order() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    recorder.handle().offer(profile(1, of_sample(1, "a"), "v")).unwrap();
    drop(recorder);
    until("the log ends", || run.writers().unwrap()[0].state == WriterState::Ended);
    assert_eq!(run.steps().unwrap()[0].requests, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_that_panics_leaves_nobody_waiting() {
    let on_trouble = Arc::new(|_: &RecordError| panic!("a listener's own fault"));
    let Setup { _dir, run, .. } = setup(RecordOptions::default());
    let recorder = Recorder::start(run, &RecordOptions { on_trouble, ..RecordOptions::default() }).unwrap();
    let handle = recorder.handle();
    // A record that the log refuses is trouble, whose listener panics.
    let mut huge = profile(1, of_sample(1, "a"), "v");
    huge.error = Some("x".repeat(17 << 20).into());
    handle.offer(huge).unwrap();
    let (ended, id) = (handle.end_step(StepNumber(1), StepEnd::default()), 2);
    if let Ok(ended) = ended {
        assert!(ended.await.is_err(), "it is answered by nobody");
    }
    until("offers are refused", || handle.offer(profile(id, of_sample(1, "b"), "v")).is_err());
    assert!(handle.dropped_profiles() > 0);
    assert!(matches!(recorder.shutdown().await, Err(RecordError::Panicked)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forward_passes_go_on_with_the_step_that_the_run_stands_at() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    recorder.handle().offer(profile(1, of_sample(7, "a"), "v7")).unwrap();
    recorder.shutdown().await.unwrap();
    let recorder = Recorder::start(run.clone(), &RecordOptions::default()).unwrap();
    let mut publisher = Publisher::bind(&"tcp://127.0.0.1:0".parse().unwrap(), "w", 0).unwrap();
    let source = PassSource { endpoint: publisher.endpoint().clone(), worker: None };
    let _listening = listen(&recorder.handle(), &source);
    let passes = |step| run.forward_passes(StepNumber(step)).unwrap().len();
    until("a pass is recorded", || {
        publisher.publish(Pass { wall_time: 0.25, ..Pass::default() });
        passes(0) + passes(7) > 0
    });
    assert_eq!(passes(0), 0, "there is no step 0");
    recorder.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_is_asked_all_at_once_and_again() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    let handle = recorder.handle();
    handle.offer(profile(1, of_sample(1, "a"), "v1")).unwrap();
    let mut publisher = Publisher::bind(&"tcp://127.0.0.1:0".parse().unwrap(), "w", 0).unwrap();
    let base = publisher.endpoint().to_string();
    let worker = |url: &str| WorkerRef { url: url.into(), instance: url.into() };
    // The first never answers; the second tells at first that it publishes and not where.
    let fleet = vec![worker("http://silent"), worker("http://w")];
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let ask = move |worker: WorkerRef| {
        let (base, count) = (base.clone(), Arc::clone(&count));
        async move {
            if &*worker.url == "http://silent" {
                return std::future::pending().await;
            }
            let told = count.fetch_add(1, Ordering::SeqCst) > 0;
            let state = json!({"enable_forward_pass_metrics": true, "forward_pass_metrics_ipc_name": base});
            let states = if told { vec![state] } else { vec![] };
            Some(json!({"enable_forward_pass_metrics": true, "internal_states": states}))
        }
    };
    let of_fleet = fleet.clone();
    // The same endpoint was given as an address too.
    let further = vec![publisher.endpoint().to_string().parse::<Address>().unwrap()];
    let (subscriptions, heard) = Subscriptions::new(QUEUE_MESSAGES);
    let troubles = PassTroubles::default();
    tokio::spawn(record_passes(handle, heard, troubles.clone(), |_, _| {}));
    let workers = move || of_fleet.clone();
    let recording = tokio::spawn(follow_fleet(subscriptions, workers, further, ask, troubles));
    let recorded = || run.forward_passes(StepNumber(1)).unwrap();
    until("passes of the worker are recorded", || {
        publisher.publish(Pass { wall_time: 0.25, ..Pass::default() });
        recorded().iter().filter(|pass| pass.worker.is_some()).count() > 20
    });
    let passes = recorded();
    assert_eq!(passes[passes.len() - 1].worker.as_ref(), Some(&fleet[1]));
    let mut numbers: Vec<_> = passes.iter().map(|pass| pass.counter_id).collect();
    numbers.dedup();
    assert!(numbers.is_sorted() && numbers.len() == passes.len(), "a pass is recorded twice: {numbers:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 2, "one that has told is not asked again");
    recording.abort();
    recorder.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_publishes_elsewhere_is_found_again() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    let handle = recorder.handle();
    handle.offer(profile(1, of_sample(1, "a"), "v1")).unwrap();
    let bind = || Publisher::bind(&"tcp://127.0.0.1:0".parse().unwrap(), "w", 0).unwrap();
    let mut publisher = bind();
    let first = publisher.endpoint().to_string();
    let base = Arc::new(Mutex::new(first.clone()));
    let told = Arc::clone(&base);
    let ask = move |_| {
        let state =
            json!({"enable_forward_pass_metrics": true, "forward_pass_metrics_ipc_name": *told.lock()});
        std::future::ready(Some(json!({"internal_states": [state]})))
    };
    // The gateway names a worker anew that was started anew.
    let instance = Arc::new(Mutex::new("first"));
    let named = Arc::clone(&instance);
    let fleet = move || vec![WorkerRef { url: "http://w".into(), instance: (*named.lock()).into() }];
    let (subscriptions, heard) = Subscriptions::new(QUEUE_MESSAGES);
    let (tell, told_of) = std::sync::mpsc::sync_channel(64);
    let troubles = PassTroubles::new(move |text| tell.send(text.to_owned()).unwrap());
    tokio::spawn(record_passes(handle, heard, troubles.clone(), |_, _| {}));
    let recording = tokio::spawn(follow_fleet(subscriptions, fleet, Vec::new(), ask, troubles.clone()));
    let is_heard = |publisher: &mut Publisher| {
        publisher.publish(Pass { wall_time: 0.25, ..Pass::default() });
        let endpoint = publisher.endpoint().to_string();
        run.forward_passes(StepNumber(1)).unwrap().iter().any(|pass| *pass.endpoint == endpoint)
    };
    until("it is found", || is_heard(&mut publisher));
    // It has sent more than the one before by the time that it is found, and is no gap nevertheless.
    // The new one is there before the old one is gone, so that it cannot have the same port.
    let mut elsewhere = bind();
    for _ in 0..1000 {
        elsewhere.publish(Pass { wall_time: 0.25, ..Pass::default() });
    }
    drop(publisher);
    until("its end is told", || troubles.counts().connections_lost > 0);
    *base.lock() = elsewhere.endpoint().to_string();
    *instance.lock() = "second";
    until("it is found again", || is_heard(&mut elsewhere));
    let lives = run.forward_passes(StepNumber(1)).unwrap().into_iter().map(|pass| {
        let instance = pass.worker.map(|worker| worker.instance.to_string());
        (pass.endpoint.to_string(), instance, pass.life, pass.lost_before)
    });
    let mut lives: Vec<_> = lives.collect();
    lives.dedup();
    let life =
        |endpoint: &str, instance: &str, life| (endpoint.to_owned(), Some(instance.to_owned()), life, 0);
    assert_eq!(lives, [life(&first, "first", 0), life(&base.lock(), "second", 1)]);
    assert_eq!((troubles.counts().restarts, troubles.counts().missing), (1, 0));
    let lost = told_of.try_iter().collect::<Vec<_>>();
    assert!(lost[0].starts_with("no forward passes from tcp://127.0.0.1:"), "{lost:?}");
    assert!(troubles.counts().heard >= 2);
    recording.abort();
    recorder.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forward_passes_are_recorded_with_the_step_that_goes_on() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    let handle = recorder.handle();
    let mut publisher = Publisher::bind(&"tcp://127.0.0.1:0".parse().unwrap(), "w", 0).unwrap();
    let worker = Some(WorkerRef { url: "http://w".into(), instance: "w".into() });
    let source = PassSource { endpoint: publisher.endpoint().clone(), worker };
    let listening = listen(&handle, &source);
    let recorded = |step| run.forward_passes(StepNumber(step)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    // The first passes are heard of before any request of the step has ended.
    for number in 0..20 {
        publisher.publish(Pass { wall_time: 0.5, ..Pass::default() });
        handle.offer(profile(number, of_sample(3, "a"), "v1")).unwrap();
    }
    while recorded(3).last().is_none_or(|pass| pass.wall != Nanos(250_000_000)) {
        assert!(Instant::now() < deadline, "no pass was recorded");
        publisher.publish(Pass { wall_time: 0.25, ..Pass::default() });
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop((publisher, listening));
    let closed = handle.end_step(StepNumber(3), StepEnd::default()).unwrap();
    closed.await.unwrap().unwrap();
    let passes = recorded(3);
    let pass = passes.last().unwrap();
    assert_eq!((&pass.worker, &*pass.worker_id, pass.life), (&source.worker, "w", 0));
    assert_eq!(pass.wall, Nanos(250_000_000));
    assert!(pass.uncertainty >= Nanos(5_000_000));
    assert!(passes.windows(2).all(|two| two[0].counter_id < two[1].counter_id), "{passes:?}");
    assert!(!run.steps().unwrap()[0].late, "passes make no step late");
    recorder.shutdown().await.unwrap();
    assert_eq!(recorded(3), passes, "sealed, they read as they were logged");
}
