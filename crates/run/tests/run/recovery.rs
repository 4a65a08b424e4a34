//! What is left after a writer was killed.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rollscope_run::{Damage, DamageKind, LogOptions, Run, RunError, Sealed, WriterState};
use rollscope_trace::StepNumber;

use crate::make::{append, exact_all, profile_record, run, writer};

/// Where the process that is to be killed writes; only set for that process.
const WRITE_TO: &str = "ROLLSCOPE_TEST_WRITE_TO";

#[test]
fn a_log_cut_at_any_byte_gives_its_whole_records() {
    let (_dir, run) = run();
    let mut writer = run.writer("gateway", LogOptions::default()).unwrap();
    let mut ends = vec![writer.position().offset];
    let records: Vec<_> = (0..3).map(|number| profile_record(1, number)).collect();
    for record in &records {
        append(&mut writer, std::slice::from_ref(record));
        ends.push(writer.position().offset);
    }
    writer.end().unwrap();
    let path = run.dir().join("log/gateway/000001.seg");
    let whole = fs::read(&path).unwrap();
    for length in 0..=whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let expected = ends.iter().filter(|end| **end <= length as u64).count().saturating_sub(1);
        let read = run.follow().poll().unwrap();
        assert_eq!(exact_all(&read), exact_all(&records[..expected]), "{length}");

        let summary = &run.writers().unwrap()[0];
        let ended = length == whole.len();
        let state = if ended { WriterState::Ended } else { WriterState::Interrupted };
        assert_eq!(summary.state, state, "{length}");
        let on_boundary = ended || (length as u64 != ends[0] && ends.contains(&(length as u64)));
        // The header and the names of the measures are written as one; either may be cut.
        let torn = !on_boundary && length as u64 != ends[0] && length != 16;
        assert_eq!(summary.damage.len(), usize::from(torn), "{length} {:?}", summary.damage);
        if let [damage] = &summary.damage[..] {
            assert_eq!(damage.kind, DamageKind::Torn);
            let before = ends.iter().rev().find(|end| **end <= length as u64);
            assert_eq!(damage.offset, before.copied().unwrap_or(if length < 16 { 0 } else { 16 }));
        }
    }
}

#[test]
fn a_new_writer_goes_on_beside_a_killed_one() {
    let (_dir, run) = run();
    let mut first = writer(&run, "gateway");
    append(&mut first, &[profile_record(1, 0), profile_record(1, 1)]);
    drop(first);
    let path = run.dir().join("log/gateway/000001.seg");
    let length = fs::metadata(&path).unwrap().len();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 5).unwrap();

    let mut second = writer(&run, "gateway");
    assert_eq!(second.name(), "gateway-2");
    append(&mut second, &[profile_record(1, 2)]);
    let ids: Vec<_> =
        run.step(StepNumber(1)).unwrap().requests().map(|request| request.id.0 as u64).collect();
    assert_eq!(ids, [0, 2]);
}

proptest! {
    #[test]
    fn a_log_of_any_bytes_is_read_to_its_end(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        tail in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let (_dir, run) = run();
        let mut writer = run.writer("gateway", LogOptions::default()).unwrap();
        let records: Vec<_> = (0..6).map(|number| profile_record(1, number)).collect();
        append(&mut writer, &records);
        drop(writer);
        let path = run.dir().join("log/gateway/000001.seg");
        let mut bytes = fs::read(&path).unwrap();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        bytes.extend(tail);
        fs::write(&path, bytes).unwrap();

        let read = exact_all(&run.follow().poll().unwrap());
        prop_assert_eq!(&read[..], &exact_all(&records)[..read.len()]);
        let summary = &run.writers().unwrap()[0];
        prop_assert!(read.len() == records.len() || summary.damage.len() == 1, "{:?}", summary);
    }
}

#[test]
fn what_a_crash_in_sealing_left_is_passed_over() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let mut sealer = run.sealer("gateway");
    append(&mut writer, &[profile_record(1, 0)]);
    sealer.seal(writer.position()).unwrap();
    append(&mut writer, &[profile_record(1, 1)]);

    // A part that is half written, whole ones that no manifest names, and a manifest that is half written.
    let first = |table: &str| run.dir().join(format!("steps/step=000001/{table}/gateway-000001.parquet"));
    let whole = fs::read(first("requests")).unwrap();
    let beside = |name: &str| first("requests").with_file_name(name);
    fs::write(beside(".gateway-000002.parquet.77-0.tmp"), &whole[..whole.len() / 2]).unwrap();
    fs::write(beside("gateway-000002.parquet"), &whole).unwrap();
    let manifest = fs::read(run.dir().join("manifest/1.json")).unwrap();
    for length in [0, 1, manifest.len() / 2] {
        fs::write(run.dir().join("manifest/2.json"), &manifest[..length]).unwrap();
        let ids: Vec<_> = request_ids(&run);
        assert_eq!(ids, [0, 1]);
        let damage =
            [Damage { path: run.dir().join("manifest/2.json"), offset: 0, kind: DamageKind::Manifest }];
        assert_eq!(run.lost_manifests(), damage);
        let mut follow = run.follow();
        follow.poll().unwrap();
        assert_eq!(follow.damage().collect::<Vec<_>>(), damage);
    }

    sealer.seal(writer.position()).unwrap();
    assert!(run.dir().join("manifest/3.json").is_file());
    assert_eq!((request_ids(&run), run.lost_manifests()), (vec![0, 1], vec![]), "a newer one is whole");
    assert_eq!(request_ids(&run), [0, 1]);
    assert_eq!(fs::read_dir(run.dir().join("steps/step=000001/requests")).unwrap().count(), 3);
}

