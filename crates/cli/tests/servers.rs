//! Servers as separate processes: failures in mid-flight, and bad input.

mod common;

use std::path::{Path, PathBuf};

use common::{Server, call, call_with, get, is_alive, post, run, run_well, signal, stderr, until};
use rollscope_run::Run;
use rollscope_testkit::{Client, End, FakeWorker, Gate, Script};
use rollscope_trace::{Attr, StepNumber};
use serde_json::{Value, json};
use tokio::net::TcpStream;

const ENGINE: [&str; 5] = ["engine", "--model-path", "bundled", "--port", "0"];

/// A run as an earlier version recorded it, with losses, a late request and a sample that was retried.
const OLD_RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../run/tests/data/v1");

fn engine(more: &[&str]) -> Server {
    Server::start(&[&ENGINE[..], more].concat())
}

/// Prefill engine, decode engine, gateway.
async fn pair() -> (Server, Server, Server) {
    let prefill = engine(&["--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0"]);
    let decode = engine(&["--disaggregation-mode", "decode"]);
    let info = get(&format!("{}/server_info", prefill.url)).await.1;
    let bootstrap = info["internal_states"][0]["disaggregation_bootstrap_port"].to_string();
    let gateway = Server::start(&[
        "gateway",
        "--port",
        "0",
        "--pd-disaggregation",
        "--prefill",
        &prefill.url,
        &bootstrap,
        "--decode",
        &decode.url,
    ]);
    (prefill, decode, gateway)
}

fn greedy(text: &str, max_new_tokens: u32) -> Value {
    let params =
        json!({"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": max_new_tokens > 64});
    json!({"text": text, "sampling_params": params, "return_logprob": true})
}

#[tokio::test]
async fn a_decode_engine_that_dies_fails_its_requests_only() {
    let (_prefill, mut decode, gateway) = pair().await;
    let generate = format!("{}/generate", gateway.url);
    let (status, reply) = post(&generate, &greedy("20+22=?\n", 64)).await;
    assert_eq!((status, &reply["text"]), (200, &json!("20+22=42\n#42")));

    let live: Vec<_> = (0..8)
        .map(|_| {
            let url = generate.clone();
            tokio::spawn(async move { call("POST", &url, greedy("1+2=?\n", 1900).to_string()).await })
        })
        .collect();
    let loads = format!("{}/v1/loads", decode.url);
    until("the requests decode", async || get(&loads).await.1["loads"][0]["num_running_reqs"] == json!(8))
        .await;
    let port = decode.port().to_owned();
    decode.kill();
    for request in live {
        // Nothing of the reply was sent yet, so that each of them gets a status and a sentence.
        let (status, reply) = request.await.unwrap().unwrap();
        assert!((500..600).contains(&status), "{status} {reply}");
        assert!(!reply["error"]["message"].as_str().unwrap().is_empty());
    }
    let (status, reply) = post(&generate, &greedy("3+4=?\n", 64)).await;
    assert!((500..600).contains(&status), "{status} {reply}");

    let _decode =
        Server::start(&[&ENGINE[..3], &["--port", &port, "--disaggregation-mode", "decode"]].concat());
    // So many failures have opened the breaker of the process that died; the next check finds another in its place.
    until("the new engine serves", async || {
        let (status, reply) = post(&generate, &greedy("3+4=?\n", 64)).await;
        (status, &reply["text"]) == (200, &json!("3+4=7\n#7"))
    })
    .await;
}

#[tokio::test]
async fn a_host_may_be_given_as_urls_have_it() {
    if std::net::TcpListener::bind(("::1", 0)).is_err() {
        return; // a machine without IPv6
    }
    let bootstrap = ["--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0"];
    for host in ["::1", "[::1]"] {
        let engine = engine(&[&["--host", host][..], &bootstrap].concat());
        let gateway = ["gateway", "--port", "0", "--prometheus-port", "0", "--prometheus-host", host];
        let gateway = Server::start(&[&gateway[..], &["--host", host]].concat());
        let view = Server::start(&["view", OLD_RUN, "--no-open", "--listen", "[::1]:0"]);
        for (server, path) in [(&engine, "/health"), (&gateway, "/liveness"), (&view, "/")] {
            assert!(server.url.starts_with("http://[::1]:"), "{}", server.url);
            assert_eq!(get(&format!("{}{path}", server.url)).await.0, 200, "{host}: {path}");
        }
    }
    for host in ["[", "[::1", "[]"] {
        assert_ne!(run(&["gateway", "--port", "0", "--host", host]).status.code(), Some(0), "{host}");
    }
}

