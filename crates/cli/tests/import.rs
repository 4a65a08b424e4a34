//! What `import` takes once, takes late, leaves out and refuses, by the real program.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{report, run, run_well, stderr};
use serde_json::{Value, json};

fn dump(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/data").join(name)
}

fn import(out: &Path, files: &[&Path], more: &[&str]) -> Output {
    let files: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
    run(&[&["import", "--out", out.to_str().unwrap()], &files[..], more].concat())
}

fn metrics(run: &Path) -> Value {
    report(run)["steps"][0]["metrics"].clone()
}

/// A dump as JSON, of one line.
fn as_json(dump: &Path, to: &Path) -> Value {
    run_well(&["export", dump.to_str().unwrap(), "--to", "slime-json", to.to_str().unwrap()]);
    serde_json::from_slice(&fs::read(to).unwrap()).unwrap()
}

#[test]
fn what_is_given_twice_counts_once_and_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let turns = dump("turns.pt");
    let json = as_json(&turns, &path("turns.jsonl"));
    fs::copy(&turns, path("copy.pt")).unwrap();
    symlink(&turns, path("link.pt")).unwrap();
    // Equal, and in one file; the members of the second stand in another order, with spaces between them.
    let spaced = json.to_string().replacen("{\"", "{ \"", 1);
    fs::write(path("twice.jsonl"), format!("{json}\n{spaced}\n{json}\n")).unwrap();
    // Two dumps of one rollout that are not equal are its parts.
    let samples = json["samples"].as_array().unwrap();
    for (name, part) in [("first.jsonl", &samples[..2]), ("second.jsonl", &samples[2..])] {
        let mut dump = json.clone();
        dump["samples"] = part.into();
        fs::write(path(name), dump.to_string()).unwrap();
    }
    let requests = |count: u32| {
        let line = |number: u32| {
            let parameters = format!("{{\"rid\": \"r{number}\"}}");
            json!({"request_parameters": parameters, "e2e_latency": 1.5, "request_received_ts": 1_790_000_000.5})
        };
        (0..count).map(|number| line(number).to_string()).collect::<Vec<_>>().join("\n")
    };
    fs::write(path("requests.jsonl"), requests(4)).unwrap();
    fs::write(path("overlap.jsonl"), requests(4).lines().skip(2).collect::<Vec<_>>().join("\n")).unwrap();
    fs::write(path("requests_twice.jsonl"), [requests(4), requests(4)].join("\n")).unwrap();
    let span = r#"{"type":"span","step":0,"sample":"a","name":"reward","start":1790000000,"end":1790000001}"#;
    let mark = r#"{"type":"sample","step":0,"sample":"a","reward":1}"#;
    let other = mark.replace("\"reward\":1", "\"reward\":0");
    fs::write(path("own.jsonl"), [span, mark].join("\n")).unwrap();
    // What is known of a sample may be told again with a meaning.
    fs::write(path("own_twice.jsonl"), [span, mark, span, &other, mark].join("\n")).unwrap();

    let turns = turns.to_str().unwrap();
    let is_same = "is the same as";
    let twice = "are there twice and count once";
    let known = "records were there already";
    for (once, files, told) in [
        (turns, &[turns, turns][..], is_same),
        (turns, &[turns, "copy.pt"], is_same),
        (turns, &[turns, "link.pt"], is_same),
        (turns, &["turns.jsonl", turns], known),
        (turns, &["twice.jsonl"], twice),
        (turns, &["first.jsonl", "second.jsonl"], ""),
        (turns, &["first.jsonl", "second.jsonl", turns], known),
        ("requests.jsonl", &["requests_twice.jsonl"], twice),
        ("requests.jsonl", &["requests.jsonl", "overlap.jsonl"], known),
        ("requests.jsonl", &["overlap.jsonl", "requests.jsonl"], known),
        ("own.jsonl", &["own_twice.jsonl"], twice),
        ("own.jsonl", &["own.jsonl", "own_twice.jsonl"], known),
    ] {
        let out = tempfile::tempdir().unwrap();
        let (one, many) = (out.path().join("one"), out.path().join("many"));
        let output = import(&one, &[&path(once)], &[]);
        assert!(output.status.success(), "{}", stderr(&output));
        let files: Vec<PathBuf> = files.iter().map(|name| path(name)).collect();
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let output = import(&many, &files, &[]);
        assert!(output.status.success(), "{files:?}: {}", stderr(&output));
        assert_eq!(metrics(&many), metrics(&one), "{files:?}");
        assert_eq!(report(&many)["steps"][0]["samples"], report(&one)["steps"][0]["samples"], "{files:?}");
        let note = stderr(&output);
        assert!(note.contains(told), "{files:?}: {note}");
        assert_eq!(note.lines().count() == 1, told.is_empty(), "{files:?}: {note}");
    }
}

