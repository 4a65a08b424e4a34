//! `/metrics`: the scheduler's gauges, counters and histograms under SGLang's names, as Prometheus reads them.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::App;
use super::respond::ApiError;
use crate::options::DisaggregationMode;
use crate::scheduler::{Histogram, Observations, Snapshot};

/// The page as it is written.
struct Page<'a> {
    text: String,
    mode: DisaggregationMode,
    max_running: usize,
    /// Of each rank, with the labels of its samples.
    ranks: &'a [(String, Snapshot)],
}

const PREFIX: &str = "sglang:";
/// Has no name in SGLang, which does not count them.
const PASSES_DROPPED: &str = "rollscope_engine_forward_passes_dropped_total";
const TURNED_AWAY: &str = "rollscope_engine_forward_pass_subscribers_turned_away_total";

/// The type of what Prometheus reads.
pub(super) const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let snapshots = app.ranks.inspect(false).await?;
    let mode = app.mode();
    let engine_type = match mode {
        DisaggregationMode::Null => "unified",
        DisaggregationMode::Prefill => "prefill",
        DisaggregationMode::Decode => "decode",
    };
    let model = app.model_name().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels = |rank| {
        format!(
            "model_name=\"{model}\",engine_type=\"{engine_type}\",tp_rank=\"0\",pp_rank=\"0\",moe_ep_rank=\"0\",dp_rank=\"{rank}\""
        )
    };
    let ranks: Vec<_> =
        snapshots.into_iter().enumerate().map(|(rank, snapshot)| (labels(rank), snapshot)).collect();
    let max_running = app.published.schedule().max_running_requests;
    let mut page = Page { text: String::new(), mode, max_running, ranks: &ranks };
    page.gauges();
    page.counters();
    page.histogram("queue_time_seconds", |of| &of.queue_time_seconds);
    page.histogram("e2e_request_latency_seconds", |of| &of.e2e_request_latency_seconds);
    page.stages();
    // A prefill server's one token is not the client's first.
    if mode == DisaggregationMode::Prefill {
        page.histogram("kv_transfer_bootstrap_ms", |of| &of.kv_transfer_bootstrap_ms);
        page.histogram("kv_transfer_alloc_ms", |of| &of.kv_transfer_alloc_ms);
        page.histogram("kv_transfer_latency_ms", |of| &of.kv_transfer_latency_ms);
        page.histogram("kv_transfer_speed_gb_s", |of| &of.kv_transfer_speed_gb_s);
        page.histogram("kv_transfer_total_mb", |of| &of.kv_transfer_total_mb);
    } else {
        page.histogram("time_to_first_token_seconds", |of| &of.time_to_first_token_seconds);
        page.histogram("inter_token_latency_seconds", |of| &of.inter_token_latency_seconds);
    }
    Ok(([(CONTENT_TYPE, EXPOSITION)], page.text).into_response())
}

// === impl Page ===

