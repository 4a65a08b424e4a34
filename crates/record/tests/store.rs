//! What happens to a run that is being recorded: its folder is removed, its disk is full, it is copied elsewhere, a tracker
//! hangs.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollscope_fpm::{ForwardPassMetrics, Heard, Message, Origin, What};
use rollscope_record::{
    MakeGlance, PassSource, PassTroubles, RecordError, RecordOptions, Recorder, StepEnd, catch_up, origin_of,
    record_passes,
};
use rollscope_run::{GlanceBlocks, LogOptions, Retention, Run, RunInfo};
use rollscope_testkit::{Call, Gate, Script, mlflow, mlflow_path};
use rollscope_trace::{
    CloseReason, Join, Leg, LegRole, Nanos, Profile, ProfileSink as _, Record, Report, RequestId, Scalar,
    StepClose, StepNumber, UnixNs, WorkerRef,
};
use rollscope_track::{Target, Tracker};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_mins(1);
/// Set for a process that plays the second part of a test.
const ARCHIVE_TO: &str = "ARCHIVE_TO";
const LITTLE_ROOM: &str = "LITTLE_ROOM";

fn run_in(dir: &Path) -> Run {
    let info = RunInfo { producer: "test".into(), created: UnixNs(0), config: json!({}) };
    Run::create(dir, &info).unwrap()
}

fn start(run: &Run, options: RecordOptions) -> (Recorder, Arc<Mutex<Vec<String>>>) {
    let troubles: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&troubles);
    let on_trouble = Arc::new(move |error: &RecordError| told.lock().push(error.to_string()));
    (Recorder::start(run.clone(), &RecordOptions { on_trouble, ..options }).unwrap(), troubles)
}

fn profile(step: u64, id: u128) -> Profile {
    let worker = WorkerRef { url: "http://w".into(), instance: "w".into() };
    let leg = Leg {
        report: Report::from_pairs([("e2e_latency", Scalar::Number(0.5))]),
        ..Leg::new(LegRole::Regular, worker, Nanos(0), Nanos(600_000_000))
    };
    let sample = Some(id.to_string().into());
    Profile {
        join: Join { step: Some(StepNumber(step)), sample, ..Join::default() },
        legs: vec![leg],
        ..Profile::new(RequestId(id), UnixNs(1_700_000_000_000_000_000), Nanos(700_000_000))
    }
}

fn close(step: u64) -> StepClose {
    let (at, reason) = (UnixNs(1_700_000_001_000_000_000), CloseReason::Told);
    StepClose { step: StepNumber(step), at, reason, rollout_time: None, gpus: None }
}

/// Makes a block of the number of a step's samples.
fn make_glance() -> MakeGlance {
    Arc::new(|trace, _| {
        let mut blocks = GlanceBlocks::default();
        blocks.push(trace.samples.len().to_string().as_bytes()).unwrap();
        Some(blocks)
    })
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

#[tokio::test]
async fn a_run_that_is_removed_is_told_counted_and_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let (recorder, troubles) = start(&run, RecordOptions::default());
    recorder.handle().offer(profile(1, 1)).unwrap();
    until("the first request", || run.steps().unwrap().len() == 1);
    fs::remove_dir_all(run.dir()).unwrap();
    recorder.handle().offer(profile(2, 2)).unwrap();
    until("it is noticed", || !troubles.lock().is_empty());
    assert!(troubles.lock()[0].starts_with("the run's folder was removed"), "{troubles:?}");
    let lost = recorder.handle().dropped_profiles();
    recorder.handle().offer(profile(3, 3)).unwrap();
    recorder.shutdown().await.unwrap();
    let run = Run::open(run.dir()).unwrap();
    let requests: u64 = run.steps().unwrap().iter().map(|step| step.requests).sum();
    assert!(requests >= 1, "what came afterwards is there");
    // The first was seen to be written; of the second it depends on when one looked.
    assert!((1..=2).contains(&lost) && lost + requests >= 2, "{lost} lost, {requests} there");
    assert!(run.metrics().unwrap().iter().any(|sent| sent.step == StepNumber(3)));
    assert_eq!(run.dropped().unwrap().profiles, lost);
}

