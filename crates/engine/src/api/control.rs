//! What the server is told to do beside computing: health checks, aborts, flushes.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use bytes::Bytes;
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};

use super::fields::Fields;
use super::respond::{ApiError, requests};
use super::{App, to_its_end};
use crate::options::DisaggregationMode;
use crate::output::{Abort, Finish};
use crate::request::{GenerateSpec, Room};
use crate::scheduler::{PauseMode, Snapshot, Whom};

#[derive(Debug, Deserialize)]
pub(super) struct FlushQuery {
    /// Seconds to wait for the server to be idle.
    timeout: Option<f64>,
}

const HEALTH_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a check that waits for its token looks for others'.
const HEALTH_STEP: Duration = Duration::from_millis(100);
const FLUSH_RETRY: Duration = Duration::from_millis(50);

/// 200 while requests are taken on.
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<(), ApiError> {
    app.check_open()
}

/// 200 if each rank generates a token: that of the check or, where others are before it, one of theirs.
pub(super) async fn health_generate(State(app): State<Arc<App>>) -> Result<(), ApiError> {
    app.check_open()?;
    let before = inspect_awake(&app).await?;
    let one_a_rank = (0..app.ranks.count()).map(|rank| probe(&app, rank)).collect();
    let probed = app.ranks.generate(one_a_rank).await?;
    let others_are_served = async {
        loop {
            tokio::time::sleep(HEALTH_STEP).await;
            let now = inspect_awake(&app).await?;
            let generated = |rank: &Snapshot| rank.counts.generated_tokens;
            if now.iter().zip(&before).all(|(now, before)| generated(now) > generated(before)) {
                return Ok(());
            }
        }
    };
    tokio::select! {
        _ = join_all(probed.iter().map(|(_, listener)| listener.finished())) => {}
        served = others_are_served => return served,
        () = tokio::time::sleep(HEALTH_TIMEOUT) => return Err(unhealthy("no token was generated in time")),
    }
    for (_, listener) in probed {
        match listener.snapshot().finish {
            Some(Finish::Length(_) | Finish::StopToken(_)) => {}
            Some(Finish::Abort(abort)) => return Err(unhealthy(&abort.message)),
            _ => return Err(unhealthy("the health check ended in an unexpected way")),
        }
    }
    Ok(())
}

fn unhealthy(why: &str) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)
}

/// What each rank tells of itself, or why one of them begins nothing.
async fn inspect_awake(app: &App) -> Result<Vec<Snapshot>, ApiError> {
    let ranks = app.ranks.inspect(false).await?;
    match ranks.iter().find_map(|rank| rank.stillness.reason()) {
        Some(why) => Err(unhealthy(why)),
        None => Ok(ranks),
    }
}

/// One token of one token.
fn probe(app: &App, dp_rank: usize) -> GenerateSpec {
    let rid = format!("HEALTH_CHECK_{:016x}", rand::random::<u64>());
    let prompt = vec![app.model.config().bos_token_id.unwrap_or(0)];
    GenerateSpec {
        dp_rank: Some(dp_rank),
        // In a pair nothing is transferred: the other half need not be there.
        room: (app.mode() != DisaggregationMode::Null).then_some(Room {
            number: 0,
            prefill: None,
            prefill_rank: None,
        }),
        is_probe: true,
        ..GenerateSpec::greedy(rid, prompt, 1, app.clock.now())
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
    Ok(app.ranks.abort(whom, Abort::asked_for()).await?)
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
    to_its_end(async move { Ok(app.ranks.pause(mode).await?) }).await?;
    Ok(Json(json!({"message": "Generation paused successfully.", "status": "ok"})))
}

/// Computes again, unless there is another reason not to. What was not paused goes on.
pub(super) async fn continue_generation(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    to_its_end(async move { Ok(app.ranks.go_on().await?) }).await?;
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
        let live: usize = app.ranks.inspect(false).await?.iter().map(Snapshot::live).sum();
        if live == 0 {
            app.ranks.forget().await?;
            return Ok("Cache flushed.\n");
        }
        if app.clock.now().since(start) >= patience {
            return Err(ApiError::bad_request(format!(
                "Cache not flushed: {} waiting or running.",
                requests(live)
            )));
        }
        tokio::time::sleep(FLUSH_RETRY).await;
    }
}
