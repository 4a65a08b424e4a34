//! Requests that are none, or that two readers would take for different ones: what is said, whether the connection is kept,
//! that no worker sees what was smuggled, and that the next client is served.

use std::net::SocketAddr;

use rollscope_testkit::{FakeWorker, Script, patient};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::TestGateway;

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// Another request is answered.
    Kept,
    Closed,
}

use After::{Closed, Kept};

const GENERATE: &str = "POST /generate HTTP/1.1\r\nhost: x\r\n";
const ALIVE: &str = "GET /liveness HTTP/1.1\r\nhost: x\r\n";
/// Ends a connection in order, if it is still there.
const LAST: &str = "GET /liveness HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
const SMUGGLED: &str = "POST /smuggled HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";

/// The status of the first reply, zero if there is none; and the rest of what came after the last request was sent too.
async fn talk(address: SocketAddr, bytes: &[u8]) -> (u16, After) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // What is refused early may not be taken to its end.
    let _refused = stream.write_all(bytes).await;
    let mut received = Vec::new();
    let first = patient("a reply or the end", async {
        while !is_whole(&received) {
            match stream.read_buf(&mut received).await {
                Ok(0) | Err(_) => return false,
                Ok(_) => {}
            }
        }
        true
    });
    let is_answered = first.await;
    let status = String::from_utf8_lossy(&received);
    let status =
        status.strip_prefix("HTTP/1.1 ").or(status.strip_prefix("HTTP/1.0 ")).map(|rest| rest[..3].parse());
    let Some(Ok(status)) = status.filter(|_| is_answered) else { return (0, Closed) };
    let _closed = stream.write_all(LAST.as_bytes()).await;
    // A reset is an end too.
    let _end = patient("the connection's end", stream.read_to_end(&mut received)).await;
    let replies = String::from_utf8_lossy(&received).matches("HTTP/1.1 200 OK").count();
    (status, if replies > usize::from(status == 200) { Kept } else { Closed })
}

/// Whether a reply is there with its body.
fn is_whole(received: &[u8]) -> bool {
    let text = String::from_utf8_lossy(received);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    body.len() >= length.unwrap_or(0)
}

/// `head`, further lines, and what follows the empty line.
fn request(head: &str, lines: &str, body: &str) -> Vec<u8> {
    format!("{head}{lines}\r\n\r\n{body}").into_bytes()
}

