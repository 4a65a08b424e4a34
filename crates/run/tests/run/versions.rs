//! What earlier versions wrote is read for ever, and what later ones add is passed over.

use std::fs;
use std::path::{Path, PathBuf};

use rollscope_run::{DamageKind, Drops, Run, RunError, WriterState};
use rollscope_trace::{
    Attr, CloseReason, Fault, FinishKind, ForwardPass, Measure, Nanos, Outcome, PassLoad, Record, SampleMark,
    StepNumber, UnixNs, WorkerRef,
};

use crate::make::{append, exact_all, profile_record, run, writer};

fn sample(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(version)
}

#[test]
fn a_run_of_version_1_is_read() {
    let run = Run::open(&sample("v1")).unwrap();
    assert_eq!(run.info().producer, "rollscope sample");
    assert_eq!(
        (run.info().created, &run.info().config["port"]),
        (UnixNs(1_760_000_000_000_000_000), &30_000.into())
    );

    let steps: Vec<_> = run
        .steps()
        .unwrap()
        .into_iter()
        .map(|step| {
            (step.step.0, step.close.is_some(), step.late, step.requests, step.samples, step.user_spans)
        })
        .collect();
    assert_eq!(steps, [(1, true, true, 4, 4, 1), (2, false, false, 2, 2, 1)]);
    assert_eq!(run.dropped().unwrap(), Drops { profiles: 2, user_records: 1 });

    let writers = run.writers().unwrap();
    let states: Vec<_> = writers.iter().map(|writer| (&*writer.name, writer.state)).collect();
    assert_eq!(states, [("gateway", WriterState::Ended), ("rollout", WriterState::Interrupted)]);
    assert!(writers[0].damage.is_empty());
    assert_eq!(writers[1].damage[0].kind, DamageKind::Torn);

    let count = &run.stats(StepNumber(1)).unwrap().unwrap()["metrics"]["perf/request/count"];
    assert_eq!(count, &serde_json::json!(3.0));
    assert_eq!(run.metrics().unwrap()[0].step, StepNumber(1));
}

#[test]
fn a_step_of_version_1_has_everything_that_was_recorded() {
    let trace = Run::open(&sample("v1")).unwrap().step(StepNumber(1)).unwrap();
    let close = trace.close.unwrap();
    assert_eq!((close.reason, close.gpus), (CloseReason::Told, Some(8)));
    assert_eq!(close.rollout_time, Some(Nanos(5_500_000_000)));

    let first = &trace.samples[0];
    assert_eq!((first.key.to_string().as_str(), first.mark.reward), ("g0/s0", Some(1.0)));
    assert_eq!(first.mark.response_tokens, Some(12));
    let span = &first.spans[0];
    assert_eq!((&*span.name, span.end.unwrap().since(span.start)), ("reward", Nanos(500_000)));
    let attrs: Vec<_> = span.attrs.iter().map(|(name, value)| (&**name, value)).collect();
    assert_eq!(
        attrs,
        [
            ("correct", &Attr::Bool(true)),
            ("terms", &Attr::Int(3)),
            ("score", &Attr::Float(f64::INFINITY)),
            ("checker", &Attr::from("exact")),
        ]
    );
    assert!(trace.samples[1].mark.reward.unwrap().is_nan());

    let request = &first.requests[0];
    assert_eq!((&*request.endpoint, request.stream, request.status), ("/generate", false, Some(200)));
    assert_eq!((request.first_byte, request.end), (Some(Nanos(50_000_000)), Nanos(190_000_000)));
    assert_eq!(request.measure(Measure::PrefillForward), Some(0.020));
    assert_eq!(request.measure(Measure::DecodeForward), Some(0.150));
    assert_eq!(request.weight_version(), Some("v1"));
    assert_eq!(&*request.legs[0].worker.url, "http://prefill:30000");

    let retried = &trace.samples[2].requests[0];
    let outcomes: Vec<_> = retried.legs.iter().map(|leg| leg.outcome).collect();
    assert_eq!(outcomes, [Outcome::Completed, Outcome::Failed, Outcome::Completed, Outcome::Completed]);
    let finish = retried.legs[1].report.finish.as_ref().unwrap();
    assert_eq!((&finish.kind, finish.message.as_deref()), (&FinishKind::Abort, Some("out of memory")));
    let queue = retried.legs[3].report.measures.get(Measure::QueueTime).unwrap();
    assert_eq!((queue.value, queue.fault), (-0.25, Some(Fault::Negative)));
}

