//! The main job, as a newcomer runs it: the demo's processes, its run, its report.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

mod common;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use common::{
    Server, children_of, command_line, get, is_alive, report, rollscope, run, run_well, stderr, until,
};
use rollscope_run::Run;
use rollscope_trace::{LegRole, Measure, Outcome, Stage, StepNumber, StepTrace};
use serde_json::Value;

const SMALL: [&str; 6] = ["--steps", "2", "--prompts-per-step", "16", "--samples-per-prompt", "4"];

/// One sample, from disk, as text and as JSON.
fn check_sample(out: &Path, sample: &str, names: &[&str]) {
    let run = out.to_str().unwrap();
    let text = run_well(&["report", run, "--step", "1", "--sample", sample]);
    let json: Value =
        serde_json::from_str(&run_well(&["report", run, "--step", "1", "--sample", sample, "--json"]))
            .unwrap();
    let spans = json["samples"][0]["spans"].as_array().unwrap().clone();
    for name in names {
        assert!(text.contains(name), "no {name} in\n{text}");
        assert!(spans.iter().any(|span| span["name"] == *name), "no {name} in {json}");
    }
}

fn demo(mode: &str, out: &Path) -> String {
    let out = out.to_str().unwrap();
    run_well(&[&["demo", "--mode", mode, "--out", out, "--seed", "7"], &SMALL[..]].concat())
}

fn steps(out: &Path) -> Vec<StepTrace> {
    let run = Run::open(out).unwrap();
    [1, 2].map(|step| run.step(StepNumber(step)).unwrap()).to_vec()
}

/// What both modes must show.
fn check_common(printed: &str, out: &Path) {
    // What is said to come next can be run as it stands.
    let (_, told) = printed.rsplit_once("the timeline: ").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_rollscope")).canonicalize().unwrap();
    assert_eq!(told, format!("{} view {}\n", program.display(), out.display()));
    let report = report(out);
    assert_eq!(report["steps"].as_array().unwrap().len(), 2);
    for step in report["steps"].as_array().unwrap() {
        assert_eq!(step["samples"], 64);
        let metric = |name: &str| step["metrics"][name].as_f64().unwrap();
        assert!(metric("rollout/reward/mean") > 0.6, "{}", metric("rollout/reward/mean"));
        // What was started was completed and measured, each at the first try.
        for name in ["count", "completed", "profiled_count"] {
            assert!((metric(&format!("perf/request/{name}")) - 64.0).abs() < 0.5, "{name} in {step}");
        }
        // The printed figures are those of the run directory.
        let mean = metric("rollout/reward/mean");
        assert!(printed.contains(&format!("reward mean {mean:.3}")), "{mean} is not in\n{printed}");
    }
    for step in steps(out) {
        assert_eq!(step.samples.len(), 64);
        for sample in &step.samples {
            assert!(
                sample.mark.reward.is_some() && sample.mark.response_tokens > Some(0),
                "{:?}",
                sample.mark
            );
            assert!(sample.spans.iter().any(|span| &*span.name == "reward"));
            assert!(sample.requests.iter().any(|request| request.outcome == Outcome::Completed));
        }
    }
}

#[test]
fn a_pd_rollout_is_profiled_per_sample() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let printed = demo("pd", &out);
    check_common(&printed, &out);
    for stage in
        ["bootstrap queue", "bootstrap", "alloc wait", "forward", "transfer queue", "prealloc", "transfer"]
    {
        assert!(printed.contains(stage), "no {stage} in\n{printed}");
    }
    let names = ["sglang_pd_prefill", "bootstrap_queue", "sglang_pd_decode", "transfer", "forward", "reward"];
    check_sample(&out, "3/1", &names);
    for request in steps(&out).iter().flat_map(StepTrace::requests) {
        let value = |stage: Stage| request.measure(stage.measure()).unwrap();
        for stage in Stage::ALL {
            assert!(value(stage) >= 0.0);
            let inside: f64 =
                Stage::ALL.iter().filter(|s| s.parent() == Some(stage)).map(|s| value(*s)).sum();
            assert!(inside <= value(stage) + 1e-6, "{stage:?} is shorter than what it contains");
        }
        let (prefill, decode) = (request.prefill().unwrap(), request.answer().unwrap());
        assert_eq!((prefill.role, decode.role), (LegRole::Prefill, LegRole::Decode));
        let on_prefill = value(Stage::PrefillBootstrapQueue) + value(Stage::PrefillForward);
        assert!(on_prefill <= prefill.duration().as_secs_f64());
        let on_decode =
            value(Stage::DecodePrealloc) + value(Stage::DecodeTransfer) + value(Stage::DecodeForward);
        assert!(on_decode <= decode.duration().as_secs_f64());
        for measure in [Measure::TransferSpeed, Measure::TransferTotal] {
            assert!(request.measure(measure).unwrap() > 0.0);
        }
    }
}

