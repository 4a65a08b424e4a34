//! Which path leads where, and by which methods.

use std::borrow::Cow;

use http::Method;
use percent_encoding::percent_decode_str;

use crate::access::Access;
use crate::admin::AdminCall;
use crate::control::FanOut;
use crate::request::Endpoint;

/// Where a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// Answered by one worker, or by a pair.
    Request(Endpoint),
    /// Answered by the first worker, of itself.
    First,
    /// Answered by all workers.
    All(FanOut),
    /// About the registered workers.
    Admin(AdminCall<'a>),
    Alive,
    Readiness,
    /// Whether a worker of each role generates.
    Generates,
    /// The gateway's own figures.
    Metrics,
    /// The workers' figures.
    EngineMetrics,
    /// Somebody else's.
    Mount,
    /// Answered by one worker, which it may change.
    Unknown,
}

const ANY: &[Method] = &[];
const GET: &[Method] = &[Method::GET, Method::HEAD];
const POST: &[Method] = &[Method::POST];
const EITHER: &[Method] = &[Method::GET, Method::POST];
const GENERATE: &[Method] = &[Method::POST, Method::PUT];
/// What workers answer beside OpenAI's and Ollama's calls and changes nothing but a session of the caller's.
const USES: &[&str] = &[
    "classify",
    "close_session",
    "detokenize",
    "encode",
    "get_weight_version",
    "invocations",
    "open_session",
    "parse_function_call",
    "ping",
    "rerank",
    "score",
    "separate_reasoning",
    "tokenize",
    "vertex_generate",
    "weight_version",
];
/// What generates besides and is not read here.
const GENERATIONS: &[&str] =
    &["/v1/responses", "/v1/messages", "/api/chat", "/api/generate", "/invocations", "/vertex_generate"];
const WORKERS: &[Method] = &[Method::GET, Method::HEAD, Method::POST];
const WORKER: &[Method] = &[Method::GET, Method::HEAD, Method::PUT, Method::DELETE];

// === impl Route ===

impl<'a> Route<'a> {
    pub(crate) fn of(path: &'a str) -> Self {
        match path {
            "/generate" => Self::Request(Endpoint::Generate),
            "/v1/chat/completions" => Self::Request(Endpoint::Chat),
            "/v1/completions" => Self::Request(Endpoint::Completions),
            "/v1/models" | "/get_model_info" | "/model_info" | "/get_server_info" | "/server_info" => {
                Self::First
            }
            "/workers" => Self::Admin(AdminCall::Workers),
            "/add_worker" => Self::Admin(AdminCall::AddWorker),
            "/remove_worker" => Self::Admin(AdminCall::RemoveWorker),
            "/list_workers" => Self::Admin(AdminCall::ListWorkers),
            "/health" | "/liveness" => Self::Alive,
            "/readiness" => Self::Readiness,
            "/health_generate" => Self::Generates,
            "/metrics" => Self::Metrics,
            "/engine_metrics" => Self::EngineMetrics,
            _ => match (FanOut::of(path), path.strip_prefix("/workers/"), path.starts_with("/rollscope/")) {
                (Some(fan_out), _, _) => Self::All(fan_out),
                (None, Some(id), _) => Self::Admin(AdminCall::Worker(id)),
                (None, None, true) => Self::Mount,
                (None, None, false) if is_of_use(path) => Self::Request(Endpoint::Other),
                (None, None, false) => Self::Unknown,
            },
        }
    }

    /// The methods that it takes; none means any.
    pub(crate) fn methods(self) -> &'static [Method] {
        match self {
            Self::Request(Endpoint::Other) | Self::Mount | Self::Unknown => ANY,
            Self::Request(Endpoint::Generate) => GENERATE,
            Self::All(FanOut::FlushCache) => EITHER,
            Self::Admin(AdminCall::Workers) => WORKERS,
            Self::Admin(AdminCall::Worker(_)) => WORKER,
            Self::First
            | Self::All(FanOut::Loads)
            | Self::Admin(AdminCall::ListWorkers)
            | Self::Alive
            | Self::Readiness
            | Self::Generates
            | Self::Metrics
            | Self::EngineMetrics => GET,
            Self::All(_)
            | Self::Request(Endpoint::Chat | Endpoint::Completions)
            | Self::Admin(AdminCall::AddWorker | AdminCall::RemoveWorker) => POST,
        }
    }

    /// What a call by this method needs.
    pub(crate) fn access(self, method: &Method) -> Access {
        match self {
            Self::Alive | Self::Readiness | Self::Generates | Self::Metrics | Self::EngineMetrics => {
                Access::Open
            }
            Self::Request(_) | Self::First | Self::Mount => Access::Use,
            Self::All(FanOut::Loads) | Self::Admin(AdminCall::ListWorkers) => Access::Look,
            Self::Admin(AdminCall::Workers | AdminCall::Worker(_)) if GET.contains(method) => Access::Look,
            Self::Admin(_) | Self::All(_) | Self::Unknown => Access::Change,
        }
    }

    /// Whether it takes this method.
    pub(crate) fn allows(self, method: &Method) -> bool {
        let methods = self.methods();
        methods.is_empty() || methods.contains(method)
    }
}

