//! A single HTTP call, for asking whether a server is ready and for its counters.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};

/// A reply that has been read to its end.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// As it came, chunked or not.
    pub(super) body: String,
}

/// How long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(20);

/// Calls over a connection of its own.
pub(super) fn call(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<Reply> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}",
    )?;
    let mut reply = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    // Not every server closes when it is asked to.
    while !is_whole(&reply) {
        match stream.read(&mut buffer)? {
            0 => break,
            count => reply.extend_from_slice(&buffer[..count]),
        }
    }
    let reply = String::from_utf8_lossy(&reply);
    let (head, body) = reply.split_once("\r\n\r\n").context("the reply has no head")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(Reply { status: status.context("the reply has no status")?, body: body.to_owned() })
}

/// A port that nobody listens on.
pub(super) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn is_whole(reply: &[u8]) -> bool {
    if reply.ends_with(b"\r\n0\r\n\r\n") {
        return true;
    }
    let Some(head_bytes) = reply.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&reply[..head_bytes]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    length.is_some_and(|length: usize| reply.len() >= head_bytes + 4 + length)
}
