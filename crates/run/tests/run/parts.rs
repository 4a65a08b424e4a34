//! Parts and manifests: what is sealed reads as what was logged.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;

use parquet::file::reader::{FileReader, SerializedFileReader};
use proptest::prelude::*;
use rollscope_run::{
    Damage, DamageKind, LogOptions, LogStretch, LogWriter, Run, RunError, Sealed, Sealer, StepLosses,
};
use rollscope_trace::{DropCount, ForwardPass, Measure, Nanos, Record, StepNumber, StepTrace, UnixNs};

use crate::make::{
    any_step_record, append, close_record, exact_all, profile_record, run, span_record, writer,
};

fn everything(run: &Run) -> String {
    let steps = run.steps().unwrap();
    let traces: Vec<StepTrace> = steps.iter().map(|step| run.step(step.step).unwrap()).collect();
    let passes: Vec<_> = steps.iter().map(|step| run.forward_passes(step.step).unwrap()).collect();
    format!("{steps:#?} {traces:#?} {passes:#?} {:?}", run.dropped().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_sealed_step_reads_as_the_logged_one(
        stretches in prop::collection::vec(prop::collection::vec(any_step_record(1), 0..12), 1..4),
        up_to in 1..4usize,
    ) {
        let (_dir, run) = run();
        let mut writer = writer(&run, "gateway");
        let mut positions = Vec::new();
        for stretch in &stretches {
            append(&mut writer, stretch);
            positions.push(writer.position());
        }
        let logged = everything(&run);
        for position in positions.into_iter().take(up_to) {
            run.sealer("gateway").seal(position).unwrap();
        }
        let sealed = everything(&run);
        let difference = sealed.lines().zip(logged.lines()).find(|(sealed, logged)| sealed != logged);
        prop_assert_eq!(difference, None);
        // Except for marks, which are one a part, a follower sees each record as it was.
        let kept = |records: Vec<Record>| {
            let mut kept: Vec<_> =
                exact_all(&records).into_iter().filter(|record| !record.starts_with("Sample")).collect();
            kept.sort();
            kept
        };
        prop_assert_eq!(kept(run.follow().poll().unwrap()), kept(stretches.concat()));
    }
}

#[test]
fn a_stretch_gives_a_part_to_each_of_its_steps() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let mut sealer = run.sealer(writer.name());
    assert_eq!(sealer.seal(writer.position()).unwrap(), Sealed::default(), "there is nothing yet");
    append(&mut writer, &[profile_record(1, 0), profile_record(2, 1), close_record(1)]);
    let before = everything(&run);
    let outcome = sealer.seal(writer.position()).unwrap();
    assert_eq!(outcome, Sealed { steps: [StepNumber(1), StepNumber(2)].into(), late: [].into() });
    assert_eq!(everything(&run), before);
    for step in 1..=2 {
        for (table, is_there) in [("requests", true), ("legs", true), ("spans", false), ("samples", true)] {
            let path = format!("steps/step={step:06}/{table}/gateway-000001.parquet");
            assert_eq!(run.dir().join(&path).is_file(), is_there, "{path}");
        }
    }
    assert_eq!(sealer.seal(writer.position()).unwrap(), Sealed::default(), "there is nothing more");
    assert!(!run.dir().join("manifest/2.json").exists());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn passes_of_a_time_are_found_whatever_step_they_stand_with(
        // How many passes each writer hears of in each step; what is sealed of it; the step to begin at; the time.
        heard in prop::collection::vec(prop::collection::vec(0..4i64, 1..7), 1..3),
        sealed in 0..8usize,
        around in 0..8u64,
        from in 0..20i64,
        length in 0..12i64,
    ) {
        let (_dir, run) = run();
        for (name, steps) in ["a", "b"].into_iter().zip(&heard) {
            let mut writer = writer(&run, name);
            let mut now = 0;
            for (step, passes) in (1..).zip(steps) {
                for _ in 0..*passes {
                    now += 1;
                    let pass = ForwardPass {
                        step: Some(StepNumber(step)),
                        wall: Nanos(1),
                        ..ForwardPass::new(name, now as u64, UnixNs(now))
                    };
                    append(&mut writer, &[Record::ForwardPass(Box::new(pass))]);
                }
                if step as usize == sealed {
                    run.sealer(name).seal(writer.position()).unwrap();
                }
            }
        }
        let all = (1..8).flat_map(|step| run.forward_passes(StepNumber(step)).unwrap());
        let identity = |pass: &ForwardPass| (pass.endpoint.clone(), pass.counter_id);
        let is_within = |pass: &ForwardPass| pass.received.0 >= from && pass.received.0 - 1 <= from + length;
        let mut wanted: Vec<_> = all.filter(is_within).map(|pass| identity(&pass)).collect();
        let time = UnixNs(from)..=UnixNs(from + length);
        let found = run.passes_within(StepNumber(around), &time).unwrap();
        let mut found: Vec<_> = found.iter().map(identity).collect();
        wanted.sort();
        found.sort();
        prop_assert_eq!(found, wanted);
    }

    #[test]
    fn what_is_gathered_while_it_is_sealed_is_what_its_parts_hold(
        records in prop::collection::vec(any_step_record(1), 1..20), others in 0..3_u64,
    ) {
        let (_dir, run) = run();
        let mut writer = writer(&run, "gateway");
        append(&mut writer, &records);
        append(&mut writer, &(0..others).map(|number| profile_record(2, number)).collect::<Vec<_>>());
        append(&mut writer, &[close_record(1)]);
        let wanted = [StepNumber(1)].into();
        let (_, gathered) = run.sealer("gateway").seal_and_gather(LogStretch::up_to(writer.position()), &wanted).unwrap();
        let read = run.step(StepNumber(1)).unwrap();
        prop_assert_eq!(gathered.keys().copied().collect::<Vec<_>>(), [StepNumber(1)]);
        prop_assert_eq!(format!("{:?}", gathered[&StepNumber(1)]), format!("{read:?}"));
    }
}

