//! Memory that is given up and taken again, and weights that are replaced: what a trainer that shares the machine asks for.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use rollscope_model::Model;
use serde_json::{Value, json};

use super::fields::Fields;
use super::respond::{ApiError, requests};
use super::{App, to_its_end};
use crate::error::sentence;
use crate::output::Abort;
use crate::ranks::NotReleased;
use crate::scheduler::{Occupation, Whom};
use crate::server::open_model;

type Body = Result<Bytes, BytesRejection>;

/// Gives up the memory of weights, KV cache or both. A server with live requests refuses, unless it is paused: then they end.
pub(super) async fn release_memory_occupation(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let what = occupation(&mut Fields::parse_optional(&body?)?)?;
    to_its_end(async move {
        let _one_at_a_time = app.administration.lock().await;
        app.ranks.release(what).await?.map_err(|why| match why {
            NotReleased::Needed { live } => ApiError::bad_request(format!(
                "Memory not released: {} waiting or running. Pause generation first, or let them end.",
                requests(live)
            )),
            NotReleased::Lost(error) => ApiError::failure(sentence(&error)),
        })?;
        if what.weights {
            app.model.release_weights();
        }
        Ok(Json(Value::Null))
    })
    .await
}

/// Takes it again. Weights come from where they came from last, and may be others by now.
pub(super) async fn resume_memory_occupation(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let what = occupation(&mut Fields::parse_optional(&body?)?)?;
    to_its_end(async move {
        let _one_at_a_time = app.administration.lock().await;
        let before = app.model.fingerprint();
        if what.weights && app.model.is_released() && !app.is_simulated() {
            let path = app.published.model().model_path.clone();
            let model = load(path).await.map_err(ApiError::failure)?;
            app.model.replace_weights(model).map_err(|error| ApiError::failure(sentence(&error)))?;
        }
        let replaced = app.model.fingerprint() != before;
        let resumed = app.ranks.resume(what, replaced).await?;
        resumed.map_err(|error| ApiError::failure(sentence(&error)))?;
        Ok(Json(Value::Null))
    })
    .await
}

/// Computes with the weights of another checkpoint of the same shape, once nothing is being computed: a paused server at once.
pub(super) async fn update_weights_from_disk(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(&body?)?;
    let Some(path) = fields.take::<String>("model_path")? else {
        return Err(ApiError::bad_request("model_path is missing"));
    };
    if let Some(format) = fields.take::<String>("load_format")?
        && !["auto", "safetensors", "gguf"].contains(&format.as_str())
    {
        return Err(ApiError::bad_request(format!(
            "load_format must be auto, safetensors or gguf, got {format}"
        )));
    }
    let version: Option<String> = fields.take("weight_version")?;
    let aborts = fields.take("abort_all_requests")?.unwrap_or(false);
    to_its_end(async move {
        let _one_at_a_time = app.administration.lock().await;
        let model = match load(path.clone()).await {
            Ok(model) => model,
            Err(message) => return Ok(outcome(Err(message), 0)),
        };
        if aborts {
            app.ranks.abort(Whom::All, Abort::asked_for()).await?;
        }
        let paused = app.ranks.quiesce().await?;
        let replaced = app.model.replace_weights(model).map_err(|error| sentence(&error));
        // Before anything is computed with them, so that no reply names the old ones.
        let told = if replaced.is_ok() { publish_weights(&app, path, version) } else { Ok(()) };
        app.ranks.proceed(replaced.is_ok()).await?;
        told?;
        Ok(outcome(replaced.map(|()| "Succeeded to update model weights.".to_owned()), paused))
    })
    .await
}

fn publish_weights(app: &App, path: String, version: Option<String>) -> Result<(), ApiError> {
    let version = version.map(|version| ("weight_version", version.into()));
    let fields = [("model_path", path.into())].into_iter().chain(version);
    let told = app.published.override_fields("update_weights_from_disk", fields);
    told.map_err(|error| ApiError::failure(error.to_string()))
}

/// Names the weights anew.
pub(super) async fn update_weight_version(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let mut fields = Fields::parse(&body?)?;
    let Some(version) = fields.take::<String>("new_version")? else {
        return Err(ApiError::bad_request("new_version is missing"));
    };
    let aborts = fields.take("abort_all_requests")?.unwrap_or(true);
    to_its_end(async move {
        let _one_at_a_time = app.administration.lock().await;
        if aborts {
            app.ranks.abort(Whom::All, Abort::asked_for()).await?;
        }
        let fields = [("weight_version", version.clone().into())];
        let told = app.published.override_fields("update_weight_version", fields);
        told.map_err(|error| ApiError::failure(error.to_string()))?;
        let message = format!("Weight version updated to {version}");
        Ok(Json(json!({"success": true, "message": message, "new_version": version})))
    })
    .await
}

