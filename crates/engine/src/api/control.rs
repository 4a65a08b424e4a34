//! What the server is told to do beside computing: health checks, aborts, flushes.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use bytes::Bytes;
use rollscope_model::sampling::SamplingParams;
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::fields::Fields;
use super::respond::ApiError;
use crate::options::DisaggregationMode;
use crate::output::{Abort, Finish};
use crate::request::{GenerateSpec, Room, Sampling};
use crate::scheduler::{PauseMode, Whom};
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
        tells_kept: false,
        // In a pair nothing is transferred: the other half need not be there.
        room: (app.mode() != DisaggregationMode::Null).then_some(Room { number: 0, prefill: None }),
        extra_key: None,
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
    let mut fields = Fields::parse_optional(&body?)?;
    let rid: Option<String> = fields.take("rid")?;
    let whom = if fields.take("abort_all")?.unwrap_or(false) {
        Whom::All
    } else {
        Whom::Named(rid.unwrap_or_default())
    };
    Ok(app.postbox.abort(whom, Abort::asked_for()).await?)
}

/// Stops computing until it is told to go on. By default requests end; `in_place` leaves them where they are, `retract` takes
/// their pages.
pub(super) async fn pause_generation(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let mut fields = Fields::parse_optional(&body?)?;
    let mode = match fields.take::<String>("mode")?.as_deref() {
        None | Some("abort") => PauseMode::Abort,
        Some("in_place") => PauseMode::InPlace,
        Some("retract") => PauseMode::Retract,
        Some(mode) => {
            return Err(ApiError::bad_request(format!(
                "mode must be abort, in_place or retract, got {mode}"
            )));
        }
    };
    app.postbox.pause(mode).await?;
    Ok(Json(json!({"message": "Generation paused successfully.", "status": "ok"})))
}

/// Computes again. What was not paused goes on.
pub(super) async fn continue_generation(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.postbox.go_on().await?;
    Ok(Json(json!({"message": "Generation continued successfully.", "status": "ok"})))
}

/// Drops what is cached, which an idle server alone does: trainers call this before they change the weights.
pub(super) async fn flush_cache(
    State(app): State<Arc<App>>,
    query: Result<Query<FlushQuery>, QueryRejection>,
) -> Result<&'static str, ApiError> {
    let Query(query) = query.map_err(|_| ApiError::bad_request("timeout must be a number of seconds"))?;
    let patience = Duration::try_from_secs_f64(query.timeout.unwrap_or(0.0))
        .map_err(|_| ApiError::bad_request("timeout must be a number of seconds"))?;
    let start = app.clock.now();
    loop {
        let snapshot = app.postbox.inspect(false).await?;
        if snapshot.live() == 0 {
            app.postbox.forget().await?;
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