/// A file where a folder is to be is as good as a full disk: nothing can be written there until it is gone.
#[tokio::test]
async fn numbers_that_could_not_be_written_are_written_when_they_can() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let copy = dir.path().join("copy");
    let archive = Some(format!("file://{}", copy.display()).parse().unwrap());
    let (recorder, _troubles) = start(&run, RecordOptions { archive, ..RecordOptions::default() });
    fs::write(run.dir().join("steps"), "in the way").unwrap();
    recorder.handle().offer(profile(1, 1)).unwrap();
    let ended = recorder.handle().end_step(StepNumber(1), StepEnd::default()).unwrap();
    ended.await.unwrap().unwrap_err();
    assert!(run.metrics().unwrap().is_empty());
    fs::remove_file(run.dir().join("steps")).unwrap();
    until("the step's numbers", || run.metrics().unwrap().len() == 1);
    until("its parts", || run.dir().join("steps/step=000001/requests").is_dir());
    assert!(run.stats(StepNumber(1)).unwrap().is_some());
    recorder.shutdown().await.unwrap();
    let copy = Run::open(&copy).unwrap();
    assert_eq!(copy.step(StepNumber(1)).unwrap().requests().count(), 1);
    assert!(copy.stats(StepNumber(1)).unwrap().is_some());
}

#[tokio::test]
async fn what_a_viewer_shows_first_costs_no_step_its_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let options = RecordOptions { glance: Some(make_glance()), ..RecordOptions::default() };
    let (recorder, troubles) = start(&run, options);
    // A folder where the file is to be.
    fs::create_dir_all(run.dir().join("steps/step=000001/glance.bin")).unwrap();
    for step in 1..=2 {
        recorder.handle().offer(profile(step, step.into())).unwrap();
        let ended = recorder.handle().end_step(StepNumber(step), StepEnd::default()).unwrap();
        assert_eq!(ended.await.unwrap().unwrap().metrics["perf/request/count"], json!(1.0));
        assert!(run.metrics().unwrap().iter().any(|sent| sent.step == StepNumber(step)));
    }
    recorder.shutdown().await.unwrap();
    let troubles = troubles.lock();
    assert!(troubles.len() == 1 && troubles[0].contains("glance.bin"), "{troubles:?}");
    assert!(run.glance(StepNumber(1)).unwrap().is_none());
    assert!(run.glance(StepNumber(2)).unwrap().is_some());
}

#[tokio::test]
async fn the_end_of_a_step_is_answered_before_what_a_viewer_shows_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let (go_on, held) = std::sync::mpsc::sync_channel::<()>(1);
    let (held, make) = (Mutex::new(held), make_glance());
    let waiting: MakeGlance = Arc::new(move |trace, numbers| {
        held.lock().recv_timeout(PATIENCE).ok()?;
        make(trace, numbers)
    });
    let (recorder, _) = start(&run, RecordOptions { glance: Some(waiting), ..RecordOptions::default() });
    recorder.handle().offer(profile(1, 1)).unwrap();
    let ended = recorder.handle().end_step(StepNumber(1), StepEnd::default()).unwrap();
    ended.await.unwrap().unwrap();
    go_on.send(()).unwrap();
    recorder.shutdown().await.unwrap();
    assert!(run.glance(StepNumber(1)).unwrap().is_some(), "made when the end had been answered");
}

#[tokio::test]
async fn what_a_killed_recorder_left_is_sealed_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let mut killed = run.writer("gateway", LogOptions::default()).unwrap();
    for step in [4, 5] {
        killed.append(&Record::Profile(Box::new(profile(step, step.into())))).unwrap();
    }
    // It had no time for the step's numbers.
    killed.append(&Record::Close(close(4))).unwrap();
    drop(killed);
    let copy = dir.path().join("copy");
    let archive = Some(format!("file://{}", copy.display()).parse().unwrap());
    let (recorder, _) = start(&run, RecordOptions { archive, ..RecordOptions::default() });
    let part = run.dir().join("steps/step=000005/requests/gateway-000001.parquet");
    until("the killed one's part", || part.is_file());
    until("the step's numbers", || run.metrics().unwrap().len() == 1);
    recorder.shutdown().await.unwrap();
    let copy = Run::open(&copy).unwrap();
    for step in [4, 5].map(StepNumber) {
        assert_eq!(run.step(step).unwrap().requests().count(), 1);
        assert_eq!(copy.step(step).unwrap().requests().count(), 1);
        assert!(copy.stats(step).unwrap().is_some());
    }
    assert_eq!(run.metrics().unwrap().len(), 2);
}

