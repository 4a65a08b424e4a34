//! Trackers that are files: what is sent is there once, whatever a crash has left.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollscope_testkit::{Call, Script, mlflow, mlflow_path};
use rollscope_track::{Numbers, Origin, Target, TrackError, Tracker};
use serde_json::{Value, json};

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
                if tracker.times(step) == 0 {
                    tracker.send(step, &numbers(step)).unwrap();
                }
            }
            drop(tracker);
            let again = open().unwrap();
            assert!((1..=4).all(|step| again.times(step) == 1), "{target} cut at {cut}");
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

/// Each number is a step's own, so that its value tells where it is.
#[test]
fn a_step_that_is_sent_again_is_there_whole_or_as_before_wherever_the_file_is_cut() {
    for target in ["wandb:p/n", "tensorboard", "jsonl:LINES"] {
        let dir = tempfile::tempdir().unwrap();
        let target: Target =
            target.replace("LINES", dir.path().join("lines.jsonl").to_str().unwrap()).parse().unwrap();
        let open = || Tracker::open(&target, &origin(dir.path())).unwrap();
        let mut tracker = open();
        for step in 1..=4 {
            tracker.send(step, &numbers(step)).unwrap();
        }
        drop(tracker);
        let file = file_of(dir.path(), &target);
        let before = fs::read(&file).unwrap().len();
        let send_again = |tracker: &mut Tracker| {
            tracker.send(2, &numbers(22)).unwrap();
            tracker.flush().unwrap();
        };
        send_again(&mut open());
        let whole = fs::read(&file).unwrap();
        let times = |tracker: &Tracker| [1, 2, 3, 4].map(|step| tracker.times(step));
        for cut in (before..whole.len()).step_by((whole.len() - before) / 17).chain([whole.len() - 1]) {
            fs::write(&file, &whole[..cut]).unwrap();
            let mut tracker = open();
            assert_eq!(times(&tracker), [1, 1, 1, 1], "{target} cut at {cut}");
            assert_eq!(fs::read(&file).unwrap().len(), before, "{target} cut at {cut}");
            send_again(&mut tracker);
            drop(tracker);
            assert_eq!(times(&open()), [1, 2, 1, 1], "{target} cut at {cut}");
        }
        // TensorBoard forgets the steps after it, and is sent them once more.
        let text = String::from_utf8_lossy(&fs::read(&file).unwrap()[before..]).into_owned();
        let has = |step: u64| text.contains(&format!("perf/{step}/number_with_a_long_name_7"));
        let is_board = matches!(target, Target::TensorBoard { .. });
        assert_eq!([1, 22, 3, 4].map(has), [false, true, is_board, is_board], "{target}");
    }
}

/// By whatever name and for whichever run it is opened; one that is refused changes nothing.
#[test]
fn a_file_has_one_that_sends_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str| {
        let run = dir.path().join(name);
        fs::create_dir_all(&run).unwrap();
        origin(&run)
    };
    let (own, same, copy) = (run("run"), run("run/../run"), run("copy"));
    let other = Origin { created: own.created + Duration::from_secs(1), ..run("other") };
    let at = |kind: &str, path: &str| -> Target {
        format!("{kind}:{}", dir.path().join(path).display()).parse().unwrap()
    };
    let cases = [
        ("wandb:p/n".parse().unwrap(), &same, "wandb:p/n".parse().unwrap(), [1, 1, 0]),
        ("tensorboard".parse().unwrap(), &own, at("tensorboard", "run/tensorboard"), [1, 1, 0]),
        // A copy of a run is the same run.
        (at("tensorboard", "boards"), &copy, at("tensorboard", "run/../boards"), [1, 1, 0]),
        (at("jsonl", "lines"), &own, at("jsonl", "run/../lines"), [1, 1, 0]),
        (at("jsonl", "lines"), &copy, at("jsonl", "lines"), [1, 1, 0]),
        // Of the steps of another one none is its own.
        (at("jsonl", "lines"), &other, at("jsonl", "lines"), [0, 0, 0]),
    ];
    for (target, origin, spelling, times) in cases {
        let mut first = Tracker::open(&target, &own).unwrap();
        first.send(1, &numbers(1)).unwrap();
        let refused = Tracker::open(&spelling, origin).unwrap_err();
        assert!(matches!(refused, TrackError::InUse { .. }), "{spelling} beside {target}: {refused}");
        first.send(2, &numbers(2)).unwrap();
        first.finish().unwrap();
        let then = Tracker::open(&spelling, origin).unwrap();
        assert_eq!([1, 2, 3].map(|step| then.times(step)), times, "{spelling} after {target}");
        drop(then);
        if let Target::Jsonl { path: Some(path) } = &target {
            fs::remove_file(path).unwrap();
        }
    }
    // Two files, though they are called the same; and two runs in one folder.
    for (target, others) in [("tensorboard".parse().unwrap(), &copy), (at("tensorboard", "boards"), &other)] {
        let both = [&own, others].map(|origin| Tracker::open(&target, origin).unwrap());
        assert_ne!(Path::new(&both[0].place()).parent(), Path::new(&both[1].place()).parent(), "{target}");
    }
}

