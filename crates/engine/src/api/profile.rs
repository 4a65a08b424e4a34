//! `/start_profile` and `/stop_profile`: what the schedulers do when, as a Chrome trace.
//!
//! The trace has a thread a data-parallel rank and a span for each part of a turn; forward passes tell what they computed. It opens
//! in Perfetto and in `chrome://tracing`.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::App;
use super::fields::{Fields, Refused, refused};
use super::respond::ApiError;
use crate::clock::Anchor;
use crate::scheduler::{Postbox, Recording, Span, Work};

/// A profile that is being recorded, or written.
#[derive(Debug)]
pub(crate) struct Profiling {
    path: PathBuf,
    writing: JoinHandle<io::Result<()>>,
}

/// What makes sense for GPUs alone is refused if it would change which steps are recorded; else it is ignored.
const REFUSED: &[Refused] = &[refused("start_step"), refused("profile_by_stage"), refused("profile_stages")];

/// Begins a profile. It ends at `num_steps` forward passes of a rank, or at `/stop_profile`.
pub(super) async fn start_profile(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<&'static str, ApiError> {
    let mut fields = Fields::parse_optional(&body?)?;
    fields.refuse(REFUSED)?;
    let dir: Option<PathBuf> = fields.take("output_dir")?;
    let dir = dir.unwrap_or_else(std::env::temp_dir);
    let steps: Option<u64> = fields.take("num_steps")?;
    if steps == Some(0) {
        return Err(ApiError::bad_request("num_steps must be at least 1, got 0"));
    }
    let mut profiling = app.profiling.lock().await;
    if profiling.as_ref().is_some_and(|profiling| !profiling.writing.is_finished()) {
        return Err(ApiError::bad_request("Profiling is in progress: call /stop_profile first."));
    }
    let now = app.clock.now();
    let anchor = app.clock.anchor();
    let path = dir.join(format!("rollscope-{}.trace.json", (anchor.unix_s(now) * 1e3) as u64));
    let made = tokio::fs::create_dir_all(&dir).await;
    made.map_err(|error| ApiError::bad_request(format!("output_dir: {}: {error}", dir.display())))?;
    let recording = app.ranks.each(|rank| rank.start_profile(steps)).await?;
    let writing = tokio::spawn(write(path.clone(), anchor, async move {
        // A scheduler that has ended has recorded nothing.
        join_all(recording).await.into_iter().map(Result::unwrap_or_default).collect()
    }));
    *profiling = Some(Profiling { path, writing });
    Ok("Start profiling.\n")
}

/// Ends the profile, if it has not ended by itself, and tells where it is.
pub(super) async fn stop_profile(State(app): State<Arc<App>>) -> Result<String, ApiError> {
    let Some(Profiling { path, writing }) = app.profiling.lock().await.take() else {
        return Err(ApiError::bad_request("Profiling is not in progress: call /start_profile first."));
    };
    app.ranks.each(Postbox::stop_profile).await?;
    let failed = |error: io::Error| ApiError::failure(format!("cannot write {}: {error}", path.display()));
    writing.await.map_err(io::Error::from).flatten().map_err(failed)?;
    Ok(format!("Stop profiling. The trace is in {}.\n", path.display()))
}

async fn write(
    path: PathBuf,
    anchor: Anchor,
    recordings: impl Future<Output = Vec<Recording>>,
) -> io::Result<()> {
    let recordings = recordings.await;
    let trace = tokio::task::spawn_blocking(move || trace(anchor, &recordings)).await?;
    let part = path.with_extension("part");
    tokio::fs::write(&part, trace).await?;
    tokio::fs::rename(&part, &path).await
}

/// The trace: microseconds since the Unix epoch.
fn trace(anchor: Anchor, recordings: &[Recording]) -> Vec<u8> {
    let pid = std::process::id();
    let mut events = vec![named("process_name", (pid, 0), "rollscope engine")];
    for (rank, recording) in recordings.iter().enumerate() {
        events.push(named("thread_name", (pid, rank), &format!("scheduler DP{rank}")));
        events.extend(recording.spans.iter().map(|span| event(anchor, (pid, rank), span)));
    }
    let missed: u64 = recordings.iter().map(|recording| recording.missed).sum();
    let trace =
        json!({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"spans_missed": missed}});
    trace.to_string().into_bytes()
}

fn named(what: &str, (pid, rank): (u32, usize), name: &str) -> Value {
    json!({"ph": "M", "name": what, "pid": pid, "tid": rank, "args": {"name": name}})
}

fn event(anchor: Anchor, (pid, rank): (u32, usize), span: &Span) -> Value {
    let (name, args) = match span.work {
        Work::Receive => ("receive", json!({})),
        Work::Advance => ("advance", json!({})),
        Work::Forward(load) => (
            "forward",
            json!({"prompt_tokens": load.prompt_tokens, "decode_requests": load.requests, "decode_kv_tokens": load.kv_tokens}),
        ),
        Work::Harvest => ("harvest", json!({})),
    };
    json!({
        "ph": "X", "cat": "scheduler", "name": name, "pid": pid, "tid": rank, "args": args,
        "ts": anchor.unix_s(span.begin) * 1e6, "dur": span.end.since(span.begin).as_secs_f64() * 1e6,
    })
}
