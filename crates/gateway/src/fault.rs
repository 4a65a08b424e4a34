//! What can go wrong between a client and the workers, as data: whose fault, which status, whether to try again.

use std::io;
use std::time::Duration;

use http::StatusCode;
use rollscope_route::{NoChoice, RoleKind, Verdict};
use rollscope_wire::Malformed;

use crate::admin::Unfit;
use crate::connection::Broken;
use crate::reply::WorkerReply;

/// What can go wrong with one upstream call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamFault {
    #[error("no connection: {0}")]
    Connect(#[source] io::Error),
    #[error("no connection for want of the gateway's own resources: {0}")]
    Exhausted(#[source] io::Error),
    #[error("no connection within {limit:?}")]
    ConnectTimeout { limit: Duration },
    /// Before a byte of it was written.
    #[error("aborted before it was sent")]
    CalledOff,
    #[error("connection lost before the reply: {0}")]
    Lost(#[source] Broken),
    /// The worker may have closed a connection that was kept, as the request came.
    #[error("kept connection lost before the reply: {0}")]
    KeptLost(#[source] Broken),
    #[error("reply cut: {0}")]
    Cut(#[source] Broken),
    #[error("reply ended without its last event")]
    Unfinished,
    #[error("reply with a good status is no JSON object: {0}")]
    NoReply(#[source] Malformed),
    #[error("reply not finished within {limit:?}")]
    Timeout { limit: Duration },
    /// A worker of a pair that is up may have waited for the other one.
    #[error("reply not finished within {limit:?}, though the worker is up")]
    Waited { limit: Duration },
    #[error("reply larger than {limit_bytes} bytes")]
    TooLarge { limit_bytes: usize },
}

/// Why a call gets something else than a good reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("no {0} worker is registered; add one by POST /workers")]
    NoWorker(RoleKind),
    #[error("{role} workers: {why}{problems}")]
    NoChoice { role: RoleKind, why: NoChoice, problems: String },
    #[error("no data-parallel rank, which is a number from 0: {field}")]
    OddRank { field: &'static str },
    #[error("malformed request: {0}")]
    Malformed(#[from] Malformed),
    #[error("request body larger than --max-payload-size, {limit_bytes} bytes")]
    TooLarge { limit_bytes: usize },
    #[error("no byte of the request body within {limit:?}, which is --request-body-timeout-secs")]
    BodyLate { limit: Duration },
    #[error("not answered within {limit:?}, which is --request-timeout-secs")]
    Late { limit: Duration },
    #[error("request body lost: {0}")]
    BodyLost(#[source] hyper::Error),
    #[error("a disaggregated fleet needs the request body without content-encoding: {encoding}")]
    Encoded { encoding: String },
    #[error("{queue_size} requests wait already, which is --queue-size")]
    Busy { queue_size: usize },
    #[error("the request can not begin within {limit:?}, which is --queue-timeout-secs")]
    Queued { limit: Duration },
    #[error("the gateway is shutting down, and this was not finished within --shutdown-grace-period-secs")]
    Ending,
    #[error("aborted by /abort_request before a worker had it")]
    CalledOff,
    #[error("this call needs a key: Authorization: Bearer KEY")]
    Unauthorized,
    #[error("this key is not for this call")]
    Forbidden,
    #[error(
        "not known to a gateway with --pd-disaggregation, which can not forward it to one worker: {path}"
    )]
    UnknownPath { path: String },
    #[error("this listener serves /metrics alone: {path}")]
    OnlyMetrics { path: String },
    #[error("method not allowed for {path}: {method}")]
    Method { method: http::Method, allowed: &'static [http::Method], path: String },
    #[error(transparent)]
    Unfit(#[from] Unfit),
    #[error("no worker has this id: {id}")]
    UnknownWorker { id: String },
    #[error("an abort needs a rid that is not empty, or abort_all")]
    NamelessAbort,
    #[error(
        "the worker's reply is encoded although that was not asked for: what is secret in it can not be left out"
    )]
    EncodedReply,
    #[error("this gateway records nothing")]
    NotRecording,
    #[error("{role} worker {url}: {fault}")]
    Worker { role: RoleKind, url: String, fault: UpstreamFault },
    /// The worker refused: its own reply is the client's.
    #[error("{0}")]
    Reply(Box<WorkerReply>),
}

/// Where another try may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Another<'a> {
    /// Anywhere but at this URL.
    Elsewhere(&'a str),
    /// At the same worker too.
    Anywhere,
}

// === impl UpstreamFault ===

impl UpstreamFault {
    /// Of a connection that did not come about.
    pub(crate) fn connect(error: io::Error) -> Self {
        // By errno(3): no descriptor left for the process or the system, no local port, no memory for buffers.
        const OWN: [i32; 5] = [libc::EMFILE, libc::ENFILE, libc::EADDRNOTAVAIL, libc::ENOBUFS, libc::ENOMEM];
        match error.raw_os_error() {
            Some(code) if OWN.contains(&code) => Self::Exhausted(error),
            _ => Self::Connect(error),
        }
    }

    /// What it tells about the worker.
    pub(crate) fn verdict(&self) -> Verdict {
        match self {
            Self::TooLarge { .. } | Self::Waited { .. } | Self::Exhausted(_) | Self::CalledOff => {
                Verdict::Neutral
            }
            Self::Connect(_)
            | Self::ConnectTimeout { .. }
            | Self::Lost(_)
            | Self::KeptLost(_)
            | Self::Cut(_)
            | Self::Unfinished
            | Self::NoReply(_)
            | Self::Timeout { .. } => Verdict::Failure,
        }
    }

    /// Whether it is what one sees of a worker whose process has ended.
    pub(crate) fn is_break(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Lost(_) | Self::KeptLost(_) | Self::Cut(_))
    }

    /// Status of a reply that tells of it.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Timeout { .. } | Self::Waited { .. } | Self::ConnectTimeout { .. } => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::Exhausted(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    /// Whether the worker, if it is alive at all, may still be at work on the request.
    pub(crate) fn leaves_work(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. } | Self::Waited { .. } | Self::Lost(_) | Self::KeptLost(_) | Self::Cut(_)
        )
    }
}

// === impl Refusal ===

impl Refusal {
    /// Whether a worker that is up has not answered in time.
    pub(crate) fn has_waited(&self) -> bool {
        matches!(self, Self::Worker { fault: UpstreamFault::Waited { .. }, .. })
    }

    /// Whether a worker that does not answer anything has not answered in time.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Self::Worker { fault: UpstreamFault::Timeout { .. }, .. })
    }

    /// Whether another try may be made, and where.
    ///
    /// What goes to one worker is sent again only if that worker can not have seen it. Of a pair each try is given a
    /// room of its own, in which nobody can meet who was called for the try before; so it may also be made where a
    /// connection broke before the reply.
    pub(crate) fn another_try(&self) -> Option<Another<'_>> {
        let Self::Worker { role, url, fault } = self else { return None };
        let is_pair = *role != RoleKind::Regular;
        match fault {
            UpstreamFault::Connect(_) | UpstreamFault::ConnectTimeout { .. } => Some(Another::Elsewhere(url)),
            UpstreamFault::Lost(_) if is_pair => Some(Another::Elsewhere(url)),
            UpstreamFault::KeptLost(_) if is_pair => Some(Another::Anywhere),
            _ => None,
        }
    }

    /// Status of the reply.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NoChoice { why: NoChoice::NoSuchRank { .. }, .. }
            | Self::Malformed(_)
            | Self::OddRank { .. }
            | Self::BodyLost(_)
            | Self::NamelessAbort
            | Self::Unfit(_) => StatusCode::BAD_REQUEST,
            Self::NoWorker(_) | Self::NoChoice { .. } | Self::Queued { .. } | Self::Ending => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            // As gRPC has it for what its client cancels: a status that clients do not take for a reason to try again.
            Self::CalledOff => StatusCode::from_u16(499).unwrap_or(StatusCode::CONFLICT),
            Self::BodyLate { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::Late { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Encoded { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::UnknownPath { .. }
            | Self::OnlyMetrics { .. }
            | Self::UnknownWorker { .. }
            | Self::NotRecording => StatusCode::NOT_FOUND,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::EncodedReply => StatusCode::BAD_GATEWAY,
            Self::Worker { fault, .. } => fault.status(),
            Self::Reply(reply) => reply.status(),
        }
    }

    /// A word for programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::NoChoice { why: NoChoice::NoSuchRank { .. }, .. } => "no_such_rank",
            Self::NoWorker(_) | Self::NoChoice { .. } => "no_available_workers",
            Self::Malformed(_) | Self::OddRank { .. } | Self::NamelessAbort => "malformed_request",
            Self::TooLarge { .. } => "payload_too_large",
            Self::BodyLate { .. } => "request_body_timeout",
            Self::Late { .. } => "timeout",
            Self::BodyLost(_) => "request_body_lost",
            Self::Encoded { .. } => "unsupported_content_encoding",
            Self::Busy { .. } => "too_many_requests",
            Self::Queued { .. } => "queue_timeout",
            Self::CalledOff => "aborted",
            Self::Ending => "shutting_down",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::UnknownPath { .. } | Self::OnlyMetrics { .. } => "unknown_path",
            Self::Method { .. } => "method_not_allowed",
            Self::Unfit(_) => "invalid_worker",
            Self::UnknownWorker { .. } => "unknown_worker",
            Self::NotRecording => "not_recording",
            Self::EncodedReply | Self::Worker { role: RoleKind::Regular, .. } => "worker_error",
            Self::Worker { role: RoleKind::Prefill, .. } => "prefill_server_error",
            Self::Worker { role: RoleKind::Decode, .. } => "decode_server_error",
            Self::Reply(_) => "worker_reply",
        }
    }

    /// The methods that would have been allowed, as a header says them.
    pub(crate) fn allow(&self) -> Option<String> {
        let Self::Method { allowed, .. } = self else { return None };
        Some(allowed.iter().map(http::Method::as_str).collect::<Vec<_>>().join(", "))
    }

    /// Seconds after which another try may help.
    pub(crate) fn retry_after_s(&self) -> Option<u32> {
        let may_help =
            matches!(self.status(), StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        (may_help && !matches!(self, Self::Reply(_))).then_some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_gateway_itself_lacks_is_not_the_workers_fault() {
        for (code, status, verdict) in [
            (libc::EMFILE, StatusCode::SERVICE_UNAVAILABLE, Verdict::Neutral),
            (libc::ENFILE, StatusCode::SERVICE_UNAVAILABLE, Verdict::Neutral),
            (libc::EADDRNOTAVAIL, StatusCode::SERVICE_UNAVAILABLE, Verdict::Neutral),
            (libc::ECONNREFUSED, StatusCode::BAD_GATEWAY, Verdict::Failure),
            (libc::EHOSTUNREACH, StatusCode::BAD_GATEWAY, Verdict::Failure),
        ] {
            let fault = UpstreamFault::connect(io::Error::from_raw_os_error(code));
            assert_eq!((fault.status(), fault.verdict()), (status, verdict), "{fault}");
        }
    }
}
