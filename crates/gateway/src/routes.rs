//! Which path leads where, and by which methods.

use http::Method;

use crate::access::Access;
use crate::admin::AdminCall;
use crate::control::FanOut;
use crate::request::Endpoint;

/// Where a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// Answered by one worker, or by a pair.
    Request(Endpoint),
    /// Answered by the first worker.
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
}

const ANY: &[Method] = &[];
const GET: &[Method] = &[Method::GET, Method::HEAD];
const POST: &[Method] = &[Method::POST];
const EITHER: &[Method] = &[Method::GET, Method::POST];
const GENERATE: &[Method] = &[Method::POST, Method::PUT];
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
                (None, None, false) => Self::Request(Endpoint::Other),
            },
        }
    }

    /// The methods that it takes; none means any.
    pub(crate) fn methods(self) -> &'static [Method] {
        match self {
            Self::Request(Endpoint::Other) | Self::Mount => ANY,
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
            Self::Alive
            | Self::Readiness
            | Self::Generates
            | Self::First
            | Self::Metrics
            | Self::EngineMetrics => Access::Open,
            Self::Request(_) | Self::Mount => Access::Use,
            Self::All(FanOut::Loads) | Self::Admin(AdminCall::ListWorkers) => Access::Look,
            Self::Admin(AdminCall::Workers | AdminCall::Worker(_)) if GET.contains(method) => Access::Look,
            Self::Admin(_) | Self::All(_) => Access::Change,
        }
    }

    /// Whether it takes this method.
    pub(crate) fn allows(self, method: &Method) -> bool {
        let methods = self.methods();
        methods.is_empty() || methods.contains(method)
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
