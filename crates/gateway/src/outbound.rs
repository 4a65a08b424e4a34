//! A request as it is sent to a worker.

use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::PathAndQuery;
use http::{Method, Request, Uri};
use rollscope_route::WorkerUrl;
use rollscope_wire::Chunks;

use crate::body::WholeBody;

/// What is sent, to whichever worker.
#[derive(Clone, Debug)]
pub(crate) struct Outbound {
    pub(crate) method: Method,
    target: PathAndQuery,
    headers: HeaderMap,
    pub(crate) body: Chunks,
}

/// Headers that belong to one connection, beside those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authenticate"),
];

// === impl Outbound ===

impl Outbound {
    /// A client's request with this body. Its framing is set anew, and an expectation has been met by now.
    pub(crate) fn forward(head: &http::request::Parts, body: Chunks) -> Self {
        let mut headers = end_to_end(&head.headers);
        for name in [HOST, CONTENT_LENGTH, EXPECT] {
            headers.remove(name);
        }
        let target = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        Self { method: head.method.clone(), target, headers, body }
    }

    /// A call of the gateway's own.
    pub(crate) fn post_json(path: &'static str, body: Vec<u8>) -> Self {
        let json = HeaderValue::from_static("application/json");
        Self {
            method: Method::POST,
            target: PathAndQuery::from_static(path),
            headers: HeaderMap::from_iter([(http::header::CONTENT_TYPE, json)]),
            body: body.into(),
        }
    }

    /// A question of the gateway's own.
    pub(crate) fn get(target: PathAndQuery) -> Self {
        Self { method: Method::GET, target, headers: HeaderMap::new(), body: Chunks::new() }
    }

    /// Asks for a reply that can be read.
    pub(crate) fn ask_for_identity(&mut self) {
        self.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }

    /// The request to a worker.
    pub(crate) fn to(&self, worker: &WorkerUrl) -> Request<WholeBody> {
        let mut request = Request::new(WholeBody::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri(worker);
        *request.headers_mut() = self.headers.clone();
        // A parsed URL's authority has no byte that a header may not have.
        if let Ok(host) = HeaderValue::from_str(worker.authority()) {
            request.headers_mut().insert(HOST, host);
        }
        request
    }

    fn uri(&self, worker: &WorkerUrl) -> Uri {
        let prefixed = Some(worker.path()).filter(|path| !path.is_empty());
        let prefixed = prefixed.and_then(|path| format!("{path}{}", self.target).parse().ok());
        Uri::from(prefixed.unwrap_or_else(|| self.target.clone()))
    }
}

/// The headers without those that belong to one connection.
pub(crate) fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for named in headers.get_all(CONNECTION) {
        for name in named.to_str().unwrap_or_default().split(',') {
            kept.remove(name.trim());
        }
    }
    for name in HOP_BY_HOP {
        kept.remove(name);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_one_connection_stay_there() {
        let head = Request::post("/generate?x=1")
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
        let request = outbound.to(&WorkerUrl::parse("http://w:1/base/").unwrap());
        assert_eq!(request.uri(), "/base/generate?x=1");
        let mut headers: Vec<_> =
            request.headers().iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
        headers.sort();
        assert_eq!(headers, ["accept-encoding: \"identity\"", "host: \"w:1\"", "x-rollscope-step: \"3\""]);
    }
}
