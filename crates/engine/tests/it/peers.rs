//! Peers that do not keep to the protocol, or end in the middle of it: both sides of it spoken byte by byte.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::Query;
use axum::routing::get;
use axum::{Json, Router};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::support::{PATIENCE, Pair, Server, fresh_room, greedy, live};

const PROMPT: &str = "47+85+19=?\n";
pub(crate) const PAGE_BYTES: usize = 16 * 2048;
pub(crate) const ROW_BYTES: usize = 5 * 64 + 2 * 512 + 4096 * 4 + 64;

const HELLO: u8 = 1;
pub(crate) const WELCOME: u8 = 2;
const REFUSE: u8 = 3;
pub(crate) const PREPARE: u8 = 4;
pub(crate) const PAGES: u8 = 5;
pub(crate) const ROW: u8 = 6;
pub(crate) const RECEIVED: u8 = 7;
pub(crate) const DONE: u8 = 8;
pub(crate) const ABORT: u8 = 9;

/// One end of a connection.
pub(crate) struct Peer {
    stream: TcpStream,
}

impl Peer {
    pub(crate) async fn send(&mut self, kind: u8, body: &[u8]) {
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.push(kind);
        frame.extend_from_slice(body);
        self.stream.write_all(&frame).await.unwrap();
    }

    pub(crate) async fn receive(&mut self) -> (u8, Vec<u8>) {
        let frame = async {
            let mut header = [0; 5];
            self.stream.read_exact(&mut header).await.unwrap();
            let mut body = vec![0; u32::from_le_bytes(header[..4].try_into().unwrap()) as usize];
            self.stream.read_exact(&mut body).await.unwrap();
            (header[4], body)
        };
        timeout(PATIENCE, frame).await.unwrap()
    }

    /// Reads until the other end closes.
    async fn until_closed(mut self) {
        let mut rest = Vec::new();
        timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await.unwrap().ok();
    }

    /// A decode server that has introduced itself; returns the prefill server's answer.
    pub(crate) async fn decode(prefill_bootstrap: u64, fingerprint_off_by: u64) -> (Self, (u8, Vec<u8>)) {
        let (mut peer, fingerprint) = Self::connect(prefill_bootstrap).await;
        peer.send(HELLO, &hello(fingerprint.wrapping_add(fingerprint_off_by))).await;
        let answer = peer.receive().await;
        (peer, answer)
    }

    /// A decode server that has said nothing yet, and the prefill server's fingerprint.
    async fn connect(prefill_bootstrap: u64) -> (Self, u64) {
        let ask = async |rank: i64| {
            let url = format!(
                "/route?prefill_dp_rank={rank}&prefill_cp_rank={rank}&target_tp_rank={rank}&target_pp_rank={rank}"
            );
            http_get(prefill_bootstrap, &url).await
        };
        let (info, address) = (ask(-1).await, ask(0).await);
        let fingerprint = u64::from_str_radix(info["model_fingerprint"].as_str().unwrap(), 16).unwrap();
        let port = address["rank_port"].as_u64().unwrap() as u16;
        let stream = TcpStream::connect((address["rank_ip"].as_str().unwrap(), port)).await.unwrap();
        (Self { stream }, fingerprint)
    }

    pub(crate) async fn prepare(&mut self, room: u64, pages: u32) {
        self.send(PREPARE, &[&room.to_le_bytes()[..], &pages.to_le_bytes()].concat()).await;
    }
}

fn hello(fingerprint: u64) -> Vec<u8> {
    let mut hello = b"RSKV\x04\x00".to_vec();
    hello.extend(fingerprint.to_le_bytes());
    hello.extend(16_u32.to_le_bytes());
    hello.extend((PAGE_BYTES as u64).to_le_bytes());
    hello.extend((ROW_BYTES as u32).to_le_bytes());
    hello.extend(b"float32");
    hello
}

async fn http_get(port: u64, path: &str) -> Value {
    let mut stream = TcpStream::connect(("127.0.0.1", port as u16)).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

/// Waits until a server begins nothing new for the sake of other weights.
async fn until_held(server: &Server) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, why) = server.text(Method::GET, "/health_generate", "").await;
        if status == StatusCode::SERVICE_UNAVAILABLE && why.contains("about to be replaced") {
            return;
        }
        assert!(Instant::now() < deadline, "it never waits: {status} {why}");
    }
}

fn prefill_request(room: u64) -> Value {
    json!({"text": PROMPT, "sampling_params": greedy(64), "bootstrap_room": room})
}

