//! What the server is told to do beside computing: health checks, aborts, flushes.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use bytes::Bytes;
use rollscope_model::sampling::SamplingParams;
use serde::Deserialize;

use super::App;
use super::fields::Fields;
use super::respond::ApiError;
use crate::output::{Abort, Finish};
use crate::request::{GenerateSpec, Sampling};
use crate::scheduler::Whom;
use crate::stamps::Stamps;

#[derive(Debug, Deserialize)]
pub(super) struct FlushQuery {
    /// Seconds to wait for the server to be idle.
    timeout: Option<f64>,
}

const HEALTH_TIMEOUT: Duration = Duration::from_secs(20);
const FLUSH_RETRY: Duration = Duration::from_millis(50);

/// 200 while requests are taken on.
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<(), ApiError> {
    app.check_open()
}

/// 200 if a token can be generated.
pub(super) async fn health_generate(State(app): State<Arc<App>>) -> Result<(), ApiError> {
    app.check_open()?;
    let spec = GenerateSpec {
        rid: format!("HEALTH_CHECK_{:016x}", rand::random::<u64>()),
        batch_rid: None,
        input_ids: vec![app.model.config().bos_token_id.unwrap_or(0)],
        sampling: Sampling {
            params: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            seeded: true,
            min_new_tokens: 0,
            stop: Arc::default(),
            stop_token_ids: Arc::default(),
            skip_special_tokens: true,
            no_stop_trim: false,
        },
        max_new_tokens: 1,
        logprobs: None,
        room: None,
        stamps: Stamps::new(app.clock.now()),
    };
    let listener = app.postbox.generate(spec).await?;
    let unhealthy = |why: &str| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why);
    match tokio::time::timeout(HEALTH_TIMEOUT, listener.finished()).await {
        Ok(()) => match listener.snapshot().finish {
            Some(Finish::Length(_)) => Ok(()),
            Some(Finish::Abort(abort)) => Err(unhealthy(&abort.message)),
            _ => Err(unhealthy("the health check ended in an unexpected way")),
        },
        Err(_) => Err(unhealthy("no token was generated in time")),
    }
}

/// Gives up the requests of a name, exactly, or all. Returns when they have ended; nobody of that name is no error.
pub(super) async fn abort_request(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(), ApiError> {
    let body = body?;
    let mut fields = Fields::parse(if body.is_empty() { b"{}" } else { &body })?;
    let rid: Option<String> = fields.take("rid")?;
    let whom = if fields.take("abort_all")?.unwrap_or(false) {
        Whom::All
    } else {
        Whom::Named(rid.unwrap_or_default())
    };
    Ok(app.postbox.abort(whom, Abort::asked_for()).await?)
}

/// Drops what is cached, which an idle server alone does. There is no prefix cache, so being idle is all that it takes:
/// trainers call this before they change the weights.
pub(super) async fn flush_cache(
    State(app): State<Arc<App>>,
    query: Result<Query<FlushQuery>, QueryRejection>,
) -> Result<&'static str, ApiError> {
    let Query(query) = query.map_err(|_| ApiError::bad_request("timeout must be a number of seconds"))?;
    let patience = Duration::try_from_secs_f64(query.timeout.unwrap_or(0.0))
        .map_err(|_| ApiError::bad_request("timeout must be a number of seconds"))?;
    let start = app.clock.now();
    loop {
        let snapshot = app.postbox.inspect().await?;
        if snapshot.live() == 0 {
            return Ok("Cache flushed.\n");
        }
        if app.clock.now().since(start) >= patience {
            return Err(ApiError::bad_request(format!(
                "Cache not flushed: {} requests are waiting or running.",
                snapshot.live()
            )));
        }
        tokio::time::sleep(FLUSH_RETRY).await;
    }
}
