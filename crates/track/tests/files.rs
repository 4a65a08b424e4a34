//! Trackers that are files: what is sent is there once, whatever a crash has left.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollscope_track::{Numbers, Origin, Target, TrackError, Tracker};

fn origin(dir: &Path) -> Origin {
    Origin { dir: dir.to_owned(), created: Duration::from_secs(1_760_000_000) }
}

/// As many numbers as make a record of W&B's longer than a block of its log.
fn numbers(step: u64) -> Numbers {
    (0..600)
        .map(|number| (format!("perf/{step}/number_with_a_long_name_{number}"), f64::from(number) / 7.0))
        .collect()
}

/// The one file that a target writes.
fn file_of(dir: &Path, target: &Target) -> PathBuf {
    let place = PathBuf::from(Tracker::open(target, &origin(dir)).unwrap().place());
    if place.is_file() {
        return place;
    }
    let files = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "wandb")).unwrap()
}

#[test]
fn a_file_cut_anywhere_is_gone_on_with_and_no_step_is_there_twice() {
    for target in ["wandb:p/n", "tensorboard", "jsonl:LINES"] {
        let dir = tempfile::tempdir().unwrap();
        let target: Target =
            target.replace("LINES", dir.path().join("lines.jsonl").to_str().unwrap()).parse().unwrap();
        let open = || Tracker::open(&target, &origin(dir.path()));
        let mut tracker = open().unwrap();
        for step in 1..=3 {
            tracker.send(step, &numbers(step)).unwrap();
        }
        tracker.finish().unwrap();
        let file = file_of(dir.path(), &target);
        let whole = fs::read(&file).unwrap();
        for cut in (0..whole.len()).step_by(whole.len() / 17).chain([whole.len() - 1]) {
            fs::write(&file, &whole[..cut]).unwrap();
            let mut tracker = open().unwrap();
            for step in 1..=4 {
                if !tracker.has(step) {
                    tracker.send(step, &numbers(step)).unwrap();
                }
            }
            drop(tracker);
            let again = open().unwrap();
            assert!((1..=4).all(|step| again.has(step)), "{target} cut at {cut}");
            let text = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
            // A summary and a row of the history have each name in W&B's file.
            let each = if matches!(target, Target::Wandb { .. }) { 2 } else { 1 };
            for step in 1..=4 {
                let name = format!("perf/{step}/number_with_a_long_name_7");
                let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_digit());
                let found = text.split(name.as_str()).skip(1).filter(|rest| ends(rest)).count();
                assert!(found <= each, "{target} cut at {cut}: {found} times step {step}");
            }
        }
    }
}

#[test]
fn a_file_of_another_kind_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    fs::write(&path, "not ours\n").unwrap();
    let target = Target::Jsonl { path: Some(path.clone()) };
    let refused = Tracker::open(&target, &origin(dir.path())).unwrap_err();
    assert!(matches!(refused, TrackError::Foreign { .. }), "{refused}");
    assert_eq!(fs::read_to_string(path).unwrap(), "not ours\n");
}

#[test]
fn a_server_that_is_away_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let target = Target::Mlflow { url: format!("http://127.0.0.1:{port}") };
    let refused = Tracker::open(&target, &origin(dir.path())).unwrap_err();
    assert!(matches!(refused, TrackError::Unreachable { .. }), "{refused}");
}
