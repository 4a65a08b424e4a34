//! One connection to a worker: a request goes out, a reply comes in, and nothing else happens on it.
//!
//! There is no task behind a connection: who waits for a reply drives it, so that a reply costs no wake-up more than
//! its bytes do, and dropping the wait closes it.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::Method;
use rollscope_wire::Chunks;
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};

use crate::http1::{Framing, Garbled, Next, ReplyHead};
use crate::transport::Transport;

/// A connection that is open, as far as is known.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Transport,
    /// Received and not used.
    buffer: BytesMut,
}

/// How a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the worker closed the connection")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Garbled(#[from] Garbled),
}

/// How a call failed.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) broken: Broken,
    /// Whether a byte of the request may have reached the worker.
    pub(crate) is_sent: bool,
}

/// A request on its way.
struct Unsent<'a> {
    head: &'a [u8],
    body: &'a Chunks,
    sent: usize,
    /// Why the rest of it will not be sent: the worker has stopped reading, and may have said why.
    stopped: Option<io::Error>,
}

/// Room for a head and a small reply.
const BUFFER_BYTES: usize = 8 << 10;
/// Of what is certain to come so much is read at once.
const AHEAD_BYTES: usize = 128 << 10;
/// Memory is taken in steps of this for a body that is read whole: no worker's word is taken for more.
const GATHER_BYTES: usize = 16 << 20;
/// Pieces that one system call sends.
const MAX_SLICES: usize = 16;

// === impl Connection ===

impl Connection {
    pub(crate) fn new(stream: Transport) -> Self {
        Self { stream, buffer: BytesMut::new() }
    }

    /// Whether the rest of a body of known length has been received.
    pub(crate) fn has_all_of(&self, framing: Framing) -> bool {
        matches!(framing, Framing::Length(left) if left <= self.buffer.len() as u64)
    }

    /// What comes next of a body, if it has been received. What is wrong with it [`Self::next_piece`] tells.
    pub(crate) fn received_piece(&mut self, framing: &mut Framing) -> Option<Bytes> {
        match framing.next(&mut self.buffer) {
            Ok(Next::Piece(piece)) => Some(piece),
            Ok(Next::More | Next::End) | Err(_) => None,
        }
    }

    /// Lets go of the memory of a large body.
    pub(crate) fn shrink(&mut self) {
        if self.buffer.capacity() > AHEAD_BYTES && self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Whether it can take a request: nothing has come by it since its last reply, no end either.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.buffer.is_empty() && self.stream.is_silent()
    }

    /// Sends a request and waits for the head of the reply, which may come before all of the request is sent; then the
    /// connection is of no use for another.
    pub(crate) async fn call(
        &mut self,
        method: &Method,
        head: &[u8],
        body: &Chunks,
    ) -> Result<ReplyHead, CallError> {
        let mut unsent = Unsent { head, body, sent: 0, stopped: None };
        let called = poll_fn(|context| self.poll_call(context, method, &mut unsent)).await;
        called.map(|reply| ReplyHead { keeps_alive: reply.keeps_alive && unsent.is_over(), ..reply }).map_err(
            |broken| {
                let broken = unsent.stopped.take().map_or(broken, Broken::Io);
                CallError { broken, is_sent: unsent.sent > 0 }
            },
        )
    }

    fn poll_call(
        &mut self,
        context: &mut Context<'_>,
        method: &Method,
        unsent: &mut Unsent<'_>,
    ) -> Poll<Result<ReplyHead, Broken>> {
        unsent.poll_send(&mut self.stream, context);
        loop {
            if !self.buffer.is_empty()
                && let Some(head) = ReplyHead::take(&mut self.buffer, method)?
            {
                return Poll::Ready(Ok(head));
            }
            self.buffer.reserve(BUFFER_BYTES);
            ready!(self.poll_fill(context))?;
        }
    }