/// Each run sends all its steps, and more of one that has changed, whatever the others have sent.
#[test]
fn runs_that_share_a_file_of_lines_each_have_their_own_steps() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lines.jsonl");
    let target = Target::Jsonl { path: Some(path.clone()) };
    let runs =
        [1, 2].map(|created| Origin { dir: dir.path().to_owned(), created: Duration::from_secs(created) });
    let sent = [(0, 1, 10.0), (1, 1, 20.0), (1, 2, 21.0), (0, 1, 11.0)];
    for (run, step, value) in sent {
        let mut tracker = Tracker::open(&target, &runs[run]).unwrap();
        tracker.send(step, &Numbers::from([("n".to_owned(), value)])).unwrap();
    }
    let times_of = |run: &Origin| {
        let tracker = Tracker::open(&target, run).unwrap();
        [1, 2].map(|step| tracker.times(step))
    };
    let times = || runs.each_ref().map(times_of);
    assert_eq!(times(), [[2, 0], [1, 1]]);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let own = |line: &Value| {
        (line["run"].clone(), line["step"].as_u64().unwrap(), line["data"]["n"].as_f64().unwrap())
    };
    let names = [&lines[0]["run"], &lines[1]["run"]];
    assert!(names[0].is_string() && names[0] != names[1], "{text}");
    let expected = sent.map(|(run, step, value)| (names[run].clone(), step, value));
    assert_eq!(lines.iter().map(own).collect::<Vec<_>>(), expected);
    // A line of an earlier version does not tell whose it is.
    fs::write(&path, "{\"step\":2,\"data\":{\"n\":1.0}}\n".to_owned() + &text).unwrap();
    assert_eq!(times(), [[2, 1], [1, 2]]);
}

/// What TensorBoard makes of its file is checked with its own program; here, how much it is made to read.
#[test]
fn steps_that_are_sent_again_in_a_row_take_the_rest_of_a_board_s_file_once() {
    let dir = tempfile::tempdir().unwrap();
    let target: Target = "tensorboard".parse().unwrap();
    let open = || Tracker::open(&target, &origin(dir.path())).unwrap();
    let small = |value: u32| Numbers::from([("perf/number".to_owned(), f64::from(value))]);
    let mut tracker = open();
    for step in 1..=40 {
        tracker.send(step, &small(1)).unwrap();
    }
    // All but the first three, one of them twice, and a new one between.
    for step in (4..=40).rev().chain([7, 41]) {
        tracker.send(step, &small(2)).unwrap();
    }
    assert_eq!([3, 4, 7, 40, 41].map(|step| tracker.times(step)), [1, 2, 3, 2, 1]);
    tracker.flush().unwrap();
    tracker.finish().unwrap();
    let file = file_of(dir.path(), &target);
    let whole = fs::read(&file).unwrap();
    // The version, forty steps, the new one, the start, and what follows it.
    assert_eq!(lengths_of_events(&whole).len(), 1 + 40 + 1 + 1 + 38);
    assert_eq!([3, 4, 7, 40, 41, 42].map(|step| open().times(step)), [1, 2, 3, 2, 1, 0]);
    // Of the row nothing is there, unless all of it is.
    let last = lengths_of_events(&whole).pop().unwrap();
    fs::write(&file, &whole[..whole.len() - last]).unwrap();
    assert_eq!([3, 4, 7, 40, 41, 42].map(|step| open().times(step)), [1, 1, 1, 1, 1, 0]);
    assert_eq!(lengths_of_events(&fs::read(&file).unwrap()).len(), 1 + 40 + 1);
}

