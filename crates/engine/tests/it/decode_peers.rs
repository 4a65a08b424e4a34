//! A prefill server before decode servers that do not keep to the protocol, or end in the middle of it.

use std::time::{Duration, Instant};

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::peer::{
    ABORT, DONE, HELLO, PAGE_BYTES, PAGES, PREPARE, PROMPT, Peer, RECEIVED, REFUSE, ROW, ROW_BYTES, WELCOME,
    hello, message, page, prefill_request, raw_prefill, suitable_info, welcomed,
};
use crate::support::{PATIENCE, Pair, Server, fresh_room, greedy, live};

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
