//! Several gateways that share nothing, behind a balancer: they see one fleet, and a key leads to the same worker at each.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use rollscope_testkit::{Client, FakeWorker, Script};
use serde_json::json;

use crate::discovery::{dns_server, put, registered};
use crate::harness::TestGateway;

/// Workers of which each answers with its URL.
async fn workers(count: usize) -> Vec<FakeWorker> {
    let mut workers = Vec::new();
    for _ in 0..count {
        let worker = FakeWorker::start().await;
        let reply = json!({ "text": worker.url(), "meta_info": { "finish_reason": { "type": "stop" } } });
        worker.on("/generate", Script::json(200, &reply.to_string()));
        workers.push(worker);
    }
    workers
}

fn urls(workers: &[FakeWorker]) -> Vec<String> {
    workers.iter().map(FakeWorker::url).collect()
}

/// Who serves each of some keys, which are prompts as well.
async fn choices(gateway: &TestGateway) -> Vec<String> {
    let mut choices = Vec::new();
    for key in 0..32 {
        let key = format!("session-{key}");
        let headers = [("x-smg-routing-key", &*key)];
        let body = json!({ "text": key }).to_string();
        choices.push(Client::post_with(gateway.address, "/generate", &headers, &body).await.text().await);
        // One that is still in flight may have its worker passed over.
        gateway.settled(&[]).await;
    }
    choices
}

/// Both send each key to the same worker, and to all of these some.
async fn agree(gateways: [&TestGateway; 2], workers: usize) -> Vec<String> {
    let [first, second] = [choices(gateways[0]).await, choices(gateways[1]).await];
    assert_eq!(first, second);
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), workers);
    first
}

#[tokio::test]
async fn gateways_that_watch_a_file_choose_alike_as_workers_come_and_go() {
    for policy in ["consistent_hashing", "prefix_hash"] {
        choose_alike(policy).await;
    }
}

async fn choose_alike(policy: &str) {
    let mut workers = workers(4).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("workers.json");
    let write = |urls: &[String]| {
        let list: Vec<_> = urls.iter().map(|url| json!({ "url": url })).collect();
        put(&path, &json!(list).to_string());
    };
    write(&urls(&workers[..3]));
    let args = format!("--policy {policy} --workers-file {}", path.display());
    let (first, second) = (TestGateway::start(&args).await, TestGateway::start(&args).await);
    for gateway in [&first, &second] {
        registered(gateway, urls(&workers[..3])).await;
    }
    let before = agree([&first, &second], 3).await;
    let gone = workers.remove(0);
    write(&urls(&workers));
    for gateway in [&first, &second] {
        registered(gateway, urls(&workers)).await;
    }
    let after = agree([&first, &second], 3).await;
    // A key moves only to who has come, or from who has gone.
    let come = workers[2].url();
    for (before, after) in before.iter().zip(&after) {
        assert!(before == after || before.contains(&gone.url()) || after.contains(&come), "{before} {after}");
    }
    // One that starts now finds them in another order.
    write(&urls(&workers).into_iter().rev().collect::<Vec<_>>());
    let late = TestGateway::start(&args).await;
    registered(&late, urls(&workers)).await;
    assert_eq!(choices(&late).await, after);
}

#[tokio::test]
async fn gateways_that_look_a_name_up_choose_alike_in_whatever_order_it_is_answered() {
    let workers = workers(3).await;
    let ports = Arc::new(Mutex::new(vec![workers[0].address().port(), workers[1].address().port()]));
    let server = dns_server(Arc::clone(&ports)).await;
    let args = format!(
        "--policy consistent_hashing --discover _http._tcp.example. --discovery-dns-server {server} \
         --discovery-interval-secs 1"
    );
    let first = TestGateway::start(&args).await;
    registered(&first, urls(&workers[..2])).await;
    ports.lock().reverse();
    let second = TestGateway::start(&args).await;
    registered(&second, urls(&workers[..2])).await;
    agree([&first, &second], 2).await;
    *ports.lock() = vec![workers[2].address().port(), workers[0].address().port()];
    let left = vec![workers[0].url(), workers[2].url()];
    for gateway in [&first, &second] {
        registered(gateway, left.clone()).await;
    }
    agree([&first, &second], 2).await;
}