proptest! {
    // Each seals four times, and what is sealed is synced.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn what_a_writer_has_kept_is_sealed_as_its_log_would_be(
        records in prop::collection::vec(any_step_record(1), 1..20), split in 0..20_usize,
    ) {
        let ((_dir, by_log), (_other_dir, by_kept)) = (run(), run());
        let (mut log, mut keeping) = (writer(&by_log, "gateway"), writer(&by_kept, "gateway"));
        let (first, second) = records.split_at(split.min(records.len()));
        for records in [first, second] {
            append(&mut log, records);
            let sealed = by_log.sealer("gateway").seal(log.position()).unwrap();
            for record in records {
                keeping.append_and_keep(record.clone()).unwrap();
            }
            keeping.flush().unwrap();
            for entry in fs::read_dir(by_kept.dir().join("log/gateway")).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|extension| extension == "seg") {
                    fs::remove_file(path).unwrap();
                }
            }
            let kept = by_kept.sealer("gateway").seal_and_gather(keeping.stretch(), &BTreeSet::new()).unwrap().0;
            prop_assert_eq!(kept, sealed);
        }
        let step = |run: &Run| format!("{:?} {:?}", run.step(StepNumber(1)), run.steps());
        prop_assert_eq!(step(&by_kept), step(&by_log));
    }
}

proptest! {
    // Each seals twice or more, and what is sealed is synced.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_step_that_was_sealed_as_it_went_on_is_gathered_as_its_parts_hold_it(
        records in prop::collection::vec(any_step_record(1), 1..20), splits in prop::collection::vec(0..20_usize, 0..3),
    ) {
        let (_dir, run) = run();
        let (mut writer, mut sealer) = (writer(&run, "gateway"), run.sealer("gateway"));
        for (number, record) in (0..).zip(&records) {
            if splits.contains(&number) {
                writer.flush().unwrap();
                let (_, gathered) = sealer.seal_and_gather(writer.stretch(), &BTreeSet::new()).unwrap();
                prop_assert!(gathered.is_empty());
            }
            writer.append_and_keep(record.clone()).unwrap();
        }
        writer.append_and_keep(close_record(1)).unwrap();
        writer.flush().unwrap();
        let (_, gathered) = sealer.seal_and_gather(writer.stretch(), &[StepNumber(1)].into()).unwrap();
        let read = run.step(StepNumber(1)).unwrap();
        prop_assert_eq!(format!("{:?}", gathered.get(&StepNumber(1))), format!("{:?}", Some(read)));
    }
}