    /// The next piece of a body, or that more of it has been received and no piece is there yet. It waits for the network
    /// once at most. Dropping the future loses nothing.
    ///
    /// With `whole_up_to`, a body, or the rest of it, of a known length that is no longer than this is one piece.
    pub(crate) async fn next_piece(
        &mut self,
        framing: &mut Framing,
        whole_up_to: usize,
    ) -> Result<Next, Broken> {
        let mut has_received = false;
        loop {
            let ahead = usize::try_from(framing.ahead()).unwrap_or(usize::MAX);
            let wanted =
                if matches!(framing, Framing::Length(_)) && ahead <= whole_up_to { ahead } else { 0 };
            if self.buffer.len() >= wanted {
                match framing.next(&mut self.buffer)? {
                    Next::More => {}
                    next => return Ok(next),
                }
            }
            if has_received {
                return Ok(Next::More);
            }
            has_received = true;
            self.make_room(wanted, ahead);
            match poll_fn(|context| self.poll_fill(context)).await {
                Ok(()) => {}
                Err(Broken::Closed) if framing.may_close() => return Ok(Next::End),
                Err(broken) => return Err(broken),
            }
        }
    }

    /// A large piece gets a buffer of its size, and what follows in it gets another.
    fn make_room(&mut self, wanted: usize, ahead: usize) {
        let missing = wanted.saturating_sub(self.buffer.len()).min(GATHER_BYTES);
        let room = missing.max(ahead.min(AHEAD_BYTES)).max(BUFFER_BYTES);
        if self.buffer.capacity() - self.buffer.len() < room.min(missing.max(BUFFER_BYTES)) {
            self.buffer.reserve(room);
        }
    }

    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let reading = std::pin::pin!(self.stream.read_buf(&mut self.buffer));
        let count = ready!(reading.poll(context))?;
        Poll::Ready(if count == 0 { Err(Broken::Closed) } else { Ok(()) })
    }
}

// === impl Unsent ===

impl Unsent<'_> {
    fn is_over(&self) -> bool {
        self.stopped.is_none() && self.sent == self.head.len() + self.body.len()
    }

    /// Sends as much as the socket takes.
    fn poll_send(&mut self, stream: &mut Transport, context: &mut Context<'_>) {
        while self.stopped.is_none() && !self.is_over() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let count = self.slices(&mut slices);
            match Pin::new(&mut *stream).poll_write_vectored(context, &slices[..count]) {
                Poll::Ready(Ok(0)) => self.stopped = Some(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => self.sent += count,
                Poll::Ready(Err(error)) => self.stopped = Some(error),
                Poll::Pending => return,
            }
        }
        // TLS may have taken what the socket has not.
        if self.stopped.is_none()
            && let Poll::Ready(Err(error)) = Pin::new(stream).poll_flush(context)
        {
            self.stopped = Some(error);
        }
    }

    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut skipped = self.sent;
        let mut count = 0;
        for piece in std::iter::once(self.head).chain(self.body.pieces().map(|piece| &piece[..])) {
            let left = piece.get(skipped..).unwrap_or_default();
            skipped -= piece.len() - left.len();
            if left.is_empty() {
                continue;
            }
            let Some(slice) = slices.get_mut(count) else { break };
            *slice = IoSlice::new(left);
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use rollscope_testkit::patient;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::http1::Chunk;

    #[tokio::test]
    async fn what_has_been_received_is_had_without_waiting() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut connection = Connection::new(Transport::Plain(stream));
        connection.buffer.extend_from_slice(b"2\r\nab\r\n1\r\nc\r\nx");
        let mut framing = Framing::Chunked(Chunk::Size);
        for expected in [Some("ab"), Some("c"), None, None] {
            let received = connection.received_piece(&mut framing);
            assert_eq!(received, expected.map(Bytes::from));
        }
        connection.buffer.extend_from_slice(b"\r\n");
        assert_eq!(connection.received_piece(&mut framing), None);
        let told = connection.next_piece(&mut framing, 0).await;
        assert!(matches!(told, Err(Broken::Garbled(Garbled::ChunkSize))), "{told:?}");
    }

    #[tokio::test]
    async fn a_body_that_is_wanted_whole_tells_of_each_wait() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut worker, _) = listener.accept().await.unwrap();
        let mut connection = Connection::new(Transport::Plain(stream));
        let mut framing = Framing::Length(100);
        for part in 0..4 {
            worker.write_all(&[part; 25]).await.unwrap();
            // Once for each part, since the next is sent only then: whoever limits a pause can begin anew.
            let next = patient("what was sent", connection.next_piece(&mut framing, 1000)).await.unwrap();
            let expected = (0..4).flat_map(|part| [part; 25]).collect::<Vec<u8>>();
            let expected = if part < 3 { Next::More } else { Next::Piece(expected.into()) };
            assert_eq!(next, expected, "part {part}");
        }
        assert_eq!(connection.next_piece(&mut framing, 1000).await.unwrap(), Next::End);
    }
}
