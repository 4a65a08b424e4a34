//! A server of MLflow, as far as a tracker asks it.

use crate::script::Script;
use crate::worker::FakeWorker;

/// Starts one that has no run yet, makes one that is asked for, and takes all numbers.
pub async fn mlflow() -> FakeWorker {
    let server = FakeWorker::start().await;
    for (call, reply) in [
        ("experiments/get-by-name", r#"{"experiment":{"experiment_id":"1"}}"#),
        ("runs/search", "{}"),
        ("runs/create", r#"{"run":{"info":{"run_id":"r"}}}"#),
        ("runs/update", "{}"),
        ("runs/get", "{}"),
        ("runs/log-batch", "{}"),
        ("metrics/get-history", "{}"),
    ] {
        server.on(&mlflow_path(call), Script::json(200, reply));
    }
    server
}

/// The path of a call of its interface, such as `runs/create`.
pub fn mlflow_path(call: &str) -> String {
    format!("/api/2.0/mlflow/{call}")
}
