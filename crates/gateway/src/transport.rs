//! The bytes of a connection, with or without TLS around them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// A connection to a client or to a worker.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain(TcpStream),
    /// Boxed: its state takes a kilobyte.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Pieces that are no more than this together are sent as one: the system takes longer over a list of pieces than it
/// takes to copy them.
const JOINED_BYTES: usize = 4096;

// === impl Transport ===

impl Transport {
    /// Whether nothing has come that has not been read, no end either.
    pub(crate) fn is_silent(&mut self) -> bool {
        match self {
            Self::Plain(stream) => {
                stream.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            // What has come may be of TLS itself, such as a ticket.
            Self::Tls(stream) => {
                let mut byte = [0];
                let mut context = Context::from_waker(Waker::noop());
                Pin::new(&mut **stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
            }
        }
    }

    /// Whether the peer has ended what it sends, be there unread bytes before the end or not.
    pub(crate) fn has_left(&self) -> bool {
        let ready = self.stream().ready(Interest::READABLE).now_or_never();
        ready.is_some_and(|ready| ready.is_ok_and(Ready::is_read_closed))
    }

    /// Has it end by a reset, whatever has been written, as soon as it is dropped.
    pub(crate) fn reset_when_closed(&self) {
        // One that is not connected any more has ended already.
        drop(self.stream().set_zero_linger());
    }

    fn stream(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => {
                let stream = Pin::new(stream);
                match joined(slices) {
                    Some(bytes) => stream.poll_write(context, &bytes),
                    None => stream.poll_write_vectored(context, slices),
                }
            }
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(context),
        }
    }
}

/// Several small pieces, one behind the other.
fn joined(slices: &[IoSlice<'_>]) -> Option<Vec<u8>> {
    let length: usize = slices.iter().map(|slice| slice.len()).sum();
    if slices.len() < 2 || length > JOINED_BYTES {
        return None;
    }
    let mut bytes = Vec::with_capacity(length);
    for slice in slices {
        bytes.extend_from_slice(slice);
    }
    Some(bytes)
}
