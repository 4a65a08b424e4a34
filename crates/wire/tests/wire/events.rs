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

/// Payloads, and all bytes. An LF that is cut off from its CR stands in front of what follows.
fn payloads(parts: Vec<(String, Option<String>)>) -> (Vec<String>, String) {
    let (raw, payloads): (Vec<String>, Vec<_>) = parts.into_iter().unzip();
    (payloads.into_iter().flatten().collect(), raw.concat())
}

fn check_every_split(stream: &str, expected: &[&str]) {
    let expected = (expected.iter().map(|payload| (*payload).to_owned()).collect(), stream.to_owned());
    let check = |pieces: &[&[u8]]| {
        assert_eq!(payloads(split(pieces, 1 << 20)), expected, "{pieces:?}");
    };
    let stream = stream.as_bytes();
    check(&[stream]);
    for first in 0..=stream.len() {
        let (head, tail) = stream.split_at(first);
        check(&[head, tail]);
        for second in 0..=tail.len() {
            let (middle, tail) = tail.split_at(second);
            check(&[head, middle, tail]);
        }
    }
    check(&stream.chunks(1).collect::<Vec<_>>());
}

#[test]
fn every_split_point_gives_the_same_events() {
    assert_eq!(split(&[STREAM.as_bytes()], 1 << 20), expected());
    check_every_split(STREAM, &["{\"a\":1}", "{\"b\":\"é漢\"}", "[DONE]", "{\"last\":true}"]);
}

#[test]
fn a_line_ends_with_any_of_three() {
    for end in ["\n", "\r\n", "\r"] {
        let stream =
            ["data: 1", "", ": a", "", "data:2", "id: 7", "", "", "data: 3", "data: 4", "", "data: 5", ""];
        check_every_split(&stream.join(end), &["1", "2", "5"]);
    }
    check_every_split("data: 1\r\n\ndata: 2\n\rdata: 3\r\r\ndata: 4\n\r\n", &["1", "2", "3", "4"]);
    // CR, CRLF is two line ends; CR, CR, LF, LF is three.
    check_every_split("data: 1\rid: 1\r\n\r\rdata: 2\r\r\n\n", &["1", "2"]);
}

#[test]
fn a_byte_order_mark_is_skipped_at_the_beginning_alone() {
    for end in ["\n", "\r\n", "\r"] {
        let stream = ["\u{feff}data: 1", "", "\u{feff}data: 2", "", "data: 3", "", ""];
        check_every_split(&stream.join(end), &["1", "3"]);
        check_every_split(&["\u{feff}", "data: 1", "", ""].join(end), &["1"]);
        check_every_split(&["\u{feff}\u{feff}data: 1", "", "data: 2", "", ""].join(end), &["2"]);
    }
    check_every_split("\u{feff}data: 1", &["1"]);
    check_every_split("\u{feff}", &[]);
    let stream = "\u{feff}data: 1\n\ndata: 2\n\n";
    let pieces: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
    assert_eq!(payloads(split(&pieces, 4)).1, stream, "beyond the limit");
}

#[test]
fn an_event_is_there_with_its_last_line_end_whatever_that_is() {
    for stream in ["data: 1\n\n", "data: 1\r\n\r", "data: 1\r\r"] {
        let mut splitter = EventSplitter::new(1000);
        splitter.push(Bytes::from(stream));
        let event = splitter.next_part().map(describe);
        assert_eq!(event, Some((stream.to_owned(), Some("1".to_owned()))));
        assert!(splitter.next_part().is_none());
        splitter.push(Bytes::from("\ndata: 2\n\n"));
        let event = std::iter::from_fn(|| splitter.next_part()).map(describe).last();
        assert_eq!(event.and_then(|(_, payload)| payload).as_deref(), Some("2"), "{stream:?}");
    }
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
        assert_eq!(last.0.strip_prefix('\n').unwrap_or(&last.0), "data: 2\n\n", "pieces of {size}");
        assert_eq!(last.1.as_deref(), Some("2"), "pieces of {size}");
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
        stream in "(data: ?[a-z\\[\\]é]{0,9}(\r|\r?\n)|:[a-z]{0,3}(\r|\n)|\r?\n|\r){0,12}[a-z:]{0,6}",
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
