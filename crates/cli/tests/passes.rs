//! Forward passes from the engine's process to what people read: watched, recorded, asked for.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use common::{PATIENCE, Server, call_with, get, rollscope, run, run_well, stderr, stdout, until};
use parking_lot::Mutex;
use rollscope_fpm::{Base, Pass, Publisher, QueuedRequests, ScheduledRequests};
use rollscope_run::{LogOptions, LogWriter, Run, RunInfo};
use rollscope_trace::{
    ForwardPass, Join, Leg, LegRole, Nanos, PassLoad, Profile, Record, Report, RequestId, Scalar, StepNumber,
    UnixNs, WorkerRef,
};
use serde_json::{Value, json};

const ENGINE: [&str; 6] =
    ["engine", "--model-path", "bundled", "--port", "0", "--enable-forward-pass-metrics"];

/// `rollscope fpm tail --json` in a process of its own; it ends with the test.
struct Tail {
    child: Child,
    lines: Receiver<String>,
}

/// A server that tells where it publishes; its URL, and what it tells: the base of each state.
fn telling(base: &str) -> (String, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let told = Arc::new(Mutex::new(base.to_owned()));
    let tells = Arc::clone(&told);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            drop(stream.read(&mut [0; 4096]));
            let state = |base: &str| json!({"enable_forward_pass_metrics": true, "forward_pass_metrics_ipc_name": base});
            let states: Vec<_> = tells.lock().split(' ').map(state).collect();
            let body = json!({"internal_states": states}).to_string();
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            // Whoever has asked may be gone.
            drop(stream.write_all((head + &body).as_bytes()));
        }
    });
    (url, told)
}

fn publisher(base: &Base, rank: u32) -> Publisher {
    Publisher::bind(&base.of_rank(rank).unwrap(), "w", rank).unwrap()
}

async fn generate(url: &str, text: &str, tokens: u32, sample: &str) {
    let params = json!({"temperature": 0, "max_new_tokens": tokens, "ignore_eos": true});
    let (url, body) = (format!("{url}/generate"), json!({"text": text, "sampling_params": params}));
    let called = call_with("POST", &url, body.to_string(), &[("x-rollscope-sample", sample)]).await;
    let (status, reply) = called.unwrap();
    assert_eq!(status, 200, "{reply}");
}