/// Whether what is forwarded unread generates, by its path as it is read.
pub(crate) fn is_unread_generation(path: &str) -> bool {
    GENERATIONS.contains(&path)
}

/// A path as workers read it: by that a call's way and rights are decided.
pub(crate) fn as_read(path: &str) -> Cow<'_, str> {
    percent_decode_str(path).decode_utf8_lossy()
}

/// Whether a call that has no route of its own is known to be a request. What is not may change a worker, as
/// `/update_weights_from_tensor` and `/start_profile` do, and so may what leads to such a path in whatever is between here
/// and a worker that makes paths plain.
fn is_of_use(path: &str) -> bool {
    let is_plain = |segment: &str| !matches!(segment, "" | "." | "..") && !segment.contains([';', '%', '\\']);
    let Some(path) = path.strip_prefix('/').filter(|path| path.split('/').all(is_plain)) else {
        return false;
    };
    match path.split_once('/') {
        Some(("v1", rest)) => !rest.contains("lora_adapter"),
        Some(("api", rest)) => matches!(rest, "chat" | "generate" | "show" | "tags" | "version"),
        Some(_) => false,
        None => USES.contains(&path),
    }
}

/// Whether a call that has no route of its own is one that any worker answers alike, whatever its role.
pub(crate) fn is_for_any_worker(path: &str) -> bool {
    matches!(path, "/v1/tokenize" | "/v1/detokenize" | "/tokenize" | "/detokenize")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_to_be_a_request_may_change_a_worker() {
        for path in [
            "/generate",
            "/%67enerate",
            "/v1/embeddings",
            "/v1/responses/r_1/cancel",
            "/v1/responses/r%5F1",
            "/v1/loads",
            "/encode",
            "/rerank",
            "/open_session",
            "/api/chat",
            "/get_weight_version",
            "/server_info",
        ] {
            assert_eq!(access(path), Access::Use, "{path}");
        }
        for path in [
            "/abort_request",
            "/abort%5Frequest",
            "/%61%62%6f%72%74_request",
            "/abort%255Frequest",
            "/release_memory_occupation/",
            "//release_memory_occupation",
            "/./release_memory_occupation",
            "/%2e/release_memory_occupation",
            "/v1/../release_memory_occupation",
            "/v1/%2E%2E/release_memory_occupation",
            "/v1/..%5Crelease_memory_occupation",
            "/release_memory_occupation;x",
            "/v1/x%3B/..",
            "/update_weights_from_tensor",
            "/update_weights_from_distributed",
            "/update_weights_from_ipc",
            "/init_weights_update_group",
            "/destroy_weights_update_group",
            "/init_weights_send_group_for_remote_instance",
            "/send_weights_to_remote_instance",
            "/get_weights_by_name",
            "/update_weight_version",
            "/weights_checker",
            "/post_process_weights",
            "/pull_weights",
            "/set_internal_state",
            "/start_profile",
            "/stop_profile",
            "/start_expert_distribution_record",
            "/dump_expert_distribution_record",
            "/clear_hicache_storage_backend",
            "/hicache/storage-backend",
            "/configure_logging",
            "/slow_down",
            "/freeze_gc",
            "/load_lora_adapter",
            "/v1/load_lora_adapter",
            "/unload_lora_adapter",
            "/unheard_of",
            "/",
        ] {
            assert_eq!(access(path), Access::Change, "{path}");
        }
    }

    fn access(path: &str) -> Access {
        let path = as_read(path);
        Route::of(&path).access(&Method::POST)
    }

    #[test]
    fn every_path_has_its_methods() {
        for (path, allowed) in [
            ("/generate", "POST, PUT"),
            ("/v1/chat/completions", "POST"),
            ("/v1/completions", "POST"),
            ("/v1/models", "GET, HEAD"),
            ("/server_info", "GET, HEAD"),
            ("/flush_cache", "GET, POST"),
            ("/abort_request", "POST"),
            ("/update_weights_from_disk", "POST"),
            ("/get_loads", "GET, HEAD"),
            ("/workers", "GET, HEAD, POST"),
            ("/workers/0123", "GET, HEAD, PUT, DELETE"),
            ("/add_worker", "POST"),
            ("/list_workers", "GET, HEAD"),
            ("/health_generate", "GET, HEAD"),
            ("/engine_metrics", "GET, HEAD"),
            ("/v1/embeddings", ""),
            ("/rollscope/v1/spans", ""),
            ("/health/", ""),
        ] {
            let methods = Route::of(path).methods();
            let methods: Vec<&str> = methods.iter().map(Method::as_str).collect();
            assert_eq!(methods.join(", "), allowed, "{path}");
        }
    }
}