/// There is nothing to do after weights were loaded: they are not quantized, and are laid out while they are loaded.
pub(super) async fn post_process_weights(body: Body) -> Result<Response, ApiError> {
    let mut fields = Fields::parse_optional(&body?)?;
    for name in ["restore_weights_before_load", "post_process_quantization"] {
        if fields.take(name)?.unwrap_or(false) {
            return Ok(outcome(Err(format!("{name} is not supported by this engine")), 0));
        }
    }
    Ok(outcome(Ok("nothing to do".to_owned()), 0))
}

/// Compares the weights with those of an earlier moment, by their fingerprint.
pub(super) async fn weights_checker(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let action: Option<String> = Fields::parse(&body?)?.take("action")?;
    let now = app.model.fingerprint();
    let mut snapshot = app.weights_snapshot.lock().await;
    let checked = match (action.as_deref(), *snapshot) {
        (Some("checksum"), _) => Ok(format!("{now:016x}")),
        (Some("snapshot"), _) => {
            *snapshot = Some(now);
            Ok(format!("{now:016x}"))
        }
        (Some("compare"), None) => Err("there is no snapshot to compare with".to_owned()),
        (Some("compare"), Some(then)) if then == now => Ok(format!("{now:016x}")),
        (Some("compare"), Some(then)) => Err(format!("the weights were {then:016x} and are {now:016x}")),
        (action, _) => {
            Err(format!("action must be snapshot, compare or checksum, got {}", action.unwrap_or("none")))
        }
    };
    Ok(outcome(checked, 0))
}

/// What needs a process group of GPUs, or files in a layout of their own.
pub(super) async fn unsupported(uri: axum::http::Uri) -> Response {
    let message = format!(
        "{} is not supported by this engine: use /update_weights_from_disk",
        uri.path().trim_start_matches('/')
    );
    outcome(Err(message), 0)
}

fn outcome(result: Result<String, String>, paused: usize) -> Response {
    let (status, success, message) = match result {
        Ok(message) => (StatusCode::OK, true, message),
        Err(message) => (StatusCode::BAD_REQUEST, false, message),
    };
    let body = json!({"success": success, "message": message, "num_paused_requests": paused});
    (status, Json(body)).into_response()
}

/// The tags; none of them are all of them.
fn occupation(fields: &mut Fields) -> Result<Occupation, ApiError> {
    let tags: Vec<String> = fields.take("tags")?.unwrap_or_default();
    if tags.is_empty() {
        return Ok(Occupation { weights: true, kv_cache: true });
    }
    let mut what = Occupation { weights: false, kv_cache: false };
    for tag in tags {
        match tag.as_str() {
            "weights" => what.weights = true,
            "kv_cache" => what.kv_cache = true,
            // There are none.
            "cuda_graph" => {}
            _ => {
                return Err(ApiError::bad_request(format!(
                    "tags must be of weights, kv_cache, cuda_graph; got {tag}"
                )));
            }
        }
    }
    Ok(what)
}

/// Loads a checkpoint off the runtime's threads.
async fn load(path: String) -> Result<Model, String> {
    let loading = tokio::task::spawn_blocking(move || open_model(&path)).await;
    match loading {
        Ok(loaded) => loaded.map_err(|error| sentence(&error)),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use futures_util::poll;
    use rollscope_config::{Options, Published};

    use super::*;
    use crate::options::EngineOptions;
    use crate::server::Engine;

    #[tokio::test]
    async fn weights_are_named_though_who_asked_for_it_has_left() {
        let options = EngineOptions::from_args(["--model-path", "bundled"]).unwrap();
        let engine = Engine::start(Published::publish(options)).await.unwrap();
        let body = Ok(Bytes::from_static(b"{\"new_version\": \"two\"}"));
        let mut named = Box::pin(update_weight_version(State(Arc::clone(&engine.app)), body));
        assert!(poll!(&mut named).is_pending());
        drop(named);
        let deadline = Instant::now() + Duration::from_mins(5);
        while engine.app.published.resolved().weight_version != "two" {
            assert!(Instant::now() < deadline, "they are never named");
            tokio::task::yield_now().await;
        }
    }
}