/// A run whose steps 3 and 4 overlap, of a server whose two ranks are workers of their own.
fn overlapping(dir: &Path) -> (Run, LogWriter) {
    const S: u64 = 1_000_000_000;
    let worker = |url: String| WorkerRef { instance: url.clone().into(), url: url.into() };
    let request = |id, (step, sample): (u64, &str), rank: u32, (start, end): (u64, u64), (first, last)| {
        let told = [("forward_pass_first_counter_id", first), ("forward_pass_last_counter_id", last)];
        let leg = Leg {
            report: Report::from_pairs(told.map(|(name, number)| (name, Scalar::Number(number)))),
            ..Leg::new(
                LegRole::Regular,
                worker(format!("http://h:1@{rank}")),
                Nanos(0),
                Nanos((end - start) * S),
            )
        };
        let join = Join { step: Some(StepNumber(step)), sample: Some(sample.into()), ..Join::default() };
        let profile =
            Profile::new(RequestId(id), UnixNs(0).after(Nanos(start * S)), Nanos((end - start) * S));
        Record::Profile(Box::new(Profile { join, legs: vec![leg], ..profile }))
    };
    let pass = |step: u64, dp_rank, number: u64| {
        Record::ForwardPass(Box::new(ForwardPass {
            step: Some(StepNumber(step)),
            worker: Some(worker("http://h:1".to_owned())),
            dp_rank,
            wall: Nanos(S / 10),
            scheduled: PassLoad { decode_requests: 2, ..PassLoad::default() },
            ..ForwardPass::new("ipc://h.0", number, UnixNs(0).after(Nanos(number * S)))
        }))
    };
    let info = RunInfo { producer: "test".to_owned(), created: UnixNs(0), config: Value::Null };
    let run = Run::create(dir, &info).unwrap();
    let mut log = run.writer("gateway", LogOptions::default()).unwrap();
    // As soon as a request of step 4 is live, all passes stand with it; #19 is lost, and what comes after #21 is of others.
    let in_three = (10..=12).map(|number| pass(3, 1, number));
    let in_four = [13, 14, 15, 16, 17, 18, 20, 21, 30].map(|number| pass(4, 1, number));
    let of_other_rank = (10..=21).map(|number| pass(4, 0, number));
    let in_five = [40, 41].map(|number| pass(5, 1, number));
    let requests = [
        request(1, (3, "quick"), 1, (9, 12), (10.0, 11.0)),
        request(2, (4, "next"), 1, (13, 18), (13.0, 17.0)),
        request(3, (4, "other"), 0, (13, 18), (13.0, 17.0)),
        request(4, (3, "slow"), 1, (9, 22), (10.0, 22.0)),
        request(5, (5, "later"), 1, (39, 42), (40.0, 41.0)),
    ];
    for record in in_three.chain(in_four).chain(of_other_rank).chain(in_five).chain(requests) {
        log.append(&record).unwrap();
    }
    log.flush().unwrap();
    (run, log)
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
    until("a screen has the rank", async || {
        let screens = run_well(&["fpm", "top", &base, "--count", "2"]);
        assert_eq!(screens.matches("passes/s  idle  messages  lost  restarts\n").count(), 2, "{screens}");
        screens.lines().any(|line| line.starts_with("w7 dp0 "))
    })
    .await;
    let live = live.wait_with_output().unwrap();
    assert!(live.status.success());
    assert_eq!(String::from_utf8(live.stdout).unwrap().lines().count(), 2);

    until("the passes are recorded", async || recorded() > before + 8 * 6).await;
    let passes_of = |sample: &str| {
        let told: Value =
            serde_json::from_str(&run_well(&["report", out, "--sample", sample, "--json"])).unwrap();
        told["samples"][0]["forward_passes"][0].clone()
    };
    let is_whole = |found: &Value| found["not_found"] == json!(0) && found["told"].as_u64() >= Some(12);
    until("every pass of the last request is there", async || is_whole(&passes_of("r8"))).await;
    gateway.stop();
    let found = passes_of("r8");
    assert_eq!((&found["exact"], &found["basis"]), (&json!(true), &json!("exact")), "{found}");
    assert!(is_whole(&found) && found["told"] == json!(found["passes"].as_array().unwrap().len()), "{found}");
    let computed = |name: &str| {
        let passes = found["passes"].as_array().unwrap();
        passes.iter().map(|pass| pass[name].as_u64().unwrap()).sum::<u64>()
    };
    // It was alone, and its first token is chosen with its prompt.
    assert_eq!(computed("decode_requests"), 11, "{found}");
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

/// Each of its schedulers has an endpoint, at a base that the server has made up.
#[tokio::test]
async fn all_ranks_of_a_server_are_found_and_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run").display().to_string();
    let engine = Server::start(&[&ENGINE[..], &["--dp-size", "2"]].concat());
    let gateway = Server::start(&["gateway", "--port", "0", "--worker-urls", &engine.url, "--record", &out]);
    let recorded = || {
        let run = Run::open(Path::new(&out)).unwrap();
        let steps = run.steps().unwrap().into_iter();
        steps.flat_map(|step| run.forward_passes(step.step).unwrap()).collect::<Vec<_>>()
    };
    until("passes of both ranks", async || {
        generate(&gateway.url, "1+2=?\n", 4, "a").await;
        let ranks: Vec<_> = recorded().iter().map(|pass| pass.dp_rank).collect();
        ranks.contains(&0) && ranks.contains(&1)
    })
    .await;
    gateway.stop();
    for pass in recorded() {
        assert_eq!(pass.worker.as_ref().map(|worker| &*worker.url), Some(&*engine.url), "{pass:?}");
        assert!(pass.endpoint.ends_with(&format!(".{}", pass.dp_rank)), "{pass:?}");
    }
    assert_eq!(plan(&["report", &out, "--plan", "--json"])[0]["ranks"], json!(2));
}