#[test]
fn a_unified_rollout_is_profiled_per_sample() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let printed = demo("unified", &out);
    check_common(&printed, &out);
    check_sample(&out, "3/1", &["sglang_generate", "queue", "prefill", "decode", "reward"]);
    for request in steps(&out).iter().flat_map(StepTrace::requests) {
        assert_eq!(request.legs.iter().map(|leg| leg.role).collect::<Vec<_>>(), [LegRole::Regular]);
        assert!(Stage::ALL.iter().all(|stage| request.measure(stage.measure()).is_none()));
        for measure in [Measure::QueueTime, Measure::E2eLatency, Measure::DecodeThroughput] {
            assert!(request.measure(measure).unwrap() >= 0.0);
        }
    }
}

/// Trackers of the rollout get what the gateway has computed, each step as it ends.
#[test]
fn a_rollout_sends_the_numbers_of_its_steps_to_trackers_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (recorded, out, lines) = (path("run"), path("out"), path("lines.jsonl"));
    let engine = Server::start(&["engine", "--model-path", "bundled", "--port", "0"]);
    let gateway =
        Server::start(&["gateway", "--worker-urls", &engine.url, "--port", "0", "--record", &recorded]);
    let target = format!("jsonl:{lines}");
    let rollout = ["rollout", "--url", &gateway.url, "--steps", "2", "--max-new-tokens", "4"];
    let small = ["--prompts-per-step", "2", "--samples-per-prompt", "2"];
    let tracked = ["--track", &target, "--track", "wandb:p/n", "--out", &out];
    run_well(&[&rollout[..], &small, &tracked].concat());

    let sent = |file: &str| -> Vec<Value> {
        std::fs::read_to_string(file)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let steps = |lines: &[Value]| lines.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>();
    let (computed, arrived) = (sent(&format!("{recorded}/metrics.jsonl")), sent(&lines));
    assert_eq!(steps(&arrived), [1, 2]);
    for arrived in &arrived {
        // A further line of the step has what came after its end.
        let computed = computed.iter().find(|line| line["step"] == arrived["step"]).unwrap();
        let numbers = |line: &Value| line["data"].as_object().unwrap().clone();
        assert!(numbers(arrived).len() > 100);
        assert!(numbers(computed).keys().eq(numbers(arrived).keys()));
        for (name, value) in numbers(computed) {
            let (value, there) = (value.as_f64().unwrap(), arrived["data"][&name].as_f64().unwrap());
            assert!((value - there).abs() <= 1e-12 * value.abs(), "{name}: {value}, {there}");
        }
    }
    // Nothing of what the servers' endpoints have is among it.
    let pages = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let page =
            async |path: &str| get(&format!("{}{path}", gateway.url)).await.1.as_str().unwrap().to_owned();
        [page("/metrics").await, page("/engine_metrics").await]
    });
    let series = pages.iter().flat_map(|page| page.lines()).filter(|line| !line.starts_with('#'));
    let series: Vec<&str> = series.filter_map(|line| line.split(['{', ' ']).next()).collect();
    assert!(series.contains(&"rollscope_requests_total"), "{series:?}");
    for name in arrived.iter().flat_map(|line| line["data"].as_object().unwrap().keys()) {
        assert!(["perf/", "rollout/", "eval/"].iter().any(|kind| name.starts_with(kind)), "{name}");
        assert!(!series.iter().any(|series| !series.is_empty() && name.contains(series)), "{name}");
    }
    assert_eq!(std::fs::read_dir(format!("{out}/wandb")).unwrap().count(), 1);
    // What a tracker lacks is made up for from the rollout's own folder, as from a run's.
    let told = run_well(&["track", &out, "--to", &format!("jsonl:{}", path("later.jsonl"))]);
    assert!(told.starts_with("2 steps sent"), "{told}");
    // A step that is gone on with has other numbers, which are sent as well.
    run_well(&[&rollout[..], &small, &tracked].concat());
    assert_eq!(steps(&sent(&lines)), [1, 2, 1, 2]);
}

