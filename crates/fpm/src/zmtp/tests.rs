//! The protocol, against peers that keep it and peers that do not.

use proptest::prelude::*;

use super::*;

fn frames(bytes: &[u8], limit: usize) -> Result<Vec<Frame>, TransportError> {
    let mut buffer = BytesMut::from(bytes);
    let mut frames = Vec::new();
    while let Some(frame) = take_frame(&mut buffer, limit)? {
        frames.push(frame);
    }
    Ok(frames)
}

fn message(body: &[u8], more: bool) -> Frame {
    Frame::Message { body: Bytes::copy_from_slice(body), more }
}

#[test]
fn a_message_is_its_frames() {
    let long = vec![7; 300];
    let mut bytes = Vec::new();
    put_message(&mut bytes, &[b"", b"ab", &long]);
    assert_eq!(bytes[..6], [MORE, 0, MORE, 2, b'a', b'b']);
    assert_eq!(bytes[6..15], [LONG, 0, 0, 0, 0, 0, 0, 1, 44]);
    let expected = [message(b"", true), message(b"ab", true), message(&long, false)];
    assert_eq!(frames(&bytes, 300).unwrap(), expected);
    assert!(matches!(frames(&bytes, 299), Err(TransportError::TooLong(300))));
}

#[test]
fn a_length_that_no_memory_holds_is_refused_at_once() {
    let bytes = [&[LONG][..], &u64::MAX.to_be_bytes()].concat();
    assert!(matches!(frames(&bytes, 1 << 20), Err(TransportError::TooLong(u64::MAX))));
    assert!(matches!(frames(&[8, 0], 10), Err(TransportError::Protocol(_))));
}

#[test]
fn subscriptions_come_as_messages_or_as_commands() {
    let command = |body: &[u8]| Frame::Command(Bytes::copy_from_slice(body));
    for (frame, expected) in [
        (message(b"\x01", false), Some(Subscribing::Begin(b""))),
        (message(b"\x01kv", false), Some(Subscribing::Begin(b"kv"))),
        (message(b"\x00", false), Some(Subscribing::End(b""))),
        (message(b"\x02", false), None),
        (message(b"", false), None),
        (command(b"\x09SUBSCRIBE"), Some(Subscribing::Begin(b""))),
        (command(b"\x06CANCELkv"), Some(Subscribing::End(b"kv"))),
        (command(b"\x04PING\x00\x0a"), None),
    ] {
        assert_eq!(subscribing(&frame), expected);
    }
}

/// What a peer hears of us that sends these bytes and waits for the end.
async fn answer_to(bytes: &[u8]) -> Result<(), TransportError> {
    let (ours, mut theirs) = tokio::io::duplex(4096);
    theirs.write_all(bytes).await.unwrap();
    theirs.shutdown().await.unwrap();
    Wire::greet(ours, Kind::Publisher, 1024).await.map(drop)
}

fn opening(kind: &[u8]) -> Vec<u8> {
    let mut body = b"\x05READY\x08Identity\0\0\0\0\x0bsocket-type".to_vec();
    body.put_u32(kind.len() as u32);
    body.put_slice(kind);
    let mut opening = greeting().to_vec();
    put_frame(&mut opening, COMMAND, &body);
    opening
}

#[tokio::test]
async fn only_a_peer_that_fits_is_talked_to() {
    answer_to(&opening(b"SUB")).await.unwrap();
    answer_to(&opening(b"XSUB")).await.unwrap();
    let mut newer = opening(b"SUB");
    (newer[10], newer[11]) = (3, 1);
    answer_to(&newer).await.unwrap();
    let mut secure = opening(b"SUB");
    secure[12..17].copy_from_slice(b"CURVE");
    let mut old = opening(b"SUB");
    old[10] = 1;
    let mut refusing = greeting().to_vec();
    put_frame(&mut refusing, COMMAND, b"\x05ERROR\x02no");
    let mut cut = greeting().to_vec();
    put_frame(&mut cut, COMMAND, b"\x05READY\x0bSocket-Type\xff\xff\xff\xff");
    for (bytes, reason) in [
        (opening(b"PUB"), "peer's socket is of another kind: PUB"),
        (secure, "not a ZeroMQ 3 peer without security"),
        (old, "not a ZeroMQ 3 peer without security"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "not a ZeroMQ 3 peer without security"),
        (refusing, "refused by the peer: no"),
        (cut, "peer broke the protocol: READY is cut short"),
        (greeting().to_vec(), "the peer closed the connection"),
        (vec![], "the peer closed the connection"),
    ] {
        assert_eq!(answer_to(&bytes).await.unwrap_err().to_string(), reason);
    }
}

#[tokio::test]
async fn a_ping_is_answered_with_its_context() {
    let (ours, mut theirs) = tokio::io::duplex(4096);
    let mut wire = Wire { stream: ours, buffer: BytesMut::new(), ran_empty: Instant::now(), limit: 1024 };
    wire.answer(b"\x04PING\x00\x0aabc").await.unwrap();
    wire.answer(b"\x04PONG").await.unwrap();
    drop(wire);
    let mut answer = Vec::new();
    theirs.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"\x04\x08\x04PONGabc");
}

proptest! {
    #[test]
    fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(frames(&bytes, 64));
        drop(check_greeting(&bytes));
        drop(check_ready(&[b"\x05READY", &bytes[..]].concat(), Kind::Subscriber));
    }
}
