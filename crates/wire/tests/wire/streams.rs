//! Streams as the gateway relays them: cut into events, merged, put together again, wherever the network cut them.

use bytes::Bytes;
use rollscope_wire::{Chunks, EventSplitter, LogprobJoin, Part, PrefillShare, Reply};

use crate::json::text;

const PREFILL: &str = r#"{"text":"","meta_info":{"pd_prefill_forward_duration":0.50,"cached_tokens":2,"input_token_logprobs":[[null,1,null]]}}"#;

/// Each chunk has all of the text so far.
const CUMULATIVE: &str = "data: {\"text\":\"a\",\"meta_info\":{\"cached_tokens\":0,\"input_token_logprobs\":[]}}\n\n\
                          data: {\"text\":\"aé漢\",\"meta_info\":{\"cached_tokens\":0,\"input_token_logprobs\":[]}}\n\n\
                          data: [DONE]\n\n";
const CUMULATIVE_MERGED: &str = "data: {\"text\":\"a\",\"meta_info\":{\"pd_prefill_forward_duration\":0.50,\"cached_tokens\":2,\"input_token_logprobs\":[[null,1,null]]}}\n\n\
                                 data: {\"text\":\"aé漢\",\"meta_info\":{\"pd_prefill_forward_duration\":0.50,\"cached_tokens\":2,\"input_token_logprobs\":[[null,1,null]]}}\n\n\
                                 data: [DONE]\n\n";
/// Each chunk has what is new, among lines of every kind, and the last event has no end.
const INCREMENTAL: &str = ": hi\r\n\r\nid: 1\r\ndata:{\"text\":\"a\",\"meta_info\":{ }}\r\n\r\n\
                           data: no JSON\n\ndata: {\"text\":\"b\"}\n\ndata: {\"text\":\"漢\",\"meta_info\":{\"x\":1}}\r\n: bye";
const INCREMENTAL_MERGED: &str = ": hi\r\n\r\nid: 1\r\ndata:{\"text\":\"a\",\"meta_info\":{\"pd_prefill_forward_duration\":0.50,\"cached_tokens\":2 }}\r\n\r\n\
                                  data: no JSON\n\ndata: {\"text\":\"b\"}\n\ndata: {\"text\":\"漢\",\"meta_info\":{\"pd_prefill_forward_duration\":0.50,\"cached_tokens\":2,\"x\":1}}\r\n: bye";

fn relay(pieces: &[&[u8]], share: &PrefillShare) -> String {
    let mut splitter = EventSplitter::new(1 << 20);
    let mut parts = Vec::new();
    for piece in pieces {
        splitter.push(Bytes::copy_from_slice(piece));
        parts.extend(std::iter::from_fn(|| splitter.next_part()));
    }
    parts.extend(splitter.finish());
    parts.iter().map(|part| text(&merged(part, share))).collect()
}

fn merged(part: &Part, share: &PrefillShare) -> Chunks {
    let Part::Event(event) = part else { panic!("no event is too large") };
    let Some(payload) = event.payload() else { return event.raw.clone() };
    let Ok(reply) = Reply::scan(&payload) else { return event.raw.clone() };
    let merged = reply.merge(share, LogprobJoin::WherePresent).unwrap();
    merged.map_or_else(|| event.raw.clone(), |merged| event.with_payload(&merged))
}

#[test]
fn every_split_point_gives_the_same_merged_stream() {
    let prefill = Chunks::from(PREFILL);
    let mut share = PrefillShare::default();
    share.add(&Reply::scan(&prefill).unwrap());
    for (stream, expected) in [(CUMULATIVE, CUMULATIVE_MERGED), (INCREMENTAL, INCREMENTAL_MERGED)] {
        let stream = stream.as_bytes();
        for first in 0..=stream.len() {
            let (head, tail) = stream.split_at(first);
            assert_eq!(relay(&[head, tail], &share), expected, "split at {first}");
            for length in 1..tail.len().min(8) {
                let (middle, tail) = tail.split_at(length);
                assert_eq!(relay(&[head, middle, tail], &share), expected, "{length} bytes at {first}");
            }
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(relay(&bytes, &share), expected);
    }
}