#[tokio::test]
async fn a_copy_in_a_folder_can_be_opened_and_has_what_the_run_keeps_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let copy = dir.path().join("copies/run");
    let options = RecordOptions {
        archive: Some(format!("file://{}", copy.display()).parse().unwrap()),
        retention: Retention { steps: Some(1), log_bytes: Some(0) },
        glance: Some(make_glance()),
        ..RecordOptions::default()
    };
    let (recorder, troubles) = start(&run, options);
    for step in 1..=3 {
        recorder.handle().offer(profile(step, step.into())).unwrap();
        let ended = recorder.handle().end_step(StepNumber(step), StepEnd::default()).unwrap();
        ended.await.unwrap().unwrap();
    }
    recorder.shutdown().await.unwrap();
    assert!(troubles.lock().is_empty(), "{troubles:?}");
    let steps = |run: &Run| run.steps().unwrap().iter().map(|step| step.step.0).collect::<Vec<_>>();
    assert_eq!(steps(&run), [3]);
    assert_eq!(steps(&Run::open(&copy).unwrap()), [1, 2, 3], "what the run has forgotten too");
    for step in 1..=3 {
        assert!(copy.join(format!("steps/step={step:06}/stats.json")).is_file());
        assert!(copy.join(format!("steps/step={step:06}/requests/gateway-{step:06}.parquet")).is_file());
    }
    let copy = Run::open(&copy).unwrap();
    assert_eq!(copy.metrics().unwrap().len(), 3);
    let glance = copy.glance(StepNumber(3)).unwrap().unwrap();
    assert_eq!(glance.block(0).unwrap(), b"1", "what a viewer shows first");
}

/// A file where a folder is to be is as good as a place that is away.
#[tokio::test]
async fn steps_that_wait_to_be_copied_are_kept_until_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let (away, copy) = (dir.path().join("copies"), dir.path().join("copies/run"));
    fs::write(&away, "in the way").unwrap();
    let options = RecordOptions {
        archive: Some(format!("file://{}", copy.display()).parse().unwrap()),
        retention: Retention { steps: Some(1), log_bytes: Some(0) },
        ..RecordOptions::default()
    };
    let end_steps = async |recorder: &Recorder, steps: std::ops::RangeInclusive<u64>| {
        for step in steps {
            recorder.handle().offer(profile(step, step.into())).unwrap();
            let ended = recorder.handle().end_step(StepNumber(step), StepEnd::default()).unwrap();
            ended.await.unwrap().unwrap();
        }
    };
    let steps = |run: &Run| run.steps().unwrap().iter().map(|step| step.step.0).collect::<Vec<_>>();
    let target = Target::Jsonl { path: Some(dir.path().join("lines.jsonl")) };
    let troubles: Arc<Mutex<Vec<String>>> = Arc::default();
    let (told, of, tracker) = (Arc::clone(&troubles), run.clone(), target.clone());
    let on_trouble = Arc::new(move |error: &RecordError| {
        told.lock().push(error.to_string());
        if matches!(error, RecordError::Uncopied { .. }) {
            Tracker::open(&tracker, &origin_of(&of)).expect("not held while the archive had its time");
        }
    });
    let first = RecordOptions { trackers: vec![target], on_trouble, ..options.clone() };
    let recorder = Recorder::start(run.clone(), &first).unwrap();
    end_steps(&recorder, 1..=3).await;
    recorder.shutdown().await.unwrap();
    assert_eq!(steps(&run), [1, 2, 3]);
    let told = troubles.lock().clone();
    assert!(told.len() == 2 && told[0].starts_with("cannot copy to the archive"), "{told:?}");
    assert!(
        told[1].starts_with("not copied before the end: 3 steps, the first of them 1; the next"),
        "{told:?}"
    );
    fs::remove_file(&away).unwrap();
    let (recorder, troubles) = start(&run, options);
    end_steps(&recorder, 4..=4).await;
    recorder.shutdown().await.unwrap();
    assert!(troubles.lock().is_empty(), "{troubles:?}");
    assert_eq!(steps(&run), [4]);
    assert_eq!(steps(&Run::open(&copy).unwrap()), [1, 2, 3, 4]);
    for step in 1..=4 {
        assert_eq!(Run::open(&copy).unwrap().step(StepNumber(step)).unwrap().requests().count(), 1);
    }
}