#[test]
fn a_step_that_is_not_held_as_a_whole_is_not_gathered() {
    type Seal = fn(&Run, &mut LogWriter, &mut Sealer);
    let ways: [(&str, bool, Seal); 3] = [
        ("sealed by the same sealer", true, |_, writer, sealer| {
            sealer.seal_and_gather(writer.stretch(), &BTreeSet::new()).unwrap();
        }),
        ("sealed by another one", false, |run, writer, _| {
            run.sealer("gateway").seal_and_gather(writer.stretch(), &BTreeSet::new()).unwrap();
        }),
        ("read from the log, so that nobody knows what it takes", false, |_, writer, sealer| {
            sealer.seal(writer.position()).unwrap();
        }),
    ];
    for (what, is_gathered, seal) in ways {
        let (_dir, run) = run();
        let (mut writer, mut sealer) = (writer(&run, "gateway"), run.sealer("gateway"));
        writer.append_and_keep(profile_record(1, 0)).unwrap();
        writer.flush().unwrap();
        seal(&run, &mut writer, &mut sealer);
        for record in [profile_record(1, 1), close_record(1)] {
            writer.append_and_keep(record).unwrap();
        }
        writer.flush().unwrap();
        let wanted = [StepNumber(1)].into();
        let (_, gathered) = sealer.seal_and_gather(writer.stretch(), &wanted).unwrap();
        assert_eq!(gathered.contains_key(&StepNumber(1)), is_gathered, "{what}");
        assert_eq!(run.step(StepNumber(1)).unwrap().requests().count(), 2, "{what}");
    }
}

#[test]
fn what_was_not_kept_as_a_whole_is_read_from_the_log() {
    type Write = fn(&mut LogWriter);
    let few = LogOptions { keep_bytes: 1000, ..LogOptions::default() };
    let ways: [(&str, Write); 4] = [
        ("too much", |writer| {
            (1..9).for_each(|number| writer.append_and_keep(profile_record(1, number)).unwrap());
        }),
        ("one is not given away", |writer| writer.append(&profile_record(1, 1)).unwrap()),
        ("what was kept before was not sealed", |writer| {
            writer.flush().unwrap();
            drop(writer.stretch());
            writer.append_and_keep(profile_record(1, 1)).unwrap();
        }),
        ("the operating system did not have it", |writer| {
            drop(writer.stretch());
            writer.append_and_keep(profile_record(1, 1)).unwrap();
        }),
    ];
    for (what, write) in ways {
        let (_dir, run) = run();
        let mut writer = run.writer("gateway", few).unwrap();
        writer.append_and_keep(profile_record(1, 0)).unwrap();
        write(&mut writer);
        writer.flush().unwrap();
        run.sealer("gateway").seal_and_gather(writer.stretch(), &BTreeSet::new()).unwrap();
        writer.end().unwrap();
        fs::remove_dir_all(run.dir().join("log")).unwrap();
        let expected = if what == "too much" { 9 } else { 2 };
        assert_eq!(run.step(StepNumber(1)).unwrap().requests().count(), expected, "{what}");
    }
}

#[test]
fn what_stands_elsewhere_too_is_not_gathered() {
    let wanted = [StepNumber(1)].into();
    // In an earlier part.
    let (_dir, run) = run();
    let mut first = writer(&run, "gateway");
    append(&mut first, &[profile_record(1, 0)]);
    run.sealer("gateway").seal(first.position()).unwrap();
    append(&mut first, &[profile_record(1, 1), close_record(1)]);
    assert!(
        run.sealer("gateway")
            .seal_and_gather(LogStretch::up_to(first.position()), &wanted)
            .unwrap()
            .1
            .is_empty()
    );
    // In another writer's log.
    let (_dir, run) = crate::make::run();
    let (mut first, _other) = (writer(&run, "gateway"), writer(&run, "rollout"));
    append(&mut first, &[profile_record(1, 0), close_record(1)]);
    assert!(
        run.sealer("gateway")
            .seal_and_gather(LogStretch::up_to(first.position()), &wanted)
            .unwrap()
            .1
            .is_empty()
    );
}

#[test]
fn what_comes_after_the_end_goes_into_a_further_part_and_is_late() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let mut sealer = run.sealer(writer.name());
    append(&mut writer, &[profile_record(1, 0), close_record(1)]);
    sealer.seal(writer.position()).unwrap();
    assert!(!run.steps().unwrap()[0].late);

    append(&mut writer, &[profile_record(1, 1)]);
    let logged = everything(&run);
    assert!(run.steps().unwrap()[0].late);
    let outcome = sealer.seal(writer.position()).unwrap();
    assert_eq!(outcome.late, [StepNumber(1)].into());
    assert_eq!(everything(&run), logged);
    let summary = &run.steps().unwrap()[0];
    assert_eq!((summary.late, summary.requests, summary.samples), (true, 2, 2));
}

