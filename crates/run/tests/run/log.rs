//! The log: what is written is read, by whatever writer and over whatever segments.

use proptest::prelude::*;
use rollscope_run::{DamageKind, Drops, LogOptions, RunError, WriterState};
use rollscope_trace::{DropCount, Record, StepNumber, UnixNs, UserSpan};

use crate::make::{any_record, append, close_record, exact_all, profile, profile_record, run, writer};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_are_read_as_they_were_written(records in prop::collection::vec(any_record(), 0..40)) {
        let (_dir, run) = run();
        let mut writer = writer(&run, "gateway");
        append(&mut writer, &records);
        writer.end().unwrap();
        let read = run.follow().poll().unwrap();
        prop_assert_eq!(exact_all(&read), exact_all(&records));
        let summary = &run.writers().unwrap()[0];
        prop_assert_eq!((&summary.damage, summary.unknown, summary.state), (&vec![], 0, WriterState::Ended));
    }
}

#[test]
fn segments_are_rotated_by_size() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let records: Vec<_> = (0..100).map(|number| profile_record(1, number)).collect();
    append(&mut writer, &records);
    let summary = &run.writers().unwrap()[0];
    assert!(summary.segments > 5, "{summary:?}");
    assert!(summary.bytes < u64::from(summary.segments) * (4096 + 2000), "{summary:?}");
    assert_eq!(run.step(StepNumber(1)).unwrap().requests().count(), 100);
}

#[test]
fn a_writer_is_live_then_ended_or_interrupted() {
    let (_dir, run) = run();
    let (mut first, second) = (writer(&run, "gateway"), writer(&run, "gateway"));
    append(&mut first, &[profile_record(1, 0)]);
    let states = || {
        let writers = run.writers().unwrap();
        writers.into_iter().map(|writer| (writer.name.to_string(), writer.state)).collect::<Vec<_>>()
    };
    let named = |a, b| vec![("gateway".to_owned(), a), ("gateway-2".to_owned(), b)];
    assert_eq!(states(), named(WriterState::Live, WriterState::Live));
    first.end().unwrap();
    assert_eq!(states(), named(WriterState::Ended, WriterState::Live));
    drop(second);
    assert_eq!(states(), named(WriterState::Ended, WriterState::Interrupted));
}

#[test]
fn what_a_writer_took_is_written_when_it_is_dropped() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    writer.append(&profile_record(1, 0)).unwrap();
    assert!(matches!(run.step(StepNumber(1)), Err(RunError::NoSuchStep { step: StepNumber(1) })));
    drop(writer);
    assert_eq!(run.step(StepNumber(1)).unwrap().requests().count(), 1);
}

#[test]
fn a_refused_record_leaves_the_log_as_it_was() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let mut stepless = profile(1, 0);
    stepless.join.step = None;
    let refused = writer.append(&Record::Profile(Box::new(stepless)));
    assert!(matches!(refused, Err(RunError::NoStep { .. })));

    let mut huge = profile(1, 1);
    huge.error = Some("x".repeat(17 << 20).into());
    let refused = writer.append(&Record::Profile(Box::new(huge)));
    assert!(matches!(refused, Err(RunError::RecordTooLarge { .. })));

    append(&mut writer, &[profile_record(1, 2)]);
    assert_eq!(exact_all(&run.follow().poll().unwrap()), exact_all(&[profile_record(1, 2)]));
}

#[test]
fn a_writer_is_named_like_a_folder() {
    let (_dir, run) = run();
    for name in ["", ".", "..", "a/b", "a b", ".hidden", "ä"] {
        let refused = run.writer(name, LogOptions::default());
        assert!(matches!(refused, Err(RunError::WriterName { .. })), "{name}");
    }
    assert_eq!(run.writer("gateway-1.b_C", LogOptions::default()).unwrap().name(), "gateway-1.b_C");
}

#[test]
fn what_else_lies_in_the_folder_of_logs_is_passed_over() {
    let (_dir, run) = run();
    append(&mut writer(&run, "gateway"), &[profile_record(1, 0)]);
    for stray in ["log/.DS_Store", "log/notes", "log/gateway/notes", "log/gateway/x.seg"] {
        std::fs::write(run.dir().join(stray), "x").unwrap();
    }
    assert_eq!(run.step(StepNumber(1)).unwrap().requests().count(), 1);
    assert_eq!(run.writers().unwrap().len(), 1);
}

#[test]
fn steps_tell_what_they_hold_and_when_they_ended() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let span = UserSpan {
        key: profile(2, 7).sample_key(StepNumber(2)),
        attempt: 0,
        name: "reward".into(),
        start: UnixNs(5),
        end: None,
        attrs: Vec::new(),
    };
    append(
        &mut writer,
        &[
            profile_record(1, 0),
            profile_record(1, 1),
            profile_record(2, 7),
            close_record(1),
            Record::Span(span),
        ],
    );
    let steps = run.steps().unwrap();
    let told = |step: &rollscope_run::StepSummary| {
        (step.step.0, step.close.is_some(), step.late, step.requests, step.samples, step.user_spans)
    };
    assert_eq!(
        steps.iter().map(told).collect::<Vec<_>>(),
        [(1, true, false, 2, 2, 0), (2, false, false, 1, 1, 1)]
    );

    append(&mut writer, &[profile_record(1, 2)]);
    assert_eq!(told(&run.steps().unwrap()[0]), (1, true, true, 3, 3, 0));
}

#[test]
fn losses_are_summed_over_writers() {
    let (_dir, run) = run();
    for name in ["gateway", "rollout"] {
        let dropped = |profiles| Record::Dropped(DropCount { at: UnixNs(1), profiles, user_records: 1 });
        append(&mut writer(&run, name), &[dropped(2), dropped(3)]);
    }
    assert_eq!(run.dropped().unwrap(), Drops { profiles: 10, user_records: 4 });
}

#[test]
fn reading_goes_on_in_the_segment_after_a_damaged_one() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let records: Vec<_> = (0..60).map(|number| profile_record(1, number)).collect();
    append(&mut writer, &records);
    let end = writer.position();
    writer.end().unwrap();
    let path = run.dir().join("log/gateway/000002.seg");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let summary = &run.writers().unwrap()[0];
    let [damage] = &summary.damage[..] else { panic!("{summary:?}") };
    assert_eq!((&damage.path, damage.kind), (&path, DamageKind::Checksum));
    assert!(damage.offset <= middle as u64 && damage.offset > 16);
    assert_eq!(summary.state, WriterState::Ended);
    let read = run.follow().poll().unwrap();
    assert!(read.len() < 60 && read.len() > 50, "{}", read.len());
    assert_eq!(exact_all(&read).last(), exact_all(&records).last());

    run.sealer("gateway").seal(end).unwrap();
    let mut follow = run.follow();
    assert_eq!(follow.poll().unwrap().len(), read.len());
    assert_eq!(
        follow.damage().collect::<Vec<_>>(),
        std::slice::from_ref(damage),
        "it is told of a sealed log too"
    );
    assert_eq!(&run.writers().unwrap()[0].damage, &summary.damage);
}
