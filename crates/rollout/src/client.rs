//! The HTTP side: one `/generate` call, and what its reply means.

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use crate::RolloutError;
use crate::kept::{AskForKept, Kept};

/// A keep-alive client of one gateway.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    base: Url,
    http: HyperClient<HttpConnector, Full<Bytes>>,
}

/// A call of `/generate`, as slime's rollout sends it.
#[derive(Debug, Serialize)]
pub(crate) struct GenerateRequest<'a> {
    pub(crate) text: &'a str,
    pub(crate) sampling_params: SamplingParams,
    pub(crate) return_logprob: bool,
    pub(crate) rid: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct SamplingParams {
    pub(crate) temperature: f64,
    pub(crate) top_p: f64,
    pub(crate) max_new_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sampling_seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) custom_params: Option<AskForKept>,
}

/// The parts of a reply that a rollout needs. All but the text may be missing.
#[derive(Debug, Deserialize)]
pub(crate) struct GenerateReply {
    #[serde(default)]
    pub(crate) text: String,
    #[serde(default)]
    pub(crate) output_ids: Vec<u32>,
    #[serde(default)]
    pub(crate) meta_info: MetaInfo,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct MetaInfo {
    #[serde(default)]
    pub(crate) finish_reason: Option<FinishReason>,
    /// A text, or with some workers a number.
    #[serde(default)]
    pub(crate) weight_version: Option<Value>,
    #[serde(default)]
    pub(crate) completion_tokens: Option<u64>,
    /// (log-probability, token id, text).
    #[serde(default)]
    pub(crate) output_token_logprobs: Vec<(Option<f64>, u32, Option<String>)>,
    #[serde(flatten)]
    pub(crate) kept: Kept,
}

#[derive(Debug, Deserialize)]
pub(crate) struct FinishReason {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) message: Option<String>,
}

/// Why a call gave no sample.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) message: String,
    /// Whether another try may help.
    pub(crate) retry: bool,
}

/// The largest reply that is read; bytes.
const MAX_REPLY_BYTES: usize = 256 << 20;

// === impl Client ===

impl Client {
    pub(crate) fn new(url: &str) -> Result<Self, RolloutError> {
        let malformed = || RolloutError::Url { url: url.to_owned() };
        let base = Url::parse(url).map_err(|_| malformed())?;
        if base.scheme() != "http" || base.host().is_none() {
            return Err(malformed());
        }
        Ok(Self { base, http: HyperClient::builder(TokioExecutor::new()).build_http() })
    }

    /// Posts `/generate`; a finish reason `abort` is an error like any other.
    pub(crate) async fn generate(
        &self,
        request: &GenerateRequest<'_>,
        headers: &[(&'static str, String)],
    ) -> Result<GenerateReply, CallError> {
        let body = serde_json::to_vec(request).map_err(|error| CallError::fatal(error.to_string()))?;
        let (status, body) = self.post("/generate", "application/json", body.into(), headers).await?;
        if !status.is_success() {
            let retry = status.is_server_error()
                || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
            return Err(CallError { message: format!("{status}: {}", error_message(&body)), retry });
        }
        let reply: GenerateReply = serde_json::from_slice(&body).map_err(|error| {
            CallError::passing(format!("the reply is not what /generate returns: {error}"))
        })?;
        match &reply.meta_info.finish_reason {
            Some(finish) if finish.kind == "abort" => {
                Err(CallError::passing(finish.message.clone().unwrap_or_else(|| "aborted".to_owned())))
            }
            _ if request.sampling_params.custom_params.is_some() => match reply.trouble_with_kept() {
                Some(trouble) => Err(CallError::fatal(trouble)),
                None => Ok(reply),
            },
            _ => Ok(reply),
        }
    }

    /// Posts a body and reads the whole answer.
    pub(crate) async fn post(
        &self,
        path: &str,
        content_type: &str,
        body: Bytes,
        headers: &[(&'static str, String)],
    ) -> Result<(StatusCode, Bytes), CallError> {
        let url = self.base.join(path).map_err(|error| CallError::fatal(error.to_string()))?;
        let mut request =
            Request::builder().method(Method::POST).uri(url.as_str()).header("content-type", content_type);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| CallError::fatal(error.to_string()))?;
        let reply = self.http.request(request).await.map_err(|error| CallError::passing(chain(&error)))?;
        let status = reply.status();
        let body = Limited::new(reply.into_body(), MAX_REPLY_BYTES).collect().await;
        Ok((status, body.map_err(|error| CallError::passing(chain(error.as_ref())))?.to_bytes()))
    }
}

// === impl GenerateReply ===

impl GenerateReply {
    fn trouble_with_kept(&self) -> Option<String> {
        self.meta_info.kept.trouble(self.response_tokens().unwrap_or_default() as usize)
    }

    /// Tokens generated: as many as came, else as the worker counts; nothing where it tells neither.
    pub(crate) fn response_tokens(&self) -> Option<u64> {
        let logprobs = &self.meta_info.output_token_logprobs;
        match self.output_ids.len().max(logprobs.len()) {
            0 => self.meta_info.completion_tokens,
            came => Some(came as u64),
        }
    }
}

// === impl CallError ===

impl CallError {
    fn passing(message: String) -> Self {
        Self { message, retry: true }
    }

    fn fatal(message: String) -> Self {
        Self { message, retry: false }
    }
}

/// The sentence in an error's body: `{"error": {"message": …}}`, or the body itself, cut.
fn error_message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Outer {
        error: Inner,
    }
    #[derive(Deserialize)]
    struct Inner {
        message: String,
    }
    match serde_json::from_slice::<Outer>(body) {
        Ok(outer) => outer.error.message,
        Err(_) => String::from_utf8_lossy(body).chars().take(200).collect(),
    }
}

/// An error with its causes: the outermost alone says only that the request failed.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