/// A server that tells of each rank by a base of its own, in whatever order.
#[test]
fn a_rank_is_where_its_socket_is_and_not_where_its_state_stands() {
    let bases = [Base::fresh(), Base::fresh()];
    let [first, second] = bases.each_ref().map(ToString::to_string);
    let (url, told) = telling(&format!("{second} {first}"));
    let [one, mut other] = [publisher(&bases[0], 0), publisher(&bases[1], 1)];
    let endpoints = [0, 1].map(|rank: u32| json!(bases[rank as usize].of_rank(rank).unwrap().to_string()));
    let mut tail = Tail::of(&["--server", &url]);
    for endpoint in &endpoints {
        tail.until("each rank", |message| message["endpoint"] == *endpoint);
    }
    // One is started anew, and the server tells the same in another order: the other is heard as before.
    *told.lock() = format!("{first} {second}");
    for _ in 0..=100 {
        other.publish(Pass::default());
    }
    // From here on a smaller number is a restart.
    tail.until("its hundredth message", |message| {
        message["endpoint"] == endpoints[1] && message["sequence"].as_u64() >= Some(100)
    });
    drop(other);
    let _anew = publisher(&bases[1], 1);
    let mut arrivals = Vec::new();
    tail.until("the one that was started anew", |message| {
        arrivals.push((message["endpoint"].clone(), message["arrival"].clone()));
        message["endpoint"] == endpoints[1] && message["arrival"] == "restart"
    });
    tail.until("the other, after it", |message| {
        arrivals.push((message["endpoint"].clone(), message["arrival"].clone()));
        message["endpoint"] == endpoints[0]
    });
    let of_one = arrivals.iter().filter(|(endpoint, _)| *endpoint == endpoints[0]);
    assert!(of_one.clone().all(|(_, arrival)| arrival == "next"), "{arrivals:?}");
    drop(one);
}

/// What a look tells of passes that lie on a line.
#[test]
fn a_live_plan_tells_the_line_that_passes_lie_on() {
    let base = Base::fresh();
    let mut publisher = publisher(&base, 0);
    let mut plan = Tail::running(&["fpm", "plan", "--interval", "1", "--json", &base.to_string()]);
    let line = |tokens: u64| 4e-3 + 25e-6 * tokens as f64;
    let told = plan.until("a look at many passes", |told| {
        for tokens in (100..2100).step_by(100) {
            let scheduled = ScheduledRequests {
                num_prefill_requests: 1,
                sum_prefill_tokens: tokens,
                ..ScheduledRequests::default()
            };
            let queued = QueuedRequests {
                num_prefill_requests: 1,
                sum_prefill_tokens: 950,
                ..QueuedRequests::default()
            };
            publisher.publish(Pass { wall_time: line(tokens), scheduled, queued });
        }
        told["plan"][0]["passes"].as_u64() >= Some(40)
    });
    let told = &told["plan"][0];
    assert_eq!((&told["kind"], &told["ranks"], &told["itl_s"]), (&json!("prefill"), &json!(1), &Value::Null));
    let fit = &told["fit"];
    for (found, expected) in [
        (&fit["coefficients_s"]["prefill_tokens"], 25e-6),
        (&fit["intercept_s"], 4e-3),
        (&fit["r_squared"], 1.0),
    ] {
        let found = found.as_f64().unwrap();
        assert!((found - expected).abs() <= 1e-5 * expected, "{found} is not {expected}: {told}");
    }
    // What waits and a prompt of average length: more than the line's begin, and two of the longest prompts at most.
    let ttft_s = told["ttft_s"].as_f64().unwrap();
    assert!((line(950 + 100)..=line(2000) * 2.0).contains(&ttft_s), "{told}");
}

#[test]
fn a_request_that_outlasts_its_step_has_its_passes_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let (run, log) = overlapping(&path);
    for name in ["logged", "sealed"] {
        let args = ["report", path.to_str().unwrap(), "--sample", "slow"];
        let text = run_well(&args);
        for told in [
            "forward passes on http://h:1@1: 11, ",
            "(#10 to #21)",
            "  2 of the 13 numbers that the worker told were not found; at least 1 of them were passes\n",
            "  shared with next of step 4 (5), quick (2)\n",
        ] {
            assert!(text.contains(told), "{name}: {told}\n{text}");
        }
        let json: Value = serde_json::from_str(&run_well(&[&args[..], &["--json"]].concat())).unwrap();
        let found = &json["samples"][0]["forward_passes"][0];
        let told = ["exact", "told", "not_found", "lost_at_least"].map(|key| found[key].clone());
        assert_eq!(told, [json!(true), json!(13), json!(2), json!(1)], "{name}: {found}");
        let shared = &found["shared"][0];
        let told = ["step", "sample", "passes"].map(|key| shared[key].clone());
        assert_eq!(told, [json!(4), json!("next"), json!(5)], "{name}: {found}");
        run.sealer("gateway").seal(log.position()).unwrap();
    }
}

