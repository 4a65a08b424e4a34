//! A client that sees how a reply arrives: piece by piece, and whether it ends or breaks.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::gate::patient;

/// Calls, each over a connection of its own.
#[derive(Clone, Copy, Debug)]
pub struct Client;

/// A reply whose head has arrived. Dropping it closes the connection.
#[derive(Debug)]
pub struct Reply {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    body: Incoming,
    /// Held for its drop.
    _connection: Connection,
}

/// How a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As its framing says it should.
    Clean,
    /// The connection broke before that.
    Cut,
}

/// A connection's task.
#[derive(Debug)]
struct Connection(AbortHandle);

// === impl Client ===

impl Client {
    /// Posts JSON and waits for the reply's head.
    pub async fn post(address: SocketAddr, path: &str, body: &str) -> Reply {
        Self::post_with(address, path, &[], body).await
    }

    /// Posts JSON with further headers.
    pub async fn post_with(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let headers = [&[("content-type", "application/json")], headers].concat();
        Self::call(address, Method::POST, path, &headers, body).await
    }

    /// Gets a path.
    pub async fn get(address: SocketAddr, path: &str) -> Reply {
        Self::call(address, Method::GET, path, &[], "").await
    }

    /// Calls and waits for the reply's head. Dropping the future closes the connection.
    pub async fn call(
        address: SocketAddr,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        let sent = Self::try_call(address, method, path, headers, body);
        match patient("the head of a reply", sent).await {
            Ok(reply) => reply,
            Err(error) => panic!("no reply from {address}{path}: {error}"),
        }
    }

    /// Calls; an error is a connection that was refused, or broke before the reply's head.
    pub async fn try_call(
        address: SocketAddr,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Reply, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = Connection(tokio::spawn(connection).abort_handle());
        let mut request = Request::builder().method(method).uri(path).header("host", address.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        let (parts, body) = sender.send_request(request.body(body)?).await?.into_parts();
        Ok(Reply { status: parts.status, headers: parts.headers, body, _connection: connection })
    }
}

// === impl Reply ===

impl Reply {
    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The next piece of the body; nothing at its end, clean or not.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            let frame = patient("a piece of a body", self.body.frame()).await;
            match frame?.ok()?.into_data() {
                Ok(piece) => return Some(piece),
                Err(_trailers) => {}
            }
        }
    }

    /// Everything that is left of the body, and how it ended.
    pub async fn rest(mut self) -> (String, End) {
        let mut body = Vec::new();
        let end = loop {
            match patient("the rest of a body", self.body.frame()).await {
                None => break End::Clean,
                Some(Err(_)) => break End::Cut,
                Some(Ok(frame)) => body.extend(frame.into_data().unwrap_or_default()),
            }
        };
        (String::from_utf8_lossy(&body).into_owned(), end)
    }

    /// The whole body.
    ///
    /// # Panics
    /// When it does not end cleanly.
    pub async fn text(self) -> String {
        let (text, end) = self.rest().await;
        assert_eq!(end, End::Clean, "the reply was cut after {text}");
        text
    }

    /// Leaves without waiting for the rest.
    pub fn leave(self) {
        drop(self);
    }
}

// === impl Connection ===

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}