/// Neither one that copies nothing itself nor one that has steps to copy too.
#[tokio::test]
async fn steps_that_wait_to_be_copied_are_kept_by_other_recorders_of_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let (away, copy) = (dir.path().join("copies"), dir.path().join("copies/run"));
    fs::write(&away, "in the way").unwrap();
    let archive = Some(format!("file://{}", copy.display()).parse().unwrap());
    let copying = RecordOptions { archive, ..RecordOptions::default() };
    let keeping_one = Retention { steps: Some(1), log_bytes: None };
    let removing = RecordOptions { retention: keeping_one, ..RecordOptions::default() };
    let both = RecordOptions { retention: keeping_one, ..copying.clone() };
    let (first, _) = start(&run, copying.clone());
    end_two_steps(&first).await;
    until("they wait", || run.archive_due().unwrap() == [1, 2].map(StepNumber).into());
    for (step, options) in [(3, both), (4, removing)] {
        let (recorder, _) = start(&run, options);
        end_step(&recorder, step).await;
        recorder.shutdown().await.unwrap();
    }
    first.shutdown().await.unwrap();
    assert_eq!(run.archive_due().unwrap(), [1, 2, 3].map(StepNumber).into());
    for step in 1..=4 {
        assert_eq!(run.step(StepNumber(step)).unwrap().requests().count(), 1);
    }
    fs::remove_file(&away).unwrap();
    let (recorder, troubles) = start(&run, copying);
    recorder.shutdown().await.unwrap();
    assert!(troubles.lock().is_empty(), "{troubles:?}");
    assert!(run.archive_due().unwrap().is_empty());
    for step in 1..=3 {
        assert_eq!(Run::open(&copy).unwrap().step(StepNumber(step)).unwrap().requests().count(), 1);
    }
}

/// It is held when the step is sealed, and has not gone on to the archive.
#[tokio::test]
async fn a_step_that_is_sealed_and_not_brought_to_the_archive_yet_is_kept_by_other_recorders() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let copy = dir.path().join("copy");
    let (go_on, held) = std::sync::mpsc::sync_channel::<()>(1);
    let held = Mutex::new(held);
    let waiting: MakeGlance = Arc::new(move |_, _| {
        held.lock().recv_timeout(PATIENCE).ok()?;
        None
    });
    let archive = Some(format!("file://{}", copy.display()).parse().unwrap());
    let copying = RecordOptions { archive, glance: Some(waiting), ..RecordOptions::default() };
    let (first, _) = start(&run, copying);
    end_step(&first, 1).await;
    let retention = Retention { steps: Some(1), log_bytes: None };
    let (removing, _) = start(&run, RecordOptions { retention, ..RecordOptions::default() });
    for step in 2..=3 {
        end_step(&removing, step).await;
    }
    removing.shutdown().await.unwrap();
    assert!(run.step(StepNumber(2)).is_err(), "it is no longer kept");
    drop(go_on);
    first.shutdown().await.unwrap();
    assert_eq!(Run::open(&copy).unwrap().step(StepNumber(1)).unwrap().requests().count(), 1);
    assert!(run.archive_due().unwrap().is_empty());
}

#[tokio::test]
async fn two_recorders_of_a_run_do_not_copy_at_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let copy = dir.path().join("copy");
    let archive = Some(format!("file://{}", copy.display()).parse().unwrap());
    let options = RecordOptions { archive, ..RecordOptions::default() };
    // Another copies.
    let lock = run.lock_archive().unwrap();
    let (recorder, troubles) = start(&run, options.clone());
    end_two_steps(&recorder).await;
    recorder.shutdown().await.unwrap();
    let told = troubles.lock().clone();
    assert!(told.len() == 1 && told[0].starts_with("not copied before the end: 2 steps"), "{told:?}");
    assert!(!copy.exists());
    drop(lock);
    let (recorder, _) = start(&run, options);
    recorder.shutdown().await.unwrap();
    assert_eq!(Run::open(&copy).unwrap().steps().unwrap().len(), 2);
}

