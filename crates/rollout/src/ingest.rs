//! Sends the driver's own spans and rewards to the gateway, in batches, beside the rollout.
//!
//! The queue is bounded and a full one drops: recording never slows a rollout down. What was lost is counted
//! and told at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
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

const SPANS_PATH: &str = "/rollscope/v1/spans";
const LINES_TYPE: &str = "application/x-ndjson";
/// Lines that wait at most.
const QUEUE_LINES: usize = 65_536;
/// Lines in one call.
const BATCH_LINES: usize = 1_024;
/// Tries of one call while the gateway is busy or away.
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

/// Says that a step is over; gives its numbers, as a gateway that records answers them. One that does not has no such route, and
/// closes nothing. Without an answer the recorder closes the step by itself, later.
pub(crate) async fn end_step(
    client: &Client,
    step: u64,
    rollout_time: Duration,
) -> Option<Map<String, Value>> {
    #[derive(Deserialize)]
    struct Ended {
        data: Map<String, Value>,
    }
    let body = bytes::Bytes::from(json!({"rollout_time": rollout_time.as_secs_f64()}).to_string());
    let path = format!("/rollscope/steps/{step}/end");
    let (status, answer) = post_patiently(client, &path, "application/json", body).await?;
    let ended = status.is_success().then(|| serde_json::from_slice::<Ended>(&answer));
    Some(ended?.ok()?.data)
}

/// Whether spans are taken and steps closed there; nothing where the gateway does not answer.
pub(crate) async fn is_recorded(client: &Client) -> Option<bool> {
    let (status, _) = client.post(SPANS_PATH, LINES_TYPE, bytes::Bytes::new(), &[]).await.ok()?;
    Some(!status.is_client_error())
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
    let answered = post_patiently(client, SPANS_PATH, LINES_TYPE, body.into()).await;
    answered.is_some_and(|(status, _)| status.is_success())
}

/// Posts until the gateway answers and is not busy, a few times.
async fn post_patiently(
    client: &Client,
    path: &str,
    content_type: &str,
    body: bytes::Bytes,
) -> Option<(StatusCode, bytes::Bytes)> {
    for attempt in 0..TRIES {
        match client.post(path, content_type, body.clone(), &[]).await {
            Ok((status, answer)) if status != StatusCode::SERVICE_UNAVAILABLE => {
                return Some((status, answer));
            }
            _ => tokio::time::sleep(Duration::from_millis(100 << attempt)).await,
        }
    }
    None
}
