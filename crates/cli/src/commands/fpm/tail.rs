//! Each message in a line, with what its number tells of those before.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use rollscope_config::options;
use rollscope_fpm::{Accounts, Arrival, ForwardPassMetrics, Heard, Message, Origin, What};
use rollscope_record::PassSource;
use rollscope_trace::sentence;
use serde_json::{Value, json};

use super::Watched;
use crate::exit::Failure;
use crate::output;
use crate::table::duration;

options! {
    /// Print each message as it comes.
    pub(crate) struct TailOptions, environment "ROLLSCOPE_FPM_TAIL" {
        observability {
            /// Servers that are asked where they publish.
            server: Vec<String> = &[], value_name("URL");
            /// End after so many messages.
            count: Option<u64> = None, range(1..=u64::MAX);
            /// Print each message as JSON.
            json: bool = false;
        }
    }
}

pub(super) async fn run(mut watched: Watched, options: &TailOptions) -> Result<(), Failure> {
    let mut left = options.count;
    let mut accounts: BTreeMap<Origin<PassSource>, Accounts> = BTreeMap::new();
    while let Some(Heard { from, what }) = watched.recv().await {
        let endpoint = from.endpoint.to_string();
        match what {
            What::Connected => output::note(format_args!("{endpoint}: connected")),
            What::Lost(error) => output::note(format_args!("{endpoint}: {}", sentence(&error))),
            What::Moved(before) => {
                accounts.entry(from).or_default().begin_anew();
                output::note(format_args!("{endpoint}: started anew here, and published at {before} before"));
            }
            What::Left => {
                accounts.remove(&from);
                output::note(format_args!("{endpoint}: nobody publishes here any more"));
            }
            What::Message(message) => {
                let arrival = accounts.entry(from).or_default().take(&message).map(|(arrival, _)| arrival);
                if let Some(told) = arrival.and_then(remark) {
                    output::note(format_args!("{endpoint}: {told}"));
                }
                if options.json {
                    output::line(format_args!("{}", json_of(&endpoint, arrival, &message)))?;
                } else {
                    output::line(format_args!("{}", line(&endpoint, &message)))?;
                }
                left = left.map(|left| left - 1);
                if left == Some(0) {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// What a number tells beside itself.
fn remark(arrival: Arrival) -> Option<String> {
    match arrival {
        Arrival::Next | Arrival::First(0) => None,
        Arrival::First(missed) => Some(format!("{missed} messages were sent before")),
        Arrival::Gap(lost) => Some(format!("{lost} messages are lost")),
        Arrival::Restart(missed) => Some(format!("started anew, {missed} messages ago")),
    }
}

fn line(endpoint: &str, message: &Message) -> String {
    let number = message.sequence;
    let metrics = match &message.metrics {
        Ok(metrics) => metrics,
        Err(error) => return format!("{endpoint} #{number} {}", sentence(error)),
    };
    if metrics.is_heartbeat() {
        return format!("{endpoint} #{number} rank {} idle", metrics.dp_rank);
    }
    let ForwardPassMetrics { scheduled, queued, .. } = metrics;
    format!(
        "{endpoint} #{number} rank {} {} prefill {} ({} tokens, {} cached) decode {} ({} KV) queued {} ({} tokens) + {} ({} KV)",
        metrics.dp_rank,
        duration(metrics.wall_time),
        scheduled.num_prefill_requests,
        scheduled.sum_prefill_tokens,
        scheduled.sum_prefill_kv_tokens,
        scheduled.num_decode_requests,
        scheduled.sum_decode_kv_tokens,
        queued.num_prefill_requests,
        queued.sum_prefill_tokens,
        queued.num_decode_requests,
        queued.sum_decode_kv_tokens,
    )
}

fn json_of(endpoint: &str, arrival: Option<Arrival>, message: &Message) -> Value {
    let ago = message.received.elapsed();
    let received = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(ago);
    let (kind, count) = match arrival {
        Some(Arrival::First(missed)) => ("first", missed),
        Some(Arrival::Next) => ("next", 0),
        Some(Arrival::Gap(lost)) => ("gap", lost),
        Some(Arrival::Restart(missed)) => ("restart", missed),
        // No record, from one of several publishers.
        None => ("unknown", 0),
    };
    let mut told = json!({
        "endpoint": endpoint,
        "sequence": message.sequence,
        "received_at_ns": received.as_nanos() as u64,
        "arrival": kind,
        "missing": count,
    });
    match &message.metrics {
        Ok(metrics) => told["metrics"] = metrics_json(metrics),
        Err(error) => told["error"] = json!(sentence(error)),
    }
    told
}

/// The record with the names that it has on the wire.
fn metrics_json(metrics: &ForwardPassMetrics) -> Value {
    let (scheduled, queued) = (&metrics.scheduled, &metrics.queued);
    json!({
        "version": 1,
        "worker_id": metrics.worker_id,
        "dp_rank": metrics.dp_rank,
        "counter_id": metrics.counter_id,
        "wall_time": metrics.wall_time,
        "scheduled_requests": {
            "num_prefill_requests": scheduled.num_prefill_requests,
            "sum_prefill_tokens": scheduled.sum_prefill_tokens,
            "var_prefill_length": scheduled.var_prefill_length,
            "sum_prefill_kv_tokens": scheduled.sum_prefill_kv_tokens,
            "num_decode_requests": scheduled.num_decode_requests,
            "sum_decode_kv_tokens": scheduled.sum_decode_kv_tokens,
            "var_decode_kv_tokens": scheduled.var_decode_kv_tokens,
        },
        "queued_requests": {
            "num_prefill_requests": queued.num_prefill_requests,
            "sum_prefill_tokens": queued.sum_prefill_tokens,
            "var_prefill_length": queued.var_prefill_length,
            "num_decode_requests": queued.num_decode_requests,
            "sum_decode_kv_tokens": queued.sum_decode_kv_tokens,
            "var_decode_kv_tokens": queued.var_decode_kv_tokens,
        },
    })
}