#[test]
fn a_run_of_version_1_is_followed_and_added_to() {
    let dir = tempfile::tempdir().unwrap();
    copy(&sample("v1"), dir.path());
    let run = Run::open(dir.path()).unwrap();
    let mut follow = run.follow();
    let count = |records: &[Record]| {
        let is_profile = |record: &&Record| matches!(record, Record::Profile(_));
        records.iter().filter(is_profile).count()
    };
    assert_eq!(count(&follow.poll().unwrap()), 6);
    let mut writer = writer(&run, "gateway");
    append(&mut writer, &[profile_record(2, 9)]);
    run.sealer(writer.name()).seal(writer.position()).unwrap();
    assert_eq!(exact_all(&follow.poll().unwrap()), exact_all(&[profile_record(2, 9)]));
    assert_eq!(run.step(StepNumber(2)).unwrap().requests().count(), 3);
}

/// The programs of these versions wrote them: a step that is sealed and one that is in the log.
#[test]
fn runs_of_versions_1_1_and_1_2_have_the_marks_and_passes_that_were_recorded() {
    let load = PassLoad {
        prefill_requests: 3,
        prefill_tokens: 28,
        decode_requests: 5,
        decode_kv_tokens: 640,
        decode_kv_variance: 2.5,
        ..PassLoad::default()
    };
    let pass = |step, number| ForwardPass {
        step: Some(StepNumber(step)),
        worker: Some(WorkerRef { url: "http://10.0.0.1:30000".into(), instance: "w1".into() }),
        worker_id: "decode-0".into(),
        dp_rank: 1,
        life: 2,
        lost_before: 4,
        uncertainty: Nanos(5_000_000),
        wall: Nanos(250_000_000),
        scheduled: load,
        ..ForwardPass::new("ipc:///run/fpm.1", number, UnixNs(1_700_000_000_500_000_000))
    };
    let cases = [("1.1", [vec![], vec![]]), ("1.2", [vec![pass(1, 7), pass(1, 8)], vec![pass(2, 9)]])];
    for ((version, passes), has_parts) in cases.iter().flat_map(|case| [(case, true), (case, false)]) {
        let dir = tempfile::tempdir().unwrap();
        copy(&sample(&format!("v{version}")), dir.path());
        assert!(fs::read_to_string(dir.path().join("run.json")).unwrap().contains(&format!("\"{version}\"")));
        if !has_parts {
            // Then they are read from the log.
            fs::remove_dir_all(dir.path().join("steps")).unwrap();
        }
        let run = Run::open(dir.path()).unwrap();
        let steps = run.steps().unwrap();
        let found: Vec<_> =
            steps.iter().map(|step| (step.step.0, step.close.is_some(), step.requests)).collect();
        assert_eq!(found, [(1, true, 2), (2, false, 1)], "{version}");
        for (step, passes) in [1, 2].map(StepNumber).into_iter().zip(passes) {
            let trace = run.step(step).unwrap();
            let marked = trace.samples.iter().find(|sample| &*sample.key.sample == "s0").unwrap();
            let mark = SampleMark {
                reward: Some(0.75),
                truncated: Some(true),
                response_tokens: Some(12),
                effective_response_tokens: Some(10),
                non_generation_time: Some(Nanos(1_500_000)),
                repetition: Some(false),
                category: Some("format".into()),
                top_p_kept: Some(540),
                dataset: Some("aime".into()),
                evaluation: true,
                ..SampleMark::new(marked.key.clone())
            };
            assert_eq!(marked.mark, mark, "{version} {step:?}");
            assert_eq!(marked.requests.len(), 1);
            assert_eq!(&run.forward_passes(step).unwrap(), passes, "{version} {step:?}");
        }
        assert_eq!(run.step(StepNumber(1)).unwrap().close.unwrap().gpus, Some(8));
        let writer = &run.writers().unwrap()[0];
        assert_eq!((writer.state, writer.damage.len(), writer.unknown), (WriterState::Ended, 0, 0));
    }
}

