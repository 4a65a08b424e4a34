//! Bodies as hyper wants them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use rollscope_wire::Chunks;

/// The body of a reply to a client. An error in it cuts the connection, so that no client takes it for whole.
pub type ReplyBody = UnsyncBoxBody<Bytes, BoxError>;
/// Any error, for hyper to end a connection with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body of known length: what is sent to workers.
#[derive(Debug)]
pub(crate) struct WholeBody {
    pieces: <Chunks as IntoIterator>::IntoIter,
    left_bytes: u64,
}

/// A body that a stream of pieces makes up.
struct Pieces<S>(S);

// === impl WholeBody ===

impl WholeBody {
    pub(crate) fn new(body: Chunks) -> Self {
        Self { left_bytes: body.len() as u64, pieces: body.into_iter() }
    }
}

impl Body for WholeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.pieces.next();
        if let Some(piece) = &piece {
            self.left_bytes -= piece.len() as u64;
        }
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left_bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left_bytes)
    }
}

// === impl Pieces ===

impl<S: Stream<Item = Result<Bytes, BoxError>> + Unpin> Body for Pieces<S> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_next(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// A reply's body out of bytes that are there.
pub(crate) fn whole(body: impl Into<Chunks>) -> ReplyBody {
    WholeBody::new(body.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A reply's body out of pieces that come.
pub(crate) fn pieces(stream: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static) -> ReplyBody {
    Pieces(Box::pin(stream)).boxed_unsync()
}
