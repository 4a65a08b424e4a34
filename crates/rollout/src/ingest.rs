//! Sends the driver's own spans and rewards to the gateway, in batches, beside the rollout.
//!
//! The queue is bounded and a full one drops: recording never slows a rollout down. What was lost is counted
//! and told at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::client::Client;

/// A line of the ingest route.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Line {
    /// A span of the rollout code.
    Span {
        step: u64,
        group: String,
        sample: String,
        attempt: u32,
        name: &'static str,
        start: f64,
        end: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        attrs: Option<Texts>,
    },
    /// What is known of a finished sample.
    Sample {
        step: u64,
        group: String,
        sample: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        reward: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        truncated: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        response_tokens: Option<u64>,
        repetition: bool,
    },
}

/// What was said in a turn, by the names that the viewer makes a conversation of.
#[derive(Debug, Serialize)]
pub(crate) struct Texts {
    pub(crate) prompt_text: String,
    pub(crate) output_text: String,
    /// As JSON: a list of log-probability, token id and text.
    pub(crate) output_token_logprobs: String,
}

/// The sending side.
#[derive(Debug)]
pub(crate) struct Reporter {
    lines: mpsc::Sender<Line>,
    lost: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

/// Lines that wait at most.
const QUEUE_LINES: usize = 65_536;
/// Lines in one call.
const BATCH_LINES: usize = 1_024;
/// Tries of one batch while the gateway is busy or away.
const TRIES: u32 = 5;

// === impl Reporter ===

impl Reporter {
    pub(crate) fn start(client: Client) -> Self {
        let (lines, queue) = mpsc::channel(QUEUE_LINES);
        let lost = Arc::new(AtomicU64::new(0));
        Self { lines, lost: Arc::clone(&lost), task: tokio::spawn(send(client, queue, lost)) }
    }

    pub(crate) fn report(&self, line: Line) {
        if self.lines.try_send(line).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all is sent; returns the number of lines lost.
    pub(crate) async fn finish(self) -> u64 {
        drop(self.lines);
        // A panic of the task would have been told by its own message; its lines are not known to be lost.
        let _ended = self.task.await;
        self.lost.load(Ordering::Relaxed)
    }
}

/// Says that a step is over. A gateway that does not record has no such route, and closes nothing.
pub(crate) async fn end_step(client: &Client, step: u64, rollout_time: Duration) {
    let body = serde_json::json!({"rollout_time": rollout_time.as_secs_f64()}).to_string();
    let path = format!("/rollscope/steps/{step}/end");
    // Without an answer the recorder closes the step by itself, later.
    let _answered = client.post(&path, "application/json", body.into(), &[]).await;
}

async fn send(client: Client, mut queue: mpsc::Receiver<Line>, lost: Arc<AtomicU64>) {
    let mut batch = Vec::with_capacity(BATCH_LINES);
    let mut taken = true;
    while queue.recv_many(&mut batch, BATCH_LINES).await > 0 {
        if !(taken && post(&client, &batch).await) {
            lost.fetch_add(batch.len() as u64, Ordering::Relaxed);
            // A gateway that records nothing has no such route: it is not asked again.
            taken = false;
        }
        batch.clear();
    }
}

/// Whether the batch was taken.
async fn post(client: &Client, batch: &[Line]) -> bool {
    let mut body = Vec::new();
    for line in batch {
        if serde_json::to_writer(&mut body, line).is_err() {
            return false;
        }
        body.push(b'\n');
    }
    let body = bytes::Bytes::from(body);
    for attempt in 0..TRIES {
        match client.post("/rollscope/v1/spans", "application/x-ndjson", body.clone(), &[]).await {
            Ok((status, _)) if status.is_success() => return true,
            Ok((status, _)) if status != StatusCode::SERVICE_UNAVAILABLE => return false,
            _ => tokio::time::sleep(Duration::from_millis(100 << attempt)).await,
        }
    }
    false
}
