//! `/metrics`: the scheduler's gauges, counters and histograms under SGLang's names, as Prometheus reads them.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::App;
use super::respond::ApiError;
use crate::options::DisaggregationMode;
use crate::scheduler::{Histogram, Snapshot};

/// The page as it is written.
struct Page {
    text: String,
    labels: String,
}

const PREFIX: &str = "sglang:";
/// Has no name in SGLang, which does not count them.
const PASSES_DROPPED: &str = "rollscope_engine_forward_passes_dropped_total";

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let snapshot = app.postbox.inspect(false).await?;
    let options = app.published.resolved();
    let model = options.served_model_name.as_ref().unwrap_or(&options.model_path);
    let engine_type = match app.mode() {
        DisaggregationMode::Null => "unified",
        DisaggregationMode::Prefill => "prefill",
        DisaggregationMode::Decode => "decode",
    };
    let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels = format!(
        "model_name=\"{model}\",engine_type=\"{engine_type}\",tp_rank=\"0\",pp_rank=\"0\",moe_ep_rank=\"0\",dp_rank=\"0\""
    );
    let mut page = Page { text: String::new(), labels };
    page.gauges(app.mode(), &snapshot);
    page.counters(app.mode(), &snapshot);
    let Snapshot { observations, .. } = snapshot;
    for (name, histogram) in [
        ("queue_time_seconds", &observations.queue_time_seconds),
        ("e2e_request_latency_seconds", &observations.e2e_request_latency_seconds),
    ] {
        page.histogram(name, histogram);
    }
    // A prefill server's one token is not the client's first.
    if app.mode() == DisaggregationMode::Prefill {
        page.histogram("kv_transfer_latency_ms", &observations.kv_transfer_latency_ms);
        page.histogram("kv_transfer_speed_gb_s", &observations.kv_transfer_speed_gb_s);
        page.histogram("kv_transfer_total_mb", &observations.kv_transfer_total_mb);
    } else {
        page.histogram("time_to_first_token_seconds", &observations.time_to_first_token_seconds);
        page.histogram("inter_token_latency_seconds", &observations.inter_token_latency_seconds);
    }
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page.text).into_response())
}

// === impl Page ===

impl Page {
    fn gauges(&mut self, mode: DisaggregationMode, snapshot: &Snapshot) {
        let usage = snapshot.used_tokens as f64 / snapshot.total_tokens.max(1) as f64;
        let counts = &snapshot.counts;
        let hits = counts.cached_tokens as f64 / counts.prompt_tokens.max(1) as f64;
        let held = if snapshot.is_paused { snapshot.live() } else { 0 };
        let gauges = [
            ("num_running_reqs", snapshot.running as f64),
            ("num_queue_reqs", snapshot.waiting as f64),
            ("num_retracted_reqs", snapshot.retracted as f64),
            ("num_paused_reqs", held as f64),
            ("num_used_tokens", snapshot.used_tokens as f64),
            ("max_total_num_tokens", snapshot.total_tokens as f64),
            ("token_usage", usage),
            ("cache_hit_rate", hits.min(1.0)),
            ("gen_throughput", snapshot.gen_throughput),
        ];
        let of_mode: &[(&str, usize)] = match mode {
            DisaggregationMode::Null => &[],
            DisaggregationMode::Prefill => &[
                ("num_prefill_bootstrap_queue_reqs", snapshot.bootstrap),
                ("num_prefill_inflight_queue_reqs", snapshot.inflight),
            ],
            DisaggregationMode::Decode => &[
                ("num_decode_prealloc_queue_reqs", snapshot.prealloc),
                ("num_decode_transfer_queue_reqs", snapshot.transfer),
            ],
        };
        let of_mode = of_mode.iter().map(|(name, value)| (*name, *value as f64));
        for (name, value) in gauges.into_iter().chain(of_mode) {
            self.head(name, "gauge");
            self.sample(name, "", value);
        }
    }

    fn counters(&mut self, mode: DisaggregationMode, snapshot: &Snapshot) {
        let counts = &snapshot.counts;
        let counters = [
            ("prompt_tokens_total", counts.prompt_tokens),
            ("generation_tokens_total", counts.generated_tokens),
            ("num_requests_total", counts.requests),
            ("num_aborted_requests_total", counts.aborted),
        ];
        let of_pairs = [
            ("num_bootstrap_failed_reqs_total", counts.bootstrap_failed),
            ("num_transfer_failed_reqs_total", counts.transfer_failed),
        ];
        let of_pairs = of_pairs.into_iter().filter(|_| mode != DisaggregationMode::Null);
        for (name, value) in counters.into_iter().chain(of_pairs) {
            self.head(name, "counter");
            self.sample(name, "", value as f64);
        }
        self.head("cached_tokens_total", "counter");
        self.sample("cached_tokens_total", ",cache_source=\"device\"", counts.cached_tokens as f64);
        if let Some(dropped) = snapshot.passes_dropped {
            self.line(format_args!("# TYPE {PASSES_DROPPED} counter"));
            let labels = std::mem::take(&mut self.labels);
            self.line(format_args!("{PASSES_DROPPED}{{{labels}}} {dropped}"));
            self.labels = labels;
        }
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram) {
        self.head(name, "histogram");
        let bucket = format!("{name}_bucket");
        for (bound, count) in histogram.cumulative() {
            self.sample(&bucket, &format!(",le=\"{bound}\""), count as f64);
        }
        self.sample(&bucket, ",le=\"+Inf\"", histogram.count() as f64);
        self.sample(&format!("{name}_sum"), "", histogram.sum());
        self.sample(&format!("{name}_count"), "", histogram.count() as f64);
    }

    fn head(&mut self, name: &str, kind: &str) {
        self.line(format_args!("# TYPE {PREFIX}{name} {kind}"));
    }

    fn sample(&mut self, name: &str, more: &str, value: f64) {
        let labels = std::mem::take(&mut self.labels);
        self.line(format_args!("{PREFIX}{name}{{{labels}{more}}} {value}"));
        self.labels = labels;
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.text.push_str(&line.to_string());
        self.text.push('\n');
    }
}
