//! Forward-pass metrics: what a subscriber hears of what the engine computes.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hyper::http::Method;
use rollscope_config::Published;
use rollscope_engine::Engine;
use rollscope_fpm::{Account, Base, Endpoint, ForwardPassMetrics, Heard, Subscription, What};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::peer::{DONE, PAGES, Peer, ROW};
use crate::support::{PATIENCE, Pair, Server, bootstrap_port, fresh_room, greedy, live, options};

const ON: &str = "--enable-forward-pass-metrics";
const DROPPED: &str = "rollscope_engine_forward_passes_dropped_total{";

/// Hears a server's only rank, losing nothing.
struct Ear {
    heard: mpsc::Receiver<Heard<()>>,
    account: Account,
    _subscription: Subscription<()>,
}

impl Ear {
    async fn of(server: &Server) -> Self {
        let endpoint = endpoint(&server.get("/server_info").await);
        let (tell, heard) = mpsc::channel(64);
        let mut ear = Self {
            heard,
            account: Account::default(),
            _subscription: Subscription::start(endpoint, (), tell),
        };
        // A server at rest sends heartbeats: from the first on, nothing is missed.
        assert!(ear.next().await.is_heartbeat());
        ear
    }

    async fn next(&mut self) -> ForwardPassMetrics {
        loop {
            let heard = timeout(PATIENCE, self.heard.recv()).await.unwrap().unwrap();
            if let What::Message(message) = heard.what {
                self.account.take(message.sequence);
                assert_eq!(self.account.lost, 0);
                return message.metrics.unwrap();
            }
        }
    }

    /// The passes of these numbers.
    async fn passes(&mut self, (first, last): (u64, u64)) -> Vec<ForwardPassMetrics> {
        let mut passes = Vec::new();
        loop {
            let pass = self.next().await;
            let number = pass.counter_id;
            if number >= first {
                passes.push(pass);
            }
            if number == last {
                return passes;
            }
        }
    }
}

fn endpoint(info: &Value) -> Endpoint {
    let base: Base =
        info["internal_states"][0]["forward_pass_metrics_ipc_name"].as_str().unwrap().parse().unwrap();
    base.of_rank(0).unwrap()
}

/// The first and last pass that a reply names.
fn span(reply: &Value) -> (u64, u64) {
    let of = |name: &str| reply["meta_info"][name].as_u64().unwrap();
    (of("forward_pass_first_counter_id"), of("forward_pass_last_counter_id"))
}

