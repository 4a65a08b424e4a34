//! A viewer on a port of its own, and a client that sends it exactly what the test says.

use std::net::SocketAddr;
use std::time::Duration;

use rollscope_run::Run;
use rollscope_view::{Served, ViewError, serve};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Beyond this the server hangs.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct Viewer {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<(), ViewError>>,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: String,
    pub(crate) body: Vec<u8>,
}

// === impl Viewer ===

impl Viewer {
    pub(crate) async fn start(run: Run) -> Self {
        Self::start_with(Served { run: run.into(), against: None, token: None }).await
    }

    pub(crate) async fn start_with(what: Served) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(serve(what, listener, async move { drop(stopped.await) }));
        Self { address, stop, server }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n", self.address)).await
    }

    pub(crate) async fn json(&self, path: &str) -> Value {
        let reply = self.get(path).await;
        let body = String::from_utf8_lossy(&reply.body);
        assert_eq!(reply.status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Sends a head without its last empty line.
    pub(crate) async fn send(&self, head: &str) -> Reply {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let headers = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = headers.split(' ').nth(1).unwrap().parse().unwrap();
        Reply { status, headers, body: bytes[end + 4..].to_vec() }
    }

    /// A connection that has sent the beginning of a request.
    pub(crate) async fn half_a_head(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
        // Answered on another connection, so that the first has been taken up.
        self.get("/").await;
        stream
    }

    /// Stops it as its program would, and waits for its end: a server that hangs fails the test.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        let ended = tokio::time::timeout(PATIENCE, self.server).await;
        ended.unwrap().unwrap().unwrap();
    }
}

// === impl Reply ===

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.lines().filter_map(|line| line.split_once(": "));
        headers.find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}