/// A file where a step's folder is to be: that one cannot be copied.
#[tokio::test]
async fn what_is_copied_is_not_copied_again_when_another_step_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let copy = dir.path().join("copy");
    let archive = Some(format!("file://{}", copy.display()).parse().unwrap());
    let options = RecordOptions { archive, ..RecordOptions::default() };
    fs::write(&copy, "in the way").unwrap();
    let (recorder, _) = start(&run, options.clone());
    end_two_steps(&recorder).await;
    recorder.shutdown().await.unwrap();
    assert_eq!(run.archive_due().unwrap(), [1, 2].map(StepNumber).into());
    fs::remove_file(&copy).unwrap();
    fs::create_dir_all(copy.join("steps")).unwrap();
    let [copied, hindered] = [1, 2].map(|step| copy.join(format!("steps/step=00000{step}")));
    fs::write(&hindered, "in the way").unwrap();
    let (recorder, troubles) = start(&run, options);
    until("the second cannot be copied", || !troubles.lock().is_empty());
    assert!(!copy.join("manifest").exists(), "it comes last");
    fs::remove_dir_all(&copied).unwrap();
    fs::remove_file(&hindered).unwrap();
    until("all is copied", || run.archive_due().unwrap().is_empty());
    assert!(hindered.join("stats.json").is_file() && copy.join("manifest").is_dir());
    assert!(!copied.exists(), "copied once");
    recorder.shutdown().await.unwrap();
}

/// A folder where a step's numbers are to be: that one's cannot be written.
#[tokio::test]
async fn a_step_whose_numbers_cannot_be_written_keeps_no_other_waiting_for_the_archive() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    fs::create_dir_all(run.dir().join("steps/step=000001/stats.json/in-the-way")).unwrap();
    let archive = Some(format!("file://{}", dir.path().join("copy").display()).parse().unwrap());
    let retention = Retention { steps: Some(1), log_bytes: None };
    let options = RecordOptions { archive, retention, ..RecordOptions::default() };
    let (recorder, _) = start(&run, options);
    recorder.handle().offer(profile(1, 1)).unwrap();
    let ended = recorder.handle().end_step(StepNumber(1), StepEnd::default()).unwrap();
    assert!(ended.await.unwrap().is_err());
    for step in 2..=4 {
        end_step(&recorder, step).await;
    }
    until("all others are copied", || run.archive_due().unwrap().iter().all(|step| step.0 == 1));
    end_step(&recorder, 5).await;
    until("they need not be kept", || [2, 3].iter().all(|step| run.step(StepNumber(*step)).is_err()));
    recorder.shutdown().await.unwrap();
}

/// The bucket takes a call and never answers it. The environment is a process's own, as below.
#[test]
fn a_bucket_that_hangs_holds_neither_a_step_s_end_nor_the_recorder_s() {
    if let Some(dir) = std::env::var_os(ARCHIVE_TO) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        return runtime.block_on(async {
            let run = run_in(&Path::new(&dir).join("run"));
            let archive = Some("s3://runs".parse().unwrap());
            let (recorder, troubles) = start(&run, RecordOptions { archive, ..RecordOptions::default() });
            end_two_steps(&recorder).await;
            recorder.shutdown().await.unwrap();
            let told = troubles.lock().clone();
            assert!(told.len() == 1 && told[0].starts_with("not copied before the end: 2 steps"), "{told:?}");
            assert_eq!(run.archive_due().unwrap(), [1, 2].map(StepNumber).into());
        });
    }
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let status = archiving_child(
        "a_bucket_that_hangs_holds_neither_a_step_s_end_nor_the_recorder_s",
        dir.path(),
        &endpoint,
    );
    assert!(status.success());
    // It was called, and has not answered to this moment.
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_ok());
}

/// This test again, in a process of its own.
fn archiving_child(test: &str, dir: &Path, endpoint: &str) -> std::process::ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(ARCHIVE_TO, dir)
        .env("AWS_ACCESS_KEY_ID", "id")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("AWS_ENDPOINT_URL", endpoint)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap()
}