#[test]
fn the_end_of_a_step_that_is_there_already_is_told_late_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let (run, turns) = (dir.path().join("run"), dump("turns.pt"));
    assert!(import(&run, &[&turns], &[]).status.success());
    let number = |name: &str| {
        let stats: Value =
            serde_json::from_slice(&fs::read(run.join("steps/step=000000/stats.json")).unwrap()).unwrap();
        let of_stats = stats["metrics"][name].clone();
        assert_eq!(metrics(&run).get(name).cloned().unwrap_or_default(), of_stats, "{name}");
        of_stats.as_f64()
    };
    assert_eq!(number("perf/tokens_per_gpu_per_sec"), None);
    let tokens = number("perf/tokens_per_sec").unwrap() * number("perf/rollout_time").unwrap();
    for (more, seconds, gpus) in [
        (&["--gpus", "8"][..], None, 8.0),
        (&["--rollout-time", "321.5"], Some(321.5), 8.0),
        (&["--rollout-time", "20", "--gpus", "2"], Some(20.0), 2.0),
        // Told once, it stays where nothing else is told.
        (&[], Some(20.0), 2.0),
    ] {
        let output = import(&run, &[&turns], more);
        assert!(output.status.success(), "{}", stderr(&output));
        let seconds = seconds.unwrap_or_else(|| number("perf/rollout_time").unwrap());
        assert_eq!(number("perf/rollout_time"), Some(seconds), "{more:?}");
        let rate = number("perf/tokens_per_gpu_per_sec").unwrap();
        assert!((rate * seconds * gpus / tokens - 1.0).abs() < 1e-9, "{more:?}: {rate}");
    }
}

#[test]
fn a_trace_that_cannot_be_read_is_told_counted_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (run, file, again) =
        (dir.path().join("run"), dir.path().join("dump.jsonl"), dir.path().join("again.jsonl"));
    // Without ids of its own each is named by where its sample stands.
    let trace = |version: u32, events: Value| json!({"version": version, "trace_id": "t", "events": events});
    let event = |kind: &str, ts: Value| json!({"type": kind, "name": "reward", "ts": ts, "span_id": "s"});
    let good = json!([event("span_start", json!(1.79e9)), event("span_end", json!(1.790_000_001e9))]);
    let traces = [
        (json!(null), false),
        (json!({}), false),
        (trace(1, good.clone()), false),
        (trace(2, good.clone()), true),
        (trace(1, json!("no list")), true),
        (json!("a text"), true),
        (json!([1]), true),
        (trace(1, json!([event("span_start", json!("now"))])), true),
        (trace(1, json!([event("span_start", json!(1.79e9)), event("span_stop", json!(1.79e9))])), true),
        (trace(1, json!([event("span_start", json!(1e300))])), true),
    ];
    let expected = traces.iter().filter(|(_, is_unreadable)| *is_unreadable).count();
    let samples: Vec<Value> = traces
        .iter()
        .enumerate()
        .map(|(index, (trace, _))| json!({"index": index, "group_index": 0, "reward": 1.0, "trace": trace}))
        .collect();
    fs::write(&file, json!({"rollout_id": 0, "samples": samples}).to_string()).unwrap();
    let output = import(&run, &[&file], &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let told = format!("{expected} samples have a trace that cannot be read, wholly or in part");
    assert!(stderr(&output).contains(&told), "{}", stderr(&output));
    assert_eq!(metrics(&run)["perf/anomaly/unreadable"], expected as f64);
    let read = run_well(&["report", file.to_str().unwrap(), "--json"]);
    assert!(read.contains(&format!("\"perf/anomaly/unreadable\":{expected}.0")), "{read}");
    // As it was, it goes on to whoever can read it.
    let written = as_json(&run, &again);
    let samples = written["samples"].as_array().unwrap();
    for (index, (trace, _)) in traces.iter().enumerate().skip(3) {
        assert!(samples.iter().any(|sample| sample["trace"] == *trace), "{index}: {trace}");
    }
}

