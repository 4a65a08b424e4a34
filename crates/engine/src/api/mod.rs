//! The HTTP interface: SGLang's.

mod control;
mod fields;
mod generate;
mod info;
mod openai;
mod parse;
mod profile;
mod prometheus;
mod render;
mod respond;
mod sampling;
mod weights;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::routing::{get, post};
use rollscope_config::Published;
use rollscope_model::Model;
use tokio::sync::Mutex;

pub(crate) use self::profile::Profiling;
use self::respond::ApiError;
use crate::chat::Chat;
use crate::clock::Clock;
use crate::options::{DisaggregationMode, EngineOptions};
use crate::output::Progress;
use crate::ranks::Ranks;
use crate::scheduler::SchedulerGone;

/// What the handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) published: Published<EngineOptions>,
    pub(crate) model: Arc<Model>,
    pub(crate) chat: Chat,
    pub(crate) clock: Arc<Clock>,
    pub(crate) ranks: Ranks,
    /// Longest sequence, tokens.
    pub(crate) context_length: usize,
    /// The server is about to stop and takes nothing on.
    pub(crate) is_draining: AtomicBool,
    /// Held by whoever changes weights or memory.
    pub(crate) administration: Mutex<()>,
    /// Until it is asked where it is.
    pub(crate) profiling: Mutex<Option<Profiling>>,
    /// The weights' fingerprint when it was last asked to be kept.
    pub(crate) weights_snapshot: Mutex<Option<u64>>,
    /// Unix time of the start, seconds.
    pub(crate) started_unix_s: f64,
}

/// A prompt of a million tokens as JSON, with room to spare.
const MAX_BODY_BYTES: usize = 32 << 20;

/// Calls of trainers that make no sense here; they are refused by name.
const UNSUPPORTED: [&str; 5] = [
    "/update_weights_from_tensor",
    "/update_weights_from_distributed",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/pull_weights",
];

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new()
        .route("/generate", post(generate::generate).put(generate::generate))
        .route("/health", get(control::health))
        .route("/health_generate", get(control::health_generate))
        .route("/pause_generation", post(control::pause_generation))
        .route("/continue_generation", post(control::continue_generation))
        .route("/flush_cache", get(control::flush_cache).post(control::flush_cache))
        .route("/abort_request", post(control::abort_request))
        .route("/v1/completions", post(openai::completions))
        .route("/v1/chat/completions", post(openai::chat_completions))
        .route("/start_profile", get(profile::start_profile).post(profile::start_profile))
        .route("/stop_profile", get(profile::stop_profile).post(profile::stop_profile))
        .route("/metrics", get(prometheus::metrics))
        .route("/v1/loads", get(info::loads))
        .route("/v1/models", get(info::models));
    router = router
        .route(
            "/release_memory_occupation",
            get(weights::release_memory_occupation).post(weights::release_memory_occupation),
        )
        .route(
            "/resume_memory_occupation",
            get(weights::resume_memory_occupation).post(weights::resume_memory_occupation),
        )
        .route("/update_weights_from_disk", post(weights::update_weights_from_disk))
        .route("/update_weight_version", post(weights::update_weight_version))
        .route("/post_process_weights", post(weights::post_process_weights))
        .route("/weights_checker", post(weights::weights_checker));
    for path in UNSUPPORTED {
        router = router.route(path, post(weights::unsupported));
    }
    for path in ["/server_info", "/get_server_info"] {
        router = router.route(path, get(info::server_info));
    }
    for path in ["/model_info", "/get_model_info"] {
        router = router.route(path, get(info::model_info));
    }
    for path in ["/weight_version", "/get_weight_version"] {
        router = router.route(path, get(info::weight_version));
    }
    router
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "no such endpoint"))
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this endpoint has other methods")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(app)
}

/// Does something whether or not the client waits for it: half of it would leave a scheduler, or some of them, standing still.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::spawn(work).await.unwrap_or_else(|error| Err(ApiError::failure(error.to_string())))
}

// === impl App ===

impl App {
    pub(crate) fn mode(&self) -> DisaggregationMode {
        self.published.startup().disaggregation_mode
    }

    /// What clients and dashboards know the model by. It stays when weights are replaced.
    pub(crate) fn model_name(&self) -> &str {
        let options = self.published.startup();
        options.served_model_name.as_ref().unwrap_or(&options.model_path)
    }

    /// What the weights are called that a request was computed with. One of which nothing was computed would have those of now.
    fn weight_version(&self, progress: &Progress) -> String {
        match &progress.weight_version {
            Some(version) => (**version).to_owned(),
            None => self.published.model().weight_version.clone(),
        }
    }

    /// Nothing is computed.
    pub(crate) fn is_simulated(&self) -> bool {
        self.published.startup().model_path.starts_with("sim:")
    }

    /// An error unless requests are taken on.
    fn check_open(&self) -> Result<(), ApiError> {
        if self.ranks.is_closed() {
            return Err(SchedulerGone.into());
        }
        if self.is_draining.load(Ordering::Acquire) {
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down"));
        }
        Ok(())
    }
}
