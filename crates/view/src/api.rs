//! The query API over GET, made for the page and open to scripts: JSON, and columns where there is much of it.
//!
//! | path | answer |
//! |---|---|
//! | `/api/run` | `{name, producer, created_unix_s, writers: [{name, state}], against}`; state is `live`, `ended` or `interrupted`; `against` says whether there is a run to compare with |
//! | `/api/steps` | `{steps: [{step, version, closed, requests, samples, user_spans, passes, metrics}], dropped: {profiles, user_records}, damage: […], reading}`; `reading` says whether more is being read from a foreign file, `version` grows with every record of the step but forward passes, which `passes` counts; `closed` says why or is null, `metrics` are the few that a list shows |
//! | `/api/steps/N` | the numbers: `{step, closed, metrics: {name: number}, series: [{name, unit, count, mean, median, p90, p99, max}], sentence, findings: [{check, explain}], breakdown: [{part, time_s, share}], slowest: {sample, duration_s, worker, breakdown}}` |
//! | `/api/steps/N/table` | the samples, as columns: see `table.rs` |
//! | `/api/steps/N/tiles/T` | the spans of a tile of samples, as columns: see `tile.rs` |
//! | `/api/steps/N/workers/W` | the spans of the legs on a worker, as columns; both take `?from=&to=&pixel=`, the window that is looked at, which says what may be left out of a tile of many spans; without it all of it is answered, but for one of more than 256 MiB of a step that is not read |
//! | `/api/steps/N/passes` | the forward passes, as columns, with `?from=&to=&pixel=` as above: see `passes.rs` |
//! | `/api/steps/N/samples/ROW` | the attributes of a sample's spans: see `details.rs` |
//! | `/api/steps/N/samples/ROW/passes` | the forward passes that its requests sat in: `[{part, role, worker, is_exact, count, busy_s, mean_batch, slowest_s, not_found, lost, shared_with}]` |
//! | `/api/steps/N/search?text=` | `{total, rows, parts, left_out}`: where the text is found; `left_out` samples were not looked at |
//!
//! The run to compare with, where there is one, answers the same below `/against/api`.
//!
//! Columns are described in `columns.rs`. An error is `{error: "one sentence"}` with its status: 404 for what is not
//! there, 413 for what was not kept of a step that is too large to be read, 500 for a run that cannot be read. Nothing else is served.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use rollscope_run::{RunError, SentMetrics};
use rollscope_trace::{CloseReason, StepNumber, sentence};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::glance::Found;
use crate::passes::Passes;
use crate::sight::Window;
use crate::source::{Index, Source};
use crate::step::{MAX_RECORDS, SharedStep, Wanted};
use crate::tail::StepState;

/// Reads of the run at the same time; more wait.
const CONCURRENT_READS: usize = 2;

/// Forward passes of a step that are read into memory, at about a third of a request with its spans.
const MAX_PASSES: u64 = 3_000_000;

/// What the handlers share.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    source: Arc<Source>,
    reads: Arc<Semaphore>,
    /// Whether there is a run to compare with.
    against: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum ApiError {
    #[error("there is nothing here")]
    NotFound,
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(
        "step {} has {records} requests and spans, more than the {MAX_RECORDS} that the viewer reads; of such a step it \
         shows what is kept when it is sealed: of this nothing is kept, or not yet, or it was kept by another version; \
         rollscope report and the tables of the run have no such limit", step.0
    )]
    TooLarge { step: StepNumber, records: u64 },
    #[error("step {} has {passes} forward passes, more than the {MAX_PASSES} that the viewer takes", step.0)]
    TooManyPasses { step: StepNumber, passes: u64 },
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
    against: bool,
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
    reading: bool,
}

#[derive(Serialize)]
struct StepAnswer {
    step: u64,
    version: u64,
    closed: Option<&'static str>,
    requests: u64,
    samples: u64,
    user_spans: u64,
    passes: u64,
    metrics: Option<ListedMetrics>,
}

/// What a list of steps shows, of what trackers were sent.
#[derive(Serialize)]
struct ListedMetrics {
    rollout_time_s: Option<f64>,
    tokens_per_s: Option<f64>,
    reward: Option<f64>,
    e2e_latency_p99_s: Option<f64>,
}

#[derive(Deserialize)]
struct Sought {
    text: String,
}

/// Columns of a step.
const COLUMNS: &str = "application/octet-stream";
const JSON: &str = "application/json";

#[derive(Serialize)]
struct DroppedAnswer {
    profiles: u64,
    user_records: u64,
}