impl Page<'_> {
    fn gauges(&mut self) {
        self.values("gauge", "num_running_reqs", |of| of.running as f64);
        self.values("gauge", "num_queue_reqs", |of| of.waiting as f64);
        self.values("gauge", "num_retracted_reqs", |of| of.retracted as f64);
        self.values(
            "gauge",
            "num_paused_reqs",
            |of| if of.stillness.is_still() { of.live() as f64 } else { 0.0 },
        );
        self.values("gauge", "num_used_tokens", |of| of.used_tokens as f64);
        self.values("gauge", "max_total_num_tokens", |of| of.total_tokens as f64);
        self.values("gauge", "token_usage", |of| of.share(of.used_tokens));
        let max_running = self.max_running;
        self.values("gauge", "utilization", |of| of.utilization(max_running));
        self.values("gauge", "cache_hit_rate", |of| of.counts.cache_hit_rate());
        self.values("gauge", "gen_throughput", |of| of.gen_throughput);
        match self.mode {
            DisaggregationMode::Null => {}
            DisaggregationMode::Prefill => {
                self.values("gauge", "num_prefill_bootstrap_queue_reqs", |of| of.bootstrap as f64);
                self.values("gauge", "num_prefill_inflight_queue_reqs", |of| of.inflight as f64);
            }
            DisaggregationMode::Decode => {
                self.values("gauge", "num_decode_prealloc_queue_reqs", |of| of.prealloc as f64);
                self.values("gauge", "num_decode_transfer_queue_reqs", |of| of.transfer as f64);
                self.values("gauge", "pending_prealloc_token_usage", |of| of.share(of.prealloc_tokens));
            }
        }
    }

    fn counters(&mut self) {
        self.values("counter", "prompt_tokens_total", |of| of.counts.prompt_tokens as f64);
        self.values("counter", "generation_tokens_total", |of| of.counts.generated_tokens as f64);
        self.values("counter", "num_requests_total", |of| of.counts.requests as f64);
        self.values("counter", "num_aborted_requests_total", |of| of.counts.aborted as f64);
        if self.mode != DisaggregationMode::Null {
            self.values("counter", "num_bootstrap_failed_reqs_total", |of| of.counts.bootstrap_failed as f64);
            self.values("counter", "num_transfer_failed_reqs_total", |of| of.counts.transfer_failed as f64);
            self.head("counter", "kv_transfer_timeouts_total");
            for (labels, of) in self.ranks {
                let timeouts = of.counts.timeouts;
                for (stage, count) in [("bootstrap", timeouts.bootstrap), ("transfer", timeouts.transfer)] {
                    let labels = format!("{labels},stage=\"{stage}\"");
                    self.sample("kv_transfer_timeouts_total", &labels, count as f64);
                }
            }
        }
        self.head("counter", "cached_tokens_total");
        for (labels, of) in self.ranks {
            let labels = format!("{labels},cache_source=\"device\"");
            self.sample("cached_tokens_total", &labels, of.counts.cached_tokens as f64);
        }
        self.head("counter", "realtime_tokens_total");
        for (labels, of) in self.ranks {
            for (mode, count) in [
                ("prefill_compute", of.counts.computed_prompt_tokens),
                ("prefill_cache", of.counts.cached_tokens),
                ("decode", of.counts.computed_next_tokens),
            ] {
                let labels = format!("{labels},mode=\"{mode}\"");
                self.sample("realtime_tokens_total", &labels, count as f64);
            }
        }
        self.of_publishers(PASSES_DROPPED, |of| of.passes_dropped);
        self.of_publishers(TURNED_AWAY, |of| of.subscribers_turned_away);
    }

    /// One count a rank that publishes forward-pass metrics.
    fn of_publishers(&mut self, name: &str, count: impl Fn(&Snapshot) -> Option<u64>) {
        if self.ranks.iter().any(|(_, of)| count(of).is_some()) {
            self.line(format_args!("# TYPE {name} counter"));
        }
        for (labels, of) in self.ranks {
            if let Some(count) = count(of) {
                self.line(format_args!("{name}{{{labels}}} {count}"));
            }
        }
    }

    /// One value a rank.
    fn values(&mut self, kind: &str, name: &str, value: impl Fn(&Snapshot) -> f64) {
        self.head(kind, name);
        for (labels, snapshot) in self.ranks {
            self.sample(name, labels, value(snapshot));
        }
    }

    /// One histogram a rank.
    fn histogram(&mut self, name: &str, of: impl Fn(&Observations) -> &Histogram) {
        self.head("histogram", name);
        for (labels, snapshot) in self.ranks {
            self.distribution(name, labels, of(&snapshot.observations));
        }
    }

    /// One histogram a stage that requests have been in.
    fn stages(&mut self) {
        let name = "per_stage_req_latency_seconds";
        self.head("histogram", name);
        for (labels, snapshot) in self.ranks {
            for (stage, histogram) in &snapshot.observations.per_stage_req_latency_seconds {
                self.distribution(name, &format!("{labels},stage=\"{stage}\""), histogram);
            }
        }
    }

    fn distribution(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        let bucket = format!("{name}_bucket");
        for (bound, count) in histogram.cumulative() {
            self.sample(&bucket, &format!("{labels},le=\"{bound}\""), count as f64);
        }
        self.sample(&bucket, &format!("{labels},le=\"+Inf\""), histogram.count() as f64);
        self.sample(&format!("{name}_sum"), labels, histogram.sum());
        self.sample(&format!("{name}_count"), labels, histogram.count() as f64);
    }

    fn head(&mut self, kind: &str, name: &str) {
        self.line(format_args!("# TYPE {PREFIX}{name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        self.line(format_args!("{PREFIX}{name}{{{labels}}} {value}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.text.push_str(&line.to_string());
        self.text.push('\n');
    }
}
