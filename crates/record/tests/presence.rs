//! What a recorder makes of others who tell it nonsense, or are no more.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

use std::fs::{self, File};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollscope_record::{RecordError, RecordOptions, Recorder, StepEnd};
use rollscope_run::{Run, RunInfo};
use rollscope_trace::{CloseReason, Join, Nanos, Profile, ProfileSink as _, RequestId, StepNumber, UnixNs};
use serde_json::json;

const PATIENCE: Duration = Duration::from_mins(1);

fn profile(step: u64) -> Profile {
    Profile {
        join: Join { step: Some(StepNumber(step)), sample: Some("a".into()), ..Join::default() },
        ..Profile::new(RequestId(step.into()), UnixNs(1_700_000_000_000_000_000), Nanos(700_000_000))
    }
}

/// Records three steps beside a writer that tells this: the first ends as it is superseded, the second as it is told to.
async fn check(told: &str, is_live: bool) {
    let what = format!("{told:?}, {}", if is_live { "living" } else { "dead" });
    let dir = tempfile::tempdir().unwrap();
    let info = RunInfo { producer: "test".into(), created: UnixNs(0), config: json!({}) };
    let run = Run::create(&dir.path().join("run"), &info).unwrap();
    let peer = run.dir().join("log").join("peer");
    fs::create_dir_all(&peer).unwrap();
    fs::write(peer.join("present.json"), told).unwrap();
    let lock = File::create(peer.join("lock")).unwrap();
    if is_live {
        lock.lock().unwrap();
    }
    let troubles: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&troubles);
    let on_trouble = Arc::new(move |error: &RecordError| told.lock().push(error.to_string()));
    let superseded_after = Duration::from_millis(50);
    let options = RecordOptions { on_trouble, superseded_after, ..RecordOptions::default() };
    let recorder = Recorder::start(run.clone(), &options).unwrap();
    let handle = recorder.handle();
    handle.offer(profile(5)).unwrap();
    handle.offer(profile(6)).unwrap();
    let ended = handle.end_step(StepNumber(6), StepEnd::default()).unwrap();
    let ended = tokio::time::timeout(PATIENCE, ended).await;
    assert!(ended.is_ok(), "{what}: the second step does not end");
    assert_eq!(ended.unwrap().unwrap().unwrap().metrics["perf/request/count"], json!(1.0), "{what}");
    let closed = || {
        let steps = run.steps().unwrap();
        let step = steps.iter().find(|summary| summary.step == StepNumber(5));
        step.and_then(|summary| summary.close).map(|close| close.reason)
    };
    let deadline = Instant::now() + PATIENCE;
    while closed().is_none() {
        assert!(Instant::now() < deadline, "{what}: the first step does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(closed(), Some(CloseReason::Superseded), "{what}");
    recorder.shutdown().await.unwrap();
    assert!(troubles.lock().is_empty(), "{what}: {:?}", troubles.lock());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_step_waits_for_one_who_tells_nonsense_or_is_dead() {
    for damaged in ["", "{\"busy\": [5", "[]", "\u{0}\u{0}\u{0}", "{\"busy\": \"all\"}"] {
        check(damaged, false).await;
        check(damaged, true).await;
    }
    check("{\"open\": [], \"busy\": [5, 6], \"leaving\": false}", false).await;
}
