//! The part of ZeroMQ's wire protocol that PUB and SUB sockets need: ZMTP 3.0 without security (RFC 23).
//!
//! Written here and not taken from a library, because no library does what a scheduler and a recorder need of it: to drop
//! for a subscriber that does not read, within bounds and without ever waiting, and to tell of each connection when it is
//! up. It is little: a greeting of 64 bytes, a READY command from each side, then frames of a flag, a length and a body. A
//! peer that speaks 3.1 speaks 3.0 to us. What a peer sends is not trusted: every length has a limit.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::time::Instant;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::coop::{consume_budget, unconstrained};

/// What ends a connection.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The connection failed.
    #[error("connection failed")]
    Io {
        /// How.
        #[from]
        source: io::Error,
    },
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Closed,
    /// It is not one of ours.
    #[error("not a ZeroMQ 3 peer without security")]
    Greeting,
    /// It cannot be talked to by a socket of our kind.
    #[error("peer's socket is of another kind: {0}")]
    Kind(String),
    /// It refused us.
    #[error("refused by the peer: {0}")]
    Refused(String),
    /// It broke the rules of the protocol.
    #[error("peer broke the protocol: {0}")]
    Protocol(&'static str),
    /// A frame is longer than is read.
    #[error("frame too long, bytes: {0}")]
    TooLong(u64),
    /// It did not finish its greeting in time.
    #[error("no handshake in time")]
    Late,
}

/// What a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Publisher,
    Subscriber,
}

/// A frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Message { body: Bytes, more: bool },
    Command(Bytes),
}

/// A connection, and what was read of it and not taken yet.
#[derive(Debug)]
pub(crate) struct Wire<S> {
    stream: S,
    buffer: BytesMut,
    /// When there was last nothing to read: what was read since has come since.
    ran_empty: Instant,
    /// The longest frame that is read, bytes.
    limit: usize,
}

/// The topic prefix of a subscription, begun or ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Subscribing<'a> {
    Begin(&'a [u8]),
    End(&'a [u8]),
}

const GREETING_BYTES: usize = 64;
/// What is told of a peer's own words.
const MAX_WORDS_BYTES: usize = 256;
/// Read at a time at least.
const READ_BYTES: usize = 16 * 1024;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

// === impl Kind ===

impl Kind {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Publisher => b"PUB",
            Self::Subscriber => b"SUB",
        }
    }

    /// The kinds of sockets that it can talk to.
    fn partners(self) -> [&'static [u8]; 2] {
        match self {
            Self::Publisher => [b"SUB", b"XSUB"],
            Self::Subscriber => [b"PUB", b"XPUB"],
        }
    }
}