async fn check(cases: Vec<(&str, Vec<u8>, u16, After)>) {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, "{}"));
    let gateway = TestGateway::regular(&[&worker]).await;
    let mut wrong = Vec::new();
    for (what, bytes, status, after) in cases {
        let seen = talk(gateway.address, &bytes).await;
        if seen != (status, after) {
            wrong.push(format!("{what}: {seen:?} and not {:?}", (status, after)));
        }
        assert_eq!(talk(gateway.address, &request(ALIVE, "x-a: b", "")).await, (200, Kept), "after {what}");
        assert_eq!(gateway.generate("{}").await.status, 200, "after {what}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(worker.calls("/smuggled").is_empty());
    gateway.settled(&[]).await;
}

#[tokio::test]
async fn a_body_has_one_length() {
    let with = |lines: &str, body: &str| request(GENERATE, lines, body);
    let chunked = "transfer-encoding: chunked";
    let behind = format!("2\r\n{{}}\r\n0\r\n\r\n{SMUGGLED}");
    check(vec![
        ("one length", with("content-length: 2", "{}"), 200, Kept),
        ("the same length twice", with("content-length: 2\r\ncontent-length: 2", "{}"), 200, Kept),
        (
            "two lengths",
            with("content-length: 2\r\ncontent-length: 60", &format!("{{}}{SMUGGLED}")),
            400,
            Closed,
        ),
        ("a list of lengths", with("content-length: 2, 60", "{}"), 400, Closed),
        ("a length with a sign", with("content-length: +2", "{}"), 400, Closed),
        ("a length below zero", with("content-length: -2", "{}"), 400, Closed),
        ("a length in hexadecimal", with("content-length: 0x2", "{}"), 400, Closed),
        ("a length beyond all numbers", with("content-length: 99999999999999999999", "{}"), 400, Closed),
        ("a huge length", with("content-length: 9223372036854775807", "{}"), 413, Closed),
        ("chunks", with(chunked, "2\r\n{}\r\n0\r\n\r\n"), 200, Kept),
        ("chunks with extensions", with(chunked, "2;a=b\r\n{}\r\n0;c\r\n\r\n"), 200, Kept),
        ("chunks with trailers", with(chunked, "2\r\n{}\r\n0\r\ncontent-length: 9\r\n\r\n"), 200, Kept),
        // The chunks count, as RFC 9112, 6.3, has it, and what follows them may be meant as a part of the body.
        ("a length and chunks", with(&format!("content-length: 60\r\n{chunked}"), &behind), 200, Closed),
        ("chunks and a length", with(&format!("{chunked}\r\ncontent-length: 60"), &behind), 200, Closed),
        ("chunked before another coding", with("transfer-encoding: chunked, gzip", "{}"), 400, Closed),
        ("another coding", with("transfer-encoding: identity", "{}"), 400, Closed),
        ("almost chunked", with("transfer-encoding: xchunked", "{}"), 400, Closed),
        (
            "chunked in HTTP/1.0",
            request("POST /generate HTTP/1.0\r\n", chunked, "2\r\n{}\r\n0\r\n\r\n"),
            400,
            Closed,
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_chunk_is_as_long_as_it_says() {
    let with = |body: &str| request(GENERATE, "transfer-encoding: chunked", body);
    check(vec![
        ("no size", with("\r\n{}\r\n0\r\n\r\n"), 400, Closed),
        ("a size that is none", with("zz\r\n{}\r\n0\r\n\r\n"), 400, Closed),
        ("a size below zero", with("-2\r\n{}\r\n0\r\n\r\n"), 400, Closed),
        ("a size beyond all numbers", with("ffffffffffffffffff\r\n{}\r\n0\r\n\r\n"), 400, Closed),
        ("a size with 0x", with("0x2\r\n{}\r\n0\r\n\r\n"), 400, Closed),
        ("a bare line feed after a size", with("2\n{}\r\n0\r\n\r\n"), 400, Closed),
        ("more than the size", with("2\r\n{}x\r\n0\r\n\r\n"), 400, Closed),
        ("no line end after a chunk", with("2\r\n{}0\r\n\r\n"), 400, Closed),
        ("an extension without an end", with(&format!("2;{}", "a".repeat(64 << 10))), 400, Closed),
        ("trailers without an end", with(&format!("0\r\n{}", "a: b\r\n".repeat(64 << 10))), 400, Closed),
    ])
    .await;
}

#[tokio::test]
async fn a_head_is_read_in_one_way() {
    let with = |lines: &str| request(ALIVE, lines, "");
    let lines = |count: usize| with("x-a: 1\r\n".repeat(count).trim_end());
    let long = |bytes: usize| with(&format!("x-a: {}", "a".repeat(bytes)));
    let target =
        |bytes: usize| format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(bytes)).into_bytes();
    check(vec![
        ("a folded line", with("x-a: 1\r\n  2"), 400, Closed),
        ("a space before the colon", with("x-a : 1"), 400, Closed),
        ("no colon", with("x-a"), 400, Closed),
        ("no name", with(": 1"), 400, Closed),
        ("a bare carriage return", with("x-a: 1\r2"), 400, Closed),
        ("NUL in a value", with("x-a: 1\0"), 400, Closed),
        ("NUL in a name", with("x-\0a: 1"), 400, Closed),
        ("NUL in the target", b"GET /live\0ness HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), 400, Closed),
        ("bytes beyond ASCII in a value", with("x-a: \u{fc}"), 200, Kept),
        ("bare line feeds", b"GET /liveness HTTP/1.1\nhost: x\n\n".to_vec(), 200, Kept),
        ("empty lines before", [b"\r\n\r\n", &with("x-a: b")[..]].concat(), 200, Kept),
        ("as many headers as can be", lines(99), 200, Kept),
        ("one header more", lines(100), 431, Closed),
        ("many headers", lines(4000), 431, Closed),
        ("a large head", long(400 << 10), 200, Kept),
        ("a huge head", long(1 << 20), 431, Closed),
        ("as long a target as can be", target(65_533), 404, Kept),
        ("a longer target", target(65_535), 414, Closed),
        ("HTTP/0.9", b"GET /liveness\r\n\r\n".to_vec(), 400, Closed),
        ("HTTP/1.2", b"GET /liveness HTTP/1.2\r\nhost: x\r\n\r\n".to_vec(), 400, Closed),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), 0, Closed),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(40), 400, Closed),
        ("no HTTP", b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec(), 400, Closed),
    ])
    .await;
}

#[tokio::test]
async fn a_request_asks_for_what_is_here() {
    let line = |line: &str| format!("{line} HTTP/1.1\r\nhost: x\r\n\r\n").into_bytes();
    let upgrade =
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AAAA\r\nsec-websocket-version: 13";
    let cleartext_http2 = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk";
    check(vec![
        ("absolute form", line("GET http://elsewhere:1/liveness"), 200, Kept),
        ("a tunnel", line("CONNECT elsewhere:443"), 404, Kept),
        ("everything", line("OPTIONS *"), 404, Kept),
        ("a method of one's own", line("get /liveness"), 405, Kept),
        ("a way up", line("GET /../liveness"), 404, Kept),
        ("an upgrade", request(ALIVE, upgrade, ""), 200, Kept),
        ("an upgrade to HTTP/2", request(ALIVE, cleartext_http2, ""), 200, Kept),
        ("two at once", [request(ALIVE, "x-a: b", ""), request(ALIVE, "x-a: b", "")].concat(), 200, Kept),
        (
            "one behind a body",
            [request(GENERATE, "content-length: 2", "{}"), request(ALIVE, "x-a: b", "")].concat(),
            200,
            Kept,
        ),
        ("a body that nobody wants", request(ALIVE, "content-length: 2", "{}"), 200, Kept),
    ])
    .await;
}

#[tokio::test]
async fn who_waits_to_be_asked_for_its_body_is_told_why_it_is_not() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, "{}"));
    let limits = "--api-key user --max-payload-size 1000";
    let gateway = TestGateway::start(&format!("--worker-urls {} {limits}", worker.url())).await;
    for (call, key, length, status) in [
        ("POST /generate", "user", 2000, 413),
        ("POST /generate", "other", 20, 401),
        ("POST /rollscope/v1/spans", "user", 20, 404),
        ("DELETE /generate", "user", 20, 405),
    ] {
        let head = format!(
            "{call} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nexpect: 100-continue\r\n\
             content-length: {length}\r\n\r\n"
        );
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut received = Vec::new();
        // Not a byte of the body is sent.
        patient("the refusal", async {
            while !String::from_utf8_lossy(&received).contains(&format!("HTTP/1.1 {status} ")) {
                assert!(stream.read_buf(&mut received).await.unwrap() > 0, "{call}");
            }
        })
        .await;
        assert!(
            received.starts_with(format!("HTTP/1.1 {status}").as_bytes()),
            "{call} asks for what it refuses"
        );
    }
    // Who is not refused is asked.
    let head = "authorization: Bearer user\r\nexpect: 100-continue\r\ncontent-length: 2\r\nconnection: close";
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(&request(GENERATE, head, "")).await.unwrap();
    let mut asked = [0; 25];
    patient("the question", stream.read_exact(&mut asked)).await.unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"{}").await.unwrap();
    let mut received = String::new();
    patient("the reply", stream.read_to_string(&mut received)).await.unwrap();
    assert!(received.starts_with("HTTP/1.1 200 OK"), "{received}");
}