/// The environment is a process's own, so that the recorder is another process: this test again.
#[test]
fn a_copy_in_a_bucket_is_signed_and_tried_again() {
    if let Some(dir) = std::env::var_os(ARCHIVE_TO) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        return runtime.block_on(archive_one_step(Path::new(&dir)));
    }
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let bucket = std::thread::spawn(move || serve_bucket(&listener));
    let status = archiving_child("a_copy_in_a_bucket_is_signed_and_tried_again", dir.path(), &endpoint);
    assert!(status.success());
    let objects = bucket.join().unwrap();
    let names: Vec<&str> = objects.keys().map(String::as_str).collect();
    for name in ["run.json", "metrics.jsonl", "manifest/1.json", "steps/step%3D000001/stats.json"] {
        assert!(names.contains(&&*format!("/runs/r%207/{name}")), "{name} of {names:?}");
    }
    let own = fs::read(dir.path().join("run/run.json")).unwrap();
    assert_eq!(objects["/runs/r%207/run.json"], own);
}

async fn archive_one_step(dir: &Path) {
    let run = run_in(&dir.join("run"));
    let archive = Some("s3://runs/r 7".parse().unwrap());
    let (recorder, troubles) = start(&run, RecordOptions { archive, ..RecordOptions::default() });
    recorder.handle().offer(profile(1, 1)).unwrap();
    recorder.shutdown().await.unwrap();
    assert!(troubles.lock().is_empty(), "{troubles:?}");
}

/// Objects by their path, until the manifest has come; the first call is refused as a busy server does.
fn serve_bucket(listener: &TcpListener) -> BTreeMap<String, Vec<u8>> {
    let (mut objects, mut calls) = (BTreeMap::new(), 0);
    while !objects.keys().any(|name: &String| name.contains("/manifest/")) {
        let (mut stream, _) = listener.accept().unwrap();
        let (head, body) = read_call(&mut stream);
        calls += 1;
        let lower = head.to_lowercase();
        assert!(lower.contains("authorization: aws4-hmac-sha256 credential=id/"), "{head}");
        assert!(lower.contains("host;x-amz-content-sha256;x-amz-date, signature="), "{head}");
        let path = head.split_whitespace().nth(1).unwrap().to_owned();
        let status = if calls == 1 { 503 } else { 200 };
        if status == 200 {
            objects.insert(path, body);
        }
        let reply =
            format!("HTTP/1.1 {status} x\r\netag: \"tag\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(reply.as_bytes()).unwrap();
    }
    objects
}

/// The head and the body of a call.
fn read_call(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 8192]);
    loop {
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "the call is cut");
        bytes.extend_from_slice(&chunk[..read]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let lower = head.to_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        if bytes.len() >= end + 4 + length.unwrap_or(0) {
            return (head, bytes[end + 4..].to_vec());
        }
    }
}

async fn end_two_steps(recorder: &Recorder) {
    for step in 1..=2 {
        end_step(recorder, step).await;
    }
}

/// Of one request.
async fn end_step(recorder: &Recorder, step: u64) {
    recorder.handle().offer(profile(step, step.into())).unwrap();
    let ended = recorder.handle().end_step(StepNumber(step), StepEnd::default()).unwrap();
    ended.await.unwrap().unwrap();
}

/// The tracker holds the recorder's first step until the recorder has ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_tracker_that_hangs_does_not_hold_the_end_and_gets_every_step_afterwards_and_none_before() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let (server, held) = (mlflow().await, Gate::new());
    server.on(&mlflow_path("runs/log-batch"), Script::head(200, &[], Some(2)).wait(&held).send("{}"));
    let told = |call: &str, number: &str| -> Vec<Value> {
        let calls = server.calls(&mlflow_path(call)).into_iter();
        let body = |call: Call| serde_json::from_slice::<Value>(&call.request.body).unwrap();
        calls.map(|call| body(call).pointer(number).unwrap().clone()).collect()
    };
    let sent = || told("runs/log-batch", "/metrics/0/step");
    let target: Target = format!("mlflow:http://me:PassWord@{}", server.address()).parse().unwrap();
    let options = RecordOptions { trackers: vec![target.clone()], ..RecordOptions::default() };
    let (recorder, troubles) = start(&run, options);
    end_two_steps(&recorder).await;
    held.arrivals(1).await;
    recorder.shutdown().await.unwrap();
    let trouble = troubles.lock().last().cloned().unwrap();
    assert!(
        trouble.starts_with("not every step was sent before the end; `rollscope track` sends"),
        "{trouble}"
    );
    assert!(trouble.ends_with(&target.to_string()) && !trouble.contains("PassWord"), "{trouble}");
    held.open();
    // A thread that may still send may still tell of trouble.
    until("the tracker's thread has ended", || Arc::strong_count(&troubles) == 1);
    let before = sent();
    assert!(before.iter().all(|step| *step == 1), "{before:?}");
    assert!(server.calls(&mlflow_path("runs/update")).is_empty(), "its run has not finished");
    let mut tracker = Tracker::open(&target, &origin_of(&run)).unwrap();
    assert_eq!(catch_up(&run, &mut tracker).unwrap().0, 2);
    tracker.finish().unwrap();
    assert_eq!(sent()[before.len()..], [1, 2]);
    assert_eq!(told("runs/update", "/status"), ["FINISHED"]);
}

