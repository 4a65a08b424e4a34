//! What clients call, by method and path, as SGLang's router counts it; but whatever they ask for, there are no more series.

use std::sync::atomic::AtomicU64;

use http::Method;

use crate::durations::Histogram;

/// The calls of all routes.
#[derive(Debug)]
pub(crate) struct Calls {
    /// By path, and for each path by method.
    of: Vec<OfCall>,
}

/// The calls by one method to one path.
#[derive(Debug)]
pub(crate) struct OfCall {
    pub(crate) begun: AtomicU64,
    /// From the head of the request to that of the reply.
    pub(crate) answered: Histogram,
}

/// In the order of [`place`].
const METHODS: [&str; 7] = ["POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "other"];

/// Those called most stand first.
const PATHS: [&str; 37] = [
    "/generate",
    "/v1/chat/completions",
    "/v1/completions",
    "/metrics",
    "/engine_metrics",
    "/health",
    "/liveness",
    "/readiness",
    "/health_generate",
    "/workers",
    "/abort_request",
    "/get_loads",
    "/flush_cache",
    "/pause_generation",
    "/continue_generation",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/update_weights_from_disk",
    "/v1/models",
    "/get_model_info",
    "/model_info",
    "/get_server_info",
    "/server_info",
    "/list_workers",
    "/add_worker",
    "/remove_worker",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/classify",
    "/rerank",
    "/v1/rerank",
    "/v1/tokenize",
    "/v1/detokenize",
    "/tokenize",
    "/detokenize",
    WORKER,
    OTHER,
];
const WORKER: &str = "/workers/{id}";
const OTHER: &str = "other";

// === impl Calls ===

impl Calls {
    /// With so many bounds of durations.
    pub(crate) fn new(bounds: usize) -> Self {
        let call = |_| OfCall { begun: AtomicU64::new(0), answered: Histogram::new(bounds) };
        Self { of: (0..PATHS.len() * METHODS.len()).map(call).collect() }
    }

    pub(crate) fn of(&self, method: &Method, path: &str) -> &OfCall {
        let known = if path.starts_with("/workers/") { WORKER } else { path };
        let path = PATHS.iter().position(|path| *path == known).unwrap_or(PATHS.len() - 1);
        &self.of[path * METHODS.len() + place(method)]
    }

    /// Each with its method and path.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, &OfCall)> {
        let names = PATHS.iter().flat_map(|path| METHODS.iter().map(|method| (*method, *path)));
        names.zip(&self.of).map(|((method, path), call)| (method, path, call))
    }
}

fn place(method: &Method) -> usize {
    METHODS.iter().position(|known| *known == method.as_str()).unwrap_or(METHODS.len() - 1)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_is_made_up_is_counted_together() {
        let calls = Calls::new(1);
        let brew = Method::from_bytes(b"BREW").unwrap();
        for (method, path) in [
            (&Method::POST, "/generate"),
            (&Method::GET, "/workers"),
            (&Method::GET, "/workers/0123"),
            (&Method::GET, "/workers/4567"),
            (&Method::GET, "/made/up"),
            (&Method::GET, "/generate/"),
            (&brew, "/generate"),
        ] {
            calls.of(method, path).begun.fetch_add(1, Ordering::Relaxed);
        }
        let counted =
            calls.all().map(|(method, path, call)| (method, path, call.begun.load(Ordering::Relaxed)));
        let mut counted: Vec<_> = counted.filter(|(.., count)| *count > 0).collect();
        counted.sort_unstable();
        assert_eq!(
            counted,
            [
                ("GET", "/workers", 1),
                ("GET", "/workers/{id}", 2),
                ("GET", "other", 2),
                ("POST", "/generate", 1),
                ("other", "/generate", 1),
            ]
        );
    }
}
