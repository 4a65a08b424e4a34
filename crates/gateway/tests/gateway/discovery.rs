//! Workers that a file or a name tells of, and what workers say of their load.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use http::Method;
use parking_lot::Mutex;
use rollscope_gateway::HeardPass;
use rollscope_testkit::{Client, FakeWorker, Script, patient};
use serde_json::{Value, json};
use tokio::net::UdpSocket;

use crate::harness::TestGateway;

const REPLY: &str = r#"{"text":"x","meta_info":{"finish_reason":{"type":"stop"}}}"#;

/// Waits until these workers are registered, in any order.
pub(crate) async fn registered(gateway: &TestGateway, mut expected: Vec<String>) {
    expected.sort();
    patient("the workers", async {
        loop {
            let listed = Client::get(gateway.address, "/list_workers").await.text().await;
            let listed: Value = serde_json::from_str(&listed).unwrap();
            let mut urls: Vec<String> = serde_json::from_value(listed["urls"].clone()).unwrap();
            urls.sort();
            if urls == expected {
                return;
            }
        }
    })
    .await;
}

/// Puts another file in a file's place, as careful writers do.
pub(crate) fn put(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

#[tokio::test]
async fn workers_come_and_go_with_a_file() {
    let (first, second, third) =
        (FakeWorker::start().await, FakeWorker::start().await, FakeWorker::start().await);
    second.on("/generate", Script::json(200, REPLY));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("workers.json");
    let gateway = TestGateway::start(&format!("--workers-file {}", path.display())).await;
    gateway.tells("cannot read the file").await;
    put(&path, &json!([{ "url": first.url() }, { "url": second.url(), "api_key": "k" }]).to_string());
    registered(&gateway, vec![first.url(), second.url()]).await;
    // Gateways that share nothing see one fleet.
    let beside = TestGateway::start(&format!("--workers-file {}", path.display())).await;
    registered(&beside, vec![first.url(), second.url()]).await;

    // Another's worker is left alone, and what can not be read changes nothing.
    let body = json!({ "url": third.url() }).to_string();
    assert_eq!(Client::post(gateway.address, "/workers", &body).await.status, 201);
    put(&path, "[{");
    gateway.tells("the file is no array of workers").await;
    put(&path, r#"[{"url":"http://a:1"},{"url":"http://b:1","worker_type":"decode"}]"#);
    gateway.tells("worker 2 of the file can not be: a gateway without --pd-disaggregation").await;
    gateway.tells("its 2 workers stay").await;
    registered(&gateway, vec![first.url(), second.url(), third.url()]).await;

    put(&path, &json!([{ "url": second.url(), "api_key": "k" }]).to_string());
    registered(&gateway, vec![second.url(), third.url()]).await;
    put(&path, "[]");
    registered(&gateway, vec![third.url()]).await;
    assert!(gateway.told().iter().all(|told| !told.contains(&third.url())), "{:?}", gateway.told());
}

#[tokio::test]
async fn what_a_file_notes_of_a_worker_changes_in_place() {
    let worker = FakeWorker::start().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("workers.json");
    let entry =
        |priority: u32, labels: Value| json!({ "url": worker.url(), "priority": priority, "labels": labels });
    put(&path, &json!([entry(1, json!({ "rack": "r1", "row": "1" }))]).to_string());
    let gateway = TestGateway::start(&format!("--workers-file {}", path.display())).await;
    let noted = async |expected: (u32, f64, Value)| {
        crate::checks::shown(&gateway, "what is noted", |worker| {
            let (priority, cost, labels) = &expected;
            worker["priority"] == *priority && worker["cost"] == *cost && worker["metadata"] == *labels
        })
        .await
    };
    let id = noted((1, 1.0, json!({ "rack": "r1", "row": "1" }))).await;
    let call = format!("/workers/{id}");
    let body = r#"{"cost":2.5,"labels":{"zone":"z"}}"#;
    assert_eq!(Client::call(gateway.address, Method::PUT, &call, &[], body).await.status, 200);
    // What a call has noted stays, and so does the worker.
    put(&path, &json!([entry(2, json!({ "rack": "r2" }))]).to_string());
    assert_eq!(noted((2, 2.5, json!({ "rack": "r2", "zone": "z" }))).await, id);
    // With another key it is another worker, of which the same is noted.
    let mut keyed = entry(2, json!({ "rack": "r3" }));
    keyed["api_key"] = json!("k");
    put(&path, &json!([keyed]).to_string());
    assert_ne!(noted((2, 2.5, json!({ "rack": "r3", "zone": "z" }))).await, id);
}

#[tokio::test]
async fn what_a_file_names_comes_back_unless_a_call_has_taken_it_out() {
    let (worker, other) = (FakeWorker::start().await, FakeWorker::start().await);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("workers.json");
    put(&path, &json!([{ "url": worker.url() }]).to_string());
    let gateway = TestGateway::start(&format!("--workers-file {}", path.display())).await;
    registered(&gateway, vec![worker.url()]).await;
    let id = async || crate::checks::shown(&gateway, "a worker", |worker| worker["id"].is_string()).await;
    let first = id().await;
    // Somebody else registers it, and takes that out again.
    let body = json!({ "url": worker.url() }).to_string();
    assert_eq!(Client::post(gateway.address, "/workers", &body).await.status, 201);
    let second = id().await;
    assert_ne!(first, second);
    let remove = async |id: &str| {
        let path = format!("/workers/{id}");
        let reply = Client::call(gateway.address, Method::DELETE, &path, &[], "").await;
        assert_eq!(reply.status, 200);
    };
    remove(&second).await;
    let third = id().await;
    assert!(third != first && third != second);
    remove(&third).await;
    put(&path, &json!([{ "url": worker.url() }, { "url": other.url() }]).to_string());
    registered(&gateway, vec![other.url()]).await;
    // Named anew, it is registered anew.
    put(&path, "[]");
    registered(&gateway, vec![]).await;
    put(&path, &json!([{ "url": worker.url() }]).to_string());
    registered(&gateway, vec![worker.url()]).await;
}

#[tokio::test]
async fn a_rank_that_its_server_lacks_is_not_registered_again() {
    let (worker, other) = (FakeWorker::start().await, FakeWorker::start().await);
    worker.on("/server_info", Script::json(200, r#"{"dp_size":2}"#));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("workers.json");
    let [there, not_there] = [1, 2].map(|rank| format!("{}@{rank}", worker.url()));
    put(&path, &json!([{ "url": there }, { "url": not_there }]).to_string());
    let gateway = TestGateway::start(&format!("--workers-file {}", path.display())).await;
    gateway.tells("worker taken out").await;
    registered(&gateway, vec![there.clone()]).await;
    // The file has been looked at again by the time that another worker of it is there.
    put(&path, &json!([{ "url": there }, { "url": not_there }, { "url": other.url() }]).to_string());
    registered(&gateway, vec![there, other.url()]).await;
    let names = gateway
        .told()
        .iter()
        .filter(|told| told.contains("names regular worker") && told.contains("@2"))
        .count();
    assert_eq!(names, 1, "{:?}", gateway.told());
}

#[tokio::test]
async fn a_file_takes_out_only_what_it_has_brought() {
    let (named, told) = (FakeWorker::start().await, FakeWorker::start().await);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("workers.json");
    put(&path, &json!([{ "url": named.url() }, { "url": told.url() }]).to_string());
    let args = format!("--worker-urls {} --workers-file {}", named.url(), path.display());
    let gateway = TestGateway::start(&args).await;
    registered(&gateway, vec![named.url(), told.url()]).await;
    put(&path, "[]");
    registered(&gateway, vec![named.url()]).await;
}

#[tokio::test]
async fn a_worker_that_never_gets_up_is_waited_for_while_a_file_names_it() {
    let worker = FakeWorker::start().await;
    worker.on("/health", Script::json(503, ""));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("workers.json");
    put(&path, &json!([{ "url": worker.url() }]).to_string());
    let limits = "--health-check-interval-secs 1 --worker-startup-timeout-secs 1";
    let gateway = TestGateway::start(&format!("--workers-file {} {limits}", path.display())).await;
    worker.arrived("/health", 4).await;
    registered(&gateway, vec![worker.url()]).await;
    assert!(gateway.told().iter().all(|told| !told.contains("taken out")), "{:?}", gateway.told());
}

#[tokio::test]
async fn workers_are_found_behind_a_name() {
    let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
    let (p, d) = (prefill.address().port(), decode.address().port());
    let args =
        format!("--pd-disaggregation --discover-prefill localhost:{p} 8998 --discover-decode localhost:{d}");
    let gateway = TestGateway::start(&args).await;
    patient("workers behind a name", async {
        loop {
            let listed = Client::get(gateway.address, "/workers").await.text().await;
            if listed.contains(&prefill.url()) && listed.contains(&decode.url()) {
                let listed: Value = serde_json::from_str(&listed).unwrap();
                assert_eq!(listed["workers"][0]["bootstrap_port"], 8998);
                return;
            }
        }
    })
    .await;
}

/// A DNS server that knows two services of these ports, each at a host: one has the address 127.0.0.1, the other `::1`.
pub(crate) async fn dns_server(ports: Arc<Mutex<Vec<u16>>>) -> SocketAddr {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut asked = [0; 512];
        while let Ok((length, who)) = socket.recv_from(&mut asked).await {
            // RFC 1035, 4: a header of 12 bytes, then the question's name, type and class.
            let end = 12 + asked[12..length].iter().position(|byte| *byte == 0).unwrap() + 5;
            let (name, kind) = (&asked[12..end - 4], asked[end - 3]);
            let (host, host6) = (&b"\x04host\x07example\0"[..], &b"\x05host6\x07example\0"[..]);
            let answers: Vec<Vec<u8>> = match kind {
                1 if name == host => vec![vec![127, 0, 0, 1]],
                // RFC 3596: an address of IPv6.
                28 if name == host6 => vec![Ipv6Addr::LOCALHOST.octets().to_vec()],
                // RFC 2782: priority, weight, port, target.
                33 if name.ends_with(b"\x04_tcp\x07example\0") && !name.starts_with(b"\x05_none") => {
                    let target = if name.starts_with(b"\x06_http6") { host6 } else { host };
                    let service = |port: &u16| [&[0, 1, 0, 1], &port.to_be_bytes()[..], target].concat();
                    ports.lock().iter().map(service).collect()
                }
                _ => Vec::new(),
            };
            let mut reply = asked[..2].to_vec();
            reply.extend([0x84, 0, 0, 1, 0, answers.len() as u8, 0, 0, 0, 0]);
            reply.extend(&asked[12..end]);
            for answer in answers {
                // The question's name again, a type, class IN, a second to live.
                reply.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 1, 0, answer.len() as u8]);
                reply.extend(answer);
            }
            socket.send_to(&reply, who).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn a_service_tells_its_workers_and_their_ports() {
    let (first, second) = (FakeWorker::start().await, FakeWorker::start().await);
    let ports = Arc::new(Mutex::new(vec![first.address().port(), second.address().port()]));
    let server = dns_server(Arc::clone(&ports)).await;
    let asked = format!("--discovery-dns-server {server} --discovery-interval-secs 1");
    let gateway = TestGateway::start(&format!("--discover _http._tcp.example. {asked}")).await;
    registered(&gateway, vec![first.url(), second.url()]).await;
    ports.lock().remove(0);
    registered(&gateway, vec![second.url()]).await;

    let port = second.address().port();
    let gateway = TestGateway::start(&format!("--discover host.example.:{port} {asked}")).await;
    registered(&gateway, vec![second.url()]).await;
    let at_ipv6 = |port: u16| format!("http://[::1]:{port}");
    let gateway = TestGateway::start(&format!("--discover host6.example.:{port} {asked}")).await;
    registered(&gateway, vec![at_ipv6(port)]).await;
    ports.lock().push(9);
    let gateway = TestGateway::start(&format!("--discover _http6._tcp.example. {asked}")).await;
    registered(&gateway, vec![at_ipv6(port), at_ipv6(9)]).await;
    let gateway = TestGateway::start(&format!("--discover _none._tcp.example. {asked}")).await;
    gateway.tells("_none._tcp.example.: the name can not be resolved").await;
}

#[tokio::test]
async fn a_worker_is_sent_its_own_key_and_never_another_ones() {
    let (first, second) = (FakeWorker::start().await, FakeWorker::start().await);
    for worker in [&first, &second] {
        worker.on("/generate", Script::json(200, REPLY));
        worker.on("/flush_cache", Script::json(200, "{}"));
    }
    let gateway = TestGateway::start("--api-key shared --admin-api-key root").await;
    let root = [("authorization", "Bearer root")];
    for registration in [json!({ "url": first.url(), "api_key": "own" }), json!({ "url": second.url() })] {
        let reply = Client::post_with(gateway.address, "/workers", &root, &registration.to_string()).await;
        assert_eq!(reply.status, 201);
    }
    let user = [("authorization", "Bearer shared")];
    for _ in 0..2 {
        let reply = Client::post_with(gateway.address, "/generate", &user, "{}").await;
        assert_eq!(reply.text().await, REPLY);
    }
    Client::post_with(gateway.address, "/flush_cache", &root, "").await.text().await;
    for (worker, key) in [(&first, "Bearer own"), (&second, "Bearer shared")] {
        worker.arrived("/server_info", 1).await;
        for path in ["/generate", "/flush_cache", "/server_info"] {
            assert_eq!(worker.calls(path)[0].request.header("authorization"), Some(key), "{path}");
        }
    }
}

#[tokio::test]
async fn a_policy_goes_by_what_workers_say_of_their_load() {
    let (busy, idle) = (FakeWorker::start().await, FakeWorker::start().await);
    for (worker, running) in [(&busy, 9), (&idle, 0)] {
        worker.on("/generate", Script::json(200, REPLY));
        let loads =
            format!(r#"{{"loads":[{{"dp_rank":0,"num_running_reqs":{running},"num_waiting_reqs":0}}]}}"#);
        worker.on("/v1/loads", Script::json(200, &loads));
    }
    let polling = "--policy power_of_two --load-poll-interval-secs 0.01 --max-load-age-secs 3600";
    let gateway = TestGateway::start(&format!("--worker-urls {} {} {polling}", busy.url(), idle.url())).await;
    patient("a decision by reported load", async {
        loop {
            let explain = [("x-rollscope-explain", "1")];
            let reply = Client::post_with(gateway.address, "/generate", &explain, "{}").await;
            let decision = reply.header("x-rollscope-decision").unwrap().to_owned();
            assert_eq!(reply.text().await, REPLY);
            if decision.contains("reported") {
                // What has begun and ended since the report is reckoned with, so the busy one's load is about 9.
                let is_by_load = decision.starts_with("power_of_two: 0 reported against");
                assert!(is_by_load && decision.contains("worker 2 of 2"), "{decision}");
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_policy_goes_by_the_forward_passes_that_are_heard() {
    let (busy, idle) = (FakeWorker::start().await, FakeWorker::start().await);
    for worker in [&busy, &idle] {
        worker.on("/generate", Script::json(200, REPLY));
        worker.on("/server_info", Script::json(200, r#"{"dp_size":2}"#));
        // What they said when they were asked last.
        worker
            .on("/v1/loads", Script::json(200, r#"{"loads":[{"num_running_reqs":3,"num_waiting_reqs":0}]}"#));
    }
    let limits = "--load-poll-interval-secs 3600 --max-load-age-secs 3600";
    let urls = format!("{} {}", busy.url(), idle.url());
    let gateway = TestGateway::start(&format!("--worker-urls {urls} --policy power_of_two {limits}")).await;
    for worker in [&busy, &idle] {
        worker.arrived("/server_info", 1).await;
        worker.arrived("/v1/loads", 1).await;
    }
    let decided = async |is_it: &dyn Fn(&str) -> bool| {
        patient("a decision", async {
            loop {
                let explain = [("x-rollscope-explain", "1")];
                let reply = Client::post_with(gateway.address, "/generate", &explain, "{}").await;
                if is_it(reply.header("x-rollscope-decision").unwrap()) {
                    return;
                }
            }
        })
        .await;
    };
    decided(&|decision| decision.starts_with("power_of_two: 3 reported against 3")).await;
    // One rank of two is not the whole server.
    let pass = |rank, decoding| HeardPass { rank, decoding, waiting: 1, ..HeardPass::default() };
    (gateway.hear)(&busy.url(), pass(0, 8));
    decided(&|decision| decision.contains("3 reported against 3")).await;
    (gateway.hear)(&busy.url(), pass(1, 4));
    for rank in 0..2 {
        (gateway.hear)(&idle.url(), pass(rank, 0));
    }
    decided(&|decision| decision.starts_with("power_of_two: 2 reported against 14 at worker 1")).await;
}

#[tokio::test]
async fn passes_are_gone_by_where_nobody_is_asked_for_loads() {
    let (busy, idle) = (FakeWorker::start().await, FakeWorker::start().await);
    let limits = "--policy power_of_two --load-poll-interval-secs 0 --max-load-age-secs 3600";
    let urls = format!("{} {}", busy.url(), idle.url());
    let gateway = TestGateway::start(&format!("--worker-urls {urls} {limits}")).await;
    for (worker, decoding) in [(&busy, 8), (&idle, 1)] {
        worker.on("/generate", Script::json(200, REPLY));
        (gateway.hear)(&worker.url(), HeardPass { decoding, ..HeardPass::default() });
    }
    let explain = [("x-rollscope-explain", "1")];
    let reply = Client::post_with(gateway.address, "/generate", &explain, "{}").await;
    let decision = reply.header("x-rollscope-decision").unwrap();
    assert!(decision.starts_with("power_of_two: 1 reported against 8 at worker 1"), "{decision}");
    assert!(busy.calls("/v1/loads").is_empty() && idle.calls("/v1/loads").is_empty());
}
