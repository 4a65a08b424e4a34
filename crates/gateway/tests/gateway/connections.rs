//! Connections at their worst: half a request, no reader, a worker that has stopped listening, an end in between.

use std::io::ErrorKind;
use std::net::SocketAddr;

use http::Method;
use rollscope_config::{Options as _, Published};
use rollscope_gateway::{Gateway, GatewayOptions};
use rollscope_testkit::{CallEnd, Client, End, FakeWorker, Gate, Script, patient};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::harness::TestGateway;

/// A connection on which this has been sent.
async fn sent(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// The next connection that brings a generation, of which no more than the beginning is read. Whatever else is asked is
/// unknown.
async fn generation(listener: &TcpListener) -> TcpStream {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut begin = [0; 100];
        let length = stream.read(&mut begin).await.unwrap();
        if begin[..length].starts_with(b"POST /generate") {
            return stream;
        }
        stream
            .write_all(b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
    }
}

/// What comes until the connection ends, in whatever way.
async fn rest(stream: &mut TcpStream) -> String {
    let mut received = Vec::new();
    let _reset_is_an_end_too = patient("a connection's end", stream.read_to_end(&mut received)).await;
    String::from_utf8_lossy(&received).into_owned()
}

#[tokio::test]
async fn half_a_head_is_cut_in_time_and_an_idle_connection_is_not() {
    let gateway = TestGateway::start("--request-head-timeout-secs 1").await;
    let mut idle = sent(gateway.address, b"GET /liveness HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(patient("a reply", idle.read(&mut [0; 1000])).await.unwrap() > 0);
    let mut half = sent(gateway.address, b"POST /generate HTTP/1.1\r\nhos").await;
    assert_eq!(rest(&mut half).await, "");
    idle.write_all(b"GET /liveness HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    assert!(rest(&mut idle).await.starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn who_says_nothing_and_who_stops_in_the_middle_are_given_up_in_time() {
    let gateway = TestGateway::start("--request-head-timeout-secs 1").await;
    let mut silent = sent(gateway.address, b"").await;
    assert_eq!(rest(&mut silent).await, "");
    let limits = "--request-body-timeout-secs 0.1 --client-idle-timeout-secs 1";
    let gateway = TestGateway::start(limits).await;
    let half = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"text\"";
    let mut half = sent(gateway.address, half).await;
    let told = rest(&mut half).await;
    assert!(told.starts_with("HTTP/1.1 408") && told.contains("--request-body-timeout-secs"), "{told}");
    let late = TestGateway::start("--request-timeout-secs 1").await;
    let head = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{";
    let told = rest(&mut sent(late.address, head).await).await;
    assert!(told.starts_with("HTTP/1.1 504") && told.contains("--request-timeout-secs"), "{told}");
    let mut idle = sent(gateway.address, b"GET /liveness HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(rest(&mut idle).await.starts_with("HTTP/1.1 200 OK"));
    gateway.settled(&[("failed", 1)]).await;
}

#[tokio::test]
async fn a_client_that_leaves_after_more_than_its_request_is_noticed() {
    let request = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
    for more in ["\r\n", "POST /generate HTTP/1.1\r\nhost", request] {
        for script in [Script::new().hang(), Script::sse().event("{}").hang()] {
            let (prefill, decode) = (FakeWorker::start().await, FakeWorker::start().await);
            prefill.on("/generate", Script::new().hang());
            decode.on("/generate", script);
            let gateway = TestGateway::pair(prefill.address(), decode.address(), "").await;
            let client = sent(gateway.address, format!("{request}{more}").as_bytes()).await;
            prefill.arrived("/generate", 1).await;
            decode.arrived("/generate", 1).await;
            drop(client);
            for worker in [&prefill, &decode] {
                assert_eq!(worker.ended("/generate", 1).await[0].end, Some(CallEnd::PeerLeft), "{more:?}");
            }
            gateway.settled(&[("aborted", 1)]).await;
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_after_more_than_its_request_is_noticed_while_the_gateway_ends() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::new().hang());
    let args = format!("--worker-urls {} --shutdown-grace-period-secs 3600", worker.url());
    let gateway = TestGateway::start(&args).await;
    let request = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}\r\n";
    let client = sent(gateway.address, request.as_bytes()).await;
    worker.arrived("/generate", 1).await;
    let ending = gateway.begin_stop();
    drop(client);
    assert_eq!(worker.ended("/generate", 1).await[0].end, Some(CallEnd::PeerLeft));
    patient("the gateway's end", ending).await.unwrap();
}

#[tokio::test]
async fn connections_that_are_too_many_are_refused_with_a_sentence() {
    let gateway = TestGateway::start("--max-connections 2").await;
    let (first, second) = (sent(gateway.address, b"").await, sent(gateway.address, b"").await);
    let mut third = sent(gateway.address, b"GET /liveness HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let told = rest(&mut third).await;
    assert!(told.starts_with("HTTP/1.1 503") && told.contains("which is --max-connections"), "{told}");
    drop((first, second));
    let figures = async {
        loop {
            let reply = Client::try_call(gateway.address, Method::GET, "/metrics", &[], "").await;
            if let Ok(reply) = reply
                && reply.status == 200
            {
                return reply.text().await;
            }
        }
    };
    let figures = patient("place for another", figures).await;
    assert!(!figures.contains("rollscope_client_connections_refused_total 0\n"), "{figures}");
}

#[tokio::test]
async fn who_takes_nothing_of_its_reply_is_cut_in_time() {
    let worker = FakeWorker::start().await;
    // More than the sockets hold, and no end.
    worker.on("/generate", Script::head(200, &[], None).raw("{").raw(vec![b' '; 64 << 20]).hang());
    let gateway =
        TestGateway::start(&format!("--worker-urls {} --stream-idle-timeout-secs 1", worker.url())).await;
    let request = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
    let _client = sent(gateway.address, request).await;
    assert_eq!(worker.ended("/generate", 1).await[0].end, Some(CallEnd::PeerLeft));
    gateway.settled(&[("aborted", 1)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_is_still_being_written_is_written_before_the_end() {
    const LENGTH: usize = 64 << 20;
    let worker = FakeWorker::start().await;
    let (prefill, decode) = (worker.address(), FakeWorker::start().await);
    worker.on("/generate", Script::json(200, "{}"));
    decode.on("/generate", Script::json(200, &format!("{{{}}}", " ".repeat(LENGTH))));
    let gateway = TestGateway::pair(prefill, decode.address(), "").await;
    let request = b"POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    let mut client = sent(gateway.address, request).await;
    // All of the reply has been handed over, and most of it not taken.
    gateway.settled(&[("completed", 1)]).await;
    let ending = gateway.begin_stop();
    let (mut piece, mut received) = (vec![0; 512 << 10], 0);
    let reading = async {
        loop {
            match client.read(&mut piece).await {
                Ok(0) | Err(_) => return received,
                Ok(count) => received += count,
            }
            // A client that takes its time: more than the gateway's end lets idle connections have.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    assert!(patient("the reply", reading).await > LENGTH);
    patient("the gateway's end", ending).await.unwrap();
}

#[tokio::test]
async fn who_ends_what_it_sends_has_left() {
    let worker = FakeWorker::start().await;
    let gateway = TestGateway::regular(&[&worker]).await;
    for script in [Script::new().hang(), Script::sse().event(r#"{"meta_info":{}}"#).hang()] {
        worker.on("/generate", script);
        let count = worker.calls("/generate").len() + 1;
        let request = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
        let mut client = sent(gateway.address, request).await;
        worker.arrived("/generate", count).await;
        client.shutdown().await.unwrap();
        assert_eq!(worker.ended("/generate", count).await[count - 1].end, Some(CallEnd::PeerLeft));
        assert!(!rest(&mut client).await.contains("\r\n0\r\n"), "no clean end");
    }
    gateway.settled(&[("aborted", 2), ("completed", 0)]).await;
}

#[tokio::test]
async fn a_reply_that_is_cut_has_no_clean_end_for_a_client_without_chunks() {
    let worker = FakeWorker::start().await;
    let gateway =
        TestGateway::start(&format!("--worker-urls {} --shutdown-grace-period-secs 0", worker.url())).await;
    let ask = async |connection: &str| {
        let head = "POST /generate HTTP/1.0\r\ncontent-length: 2\r\nconnection";
        sent(gateway.address, format!("{head}: {connection}\r\n\r\n{{}}").as_bytes()).await
    };
    let json = || Script::chunked(200, "application/json");
    let (unary, events) = (format!(r#"{{"text":"{}"}}"#, "x".repeat(1 << 20)), "data: {}\n\n");
    let done = format!("{events}data: [DONE]\n\n");
    for (script, whole) in [
        (json().send(&unary).end(), Some(&unary)),
        (Script::sse().send(&done).end(), Some(&done)),
        (json().send(&unary[..1 << 19]).close(), None),
        (Script::sse().send(events).close(), None),
    ] {
        worker.on("/generate", script);
        for connection in ["close", "keep-alive"] {
            let (mut client, mut received) = (ask(connection).await, Vec::new());
            let end = patient("the end", client.read_to_end(&mut received)).await;
            let received = String::from_utf8_lossy(&received);
            let (head, body) = received.split_once("\r\n\r\n").unwrap();
            assert!(head.contains("connection: close") && !head.contains("transfer-encoding"), "{head}");
            match whole {
                Some(whole) => assert!(end.is_ok() && body == whole, "{end:?} after {} bytes", body.len()),
                None => assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset),
            }
        }
    }
    // What has a length is no matter of the connection's end, which goes on.
    worker.on("/generate", Script::json(200, "{}"));
    let (mut client, mut received) = (ask("keep-alive").await, Vec::new());
    while !received.ends_with(b"\r\n\r\n{}") {
        assert!(patient("the reply", client.read_buf(&mut received)).await.unwrap() > 0);
    }
    client.write_all(b"GET /liveness HTTP/1.0\r\n\r\n").await.unwrap();
    assert!(rest(&mut client).await.ends_with("OK"));

    worker.on("/generate", Script::sse().send(events).hang());
    let (mut client, mut received) = (ask("close").await, vec![0; 12]);
    patient("the head", client.read_exact(&mut received)).await.unwrap();
    gateway.stop().await;
    let end = patient("a reset", client.read_to_end(&mut received)).await;
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(String::from_utf8_lossy(&received).contains("shutting_down"));
}

#[tokio::test]
async fn half_a_head_does_not_hold_up_the_end() {
    let gateway =
        TestGateway::start("--request-head-timeout-secs 3600 --shutdown-grace-period-secs 3600").await;
    let _half = sent(gateway.address, b"POST /generate HTTP/1.1\r\nhos").await;
    let _silent = sent(gateway.address, b"").await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_its_request_is_aborted() {
    let gateway = TestGateway::start("").await;
    let half = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"text\"";
    drop(sent(gateway.address, half).await);
    let garbled = b"POST /generate HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n";
    let mut garbled = sent(gateway.address, garbled).await;
    assert!(rest(&mut garbled).await.starts_with("HTTP/1.1 400"));
    let figures = async {
        while gateway.figures().await["rollscope_requests_started_total"] < 2 {
            tokio::task::yield_now().await;
        }
    };
    patient("both requests", figures).await;
    gateway.settled(&[("aborted", 1), ("failed", 1)]).await;
}

#[tokio::test]
async fn a_large_request_that_is_refused_is_told_why() {
    let worker = FakeWorker::start().await;
    let args = format!("--worker-urls {} --max-payload-size 1000", worker.url());
    let gateway = TestGateway::start(&args).await;
    let reply = gateway.generate(&"x".repeat(8 << 20)).await;
    assert_eq!(reply.status, 413);
    assert!(reply.text().await.contains("--max-payload-size"));
    // One that waits for an answer before it sends gets it, and may go on by the same connection.
    let head = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2000\r\n\r\n";
    let mut waiting = sent(gateway.address, head).await;
    let mut begin = [0; 12];
    patient("an answer", waiting.read_exact(&mut begin)).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 413");
}

#[tokio::test]
async fn a_large_request_that_is_refused_unread_is_told_why() {
    let (worker, gate) = (FakeWorker::start().await, Gate::new());
    worker.on("/generate", Script::new().wait(&gate).raw("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"));
    let limits = "--max-concurrent-requests 1 --queue-size 0 --api-key user --admin-api-key root";
    let gateway = TestGateway::start(&format!("--worker-urls {} {limits}", worker.url())).await;
    // As most clients do, this one sends all of its request before it looks for an answer.
    let ask = async |call: &str, key: &str, body: &str| {
        let length = body.len();
        let head = format!(
            "{call} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\
             content-length: {length}\r\n\r\n"
        );
        sent(gateway.address, (head + body).as_bytes()).await
    };
    let mut first = ask("POST /generate", "user", "{}").await;
    worker.arrived("/generate", 1).await;
    let large = "x".repeat(8 << 20);
    for (call, key, status) in [
        ("POST /generate", "user", 429),
        ("POST /generate", "other", 401),
        ("POST /flush_cache", "user", 403),
        ("POST /rollscope/v1/spans", "root", 404),
        ("DELETE /generate", "user", 405),
    ] {
        let told = rest(&mut ask(call, key, &large).await).await;
        assert!(told.starts_with(&format!("HTTP/1.1 {status}")), "{call}: {told}");
        assert_eq!(told.contains("retry-after: 1\r\n"), status == 429, "{call}: {told}");
    }
    gate.open();
    assert!(rest(&mut first).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn who_leaves_the_queue_leaves_its_place() {
    let (worker, gate) = (FakeWorker::start().await, Gate::new());
    worker.on("/generate", Script::new().wait(&gate).raw("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"));
    let limits = "--max-concurrent-requests 1 --queue-size 1 --queue-timeout-secs 3600";
    let gateway = TestGateway::start(&format!("--worker-urls {} {limits}", worker.url())).await;
    let mut first =
        sent(gateway.address, b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}").await;
    worker.arrived("/generate", 1).await;
    // Larger than what is read of a request before it has its turn.
    for body in ["{}", &"x".repeat(64 << 10)] {
        let head = format!("POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", 1 << 20);
        let waiting = sent(gateway.address, (head + body).as_bytes()).await;
        let waits = async |count: u64| {
            patient("the queue", async {
                while gateway.figures().await["rollscope_queue_waiting"] != count {}
            })
            .await;
        };
        waits(1).await;
        drop(waiting);
        waits(0).await;
    }
    gate.open();
    let mut begin = [0; 12];
    patient("the reply", first.read_exact(&mut begin)).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    drop(first);
    gateway.settled(&[("completed", 1), ("aborted", 2)]).await;
}

#[tokio::test]
async fn what_is_asked_beside_the_requests_keeps_no_connection_that_its_worker_has_closed() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let policy = ["--policy", "power_of_two", "--load-poll-interval-secs", "3600"];
    let args = [&["--worker-urls", &url, "--disable-health-check"], &policy[..]].concat();
    let options = GatewayOptions::from_args(args).unwrap();
    let gateway = Gateway::new(Published::publish(options), None, None).unwrap();
    let clients = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(gateway.serve_on_threads(1, clients, async { drop(stopped.await) }));
    // Beside its load a worker is asked who it is, by another connection.
    let mut stream = loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            assert!(patient("a question", stream.read_buf(&mut asked)).await.unwrap() > 0);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        if asked.starts_with(b"GET /v1/loads") {
            break stream;
        }
    };
    stream.shutdown().await.unwrap();
    assert_eq!(patient("the other half", stream.read(&mut [0])).await.unwrap(), 0);
    stop.send(()).unwrap();
    patient("the gateway's end", served).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_worker_that_refuses_before_it_has_read_all_is_heard() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let worker = tokio::spawn(async move {
        let mut served = Vec::new();
        for _ in 0..2 {
            let mut stream = generation(&listener).await;
            stream.write_all(b"HTTP/1.1 413 Large\r\ncontent-length: 5\r\n\r\nlarge").await.unwrap();
            served.push(stream);
        }
        served
    });
    let gateway = TestGateway::start(&format!("--worker-urls {url}")).await;
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(32 << 20));
    // Each comes by a connection of its own: on the first, the rest of a request is still to be sent.
    for _ in 0..2 {
        let reply = gateway.generate(&body).await;
        assert_eq!((reply.status.as_u16(), &*reply.text().await), (413, "large"));
    }
    worker.await.unwrap();
    gateway.settled(&[("failed", 2)]).await;
}

#[tokio::test]
async fn a_stream_that_falls_silent_is_given_up() {
    let worker = FakeWorker::start().await;
    // The head and the event at once: between them there is no pause to be taken for silence.
    let begin = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\na\r\ndata: {}\n\n\r\n";
    worker.on("/generate", Script::new().raw(begin).hang());
    let args = format!("--worker-urls {} --stream-idle-timeout-secs 0.1", worker.url());
    let gateway = TestGateway::start(&args).await;
    let (body, end) = gateway.generate(r#"{"stream":true}"#).await.rest().await;
    assert!(body.contains("reply not finished within 100ms") && end == End::Cut, "{body}");
    gateway.settled(&[("truncated", 1)]).await;
}

/// Sends pieces of a body without end until the peer takes no more; then tells how many bytes it took.
async fn pour(mut stream: TcpStream, content_type: &str, piece: &str, stalled: oneshot::Sender<usize>) {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let (piece, mut taken) = (piece.as_bytes(), 0);
    while taken < POURED_BYTES {
        // A piece of which a part was taken goes on where that ended.
        match stream.try_write(&piece[taken % piece.len()..]) {
            Ok(count) => taken += count,
            // Whoever is not ready for so long has stopped reading; on a slow machine it may only seem so, and less was taken.
            Err(_) if tokio::time::timeout(STALL, stream.writable()).await.is_err() => break,
            Err(_) => {}
        }
    }
    stalled.send(taken).unwrap();
}

const POURED_BYTES: usize = 1 << 30;
const STALL: std::time::Duration = std::time::Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_stops_the_worker_and_not_the_gateway() {
    let event = format!("data: {{\"text\":\"{}\",\"meta_info\":{{}}}}\n\n", "x".repeat(60_000));
    let prefill = FakeWorker::start().await;
    prefill.on("/generate", Script::json(200, r#"{"meta_info":{"pd_prefill_retry_count":0}}"#));
    for (content_type, piece, fleet) in [
        ("text/plain", "{\"a\":".repeat(10 << 10), "--worker-urls".to_owned()),
        ("text/event-stream", event.clone(), "--worker-urls".to_owned()),
        ("text/event-stream", event, format!("--pd-disaggregation --prefill {} --decode", prefill.url())),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stalled, taken) = oneshot::channel();
        let worker = tokio::spawn(async move {
            pour(generation(&listener).await, content_type, &piece, stalled).await;
        });
        let gateway = TestGateway::start(&format!("{fleet} {url}")).await;
        let request = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
        let client = sent(gateway.address, request).await;
        let taken = patient("the worker's stop", taken).await.unwrap();
        // What the sockets of both sides hold, a few megabytes each, and little more.
        assert!(taken < 64 << 20, "{taken} bytes of {content_type}");
        drop(client);
        worker.await.unwrap();
        gateway.settled(&[("aborted", 1)]).await;
    }
}

#[tokio::test]
async fn connections_are_spread_over_threads_that_all_end() {
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, "{}"));
    let options =
        GatewayOptions::from_args(["--worker-urls", &worker.url(), "--disable-health-check"]).unwrap();
    let gateway = Gateway::new(Published::publish(options), None, None).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(gateway.serve_on_threads(3, listener, async { drop(stopped.await) }));
    let mut clients = JoinSet::new();
    for _ in 0..12 {
        clients.spawn(async move {
            for _ in 0..5 {
                assert_eq!(Client::post(address, "/generate", "{}").await.text().await, "{}");
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    worker.on("/generate", Script::new().hang());
    let live = tokio::spawn(async move { Client::post(address, "/generate", "{}").await });
    worker.arrived("/generate", 61).await;
    stop.send(()).unwrap();
    live.abort();
    patient("the gateway's end", served).await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