fn prompt(tokens: usize, new_tokens: usize) -> Value {
    let ids: Vec<usize> = (0..tokens).map(|index| 5 + index % 10).collect();
    let mut sampling = greedy(new_tokens);
    sampling["ignore_eos"] = json!(true);
    json!({"input_ids": ids, "sampling_params": sampling})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_sits_in_the_passes_that_it_names() {
    let worker = ["--forward-pass-metrics-worker-id", "w7", "--chunked-prefill-size", "16"];
    let server = Server::start(&[&[ON], &worker[..]].concat()).await;
    let info = server.get("/server_info").await;
    // The endpoint that it made up is told in the values in force, and nowhere else.
    let mut top = info.clone();
    let states = top.as_object_mut().unwrap().remove("internal_states").unwrap();
    let made_up = states[0]["forward_pass_metrics_ipc_name"].as_str().unwrap();
    assert_eq!((&info["forward_pass_metrics_ipc_name"], &info["kv_events"]), (&Value::Null, &Value::Null));
    assert!(!top.to_string().contains(made_up), "{top}");
    let log = info["internal_states"][0]["overrides"].as_array().unwrap();
    assert!(log.iter().any(|entry| entry["source"] == "metrics_reporter.ipc_endpoint"), "{log:?}");
    let figures = server.text(Method::GET, "/metrics", "").await.1;
    for name in [DROPPED, "rollscope_engine_forward_pass_subscribers_turned_away_total{"] {
        assert!(figures.lines().any(|line| line.starts_with(name) && line.ends_with("} 0")), "{figures}");
    }
    let mut ear = Ear::of(&server).await;
    let reply = server.generate(&prompt(40, 5)).await;
    assert_eq!(reply["meta_info"]["dp_rank"], 0);
    let passes = ear.passes(span(&reply)).await;
    let of = |read: fn(&ForwardPassMetrics) -> u64| passes.iter().map(read).collect::<Vec<_>>();
    // Three chunks of the prompt, the last of which chooses the first token, then the four others.
    assert_eq!(of(|pass| pass.scheduled.num_prefill_requests), [1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(of(|pass| pass.scheduled.sum_prefill_tokens), [16, 16, 8, 0, 0, 0, 0]);
    assert_eq!(of(|pass| pass.scheduled.sum_prefill_kv_tokens), [0, 16, 32, 0, 0, 0, 0]);
    assert_eq!(of(|pass| pass.scheduled.num_decode_requests), [0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(of(|pass| pass.scheduled.sum_decode_kv_tokens), [0, 0, 0, 41, 42, 43, 44]);
    assert!(passes.iter().all(|pass| &*pass.worker_id == "w7" && pass.dp_rank == 0 && pass.wall_time > 0.0));
    let Endpoint::Ipc(path) = endpoint(&info) else { panic!("not a path") };
    assert!(path.exists());
    drop(server);
    let removed = async {
        while path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, removed).await.expect("the socket's file is left");
}

/// All passes together cannot have taken longer than the requests, which leaves out what lies between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_takes_the_forwards_own_time_and_not_the_gap_before_it() {
    const PREFILL_S: f64 = 0.004;
    const DECODE_S: f64 = 0.002;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("costs.json");
    let prefill = json!({"base_s": PREFILL_S, "per_token_s": 0});
    let decode = json!({"base_s": DECODE_S, "per_request_s": 0, "per_kv_token_s": 0});
    std::fs::write(&path, json!({"prefill": prefill, "decode": decode}).to_string()).unwrap();
    let server = Server::start(&[ON, "--model-path", &format!("sim:{}", path.display())]).await;
    let mut ear = Ear::of(&server).await;
    let begin = Instant::now();
    let (mut paused, mut spans) = (Duration::ZERO, Vec::new());
    for round in 0..4 {
        if round > 0 {
            // Each pause is a gap between two forwards, longer than all of them by their costs.
            let begin = Instant::now();
            tokio::time::sleep(Duration::from_millis(250)).await;
            paused += begin.elapsed();
        }
        spans.push(span(&server.generate(&prompt(8, 5)).await));
    }
    let computing_s = begin.elapsed().as_secs_f64() - paused.as_secs_f64();
    let all = ear.passes((spans[0].0, spans[3].1)).await;
    let passes: Vec<_> = all.iter().filter(|pass| !pass.is_heartbeat()).collect();
    assert_eq!(passes.len(), 4 * 5);
    for pass in &passes {
        let cost = if pass.scheduled.num_prefill_requests > 0 { PREFILL_S } else { DECODE_S };
        // Both are read off one clock, to the nanosecond.
        assert!(pass.wall_time > cost - 1e-6, "shorter than what was computed: {pass:?}");
    }
    let told: f64 = passes.iter().map(|pass| pass.wall_time).sum();
    assert!(told <= computing_s + 1e-6, "{told} s of passes within {computing_s} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_share_a_pass_name_the_same() {
    let server = Server::start(&[ON, "--max-running-requests", "2"]).await;
    let mut ear = Ear::of(&server).await;
    let bodies: Vec<_> = (0..3).map(|index| prompt(8 + index, 30)).collect();
    let replies = join_all(bodies.iter().map(|body| server.generate(body))).await;
    let spans: Vec<_> = replies.iter().map(span).collect();
    let all =
        (spans.iter().map(|span| span.0).min().unwrap(), spans.iter().map(|span| span.1).max().unwrap());
    for pass in ear.passes(all).await {
        let sharing = spans.iter().filter(|(first, last)| (first..=last).contains(&&pass.counter_id)).count();
        let scheduled = pass.scheduled;
        assert_eq!(sharing as u64, scheduled.num_prefill_requests + scheduled.num_decode_requests);
        assert!(sharing <= 2 && pass.queued.num_prefill_requests <= 1, "{pass:?}");
        assert_eq!(pass.queued.num_decode_requests, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_half_of_a_pair_reports_its_own() {
    let pair = Pair::start(&[ON]).await;
    let (mut prefill, mut decode) = tokio::join!(Ear::of(&pair.prefill), Ear::of(&pair.decode));
    let (of_prefill, of_decode) = pair.generate(&prompt(20, 6)).await;
    let passes = prefill.passes(span(&of_prefill)).await;
    assert_eq!(passes.len(), 1);
    assert_eq!((passes[0].scheduled.sum_prefill_tokens, passes[0].scheduled.num_decode_requests), (20, 0));
    // The prefill half has chosen the first token.
    let passes = decode.passes(span(&of_decode)).await;
    let tokens: Vec<_> = passes.iter().map(|pass| pass.scheduled.sum_decode_kv_tokens).collect();
    assert_eq!(tokens, [21, 22, 23, 24, 25]);
    assert!(passes.iter().all(|pass| pass.scheduled.num_prefill_requests == 0));
}

/// On prefill servers prompts wait for their peer, on decode servers sequences for their pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_told_by_the_half_that_it_waits_at() {
    let pair = Pair::start(&[ON]).await;
    let (mut of_prefill, mut of_decode) = tokio::join!(Ear::of(&pair.prefill), Ear::of(&pair.decode));
    // Each half is told of requests that the other is not; of one of decode's the prefill server is nowhere to be found.
    let mut alone = [33, 53, 47, 61].map(|tokens| pair.paired(&prompt(tokens, 4)));
    alone[3]["bootstrap_port"] = json!(1);
    let lonely = async {
        let [one, other, awaited, unplaced] = &alone;
        tokio::join!(
            pair.prefill.generate(one),
            pair.prefill.generate(other),
            pair.decode.generate(awaited),
            pair.decode.generate(unplaced),
        );
        panic!("a request without a peer came to its end");
    };
    let told = async {
        let has = |load: &Value, name, count| load["disaggregation"][name] == json!(count);
        pair.prefill.until("queued", |load| has(load, "prefill_bootstrap_queue_reqs", 2)).await;
        pair.decode.until("queued", |load| has(load, "decode_transfer_queue_reqs", 1)).await;
        pair.decode.until("queued", |load| has(load, "decode_prealloc_queue_reqs", 1)).await;
        let (prefilled, decoded) = pair.generate(&prompt(20, 6)).await;
        (of_prefill.passes(span(&prefilled)).await, of_decode.passes(span(&decoded)).await)
    };
    let (prefills, decodes) = tokio::select! { told = told => told, () = lonely => unreachable!() };
    for pass in prefills {
        let queued = pass.queued;
        assert_eq!((queued.num_prefill_requests, queued.sum_prefill_tokens), (2, 33 + 53), "{pass:?}");
        assert!((queued.var_prefill_length - 100.0).abs() < 1e-9, "{pass:?}");
        assert_eq!((queued.num_decode_requests, queued.sum_decode_kv_tokens), (0, 0), "{pass:?}");
    }
    for pass in decodes {
        let queued = pass.queued;
        assert_eq!((queued.num_prefill_requests, queued.sum_prefill_tokens), (0, 0), "{pass:?}");
        assert_eq!((queued.num_decode_requests, queued.sum_decode_kv_tokens), (2, 47 + 61), "{pass:?}");
        assert!((queued.var_decode_kv_tokens - 49.0).abs() < 1e-9, "{pass:?}");
    }
}

/// Beside those that wait for their peer, prompts wait for room in a step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_waits_for_its_turn_on_a_prefill_server_is_told() {
    let pair = Pair::start_with(&[ON, "--chunked-prefill-size", "16"], &[]).await;
    let mut ear = Ear::of(&pair.prefill).await;
    // Both are there before the first goes on, and a step has room for less than one of them.
    pair.prefill.post("/pause_generation", &json!({"mode": "in_place"})).await;
    let held = async {
        let both = |load: &Value| load["disaggregation"]["prefill_bootstrap_queue_reqs"] == json!(2);
        pair.prefill.until("both are there", both).await;
        pair.prefill.post("/continue_generation", &json!({})).await;
    };
    let lengths = [40, 60];
    let bodies = lengths.map(|tokens| prompt(tokens, 2));
    let ((first, _), (second, _), ()) =
        tokio::join!(pair.generate(&bodies[0]), pair.generate(&bodies[1]), held);
    let spans = [span(&first), span(&second)];
    let is_second = spans[1].0 < spans[0].0;
    let (first, other) = if is_second { (1, 0) } else { (0, 1) };
    let passes = ear.passes((spans[first].0, spans[other].1.max(spans[first].1))).await;
    let scheduled = passes[0].scheduled;
    assert_eq!((scheduled.num_prefill_requests, scheduled.sum_prefill_tokens), (1, 16));
    let queued = passes[0].queued;
    assert_eq!((queued.num_prefill_requests, queued.sum_prefill_tokens), (1, lengths[other] as u64));
    let last = passes.last().unwrap();
    assert_eq!((last.queued.num_prefill_requests, last.queued.num_decode_requests), (0, 0));
}

/// Requests that gave their pages back are in the middle of their replies: they wait to decode, also where nothing else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_retracted_waits_to_decode() {
    const REQUESTS: u64 = 6;
    let tight = ["--max-total-tokens", "512", "--num-reserved-decode-tokens", "0"];
    let server = Server::start(&[&[ON], &tight[..]].concat()).await;
    let mut ear = Ear::of(&server).await;
    server.post("/pause_generation", &json!({"mode": "in_place"})).await;
    let bodies: Vec<_> = (0..REQUESTS).map(|index| prompt(20 + index as usize, 150)).collect();
    let held = async {
        server.until("all are there", |load| live(load) == REQUESTS).await;
        server.post("/continue_generation", &json!({})).await;
    };
    let (replies, ()) = tokio::join!(join_all(bodies.iter().map(|body| server.generate(body))), held);
    let retractions = |reply: &Value| reply["meta_info"]["num_retractions"].as_u64().unwrap();
    assert!(replies.iter().map(retractions).sum::<u64>() > 0);
    let spans: Vec<_> = replies.iter().map(span).collect();
    let all =
        (spans.iter().map(|span| span.0).min().unwrap(), spans.iter().map(|span| span.1).max().unwrap());
    let mut most = 0;
    for pass in ear.passes(all).await {
        let (scheduled, queued) = (pass.scheduled, pass.queued);
        let waiting = queued.num_decode_requests;
        let there = scheduled.num_prefill_requests + scheduled.num_decode_requests + waiting;
        assert!(there + queued.num_prefill_requests <= REQUESTS, "{pass:?}");
        // Each has a prompt and a token of its reply at least.
        assert!(queued.sum_decode_kv_tokens >= 21 * waiting, "{pass:?}");
        most = most.max(waiting);
    }
    assert!(most > 0, "nobody was told to wait");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_expects_a_request_is_at_rest() {
    let prefill = Pair::start_prefill(&[ON]).await;
    let mut ear = Ear::of(&prefill).await;
    let (mut decode, _) = Peer::decode(bootstrap_port(&prefill).await, 0).await;
    let (never, room) = (fresh_room(), fresh_room());
    decode.prepare(never, 1).await;
    decode.prepare(room, 1).await;
    let transfer = async {
        assert_eq!((decode.receive().await.0, decode.receive().await.0), (PAGES, ROW));
        decode.send(DONE, &room.to_le_bytes()).await;
    };
    let mut body = prompt(4, 1);
    body["bootstrap_room"] = json!(room);
    let (reply, ()) = tokio::join!(prefill.generate(&body), transfer);
    ear.passes(span(&reply)).await;
    assert!(ear.next().await.is_heartbeat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_in_a_long_step_does_not_hold_up_what_the_server_tells() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("slow.json");
    let slow = json!({
        "prefill": {"base_s": 5.0, "per_token_s": 0.0},
        "decode": {"base_s": 0.0, "per_request_s": 0.0, "per_kv_token_s": 0.0},
        "context_length": 64,
    });
    std::fs::write(&path, slow.to_string()).unwrap();
    let server = Server::start(&[ON, "--model-path", &format!("sim:{}", path.display())]).await;
    let body = prompt(4, 1);
    let asked = async {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let info = server.get("/server_info").await;
            assert_eq!(info["enable_forward_pass_metrics"], json!(true));
            if info["internal_states"] == json!([]) {
                return;
            }
            assert!(Instant::now() < deadline, "it never answers alone");
        }
    };
    // A request takes longer than an answer without the scheduler, and is followed by another until there was one.
    let keep_busy = async {
        loop {
            server.generate(&body).await;
        }
    };
    tokio::select! { () = asked => {}, () = keep_busy => {} }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_costs_the_metrics_and_not_the_server() {
    let owner = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("tcp://{}", owner.local_addr().unwrap());
    let options = options(&[ON, "--forward-pass-metrics-ipc-name", &base]);
    let engine = Engine::start(Published::publish(options)).await.unwrap();
    assert_eq!(engine.metrics_trouble().unwrap().to_string(), format!("cannot bind {base}"));
    let server = Server::serve(engine).await;
    let info = server.get("/server_info").await;
    let state = &info["internal_states"][0];
    for (name, started, in_force) in [
        ("enable_forward_pass_metrics", json!(true), json!(false)),
        ("forward_pass_metrics_ipc_name", json!(base), Value::Null),
    ] {
        assert_eq!((&info[name], &state[name]), (&started, &in_force));
    }
    let reply = server.generate(&prompt(4, 2)).await;
    assert_eq!(reply["meta_info"].get("forward_pass_first_counter_id"), None);
    assert!(!server.text(Method::GET, "/metrics", "").await.1.contains(DROPPED), "nothing is published");
}

/// A server's ranks publish all or none: half of them would look like all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_of_one_rank_in_use_costs_the_others_theirs() {
    let (base, owner) = loop {
        let owner = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = owner.local_addr().unwrap().port();
        if TcpListener::bind(("127.0.0.1", port - 1)).await.is_ok() {
            break (port - 1, owner);
        }
    };
    let name = format!("tcp://127.0.0.1:{base}");
    let options = options(&[ON, "--dp-size", "2", "--forward-pass-metrics-ipc-name", &name]);
    let engine = Engine::start(Published::publish(options)).await.unwrap();
    let taken = owner.local_addr().unwrap();
    assert_eq!(engine.metrics_trouble().unwrap().to_string(), format!("cannot bind tcp://{taken}"));
    TcpListener::bind(("127.0.0.1", base)).await.expect("the first rank's port is free again");
    let server = Server::serve(engine).await;
    let info = server.get("/server_info").await;
    let states = info["internal_states"].as_array().unwrap();
    assert_eq!(states.len(), 2);
    for state in states {
        let (is_on, base) = (&state["enable_forward_pass_metrics"], &state["forward_pass_metrics_ipc_name"]);
        assert_eq!((is_on, base), (&json!(false), &Value::Null));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_is_told_of_for_as_long_as_it_is_bound() {
    let published = Published::publish(options(&[ON]));
    let engine = Engine::start(published.clone()).await.unwrap();
    let told = || published.observability().forward_pass_metrics_ipc_name.clone();
    let base: Base = told().unwrap().parse().unwrap();
    let Endpoint::Ipc(path) = base.of_rank(0).unwrap() else { panic!("not a path") };
    assert!(path.exists());
    drop(engine);
    assert_eq!((told(), path.exists()), (None, false));
    assert!(!published.overrides().iter().any(|entry| entry.source == "metrics_reporter.ipc_endpoint"));
}
