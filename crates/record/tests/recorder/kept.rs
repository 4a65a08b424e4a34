//! Steps that retention has removed: whatever still comes of them, their numbers stay.

use rollscope_record::{OfflineRecorder, RecordError, RecordOptions, Recorder, StepEnd};
use rollscope_run::{LogOptions, LogWriter, Retention, Run};
use rollscope_trace::{CloseReason, ProfileSink as _, Record, StepClose, StepNumber, UnixNs};
use serde_json::{Value, json};

use super::{Setup, call, of_sample, profile, serve, setup, until};

const GONE: StepNumber = StepNumber(1);

fn keeping_one() -> RecordOptions {
    let retention = Retention { steps: Some(1), log_bytes: None };
    RecordOptions { retention, ..RecordOptions::default() }
}

/// A recorder that has removed step 1, which had three requests: one of them is in the log of another writer.
async fn with_a_step_removed() -> (Setup, LogWriter) {
    let setup = setup(keeping_one());
    let mut other = setup.run.writer("other", LogOptions::default()).unwrap();
    append(&mut other, 1);
    let handle = setup.recorder.handle();
    for (step, ids) in [(1, 2..4), (2, 4..5)] {
        ids.for_each(|id| handle.offer(profile(id, of_sample(step, &id.to_string()), "v")).unwrap());
        handle.end_step(StepNumber(step), StepEnd::default()).unwrap().await.unwrap().unwrap();
    }
    until("step 1 is removed", || !setup.run.dir().join("steps/step=000001/requests").exists());
    assert_numbers_stay(&setup.run);
    (setup, other)
}

fn append(log: &mut LogWriter, id: u128) {
    let mut profile = profile(id, of_sample(1, &id.to_string()), "v");
    profile.join.step = Some(GONE);
    log.append(&Record::Profile(Box::new(profile))).unwrap();
    log.flush().unwrap();
}

#[track_caller]
fn assert_numbers_stay(run: &Run) {
    let stats = run.stats(GONE).unwrap().unwrap();
    assert_eq!(stats["metrics"]["perf/request/count"], json!(3.0));
    let sent: Vec<Value> = run.metrics().unwrap().into_iter().map(|sent| json!(sent.step.0)).collect();
    assert_eq!(sent, [1, 2], "each is sent once");
    let steps: Vec<u64> = run.steps().unwrap().iter().map(|step| step.step.0).collect();
    assert_eq!(steps, [2], "and nothing of it is there again");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_late_of_a_step_that_is_no_longer_kept_is_counted_as_lost() {
    let (Setup { _dir, run, recorder, troubles }, _other) = with_a_step_removed().await;
    recorder.handle().offer(profile(5, of_sample(1, "late"), "v")).unwrap();
    recorder.shutdown().await.unwrap();
    assert_eq!(run.dropped().unwrap().profiles, 1);
    assert_numbers_stay(&run);
    let again = Recorder::start(run.clone(), &keeping_one()).unwrap();
    again.handle().offer(profile(6, of_sample(1, "later"), "v")).unwrap();
    again.shutdown().await.unwrap();
    assert_eq!(run.dropped().unwrap().profiles, 2);
    assert_numbers_stay(&run);
    assert!(troubles.lock().is_empty(), "{troubles:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_is_told_of_a_step_that_is_no_longer_kept_changes_nothing() {
    let (Setup { _dir, run, recorder, troubles }, _other) = with_a_step_removed().await;
    let tell = async |recorder: &Recorder| {
        let url = format!("{}/rollscope/steps/1/end", serve(recorder).await);
        let (status, reply) = call("POST", &url, r#"{"rollout_time": 99.0}"#).await;
        let message = reply["error"]["message"].as_str().unwrap();
        assert_eq!(status, 410, "{reply}");
        assert!(message.starts_with("step 1 is no longer kept: its numbers stay"), "{message}");
    };
    tell(&recorder).await;
    recorder.shutdown().await.unwrap();
    assert_numbers_stay(&run);
    let again = Recorder::start(run.clone(), &keeping_one()).unwrap();
    tell(&again).await;
    again.shutdown().await.unwrap();
    assert_numbers_stay(&run);
    assert!(troubles.lock().is_empty(), "{troubles:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_writer_left_of_a_step_that_is_no_longer_kept_is_left_out() {
    let (Setup { _dir, run, recorder, troubles }, mut other) = with_a_step_removed().await;
    append(&mut other, 7);
    let at = UnixNs(1_700_000_001_000_000_000);
    let close = StepClose { step: GONE, at, reason: CloseReason::Told, rollout_time: None, gpus: Some(9) };
    other.append(&Record::Close(close)).unwrap();
    drop(other);
    assert_numbers_stay(&run);
    recorder.shutdown().await.unwrap();
    for _ in 0..2 {
        Recorder::start(run.clone(), &keeping_one()).unwrap().shutdown().await.unwrap();
        assert_numbers_stay(&run);
    }
    assert!(!run.dir().join("steps/step=000001/requests").exists());
    assert!(troubles.lock().is_empty(), "{troubles:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_imported_into_a_step_that_is_no_longer_kept() {
    let (Setup { _dir, run, recorder, .. }, _other) = with_a_step_removed().await;
    recorder.shutdown().await.unwrap();
    let mut import = OfflineRecorder::start(run.clone(), "import").unwrap();
    let mut known = profile(2, of_sample(1, "2"), "v");
    known.join.step = Some(GONE);
    let refused = import.put(&Record::Profile(Box::new(known)));
    assert!(matches!(refused, Err(RecordError::Forgotten { step: GONE })), "{refused:?}");
    import.abandon().unwrap();
    assert_numbers_stay(&run);
}
