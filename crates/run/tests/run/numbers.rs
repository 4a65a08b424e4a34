//! stats.json and metrics.jsonl.

use std::collections::BTreeSet;
use std::fs;

use rollscope_trace::StepNumber;
use serde_json::{Map, Value, json};

use crate::make::run;

fn map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other}"),
    }
}

#[test]
fn stats_are_replaced_and_metrics_appended_when_they_have_changed() {
    let (_dir, run) = run();
    let step = StepNumber(3);
    assert_eq!(run.stats(step).unwrap(), None);
    for value in [0.1 + 0.2, 2.0] {
        let stats = map(json!({"perf/request/e2e_latency/mean": value}));
        run.put_stats(step, &stats).unwrap();
        assert_eq!(run.stats(step).unwrap(), Some(stats));
    }
    let mut metrics = run.metrics_log();
    for (step, value, is_new) in [
        (step, 1.5, true),
        (step, 1.5, false),
        (StepNumber(4), 3.5, true),
        (step, 2.5, true),
        (step, 1.5, true),
    ] {
        assert_eq!(metrics.append(step, &map(json!({"a": value}))).unwrap(), is_new, "{step:?} {value}");
    }
    let text = fs::read_to_string(run.dir().join("metrics.jsonl")).unwrap();
    let line = |step: u64, value: f64| format!("{{\"step\":{step},\"data\":{{\"a\":{value}}}}}\n");
    assert_eq!(text, [line(3, 1.5), line(4, 3.5), line(3, 2.5), line(3, 1.5)].concat());
    let times: Vec<_> = run.metrics().unwrap().iter().map(|sent| (sent.step.0, sent.time)).collect();
    assert_eq!(times, [(3, 1), (4, 1), (3, 2), (3, 3)]);
    assert!(run.dir().join("steps/step=000003/stats.json").is_file());
}

#[test]
fn a_line_cut_by_a_crash_costs_itself_alone() {
    let (_dir, run) = run();
    fs::write(run.dir().join("metrics.jsonl"), "{\"step\":1,\"data\":{}}\n{\"step\":2,\"da").unwrap();
    let mut metrics = run.metrics_log();
    assert!(!metrics.append(StepNumber(1), &Map::new()).unwrap());
    assert!(metrics.append(StepNumber(2), &map(json!({"a": 1.0}))).unwrap());
    let steps: Vec<_> =
        run.metrics().unwrap().into_iter().map(|sent| (sent.step.0, sent.data.len())).collect();
    assert_eq!(steps, [(1, 0), (2, 1)]);
}

#[test]
fn of_two_that_append_the_same_one_does() {
    let (_dir, run) = run();
    let mut both = [run.metrics_log(), run.metrics_log()];
    for step in 0..10 {
        let first = step as usize % 2;
        for sender in [first, 1 - first] {
            let sent = both[sender].append(StepNumber(step), &map(json!({"of": step}))).unwrap();
            assert_eq!(sent, sender == first, "step {step}");
        }
    }
    let of: Vec<_> = run.metrics().unwrap().iter().map(|sent| sent.data["of"].clone()).collect();
    assert_eq!(of, (0..10).collect::<Vec<_>>());
}

/// A folder where the first step's numbers are to be.
#[test]
fn numbers_that_cannot_be_read_keep_no_others_from_being_made_up() {
    let (_dir, run) = run();
    for step in 1..=3 {
        run.put_stats(StepNumber(step), &map(json!({"metrics": {"a": step}}))).unwrap();
    }
    let unreadable = run.dir().join("steps/step=000001/stats.json");
    fs::remove_file(&unreadable).unwrap();
    fs::create_dir(&unreadable).unwrap();
    let mut made_up = BTreeSet::new();
    assert!(run.metrics_log().make_up(&mut made_up).unwrap_err().to_string().contains("step=000001"));
    assert_eq!(made_up, [2, 3].map(StepNumber).into());
    assert_eq!(run.metrics().unwrap().len(), 2);
}
