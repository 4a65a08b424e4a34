//! HTTP/1.1 replies as bytes: the head, and where the body ends. No IO.
//!
//! A body ends where its head says, and a head that says it in two ways is an error: who reads it otherwise than the
//! next one behind the same connection takes a part of it for another reply. What is bounded: a head, the line of
//! a chunk's size, and all trailers together.
//!
//! ```text
//! // Size => (Data => DataEnd => Size | Trailers => Over)
//! ```

use std::mem::MaybeUninit;
use std::ops::ControlFlow;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Response, StatusCode, Version};

/// The head of a reply.
#[derive(Debug)]
pub(crate) struct ReplyHead {
    pub(crate) parts: http::response::Parts,
    pub(crate) framing: Framing,
    /// Whether the connection may be used again after the body.
    pub(crate) keeps_alive: bool,
}

/// What a head says of the connection and of where the body ends.
#[derive(Debug, Default)]
struct HeadFacts {
    length: Option<u64>,
    is_chunked: bool,
    close: bool,
    keep_alive: bool,
}

/// What is left of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunked(Chunk),
    /// Whatever comes until the connection is closed.
    UntilClose,
}

/// What comes next of a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// A chunk's size and extensions.
    Size,
    /// So many bytes of the chunk.
    Data(u64),
    /// The line end after a chunk.
    DataEnd,
    /// The lines after the last chunk; so many bytes of them have been read.
    Trailers(usize),
    Over,
}

/// What a body's next bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Piece(Bytes),
    /// More has to be received first.
    More,
    End,
}

/// Why bytes are no HTTP/1.1 reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Garbled {
    #[error("not the head of an HTTP/1.1 reply: {0}")]
    Head(httparse::Error),
    #[error("head larger than {MAX_HEAD_BYTES} bytes")]
    LongHead,
    #[error("a switch of protocols that nobody asked for")]
    Switch,
    #[error("the head says in two ways where the body ends")]
    TwoFramings,
    #[error("content-length is no number")]
    Length,
    #[error("transfer-encoding is something else than chunked")]
    Encoding,
    #[error("not a chunk's size")]
    ChunkSize,
    #[error("no line end after a chunk")]
    ChunkEnd,
    #[error("trailers larger than {MAX_TRAILER_BYTES} bytes")]
    LongTrailers,
}

/// Beyond what any worker sends, and less than what would be a burden.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 128;
/// A size has at most 16 digits; extensions are rare.
const MAX_SIZE_LINE_BYTES: usize = 1024;
const MAX_TRAILER_BYTES: usize = 16 << 10;
/// Shorter pieces are copied out, so that the buffer is not held by them and stays in use.
const COPIED_BYTES: usize = 4096;

// === impl ReplyHead ===

impl ReplyHead {
    /// Takes the head off a buffer once it is there as a whole. Interim replies before it are dropped.
    pub(crate) fn take(buffer: &mut BytesMut, method: &Method) -> Result<Option<Self>, Garbled> {
        loop {
            let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
            let mut reply = httparse::Response::new(&mut []);
            let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
                &mut reply,
                buffer,
                &mut headers,
            );
            let httparse::Status::Complete(length) = parsed.map_err(Garbled::Head)? else {
                return if buffer.len() > MAX_HEAD_BYTES { Err(Garbled::LongHead) } else { Ok(None) };
            };
            if length > MAX_HEAD_BYTES {
                return Err(Garbled::LongHead);
            }
            match reply.code {
                Some(101) => return Err(Garbled::Switch),
                Some(100..200) => buffer.advance(length),
                _ => {
                    let head = Self::of(&reply, method)?;
                    buffer.advance(length);
                    return Ok(Some(head));
                }
            }
        }
    }

    fn of(reply: &httparse::Response<'_, '_>, method: &Method) -> Result<Self, Garbled> {
        let status = StatusCode::from_u16(reply.code.unwrap_or_default())
            .map_err(|_| Garbled::Head(httparse::Error::Status))?;
        let mut headers = HeaderMap::with_capacity(reply.headers.len() + 2);
        let mut said = HeadFacts::default();
        for header in reply.headers.iter() {
            let name = HeaderName::from_bytes(header.name.as_bytes())
                .map_err(|_| Garbled::Head(httparse::Error::HeaderName))?;
            let value = HeaderValue::from_bytes(header.value)
                .map_err(|_| Garbled::Head(httparse::Error::HeaderValue))?;
            said.take(&name, header.value)?;
            headers.append(name, value);
        }
        let is_1_1 = reply.version == Some(1);
        let framing = said.framing(method, status, is_1_1)?;
        let keeps_alive = framing != Framing::UntilClose && !said.close && (is_1_1 || said.keep_alive);
        let (mut parts, ()) = Response::new(()).into_parts();
        parts.status = status;
        parts.version = if is_1_1 { Version::HTTP_11 } else { Version::HTTP_10 };
        parts.headers = headers;
        Ok(Self { parts, framing, keeps_alive })
    }
}

// === impl HeadFacts ===