/// Plays both parts: the test, and the process that may write a few kilobytes to a file and no more.
#[test]
fn a_write_that_fails_half_way_leaves_no_half_record() {
    if let Some(dir) = std::env::var_os(WRITE_TO) {
        return write_until_refused(Path::new(&dir));
    }
    let (_dir, run) = run();
    let status = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "recovery::a_write_that_fails_half_way_leaves_no_half_record"])
        .env(WRITE_TO, run.dir())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let ids = request_ids(&run);
    assert!(!ids.is_empty());
    assert_eq!(ids, (0..ids.len() as u64).collect::<Vec<_>>());
    assert_eq!(run.writers().unwrap()[0].damage, []);
}

fn write_until_refused(dir: &Path) {
    let run = Run::open(dir).unwrap();
    let mut writer = run
        .writer("child", LogOptions { segment_bytes: 1 << 20, buffer_bytes: 1500, ..LogOptions::default() })
        .unwrap();
    let refused = (0..100).find_map(|number| writer.append(&profile_record(1, number)).err());
    assert!(matches!(refused, Some(RunError::Io { action: "write", .. })), "{refused:?}");
    let length = fs::metadata(run.dir().join("log/child/000001.seg")).unwrap().len();
    assert_eq!(length, writer.position().offset);
    assert!(writer.flush().is_err(), "what was taken is kept");
}

fn request_ids(run: &Run) -> Vec<u64> {
    run.step(StepNumber(1)).unwrap().requests().map(|request| request.id.0 as u64).collect()
}

/// Plays both parts: the test, and the process that it kills.
#[test]
fn a_killed_process_leaves_every_record_that_it_had_handed_over() {
    if let Some(dir) = std::env::var_os(WRITE_TO) {
        return write_until_killed(Path::new(&dir));
    }
    // Where a kill comes is drawn; what one leaves that comes while a part is being written is made by hand once.
    for round in 0..=12 {
        let is_by_hand = round == 0;
        let (_dir, run) = run();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "recovery::a_killed_process_leaves_every_record_that_it_had_handed_over"])
            .env(WRITE_TO, run.dir())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // After the first record that follows a sealing that sealing has ended.
        let (enough, delay) = (if is_by_hand { 11 } else { drawn(400) }, Duration::from_micros(drawn(8000)));
        let deadline = Instant::now() + Duration::from_mins(1);
        while handed_over(&run) < enough {
            assert!(Instant::now() < deadline, "the child does not write");
            std::thread::yield_now();
        }
        std::thread::sleep(delay);
        child.kill().unwrap();
        child.wait().unwrap();
        if is_by_hand {
            leave_a_half_sealing(&run);
        }

        let told = handed_over(&run);
        let ids = request_ids(&run);
        assert!(ids.len() as u64 >= told, "{} of {told}", ids.len());
        assert_eq!(ids, (0..ids.len() as u64).collect::<Vec<_>>(), "{enough} {delay:?}");
        assert_eq!(run.follow().poll().unwrap().len(), ids.len());
        assert_eq!(run.writers().unwrap()[0].state, WriterState::Interrupted);
        run.seal_interrupted(&mut Sealed::default()).unwrap();
        assert_eq!(request_ids(&run), ids, "{enough} {delay:?}: what the child left is sealed");
    }
}

/// A number below a limit.
fn drawn(limit: u64) -> u64 {
    RandomState::new().build_hasher().finish() % limit
}

/// As the next sealing would have been interrupted: a part that no manifest names, and files that have no names yet.
fn leave_a_half_sealing(run: &Run) {
    let parts = run.dir().join("steps/step=000001/requests");
    let names = fs::read_dir(&parts).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let last = names.filter(|name| name.starts_with("child-")).max().unwrap();
    let number: u64 = last["child-".len()..].trim_end_matches(".parquet").parse().unwrap();
    let next = format!("child-{:06}.parquet", number + 1);
    let whole = fs::read(parts.join(last)).unwrap();
    fs::write(parts.join(&next), &whole).unwrap();
    fs::write(parts.join(format!(".{next}.77-0.tmp")), &whole[..whole.len() / 2]).unwrap();
    let manifest = fs::read(run.dir().join("manifest/1.json")).unwrap();
    fs::write(run.dir().join("manifest/.2.json.77-0.tmp"), &manifest[..manifest.len() / 2]).unwrap();
}

/// How many records the child says it has handed to the operating system.
fn handed_over(run: &Run) -> u64 {
    fs::metadata(run.dir().join("handed-over")).map_or(0, |file| file.len())
}

/// Appends one record after the other, and seals after each tenth.
fn write_until_killed(dir: &Path) {
    let run = Run::open(dir).unwrap();
    let mut writer = writer(&run, "child");
    let mut sealer = run.sealer(writer.name());
    let mut told = fs::File::create(dir.join("handed-over")).unwrap();
    for number in 0.. {
        append(&mut writer, &[profile_record(1, number)]);
        told.write_all(b".").unwrap();
        if number % 10 == 9 {
            sealer.seal(writer.position()).unwrap();
        }
    }
}