#[test]
fn a_sample_in_two_parts_is_one() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    for _ in 0..2 {
        append(&mut writer, &[profile_record(1, 0)]);
        run.sealer("gateway").seal(writer.position()).unwrap();
    }
    let summary = &run.steps().unwrap()[0];
    assert_eq!((summary.requests, summary.samples), (2, 1));
}

#[test]
fn losses_are_kept_over_sealing() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let lost = |at, profiles| Record::Dropped(DropCount { at: UnixNs(at), profiles, user_records: 1 });
    append(&mut writer, &[lost(1, 5), lost(2, 6)]);
    run.sealer("gateway").seal(writer.position()).unwrap();
    append(&mut writer, &[lost(3, 7)]);
    let drops = run.dropped().unwrap();
    assert_eq!((drops.profiles, drops.user_records), (18, 3));
    let seen = run.follow().poll().unwrap();
    let sum = Record::Dropped(DropCount { at: UnixNs(2), profiles: 11, user_records: 2 });
    assert_eq!(seen, [sum, lost(3, 7)]);
}

#[test]
fn writers_that_seal_at_the_same_time_lose_nothing_to_each_other() {
    let (_dir, run) = run();
    let sealing: Vec<_> = (0..3u64)
        .map(|number| {
            // Opened anew, as by another process: none knows what the others have published.
            let run = Run::open(run.dir()).unwrap();
            thread::spawn(move || {
                let mut writer = writer(&run, &format!("writer{number}"));
                let mut sealer = run.sealer(writer.name());
                for record in 0..10 {
                    append(&mut writer, &[profile_record(1, number * 10 + record)]);
                    sealer.seal(writer.position()).unwrap();
                }
            })
        })
        .collect();
    for thread in sealing {
        thread.join().unwrap();
    }
    let trace = run.step(StepNumber(1)).unwrap();
    let mut ids: Vec<_> = trace.requests().map(|request| request.id.0 as u64).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..30).collect::<Vec<_>>());
    let manifests = fs::read_dir(run.dir().join("manifest")).unwrap().count();
    assert!((1..=9).contains(&manifests), "{manifests} manifests are kept");
}

#[test]
fn the_columns_are_a_contract() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    append(&mut writer, &[profile_record(1, 0), span_record(1, 0)]);
    run.sealer("gateway").seal(writer.position()).unwrap();
    let columns = |table: &str| {
        let path = run.dir().join(format!("steps/step=000001/{table}/gateway-000001.parquet"));
        let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        let schema = reader.metadata().file_metadata().schema_descr_ptr();
        let columns = schema.columns().iter().map(|column| {
            let optional = if column.max_def_level() > 0 { "?" } else { "" };
            format!("{}{optional} {:?}", column.name(), column.physical_type())
        });
        columns.collect::<Vec<_>>().join(", ").replace("BYTE_ARRAY", "text").to_lowercase()
    };
    assert_eq!(
        columns("requests"),
        "request_id text, group_id? text, sample_id? text, attempt int64, traceparent? text, session? text, \
         rid? text, endpoint text, stream boolean, batch_index? int64, batch_size? int64, arrival_ns int64, \
         first_byte_after_ns? int64, duration_ns int64, status? int64, outcome text, error? text, decision text, \
         retries int64, legs int64, attrs? text"
    );
    let measures: Vec<_> = Measure::all().map(|measure| format!("{}? double", measure.name())).collect();
    assert_eq!(
        columns("legs"),
        format!(
            "request_id text, leg int64, role text, worker_url text, worker_instance text, dispatch_after_ns int64, \
             first_byte_after_ns? int64, end_after_ns int64, status? int64, outcome text, error? text, finish? text, \
             finish_message? text, finish_status_code? int64, weight_version? text, worker_request_id? text, \
             {}, faults? text, clock_offset_ns? int64, clock_bound_ns? int64",
            measures.join(", ")
        )
    );
    assert_eq!(
        columns("spans"),
        "source text, request_id? text, group_id? text, sample_id text, attempt int64, span_id? int64, \
         parent_id? int64, name text, lane text, start_ns int64, end_ns? int64, bound_ns int64, attrs? text"
    );
    assert_eq!(
        columns("samples"),
        "group_id? text, sample_id text, marked boolean, reward? double, truncated? boolean, \
         response_tokens? int64, effective_response_tokens? int64, non_generation_ns? int64, \
         repetition? boolean, category? text, top_p_kept? int64, spec_accept_token_num? int64, \
         spec_draft_token_num? int64, spec_verify_ct? int64, spec_completion_token_num? int64, \
         prompt_tokens? int64, cached_tokens? int64, left_out? text, carrier? text, dataset? text, \
         evaluation boolean, start_ns? int64, end_ns? int64, requests int64, user_spans int64"
    );
}

