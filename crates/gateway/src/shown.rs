//! How a worker is shown: an entry of `GET /workers`.

use rollscope_route::{HealthState, Role};
use serde::Serialize;

use crate::checks;
use crate::core::Core;
use crate::pool::PooledWorker;
use crate::tags::Labels;

/// A worker as it is shown.
#[derive(Debug, Serialize)]
pub(crate) struct Shown<'a> {
    id: &'a str,
    url: &'a str,
    worker_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bootstrap_port: Option<u16>,
    /// What its model is called.
    model_id: String,
    priority: u32,
    cost: f64,
    /// SGLang's router knows others.
    connection_mode: &'static str,
    /// What it says of itself, and its labels.
    metadata: Labels,
    disable_health_check: bool,
    /// Whether its checks do not fail; true while it has not been checked.
    is_healthy: bool,
    /// Why it gets no requests, by what its last failed check or it itself says.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Of its circuit breaker: closed, open or `half_open`.
    breaker: &'static str,
    /// Legs in flight.
    load: u64,
    legs: Legs,
}

#[derive(Debug, Serialize)]
struct Legs {
    started: u64,
    completed: u64,
    truncated: u64,
    failed: u64,
    aborted: u64,
    live: u64,
}

/// A worker as it is now.
pub(crate) fn show<'a>(core: &Core, worker: &'a PooledWorker) -> Shown<'a> {
    let (counts, tags) = (worker.counts(), worker.link.tags.lock().clone());
    let said = worker.link.said.lock().clone();
    let model = said.get("served_model_name").or_else(|| said.get("model_path"));
    Shown {
        id: worker.id.as_str(),
        url: &worker.name,
        worker_type: worker.role.kind().name(),
        bootstrap_port: match worker.role {
            Role::Prefill { bootstrap_port } => bootstrap_port,
            Role::Regular | Role::Decode => None,
        },
        model_id: model.map_or("unknown", String::as_str).to_owned(),
        priority: tags.priority(),
        cost: tags.cost(),
        connection_mode: "HTTP",
        metadata: said.into_iter().chain(tags.labels.unwrap_or_default()).collect(),
        disable_health_check: core.options.startup().disable_health_check,
        is_healthy: worker.health() != HealthState::Unhealthy,
        problem: checks::problem(core, worker),
        breaker: worker.breaker().name(),
        load: counts.live,
        legs: Legs {
            started: counts.started,
            completed: counts.completed,
            truncated: counts.truncated,
            failed: counts.failed,
            aborted: counts.aborted,
            live: counts.live,
        },
    }
}