#[test]
fn an_endpoint_in_use_is_told_aloud() {
    let owner = TcpListener::bind("127.0.0.1:0").unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_makes_up_another_endpoint_was_started_anew() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run").display().to_string();
    let mut engine = Server::start(&ENGINE);
    let (url, address) = relay(engine.port()).await;
    let gateway = Server::start(&["gateway", "--port", "0", "--worker-urls", &url, "--record", &out]);
    let mut tail = Tail::of(&["--server", &url]);
    let made_up = async |engine: &Server| {
        let info = get(&format!("{}/server_info", engine.url)).await.1;
        let base = info["internal_states"][0]["forward_pass_metrics_ipc_name"].as_str().unwrap().to_owned();
        format!("{base}.0")
    };
    let recorded_at = async |endpoint: &str| {
        let params = json!({"temperature": 0, "max_new_tokens": 4});
        let body = json!({"text": "1+2=?\n", "sampling_params": params}).to_string();
        let headers = [("x-rollscope-step", "1"), ("x-rollscope-sample", "a")];
        // While nobody is behind the address it is refused.
        drop(call_with("POST", &format!("{}/generate", gateway.url), body, &headers).await);
        let passes = Run::open(Path::new(&out)).unwrap().forward_passes(StepNumber(1)).unwrap();
        passes.iter().any(|pass| &*pass.endpoint == endpoint)
    };
    let first = made_up(&engine).await;
    assert_eq!(tail.next()["endpoint"], json!(first));
    until("its passes are recorded", async || recorded_at(&first).await).await;
    engine.kill();
    let engine = Server::start(&ENGINE);
    let second = made_up(&engine).await;
    engine.port().clone_into(&mut address.lock());
    let anew = tail.until("the new one", |message| message["endpoint"] == json!(second));
    assert_eq!(anew["arrival"], "restart", "{anew}");
    until("the new one's passes are recorded", async || recorded_at(&second).await).await;
    let page = get(&format!("{}/metrics", gateway.url)).await.1;
    let page = page.as_str().unwrap();
    for told in ["restarts_total 1", "messages_missing_total 0"] {
        assert!(page.contains(&format!("\nrollscope_forward_pass_{told}\n")), "{told}: {page}");
    }
    gateway.stop();
    let passes = Run::open(Path::new(&out)).unwrap().forward_passes(StepNumber(1)).unwrap();
    let mut lives: Vec<_> =
        passes.iter().map(|pass| (&*pass.endpoint, pass.life, pass.lost_before)).collect();
    lives.dedup();
    assert_eq!(lives, [(&*first, 0, 0), (&*second, 1, 0)]);
}

/// An address whose owner may change: what comes is passed on to the port that is set at the time.
async fn relay(port: &str) -> (String, Arc<Mutex<String>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let address = Arc::new(Mutex::new(port.to_owned()));
    let to = Arc::clone(&address);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let port = to.lock().clone();
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(format!("127.0.0.1:{port}")).await?;
                tokio::io::copy_bidirectional(&mut stream, &mut server).await
            });
        }
    });
    (url, address)
}

#[test]
fn a_server_that_publishes_elsewhere_is_found_again_and_so_is_a_rank_that_comes_late() {
    let (one, other) = (Base::fresh(), Base::fresh());
    let (url, told) = telling(&one.to_string());
    let first = publisher(&one, 0);
    let mut tail = Tail::of(&["--server", &url]);
    let from = |base: &Base, rank| base.of_rank(rank).unwrap().to_string();
    tail.until("the server", |message| message["endpoint"] == json!(from(&one, 0)));
    // It is started anew, and has made up another endpoint.
    *told.lock() = other.to_string();
    let _second = publisher(&other, 0);
    drop(first);
    let anew =
        tail.until("the server's new endpoint", |message| message["endpoint"] == json!(from(&other, 0)));
    assert_eq!(anew["arrival"], "restart", "{anew}");

    let mut tail = Tail::of(&[&one.to_string()]);
    let mut late = publisher(&one, 1);
    tail.until("the second rank", |message| {
        late.publish(Pass::default());
        message["endpoint"] == json!(from(&one, 1))
    });
}