/// It takes all numbers but one of the first step.
#[tokio::test(flavor = "multi_thread")]
async fn a_tracker_that_leaves_a_number_out_is_not_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_in(&dir.path().join("run"));
    let server = mlflow().await;
    server.on_each(&mlflow_path("runs/log-batch"), |request| {
        let batch: Value = serde_json::from_slice(&request.body).unwrap();
        let is_refused = |of: &Value| of["step"] == 1 && of["key"] == "perf/request/count";
        let status = if batch["metrics"].as_array().unwrap().iter().any(is_refused) { 400 } else { 200 };
        Script::json(status, "{}")
    });
    let target: Target = format!("mlflow:{}", server.url()).parse().unwrap();
    let options = RecordOptions { trackers: vec![target.clone()], ..RecordOptions::default() };
    let (recorder, troubles) = start(&run, options);
    end_two_steps(&recorder).await;
    until("it is told", || !troubles.lock().is_empty());
    recorder.shutdown().await.unwrap();
    assert_eq!(server.calls(&mlflow_path("runs/search")).len(), 1, "it was opened once");
    let left_out =
        "the tracker's server takes step 1 without 1 of its numbers, the first of them: perf/request/count";
    assert_eq!(troubles.lock()[0], left_out);
    // The server, when it is asked again, tells of no step.
    let mut tracker = Tracker::open(&target, &origin_of(&run)).unwrap();
    let (sent, error) = catch_up(&run, &mut tracker).unwrap();
    assert_eq!((sent, error.unwrap().to_string().as_str()), (2, left_out));
}

/// No file of the process becomes larger than its limit until the limit is taken away, as on a disk that is full until
/// somebody makes room.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_disk_does_not_take_is_told_and_counted_and_all_goes_on_when_there_is_room() {
    if let Some(dir) = std::env::var_os(LITTLE_ROOM) {
        return fill_and_make_room(Path::new(&dir)).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let test = "what_a_full_disk_does_not_take_is_told_and_counted_and_all_goes_on_when_there_is_room";
    // The limit is in blocks of 512 bytes; a write beyond it is an error and no signal.
    let limited = format!("trap '' XFSZ; ulimit -S -f {}; exec \"$0\" --exact {test}", ROOM_BYTES / 512);
    assert!(limited_child(&limited, dir.path()).success());
}

/// By a shell's command, which begins this test again in a process of its own.
fn limited_child(command: &str, dir: &Path) -> std::process::ExitStatus {
    Command::new("sh")
        .args(["-c", command])
        .arg(std::env::current_exe().unwrap())
        .env(LITTLE_ROOM, dir)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap()
}

fn limit_files(size: &str) {
    let own = std::process::id().to_string();
    let limited =
        Command::new("prlimit").args(["--pid", &own, &format!("--fsize={size}:")]).status().unwrap();
    assert!(limited.success());
}

