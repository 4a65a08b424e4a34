//! Putting an object into a bucket that speaks S3, by the `object_store` crate over the HTTP client that the recorder has.
//!
//! Who we are, the region and the endpoint are taken from the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
//! `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`), and without keys there from the role of a pod, a container or a
//! machine. The crate signs, asks for a role's keys before they end, and puts large objects in pieces.
//!
//! The crate's own HTTP client (reqwest, with a TLS library in C) is left out: [`Http`] sends its calls by ureq, each with a
//! limit of time. It blocks the thread, which has nothing else to do.

use std::fs::File;
use std::io::Read as _;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http_body_util::BodyExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, MultipartUpload as _, ObjectStoreExt as _, PutPayload,
    RetryConfig,
};
use tokio::runtime::Runtime;
use ureq::Agent;
use url::Url;

use crate::archive::ArchiveError;

/// Why an object could not be put.
#[derive(Clone, Debug, thiserror::Error)]
pub enum S3Error {
    /// A variable of the environment cannot be used.
    #[error("not usable as it stands in the environment: {0}")]
    Variable(String),
    /// Nothing tells who we are.
    #[error("no keys: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY nor a role of the machine")]
    NoKeys(#[source] Arc<S3Error>),
    /// The bucket, or what gives a role's keys, could not be reached.
    #[error("cannot reach the server: {url}")]
    Unreachable {
        /// What was called.
        url: String,
        /// Why not.
        source: Arc<ureq::Error>,
    },
    /// A token would be sent for anyone to read.
    #[error("not called without TLS: {0}")]
    NoTls(String),
    /// The bucket, or what gives a role's keys, refused.
    #[error("the server refuses ({status}): {url}: {answer}")]
    Refused {
        /// What was called.
        url: String,
        /// HTTP status.
        status: u16,
        /// The begin of what it said.
        answer: String,
    },
    /// What is set or what was answered is not understood.
    #[error("not as S3 has it")]
    Store(#[source] Arc<object_store::Error>),
    /// No runtime for the calls.
    #[error("cannot start calling")]
    Runtime(#[source] Arc<std::io::Error>),
}

/// A bucket, and who we are to it.
pub(crate) struct Bucket {
    store: AmazonS3,
    runtime: Runtime,
}

/// Calls by ureq, for `object_store`.
#[derive(Debug)]
struct Http {
    agent: Agent,
    may_lack_tls: bool,
}

/// Makes a [`Http`] for each kind of call.
#[derive(Debug)]
struct Connector;

/// A larger object is put in pieces of so many bytes, of which S3 takes 10000.
const PIECE_BYTES: u64 = 16 << 20;
/// A call that takes longer has failed: so long, and what its bytes take on a slow link.
const TIMEOUT: Duration = Duration::from_mins(1);
const SLOW_BYTES_PER_S: u64 = 128 << 10;
/// Outside of a cloud nobody answers who would give a role's keys.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// More tries of a call, none of them after one that took its whole time, and the pause before the first.
const RETRIES: usize = 2;
const RETRY_WITHIN: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);
/// Of a refusal this much is told; characters.
const TOLD: usize = 300;

// === impl S3Error ===

impl From<object_store::Error> for S3Error {
    /// What [`Http`] told, which the crate's error holds at its end.
    fn from(error: object_store::Error) -> Self {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(error) = cause {
            if let Some(told) = error.downcast_ref::<Self>() {
                return told.clone();
            }
            cause = error.source();
        }
        Self::Store(Arc::new(error))
    }
}

// === impl Bucket ===

impl Bucket {
    /// Of a role's keys the first are asked for here.
    pub(crate) fn from_environment(
        bucket: &str,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, S3Error> {
        let mut builder = AmazonS3Builder::new();
        for (name, value) in variables.filter(|(name, value)| name.starts_with("AWS_") && !value.is_empty()) {
            let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() else { continue };
            let is_endpoint = matches!(key, AmazonS3ConfigKey::Endpoint | AmazonS3ConfigKey::S3Endpoint);
            let usable = if is_endpoint { endpoint(&value) } else { Some(value) };
            // The crate panics where it makes a header of what is none.
            let usable = usable.filter(|value| HeaderValue::from_str(value).is_ok());
            builder = builder.with_config(key, usable.ok_or(S3Error::Variable(name))?);
        }
        let backoff = BackoffConfig { init_backoff: PAUSE, max_backoff: PAUSE * 4, base: 2.0 };
        let retries = RetryConfig { backoff, max_retries: RETRIES, retry_timeout: RETRY_WITHIN };
        let builder = builder.with_bucket_name(bucket).with_allow_http(true).with_retry(retries);
        let store = builder.with_http_connector(Connector).build()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|error| S3Error::Runtime(Arc::new(error)))?;
        let keys = runtime.block_on(store.credentials().get_credential());
        keys.map_err(|error| S3Error::NoKeys(Arc::new(error.into())))?;
        Ok(Self { store, runtime })
    }

    /// Puts a file; `has_progressed` is called when a piece of it is there.
    pub(crate) fn put(
        &self,
        name: &str,
        path: &FilePath,
        has_progressed: impl Fn(),
    ) -> Result<(), ArchiveError> {
        let object = Path::parse(name).map_err(|error| S3Error::from(object_store::Error::from(error)))?;
        let io = |source| ArchiveError::Io { source, path: path.to_owned() };
        let mut file = File::open(path).map_err(io)?;
        let mut next_piece = || {
            let mut bytes = Vec::new();
            file.by_ref().take(PIECE_BYTES).read_to_end(&mut bytes).map_err(io)?;
            Ok::<_, ArchiveError>(bytes)
        };
        let first = next_piece()?;
        if (first.len() as u64) < PIECE_BYTES {
            let put = self.store.put(&object, PutPayload::from(first));
            self.runtime.block_on(put).map_err(S3Error::from)?;
            has_progressed();
            return Ok(());
        }
        self.runtime.block_on(async {
            let mut upload = self.store.put_multipart(&object).await.map_err(S3Error::from)?;
            let mut piece = first;
            let put = async {
                while !piece.is_empty() {
                    upload.put_part(PutPayload::from(piece)).await.map_err(S3Error::from)?;
                    has_progressed();
                    piece = next_piece()?;
                }
                upload.complete().await.map_err(S3Error::from)?;
                Ok(())
            };
            let put = put.await;
            if put.is_err() {
                // What is left there otherwise is paid for. A bucket may have a rule for what this leaves, too.
                let _aborted = upload.abort().await;
            }
            put
        })
    }
}

impl std::fmt::Debug for Bucket {
    /// Without its keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Bucket").field(&self.store.to_string()).finish()
    }
}

/// An endpoint as it is signed: without the port that its scheme has anyway, and without a password, which S3 has no use for.
fn endpoint(text: &str) -> Option<String> {
    let mut url = Url::parse(text).ok()?;
    let is_plain =
        matches!(url.scheme(), "http" | "https") && url.query().is_none() && url.fragment().is_none();
    (is_plain && url.has_host()).then_some(())?;
    url.set_username("").and_then(|()| url.set_password(None)).ok()?;
    Some(url.into())
}

// === impl Http ===

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let config =
            Agent::config_builder().http_status_as_error(false).timeout_connect(Some(CONNECT_TIMEOUT));
        // A call is signed for one server.
        let config = config.max_redirects(0).max_redirects_will_error(false);
        let may_lack_tls = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        Ok(HttpClient::new(Http { agent: config.build().into(), may_lack_tls }))
    }
}

