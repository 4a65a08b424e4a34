//! A listener for `/metrics` alone, so that figures can be had where the gateway itself can not be reached.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::body::ReplyBody;
use crate::core::Core;
use crate::fault::Refusal;
use crate::metrics;
use crate::reply::refuse_plainly;
use crate::server::Gateway;

/// So long a connection may take to send the head of a request, and may idle.
const HEAD_LIMIT: Duration = Duration::from_mins(2);
/// More scrapers than this at once are none.
const MAX_CONNECTIONS: usize = 64;

// === impl Gateway ===

impl Gateway {
    /// Serves `/metrics` on a listener of its own, until it is dropped.
    pub async fn serve_metrics(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            while connections.len() >= MAX_CONNECTIONS && connections.join_next().await.is_some() {}
            while connections.try_join_next().is_some() {}
            let stream = self.accept(&listener).await;
            let core = Arc::clone(&self.core);
            let service = service_fn(move |request| {
                let reply = answer(&core, &request);
                async move { Ok::<_, Infallible>(reply) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            connections.spawn(async move {
                // A scraper that leaves is no event.
                drop(connection.await);
            });
        }
    }
}

fn answer(core: &Core, request: &Request<Incoming>) -> Response<ReplyBody> {
    const ALLOWED: &[Method] = &[Method::GET, Method::HEAD];
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match (path.as_str(), ALLOWED.contains(&method)) {
        ("/metrics", true) => metrics::page(core),
        ("/metrics", false) => refuse_plainly(&Refusal::Method { method, allowed: ALLOWED, path }),
        _ => refuse_plainly(&Refusal::OnlyMetrics { path }),
    }
}
