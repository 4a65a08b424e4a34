//! Which pages in browsers may call the gateway, and read its replies.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use http::{Method, Request, Response, StatusCode};
use rollscope_wire::Chunks;

use crate::body::{ReplyBody, whole};
use crate::reply::response;

/// The origins that may.
#[derive(Debug)]
pub(crate) struct Cors {
    origins: Vec<String>,
}

/// Methods of all routes.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE");
/// Seconds that a browser may remember an answer.
const MAX_AGE: HeaderValue = HeaderValue::from_static("3600");

// === impl Cors ===

impl Cors {
    pub(crate) fn new(origins: &[String]) -> Self {
        Self { origins: origins.to_vec() }
    }

    /// The origin of a call, if it may.
    pub(crate) fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if self.origins.is_empty() {
            return None;
        }
        let origin = headers.get(ORIGIN)?;
        let is_allowed = |allowed: &String| allowed == "*" || allowed.as_bytes() == origin.as_bytes();
        self.origins.iter().any(is_allowed).then(|| origin.clone())
    }

    /// The answer to a browser that asks whether a page may call, to be marked as any reply.
    pub(crate) fn preflight<B>(&self, request: &Request<B>) -> Option<Response<ReplyBody>> {
        let headers = request.headers();
        if request.method() != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        self.allowed(headers)?;
        let mut answer = HeaderMap::new();
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        answer.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        Some(response(StatusCode::NO_CONTENT, answer, whole(Chunks::new())))
    }
}

/// Lets pages of an origin read a reply.
pub(crate) fn mark(reply: &mut Response<ReplyBody>, origin: HeaderValue) {
    let headers = reply.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    headers.append(VARY, HeaderValue::from_static("origin"));
}
