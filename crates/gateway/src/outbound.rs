//! A request as it is sent to a worker.

use std::sync::Arc;

use http::Method;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName,
    HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::PathAndQuery;
use rollscope_route::WorkerUrl;
use rollscope_wire::Chunks;

use crate::access::Caller;

/// What is sent, to whichever worker. A clone shares all of it.
#[derive(Clone, Debug)]
pub(crate) struct Outbound {
    head: Arc<Head>,
    /// Whether only a reply that can be read is asked for, whatever the head says.
    wants_identity: bool,
    pub(crate) body: Chunks,
}

/// What is the same for every worker.
#[derive(Debug, Default)]
struct Head {
    method: Method,
    /// As a rule as it was given.
    target: Option<PathAndQuery>,
    /// Headers as they are written, line by line, but for those that are told apart here.
    headers: Vec<u8>,
    /// Those that say which encodings of the reply can be read.
    encodings: Vec<u8>,
    /// Those that say who asks.
    authorization: Vec<u8>,
    /// Whether it is asked for somebody who may not use the worker's key.
    is_for_stranger: bool,
}

/// Headers that belong to one connection, beside those that `Connection` names.
static HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authenticate"),
    HeaderName::from_static("proxy-authorization"),
];

const IDENTITY: &[u8] = b"accept-encoding: identity\r\n";
/// Room for most heads.
const HEAD_BYTES: usize = 512;

// === impl Outbound ===

impl Outbound {
    /// A client's request with this body. Its framing is set anew, and an expectation has been met by now.
    pub(crate) fn forward(head: &http::request::Parts, body: Chunks) -> Self {
        let is_named = is_named_by(&head.headers);
        let is_dropped = |name: &HeaderName| {
            let is_framing = [HOST, CONTENT_LENGTH, EXPECT].contains(name);
            is_framing
                || HOP_BY_HOP.contains(name)
                || is_named.as_ref().is_some_and(|is_named| is_named(name))
        };
        let mut headers = Vec::with_capacity(HEAD_BYTES);
        let (mut encodings, mut authorization) = (Vec::new(), Vec::new());
        for (name, value) in head.headers.iter().filter(|(name, _)| !is_dropped(name)) {
            let lines = match *name {
                ACCEPT_ENCODING => &mut encodings,
                AUTHORIZATION => &mut authorization,
                _ => &mut headers,
            };
            write_line(lines, name, value);
        }
        let (method, target) = (head.method.clone(), head.uri.path_and_query().cloned());
        let head = Head { method, target, headers, encodings, authorization, is_for_stranger: false };
        Self { head: Arc::new(head), wants_identity: false, body }
    }

    /// A call of the gateway's own.
    pub(crate) fn post_json(path: &'static str, body: Vec<u8>) -> Self {
        let target = Some(PathAndQuery::from_static(path));
        let headers = b"content-type: application/json\r\n".to_vec();
        let head = Head { method: Method::POST, target, headers, ..Head::default() };
        Self { head: Arc::new(head), wants_identity: false, body: body.into() }
    }

    /// A question of the gateway's own.
    pub(crate) fn get(target: PathAndQuery) -> Self {
        let head = Head { target: Some(target), ..Head::default() };
        Self { head: Arc::new(head), wants_identity: false, body: Chunks::new() }
    }

    /// A question of the gateway's own, asked because somebody else asks.
    pub(crate) fn get_for(caller: Caller, target: PathAndQuery) -> Self {
        let is_for_stranger = caller == Caller::Stranger;
        let head = Head { target: Some(target), is_for_stranger, ..Head::default() };
        Self { head: Arc::new(head), wants_identity: false, body: Chunks::new() }
    }

    /// The same with another body.
    pub(crate) fn with_body(&self, body: Chunks) -> Self {
        Self { head: Arc::clone(&self.head), wants_identity: self.wants_identity, body }
    }

