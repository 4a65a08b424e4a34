//! The HTTP side of the recorder, to be mounted on the gateway's listener.
//!
//! | route | what |
//! |---|---|
//! | `POST /rollscope/v1/spans` | spans, and what is known of samples, as JSON lines; 503 while the queue is full, 413 for more than it ever holds |
//! | `POST /rollscope/steps/N/end` | the step is over: `{"rollout_time": seconds, "num_gpus": n}`, both optional; answers with its numbers, 404 for a step of which nothing was recorded, 410 for one that is no longer kept, whose numbers stay |
//! | `GET /rollscope/steps` | the steps and their state |
//! | `GET /rollscope/steps/N` | one step with its numbers |

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use rollscope_run::{Run, RunError, StepSummary};
use rollscope_stats::step_numbers;
use rollscope_trace::{StepNumber, sentence};
use serde_json::{Value, json};

use crate::{RecordError, RecorderHandle, StepEnd};
use crate::{clock, ingest};

/// The largest body of lines; bytes.
const MAX_BODY_BYTES: usize = 16 << 20;
/// Of what axum says when it refuses.
const MAX_REFUSAL_BYTES: usize = 4096;
const JSON: &str = "application/json";

/// The routes of a recorder.
pub fn routes(recorder: RecorderHandle) -> Router {
    Router::new()
        .route("/rollscope/v1/spans", post(spans))
        .route("/rollscope/steps/{step}/end", post(end_step))
        .route("/rollscope/steps", get(steps))
        .route("/rollscope/steps/{step}", get(step))
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, "there is no such route under /rollscope") })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(map_response(as_json))
        .with_state(recorder)
}

/// What is refused before a route is asked, such as a body that is too large, in the form of every other refusal.
async fn as_json(response: Response) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    if !is_error || response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == JSON) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let said = to_bytes(body, MAX_REFUSAL_BYTES).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let message = if said.is_empty() { status.canonical_reason().unwrap_or("refused") } else { &*said };
    let mut refusal = refuse(status, message);
    if let Some(allowed) = parts.headers.get(header::ALLOW) {
        refusal.headers_mut().insert(header::ALLOW, allowed.clone());
    }
    refusal
}

async fn spans(State(recorder): State<RecorderHandle>, body: Bytes) -> Response {
    let (records, rejected) = ingest::parse(&body, clock::now());
    let accepted = records.len();
    if !recorder.inbox.could_hold(&records) {
        let message = "more lines than the recorder's queue ever holds; send fewer at a time";
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, message);
    }
    if recorder.offer_all(records).is_err() {
        let mut response =
            refuse(StatusCode::SERVICE_UNAVAILABLE, "the recorder's queue is full; nothing was taken");
        response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        return response;
    }
    let status = if accepted == 0 && !rejected.is_empty() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    (status, json_body(&json!({"accepted": accepted, "rejected": rejected}))).into_response()
}

async fn end_step(State(recorder): State<RecorderHandle>, Path(step): Path<String>, body: Bytes) -> Response {
    let Some(number) = step.parse().ok().and_then(StepNumber::new) else { return bad_step(&step) };
    let end = match if body.is_empty() { Ok(StepEnd::default()) } else { ingest::read_end(&body) } {
        Ok(end) => end,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let Ok(closed) = recorder.end_step(number, end) else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "the recorder's queue is full or closed");
    };
    match closed.await {
        Ok(Ok(closed)) => json_body(&json!({"step": number.0, "data": closed.metrics})).into_response(),
        Ok(Err(error)) => failed(&error),
        Err(_) => refuse(StatusCode::SERVICE_UNAVAILABLE, "the recorder has ended"),
    }
}

async fn steps(State(recorder): State<RecorderHandle>) -> Response {
    match on_disk(recorder, Run::steps).await {
        Ok(steps) => {
            let steps: Vec<Value> = steps.iter().map(summary).collect();
            json_body(&json!({"steps": steps})).into_response()
        }
        Err(error) => failed(&error),
    }
}

async fn step(State(recorder): State<RecorderHandle>, Path(step): Path<String>) -> Response {
    let Ok(number) = step.parse().map(StepNumber) else { return bad_step(&step) };
    let read = on_disk(recorder, move |run| {
        let summary = run.steps()?.into_iter().find(|summary| summary.step == number);
        let summary = summary.ok_or(RunError::NoSuchStep { step: number })?;
        Ok((summary, step_numbers(&run.step(number)?)))
    });
    match read.await {
        Ok((state, numbers)) => {
            let mut body = summary(&state);
            body["data"] = json!(numbers.metrics);
            json_body(&body).into_response()
        }
        Err(error) => failed(&error),
    }
}

/// Reads the run on a thread that may block.
async fn on_disk<T: Send + 'static>(
    recorder: RecorderHandle,
    read: impl FnOnce(&Run) -> Result<T, RunError> + Send + 'static,
) -> Result<T, RecordError> {
    let read = tokio::task::spawn_blocking(move || read(recorder.run())).await;
    Ok(read.map_err(|_| RecordError::Panicked)??)
}

fn summary(summary: &StepSummary) -> Value {
    json!({
        "step": summary.step.0,
        "state": if summary.close.is_some() { "closed" } else { "open" },
        "reason": summary.close.map(|close| close.reason.name()),
        "late": summary.late,
        "requests": summary.requests,
        "samples": summary.samples,
    })
}

fn bad_step(step: &str) -> Response {
    refuse(StatusCode::BAD_REQUEST, &format!("not the number of a step: {step}"))
}

fn failed(error: &RecordError) -> Response {
    let status = match error {
        RecordError::Run(RunError::NoSuchStep { .. }) => StatusCode::NOT_FOUND,
        RecordError::Forgotten { .. } => StatusCode::GONE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    refuse(status, &sentence(error))
}

fn refuse(status: StatusCode, message: &str) -> Response {
    let body = json!({"error": {"message": message, "code": status.as_u16()}});
    (status, json_body(&body)).into_response()
}

fn json_body(value: &Value) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, JSON)], value.to_string())
}
