//! Replies cut at every place, and replies that are none.

use super::*;

/// Reads a whole reply that is received cut at these places: status, body, and what the connection may be used for.
fn read(received: &[u8], cuts: &[usize], method: &Method) -> Result<Option<(u16, Vec<u8>, bool)>, Garbled> {
    let mut buffer = BytesMut::new();
    let mut from = 0;
    let (mut head, mut body): (Option<ReplyHead>, Vec<u8>) = (None, Vec::new());
    for cut in cuts.iter().chain([&received.len()]) {
        buffer.extend_from_slice(&received[from..*cut]);
        from = *cut;
        if head.is_none() {
            head = ReplyHead::take(&mut buffer, method)?;
        }
        let Some(head) = &mut head else { continue };
        while let Next::Piece(piece) = head.framing.next(&mut buffer)? {
            body.extend_from_slice(&piece);
        }
    }
    Ok(head.filter(|head| head.framing.may_close()).map(|head| {
        let is_reusable = head.keeps_alive && buffer.is_empty();
        (head.parts.status.as_u16(), body, is_reusable)
    }))
}

#[test]
fn a_reply_is_the_same_wherever_it_is_cut() {
    for (reply, method, expected) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", Method::POST, (200, "hello", true)),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\ncontent-length: 5\r\n\r\nhello",
            Method::POST,
            (200, "hello", true),
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: x, Close\r\n\r\nhello",
            Method::POST,
            (200, "hello", false),
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhello", Method::POST, (200, "he", false)),
        ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", Method::POST, (200, "hello", false)),
        (
            "HTTP/1.0 200 OK\r\ncontent-length: 5\r\nconnection: keep-alive\r\n\r\nhello",
            Method::POST,
            (200, "hello", true),
        ),
        ("HTTP/1.1 200 \r\n\r\nuntil the end", Method::POST, (200, "until the end", false)),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\na: b\r\n\r\nHTTP/1.1 429 Slow\r\ncontent-length: 0\r\n\r\n",
            Method::POST,
            (429, "", true),
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Method::HEAD, (200, "", true)),
        ("HTTP/1.1 204 No\r\n\r\n", Method::GET, (204, "", true)),
        ("HTTP/1.1 304 No\r\ncontent-length: 9\r\n\r\n", Method::GET, (304, "", true)),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n5\r\nhello\r\n0A ; x=\"y\"\r\n, world 12\r\n0\r\n\r\n",
            Method::POST,
            (200, "hello, world 12", true),
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\ntrailer: b\r\nand: c\r\n\r\n",
            Method::POST,
            (200, "a", true),
        ),
    ] {
        let expected = Some((expected.0, expected.1.as_bytes().to_vec(), expected.2));
        for first in 0..=reply.len() {
            for second in [first, (first + 1).min(reply.len()), reply.len()] {
                assert_eq!(
                    read(reply.as_bytes(), &[first, second], &method),
                    Ok(expected.clone()),
                    "{reply} {first}"
                );
            }
        }
        let every: Vec<usize> = (0..reply.len()).collect();
        assert_eq!(read(reply.as_bytes(), &every, &method), Ok(expected), "{reply}");
    }
}

#[test]
fn a_reply_that_is_not_whole_has_no_end() {
    for reply in [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        "HTTP/1.1 200 OK\r\ncontent-le",
    ] {
        assert_eq!(read(reply.as_bytes(), &[], &Method::POST), Ok(None), "{reply}");
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let chunked = |body: &str| format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{body}");
    let with = |headers: &str| format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\nhello");
    let long = "x".repeat(2 * MAX_HEAD_BYTES);
    for (reply, error) in [
        (with("content-length: 5\r\ncontent-length: 4"), Garbled::TwoFramings),
        (with("content-length: 5\r\ntransfer-encoding: chunked"), Garbled::TwoFramings),
        ("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(), Garbled::TwoFramings),
        (with("content-length: 5, 5"), Garbled::Length),
        (with("content-length: +5"), Garbled::Length),
        (with("content-length: "), Garbled::Length),
        (with("content-length: 18446744073709551616"), Garbled::Length),
        (with("transfer-encoding: gzip, chunked"), Garbled::Encoding),
        (with("transfer-encoding: chunked\r\ntransfer-encoding: chunked"), Garbled::Encoding),
        (with("transfer-encoding: xchunked"), Garbled::Encoding),
        ("HTTP/1.1 101 Switching\r\n\r\n".to_owned(), Garbled::Switch),
        (format!("HTTP/1.1 200 OK\r\na: {long}\r\n\r\n"), Garbled::LongHead),
        (format!("HTTP/1.1 200 OK\r\na: {long}"), Garbled::LongHead),
        ("garbage\r\n\r\n".to_owned(), Garbled::Head(httparse::Error::Version)),
        (with("a : b"), Garbled::Head(httparse::Error::HeaderName)),
        (with("a: b\r\n folded"), Garbled::Head(httparse::Error::HeaderName)),
        (chunked("x\r\n"), Garbled::ChunkSize),
        (chunked("\r\n"), Garbled::ChunkSize),
        (chunked("+1\r\na\r\n"), Garbled::ChunkSize),
        (chunked("0x1\r\na\r\n"), Garbled::ChunkSize),
        (chunked("1\na\r\n"), Garbled::ChunkSize),
        (chunked("10000000000000000\r\n"), Garbled::ChunkSize),
        (chunked(&format!("1;{long}")), Garbled::ChunkSize),
        (chunked("1\r\nab\r\n"), Garbled::ChunkEnd),
        (chunked("1\r\na\n0\r\n\r\n"), Garbled::ChunkEnd),
        (chunked(&format!("0\r\na: {long}")), Garbled::LongTrailers),
        (chunked(&format!("0\r\n{}", "a: b\r\n".repeat(10_000))), Garbled::LongTrailers),
    ] {
        let shown = &reply[..reply.len().min(100)];
        assert_eq!(read(reply.as_bytes(), &[], &Method::POST), Err(error), "{shown}");
        let every: Vec<usize> = (0..reply.len().min(2000)).collect();
        assert_eq!(read(reply.as_bytes(), &every, &Method::POST), Err(error), "{shown}");
    }
}

#[test]
fn what_is_known_to_come_is_told() {
    let mut buffer = BytesMut::from(&b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\nhello"[..]);
    let mut head = ReplyHead::take(&mut buffer, &Method::GET).unwrap().unwrap();
    assert_eq!(head.framing.ahead(), 100_000);
    assert_eq!(head.framing.next(&mut buffer), Ok(Next::Piece(Bytes::from_static(b"hello"))));
    assert_eq!(head.framing.ahead(), 99_995);
    buffer.resize(99_995, 1);
    let at = buffer.as_ptr();
    let Ok(Next::Piece(piece)) = head.framing.next(&mut buffer) else { panic!("a piece") };
    assert_eq!((piece.as_ptr(), head.framing.is_over()), (at, true), "large pieces are not copied");
}