fn message(reply: &Value) -> &str {
    reply["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {reply}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefill_server_speaks_the_documented_protocol() {
    let prefill = Pair::start_prefill(&[]).await;
    let (mut decode, welcome) = Peer::decode(crate::support::bootstrap_port(&prefill).await, 0).await;
    assert_eq!(welcome, (WELCOME, vec![]));
    // `Done` confirms what was not confirmed by itself.
    for confirmed in [&[PAGE_BYTES, ROW_BYTES][..], &[PAGE_BYTES], &[]] {
        let room = fresh_room();
        decode.prepare(room, 1).await;
        let transfer = async {
            let (kind, pages) = decode.receive().await;
            assert_eq!((kind, pages.len()), (PAGES, 12 + PAGE_BYTES));
            assert_eq!((&pages[..8], &pages[8..12]), (&room.to_le_bytes()[..], &[0; 4][..]));
            let (kind, row) = decode.receive().await;
            assert_eq!((kind, row.len()), (ROW, 8 + ROW_BYTES));
            // The first token is a 4, and the room is the last column.
            assert_eq!(
                (&row[8..12], &row[row.len() - 64..][..8]),
                (&52_u32.to_le_bytes()[..], &room.to_le_bytes()[..])
            );
            for bytes in confirmed {
                decode.send(RECEIVED, &[room.to_le_bytes(), (*bytes as u64).to_le_bytes()].concat()).await;
            }
            decode.send(DONE, &room.to_le_bytes()).await;
        };
        let body = prefill_request(room);
        let (reply, ()) = tokio::join!(prefill.generate(&body), transfer);
        let meta = &reply["meta_info"];
        let megabytes = meta["pd_transfer_total_mb"].as_f64().unwrap();
        assert!((megabytes * 1024.0 * 1024.0 - (PAGE_BYTES + ROW_BYTES) as f64).abs() < 0.5, "{reply}");
        assert!(meta["pd_transfer_speed_gb_s"].as_f64().unwrap() > 0.0, "{reply}");
    }
    prefill.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_decode_peer_loses_its_rooms_and_harms_nobody() {
    let pair = Pair::start(&[]).await;
    let (_, refusal) = Peer::decode(pair.bootstrap_port, 1).await;
    assert_eq!(refusal.0, REFUSE);
    assert!(String::from_utf8(refusal.1).unwrap().starts_with("model fingerprint differs: prefill "));

    // What the peer does once it has two rooms, one of them waiting for its request; and what the other then fails with.
    let endings: [(&[u8], &str); 5] = [
        (&[], "connection to the decode server ended: connection"),
        (&[9, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 0, 0], "unknown kind of frame: 77"),
        (&[255, 255, 255, 255, DONE], "the limit is 65536"),
        (&[3, 0, 0, 0, DONE, 0, 0, 0], "malformed body"),
        (&[9, 0, 0, 0, ROW, 0, 0, 0, 0, 0, 0, 0, 0, 0], "Row frame out of place"),
    ];
    for (bytes, reason) in endings {
        let (mut decode, _) = Peer::decode(pair.bootstrap_port, 0).await;
        let (room, early) = (fresh_room(), fresh_room());
        decode.prepare(early, 1).await;
        decode.prepare(room, 1).await;
        let end = async {
            // The pages and the row have come, and are not confirmed.
            assert_eq!(decode.receive().await.0, PAGES);
            assert_eq!(decode.receive().await.0, ROW);
            let body = pair.paired(&json!({"text": PROMPT, "sampling_params": greedy(64)}));
            tokio::join!(pair.prefill.generate(&body), pair.decode.generate(&body));
            if bytes.is_empty() {
                drop(decode);
            } else {
                decode.stream.write_all(bytes).await.unwrap();
                decode.until_closed().await;
            }
        };
        let body = prefill_request(room);
        let ((status, reply), ()) = tokio::join!(pair.prefill.post("/generate", &body), end);
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(message(&reply).contains(reason), "{reply}");
        pair.until_free().await;
    }

    // Halves that are not of one request.
    let (mut decode, _) = Peer::decode(pair.bootstrap_port, 0).await;
    let room = fresh_room();
    decode.prepare(room, 5).await;
    let (status, reply) = pair.prefill.post("/generate", &prefill_request(room)).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(message(&reply).contains("its prompt takes 1 pages, decode allocated 5"), "{reply}");
    assert_eq!(decode.receive().await.0, ABORT);
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_goes_to_its_end_though_its_client_leaves() {
    let prefill = Pair::start_prefill(&[]).await;
    let bootstrap_port = crate::support::bootstrap_port(&prefill).await;
    let (mut decode, _) = Peer::decode(bootstrap_port, 0).await;
    let room = fresh_room();
    decode.prepare(room, 1).await;
    let other = crate::weights::other_weights();
    let update = json!({"model_path": other.path(), "weight_version": "2"});
    let leave = async {
        for kind in [PAGES, ROW] {
            assert_eq!(decode.receive().await.0, kind);
        }
        // It holds pages until its transfer is confirmed, and the update waits for it.
        tokio::select! {
            _ = prefill.post("/update_weights_from_disk", &update) => panic!("it did not wait"),
            () = until_held(&prefill) => {}
        }
        // Meanwhile another decode server appears, and speaks once the weights are others.
        let late = Peer::connect(bootstrap_port).await;
        decode.send(DONE, &room.to_le_bytes()).await;
        late
    };
    let body = prefill_request(room);
    let (reply, (mut late, fingerprint)) = tokio::join!(prefill.generate(&body), leave);
    assert_eq!(reply["meta_info"]["weight_version"], "default");
    let deadline = Instant::now() + PATIENCE;
    while prefill.get("/get_weight_version").await["weight_version"] != "2" {
        assert!(Instant::now() < deadline, "the weights are never replaced");
    }
    let body = json!({"text": PROMPT, "bootstrap_host": "2.2.2.2", "sampling_params": greedy(1)});
    assert_eq!(prefill.generate(&body).await["meta_info"]["weight_version"], "2");
    late.send(HELLO, &hello(fingerprint)).await;
    assert_eq!(late.receive().await.0, REFUSE);
    prefill.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_that_is_never_confirmed_ends_at_its_limit() {
    let prefill = Pair::start_prefill(&["--disaggregation-transfer-timeout", "0.2"]).await;
    let (mut decode, _) = Peer::decode(crate::support::bootstrap_port(&prefill).await, 0).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let room = fresh_room();
        decode.prepare(room, 1).await;
        let reply = prefill.generate(&prefill_request(room)).await;
        let finish = &reply["meta_info"]["finish_reason"];
        assert_eq!((&finish["type"], &finish["status_code"]), (&json!("abort"), &json!(504)), "{reply}");
        let kinds = {
            let mut kinds = vec![decode.receive().await.0];
            while kinds.last() != Some(&ABORT) {
                kinds.push(decode.receive().await.0);
            }
            kinds
        };
        // Unless the announcement came too late for it.
        if kinds == [PAGES, ROW, ABORT] {
            let expected = format!("Request {room} timed out after 0.2s in KVPoll.Transferring");
            assert_eq!(finish["message"], expected);
            break;
        }
        assert!(kinds == [ABORT] && Instant::now() < deadline, "{kinds:?} {reply}");
    }
    assert_eq!(prefill.metric("num_transfer_failed_reqs_total", "").await, "1");
    assert_eq!(prefill.metric("kv_transfer_timeouts_total", "stage=\"transfer\"").await, "1");
    prefill.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decode_peer_that_reads_late_holds_up_nobody_and_hears_all() {
    let pair = Pair::start(&[]).await;
    let (mut decode, _) = Peer::decode(pair.bootstrap_port, 0).await;
    // More than sockets and outbox hold: 4 MB a room.
    let rooms: Vec<_> = (0..6).map(|_| fresh_room()).collect();
    for room in &rooms {
        decode.prepare(*room, 125).await;
    }
    let body = json!({"input_ids": vec![vec![49; 2000]; rooms.len()], "bootstrap_room": rooms, "sampling_params": greedy(1)});
    let rest = async {
        let computed = |load: &Value| load["disaggregation"]["prefill_inflight_queue_reqs"] == 6;
        pair.prefill.until("all are computed", computed).await;
        let body = pair.paired(&json!({"text": PROMPT, "sampling_params": greedy(64)}));
        tokio::join!(pair.prefill.generate(&body), pair.decode.generate(&body));
        assert_eq!(live(&pair.prefill.load().await), 6);
        // There is no room for what is said next. A pause does not keep it.
        pair.prefill.post("/pause_generation", &json!({"mode": "in_place"})).await;
        pair.prefill.post("/abort_request", &json!({"abort_all": true})).await;
        let mut told = 0;
        while told < rooms.len() {
            told += usize::from(decode.receive().await.0 == ABORT);
        }
    };
    let ((status, _), ()) = tokio::join!(pair.prefill.post("/generate", &body), rest);
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    pair.prefill.post("/continue_generation", &json!({})).await;
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rooms_that_were_given_up_leave_place_for_others() {
    let pair = Pair::start(&[]).await;
    let (mut decode, _) = Peer::decode(pair.bootstrap_port, 0).await;
    // As many as a prefill server remembers, none of which it has heard of.
    let abort = |room: u64| [&[11, 0, 0, 0, ABORT][..], &room.to_le_bytes(), &[0, 0xf4, 1]].concat();
    let aborts: Vec<u8> = (0..65_536).flat_map(|index| abort((1 << 50) + index)).collect();
    decode.stream.write_all(&aborts).await.unwrap();
    // All have been taken once this is answered: room and count do not fit.
    let room = fresh_room();
    let mismatch = async {
        pair.prefill.until("it waits for decode", |load| live(load) == 1).await;
        decode.prepare(room, 5).await;
        decode.receive().await
    };
    let request = prefill_request(room);
    let (_, (kind, _)) = tokio::join!(pair.prefill.post("/generate", &request), mismatch);
    assert_eq!(kind, ABORT);

    let body = pair.paired(&json!({"text": PROMPT, "sampling_params": greedy(64)}));
    let prefill = async {
        let is_told = |load: &Value| load["disaggregation"]["decode_transfer_queue_reqs"] == 1;
        pair.decode.until("prefill was told", is_told).await;
        pair.prefill.generate(&body).await
    };
    tokio::join!(pair.decode.generate(&body), prefill);
    pair.until_free().await;
}

/// Releases the memory of a server that has requests, in a pause.
async fn release_in_pause(server: &Server) {
    server.post("/pause_generation", &json!({"mode": "in_place"})).await;
    let (status, reply) = server.post("/release_memory_occupation", &json!({})).await;
    assert_eq!(status, StatusCode::OK, "{reply}");
    assert_eq!(live(&server.load().await), 0);
    for path in ["/resume_memory_occupation", "/continue_generation"] {
        assert_eq!(server.post(path, &json!({})).await.0, StatusCode::OK);
    }
}

/// What the other half hears of a room then.
async fn hears_of_release(peer: &mut Peer, room: u64) {
    let (kind, told) = peer.receive().await;
    let head = [&room.to_le_bytes()[..], &[1], &503_u16.to_le_bytes()].concat();
    assert_eq!((kind, &told[..11]), (ABORT, &head[..]));
    assert!(String::from_utf8_lossy(&told[11..]).ends_with("the server's memory was released"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_are_aborted_when_memory_is_released_in_a_pause() {
    let prefill = Pair::start_prefill(&[]).await;
    let (mut decode, _) = Peer::decode(crate::support::bootstrap_port(&prefill).await, 0).await;
    let (room, unmet) = (fresh_room(), fresh_room());
    decode.prepare(room, 1).await;
    let (sent, waiting) = (prefill_request(room), prefill_request(unmet));
    let release = async {
        assert_eq!((decode.receive().await.0, decode.receive().await.0), (PAGES, ROW));
        let both =
            |load: &Value| load["disaggregation"]["prefill_bootstrap_queue_reqs"] == 1 && live(load) == 2;
        prefill.until("one is in flight and one waits", both).await;
        release_in_pause(&prefill).await;
        hears_of_release(&mut decode, room).await;
    };
    let (first, second, ()) =
        tokio::join!(prefill.post("/generate", &sent), prefill.post("/generate", &waiting), release);
    for (status, reply) in [first, second] {
        assert_eq!(
            (status, message(&reply)),
            (StatusCode::SERVICE_UNAVAILABLE, "the server's memory was released")
        );
    }
    prefill.until_free().await;

    let server = Server::start(&["--disaggregation-mode", "decode"]).await;
    let (port, transfer) = raw_prefill(suitable_info(&server).await).await;
    let room = fresh_room();
    let body = json!({
        "input_ids": vec![49; 20], "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room,
    });
    let release = async {
        let mut prefill = welcomed(&transfer).await;
        assert_eq!(prefill.receive().await.0, PREPARE);
        // The first of two pages.
        let (kind, page) = page(room, 0, PAGE_BYTES);
        prefill.send(kind, &page).await;
        assert_eq!(prefill.receive().await.0, RECEIVED);
        release_in_pause(&server).await;
        hears_of_release(&mut prefill, room).await;
    };
    let ((status, reply), ()) = tokio::join!(server.post("/generate", &body), release);
    assert_eq!(
        (status, message(&reply)),
        (StatusCode::SERVICE_UNAVAILABLE, "the server's memory was released")
    );
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_room_that_was_given_up_is_not_forgotten_in_a_pause() {
    let limit = Duration::from_millis(500);
    let prefill = Pair::start_prefill(&["--disaggregation-bootstrap-timeout", "0.5"]).await;
    prefill.post("/pause_generation", &json!({"mode": "in_place"})).await;
    let (mut decode, _) = Peer::decode(crate::support::bootstrap_port(&prefill).await, 0).await;
    let room = fresh_room();
    decode.send(ABORT, &[&room.to_le_bytes()[..], &[0], &500_u16.to_le_bytes(), b"enough"].concat()).await;
    // It is remembered once its announcement is turned down.
    decode.prepare(room, 1).await;
    assert_eq!(decode.receive().await.0, ABORT);
    // Longer than it is remembered, of which nothing passes.
    tokio::time::sleep(limit * 2).await;
    let (status, reply) = prefill.post("/generate", &prefill_request(room)).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(message(&reply), "decode server gave the request up: enough");
    prefill.post("/continue_generation", &json!({})).await;
    prefill.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decode_peer_that_only_makes_the_server_answer_is_given_up() {
    let pair = Pair::start(&[]).await;
    let (mut decode, _) = Peer::decode(pair.bootstrap_port, 0).await;
    let room = fresh_room();
    decode.prepare(room, 1).await;
    // Each of these is answered, and the answers are not read.
    let again = [&12_u32.to_le_bytes()[..], &[PREPARE], &room.to_le_bytes(), &1_u32.to_le_bytes()].concat();
    let thousand = again.repeat(1000);
    let nag = async { while decode.stream.write_all(&thousand).await.is_ok() {} };
    timeout(PATIENCE, nag).await.unwrap();
    pair.generate(&json!({"text": PROMPT, "sampling_params": greedy(64)})).await;
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decode_peer_that_announces_too_much_is_given_up_and_its_rooms_are_known() {
    let pair = Pair::start(&[]).await;
    let (mut decode, _) = Peer::decode(pair.bootstrap_port, 0).await;
    let first = fresh_room();
    let prepare = |room: u64| {
        [&12_u32.to_le_bytes()[..], &[PREPARE], &room.to_le_bytes(), &1_u32.to_le_bytes()].concat()
    };
    let rooms: Vec<u64> = std::iter::once(first).chain((1 << 50)..(1 << 50) + 8192).collect();
    let prepares: Vec<u8> = rooms.iter().flat_map(|room| prepare(*room)).collect();
    decode.stream.write_all(&prepares).await.unwrap();
    let why = "more than 8192 rooms of one decode server wait for their prefill half";
    assert_eq!(decode.receive().await, (REFUSE, why.as_bytes().to_vec()));
    decode.until_closed().await;
    for room in [first, *rooms.last().unwrap()] {
        let (status, reply) = pair.prefill.post("/generate", &prefill_request(room)).await;
        assert_eq!((status, message(&reply)), (StatusCode::SERVICE_UNAVAILABLE, why));
    }
    pair.generate(&json!({"text": PROMPT, "sampling_params": greedy(4)})).await;
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_room_that_is_announced_and_never_asked_for_is_given_up() {
    let limits = [
        "--disaggregation-bootstrap-timeout",
        "0.2",
        "--disaggregation-waiting-timeout",
        "0.2",
        "--disaggregation-transfer-timeout",
        "0.3",
    ];
    let prefill = Pair::start_prefill(&limits).await;
    let (mut decode, _) = Peer::decode(crate::support::bootstrap_port(&prefill).await, 0).await;
    let room = fresh_room();
    decode.prepare(room, 1).await;
    let (kind, told) = decode.receive().await;
    let head = [&room.to_le_bytes()[..], &[1], &500_u16.to_le_bytes()].concat();
    assert_eq!((kind, &told[..11]), (ABORT, &head[..]));
    let why = format!("the prefill half of room {room} has not come for 0.3s");
    assert_eq!(String::from_utf8_lossy(&told[11..]), why);
    prefill.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announced_room_that_is_given_up_is_answered_once() {
    let prefill = Pair::start_prefill(&[]).await;
    let (mut decode, _) = Peer::decode(crate::support::bootstrap_port(&prefill).await, 0).await;
    let abort = |room: u64| [&room.to_le_bytes()[..], &[1], &500_u16.to_le_bytes()].concat();
    let answer = async |decode: &mut Peer, room: u64| {
        let (kind, told) = decode.receive().await;
        assert_eq!((kind, &told[..8]), (ABORT, &room.to_le_bytes()[..]));
    };
    // One that nobody has asked for, one that is being sent, and one that differs in its pages, which is told without being asked.
    let [early, room, other] = [fresh_room(), fresh_room(), fresh_room()];
    decode.prepare(early, 1).await;
    decode.send(ABORT, &abort(early)).await;
    answer(&mut decode, early).await;
    decode.prepare(room, 1).await;
    let transfer = async {
        assert_eq!((decode.receive().await.0, decode.receive().await.0), (PAGES, ROW));
        for _ in 0..2 {
            decode.send(ABORT, &abort(room)).await;
        }
        answer(&mut decode, room).await;
    };
    let body = prefill_request(room);
    let ((status, _), ()) = tokio::join!(prefill.post("/generate", &body), transfer);
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    decode.prepare(other, 5).await;
    prefill.post("/generate", &prefill_request(other)).await;
    decode.send(ABORT, &abort(other)).await;
    answer(&mut decode, other).await;
    // Nothing else was said meanwhile.
    let last = fresh_room();
    decode.prepare(last, 1).await;
    decode.send(ABORT, &abort(last)).await;
    answer(&mut decode, last).await;
    prefill.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_a_room_is_not_taken_for_that_of_the_next_request() {
    let decode = Server::start(&["--disaggregation-mode", "decode"]).await;
    let (port, transfer) = raw_prefill(suitable_info(&decode).await).await;
    let room = fresh_room();
    let body = json!({
        "rid": "it", "text": PROMPT, "sampling_params": greedy(1),
        "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room,
    });
    let first = async {
        let mut prefill = welcomed(&transfer).await;
        assert_eq!(prefill.receive().await.0, PREPARE);
        decode.post("/abort_request", &json!({"rid": "it"})).await;
        assert_eq!(prefill.receive().await.0, ABORT);
        prefill
    };
    let ((status, _), mut prefill) = tokio::join!(decode.post("/generate", &body), first);
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    let second = async {
        decode.until("it is there again", |load| live(load) == 1).await;
        // All of the first was under way.
        for (kind, body) in [page(room, 0, PAGE_BYTES), row(room, room, 52)] {
            prefill.send(kind, &body).await;
            assert_eq!(prefill.receive().await.0, RECEIVED);
        }
        prefill.send(ABORT, &[&room.to_le_bytes()[..], &[1], &500_u16.to_le_bytes()].concat()).await;
        assert_eq!(prefill.receive().await.0, PREPARE);
        for (kind, body) in [page(room, 0, PAGE_BYTES), row(room, room, 53)] {
            prefill.send(kind, &body).await;
            assert_eq!(prefill.receive().await.0, RECEIVED);
        }
        assert_eq!(prefill.receive().await.0, DONE);
    };
    let (reply, ()) = tokio::join!(decode.generate(&body), second);
    assert_eq!(reply["output_ids"], json!([53]));
    decode.until_free().await;
}

/// What a prefill server sends of a room, and what the room fails with.
type Misdeed<'a> = (&'a dyn Fn(u64) -> Vec<(u8, Vec<u8>)>, &'a str);

/// A prefill server's bootstrap server and listener, without the rest. Returns the bootstrap port.
pub(crate) async fn raw_prefill(info: Value) -> (u16, TcpListener) {
    raw_prefill_behind(Arc::new(Semaphore::new(1)), info).await
}

/// The same, whose bootstrap server answers as long as there is a permit.
async fn raw_prefill_behind(gate: Arc<Semaphore>, info: Value) -> (u16, TcpListener) {
    let transfer = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let bootstrap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, rank_port) = (bootstrap.local_addr().unwrap().port(), transfer.local_addr().unwrap().port());
    let route = async move |Query(query): Query<HashMap<String, i64>>| {
        let _permit = gate.acquire().await.unwrap();
        match query["target_tp_rank"] {
            -1 => Json(info),
            _ => Json(json!({"rank_ip": "127.0.0.1", "rank_port": rank_port})),
        }
    };
    let router = Router::new().route("/route", get(route));
    tokio::spawn(async move { axum::serve(bootstrap, router).await });
    (port, transfer)
}

/// What a bootstrap server tells that suits a decode server of default options.
pub(crate) async fn suitable_info(decode: &Server) -> Value {
    let state = decode.get("/server_info").await["internal_states"][0].clone();
    json!({
        "page_size": 16,
        "kv_cache_dtype": "float32",
        "page_bytes": PAGE_BYTES,
        "metadata_row_bytes": ROW_BYTES,
        "model_fingerprint": state["model_fingerprint"],
    })
}

pub(crate) fn page(room: u64, first: u32, bytes: usize) -> (u8, Vec<u8>) {
    (PAGES, [&room.to_le_bytes()[..], &first.to_le_bytes(), &vec![0; bytes]].concat())
}

pub(crate) fn row(room: u64, in_row: u64, token: u32) -> (u8, Vec<u8>) {
    let mut row = vec![0; ROW_BYTES];
    row[..4].copy_from_slice(&token.to_le_bytes());
    row[ROW_BYTES - 64..][..8].copy_from_slice(&in_row.to_le_bytes());
    (ROW, [&room.to_le_bytes()[..], &row].concat())
}

/// The next decode server that connects.
pub(crate) async fn greeted(transfer: &TcpListener) -> Peer {
    let mut peer = Peer { stream: transfer.accept().await.unwrap().0 };
    assert_eq!(peer.receive().await.0, HELLO);
    peer
}

/// The same, welcomed.
pub(crate) async fn welcomed(transfer: &TcpListener) -> Peer {
    let mut peer = greeted(transfer).await;
    peer.send(WELCOME, &[]).await;
    peer
}

/// Answers each room that is prepared, until the connection ends.
async fn serve(mut peer: Peer, answer: impl Fn(u64) -> Vec<(u8, Vec<u8>)>) {
    let mut header = [0; 5];
    while peer.stream.read_exact(&mut header).await.is_ok() {
        let mut body = vec![0; u32::from_le_bytes(header[..4].try_into().unwrap()) as usize];
        peer.stream.read_exact(&mut body).await.unwrap();
        if header[4] == PREPARE {
            for (kind, body) in answer(u64::from_le_bytes(body[..8].try_into().unwrap())) {
                peer.send(kind, &body).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_has_fallen_silent_is_not_used_again() {
    let limit = ["--disaggregation-mode", "decode", "--disaggregation-waiting-timeout", "1"];
    let decode = Server::start(&limit).await;
    let (port, transfer) = raw_prefill(suitable_info(&decode).await).await;
    tokio::spawn(async move {
        let _silent = welcomed(&transfer).await;
        loop {
            let peer = welcomed(&transfer).await;
            tokio::spawn(serve(peer, |room| vec![page(room, 0, PAGE_BYTES), row(room, room, 52)]));
        }
    });
    let ask = async || {
        let body = json!({
            "text": PROMPT, "sampling_params": greedy(1),
            "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": fresh_room(),
        });
        decode.post("/generate", &body).await
    };
    let (status, reply) = ask().await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(message(&reply).ends_with("timed out after 1s in KVPoll.WaitingForInput"), "{reply}");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, reply) = ask().await;
        if status == StatusCode::OK {
            break assert_eq!(reply["output_ids"], json!([52]));
        }
        assert!(Instant::now() < deadline, "it never connects anew: {reply}");
    }
    decode.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_that_stops_half_way_ends_at_its_limit() {
    let limit = ["--disaggregation-mode", "decode", "--disaggregation-transfer-timeout", "0.5"];
    let decode = Server::start(&limit).await;
    let (port, transfer) = raw_prefill(suitable_info(&decode).await).await;
    tokio::spawn(async move {
        loop {
            let peer = welcomed(&transfer).await;
            tokio::spawn(serve(peer, |room| vec![page(room, 0, PAGE_BYTES)]));
        }
    });
    let deadline = Instant::now() + PATIENCE;
    loop {
        let room = fresh_room();
        let body = json!({
            "input_ids": vec![49; 20], "sampling_params": greedy(1),
            "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room,
        });
        let (status, reply) = decode.post("/generate", &body).await;
        let expected = format!("Request {room} timed out after 0.5s in KVPoll.Transferring");
        if status == StatusCode::INTERNAL_SERVER_ERROR && message(&reply) == expected {
            break;
        }
        // The page came too late for it.
        assert!(reply.to_string().contains("timed out") && Instant::now() < deadline, "{reply}");
    }
    decode.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_never_introduces_itself_is_not_waited_for() {
    // A transfer listener that accepts and says nothing.
    let limit = ["--disaggregation-mode", "decode", "--disaggregation-bootstrap-timeout", "0.5"];
    let decode = Server::start(&limit).await;
    let (port, transfer) = raw_prefill(suitable_info(&decode).await).await;
    let room = fresh_room();
    let body = json!({
        "text": PROMPT, "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room,
    });
    let accept = async { Peer { stream: transfer.accept().await.unwrap().0 }.receive().await };
    let ((status, reply), hello) = tokio::join!(decode.post("/generate", &body), accept);
    assert_eq!((status, hello.0), (StatusCode::INTERNAL_SERVER_ERROR, HELLO));
    let expected = format!("Request {room} timed out after 0.5s in KVPoll.Bootstrapping");
    assert_eq!(message(&reply), expected);
    decode.until_free().await;
    // A decode server that connects and says nothing.
    let pair = Pair::start(&[]).await;
    let (silent, _) = Peer::connect(pair.bootstrap_port).await;
    pair.generate(&json!({"text": PROMPT, "sampling_params": greedy(4)})).await;
    silent.until_closed().await;
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_up_before_the_connection_is_told_when_it_opens() {
    let decode = Server::start(&["--disaggregation-mode", "decode"]).await;
    let (port, transfer) = raw_prefill(suitable_info(&decode).await).await;
    let room = fresh_room();
    let body = json!({
        "rid": "early", "text": PROMPT,
        "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room,
    });
    let prefill = async {
        let mut prefill = Peer { stream: transfer.accept().await.unwrap().0 };
        assert_eq!(prefill.receive().await.0, HELLO);
        decode.post("/abort_request", &json!({"rid": "early"})).await;
        prefill.send(WELCOME, &[]).await;
        prefill.receive().await
    };
    let ((status, _), abort) = tokio::join!(decode.post("/generate", &body), prefill);
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    let told = [&room.to_le_bytes()[..], &[0], &500_u16.to_le_bytes(), b"Aborted by AbortReq."].concat();
    assert_eq!(abort, (ABORT, told));
    decode.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_up_before_the_server_is_found_is_told_when_it_is() {
    let decode = Server::start(&["--disaggregation-mode", "decode", "--max-total-tokens", "64"]).await;
    let gate = Arc::new(Semaphore::new(0));
    let (port, transfer) = raw_prefill_behind(Arc::clone(&gate), suitable_info(&decode).await).await;
    let (room, refused) = (fresh_room(), fresh_room());
    let mut body = json!({
        "rid": "early", "text": PROMPT, "sampling_params": greedy(1),
        "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room,
    });
    let abort = async {
        decode.until("it looks for it", |load| live(load) == 1).await;
        decode.post("/abort_request", &json!({"rid": "early"})).await;
    };
    let ((status, _), ()) = tokio::join!(decode.post("/generate", &body), abort);
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    // One that is not taken in at all.
    (body["input_ids"], body["bootstrap_room"]) = (json!(vec![49; 70]), json!(refused));
    body.as_object_mut().unwrap().remove("text");
    assert_eq!(decode.post("/generate", &body).await.0, StatusCode::BAD_REQUEST);
    gate.add_permits(1);
    let (stream, _) = timeout(PATIENCE, transfer.accept()).await.unwrap().unwrap();
    let mut prefill = Peer { stream };
    assert_eq!(prefill.receive().await.0, HELLO);
    prefill.send(WELCOME, &[]).await;
    for (room, status, why) in
        [(room, 500_u16, "Aborted by AbortReq."), (refused, 400, "The request needs 70 tokens")]
    {
        let (kind, told) = prefill.receive().await;
        let head = [&room.to_le_bytes()[..], &[0], &status.to_le_bytes()].concat();
        assert_eq!((kind, &told[..11]), (ABORT, &head[..]));
        assert!(String::from_utf8_lossy(&told[11..]).starts_with(why));
    }
    decode.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_of_other_weights_says_so_and_is_no_fault() {
    let prefill = Pair::start_prefill(&[]).await;
    let bootstrap_port = crate::support::bootstrap_port(&prefill).await;
    let (mut decode, _) = Peer::decode(bootstrap_port, 0).await;
    let room = fresh_room();
    decode.prepare(room, 1).await;
    let replaced = async {
        assert_eq!(decode.receive().await.0, PAGES);
        decode.send(REFUSE, b"the weights were replaced").await;
        decode.until_closed().await;
    };
    let body = prefill_request(room);
    let ((status, reply), ()) = tokio::join!(prefill.post("/generate", &body), replaced);
    let why = "connection to the decode server ended: the weights were replaced";
    assert_eq!((status, message(&reply)), (StatusCode::SERVICE_UNAVAILABLE, why));
    // The other way round.
    let (mut decode, _) = Peer::decode(bootstrap_port, 0).await;
    let other = crate::weights::other_weights();
    let update = prefill.post("/update_weights_from_disk", &json!({"model_path": other.path()})).await;
    assert_eq!(update.0, StatusCode::OK);
    assert_eq!(decode.receive().await, (REFUSE, b"the weights were replaced".to_vec()));
    decode.until_closed().await;
    prefill.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_prefill_peer_fails_its_rooms_and_harms_nobody() {
    let decode = Server::start(&["--disaggregation-mode", "decode"]).await;
    let info = suitable_info(&decode).await;
    let misdeeds: [Misdeed; 10] = [
        (&|_| vec![], "ended: connection"),
        (&|room| vec![page(room, 0, PAGE_BYTES)], "ended: connection"),
        (&|room| vec![page(room, 1, PAGE_BYTES)], "pages out of place"),
        (&|room| vec![page(room, 0, PAGE_BYTES - 1)], "pages out of place"),
        (&|room| vec![page(room, 0, 2 * PAGE_BYTES)], "pages out of place"),
        (&|room| vec![row(room, room, 52)], "metadata row out of place"),
        (
            &|room| vec![page(room, 0, PAGE_BYTES), row(room, 0, 52)],
            "Metadata corruption detected: row of room 0 for room",
        ),
        (
            &|room| vec![page(room, 0, PAGE_BYTES), row(room, (1 << 60) + room, 52)],
            "Metadata corruption detected: row of room 11529",
        ),
        (&|room| vec![page(room, 0, PAGE_BYTES), row(room, room, 320)], "Metadata corruption detected"),
        (&|_| vec![(PREPARE, vec![0; 12])], "Prepare frame out of place"),
    ];
    for (misdeed, reason) in misdeeds {
        let (port, transfer) = raw_prefill(info.clone()).await;
        let room = fresh_room();
        let body = json!({
            "text": PROMPT, "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room,
        });
        let prefill = async {
            let mut prefill = Peer { stream: transfer.accept().await.unwrap().0 };
            assert_eq!(prefill.receive().await.0, HELLO);
            prefill.send(WELCOME, &[]).await;
            let prepare = prefill.receive().await;
            assert_eq!(prepare, (PREPARE, [&room.to_le_bytes()[..], &1_u32.to_le_bytes()].concat()));
            let frames = misdeed(room);
            for (kind, body) in &frames {
                prefill.send(*kind, body).await;
            }
            if reason == "ended: connection" {
                drop(prefill);
            } else if reason.starts_with("Metadata") {
                // Only the room is at fault: the prefill server is told, and the connection stays.
                let kinds = [prefill.receive().await.0, prefill.receive().await.0, prefill.receive().await.0];
                assert_eq!(kinds, [RECEIVED, RECEIVED, ABORT]);
            } else {
                prefill.until_closed().await;
            }
        };
        let ((status, reply), ()) = tokio::join!(decode.post("/generate", &body), prefill);
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(message(&reply).contains(reason), "{reason}: {reply}");
        decode.until_free().await;
    }

    // Servers that are of another kind, or of no kind.
    for (info, expected, reason) in [
        (json!({"page_size": 1, "kv_cache_dtype": "auto"}), 503, "it is a server of another kind"),
        (json!("hello"), 500, "its answer cannot be understood"),
        (
            json!({"page_size": 16, "kv_cache_dtype": "float16", "page_bytes": 1, "model_fingerprint": info["model_fingerprint"]}),
            503,
            "KV cache type differs: prefill float16, decode float32",
        ),
    ] {
        let (port, _transfer) = raw_prefill(info).await;
        let room = fresh_room();
        let body = json!({
            "text": PROMPT, "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room,
        });
        let (status, reply) = decode.post("/generate", &body).await;
        assert_eq!(status, expected);
        assert!(message(&reply).contains(reason), "{reason}: {reply}");
    }
    decode.until_free().await;
}