/// The disk takes all but the mark that ends the log.
#[tokio::test]
async fn an_end_that_the_disk_does_not_take_is_told_to_whoever_waits_or_as_trouble() {
    if let Some(dir) = std::env::var_os(LITTLE_ROOM) {
        for is_let_go in [true, false] {
            let run = run_in(&Path::new(&dir).join(is_let_go.to_string()));
            let (recorder, troubles) = start(&run, RecordOptions::default());
            end_step(&recorder, 1).await;
            let log = run.dir().join("log/gateway/000001.seg");
            limit_files(&fs::metadata(&log).unwrap().len().to_string());
            if is_let_go {
                drop(recorder);
                until("its end is told", || !troubles.lock().is_empty());
            } else {
                let error = recorder.shutdown().await.unwrap_err().to_string();
                assert!(troubles.lock().is_empty(), "told once: {troubles:?}");
                troubles.lock().push(error);
            }
            assert!(troubles.lock()[0].contains("000001.seg"), "{troubles:?}");
            limit_files("unlimited");
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let test = "an_end_that_the_disk_does_not_take_is_told_to_whoever_waits_or_as_trouble";
    let limited = format!("trap '' XFSZ; exec \"$0\" --exact {test}");
    assert!(limited_child(&limited, dir.path()).success());
}

fn heard_pass(number: u64) -> Heard<Origin<PassSource>> {
    let endpoint = "tcp://h:1".parse().unwrap();
    let from = Origin::new(1, PassSource { endpoint, worker: None });
    let metrics = ForwardPassMetrics { wall_time: 0.25, ..ForwardPassMetrics::default() };
    let (received, waited) = (Instant::now(), Duration::ZERO);
    Heard { from, what: What::Message(Message { sequence: number, received, waited, metrics: Ok(metrics) }) }
}

const ROOM_BYTES: usize = 64 << 10;

async fn fill_and_make_room(dir: &Path) {
    let run = run_in(&dir.join("run"));
    // A tracker's file that is as large as a file may be.
    let lines = dir.join("lines.jsonl");
    let line = "{\"step\": 1000, \"data\": {}}\n";
    fs::write(&lines, line.repeat(ROOM_BYTES / line.len())).unwrap();
    let target = Target::Jsonl { path: Some(lines.clone()) };
    let (recorder, troubles) =
        start(&run, RecordOptions { trackers: vec![target], ..RecordOptions::default() });
    let handle = recorder.handle();
    let is_told = |what: &str| troubles.lock().iter().any(|told| told.contains(what));
    handle.offer(profile(1, 1)).unwrap();
    let ended = handle.end_step(StepNumber(1), StepEnd::default()).unwrap();
    ended.await.unwrap().unwrap();
    until("the tracker's trouble", || is_told("lines.jsonl"));
    // More than the log's file and its buffer take, and passes among it.
    let (tell, heard) = tokio::sync::mpsc::channel(16);
    let hearing = tokio::spawn(record_passes(handle.clone(), heard, PassTroubles::default(), |_, _| {}));
    let (mut offered, mut sent) = (1, 0);
    let mut send_pass = || {
        let is_sent = tell.try_send(heard_pass(sent)).is_ok();
        sent += u64::from(is_sent);
        (sent, is_sent)
    };
    until("the log's trouble, and losses", || {
        for _ in 0..100 {
            offered += u64::from(handle.offer(profile(2, (offered + 1).into())).is_ok());
            send_pass();
        }
        is_told(".seg") && handle.dropped_profiles() > 0 && handle.dropped_passes() > 0
    });
    limit_files("unlimited");
    offered += 1;
    until("there is room again", || handle.offer(profile(3, offered.into())).is_ok());
    let passes = || {
        let steps = run.steps().unwrap().into_iter();
        steps.flat_map(|step| run.forward_passes(step.step).unwrap()).collect::<Vec<_>>()
    };
    let before = passes().len();
    until("passes are recorded again", || {
        send_pass();
        passes().len() > before
    });
    until("one more, which is the last", || send_pass().1);
    let (sent, _) = send_pass();
    drop(tell);
    hearing.await.unwrap();
    let ended = handle.end_step(StepNumber(3), StepEnd::default()).unwrap();
    ended.await.unwrap().unwrap();
    recorder.shutdown().await.unwrap();
    let run = Run::open(run.dir()).unwrap();
    let there: u64 = run.steps().unwrap().iter().map(|step| step.requests).sum();
    let lost = run.dropped().unwrap().profiles;
    assert!(lost > 0 && there + lost >= offered, "{there} there, {lost} lost, {offered} offered");
    // Each pass is there, or told as lost by one that is.
    let passes = passes();
    let told: u64 = passes.iter().map(|pass| pass.lost_before).sum();
    assert_eq!((passes.len() as u64 + told, told), (sent, handle.dropped_passes()));
    let metrics = fs::read_to_string(run.dir().join("metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 3, "every step has its numbers");
    let numbers = |line: &str| serde_json::from_str::<Value>(line).unwrap()["data"].clone();
    let sent = fs::read_to_string(&lines).unwrap();
    let newest = sent.lines().rev().take(3).map(numbers);
    assert!(newest.eq(metrics.lines().rev().map(numbers)), "and the tracker has them");
}
