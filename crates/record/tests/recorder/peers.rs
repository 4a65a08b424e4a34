//! Several recorders of one run, some of which are killed.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollscope_record::{MakeGlance, RecordOptions, Recorder, StepEnd};
use rollscope_run::{LogOptions, LogWriter, Presence, Run, Sealed, WriterState};
use rollscope_trace::{CloseReason, Join, Nanos, ProfileSink as _, Record, StepClose, StepNumber, UnixNs};
use rollscope_track::Target;
use serde_json::{Value, json};

use super::{PATIENCE, Setup, closed, of_sample, profile, sent_to, setup, until};

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
    assert_eq!(sent_to(&lines), sent_to(&run.dir().join("metrics.jsonl")));
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
    assert_eq!(sent_to(&lines), sent_to(&run.dir().join("metrics.jsonl")));
}

/// What a recorder that is killed leaves: requests of step 7, which it told to be open, and of 8, which it has just closed.
fn killed_recorder(run: &Run) {
    drop(recorder_to_be_killed(run, false));
}

/// The same, which holds its log and has told that it ends.
fn leaving_recorder(run: &Run) -> LogWriter {
    recorder_to_be_killed(run, true)
}

fn recorder_to_be_killed(run: &Run, leaving: bool) -> LogWriter {
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
    killed.flush().unwrap();
    run.peers(&killed).tell(Presence { open, leaving, ..Presence::default() }).unwrap();
    killed
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

/// It has said that it ends, and left its open step to the other.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_recorder_left_that_was_killed_as_it_ended_is_sealed_by_one_that_lives() {
    let Setup { _dir, run, recorder, troubles } = setup(RecordOptions::default());
    let killed = leaving_recorder(&run);
    until("its open step is taken over", || told_by(&run, "gateway").contains("\"open\":[7]"));
    drop(killed);
    until("the numbers that it had no time for", || sent_counts(&run) == [(8, 1.0)]);
    recorder.shutdown().await.unwrap();
    assert_eq!(sent_counts(&run), [(8, 1.0), (7, 1.0)]);
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
