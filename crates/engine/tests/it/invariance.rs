//! What a request says does not depend on how it is computed: the same tokens and log-probabilities, bit for bit.

use futures_util::future::join_all;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::support::{Pair, Server};

/// Servers that compute the same differently.
struct Servers {
    /// One request at a time, each from its beginning and in one piece.
    plain: Server,
    others: Vec<(&'static str, Server)>,
    pair: Pair,
}

/// Prompts that share beginnings, all ways to choose a token, penalties, and a seed.
fn request() -> impl Strategy<Value = Value> {
    let prompt = (0..3_usize, 0..90_usize, vec(0..256_usize, 1..30)).prop_map(|(stem, shared, own)| {
        (0..shared).map(|place| (place * 7 + stem * 31) % 256).chain(own).collect::<Vec<_>>()
    });
    let temperature = prop_oneof![Just(0.0), Just(1.0), 0.2..2.0];
    let filters =
        (prop_oneof![Just(1.0), 0.3..1.0], prop_oneof![Just(-1), 1..40], prop_oneof![Just(0.0), 0.0..0.3]);
    let penalties = (prop_oneof![Just(0.0), -2.0..2.0], prop_oneof![Just(1.0), 0.5..2.0]);
    let told = (prop_oneof![Just(-1), Just(0)], 0..3);
    (prompt, temperature, filters, (penalties, told), (1..24, any::<u32>())).prop_map(
        |(prompt, temperature, (top_p, top_k, min_p), (penalties, (start, top)), (max_new_tokens, seed))| {
            let (frequency, repetition) = penalties;
            json!({
                "input_ids": prompt,
                "sampling_params": {
                    "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p,
                    "frequency_penalty": frequency, "repetition_penalty": repetition,
                    "max_new_tokens": max_new_tokens, "ignore_eos": true, "sampling_seed": seed,
                },
                "return_logprob": true, "logprob_start_len": start, "top_logprobs_num": top,
            })
        },
    )
}

/// All that must not differ: of the reply, and of the one that tells of the prompt.
fn said(reply: &Value, of_prompt: &Value) -> Value {
    let (meta, of_prompt) = (&reply["meta_info"], &of_prompt["meta_info"]);
    json!([
        reply["output_ids"],
        meta["output_token_logprobs"],
        meta["output_top_logprobs"],
        of_prompt["input_token_logprobs"],
        of_prompt["input_top_logprobs"],
        meta["finish_reason"],
    ])
}

impl Servers {
    async fn start() -> Self {
        let no_cache = "--disable-radix-cache";
        let mut others = Vec::new();
        for (name, args) in [
            ("in a batch", &[no_cache][..]),
            ("in chunks", &[no_cache, "--chunked-prefill-size", "7", "--page-size", "8"]),
            ("from cached beginnings", &["--chunked-prefill-size", "33", "--page-size", "4"]),
            ("without enough pages", &["--max-total-tokens", "176", "--num-reserved-decode-tokens", "0"]),
        ] {
            others.push((name, Server::start(args).await));
        }
        let plain = Server::start(&[no_cache]).await;
        let pair = Pair::start(&["--chunked-prefill-size", "19", "--page-size", "8"]).await;
        Self { plain, others, pair }
    }

    async fn check(&self, bodies: &[Value]) -> Result<(), TestCaseError> {
        let mut expected = Vec::new();
        for body in bodies {
            let reply = self.plain.generate(body).await;
            expected.push(said(&reply, &reply));
        }
        // The second time what is cached is all there.
        for round in ["first", "second"] {
            for (name, server) in &self.others {
                let replies = join_all(bodies.iter().map(|body| server.generate(body))).await;
                for (reply, expected) in replies.iter().zip(&expected) {
                    prop_assert_eq!(&said(reply, reply), expected, "{}, {} time", name, round);
                }
            }
            let replies = join_all(bodies.iter().map(|body| self.pair.generate(body))).await;
            for ((prefill, decode), expected) in replies.iter().zip(&expected) {
                prop_assert_eq!(&said(decode, prefill), expected, "in a pair, {} time", round);
            }
        }
        Ok(())
    }
}

#[test]
fn replies_depend_on_nothing_but_the_request() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let servers = runtime.block_on(Servers::start());
    let mut runner = TestRunner::new(Config { cases: 6, failure_persistence: None, ..Config::default() });
    let property = |bodies: Vec<Value>| runtime.block_on(servers.check(&bodies));
    runner.run(&vec(request(), 1..12), property).unwrap();
    runtime.block_on(async {
        for (_, server) in &servers.others {
            server.until_free().await;
        }
        servers.pair.until_free().await;
    });
}
