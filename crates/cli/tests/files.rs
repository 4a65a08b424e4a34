//! Files of others in and out, by the real program.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rollscope_testkit::{Script, mlflow, mlflow_path};
use serde_json::Value;

fn dump(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/data").join(name)
}

fn rollscope<'a>(args: impl IntoIterator<Item = &'a Path>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rollscope")).args(args).output().unwrap()
}

fn done<'a>(args: impl IntoIterator<Item = &'a Path>) -> String {
    let output = rollscope(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn report(run: &Path) -> Value {
    serde_json::from_str(&done(["report".as_ref(), run, "--json".as_ref()])).unwrap()
}

fn metrics(report: &Value) -> &serde_json::Map<String, Value> {
    report["steps"][0]["metrics"].as_object().unwrap()
}

#[test]
fn a_dump_becomes_a_run_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let file = dump("turns.pt");
    let told = done(["import".as_ref(), &*file, "--out".as_ref(), &run, "--gpus".as_ref(), "8".as_ref()]);
    assert_eq!(told, "step 0: 7 requests\n");
    let of_run = report(&run);
    assert_eq!(of_run["steps"][0]["samples"], 4);
    let numbers = metrics(&of_run);
    for name in
        ["perf/prefill/forward_duration/mean", "perf/decode/forward_duration/p99", "rollout/reward/mean"]
    {
        assert!(numbers.contains_key(name), "{name} of {:?}", numbers.keys());
    }
    for made in ["steps/step=000000/stats.json", "steps/step=000000/glance.bin", "metrics.jsonl"] {
        assert!(run.join(made).exists(), "{made}");
    }

    // Without a run on disk the numbers are the same but for what only the user knows.
    let of_file = report(&file);
    assert_eq!(of_file["run"], file.display().to_string());
    let same = |name: &str| assert_eq!(metrics(&of_file).get(name), numbers.get(name), "{name}");
    same("perf/request/e2e_latency/p99");
    same("perf/prefill/transfer_speed_gb_s/mean");
}

#[test]
fn what_is_written_in_slime_s_words_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (json, again) = (dir.path().join("dump.jsonl"), dir.path().join("again.jsonl"));
    let export =
        |from: &Path, to: &Path| done(["export".as_ref(), from, "--to".as_ref(), "slime-json".as_ref(), to]);
    export(&dump("turns.pt"), &json);
    export(&json, &again);
    let read = |path: &Path| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(read(&json), read(&again));
    assert_eq!(read(&json)["samples"].as_array().unwrap().len(), 4);
    assert_eq!(metrics(&report(&json)), metrics(&report(&dump("turns.pt"))));
}

#[test]
fn an_export_takes_the_place_of_a_file_when_it_is_whole_and_never_of_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let (run, out) = (dir.path().join("run"), dir.path().join("out"));
    done(["import".as_ref(), &*dump("turns.pt"), "--out".as_ref(), &*run]);
    let options = |to: &'static str| ["--to".as_ref(), Path::new(to)];
    let code = |to: &Path, format| {
        let [option, format] = options(format);
        rollscope(["export".as_ref(), &*run, option, format, to]).status.code()
    };
    let names = || dir.path().read_dir().unwrap().count();
    for format in ["chrome", "html"] {
        for source in ["run.json", "steps/new"] {
            assert_eq!(code(&run.join(source), format), Some(2), "{format}: {source}");
        }
        assert_eq!(code(Path::new("/dev/full"), format), Some(1), "{format}");
        assert_eq!(code(&dir.path().join("no/such"), format), Some(1), "{format}");
        std::fs::write(&out, "notes").unwrap();
        // As on a disk that is full after the first bytes.
        let full = Command::new("sh")
            .args([
                "-c",
                r#"trap '' XFSZ; ulimit -f 1; exec "$0" "$@""#,
                env!("CARGO_BIN_EXE_rollscope"),
                "export",
            ])
            .arg(&run)
            .args(options(format))
            .arg(&out)
            .status()
            .unwrap();
        assert_eq!(full.code(), Some(1), "{format}");
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "notes");
        assert_eq!(code(&out, format), Some(0), "{format}");
        assert_ne!(std::fs::read_to_string(&out).unwrap(), "notes");
        assert_eq!(names(), 2, "nothing else is left");
    }
    assert_eq!(report(&run)["steps"][0]["samples"], 4);
}

#[test]
fn requests_of_sglang_and_lines_of_ours_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("lines.jsonl");
    std::fs::write(
        &lines,
        r#"{"request_parameters":"{\"rid\":\"r1\",\"stream\":false}","id":"r1","finish_reason":{"type":"stop","matched":1},"prompt_tokens":10,"completion_tokens":4,"e2e_latency":2.5,"request_received_ts":1790000000.5,"queue_time":0.25,"weight_version":"default"}
{"request_parameters":"{\"rid\":\"r2\"}","id":"r2","finish_reason":{"type":"abort","message":"gone"},"prompt_tokens":7,"e2e_latency":0.5,"request_received_ts":1790000001.5,"weight_version":"v2"}

{"type":"sample","step":1,"sample":"r2","reward":0.5}
"#,
    )
    .unwrap();
    let report = report(&lines);
    let numbers = metrics(&report);
    assert_eq!(numbers["perf/request/e2e_latency/mean"], 2.5);
    assert_eq!(numbers["perf/request/queue_time/mean"], 0.25);
    assert_eq!(report["steps"][1]["metrics"]["rollout/reward/mean"], 0.5);
}