#[test]
fn what_is_refused_is_told_by_its_member_and_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file.jsonl");
    let first = "{\"type\":\"sample\",\"step\":1,\"sample\":\"a\"}\n";
    for (line, told) in [
        (
            "{\"rollout_id\":-1,\"samples\":[{}]}",
            "`rollout_id` is -1, and a whole number from 0 to 2^53 - 1 is wanted",
        ),
        ("{\"rollout_id\":9007199254740993,\"samples\":[{}]}", "`rollout_id` is 9007199254740993, "),
        ("{\"rollout_id\":18446744073709551615,\"samples\":[{}]}", "`rollout_id` is 18446744073709551615, "),
        ("{\"rollout_id\":\"one\",\"samples\":[{}]}", "`rollout_id` is \"one\", "),
        ("{\"rollout_id\":1.5,\"samples\":[{}]}", "`rollout_id` is 1.5, "),
        ("{\"rollout_id\":[],\"samples\":[{}]}", "`rollout_id` is a list, "),
        ("{\"samples\":[{}]}", "no dump of a rollout, it has no rollout_id"),
        ("{\"rollout_id\":1,\"samples\":{}}", "`samples` is a dictionary, and a list is wanted"),
        ("{\"rollout_id\":1,\"samples\":[{},5]}", "`samples[1]` is 5, and a sample's dictionary is wanted"),
        (
            "{\"rollout_id\":1,\"samples\":[{\"reward\":NaN}]}",
            "`reward` is NaN, and a number or null is wanted",
        ),
        ("{\"type\":\"sample\",\"step\":1,\"sample\":\"a\",\"reward\":-Infinity}", "`reward` is -Infinity, "),
        ("{\"type\":\"sample\",\"step\":1,\"sample\":\"a\",\"reward\":\"high\"}", "`reward` is \"high\", "),
        (
            "{\"type\":\"sample\",\"step\":-1,\"sample\":\"a\"}",
            "`step` is -1, and a step below 2^53 is wanted",
        ),
        ("{\"type\":\"span\",\"step\":1,\"sample\":\"a\",\"name\":\"n\"}", "`start` is missing"),
        ("{\"step\":1}", "`type` is missing"),
        ("{\"request_parameters\":\"{}\"}", "neither `request_received_ts` nor `request_finished_ts`"),
    ] {
        fs::write(&file, format!("{first}{line}\n")).unwrap();
        let output = import(&dir.path().join("run"), &[&file], &[]);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{line}: {error}");
        assert!(error.contains(told), "{line}: {error}");
        assert!(
            error.contains("in line 2 (byte ") && error.contains(file.to_str().unwrap()),
            "{line}: {error}"
        );
    }
}

/// What each series has.
const STATISTICS: [&str; 8] = ["mean", "median", "max", "min", "std", "p90", "p99", "count"];

