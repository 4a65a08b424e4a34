//! Forward passes from the engine's process to what people read: watched, recorded, asked for.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

mod common;

use std::io::{BufRead as _, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use common::{Server, call_with, rollscope, run_well, until};
use serde_json::{Value, json};

const ENGINE: [&str; 6] =
    ["engine", "--model-path", "bundled", "--port", "0", "--enable-forward-pass-metrics"];

/// `rollscope fpm tail --json` in a process of its own; it ends with the test.
struct Tail {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

async fn generate(url: &str, text: &str, tokens: u32, sample: &str) {
    let params = json!({"temperature": 0, "max_new_tokens": tokens, "ignore_eos": true});
    let (url, body) = (format!("{url}/generate"), json!({"text": text, "sampling_params": params}));
    let called = call_with("POST", &url, body.to_string(), &[("x-rollscope-sample", sample)]).await;
    let (status, reply) = called.unwrap();
    assert_eq!(status, 200, "{reply}");
}

fn plan(args: &[&str]) -> Value {
    let printed = run_well(args);
    let plan: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    plan["plan"].clone()
}

#[tokio::test]
async fn passes_are_watched_recorded_and_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let out = out.to_str().unwrap();
    let base = format!("ipc://{}", dir.path().join("fpm").display());
    let engine = Server::start(
        &[&ENGINE[..], &["--forward-pass-metrics-ipc-name", &base, "--forward-pass-metrics-worker-id", "w7"]]
            .concat(),
    );
    let gateway = Server::start(&[
        "gateway",
        "--port",
        "0",
        "--worker-urls",
        &engine.url,
        "--record",
        out,
        "--fpm",
        &base,
    ]);
    let mut tail = Tail::of(&[&base]);
    // From a heartbeat on, nothing is missed.
    tail.until("idle", |message| message["metrics"]["wall_time"] == json!(0.0));
    let recorded = || plan(&["report", out, "--plan", "--json"])[0]["passes"].as_u64().unwrap_or(0);
    until("the gateway listens too", async || {
        generate(&gateway.url, "1+2=?\n", 2, "first").await;
        recorded() > 0
    })
    .await;
    let before = recorded();
    let mut top = rollscope(&["fpm", "top", &base, "--count", "3"]).stdout(Stdio::piped()).spawn().unwrap();
    let planning = [&base[..], "--count", "2", "--interval", "1", "--json"];
    let live = rollscope(&[&["fpm", "plan"], &planning[..]].concat()).stdout(Stdio::piped()).spawn().unwrap();
    for round in 1..=8 {
        generate(&gateway.url, &"1+2=?\n".repeat(round), 12, &format!("r{round}")).await;
    }
    let decoded = tail.until("a pass", |message| {
        message["metrics"]["scheduled_requests"]["num_decode_requests"] == json!(1)
    });
    assert_eq!((&decoded["metrics"]["worker_id"], &decoded["metrics"]["dp_rank"]), (&json!("w7"), &json!(0)));
    assert_eq!(decoded["metrics"]["counter_id"], decoded["sequence"]);
    assert!(top.wait().unwrap().success());
    let mut screen = String::new();
    std::io::Read::read_to_string(top.stdout.as_mut().unwrap(), &mut screen).unwrap();
    assert!(screen.contains("passes/s  idle  lost  restarts\n"), "{screen}");
    assert_eq!(screen.lines().filter(|line| line.starts_with("w7 dp0 ")).count(), 3, "{screen}");
    let live = live.wait_with_output().unwrap();
    assert!(live.status.success());
    assert_eq!(String::from_utf8(live.stdout).unwrap().lines().count(), 2);

    until("the passes are recorded", async || recorded() > before + 8 * 6).await;
    gateway.stop();
    let told = plan(&["report", out, "--plan", "--json"]);
    // The worker's endpoint was given as an address too, and is one.
    assert_eq!(told[0]["ranks"], json!(1), "{told}");
    assert_eq!((&told[0]["kind"], told.as_array().unwrap().len()), (&json!("mixed"), 1), "{told}");
    assert_ne!((&told[0]["fit"], &told[0]["no_fit"]), (&Value::Null, &Value::Null), "{told}");
    let text = run_well(&["report", out, "--plan"]);
    assert!(text.starts_with("mixed: "), "{text}");
    let text = run_well(&["report", out, "--sample", "r8"]);
    assert!(text.contains("forward passes"), "{text}");
}

#[test]
fn an_endpoint_in_use_is_told_aloud() {
    let owner = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("tcp://{}", owner.local_addr().unwrap());
    let args = [&ENGINE[..], &["--forward-pass-metrics-ipc-name", &base, "--exit-on-stdin-close"]].concat();
    let mut engine =
        rollscope(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let ready = BufReader::new(engine.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(ready.starts_with("rollscope engine ready on http://"), "it serves nevertheless: {ready}");
    drop(engine.stdin.take());
    let output = engine.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains(&format!("rollscope: no forward-pass metrics: cannot bind {base}: ")), "{said}");
}

#[tokio::test]
async fn a_publisher_that_is_killed_is_heard_again_and_the_restart_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fpm");
    let base = format!("ipc://{}", path.display());
    let args = [&ENGINE[..], &["--forward-pass-metrics-ipc-name", &base]].concat();
    let mut engine = Server::start(&args);
    let mut tail = Tail::of(&[&base]);
    tail.next();
    generate(&engine.url, "1+2=?\n", 400, "a").await;
    let last = tail.until("the passes", |message| message["sequence"].as_u64() > Some(400));
    assert!(last["arrival"] == "next", "{last}");
    engine.kill();
    assert!(Path::new(&format!("{}.0", path.display())).exists(), "it had no time to tidy up");
    // The one in its place takes the endpoint over.
    let engine = Server::start(&args);
    let first = tail.until("the new one", |message| message["sequence"].as_u64() < Some(400));
    assert_eq!(first["arrival"], "restart", "{first}");
    engine.stop();
    assert!(!Path::new(&format!("{}.0", path.display())).exists(), "a socket is left");
}

// === impl Tail ===

impl Tail {
    fn of(args: &[&str]) -> Self {
        let mut child = rollscope(&[&["fpm", "tail", "--json"], args].concat())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }

    fn until(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let deadline = std::time::Instant::now() + common::PATIENCE;
        loop {
            let message = self.next();
            if is_it(&message) {
                return message;
            }
            // Heartbeats come for as long as the publisher lives.
            assert!(std::time::Instant::now() < deadline, "waited in vain: {what}");
        }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
