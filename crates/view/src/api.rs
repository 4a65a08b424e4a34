//! The query API: JSON over GET, made for the page and open to scripts.
//!
//! | path | answer |
//! |---|---|
//! | `/api/run` | `{name, producer, created_unix_s, writers: [{name, state}]}`; state is `live`, `ended` or `interrupted` |
//! | `/api/steps` | `{steps: [{step, version, closed, requests, samples, user_spans}], dropped: {profiles, user_records}, damage: […]}`; `version` grows with every record of the step, `closed` says why or is null |
//! | `/api/steps/N` | the numbers: `{step, closed, metrics: {name: number}, series: [{name, unit, count, mean, median, p90, p99, max}], sentence, breakdown: [{part, time_s, share}], slowest: {sample, duration_s, worker, breakdown}}` |
//! | `/api/steps/N/samples` | the timeline, as columns: see `samples.rs` |
//!
//! An error is `{error: "one sentence"}` with its status: 404 for what is not there, 500 for a run that cannot be
//! read. Nothing else is served.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use rollscope_run::{RunError, WriterState};
use rollscope_trace::{CloseReason, StepNumber};
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::numbers::NumbersAnswer;
use crate::samples::SampleTable;
use crate::source::{Index, Source, StepState};

/// Reads of the run at the same time; more wait.
const CONCURRENT_READS: usize = 2;

/// What the handlers share.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    source: Arc<Source>,
    reads: Arc<Semaphore>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum ApiError {
    #[error("there is nothing here")]
    NotFound,
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("cannot encode the answer")]
    Encode(#[from] serde_json::Error),
    #[error("reading the run was broken off")]
    BrokenOff,
}

#[derive(Serialize)]
struct RunAnswer {
    name: String,
    producer: String,
    created_unix_s: f64,
    writers: Vec<WriterAnswer>,
}

#[derive(Serialize)]
struct WriterAnswer {
    name: Box<str>,
    state: &'static str,
}

#[derive(Serialize)]
struct StepsAnswer {
    steps: Vec<StepAnswer>,
    dropped: DroppedAnswer,
    damage: Vec<String>,
}

#[derive(Serialize)]
struct StepAnswer {
    step: u64,
    version: u64,
    closed: Option<&'static str>,
    requests: u64,
    samples: usize,
    user_spans: u64,
}

#[derive(Serialize)]
struct DroppedAnswer {
    profiles: u64,
    user_records: u64,
}

#[derive(Serialize)]
struct ErrorAnswer {
    error: String,
}

/// The routes of the API over a run.
pub(crate) fn routes(source: Source) -> Router {
    let api = Api { source: Arc::new(source), reads: Arc::new(Semaphore::new(CONCURRENT_READS)) };
    Router::new()
        .route("/api/run", get(run))
        .route("/api/steps", get(steps))
        .route("/api/steps/{step}", get(numbers))
        .route("/api/steps/{step}/samples", get(samples))
        .fallback(async || ApiError::NotFound)
        .with_state(api)
}

async fn run(State(api): State<Api>) -> Result<Response, ApiError> {
    api.answer(|source| {
        let writers = source.writers()?.into_iter().map(|writer| WriterAnswer {
            name: writer.name,
            state: match writer.state {
                WriterState::Live => "live",
                WriterState::Ended => "ended",
                WriterState::Interrupted => "interrupted",
            },
        });
        let (dir, info) = (source.run().dir(), source.run().info());
        Ok(RunAnswer {
            name: dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned(),
            producer: info.producer.clone(),
            created_unix_s: info.created.as_secs_f64(),
            writers: writers.collect(),
        })
    })
    .await
}

async fn steps(State(api): State<Api>) -> Result<Response, ApiError> {
    api.answer(|source| Ok(StepsAnswer::of(source.index()?))).await
}

async fn numbers(State(api): State<Api>, Path(step): Path<String>) -> Result<Response, ApiError> {
    let step = step_number(&step)?;
    api.answer(move |source| Ok(NumbersAnswer::of(&*source.step(step)?))).await
}

async fn samples(State(api): State<Api>, Path(step): Path<String>) -> Result<Response, ApiError> {
    let step = step_number(&step)?;
    api.answer(move |source| Ok(SampleTable::of(&*source.step(step)?))).await
}

fn step_number(text: &str) -> Result<StepNumber, ApiError> {
    text.parse().map(StepNumber).map_err(|_| ApiError::NotFound)
}

// === impl Api ===

impl Api {
    /// Reads and encodes where blocking does no harm.
    async fn answer<T: Serialize>(
        self,
        read: impl FnOnce(&Source) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let _permit = self.reads.acquire().await.map_err(|_| ApiError::BrokenOff)?;
        let source = self.source.clone();
        let encode = move || Ok::<_, ApiError>(serde_json::to_vec(&read(&source)?)?);
        let body = tokio::task::spawn_blocking(encode).await.map_err(|_| ApiError::BrokenOff)??;
        Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
    }
}

// === impl StepsAnswer ===

impl StepsAnswer {
    fn of(index: Index) -> Self {
        let step = |state: StepState| StepAnswer {
            step: state.step.0,
            version: state.version,
            closed: state.closed.map(CloseReason::name),
            requests: state.requests,
            samples: state.samples,
            user_spans: state.user_spans,
        };
        let dropped =
            DroppedAnswer { profiles: index.dropped.profiles, user_records: index.dropped.user_records };
        Self { steps: index.steps.into_iter().map(step).collect(), dropped, damage: index.damage }
    }
}

// === impl ApiError ===

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::NotFound | Self::Run(RunError::NoSuchStep { .. }) => StatusCode::NOT_FOUND,
            Self::Run(_) | Self::Encode(_) | Self::BrokenOff => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut error = self.to_string();
        let mut source = std::error::Error::source(&self);
        while let Some(cause) = source {
            error = format!("{error}: {cause}");
            source = cause.source();
        }
        (status, Json(ErrorAnswer { error })).into_response()
    }
}
