//! The other end of a transfer, spoken byte by byte: a decode server's, or a prefill server's with its bootstrap server.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::Query;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::support::{PATIENCE, Server, greedy};

pub(crate) const PROMPT: &str = "47+85+19=?\n";
pub(crate) const PAGE_BYTES: usize = 16 * 2048;
pub(crate) const ROW_BYTES: usize = 5 * 64 + 2 * 512 + 4096 * 4 + 64;

pub(crate) const HELLO: u8 = 1;
pub(crate) const WELCOME: u8 = 2;
pub(crate) const REFUSE: u8 = 3;
pub(crate) const PREPARE: u8 = 4;
pub(crate) const PAGES: u8 = 5;
pub(crate) const ROW: u8 = 6;
pub(crate) const RECEIVED: u8 = 7;
pub(crate) const DONE: u8 = 8;
pub(crate) const ABORT: u8 = 9;

/// One end of a connection.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
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
    pub(crate) async fn until_closed(mut self) {
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
    pub(crate) async fn connect(prefill_bootstrap: u64) -> (Self, u64) {
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

pub(crate) fn hello(fingerprint: u64) -> Vec<u8> {
    let mut hello = b"RSKV\x04\x00".to_vec();
    hello.extend(fingerprint.to_le_bytes());
    hello.extend(16_u32.to_le_bytes());
    hello.extend((PAGE_BYTES as u64).to_le_bytes());
    hello.extend((ROW_BYTES as u32).to_le_bytes());
    hello.extend(b"float32");
    hello
}

pub(crate) async fn http_get(port: u64, path: &str) -> Value {
    let mut stream = TcpStream::connect(("127.0.0.1", port as u16)).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

/// What a prefill server is asked.
pub(crate) fn prefill_request(room: u64) -> Value {
    json!({"text": PROMPT, "sampling_params": greedy(64), "bootstrap_room": room})
}

/// What is said of an error.
pub(crate) fn message(reply: &Value) -> &str {
    reply["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {reply}"))
}

/// A prefill server's bootstrap server and listener, without the rest. Returns the bootstrap port.
pub(crate) async fn raw_prefill(info: Value) -> (u16, TcpListener) {
    raw_prefill_behind(Arc::new(Semaphore::new(1)), info).await
}

/// The same, whose bootstrap server answers as long as there is a permit.
pub(crate) async fn raw_prefill_behind(gate: Arc<Semaphore>, info: Value) -> (u16, TcpListener) {
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
pub(crate) async fn serve(mut peer: Peer, answer: impl Fn(u64) -> Vec<(u8, Vec<u8>)>) {
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
