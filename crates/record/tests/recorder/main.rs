//! The recorder end to end: records in, by sink and by HTTP; a run directory out.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

mod kept;
mod passes;
mod peers;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use rollscope_record::{
    RecordError, RecordOptions, Recorder, RecorderHandle, StepEnd, catch_up, origin_of, routes,
};
use rollscope_run::{LogOptions, Run, RunInfo, WriterState};
use rollscope_trace::{
    CloseReason, Dropped, Join, Leg, LegRole, Nanos, Profile, ProfileSink as _, Record, Report, RequestId,
    SampleMark, Scalar, StepNumber, UnixNs, WorkerRef,
};
use rollscope_track::{Target, Tracker};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_mins(1);

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

/// Steps and their numbers, as they stand in a file of lines.
fn sent_to(lines: &Path) -> Vec<(Value, Value)> {
    let text = fs::read_to_string(lines).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| (line["step"].clone(), line["data"].clone())).collect()
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
    loop {
        // Asked before: a test that was not let run for a while looks once more.
        let is_late = Instant::now() >= deadline;
        if condition() {
            return;
        }
        assert!(!is_late, "waited in vain: {what}");
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
    assert_eq!(sent_to(&lines), sent_to(&run.dir().join("metrics.jsonl")));
    // Afterwards there is nothing left to send.
    let mut tracker = Tracker::open(&target, &origin_of(&run)).unwrap();
    assert_eq!(catch_up(&run, &mut tracker).unwrap().0, 0);
}

/// As a recorder leaves it that is killed when it has computed the numbers of two steps, one of them once more.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_were_computed_and_not_sent_are_sent_by_the_next_recorder() {
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("lines.jsonl");
    let trackers = vec![Target::Jsonl { path: Some(lines.clone()) }];
    let options = RecordOptions { trackers, ..RecordOptions::default() };
    let Setup { _dir, run, recorder, .. } = setup(options.clone());
    for step in 1..=3 {
        recorder.handle().offer(profile(step.into(), of_sample(step, "a"), "v")).unwrap();
    }
    recorder.shutdown().await.unwrap();
    let metrics = run.dir().join("metrics.jsonl");
    let whole = fs::read_to_string(&metrics).unwrap();
    let kept: String = whole.split_inclusive('\n').take(2).collect();
    for path in [&metrics, &lines] {
        fs::write(path, &kept).unwrap();
    }
    let mut again = run.stats(StepNumber(2)).unwrap().unwrap();
    again["metrics"]["perf/rollout_time"] = json!(9.25);
    run.put_stats(StepNumber(2), &again).unwrap();
    for _ in 0..2 {
        Recorder::start(run.clone(), &options).unwrap().shutdown().await.unwrap();
        let sent: Vec<_> = run.metrics().unwrap().into_iter().map(|sent| (sent.step.0, sent.time)).collect();
        assert_eq!(sent, [(1, 1), (2, 1), (2, 2), (3, 1)]);
        assert_eq!(json!(run.metrics().unwrap()[2].data), again["metrics"]);
        assert_eq!(sent_to(&lines), sent_to(&metrics));
    }
    // A line that somebody has amended by hand.
    let amended = "{\"step\":2,\"data\":{\"perf/rollout_time\":1.5}}\n";
    let mut file = fs::OpenOptions::new().append(true).open(&metrics).unwrap();
    file.write_all(amended.as_bytes()).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(1)).unwrap();
    Recorder::start(run.clone(), &options).unwrap().shutdown().await.unwrap();
    assert!(fs::read_to_string(&metrics).unwrap().ends_with(amended), "it holds");
    assert!(fs::read_to_string(&lines).unwrap().contains("{\"perf/rollout_time\":1.5}"), "and is sent");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_recorder_that_is_let_go_ends_in_order() {
    let Setup { _dir, run, recorder, troubles } = setup(RecordOptions::default());
    recorder.handle().offer(profile(1, of_sample(1, "a"), "v")).unwrap();
    drop(recorder);
    until("the log ends", || {
        assert!(troubles.lock().is_empty(), "{troubles:?}");
        run.writers().unwrap()[0].state == WriterState::Ended
    });
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
