//! Errors as HTTP: the one place where they become responses.

use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::output::Abort;
use crate::scheduler::SchedulerGone;

/// A request that is answered with an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    message: String,
}

/// So many requests, and the verb.
pub(super) fn requests(count: usize) -> String {
    if count == 1 { "1 request is".to_owned() } else { format!("{count} requests are") }
}

// === impl ApiError ===

impl ApiError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// The client's fault.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// This server's fault.
    pub(super) fn failure(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// How a reply that is not streamed tells of an abort: as an error if it stands for 400, 500 or 503. The others (one
    /// that the client asked for, 504) are replies like any other, whose finish reason tells.
    pub(super) fn of_abort(abort: &Abort) -> Option<Self> {
        let status = StatusCode::from_u16(abort.status.filter(|status| matches!(status, 400 | 500 | 503))?);
        Some(Self::new(status.ok()?, abort.message.clone()))
    }

    /// The body, also as an event of a stream.
    pub(super) fn body(&self) -> Value {
        let kind = match self.status {
            status if status.is_client_error() => "invalid_request_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            _ => "internal_server_error",
        };
        json!({"error": {"message": self.message, "type": kind, "code": self.status.as_u16()}})
    }
}

impl From<SchedulerGone> for ApiError {
    fn from(error: SchedulerGone) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

/// The body is too long, or was cut.
impl From<BytesRejection> for ApiError {
    fn from(rejection: BytesRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}