// === impl Wire ===

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Greets the peer, and makes sure that it is one to talk to.
    pub(crate) async fn greet(stream: S, kind: Kind, limit: usize) -> Result<Self, TransportError> {
        let mut wire = Self { stream, buffer: BytesMut::new(), ran_empty: Instant::now(), limit };
        let mut opening = greeting().to_vec();
        put_frame(&mut opening, COMMAND, &ready(kind));
        wire.stream.write_all(&opening).await?;
        while wire.buffer.len() < GREETING_BYTES {
            // Something else may never send so much, and is told by its first bytes.
            check_greeting(&wire.buffer)?;
            wire.fill().await?;
        }
        check_greeting(&wire.buffer)?;
        wire.buffer.advance(GREETING_BYTES);
        match wire.frame().await? {
            Frame::Command(body) => check_ready(&body, kind)?,
            Frame::Message { .. } => return Err(TransportError::Protocol("a message before READY")),
        }
        Ok(wire)
    }

    /// The next frame. May be given up at any await without loss.
    pub(crate) async fn frame(&mut self) -> Result<Frame, TransportError> {
        loop {
            if let Some(frame) = take_frame(&mut self.buffer, self.limit)? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// When there was last nothing to read: the latest frame has come since.
    pub(crate) fn ran_empty(&self) -> Instant {
        self.ran_empty
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// Answers a command that wants an answer.
    pub(crate) async fn answer(&mut self, command: &[u8]) -> Result<(), TransportError> {
        if let Some(context) = ping(command) {
            let mut pong = Vec::new();
            put_frame(&mut pong, COMMAND, &[b"\x04PONG", context].concat());
            self.send(&pong).await?;
        }
        Ok(())
    }

    async fn fill(&mut self) -> Result<(), TransportError> {
        self.buffer.reserve(READ_BYTES);
        // Otherwise a task that is to let others go on would find nothing to read where there is something.
        consume_budget().await;
        let mut reading = pin!(unconstrained(self.stream.read_buf(&mut self.buffer)));
        let mut was_empty = false;
        let read = poll_fn(|context| {
            let polled = reading.as_mut().poll(context);
            was_empty |= polled.is_pending();
            polled
        });
        let count = read.await?;
        if was_empty {
            self.ran_empty = Instant::now();
        }
        match count {
            0 => Err(TransportError::Closed),
            _ => Ok(()),
        }
    }
}

/// Appends a message of several frames.
pub(crate) fn put_message(buffer: &mut Vec<u8>, frames: &[&[u8]]) {
    for (index, frame) in frames.iter().enumerate() {
        put_frame(buffer, if index + 1 < frames.len() { MORE } else { 0 }, frame);
    }
}

/// What a subscriber asks for with a message or a command; nothing for anything else.
pub(crate) fn subscribing(frame: &Frame) -> Option<Subscribing<'_>> {
    match frame {
        Frame::Message { body, .. } => match body.split_first()? {
            (1, topic) => Some(Subscribing::Begin(topic)),
            (0, topic) => Some(Subscribing::End(topic)),
            _ => None,
        },
        Frame::Command(body) => {
            let begin = body.strip_prefix(b"\x09SUBSCRIBE").map(Subscribing::Begin);
            begin.or_else(|| body.strip_prefix(b"\x06CANCEL").map(Subscribing::End))
        }
    }
}

fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// Checks as much of a greeting as is there.
fn check_greeting(bytes: &[u8]) -> Result<(), TransportError> {
    let expected = greeting();
    let is = |at: usize| bytes.get(at).is_none_or(|byte| *byte == expected[at]);
    let major_is_known = bytes.get(10).is_none_or(|major| *major >= 3);
    if is(0) && is(9) && major_is_known && (12..32).all(is) { Ok(()) } else { Err(TransportError::Greeting) }
}

fn ready(kind: Kind) -> Vec<u8> {
    let name = kind.name();
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.put_u32(name.len() as u32);
    body.put_slice(name);
    body
}

fn check_ready(body: &[u8], kind: Kind) -> Result<(), TransportError> {
    if let Some(reason) = body.strip_prefix(b"\x05ERROR") {
        let reason = reason.get(1..).unwrap_or_default();
        return Err(TransportError::Refused(told(reason)));
    }
    let cut = TransportError::Protocol("READY is cut short");
    let Some(mut properties) = body.strip_prefix(b"\x05READY") else {
        return Err(TransportError::Protocol("a command before READY"));
    };
    while let Some((length, rest)) = properties.split_first() {
        let Some((name, rest)) = rest.split_at_checked(usize::from(*length)) else { return Err(cut) };
        let Some((length, rest)) = rest.split_first_chunk::<4>() else { return Err(cut) };
        let length = u32::from_be_bytes(*length) as usize;
        let Some((value, rest)) = rest.split_at_checked(length) else { return Err(cut) };
        if name.eq_ignore_ascii_case(b"Socket-Type") && !kind.partners().contains(&value) {
            return Err(TransportError::Kind(told(value)));
        }
        properties = rest;
    }
    Ok(())
}

/// A peer's words, the begin of them.
fn told(words: &[u8]) -> String {
    String::from_utf8_lossy(words.get(..MAX_WORDS_BYTES).unwrap_or(words)).into_owned()
}

/// The context of a PING, which its answer repeats.
fn ping(command: &[u8]) -> Option<&[u8]> {
    // Behind the name stands how long the peer will wait.
    command.strip_prefix(b"\x04PING")?.get(2..)
}

fn put_frame(buffer: &mut Vec<u8>, flags: u8, body: &[u8]) {
    if let Ok(length) = u8::try_from(body.len()) {
        buffer.extend_from_slice(&[flags, length]);
    } else {
        buffer.push(flags | LONG);
        buffer.extend_from_slice(&(body.len() as u64).to_be_bytes());
    }
    buffer.extend_from_slice(body);
}

/// Takes a frame off the begin of the buffer, if it is there as a whole.
fn take_frame(buffer: &mut BytesMut, limit: usize) -> Result<Option<Frame>, TransportError> {
    let Some(&flags) = buffer.first() else { return Ok(None) };
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(TransportError::Protocol("a flag that is not known"));
    }
    let (length, header) = if flags & LONG == 0 {
        let Some(length) = buffer.get(1) else { return Ok(None) };
        (u64::from(*length), 2)
    } else {
        let Some(length) = buffer[1..].first_chunk::<8>() else { return Ok(None) };
        (u64::from_be_bytes(*length), 9)
    };
    if length > limit as u64 {
        return Err(TransportError::TooLong(length));
    }
    let length = length as usize;
    if buffer.len() < header + length {
        buffer.reserve(header + length - buffer.len());
        return Ok(None);
    }
    buffer.advance(header);
    let body = buffer.split_to(length).freeze();
    Ok(Some(if flags & COMMAND == 0 {
        Frame::Message { body, more: flags & MORE != 0 }
    } else {
        Frame::Command(body)
    }))
}

#[cfg(test)]
mod tests;