#[test]
fn a_step_is_compared_with_another_stage_by_stage() {
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("lines.jsonl");
    let request = |(version, number): (u32, u32)| {
        let latency = f64::from(version) + 0.01 * f64::from(number);
        let parameters = format!("{{\"rid\": \"{version}-{number}\"}}");
        serde_json::json!({
            "request_parameters": parameters, "id": format!("{version}-{number}"), "finish_reason": {"type": "stop"},
            "prompt_tokens": 10, "completion_tokens": 4, "e2e_latency": latency, "queue_time": 0.25,
            "request_received_ts": 1_790_000_000.0 + f64::from(version * 100 + number),
            "weight_version": version.to_string(),
        })
        .to_string()
    };
    let all: Vec<String> =
        (1..3).flat_map(|version| (0..12).map(move |number| (version, number))).map(request).collect();
    std::fs::write(&lines, all.join("\n")).unwrap();
    let against: [&Path; 7] = [
        "report".as_ref(),
        &lines,
        "--step".as_ref(),
        "1".as_ref(),
        "--against".as_ref(),
        &lines,
        "--against-step=0".as_ref(),
    ];
    let told = done(against);
    let row = |name: &str| told.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_default();
    let (latency, queue) = (row("request/e2e_latency"), row("request/queue_time"));
    assert!(latency.contains("large (+1.00)") && latency.contains("99.9%"), "{told}");
    assert!(queue.contains("no change seen"), "{told}");
    let json = done(against.into_iter().chain(["--json".as_ref()]));
    let report: Value = serde_json::from_str(&json).unwrap();
    let changes = report["changes"].as_array().unwrap();
    let of = |name: &str| changes.iter().find(|change| change["name"] == name).unwrap();
    let latency = of("perf/request/e2e_latency");
    assert_eq!((&latency["effect"], &latency["magnitude"]), (&1.0.into(), &"large".into()));
    assert_eq!((&latency["before"]["count"], &latency["after"]["count"]), (&12.0.into(), &12.0.into()));
    assert!(latency["median_change"].as_f64().unwrap() > 0.9, "{latency}");
    assert_eq!(of("perf/request/queue_time")["effect"], 0.0);
}

#[test]
fn what_cannot_be_read_is_named_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let cut = |name: &str, length: usize| {
        let path = dir.path().join(name);
        std::fs::write(&path, &std::fs::read(dump(name)).unwrap()[..length]).unwrap();
        path
    };
    let text = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    for (path, told) in [
        (cut("turns.pt", 9000), "at byte 9000 of "),
        (cut("turns_legacy.pt", 9000), "the file ends within an object, at byte 8"),
        (
            text("lines.jsonl", "{\"type\":\"sample\",\"step\":1,\"sample\":\"a\"}\n{\"a\":\n"),
            "in line 2 (byte 40) of ",
        ),
        (text("prose.txt", "once upon a time"), "neither a file of torch.save"),
        (dir.path().join("nothing.pt"), "nothing.pt"),
    ] {
        let output = rollscope(["report".as_ref(), &*path]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains(told) && stderr.contains(&*path.file_name().unwrap().to_string_lossy()),
            "{stderr}"
        );
    }
}

#[test]
fn a_file_that_is_imported_again_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (run, file) = (dir.path().join("run"), dump("turns.pt"));
    let import = || rollscope(["import".as_ref(), &*file, "--out".as_ref(), &run]);
    assert!(import().status.success());
    let before = report(&run);
    let again = import();
    assert!(again.status.success() && again.stdout.is_empty(), "{}", String::from_utf8_lossy(&again.stdout));
    let told = String::from_utf8(again.stderr).unwrap();
    assert!(told.contains("records were there already"), "{told}");
    assert_eq!(report(&run), before);
    assert_eq!(std::fs::read_dir(run.join("log")).unwrap().count(), 1);
}