#[test]
fn a_rollout_can_send_no_numbers_that_nobody_computes() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let gateway = Server::start(&["gateway", "--port", "0"]);
    let rollout = ["rollout", "--url", &gateway.url, "--track", "jsonl:lines.jsonl"];
    for (further, reason) in
        [(&[][..], "--track needs --out"), (&["--out", out.to_str().unwrap()], "a gateway that records")]
    {
        let refused = run(&[&rollout[..], further].concat());
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr(&refused).contains(reason), "{}", stderr(&refused));
    }
    assert!(!out.exists());
}

/// A demo that rolls out for longer than any test waits, and its three children.
async fn long_demo(out: &Path) -> (Child, Vec<u32>, BufReader<std::process::ChildStderr>) {
    let mut demo = rollscope(&["demo", "--out", out.to_str().unwrap(), "--steps", "100000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(demo.stderr.take().unwrap());
    let mut line = String::new();
    let mut gateway = None;
    while !line.starts_with("step 1:") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the demo ended");
        gateway = gateway.or_else(|| Some(line.strip_prefix("gateway on ")?.split(',').next()?.to_owned()));
    }
    let metrics = format!("{}/metrics", gateway.unwrap());
    until("a request is over", async || {
        let page = get(&metrics).await.1;
        let name = "rollscope_requests_total{outcome=\"completed\"} ";
        page.as_str().unwrap().lines().any(|line| line.strip_prefix(name).is_some_and(|count| count != "0"))
    })
    .await;
    let children = children_of(demo.id());
    assert_eq!(children.len(), 3);
    (demo, children, said)
}

async fn all_end(demo: &mut Child, children: &[u32]) -> std::process::ExitStatus {
    until("the demo ends", async || demo.try_wait().unwrap().is_some()).await;
    until("its children end", async || !children.iter().any(|pid| is_alive(*pid))).await;
    demo.wait().unwrap()
}

#[tokio::test]
async fn ctrl_c_stops_every_process_and_keeps_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let (mut demo, children, said) = long_demo(&out).await;
    common::signal(demo.id(), "-INT");
    assert_eq!(all_end(&mut demo, &children).await.code(), Some(1));
    let words: Vec<_> = said.lines().map(Result::unwrap).collect();
    assert!(
        words.last().unwrap().starts_with("rollscope: interrupted; what was recorded is in "),
        "{words:?}"
    );
    assert!(report(&out)["steps"][0]["metrics"]["perf/request/count"].as_f64() > Some(0.0));
}

#[tokio::test]
async fn a_child_that_dies_ends_the_demo_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let (mut demo, children, said) = long_demo(&out).await;
    let decode = children.iter().find(|pid| command_line(**pid).contains("--disaggregation-mode decode"));
    common::signal(*decode.unwrap(), "-KILL");
    assert_eq!(all_end(&mut demo, &children).await.code(), Some(1));
    let words: Vec<_> = said.lines().map(Result::unwrap).collect();
    assert!(words.last().unwrap().starts_with("rollscope: decode ended (signal: 9"), "{words:?}");
}

#[tokio::test]
async fn a_demo_that_is_killed_leaves_no_process_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (mut demo, children, _said) = long_demo(&dir.path().join("run")).await;
    common::signal(demo.id(), "-KILL");
    all_end(&mut demo, &children).await;
}

#[test]
fn a_folder_that_is_not_empty_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("mine.txt"), "x").unwrap();
    let output = run(&["demo", "--out", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("is not empty; --out wants a fresh folder"), "{}", stderr(&output));
}