/// No checksum stands between these parts and the decoder, which panics on some of them.
#[test]
fn a_damaged_part_of_version_1_is_read_to_whatever_end() {
    let dir = tempfile::tempdir().unwrap();
    copy(&sample("v1"), dir.path());
    fs::remove_file(dir.path().join("log/gateway/000001.seg")).unwrap();
    let mut named = 0;
    for table in ["requests", "legs", "spans", "samples"] {
        let path = dir.path().join(format!("steps/step=000001/{table}/gateway-000001.parquet"));
        let whole = fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(11) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, flipped).unwrap();
            let run = Run::open(dir.path()).unwrap();
            run.steps().unwrap();
            run.step(StepNumber(1)).unwrap();
            assert_eq!(run.step(StepNumber(2)).unwrap().requests().count(), 1);
            let damage = run.writers().unwrap().remove(0).damage;
            // Of requests and legs that do not agree, either may be the damaged one.
            assert!(damage.iter().all(|damage| damage.kind == DamageKind::Part), "{damage:?}");
            named += damage.len();
        }
        fs::write(&path, whole).unwrap();
    }
    assert!(named > 100, "{named}");
}

#[test]
fn a_record_of_a_later_version_is_passed_over_and_counted() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    append(&mut writer, &[profile_record(1, 0)]);
    let path = run.dir().join("log/gateway/000001.seg");
    let mut bytes = fs::read(&path).unwrap();
    // A kind that there is not yet, a profile of a later version, and a profile that is no such thing.
    bytes.extend(frame(200, 1, b"anything"));
    bytes.extend(frame(2, 2, b"anything"));
    bytes.extend(frame(2, 1, b"anything"));
    fs::write(&path, bytes).unwrap();
    append(&mut writer, &[profile_record(1, 1)]);
    let read = run.follow().poll().unwrap();
    assert_eq!(exact_all(&read), exact_all(&[profile_record(1, 0), profile_record(1, 1)]));
    let summary = &run.writers().unwrap()[0];
    assert_eq!((summary.unknown, summary.damage.len()), (3, 0));
}

#[test]
fn fields_added_later_are_passed_over_and_fields_not_written_have_a_default() {
    let (_dir, run) = run();
    let writer = writer(&run, "gateway");
    let path = run.dir().join("log/gateway/000001.seg");
    let mut bytes = fs::read(&path).unwrap();
    // {"step": 4, "sample": "s", "mood": "blue"} and {"id": [0, 7], "step": 4, "outcome": "failed"}
    bytes.extend(frame(4, 1, b"\x83\xa4step\x04\xa6sample\xa1s\xa4mood\xa4blue"));
    bytes.extend(frame(2, 1, b"\x83\xa2id\x92\x00\x07\xa4step\x04\xa7outcome\xa6failed"));
    fs::write(&path, bytes).unwrap();
    let trace = run.step(StepNumber(4)).unwrap();
    let keys: Vec<_> = trace.samples.iter().map(|sample| &*sample.key.sample).collect();
    assert_eq!(keys, ["s", "00000000000000000000000000000007"]);
    assert_eq!(trace.requests().next().unwrap().outcome, Outcome::Failed);
    drop(writer);
}

#[test]
fn a_manifest_of_a_later_major_version_is_refused_and_of_a_minor_one_read() {
    let dir = tempfile::tempdir().unwrap();
    copy(&sample("v1"), dir.path());
    let newest = dir.path().join("manifest/2.json");
    let text = fs::read_to_string(&newest).unwrap();
    let open_with = |version: &str| {
        fs::write(&newest, text.replace("\"1.0\"", version)).unwrap();
        Run::open(dir.path()).unwrap()
    };
    let minor = open_with("\"1.9\",\"added later\":{}");
    assert_eq!(minor.step(StepNumber(1)).unwrap().requests().count(), 4);
    let major = open_with("\"2.0\"");
    assert!(matches!(major.steps(), Err(RunError::Newer { path, .. }) if path == newest));
}

/// A frame as a log has it.
fn frame(kind: u8, version: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_le_bytes();
    let mut hasher = crc32fast::Hasher::new();
    for bytes in [&length[..], &[kind, version], payload] {
        hasher.update(bytes);
    }
    [&length[..], &hasher.finalize().to_le_bytes(), &[kind, version], payload].concat()
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