#[tokio::test]
async fn pd_and_unified_say_the_same() {
    let (_prefill, _decode, pd) = pair().await;
    let engine = engine(&[]);
    let unified = Server::start(&["gateway", "--port", "0", "--worker-urls", &engine.url]);
    for text in ["1+1=?\n", "99+98+97+96=?\n", "5+60+7=?\n"] {
        let ask = async |server: &Server| post(&format!("{}/generate", server.url), &greedy(text, 64)).await;
        let ((status, alone), (pd_status, paired)) = (ask(&unified).await, ask(&pd).await);
        assert_eq!((status, pd_status), (200, 200), "{alone} {paired}");
        assert_eq!(alone["output_ids"], paired["output_ids"]);
        assert_eq!(alone["text"], paired["text"]);
        for key in ["input_token_logprobs", "output_token_logprobs"] {
            let logprobs = |reply: &Value| reply["meta_info"][key].as_array().unwrap().clone();
            let (alone, paired) = (logprobs(&alone), logprobs(&paired));
            assert_eq!(alone.len(), paired.len(), "{key}");
            for (a, b) in alone.iter().zip(&paired) {
                assert_eq!(a[1], b[1]);
                let difference = a[0].as_f64().unwrap_or(0.0) - b[0].as_f64().unwrap_or(0.0);
                assert!(difference.abs() < 1e-4, "{key}: {a} {b}");
            }
        }
    }
}

#[tokio::test]
async fn servers_end_orderly_when_told() {
    let (prefill, decode, gateway) = pair().await;
    gateway.stop();
    decode.stop();
    prefill.stop();
}