#[test]
fn every_promised_key_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (run, more, exam) =
        (dir.path().join("run"), dir.path().join("more.jsonl"), dir.path().join("exam.jsonl"));
    let turns = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/slime_turns_64.pt");
    let sample = |index: u32, score: f64| {
        json!({
            "index": 900 + index, "group_index": 900, "status": "completed", "response": "a", "response_length": 100_000,
            "loss_mask": [1, 1], "reward": {"score": score, "cat": "timeout"}, "non_generation_time": 0.5,
            "spec_info": {"spec_accept_token_num": 3, "spec_draft_token_num": 6, "spec_verify_ct": 2, "completion_token_num": 5},
            "rollout_top_p_token_offsets": [0, 2, 5],
        })
    };
    fs::write(&more, json!({"rollout_id": 0, "samples": [sample(0, 0.0), sample(1, 0.0)]}).to_string())
        .unwrap();
    let of_exam = |sample: u32| {
        json!({"type": "sample", "step": 0, "group": "e", "sample": sample, "dataset": "aime", "reward": 1.0,
            "truncated": false, "response_tokens": 9})
        .to_string()
    };
    fs::write(&exam, [of_exam(1), of_exam(2)].join("\n")).unwrap();
    let how = ["--gpus", "8", "--rollout-time", "321.7", "--reward-key", "score", "--category-key", "cat"];
    let output = import(&run, &[&turns, &more, &exam], &how);
    assert!(output.status.success(), "{}", stderr(&output));
    let found = metrics(&run);
    let stages = [
        ("prefill", &["bootstrap_queue", "bootstrap", "alloc_wait", "forward", "transfer_queue"][..]),
        ("decode", &["prealloc", "bootstrap", "alloc_wait", "transfer", "forward"]),
    ];
    let stages = stages
        .into_iter()
        .flat_map(|(side, stages)| stages.iter().map(move |stage| format!("perf/{side}/{stage}_duration")));
    let series = [
        "perf/request/e2e_latency",
        "perf/request/queue_time",
        "perf/decode/throughput",
        "perf/prefill/transfer_speed_gb_s",
        "perf/prefill/transfer_total_mb",
        "perf/prefill/retry_count",
        "rollout/reward",
        "rollout/response_len",
        "eval/aime/response_len",
    ];
    let series = series.map(str::to_owned).into_iter().chain(stages);
    let of_series = series.flat_map(|name| STATISTICS.map(|statistic| format!("{name}/{statistic}")));
    let single = [
        "perf/request/count",
        "perf/request/profiled_count",
        "perf/rollout_time",
        "perf/tokens_per_gpu_per_sec",
        "perf/effective_tokens_per_gpu_per_sec",
        "perf/longest_sample_tokens_per_sec",
        "perf/longest_effective_sample_tokens_per_sec",
        "perf/longest_sample_tokens_per_sec_without_non_generation",
        "perf/longest_effective_sample_tokens_per_sec_without_non_generation",
        "perf/longest_sample_non_generation_time",
        "perf/non_generation_time/mean",
        "perf/tail/share",
        "perf/retries",
        "perf/wasted_tokens",
        "perf/worker/stragglers",
        "perf/anomaly/not_finite",
        "rollout/truncated_ratio",
        "rollout/repetition_frac",
        "rollout/zero_std/count",
        "rollout/zero_std/count_0.0",
        "rollout/prefix_cache_hit_rate",
        "rollout/avg_cached_tokens_per_sample",
        "rollout/top_p_kept_vocab_per_token",
        "rollout/spec_accept_rate",
        "rollout/spec_accept_length",
        "rollout/error_cat/timeout",
        "rollout/pass@1",
        "rollout/weight_version/spread",
        "eval/aime",
        "eval/aime-truncated_ratio",
    ];
    let promised = of_series.chain(single.map(str::to_owned));
    let missing: Vec<String> = promised.filter(|name| found[name].is_null()).collect();
    assert!(missing.is_empty(), "{missing:?} of {:?}", found.as_object().unwrap().keys());
}
