//! What is kept of a long run, what a killed writer left, and many that make one run.

use std::collections::BTreeSet;
use std::fs;
use std::thread;

use rollscope_run::{Retention, Run, Sealed, SealedFile, WriterState};
use rollscope_trace::{CloseReason, Record, StepClose, StepNumber, UnixNs};

use crate::make::{append, info, profile_record, run, writer};

fn close(step: u64) -> Record {
    let (reason, at) = (CloseReason::Told, UnixNs(step as i64));
    Record::Close(StepClose { step: StepNumber(step), at, reason, rollout_time: None, gpus: None })
}

fn requests(run: &Run) -> Vec<(u64, u64)> {
    run.steps().unwrap().iter().map(|step| (step.step.0, step.requests)).collect()
}

#[test]
fn only_the_last_steps_and_so_much_log_are_kept() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let mut sealer = run.sealer(writer.name());
    // More seals than a manifest holds, so that some have a file of their own.
    for step in 1..=140 {
        let records: Vec<_> = (0..4).map(|number| profile_record(step, step * 10 + number)).collect();
        append(&mut writer, &records);
        append(&mut writer, &[close(step)]);
        sealer.seal(writer.position()).unwrap();
        run.put_stats(StepNumber(step), &serde_json::Map::new()).unwrap();
    }
    append(&mut writer, &[profile_record(141, 1)]);
    let steps: BTreeSet<_> = (1..=140).map(StepNumber).collect();
    let copy = tempfile::tempdir().unwrap();
    let bring = |steps: &BTreeSet<StepNumber>| {
        let files = steps.iter().flat_map(|step| run.sealed_files(*step).unwrap());
        for SealedFile { path, name } in files.chain(run.archive_files().unwrap()) {
            let target = copy.path().join(name);
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(path, target).unwrap();
        }
    };
    bring(&steps);
    let log_before = run.writers().unwrap()[0].bytes;

    let limits = Retention { steps: Some(3), log_bytes: Some(20_000) };
    let none = BTreeSet::new();
    let spared = BTreeSet::from([StepNumber(5)]);
    assert_eq!(run.retain(limits, &spared).unwrap().len(), 136);
    assert_eq!(run.step(StepNumber(5)).unwrap().requests().count(), 4, "it is spared");
    let forgotten = run.retain(limits, &none).unwrap();
    assert_eq!(forgotten, spared);
    assert_eq!(run.retain(limits, &none).unwrap().len(), 0);
    for run in [run.clone(), Run::open(run.dir()).unwrap()] {
        assert_eq!(requests(&run), [(138, 4), (139, 4), (140, 4), (141, 1)]);
        assert_eq!(run.step(StepNumber(139)).unwrap().requests().count(), 4);
        assert!(run.step(StepNumber(5)).is_err());
        assert!(run.stats(StepNumber(5)).unwrap().is_some(), "numbers stay");
        assert!(!run.dir().join("steps/step=000005/requests").exists());
        let writer = &run.writers().unwrap()[0];
        assert!(writer.damage.is_empty(), "{:?}", writer.damage);
        assert!(writer.bytes < log_before && writer.bytes < 40_000, "{} of {log_before}", writer.bytes);
    }
    // And it goes on.
    append(&mut writer, &[profile_record(141, 2), close(141)]);
    sealer.seal(writer.position()).unwrap();
    assert_eq!(run.retain(limits, &none).unwrap().into_iter().collect::<Vec<_>>(), [StepNumber(138)]);
    assert_eq!(requests(&run), [(139, 4), (140, 4), (141, 2)]);
    bring(&BTreeSet::from([StepNumber(141)]));
    let copied = Run::open(copy.path()).unwrap();
    assert_eq!(requests(&copied).len(), 141, "a copy keeps what the run has forgotten");
    assert_eq!(copied.step(StepNumber(5)).unwrap().requests().count(), 4);
    assert_eq!(run.follow().poll().unwrap().iter().filter(|r| matches!(r, Record::Profile(_))).count(), 10);
}

