//! Making and opening runs.

use std::fs;
use std::path::Path;

use rollscope_run::Run;

use crate::make::info;

fn refusal(outcome: Result<Run, rollscope_run::RunError>, dir: &Path) -> String {
    outcome.unwrap_err().to_string().replace(&*dir.to_string_lossy(), "DIR")
}

#[test]
fn a_run_says_what_it_was_made_with() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs/first");
    Run::create(&path, &info()).unwrap();
    let run = Run::open(&path).unwrap();
    assert_eq!(run.info(), &info());
    assert!(run.steps().unwrap().is_empty() && run.writers().unwrap().is_empty());
}

#[test]
fn making_a_run_where_one_is_opens_it() {
    let dir = tempfile::tempdir().unwrap();
    Run::create(dir.path(), &info()).unwrap();
    let other = rollscope_run::RunInfo { producer: "another".to_owned(), ..info() };
    assert_eq!(Run::create(dir.path(), &other).unwrap().info(), &info());
}

#[test]
fn what_is_no_run_is_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    assert_eq!(refusal(Run::open(&at("none")), dir.path()), "there is no run at DIR/none");

    fs::write(at("file"), "x").unwrap();
    assert_eq!(refusal(Run::open(&at("file")), dir.path()), "not a run directory (it is a file): DIR/file");
    assert_eq!(refusal(Run::open(dir.path()), dir.path()), "not a run directory (there is no run.json): DIR");
    assert_eq!(
        refusal(Run::create(dir.path(), &info()), dir.path()),
        "the directory holds other files and is no run, choose an empty or a new one: DIR"
    );

    for foreign in ["", "{", "[]", r#"{"version":"1.0"}"#, r#"{"kind":"other","version":"1.0"}"#] {
        fs::write(at("run.json"), foreign).unwrap();
        let expected = "not a run directory (its run.json is none of ours): DIR";
        assert_eq!(refusal(Run::open(dir.path()), dir.path()), expected, "{foreign}");
        assert_eq!(refusal(Run::create(dir.path(), &info()), dir.path()), expected, "{foreign}");
    }
}

#[test]
fn a_newer_major_version_is_refused_and_a_newer_minor_one_read() {
    let dir = tempfile::tempdir().unwrap();
    let write = |version: &str| {
        let text = format!(r#"{{"kind":"rollscope-run","version":"{version}","added later":[1]}}"#);
        fs::write(dir.path().join("run.json"), text).unwrap();
    };
    write("2.0");
    assert_eq!(
        refusal(Run::open(dir.path()), dir.path()),
        "written in format 2.0, which is newer than this program reads (1.3): DIR/run.json"
    );
    write("1.7");
    let run = Run::open(dir.path()).unwrap();
    assert_eq!((run.info().producer.as_str(), &run.info().config), ("", &serde_json::Value::Null));
}
