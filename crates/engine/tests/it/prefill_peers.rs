//! A decode server before prefill servers that do not keep to the protocol, or end in the middle of it.

use std::sync::Arc;
use std::time::Instant;

use hyper::StatusCode;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::peer::{
    ABORT, DONE, HELLO, PAGE_BYTES, PAGES, PREPARE, PROMPT, Peer, RECEIVED, REFUSE, WELCOME, message, page,
    prefill_request, raw_prefill, raw_prefill_behind, row, serve, suitable_info, welcomed,
};
use crate::support::{PATIENCE, Pair, Server, fresh_room, greedy, live};

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