/// Of each record, with its length and its sums.
fn lengths_of_events(mut bytes: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while let Some(length) = bytes.first_chunk() {
        lengths.push(u64::from_le_bytes(*length) as usize + 16);
        bytes = &bytes[*lengths.last().unwrap()..];
    }
    lengths
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
    let target = Target::Mlflow { url: format!("http://me:PassWord@127.0.0.1:{port}") };
    let refused = Tracker::open(&target, &origin(dir.path())).unwrap_err();
    assert!(matches!(refused, TrackError::Unreachable { .. }), "{refused}");
    let told = refused.to_string();
    assert!(
        told.contains("http://<redacted>@127.0.0.1") && !format!("{refused:?}").contains("PassWord"),
        "{told}"
    );
}

/// A device is read to no end.
#[test]
fn what_is_no_file_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    for place in ["/dev/zero", "/dev/full", dir.path().to_str().unwrap()] {
        if !Path::new(place).exists() {
            continue;
        }
        let target = Target::Jsonl { path: Some(place.into()) };
        let refused = Tracker::open(&target, &origin(dir.path())).unwrap_err();
        assert!(matches!(refused, TrackError::Foreign { .. }), "{place}: {refused}");
    }
}

/// Its recorder appends to it; another that cut what it took for damage would cut that off.
#[test]
fn the_run_s_own_file_has_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("metrics.jsonl");
    let half = "{\"step\":1,\"data\":{}}\n{\"step\":2,\"da";
    fs::write(&own, half).unwrap();
    let not_there = dir.path().join("other");
    fs::create_dir(&not_there).unwrap();
    let again = format!("jsonl:{}/../other/metrics.jsonl", not_there.display()).parse().unwrap();
    Tracker::open(&again, &origin(&not_there)).unwrap();
    assert_eq!(fs::read_dir(&not_there).unwrap().count(), 0, "its recorder makes it");
    for target in ["jsonl".to_owned(), format!("jsonl:{}", own.display())] {
        let mut tracker = Tracker::open(&target.parse().unwrap(), &origin(dir.path())).unwrap();
        assert!(tracker.times(1) > 0 && tracker.times(2) > 0, "{target}");
        tracker.send(3, &numbers(3)).unwrap();
        assert_eq!(fs::read_to_string(&own).unwrap(), half, "{target}");
    }
}

/// The server breaks off after the first batch of the step, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_several_batches_is_there_once_and_its_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = mlflow().await;
    let on = |call: &str, reply: &Value| {
        server.on(&mlflow_path(call), Script::json(200, &reply.to_string()));
    };
    let batches = mlflow_path("runs/log-batch");
    server.on_next(&batches, [200, 500, 200].map(|status| Script::json(status, "{}")));
    let target = Target::Mlflow { url: format!("http://me:PassWord@{}", server.address()) };
    let large: Numbers = (0..2500).map(|number| (format!("perf/{number}"), f64::from(number))).collect();
    let mut first = Tracker::open(&target, &origin(dir.path())).unwrap();
    first.send(1, &large).unwrap_err();
    let second = Tracker::open(&target, &origin(dir.path())).unwrap_err();
    assert!(matches!(second, TrackError::InUse { .. }), "it would send what the first one sends: {second}");
    drop(first);
    on("runs/search", &json!({"runs": [{"info": {"run_id": "r"}}]}));
    let metric = |name: String| json!({"key": name, "step": "1"});
    let there: Vec<Value> = names(&server.calls(&batches)[0]).into_iter().map(metric).collect();
    on("runs/get", &json!({"run": {"data": {"metrics": there}}}));
    let mut again = Tracker::open(&target, &origin(dir.path())).unwrap();
    assert_eq!(again.times(1), 0);
    again.send(1, &large).unwrap();
    again.finish().unwrap();
    let mut taken = server.calls(&batches);
    taken.remove(1);
    let logged: Vec<String> = taken.iter().flat_map(names).collect();
    let distinct: BTreeSet<&String> = logged.iter().collect();
    assert_eq!((logged.len(), distinct.len()), (2501, 2501));
    let updates = server.calls(&mlflow_path("runs/update"));
    let statuses: Vec<Value> = updates.iter().map(|call| body(call)["status"].clone()).collect();
    assert_eq!(statuses, ["RUNNING", "FINISHED"]);
    for call in taken.iter().chain(&updates) {
        // me:PassWord, out of the URL.
        assert_eq!(call.request.header("authorization"), Some("Basic bWU6UGFzc1dvcmQ="));
    }
}

fn body(call: &Call) -> Value {
    serde_json::from_slice(&call.request.body).unwrap()
}

/// Those of the numbers of a batch.
fn names(batch: &Call) -> Vec<String> {
    let metrics = body(batch)["metrics"].as_array().unwrap().clone();
    metrics.iter().map(|metric| metric["key"].as_str().unwrap().to_owned()).collect()
}