#[derive(Serialize)]
struct ErrorAnswer {
    error: String,
}

/// The routes of the API over a run, and over one to compare it with.
pub(crate) fn routes(source: Arc<Source>, against: Option<Arc<Source>>) -> Router {
    let of = |source, against| Api { source, reads: Arc::new(Semaphore::new(CONCURRENT_READS)), against };
    let main = routes_of(of(source, against.is_some()));
    let all = match against {
        Some(other) => main.nest("/against", routes_of(of(other, false))),
        None => main,
    };
    all.fallback(async || ApiError::NotFound)
}

fn routes_of(api: Api) -> Router {
    Router::new()
        .route("/api/run", get(run))
        .route("/api/steps", get(steps))
        .route("/api/steps/{step}", get(numbers))
        .route("/api/steps/{step}/table", get(table))
        .route("/api/steps/{step}/tiles/{tile}", get(tile))
        .route("/api/steps/{step}/workers/{worker}", get(worker))
        .route("/api/steps/{step}/passes", get(forward_passes))
        .route("/api/steps/{step}/samples/{row}", get(sample))
        .route("/api/steps/{step}/samples/{row}/passes", get(sample_passes))
        .route("/api/steps/{step}/search", get(search))
        .with_state(api)
}

async fn run(State(api): State<Api>) -> Result<Response, ApiError> {
    let against = api.against;
    api.answer(move |source| {
        let writers = source
            .writers()?
            .into_iter()
            .map(|writer| WriterAnswer { name: writer.name, state: writer.state.name() });
        let (dir, info) = (source.run().dir(), source.run().info());
        Ok(RunAnswer {
            name: dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned(),
            producer: info.producer.clone(),
            created_unix_s: info.created.as_secs_f64(),
            writers: writers.collect(),
            against,
        })
    })
    .await
}

async fn steps(State(api): State<Api>) -> Result<Response, ApiError> {
    api.answer(|source| Ok(StepsAnswer::of(source.index()?))).await
}

async fn numbers(State(api): State<Api>, Path(step): Path<String>) -> Result<Response, ApiError> {
    api.of_step(&step, JSON, Wanted::Numbers, None).await
}

async fn table(State(api): State<Api>, Path(step): Path<String>) -> Result<Response, ApiError> {
    api.of_step(&step, COLUMNS, Wanted::Table, None).await
}

async fn tile(
    State(api): State<Api>,
    Path((step, tile)): Path<(String, String)>,
    window: Result<Query<Window>, QueryRejection>,
) -> Result<Response, ApiError> {
    api.of_step(&step, COLUMNS, Wanted::SampleTile(number(&tile)?), window.ok().map(|Query(window)| window))
        .await
}

async fn worker(
    State(api): State<Api>,
    Path((step, worker)): Path<(String, String)>,
    window: Result<Query<Window>, QueryRejection>,
) -> Result<Response, ApiError> {
    api.of_step(&step, COLUMNS, Wanted::WorkerTile(number(&worker)?), window.ok().map(|Query(window)| window))
        .await
}

async fn forward_passes(
    State(api): State<Api>,
    Path(step): Path<String>,
    window: Result<Query<Window>, QueryRejection>,
) -> Result<Response, ApiError> {
    let step = StepNumber(number(&step)?);
    let read = move |source: &Source| {
        let passes = passes_of(source, step)?;
        Ok(passes.answer(window.ok().map(|Query(window)| window))?.into())
    };
    api.blocking(COLUMNS, read).await
}

