//! As much HTTP/1.1 as a fake worker must read.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// A request as it came over the wire.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Headers in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body, without framing.
    pub body: Bytes,
    /// How many came by its connection before.
    pub turn: usize,
}

// === impl Request ===

impl Request {
    /// Path without the query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The first header of a name, given in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| &value[..])
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Reads one request; nothing when the peer has closed before its first byte.
    pub(crate) async fn read<R: AsyncRead + Unpin>(
        stream: &mut R,
        buffer: &mut BytesMut,
        turn: usize,
    ) -> io::Result<Option<Self>> {
        let head_end = loop {
            if let Some(at) = find(buffer, b"\r\n\r\n") {
                break at;
            }
            if stream.read_buf(buffer).await? == 0 {
                return if buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        };
        let head = String::from_utf8_lossy(&buffer.split_to(head_end + 4)).into_owned();
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut request = Self { method, target, headers, body: Bytes::new(), turn };
        request.body = if request.header("transfer-encoding") == Some("chunked") {
            read_chunked(stream, buffer).await?
        } else {
            let length = request.header("content-length").and_then(|length| length.parse().ok());
            fill(stream, buffer, length.unwrap_or(0)).await?;
            buffer.split_to(length.unwrap_or(0)).freeze()
        };
        Ok(Some(request))
    }
}

async fn read_chunked<R: AsyncRead + Unpin>(stream: &mut R, buffer: &mut BytesMut) -> io::Result<Bytes> {
    let mut body = BytesMut::new();
    loop {
        let line_end = loop {
            if let Some(at) = find(buffer, b"\r\n") {
                break at;
            }
            let have = buffer.len();
            fill(stream, buffer, have + 1).await?;
        };
        let line = buffer.split_to(line_end + 2);
        let size = String::from_utf8_lossy(&line[..line_end]).into_owned();
        let size = usize::from_str_radix(&size, 16).map_err(|_| io::ErrorKind::InvalidData)?;
        fill(stream, buffer, size + 2).await?;
        body.extend_from_slice(&buffer.split_to(size));
        drop(buffer.split_to(2));
        if size == 0 {
            return Ok(body.freeze());
        }
    }
}

async fn fill<R: AsyncRead + Unpin>(stream: &mut R, buffer: &mut BytesMut, length: usize) -> io::Result<()> {
    while buffer.len() < length {
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

fn find(buffer: &[u8], needle: &[u8]) -> Option<usize> {
    buffer.windows(needle.len()).position(|window| window == needle)
}