#[test]
fn what_comes_of_a_step_that_is_no_longer_kept_is_left_out() {
    let (_dir, run) = run();
    let (mut writer, mut late) = (writer(&run, "gateway"), writer(&run, "late"));
    append(&mut late, &[profile_record(1, 10)]);
    for step in 1..=4 {
        append(&mut writer, &[profile_record(step, step), close(step)]);
    }
    run.sealer("gateway").seal(writer.position()).unwrap();
    let limits = Retention { steps: Some(1), log_bytes: None };
    let none = BTreeSet::new();
    assert_eq!(run.retain(limits, &none).unwrap(), BTreeSet::from([1, 2, 3].map(StepNumber)));
    append(&mut late, &[profile_record(4, 40), close(1), profile_record(2, 20)]);
    let is_left_out = || {
        for run in [run.clone(), Run::open(run.dir()).unwrap()] {
            assert_eq!(requests(&run), [(4, 2)]);
            assert!(run.step(StepNumber(2)).is_err());
            assert!(run.closed_steps().unwrap().contains(&StepNumber(1)), "it has been");
            let followed = run.follow().poll().unwrap();
            let is_kept = |record: &Record| record.step() == Some(StepNumber(4));
            let is_loss = |record: &Record| matches!(record, Record::Dropped(_));
            assert!(followed.iter().all(|record| is_kept(record) || is_loss(record)), "{followed:?}");
        }
    };
    is_left_out();
    let sealed = run.sealer("late").seal(late.position()).unwrap();
    assert_eq!((sealed.steps.len(), sealed.late.len()), (1, 1), "of step 4 alone");
    is_left_out();
    assert_eq!(run.dropped().unwrap().profiles, 2, "one that was there before its step went, and one after");
    assert!(!run.dir().join("steps/step=000001").join("requests").exists());
    assert_eq!(run.sealer("late").seal(late.position()).unwrap(), Sealed::default(), "once");
    assert_eq!(run.retain(limits, &none).unwrap(), none);
}

#[test]
fn what_a_killed_writer_left_is_sealed_and_a_living_one_is_left_alone() {
    let (_dir, run) = run();
    let mut killed = writer(&run, "killed");
    append(&mut killed, &[profile_record(1, 0), profile_record(1, 1), profile_record(2, 2)]);
    let mut living = writer(&run, "living");
    append(&mut living, &[profile_record(1, 3)]);
    let torn = run.dir().join("log/killed/000001.seg");
    drop(killed);
    let length = fs::metadata(&torn).unwrap().len();
    fs::OpenOptions::new().write(true).open(&torn).unwrap().set_len(length - 5).unwrap();

    let seal = || {
        let mut sealed = Sealed::default();
        run.seal_interrupted(&mut sealed).unwrap();
        sealed.steps
    };
    assert_eq!(seal(), BTreeSet::from([StepNumber(1)]));
    assert!(run.dir().join("steps/step=000001/requests/killed-000001.parquet").is_file());
    assert_eq!(seal(), BTreeSet::new(), "it has been");
    assert_eq!(requests(&run), [(1, 3)]);
    let states: Vec<_> =
        run.writers().unwrap().into_iter().map(|writer| (writer.state, writer.damage.len())).collect();
    assert_eq!(states, [(WriterState::Interrupted, 1), (WriterState::Live, 0)]);
}

#[test]
fn many_that_make_one_run_at_once_all_record_into_it() {
    for _ in 0..8 {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("run");
        let writers = 8u64;
        thread::scope(|scope| {
            for number in 0..writers {
                let dir = &dir;
                scope.spawn(move || {
                    let run = Run::create(dir, &info()).unwrap();
                    let mut writer = writer(&run, "gateway");
                    append(&mut writer, &[profile_record(1, number)]);
                    run.sealer(writer.name()).seal(writer.position()).unwrap();
                    writer.end().unwrap();
                });
            }
        });
        let run = Run::open(&dir).unwrap();
        assert_eq!(requests(&run), [(1, writers)]);
        assert_eq!(run.writers().unwrap().len() as u64, writers);
    }
}

#[test]
fn a_log_that_was_removed_or_replaced_is_noticed() {
    let (_dir, run) = run();
    let mut first = writer(&run, "gateway");
    append(&mut first, &[profile_record(1, 0)]);
    assert!(first.is_there());
    fs::remove_dir_all(run.dir()).unwrap();
    assert!(!first.is_there());
    run.restore().unwrap();
    let again = writer(&run, "gateway");
    assert!(again.is_there() && !first.is_there(), "the same name, but not the same file");
    assert_eq!(Run::open(run.dir()).unwrap().info(), run.info());
}
