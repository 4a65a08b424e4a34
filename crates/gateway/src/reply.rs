//! Replies to clients: a worker's own, one of the gateway's, or an error.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use rollscope_config::without_user_info;
use rollscope_trace::Outcome;
use rollscope_wire::Chunks;

use crate::body::{BoxError, ReplyBody, WholeBody, whole};
use crate::fault::Refusal;
use crate::flight::Flight;
use crate::outbound::end_to_end;

/// A reply of a worker, read to its end.
#[derive(Debug)]
pub(crate) struct WorkerReply {
    pub(crate) head: http::response::Parts,
    pub(crate) body: Chunks,
}

/// A body that ends a flight with its last byte.
struct Landing {
    body: WholeBody,
    flight: Arc<Flight>,
    outcome: Outcome,
    error: Option<String>,
}

/// The code of an error, where those who know SGLang's router look for it.
static ERROR_CODE: HeaderName = HeaderName::from_static("x-smg-error-code");
/// How much of a worker's own error text is quoted.
const QUOTED_CHARS: usize = 300;

// === impl WorkerReply ===

impl WorkerReply {
    pub(crate) fn status(&self) -> StatusCode {
        self.head.status
    }
}

impl fmt::Display for WorkerReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = self.body.slice(0..4 * QUOTED_CHARS).to_bytes();
        let quoted: String = String::from_utf8_lossy(&body).chars().take(QUOTED_CHARS).collect();
        write!(f, "worker answered {}: {quoted}", self.head.status)
    }
}

// === impl Landing ===

impl Body for Landing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context).map_err(|never| match never {});
        self.flight.stamp_first_byte();
        if self.body.is_end_stream() {
            let error = self.error.take();
            self.flight.land(self.outcome, error);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A reply with a body that is there; the flight lands when the body has been sent.
pub(crate) fn landing(
    flight: Arc<Flight>,
    head: http::response::Parts,
    body: Chunks,
    (outcome, error): (Outcome, Option<String>),
) -> Response<ReplyBody> {
    let mut headers = end_to_end(head.headers);
    headers.remove(CONTENT_LENGTH);
    flight.answer(head.status.as_u16());
    let body = if body.is_empty() {
        flight.land(outcome, error);
        whole(body)
    } else {
        Landing { body: WholeBody::new(body), flight, outcome, error }.boxed_unsync()
    };
    response(head.status, headers, body)
}

/// The reply to a request that is refused.
pub(crate) fn refuse(flight: Arc<Flight>, refusal: Refusal) -> Response<ReplyBody> {
    let error = Some(told(&refusal));
    if let Refusal::Reply(reply) = refusal {
        return landing(flight, reply.head, reply.body, (Outcome::Failed, error));
    }
    let outcome = match &refusal {
        // The client has left in the middle of its request.
        Refusal::BodyLost(error) if has_left(error) => Outcome::Aborted,
        Refusal::CalledOff => Outcome::Aborted,
        _ => Outcome::Failed,
    };
    let (head, ()) = error_head(&refusal).into_parts();
    landing(flight, head, error_body(&refusal).into(), (outcome, error))
}

/// Whether a request's body ended because its sender did, and not because of what it sent.
fn has_left(error: &hyper::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let mut cause = error.source();
    while let Some(error) = cause {
        let kind = error.downcast_ref().map(io::Error::kind);
        if matches!(kind, Some(BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)) {
            return true;
        }
        cause = error.source();
    }
    error.is_incomplete_message() || error.is_closed()
}

/// The reply to a refused call that is no request of the books.
pub(crate) fn refuse_plainly(refusal: &Refusal) -> Response<ReplyBody> {
    error_head(refusal).map(|()| whole(error_body(refusal)))
}

/// Why a request is refused, for whoever reads it: an address that was given may have held a password.
pub(crate) fn told(refusal: &Refusal) -> String {
    without_user_info(&refusal.to_string()).into_owned()
}

/// `{"error": {"type": …, "code": …, "message": …}}`.
pub(crate) fn error_body(refusal: &Refusal) -> Vec<u8> {
    let status = refusal.status();
    let error = serde_json::json!({
        "error": {
            "type": status.canonical_reason().unwrap_or("Error"),
            "code": refusal.code(),
            "message": told(refusal),
        }
    });
    error.to_string().into_bytes()
}

/// A reply of the gateway's own.
pub(crate) fn json(status: StatusCode, body: Vec<u8>) -> Response<ReplyBody> {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    response(status, headers, whole(body))
}

pub(crate) fn response(status: StatusCode, headers: HeaderMap, body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn error_head(refusal: &Refusal) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = refusal.status();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ERROR_CODE.clone(), HeaderValue::from_static(refusal.code()));
    if let Some(seconds) = refusal.retry_after_s() {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    if let Some(Ok(allow)) = refusal.allow().map(HeaderValue::try_from) {
        headers.insert(ALLOW, allow);
    }
    response
}