#[test]
fn of_a_file_that_cannot_be_read_nothing_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (run, file) = (dir.path().join("run"), dir.path().join("cut.pt"));
    let whole = std::fs::read(dump("turns_legacy.pt")).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let import =
        |out: &Path| rollscope(["import".as_ref(), &*dump("turns.pt"), &*file, "--out".as_ref(), out]);
    assert_eq!(import(&run).status.code(), Some(1));
    assert!(!run.exists(), "no half run is left");
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert_eq!(import(&empty).status.code(), Some(1));
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
    // A run that was there is as it was.
    done(["import".as_ref(), &*dump("eval_3.pt"), "--out".as_ref(), &run]);
    let before = report(&run);
    assert_eq!(import(&run).status.code(), Some(1));
    assert_eq!(report(&run), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_a_tracker_refuses_is_told_and_all_others_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    done(["import".as_ref(), &*dump("turns.pt"), "--out".as_ref(), &run]);
    let server = mlflow().await;
    server.on_each(&mlflow_path("runs/log-batch"), |request| {
        let batch: Value = serde_json::from_slice(&request.body).unwrap();
        let mut names = batch["metrics"].as_array().unwrap().iter().map(|metric| &metric["key"]);
        Script::json(if names.any(|name| name == "rollout/reward/mean") { 400 } else { 200 }, "{}")
    });
    let target = format!("mlflow:{}", server.url());
    let output = rollscope(["track".as_ref(), &*run, "--to".as_ref(), target.as_ref()]);
    let (sent, told) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && sent.starts_with("1 steps sent to "), "{sent}{told}");
    assert!(told.contains("without 1 of its numbers, the first of them: rollout/reward/mean"), "{told}");
    assert_eq!(server.calls(&mlflow_path("runs/update")).len(), 1, "its run has finished");
}

#[test]
fn a_sample_by_half_its_name_is_told_how_samples_are_named() {
    let output = rollscope(["report".as_ref(), &*dump("turns.pt"), "--sample".as_ref(), "no-such".as_ref()]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("samples are named GROUP/SAMPLE, such as "), "{told}");
}

/// Each number under its name, with the prefix before it, to 1e-9; gives how many there are.
fn agree(found: &serde_json::Map<String, Value>, prefix: &str, told: &Value) -> usize {
    let told = told.as_object().unwrap();
    for (name, expected) in told {
        let (name, expected) = (format!("{prefix}{name}"), expected.as_f64().unwrap());
        let value = found.get(&name).and_then(Value::as_f64);
        let is_near = |value: f64| (value - expected).abs() <= 1e-9 * expected.abs().max(1.0);
        assert!(value.is_some_and(is_near), "{name}: {value:?} instead of {expected}");
    }
    told.len()
}

/// Dumps that were made up so that they have everything, and what slime's own module gives of them: `interop/slime_itself.py`
/// makes all of it.
#[test]
fn numbers_of_every_kind_are_those_that_slime_computes() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let told = std::fs::read(data.join("slime_made_up.metrics.json")).unwrap();
    let told: Value = serde_json::from_slice(&told).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (name, count) in [("training", 45), ("loosely_typed", 45), ("evaluation", 23)] {
        let (run, file) = (dir.path().join(name), data.join(format!("slime_{name}.jsonl")));
        let how =
            ["--gpus", "8", "--rollout-time", "321.7", "--reward-key", "score", "--category-key", "kind"];
        let import = ["import".as_ref(), &*file, "--out".as_ref(), &*run];
        done(import.into_iter().chain(how.map(Path::new)));
        assert_eq!(agree(metrics(&report(&run)), "", &told[name]), count);
    }
}

/// The dump was written by slime's own tracing, 64 samples of several turns and attempts; the numbers are what its own
/// functions give of it, with 8 GPUs and a rollout of 321.7 s. They have none of the stages, which are in the dump.
#[test]
fn the_numbers_of_a_dump_are_those_that_slime_computes() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let told: Value =
        serde_json::from_slice(&std::fs::read(data.join("slime_turns_64.metrics.json")).unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (run, file) = (dir.path().join("run"), data.join("slime_turns_64.pt"));
    let how = ["--gpus", "8", "--rollout-time", "321.7"].map(Path::new);
    done(["import".as_ref(), &*file, "--out".as_ref(), &*run].into_iter().chain(how));
    let report = report(&run);
    let found = metrics(&report);
    let perf = agree(found, "perf/", &told["compute_perf_metrics_from_samples"]);
    assert_eq!(perf + agree(found, "rollout/", &told["compute_metrics_from_samples"]), 25);
    for stage in ["prefill/forward_duration", "decode/forward_duration", "decode/transfer_duration"] {
        assert!(found.contains_key(&format!("perf/{stage}/mean")), "{stage}");
    }
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn every_report_of_a_damaged_run_tells_what_could_not_be_read() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../run/tests/data/v1.2");
    let cases: [(&str, &[&str], &str); 5] = [
        ("requests", &[], "a part is damaged and its log is gone"),
        ("requests", &["--sample", "g0/s0"], "a part is damaged and its log is gone"),
        ("requests", &["--json"], "a part is damaged and its log is gone"),
        ("forward_passes", &["--plan"], "a part is damaged and its log is gone"),
        ("manifest", &[], "a manifest is damaged; what it alone names is missing where its log is gone"),
    ];
    for (what, options, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        copy(&sample, dir.path());
        std::fs::remove_dir_all(dir.path().join("log")).unwrap();
        let file = match what {
            "manifest" => dir.path().join("manifest/1.json"),
            table => dir.path().join(format!("steps/step=000001/{table}/gateway-000001.parquet")),
        };
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
        let options = options.iter().map(Path::new);
        let output = rollscope(["report".as_ref(), dir.path()].into_iter().chain(options));
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
        let told = [output.stdout, output.stderr].concat();
        let told = String::from_utf8_lossy(&told);
        assert!(told.contains(words), "{what}: {told}");
    }
}
