//! Prints how long it takes to read replies with large lists of log-probabilities, in milliseconds for each MB.
//!
//! `cargo run --release -p rollscope-wire --example scan_speed`

#![expect(clippy::print_stdout, reason = "the figures are what it is for")]

use std::error::Error;
use std::time::Instant;

use bytes::Bytes;
use rollscope_wire::{Chunks, Reply};

const BODY_BYTES: usize = 4 << 20;
/// What a connection hands over at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Each figure is the best of this many.
const REPEATS: usize = 30;

const WORDS: [&str; 8] = [" the", "é", " of", "ing", "]", " request", ",", " a"];
/// Words that have to be escaped, one in each triple.
const ESCAPED: [&str; 4] = [r#"\""#, r"\n", r"\u00e9\u6f22", r"\\"];

fn main() -> Result<(), Box<dyn Error>> {
    let triple = |at: usize, text: &str| format!("[-{:.9},{},{text}]", at as f64 * 0.001_3, at * 7 % 50_000);
    let quoted = |at: usize, words: &[&str]| format!("\"{}\"", words[at % words.len()]);
    let top = |at: usize| {
        let triples: Vec<_> = (at..at + 5).map(|at| triple(at, &quoted(at, &WORDS))).collect();
        format!("[{}]", triples.join(","))
    };
    for (what, body) in [
        ("triples without texts", reply("output_token_logprobs", |at| triple(at, "null"))),
        ("triples with texts", reply("output_token_logprobs", |at| triple(at, &quoted(at, &WORDS)))),
        ("triples with escapes", reply("output_token_logprobs", |at| triple(at, &quoted(at, &ESCAPED)))),
        ("top log-probabilities", reply("output_top_logprobs", top)),
        (
            "objects",
            reply("output_token_logprobs", |at| format!("{{\"token\":{},\"id\":{at}}}", quoted(at, &WORDS))),
        ),
        ("token ids", reply("output_ids", |at| (at * 7 % 50_000).to_string())),
    ] {
        let body = cut(&body);
        let mut best_s = f64::INFINITY;
        for _ in 0..REPEATS {
            let began = Instant::now();
            let reply = Reply::scan(&body)?;
            best_s = best_s.min(began.elapsed().as_secs_f64());
            assert_eq!(reply.elements().len(), 1);
        }
        println!("{what:<24} {:.3} ms/MB", best_s * 1e3 / (body.len() as f64 / 1e6));
    }
    Ok(())
}

/// A reply whose `meta_info` is almost only one list.
fn reply(name: &str, element: impl Fn(usize) -> String) -> String {
    let mut body = format!("{{\"text\":\"\",\"meta_info\":{{\"id\":\"x\",\"{name}\":[");
    for at in 0.. {
        if body.len() >= BODY_BYTES {
            break;
        }
        if at > 0 {
            body.push(',');
        }
        body += &element(at);
    }
    body + "],\"e2e_latency\":0.5}}"
}

fn cut(body: &str) -> Chunks {
    body.as_bytes().chunks(PIECE_BYTES).map(Bytes::copy_from_slice).collect()
}