impl HeadFacts {
    /// Takes note of a header.
    fn take(&mut self, name: &HeaderName, value: &[u8]) -> Result<(), Garbled> {
        match *name {
            CONTENT_LENGTH => {
                let length = content_length(value)?;
                // The same one twice is one.
                if self.length.replace(length).is_some_and(|other| other != length) {
                    return Err(Garbled::TwoFramings);
                }
            }
            TRANSFER_ENCODING => {
                let is_first = !std::mem::replace(&mut self.is_chunked, true);
                if !is_first || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Garbled::Encoding);
                }
            }
            CONNECTION => {
                for word in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    self.close |= word.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= word.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn framing(&self, method: &Method, status: StatusCode, is_1_1: bool) -> Result<Framing, Garbled> {
        if self.is_chunked && (self.length.is_some() || !is_1_1) {
            return Err(Garbled::TwoFramings);
        }
        if method == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
            return Ok(Framing::Length(0));
        }
        Ok(match self.length {
            Some(length) => Framing::Length(length),
            None if self.is_chunked => Framing::Chunked(Chunk::Size),
            None => Framing::UntilClose,
        })
    }
}

// === impl Framing ===

impl Framing {
    /// Takes what comes next off a buffer.
    pub(crate) fn next(&mut self, buffer: &mut BytesMut) -> Result<Next, Garbled> {
        match self {
            Self::Length(0) | Self::Chunked(Chunk::Over) => Ok(Next::End),
            Self::Length(left) => Ok(piece(buffer, left)),
            Self::UntilClose => {
                let mut unlimited = u64::MAX;
                Ok(piece(buffer, &mut unlimited))
            }
            Self::Chunked(chunk) => loop {
                if let ControlFlow::Break(next) = chunk.step(buffer)? {
                    return Ok(next);
                }
            },
        }
    }

    /// Whether nothing is left, without another look at what was received.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunk::Over))
    }

    /// Whether the body may end here because the connection has been closed.
    pub(crate) fn may_close(self) -> bool {
        self == Self::UntilClose || self.is_over()
    }

    /// How many bytes are certain to come without a break; zero where that is not known.
    pub(crate) fn ahead(self) -> u64 {
        match self {
            Self::Length(left) | Self::Chunked(Chunk::Data(left)) => left,
            Self::Chunked(_) | Self::UntilClose => 0,
        }
    }
}

// === impl Chunk ===

impl Chunk {
    /// One step on; breaks where there is something to tell.
    fn step(&mut self, buffer: &mut BytesMut) -> Result<ControlFlow<Next>, Garbled> {
        match self {
            Self::Size => {
                let Some(line) = line(buffer, MAX_SIZE_LINE_BYTES).ok_or(Garbled::ChunkSize)? else {
                    return Ok(ControlFlow::Break(Next::More));
                };
                let size = chunk_size(&buffer[..line])?;
                buffer.advance(line + 2);
                *self = if size == 0 { Self::Trailers(0) } else { Self::Data(size) };
            }
            Self::Data(left) => {
                let next = piece(buffer, left);
                if *left == 0 {
                    *self = Self::DataEnd;
                }
                return Ok(ControlFlow::Break(next));
            }
            Self::DataEnd => match &buffer[..] {
                [] | [b'\r'] => return Ok(ControlFlow::Break(Next::More)),
                [b'\r', b'\n', ..] => {
                    buffer.advance(2);
                    *self = Self::Size;
                }
                _ => return Err(Garbled::ChunkEnd),
            },
            Self::Trailers(read) => {
                let Some(line) =
                    line(buffer, MAX_TRAILER_BYTES.saturating_sub(*read)).ok_or(Garbled::LongTrailers)?
                else {
                    return Ok(ControlFlow::Break(Next::More));
                };
                buffer.advance(line + 2);
                *self = if line == 0 { Self::Over } else { Self::Trailers(*read + line + 2) };
            }
            Self::Over => return Ok(ControlFlow::Break(Next::End)),
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Takes up to so many bytes.
fn piece(buffer: &mut BytesMut, left: &mut u64) -> Next {
    let length = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
    if length == 0 {
        return Next::More;
    }
    *left -= length as u64;
    if length > COPIED_BYTES {
        return Next::Piece(buffer.split_to(length).freeze());
    }
    let piece = Bytes::copy_from_slice(&buffer[..length]);
    buffer.advance(length);
    Next::Piece(piece)
}

/// Length of the line that a buffer begins with, if it is there; none if it is too long or ends in a bare line feed.
#[expect(clippy::option_option, reason = "a bound that is broken, and a line that is not there yet")]
fn line(buffer: &[u8], limit_bytes: usize) -> Option<Option<usize>> {
    match buffer.iter().take(limit_bytes + 2).position(|byte| *byte == b'\n') {
        Some(end) => buffer[..end].ends_with(b"\r").then(|| Some(end - 1)),
        None => (buffer.len() < limit_bytes + 2).then_some(None),
    }
}

/// `SIZE [; extensions]`, the size in hexadecimal digits.
fn chunk_size(line: &[u8]) -> Result<u64, Garbled> {
    let size = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    let is_size = (1..=16).contains(&size.len()) && size.iter().all(u8::is_ascii_hexdigit);
    let size = std::str::from_utf8(size).ok().filter(|_| is_size);
    size.and_then(|size| u64::from_str_radix(size, 16).ok()).ok_or(Garbled::ChunkSize)
}

fn content_length(digits: &[u8]) -> Result<u64, Garbled> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let length = std::str::from_utf8(digits).ok().filter(|_| is_number);
    length.and_then(|digits| digits.parse().ok()).ok_or(Garbled::Length)
}

#[cfg(test)]
mod tests;