async fn sample_passes(
    State(api): State<Api>,
    Path((step, row)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let (step, row) = (StepNumber(number(&step)?), number(&row)?);
    api.answer(move |source| {
        check_passes(&source.state(step)?)?;
        let fits = |state: &StepState| state.requests + state.user_spans <= MAX_RECORDS;
        match source.kept_calls(step, row)? {
            Found::Answer(calls) => Ok(source.sample_passes(step, &calls, fits)?),
            Found::Nothing => Err(ApiError::NotFound),
            Found::NotKept => {
                let view = step_of(source, step)?;
                let sample = view.sample(row).ok_or(ApiError::NotFound)?;
                Ok(source.sample_passes(step, sample, fits)?)
            }
        }
    })
    .await
}

async fn sample(
    State(api): State<Api>,
    Path((step, row)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    api.of_step(&step, JSON, Wanted::Sample(number(&row)?), None).await
}

async fn search(
    State(api): State<Api>,
    Path(step): Path<String>,
    Query(sought): Query<Sought>,
) -> Result<Response, ApiError> {
    let step = StepNumber(number(&step)?);
    api.answer(move |source| match source.find_kept(step, &sought.text)? {
        Some(matches) => Ok(matches),
        None => Ok(step_of(source, step)?.find(&sought.text)),
    })
    .await
}

/// A step that is read, unless it would not fit into memory.
fn step_of(source: &Source, step: StepNumber) -> Result<SharedStep, ApiError> {
    let state = source.state(step)?;
    let records = state.requests + state.user_spans;
    if records > MAX_RECORDS {
        return Err(ApiError::TooLarge { step, records });
    }
    Ok(source.step(step)?)
}

/// The forward passes of a step, unless they would not fit into memory.
fn passes_of(source: &Source, step: StepNumber) -> Result<Arc<Passes>, ApiError> {
    let state = source.state(step)?;
    check_passes(&state)?;
    Ok(match source.glanced_fleet(step)? {
        Some(fleet) => source.passes(&fleet, state)?,
        None => source.passes(&step_of(source, step)?.fleet(), state)?,
    })
}

fn check_passes(state: &StepState) -> Result<(), ApiError> {
    let StepState { step, passes, .. } = *state;
    if passes > MAX_PASSES { Err(ApiError::TooManyPasses { step, passes }) } else { Ok(()) }
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, ApiError> {
    text.parse().map_err(|_| ApiError::NotFound)
}

// === impl Api ===

impl Api {
    /// An answer about a step.
    async fn of_step(
        self,
        step: &str,
        kind: &'static str,
        wanted: Wanted,
        window: Option<Window>,
    ) -> Result<Response, ApiError> {
        let step = StepNumber(number(step)?);
        let read = move |source: &Source| match source.glanced(step, wanted, window)? {
            Found::Answer(made) => Ok(made),
            Found::Nothing => Err(ApiError::NotFound),
            Found::NotKept => step_of(source, step)?.answer(wanted, window)?.ok_or(ApiError::NotFound),
        };
        self.blocking(kind, read).await
    }

    async fn answer<T: Serialize>(
        self,
        read: impl FnOnce(&Source) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        self.blocking(JSON, move |source| Ok(serde_json::to_vec(&read(source)?)?.into())).await
    }

    /// Reads and encodes where blocking does no harm.
    async fn blocking(
        self,
        kind: &'static str,
        read: impl FnOnce(&Source) -> Result<Bytes, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let _permit = self.reads.acquire().await.map_err(|_| ApiError::BrokenOff)?;
        let source = self.source.clone();
        let body = tokio::task::spawn_blocking(move || read(&source)).await;
        let body = body.map_err(|_| ApiError::BrokenOff)??;
        Ok(([(header::CONTENT_TYPE, kind)], body).into_response())
    }
}

// === impl StepsAnswer ===

impl StepsAnswer {
    fn of(index: Index) -> Self {
        let step = |(state, sent): (StepState, Option<SentMetrics>)| StepAnswer {
            step: state.step.0,
            version: state.version,
            closed: state.closed.map(CloseReason::name),
            requests: state.requests,
            samples: state.samples,
            user_spans: state.user_spans,
            passes: state.passes,
            metrics: sent.map(|sent| ListedMetrics::of(&sent)),
        };
        let dropped =
            DroppedAnswer { profiles: index.dropped.profiles, user_records: index.dropped.user_records };
        let steps = index.steps.into_iter().map(step).collect();
        Self { steps, dropped, damage: index.damage, reading: index.is_reading }
    }
}

// === impl ListedMetrics ===

impl ListedMetrics {
    fn of(sent: &SentMetrics) -> Self {
        // A step that holds an evaluation only has its numbers under another prefix.
        let metric = |name: &str| {
            let names = ["perf", "rollout", "eval"].map(|prefix| format!("{prefix}/{name}"));
            names.iter().find_map(|name| sent.data.get(name)?.as_f64())
        };
        Self {
            rollout_time_s: metric("rollout_time"),
            tokens_per_s: metric("tokens_per_sec"),
            reward: metric("reward/mean"),
            e2e_latency_p99_s: metric("request/e2e_latency/p99"),
        }
    }
}

// === impl ApiError ===

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::NotFound | Self::Run(RunError::NoSuchStep { .. }) => StatusCode::NOT_FOUND,
            Self::TooLarge { .. } | Self::TooManyPasses { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Run(_) | Self::Encode(_) | Self::BrokenOff => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(ErrorAnswer { error: sentence(&self) })).into_response()
    }
}