#[tokio::test]
async fn what_keeps_passes_from_being_recorded_is_told_once_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    // Nobody publishes at the one, and whoever does at the other speaks something else.
    let nobody = format!("ipc://{}", path("nobody"));
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let wrong = format!("tcp://{}", web.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in web.incoming() {
            let mut stream = stream.unwrap();
            // Closed with something unread, the connection might be reset before the answer is there.
            drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
            while matches!(stream.read(&mut [0; 256]), Ok(1..)) {}
        }
    });
    let run = path("run");
    let args = ["gateway", "--port", "0", "--record", &run, "--fpm", &nobody, &wrong];
    let gateway = Server::start(&args);
    let metrics = format!("{}/metrics", gateway.url);
    let lost = "rollscope_forward_pass_publishers_lost_total ";
    until("both are counted", async || {
        let page = call_with("GET", &metrics, String::new(), &[]).await.unwrap().1;
        let page = page.as_str().unwrap().to_owned();
        assert!(page.contains("\nrollscope_forward_pass_messages_total 0\n"), "{page}");
        let count = page.lines().find_map(|line| line.strip_prefix(lost)?.parse::<u64>().ok());
        count.is_some_and(|count| count >= 2)
    })
    .await;
    let said = gateway.stop_and_hear();
    for told in [
        format!("rollscope: no forward passes from {nobody}.0: connection failed: No such file or directory"),
        format!("rollscope: no forward passes from {wrong}: not a ZeroMQ 3 peer without security"),
    ] {
        assert_eq!(said.matches(&told).count(), 1, "{told}\n{said}");
    }
}

#[tokio::test]
async fn no_password_in_a_url_is_printed_or_stored() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run").display().to_string();
    let of = |kind: &str| format!("{kind}http://me:PassWord@127.0.0.1:1");
    let (plain, mlflow) = (of(""), of("mlflow:"));
    let config = dir.path().join("fleet.toml").display().to_string();
    std::fs::write(&config, format!("[gateway]\nworker_urls = [\"{plain}\"]\n")).unwrap();
    // What a file has is no argument, and only the option's own check knows that it is wrong.
    let path = dir.path().join("path.toml").display().to_string();
    let slashed = "http://me:a/PassWord#b@127.0.0.1:1";
    std::fs::write(&path, format!("[gateway]\nhealth_check_endpoint = \"{slashed}\"\n")).unwrap();
    for (code, args) in [
        (1, &["fpm", "tail", "--server", &plain][..]),
        (2, &["fpm", "tail", &plain]),
        (2, &["gateway", "--worker-urls", &plain]),
        (2, &["gateway", "--config", &config]),
        (2, &["gateway", "--config", &path]),
        (2, &["config", "show", "gateway", "--config", &path]),
        (2, &["gateway", "--port", &plain]),
        (2, &["gateway", "--track", &plain, "--record", &run_dir]),
        (0, &["config", "show", "gateway", "--track", &mlflow, "--record", &run_dir]),
        (0, &["config", "show", "--json", "gateway", "--track", &mlflow, "--record", &run_dir]),
        (2, &["report", "run", &plain]),
        (1, &["report", &plain]),
    ] {
        let output = run(args);
        let printed = stdout(&output) + &stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {printed}");
        assert!(!printed.contains("PassWord"), "{args:?}: {printed}");
        assert!(printed.contains("http://<redacted>@127.0.0.1:1"), "{args:?}: {printed}");
    }
    let gateway = Server::start(&["gateway", "--port", "0", "--record", &run_dir, "--track", &mlflow]);
    let workers = format!("{}/workers", gateway.url);
    let (status, reply) = call_with("POST", &workers, json!({"url": plain}).to_string(), &[]).await.unwrap();
    let told = reply.to_string();
    assert!(status == 400 && !told.contains("PassWord") && told.contains("<redacted>@127.0.0.1"), "{told}");
    let said = gateway.stop_and_hear();
    assert!(!said.contains("PassWord"), "{said}");
    let stored = std::fs::read_to_string(dir.path().join("run/run.json")).unwrap();
    assert!(stored.contains("mlflow:http://<redacted>@127.0.0.1:1"), "{stored}");
    let output = run(&["track", &run_dir, "--to", &mlflow]);
    let printed = stdout(&output) + &stderr(&output);
    assert!(!output.status.success() && !printed.contains("PassWord"), "{printed}");
    assert!(printed.contains("mlflow:http://<redacted>@127.0.0.1:1"), "{printed}");
}