    /// Asks for a reply that can be read.
    pub(crate) fn ask_for_identity(&mut self) {
        self.wants_identity = true;
    }

    pub(crate) fn method(&self) -> &Method {
        &self.head.method
    }

    /// The head of the request to a worker, which may want an authorization of its own.
    pub(crate) fn head_to(&self, worker: &WorkerUrl, authorization: Option<&HeaderValue>) -> Vec<u8> {
        let Head { method, target, headers, encodings, authorization: given, is_for_stranger } = &*self.head;
        let (path, target) = (worker.path(), target.as_ref().map_or("/", PathAndQuery::as_str));
        let mut head = Vec::with_capacity(HEAD_BYTES + headers.len() + given.len() + target.len());
        for part in [method.as_str(), " ", path, target, " HTTP/1.1\r\nhost: ", worker.authority(), "\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        head.extend_from_slice(headers);
        head.extend_from_slice(if self.wants_identity { IDENTITY } else { encodings });
        match authorization.filter(|_| !is_for_stranger) {
            Some(own) => write_line(&mut head, &AUTHORIZATION, own),
            None => head.extend_from_slice(given),
        }
        let has_length = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
        if has_length || !self.body.is_empty() {
            let mut digits = itoa::Buffer::new();
            for part in ["content-length: ", digits.format(self.body.len()), "\r\n"] {
                head.extend_from_slice(part.as_bytes());
            }
        }
        head.extend_from_slice(b"\r\n");
        head
    }
}

fn write_line(lines: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        lines.extend_from_slice(part);
    }
}

/// Whether `Connection` names a header; nothing if there is none, which is the rule.
fn is_named_by(headers: &HeaderMap) -> Option<impl Fn(&HeaderName) -> bool> {
    headers.contains_key(CONNECTION).then_some(|name: &HeaderName| {
        let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
        values
            .flat_map(|value| value.split(','))
            .any(|named| named.trim().eq_ignore_ascii_case(name.as_str()))
    })
}

/// The headers without those that belong to one connection.
pub(crate) fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    if !headers.keys().any(|name| HOP_BY_HOP.contains(name)) {
        return headers;
    }
    let named: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
    for named in named {
        for name in named.to_str().unwrap_or_default().split(',') {
            headers.remove(name.trim());
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_one_connection_stay_there() {
        let head = http::Request::post("/generate?x=1")
            .header("host", "gateway")
            .header("connection", "close, X-Hop")
            .header("x-hop", "1")
            .header("keep-alive", "5")
            .header("transfer-encoding", "chunked")
            .header("expect", "100-continue")
            .header("x-rollscope-step", "3")
            .header("accept-encoding", "gzip")
            .body(())
            .unwrap()
            .into_parts()
            .0;
        let mut outbound = Outbound::forward(&head, Chunks::from("{}"));
        outbound.ask_for_identity();
        let written = outbound.head_to(&WorkerUrl::parse("http://w:1/base/").unwrap(), None);
        let mut lines: Vec<_> = std::str::from_utf8(&written).unwrap().split("\r\n").collect();
        assert_eq!(lines.split_off(lines.len() - 2), ["", ""]);
        assert_eq!(lines.remove(0), "POST /base/generate?x=1 HTTP/1.1");
        lines.sort_unstable();
        assert_eq!(
            lines,
            ["accept-encoding: identity", "content-length: 2", "host: w:1", "x-rollscope-step: 3"]
        );
    }

    #[test]
    fn only_what_may_have_a_body_has_a_length() {
        let url = WorkerUrl::parse("http://[::1]").unwrap();
        let get = Outbound::get(PathAndQuery::from_static("/health")).head_to(&url, None);
        assert_eq!(get, b"GET /health HTTP/1.1\r\nhost: [::1]\r\n\r\n");
        let post = Outbound::post_json("/x", Vec::new()).head_to(&url, None);
        assert!(post.ends_with(b"\r\ncontent-length: 0\r\n\r\n"));
    }
}