#[test]
fn a_damaged_part_is_made_up_for_from_the_log() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let mut sealer = run.sealer(writer.name());
    for number in 0..3 {
        append(&mut writer, &[profile_record(1, number), profile_record(2, number), span_record(1, number)]);
        append(&mut writer, &[close_record(number)]);
        sealer.seal(writer.position()).unwrap();
    }
    let (before, followed) = (everything(&run), run.follow().poll().unwrap().len());
    let check = |what: &str| {
        assert_eq!(everything(&run), before, "{what}");
        let mut follow = run.follow();
        assert_eq!(follow.poll().unwrap().len(), followed, "{what}");
        assert_eq!((follow.damage().count(), &run.writers().unwrap()[0].damage[..]), (0, &[][..]), "{what}");
    };
    for table in ["requests", "legs", "spans", "samples"] {
        let path = run.dir().join(format!("steps/step=000001/{table}/gateway-000002.parquet"));
        let whole = fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(whole.len() / 20) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, flipped).unwrap();
            check(&format!("{table} flipped at {at}"));
        }
        for length in [0, 4, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            check(&format!("{table} cut to {length}"));
        }
        fs::remove_file(&path).unwrap();
        check(&format!("{table} gone"));
        fs::write(&path, whole).unwrap();
    }
}

#[test]
fn a_damaged_part_without_a_log_is_named_and_hides_nothing_else() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let mut sealer = run.sealer(writer.name());
    for (step, number) in [(1, 0), (1, 1), (2, 2), (3, 3)] {
        append(&mut writer, &[profile_record(step, number)]);
        sealer.seal(writer.position()).unwrap();
    }
    drop(writer);
    fs::remove_file(run.dir().join("log/gateway/000001.seg")).unwrap();
    let part = |step: u64, table: &str, number: u64| {
        run.dir().join(format!("steps/step={step:06}/{table}/gateway-{number:06}.parquet"))
    };
    let lost = [part(1, "legs", 2), part(1, "samples", 1), part(2, "requests", 3)];
    for path in &lost {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fs::write(path, bytes).unwrap();
    }

    let run = Run::open(run.dir()).unwrap();
    let mut follow = run.follow();
    let ids = |step: u64| {
        let trace = run.step(StepNumber(step)).unwrap();
        trace.requests().map(|request| request.id.0 as u64).collect::<Vec<_>>()
    };
    assert_eq!((ids(1), ids(2), ids(3)), (vec![0], vec![], vec![3]));
    let steps: Vec<_> = run.steps().unwrap().iter().map(|step| (step.requests, step.samples)).collect();
    assert_eq!(steps, [(2, 2), (1, 1), (1, 1)]);
    assert!(matches!(run.step(StepNumber(4)), Err(RunError::NoSuchStep { .. })));
    let expected = lost.map(|path| Damage { path, offset: 0, kind: DamageKind::Part });
    assert_eq!(run.writers().unwrap()[0].damage, expected);

    assert_eq!(exact_all(&follow.poll().unwrap()), exact_all(&[profile_record(1, 0), profile_record(3, 3)]));
    assert!(follow.poll().unwrap().is_empty());
    assert_eq!(follow.damage().collect::<Vec<_>>(), expected);
    fs::remove_dir_all(run.dir().join("log")).unwrap();
    assert_eq!(run.writers().unwrap()[0].damage, expected);
}