#[test]
fn what_cannot_be_meant_is_a_usage_error() {
    let long = "x".repeat(70_000);
    for (args, why) in [
        (
            &["report", "run", "--plan", "--sample", "1"][..],
            "reports of their own, give one: --plan, --sample",
        ),
        (
            &["report", "run", "--plan", "--against", "other"],
            "reports of their own, give one: --plan, --against",
        ),
        (
            &["report", "run", "--sample", "1", "--against", "other"],
            "reports of their own, give one: --sample, --against",
        ),
        (&["report", "run", "--against-step", "1"], "--against-step needs --against"),
        (
            &["fpm", "tail", "--server", "notaurl"],
            "not the URL of a server, which is http://HOST:PORT: notaurl",
        ),
        (
            &["fpm", "top", "--server", "https://h:1"],
            "not the URL of a server, which is http://HOST:PORT: https://h:1",
        ),
        (&["fpm", "plan", "notaurl"], "neither ipc://PATH nor tcp://HOST:PORT: notaurl"),
        (&["fpm", "tail"], "nothing to watch: give a BASE or --server URL"),
        (&["gateway", "--worker-urls", "notaurl"], "in brackets: notaurl"),
        (
            &["gateway", "--record", "run", "--fpm", "notaurl"],
            "neither ipc://PATH nor tcp://HOST:PORT: notaurl",
        ),
        (
            &["rollout", "--url", "notaurl", "--prompts", "bundled"],
            "not an http:// address of a gateway: notaurl",
        ),
        (
            &["config", "show", "gateway", "--control-plane-api-keys", "nonsense"],
            "--control-plane-api-keys must look like ID:NAME:ROLE:KEY",
        ),
        (
            &["config", "show", "gateway", "--prefill", "http://h"],
            "--prefill and --decode need --pd-disaggregation",
        ),
        (
            &["import", "x.pt", "--out", "run", "--step", "9007199254740992"],
            "a whole number in 0..=9007199254740991",
        ),
        (&["config", "docs", "nonsense"], "no command of that name, which is one of demo, gateway, "),
        (
            &["engine", "--model-path", "bundled", "--forward-pass-metrics-worker-id", &long],
            "has 70000 bytes, and 256 at most are allowed",
        ),
    ] {
        let output = run(args);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}{said}", stdout(&output));
        assert_eq!(stdout(&output), "", "{args:?}");
        assert!(said.contains(why), "{args:?}: {said}");
    }
    for args in [&["config", "show", "fpm", "tail"][..], &["config", "show", "fpm-tail"]] {
        assert!(run_well(args).starts_with("# rollscope fpm tail\n[fpm_tail]\n"));
    }
    for args in
        [&["config", "docs", "fpm", "tail"][..], &["config", "docs", "fpm tail"], &["config", "docs", "fpm"]]
    {
        assert!(run_well(args).contains("\n## rollscope fpm tail\n"));
    }
}

// === impl Tail ===

impl Tail {
    fn of(args: &[&str]) -> Self {
        Self::running(&[&["fpm", "tail", "--json"], args].concat())
    }

    /// Whatever command prints JSON line by line.
    fn running(args: &[&str]) -> Self {
        let mut child = rollscope(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = sync_channel(1024);
        std::thread::spawn(move || {
            // It goes on reading until nobody wants to know.
            stdout.lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        Self { child, lines }
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.recv_timeout(PATIENCE).unwrap()).unwrap()
    }

    fn until(&mut self, what: &str, mut is_it: impl FnMut(&Value) -> bool) -> Value {
        let deadline = std::time::Instant::now() + PATIENCE;
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
