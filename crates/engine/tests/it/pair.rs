//! Prefill and decode servers together.

use serde_json::json;

use crate::support::{Pair, Server, greedy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smoke() {
    let alone = Server::start(&[]).await;
    let reply = alone
        .generate(&json!({"text": "47+85+19=?\n", "sampling_params": greedy(64), "return_logprob": true}))
        .await;
    println!("{reply:#}");
    println!(
        "{:?}",
        alone.stream(&json!({"text": "47+85+19=?\n", "sampling_params": greedy(64)})).await.last()
    );
    let pair = Pair::start(&[]).await;
    let (p, d) = pair
        .generate(&json!({"text": "47+85+19=?\n", "sampling_params": greedy(64), "return_logprob": true}))
        .await;
    println!("{p:#}\n{d:#}");
    assert_eq!(d["text"], reply["text"]);
    pair.until_free().await;
    println!("{:#}", pair.prefill.get("/server_info").await);
}