#[async_trait::async_trait]
impl HttpService for Http {
    /// A refusal is an error too, so that what the server said of it is told.
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        // A query may hold a token.
        let url = parts.uri.to_string();
        let url = url.split('?').next().unwrap_or_default().to_owned();
        if !self.may_lack_tls && parts.uri.scheme_str() != Some("https") {
            return Err(HttpError::new(HttpErrorKind::Unknown, S3Error::NoTls(url)));
        }
        let request = self.agent.configure_request(http::Request::from_parts(parts, &*body));
        let request = request.timeout_global(Some(timeout(body.len() as u64))).build();
        let unreachable = |source: ureq::Error| {
            let is_late = matches!(source, ureq::Error::Timeout(_));
            let kind = if is_late { HttpErrorKind::Timeout } else { HttpErrorKind::Request };
            HttpError::new(kind, S3Error::Unreachable { url: url.clone(), source: Arc::new(source) })
        };
        let (parts, mut body) = self.agent.run(request).map_err(unreachable)?.into_parts();
        let answer = body.read_to_vec();
        if parts.status.is_success() {
            return Ok(HttpResponse::from_parts(parts, answer.map_err(unreachable)?.into()));
        }
        let answer = String::from_utf8_lossy(&answer.unwrap_or_default()).chars().take(TOLD).collect();
        let status = parts.status.as_u16();
        // Of these kinds the one is tried again and the other is not.
        let may_pass = status >= 500 || matches!(status, 408 | 429);
        let kind = if may_pass { HttpErrorKind::Request } else { HttpErrorKind::Unknown };
        Err(HttpError::new(kind, S3Error::Refused { url, status, answer }))
    }
}

fn timeout(bytes: u64) -> Duration {
    TIMEOUT + Duration::from_secs(bytes / SLOW_BYTES_PER_S)
}

#[cfg(test)]
mod tests;