#[test]
fn what_a_step_has_lost_is_told_without_reading_it() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    for step in [1, 2, 3] {
        let pass = ForwardPass::new("ipc:///tmp/passes.0", step, UnixNs(1_700_000_000_000_000_000));
        let pass = ForwardPass { step: Some(StepNumber(step)), ..pass };
        let pass = Record::ForwardPass(Box::new(pass));
        append(&mut writer, &[profile_record(step, step), pass, close_record(step)]);
    }
    run.sealer(writer.name()).seal(writer.position()).unwrap();
    drop(writer);
    let segment = run.dir().join("log/gateway/000001.seg");
    let log = fs::read(&segment).unwrap();
    let part = |step: u64, table: &str| {
        run.dir().join(format!("steps/step={step:06}/{table}/gateway-000001.parquet"))
    };
    let lost = |path: PathBuf| vec![Damage { path, offset: 0, kind: DamageKind::Part }];
    fs::remove_file(part(1, "requests")).unwrap();
    fs::write(part(2, "forward_passes"), "cut").unwrap();

    let losses = |step: u64| Run::open(run.dir()).unwrap().losses(StepNumber(step)).unwrap();
    assert!([1, 2, 3].into_iter().all(|step| losses(step).is_empty()), "the log has it");
    fs::remove_file(&segment).unwrap();
    let (records, passes) = (lost(part(1, "requests")), lost(part(2, "forward_passes")));
    assert_eq!(losses(1), StepLosses { records, passes: Vec::new() });
    assert_eq!(losses(2), StepLosses { records: Vec::new(), passes });
    assert!(losses(3).is_empty());
    fs::write(&segment, log).unwrap();
    assert!(losses(1).is_empty());
}

#[test]
fn a_log_that_ends_within_a_record_has_lost_none_and_a_damaged_one_has() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    append(&mut writer, &[profile_record(1, 0), profile_record(1, 1)]);
    drop(writer);
    let segment = run.dir().join("log/gateway/000001.seg");
    let log = fs::read(&segment).unwrap();
    let losses = || run.losses(StepNumber(1)).unwrap().records;
    fs::write(&segment, &log[..log.len() - 20]).unwrap();
    assert_eq!(losses(), []);
    let mut flipped = log;
    let middle = flipped.len() / 2;
    flipped[middle] ^= 4;
    fs::write(&segment, flipped).unwrap();
    assert!(matches!(losses()[..], [Damage { kind: DamageKind::Checksum, .. }]), "{:?}", losses());
    // Sealed, it is still told.
    run.seal_interrupted(&mut Sealed::default()).unwrap();
    assert!(matches!(losses()[..], [Damage { kind: DamageKind::Checksum, .. }]), "{:?}", losses());
}

#[test]
fn a_manifest_with_any_byte_flipped_changes_no_number() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    append(&mut writer, &[profile_record(1, 0), profile_record(2, 1), close_record(1)]);
    run.sealer("gateway").seal(writer.position()).unwrap();
    let before = everything(&run);
    let path = run.dir().join("manifest/1.json");
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&path, flipped).unwrap();
        assert_eq!(everything(&Run::open(run.dir()).unwrap()), before, "flipped at {at}");
    }
}

#[test]
fn a_run_of_many_seals_has_small_manifests_and_loses_none() {
    const SEALS: u64 = 300;
    let (_dir, run) = run();
    let mut writers = [writer(&run, "a"), writer(&run, "b")];
    let mut follow = run.follow();
    let mut largest = 0;
    for number in 0..SEALS {
        let writer = &mut writers[number as usize % 2];
        append(writer, &[profile_record(number / 100, number)]);
        // Opened anew, so that half of what is read was published by nobody that this one knows of.
        let run = Run::open(run.dir()).unwrap();
        run.sealer(writer.name()).seal(writer.position()).unwrap();
        let manifest = fs::metadata(run.dir().join(format!("manifest/{}.json", number + 1))).unwrap();
        largest = largest.max(manifest.len());
    }
    assert!(largest < 128 * 1024, "a manifest has {largest} bytes");
    for run in [run.clone(), Run::open(run.dir()).unwrap()] {
        let steps: Vec<_> = run.steps().unwrap().iter().map(|step| (step.step.0, step.requests)).collect();
        assert_eq!(steps, [(0, 100), (1, 100), (2, 100)]);
        assert_eq!(run.step(StepNumber(2)).unwrap().requests().count(), 100);
    }
    assert_eq!(follow.poll().unwrap().len() as u64, SEALS);

    let moved: Vec<_> = fs::read_dir(run.dir().join("manifest"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("seals-"))
        .collect();
    assert_eq!(moved.len(), 2);
    fs::write(&moved[0], "{").unwrap();
    let damaged = Run::open(run.dir()).unwrap().steps();
    assert!(matches!(damaged, Err(RunError::DamagedManifest { path, .. }) if path == moved[0]));
}
