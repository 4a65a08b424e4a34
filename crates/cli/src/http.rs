//! The one HTTP call that a command makes by itself.

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use crate::exit::Failure;

/// The URL of a server that a person gave, if it is one that can be called.
pub(crate) fn server_url(given: &str) -> Result<&str, Failure> {
    let uri = given.parse::<Uri>().ok().filter(|uri| uri.scheme_str() == Some("http"));
    match uri.and_then(|uri| uri.host().map(|host| !host.is_empty())) {
        Some(true) => Ok(given.trim_end_matches('/')),
        _ => Err(Failure::Usage(anyhow!("not the URL of a server, which is http://HOST:PORT: {given}"))),
    }
}

/// The largest reply that is read; bytes.
const MAX_REPLY_BYTES: usize = 16 << 20;

/// Gets a JSON document.
pub(crate) async fn get_json(url: &str) -> anyhow::Result<serde_json::Value> {
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let uri = url.parse().with_context(|| format!("not an address: {url}"))?;
    let reply = client.get(uri).await.with_context(|| format!("cannot reach {url}"))?;
    if !reply.status().is_success() {
        bail!("{url} answers {}", reply.status());
    }
    let body = Limited::new(reply.into_body(), MAX_REPLY_BYTES).collect().await;
    let body = body.map_err(anyhow::Error::from_boxed).with_context(|| format!("{url} breaks off"))?;
    serde_json::from_slice(&body.to_bytes()).with_context(|| format!("{url} answers no JSON"))
}