#[tokio::test]
async fn a_live_stream_ends_whole_though_the_gateway_is_told_to_end() {
    let (gate, worker) = (Gate::new(), FakeWorker::start().await);
    let last = r#"{"meta_info":{"finish_reason":{"type":"stop"}}}"#;
    worker.on("/generate", Script::sse().event("{}").wait(&gate).event(last).event("[DONE]").end());
    let gateway =
        Server::start(&["gateway", "--port", "0", "--worker-urls", &worker.url(), "--disable-health-check"]);
    let address = gateway.url.trim_start_matches("http://").parse().unwrap();
    let mut reply = Client::post(address, "/generate", r#"{"stream":true}"#).await;
    assert_eq!(reply.next().await.unwrap(), "data: {}\n\n");
    signal(gateway.pid(), "-TERM");
    until("the gateway takes no more", async || TcpStream::connect(address).await.is_err()).await;
    gate.open();
    assert_eq!(reply.rest().await, (format!("data: {last}\n\ndata: [DONE]\n\n"), End::Clean));
    assert_eq!(gateway.exit_code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_does_not_wait_for_what_is_live() {
    let dir = tempfile::tempdir().unwrap();
    let costs = dir.path().join("slow.json");
    let slow = json!({
        "prefill": {"base_s": 0.001, "per_token_s": 0.0},
        "decode": {"base_s": 1.0, "per_request_s": 0.0, "per_kv_token_s": 0.0},
        "context_length": 8192,
    });
    std::fs::write(&costs, slow.to_string()).unwrap();
    let engine =
        Server::start(&["engine", "--port", "0", "--model-path", &format!("sim:{}", costs.display())]);
    let gateway = Server::start(&["gateway", "--port", "0", "--worker-urls", &engine.url]);
    let generate = format!("{}/generate", gateway.url);
    let live = tokio::spawn(async move { call("POST", &generate, greedy("a", 4000).to_string()).await });
    let loads = format!("{}/v1/loads", engine.url);
    until("the request runs", async || get(&loads).await.1["loads"][0]["num_running_reqs"] == json!(1)).await;
    // Two that come at once are one, hence again and again.
    until("the gateway ends", async || {
        if is_alive(gateway.pid()) {
            signal(gateway.pid(), "-TERM");
        }
        !is_alive(gateway.pid())
    })
    .await;
    assert_eq!(gateway.exit_code(), Some(1));
    assert!(live.await.unwrap().is_err(), "the request was cut");
}

/// The files of a directory, and of those in it.
#[expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]
fn files_of(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_of(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn texts_are_on_disk_only_where_they_were_asked_for() {
    const ASKED: &str = "what is 918273+645546=";
    let engine = engine(&[]);
    let dir = tempfile::tempdir().unwrap();
    for is_recorded in [true, false] {
        let out = dir.path().join(is_recorded.to_string());
        let recording =
            ["gateway", "--port", "0", "--worker-urls", &engine.url, "--record", out.to_str().unwrap()];
        let more: &[&str] = if is_recorded { &["--record-text"] } else { &[] };
        let gateway = Server::start(&[&recording[..], more].concat());
        let headers = [("x-rollscope-step", "1"), ("x-rollscope-sample", "s")];
        let body = greedy(ASKED, 4).to_string();
        let called = call_with("POST", &format!("{}/generate", gateway.url), body, &headers).await;
        let (status, reply) = called.unwrap();
        assert_eq!(status, 200, "{reply}");
        gateway.stop();
        let step = Run::open(&out).unwrap().step(StepNumber(1)).unwrap();
        let attrs = &step.samples[0].requests[0].attrs;
        let named: Vec<&str> = attrs.iter().map(|(name, _)| &**name).collect();
        let holds = |path: &PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap()).contains(ASKED);
        assert_eq!(files_of(&out).iter().any(holds), is_recorded);
        if !is_recorded {
            assert!(named.is_empty(), "{named:?}");
            continue;
        }
        assert_eq!(named, ["prompt_text", "output_text", "output_token_logprobs"]);
        assert_eq!(attrs[0].1, Attr::from(ASKED));
        assert_eq!(attrs[1].1, Attr::from(reply["text"].as_str().unwrap()));
        let Attr::Text(tokens) = &attrs[2].1 else { panic!("{attrs:?}") };
        let tokens: Value = serde_json::from_str(tokens).unwrap();
        assert_eq!(tokens, reply["meta_info"]["output_token_logprobs"]);
        let told = run_well(&["report", out.to_str().unwrap(), "--step", "1", "--sample", "s"]);
        assert!(told.contains(ASKED), "{told}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_may_open_as_many_files_as_the_system_allows() {
    let gateway = Server::start_with_few_files(&["gateway", "--port", "0"]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gateway.pid())).unwrap();
    let files: Vec<&str> = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(files[0], files[1], "the soft limit is the hard one: {limits}");
    gateway.stop();
}

#[test]
fn a_limit_of_open_files_that_can_not_be_raised_is_told_by_what_it_is_enough_for() {
    let told = "rollscope: the process may open no more than 1000 files, which is enough for 250 requests at once: raise the \
                system's limit (ulimit -Hn, LimitNOFILE=)";
    for (more, expected) in [(&[][..], 1), (&["--max-concurrent-requests", "250"], 0)] {
        let gateway = Server::start_limited("ulimit -n 1000", &[&["gateway", "--port", "0"], more].concat());
        let said = gateway.stop_and_hear();
        assert_eq!(said.lines().filter(|line| *line == told).count(), expected, "{said}");
        assert_eq!(said.matches("open no more than").count(), expected, "{said}");
    }
}

#[tokio::test]
async fn bad_input_gives_one_sentence_and_the_right_code() {
    let taken = engine(&[]);
    let dir = tempfile::tempdir().unwrap();
    let not_a_run = dir.path().to_str().unwrap();
    let port_taken = ["engine", "--model-path", "bundled", "--port", taken.port()];
    let gateway_taken = ["gateway", "--worker-urls", &taken.url, "--port", taken.port()];
    let fresh = dir.path().join("fresh");
    let recording =
        ["gateway", "--record", fresh.to_str().unwrap(), "--worker-urls", "not a url", "--port", "0"];
    let from_step = |step| ["rollout", "--url", "http://127.0.0.1:1", "--first-step", step];
    let (overflow, beyond) = (from_step("18446744073709551614"), from_step("9007199254740992"));
    let goes_beyond = from_step("9007199254740991");
    let typo = dir.path().join("typo.toml");
    std::fs::write(&typo, "[gateway]\nprot = 1\n").unwrap();
    let typo = ["gateway", "--config", typo.to_str().unwrap()];
    let listening = ["gateway", "--record", fresh.to_str().unwrap(), "--fpm", "nonsense", "--port", "0"];
    let cases: [(&[&str], i32, &str); 23] = [
        (&listening, 2, "neither ipc://PATH nor tcp://HOST:PORT: nonsense"),
        (&["gateway", "--fpm", "ipc:///a", "--port", "0"], 2, "--fpm is of use with --record only"),
        (&["gateway", "--record-text", "--port", "0"], 2, "--record-text needs --record"),
        (&["fpm", "tail"], 2, "nothing to watch: give a BASE or --server URL"),
        (&["fpm", "top", "--server", &taken.url], 1, "it publishes no forward-pass metrics"),
        (&typo, 2, "typo.toml: unknown option: gateway.prot (did you mean port?)"),
        (&["engine", "--config", "/no/such.toml"], 2, "cannot read the configuration file /no/such.toml: "),
        (&overflow, 2, "--first-step"),
        (&beyond, 2, "--first-step"),
        (&goes_beyond, 2, "--first-step and --steps lead to a step that is none, got 9007199254741000"),
        (&recording, 2, "not a url"),
        (&["view", OLD_RUN, "--no-open", "--listen", "nonsense"], 2, "cannot listen on nonsense"),
        (&["report", OLD_RUN, "--step", "99"], 1, "no step 99 in "),
        (&["report", OLD_RUN, "--sample", "g9/s9"], 1, "no sample g9/s9 in "),
        (&["engine", "--model-path", "/no/such/dir", "--port", "0"], 2, "/no/such/dir"),
        (&port_taken, 1, "cannot listen on 127.0.0.1:"),
        (&gateway_taken, 1, "cannot listen on 127.0.0.1:"),
        (&["gateway", "--worker-urls", "not a url"], 2, "not a url"),
        (&["report", "/no/such/run"], 1, "/no/such/run"),
        (&["report", not_a_run], 1, not_a_run),
        (&["view", "/no/such/run", "--no-open"], 1, "/no/such/run"),
        (&["rollout", "--url", "http://127.0.0.1:1", "--prompts", "/no/such/file"], 2, "/no/such/file"),
        (&["rollout", "--url", "http://127.0.0.1:1", "--attempts", "1"], 1, "every sample failed"),
    ];
    for (args, code, words) in cases {
        let output = run(args);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.starts_with("rollscope: ") && last.contains(words), "{args:?}: {said}");
    }
    assert!(!fresh.exists(), "what cannot be served is not recorded");
    let (status, reply) = post(&format!("{}/generate", taken.url), &json!({"text": 5})).await;
    assert_eq!(status, 400, "{reply}");
    assert!(reply["error"]["message"].as_str().unwrap().contains("text"), "{reply}");
}

#[tokio::test]
async fn a_server_takes_its_options_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fleet.toml");
    std::fs::write(&file, "[engine]\nmodel_path = 'bundled'\nport = 0\nserved-model-name = 'from a file'\n")
        .unwrap();
    let file = file.to_str().unwrap();
    let engine = Server::start(&["engine", "--config", file, "--weight-version", "from-a-flag"]);
    let info = get(&format!("{}/server_info", engine.url)).await.1;
    assert_eq!(info["served_model_name"], "from a file", "{info}");
    assert_eq!(info["weight_version"], "from-a-flag", "{info}");
    let shown = run_well(&["config", "show", "--json", "engine", "--config", file, "--weight-version", "7"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["served_model_name"]["source"], format!("engine.served-model-name in {file}"));
    assert_eq!(
        shown["weight_version"],
        json!({"value": "7", "source": "--weight-version", "namespace": "model"})
    );
    assert_eq!(shown["page_size"]["source"], "default");
    // What is shown for people is such a file.
    let shown = run_well(&["config", "show", "engine", "--config", file, "--weight-version", "7"]);
    let again = dir.path().join("again.toml");
    std::fs::write(&again, shown).unwrap();
    let engine = Server::start(&["engine", "--config", again.to_str().unwrap()]);
    let info = get(&format!("{}/server_info", engine.url)).await.1;
    assert_eq!((&info["served_model_name"], &info["weight_version"]), (&json!("from a file"), &json!("7")));
}

#[test]
fn an_old_run_is_reported_with_what_it_lacks() {
    let text = run_well(&["report", OLD_RUN]);
    let (lost, steps) = text.split_once("\n\n").unwrap();
    assert!(
        lost.starts_with("dropped and missing from these numbers: 2 requests, 1 spans and marks\n"),
        "{text}"
    );
    assert!(steps.starts_with("step 1: 4 samples, ") && steps.contains("\nstep 2: 2 samples, "), "{text}");
    let one = run_well(&["report", OLD_RUN, "--step", "2"]);
    assert!(one.contains("\n\nstep 2: ") && !one.contains("step 1"), "{one}");
    let json: Value = serde_json::from_str(&run_well(&["report", OLD_RUN, "--json"])).unwrap();
    let counts: Vec<_> =
        json["steps"].as_array().unwrap().iter().map(|step| &step["metrics"]["perf/request/count"]).collect();
    assert_eq!(counts, [&json!(4.0), &json!(2.0)]);
    assert_eq!(json["dropped"], json!({"requests": 2, "user_records": 1}));
    for writer in json["writers"].as_array().unwrap() {
        let (name, interrupted) = (writer["name"].as_str().unwrap(), writer["state"] == "interrupted");
        assert_eq!(text.contains(&format!("{name} was interrupted")), interrupted, "{text}");
    }
}
