//! Server-sent events, however the network cuts them.

use bytes::Bytes;
use proptest::prelude::*;
use rollscope_wire::{Chunks, EventSplitter, Part};

use crate::json::text;

/// What a part is: its bytes, and its payload.
fn describe(part: Part) -> (String, Option<String>) {
    match part {
        Part::Event(event) => (text(&event.raw), event.payload().map(|payload| text(&payload))),
        Part::Piece(piece) => (text(&piece), Some("<piece>".to_owned())),
    }
}

fn split(pieces: &[&[u8]], limit_bytes: usize) -> Vec<(String, Option<String>)> {
    let mut splitter = EventSplitter::new(limit_bytes);
    let mut parts = Vec::new();
    for piece in pieces {
        splitter.push(Bytes::copy_from_slice(piece));
        parts.extend(std::iter::from_fn(|| splitter.next_part()).map(describe));
    }
    parts.extend(splitter.finish().map(describe));
    parts
}

const STREAM: &str = "data: {\"a\":1}\n\n: comment\n\ndata:{\"b\":\"é漢\"}\r\nid: 7\r\n\r\nevent: x\ndata: 1\ndata: 2\n\n\n\
                      data: [DONE]\n\ndata: {\"last\":true}";

fn expected() -> Vec<(String, Option<String>)> {
    [
        ("data: {\"a\":1}\n\n", Some("{\"a\":1}")),
        (": comment\n\n", None),
        ("data:{\"b\":\"é漢\"}\r\nid: 7\r\n\r\n", Some("{\"b\":\"é漢\"}")),
        ("event: x\ndata: 1\ndata: 2\n\n", None),
        ("\n", None),
        ("data: [DONE]\n\n", Some("[DONE]")),
        ("data: {\"last\":true}", Some("{\"last\":true}")),
    ]
    .map(|(raw, payload)| (raw.to_owned(), payload.map(str::to_owned)))
    .to_vec()
}

#[test]
fn every_split_point_gives_the_same_events() {
    let stream = STREAM.as_bytes();
    assert_eq!(split(&[stream], 1 << 20), expected());
    for first in 0..=stream.len() {
        let (head, tail) = stream.split_at(first);
        assert_eq!(split(&[head, tail], 1 << 20), expected(), "split at {first}");
        for second in 0..=tail.len() {
            let (middle, tail) = tail.split_at(second);
            assert_eq!(split(&[head, middle, tail], 1 << 20), expected(), "split at {first} and {second}");
        }
    }
    let bytes: Vec<&[u8]> = stream.chunks(1).collect();
    assert_eq!(split(&bytes, 1 << 20), expected());
}

#[test]
fn an_event_beyond_the_limit_passes_in_pieces() {
    let large = format!("data: \"{}\"\n", "x".repeat(100));
    let stream = format!("data: 1\n\n{large}{large}\r\ndata: 2\n\n");
    for size in 1..50 {
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
        let parts = split(&pieces, 60);
        let joined: String = parts.iter().map(|(raw, _)| &raw[..]).collect();
        assert_eq!(joined, stream, "pieces of {size}");
        let (first, last) = (&parts[0], &parts[parts.len() - 1]);
        assert_eq!(*first, ("data: 1\n\n".to_owned(), Some("1".to_owned())), "pieces of {size}");
        assert_eq!(*last, ("data: 2\n\n".to_owned(), Some("2".to_owned())), "pieces of {size}");
        for (raw, payload) in &parts[1..parts.len() - 1] {
            assert_eq!(payload.as_deref(), Some("<piece>"));
            assert!(raw.len() <= 60 + 2 * size, "{} bytes held", raw.len());
        }
    }
}

#[test]
fn a_payload_is_replaced_in_place() {
    let mut splitter = EventSplitter::new(1000);
    splitter.push(Bytes::from_static(b"id: 1\r\ndata:  {\"a\":1} \r\n\r\n"));
    let Some(Part::Event(event)) = splitter.next_part() else { panic!("an event") };
    assert_eq!(text(&event.payload().unwrap()), " {\"a\":1} ");
    assert_eq!(text(&event.with_payload(&Chunks::from("{}"))), "id: 1\r\ndata: {}\r\n\r\n");
    assert!(!event.is_done());
    splitter.push(Bytes::from_static(b"data:[DONE] \n\n"));
    let Some(Part::Event(event)) = splitter.next_part() else { panic!("an event") };
    assert!(event.is_done());
}

proptest! {
    #[test]
    fn parts_make_up_the_stream(
        stream in "(data: ?[a-z\\[\\]é]{0,9}\r?\n|:[a-z]{0,3}\n|\r?\n|\r){0,12}[a-z:]{0,6}",
        sizes in prop::collection::vec(1_usize..9, 1..20),
        limit_bytes in 1_usize..40,
    ) {
        let mut rest = stream.as_bytes();
        let mut pieces = Vec::new();
        for size in sizes.iter().cycle() {
            let (piece, tail) = rest.split_at((*size).min(rest.len()));
            pieces.push(piece);
            rest = tail;
            if rest.is_empty() {
                break;
            }
        }
        let mut splitter = EventSplitter::new(limit_bytes);
        let mut bytes = Vec::new();
        for piece in &pieces {
            splitter.push(Bytes::copy_from_slice(piece));
            while let Some(part) = splitter.next_part() {
                bytes.extend_from_slice(&part.into_raw().to_bytes());
            }
        }
        if let Some(part) = splitter.finish() {
            bytes.extend_from_slice(&part.into_raw().to_bytes());
        }
        prop_assert_eq!(bytes, stream.as_bytes());
    }
}
