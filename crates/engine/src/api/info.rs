//! What the server tells of itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::App;
use super::prometheus::EXPOSITION;
use super::respond::ApiError;
use crate::options::DisaggregationMode;
use crate::scheduler::{InflightQueue, InflightRequest, Snapshot};

#[derive(Debug, Deserialize)]
pub(super) struct LoadsQuery {
    dp_rank: Option<usize>,
    include: Option<String>,
    format: Option<String>,
}

/// A part of `/v1/loads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Core,
    Memory,
    Disaggregation,
    Queues,
    Inflight,
}

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
/// A scheduler in the middle of a long step is not waited for: the answer then lacks `internal_states`.
const STATE_TIMEOUT: Duration = Duration::from_secs(2);

/// The start-up configuration, and what is in force under `internal_states`, with the log of overrides: a state for each rank.
pub(super) async fn server_info(State(app): State<Arc<App>>) -> Json<Value> {
    let mut info = app.published.startup_json();
    let size_one = ["tp_size", "pp_size", "ep_size", "num_gpus_per_engine"];
    info.extend(size_one.map(|name| (name.to_owned(), json!(1))));
    info.insert("tokenizer_path".to_owned(), json!(app.published.startup().model_path));
    info.insert("version".to_owned(), json!(env!("CARGO_PKG_VERSION")));
    info.insert("kv_events".to_owned(), Value::Null);
    info.insert("simulated".to_owned(), json!(app.is_simulated()));
    let states: Vec<_> = match tokio::time::timeout(STATE_TIMEOUT, app.ranks.inspect(false)).await {
        Ok(Ok(ranks)) => ranks.iter().map(|rank| internal_state(&app, rank)).collect(),
        _ => Vec::new(),
    };
    info.insert("internal_states".to_owned(), json!(states));
    Json(Value::Object(info))
}

fn internal_state(app: &App, snapshot: &Snapshot) -> Map<String, Value> {
    let mut state = app.published.resolved_json();
    let running = app.published.schedule().max_running_requests;
    // What SGLang captures of a GPU's work, to replay it, has no counterpart here.
    let memory = json!({
        "weight": app.model.weight_bytes() as f64 / GIB,
        "graph": 0.0,
        "kvcache": snapshot.kv_bytes as f64 / GIB,
        "token_capacity": snapshot.total_tokens,
    });
    state.extend(
        [
            ("overrides", json!(app.published.overrides())),
            ("namespaces", Value::Object(app.published.bags())),
            ("world_size", json!(1)),
            ("startup_time", json!(app.started_unix_s)),
            ("effective_max_running_requests_per_dp", json!(running)),
            ("last_gen_throughput", json!(snapshot.gen_throughput)),
            ("memory_usage", memory),
            ("model_fingerprint", json!(format!("{:016x}", app.model.fingerprint()))),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    state
}

pub(super) async fn model_info(State(app): State<Arc<App>>) -> Json<Value> {
    let options = app.published.model();
    let config = app.model.config();
    Json(json!({
        "model_path": options.model_path,
        "tokenizer_path": options.model_path,
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": options.weight_version,
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": config.model_type,
        "architectures": config.architectures,
    }))
}

pub(super) async fn weight_version(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"weight_version": app.published.model().weight_version}))
}

/// OpenAI's list of models.
pub(super) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let options = app.published.model();
    Json(json!({"object": "list", "data": [{
        "id": app.model_name(),
        "object": "model",
        "created": app.started_unix_s as u64,
        "owned_by": "rollscope",
        "root": options.model_path,
        "max_model_len": app.context_length,
    }]}))
}

pub(super) async fn loads(
    State(app): State<Arc<App>>,
    query: Result<Query<LoadsQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|rejection| ApiError::bad_request(rejection.body_text()))?;
    let as_json = match query.format.as_deref() {
        None | Some("json") => true,
        Some("prometheus") => false,
        Some(format) => {
            return Err(ApiError::bad_request(format!("format must be json or prometheus, got {format}")));
        }
    };
    let sections = Section::parse(query.include.as_deref().unwrap_or("all"))?;
    let ranks = app.ranks.inspect(sections.contains(&Section::Inflight)).await?;
    let wanted =
        ranks.iter().enumerate().filter(|(rank, _)| query.dp_rank.is_none_or(|asked| asked == *rank));
    let loads: Vec<_> = wanted.map(|(rank, snapshot)| load(&app, (rank, snapshot), &sections)).collect();
    if !as_json {
        return Ok(([(CONTENT_TYPE, EXPOSITION)], exposition(&loads)).into_response());
    }
    let body = json!({
        "timestamp": timestamp(SystemTime::now()),
        "version": env!("CARGO_PKG_VERSION"),
        "loads": loads,
    });
    Ok(Json(body).into_response())
}

/// The numbers of loads as Prometheus reads them, under SGLang's names: each a gauge with a value a rank.
fn exposition(loads: &[Map<String, Value>]) -> String {
    let mut gauges: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for load in loads {
        let rank = &load["dp_rank"];
        let mut add = |name: &str, value: &Value| {
            if value.is_number() && name != "dp_rank" {
                let sample = format!("sglang_{name}{{dp_rank=\"{rank}\"}} {value}\n");
                gauges.entry(format!("sglang_{name}")).or_default().push(sample);
            }
        };
        for (name, value) in load {
            add(name, value);
            let section = if name == "disaggregation" { "disagg" } else { name };
            for (inner, value) in value.as_object().into_iter().flatten() {
                add(&format!("{section}_{inner}"), value);
            }
        }
    }
    let gauge = |(name, samples): (String, Vec<String>)| {
        [format!("# TYPE {name} gauge\n"), samples.concat()].concat()
    };
    gauges.into_iter().map(gauge).collect()
}

fn load(app: &App, (rank, snapshot): (usize, &Snapshot), sections: &[Section]) -> Map<String, Value> {
    let mut load = Map::from_iter([("dp_rank".to_owned(), json!(rank))]);
    for section in sections {
        let fields = match section {
            Section::Core => core(app, snapshot),
            Section::Memory => json!({"memory": {
                "kv_cache_gb": snapshot.kv_bytes as f64 / GIB,
                "token_capacity": snapshot.total_tokens,
            }}),
            Section::Disaggregation => json!({"disaggregation": disaggregation(app, snapshot)}),
            Section::Inflight => json!({"inflight": inflight(&snapshot.listed)}),
            Section::Queues => json!({"queues": {
                "waiting": snapshot.waiting,
                "retracted": snapshot.retracted,
                "paused": if snapshot.stillness.is_still() { snapshot.live() } else { 0 },
            }}),
        };
        if let Value::Object(fields) = fields {
            load.extend(fields);
        }
    }
    load
}

fn core(app: &App, snapshot: &Snapshot) -> Value {
    let max_running = app.published.schedule().max_running_requests;
    let waiting = match app.mode() {
        DisaggregationMode::Null => snapshot.waiting + snapshot.retracted,
        DisaggregationMode::Prefill => snapshot.waiting + snapshot.retracted + snapshot.bootstrap,
        DisaggregationMode::Decode => {
            snapshot.waiting + snapshot.prealloc + snapshot.transfer + snapshot.retracted
        }
    };
    json!({
        "num_running_reqs": snapshot.running,
        "num_waiting_reqs": waiting,
        "num_waiting_uncached_tokens": snapshot.queued_tokens,
        "num_used_tokens": snapshot.used_tokens,
        "num_total_tokens": snapshot.used_tokens + snapshot.queued_tokens,
        "max_total_num_tokens": snapshot.total_tokens,
        "max_running_requests": max_running,
        "token_usage": snapshot.share(snapshot.used_tokens),
        "gen_throughput": snapshot.gen_throughput,
        "cache_hit_rate": snapshot.counts.cache_hit_rate(),
        "utilization": snapshot.utilization(max_running),
    })
}

/// Each queue with its requests, under slime's names.
fn inflight(queues: &[InflightQueue]) -> Vec<Value> {
    let request = |name: &str, request: &InflightRequest| {
        let mut listed = json!({
            "rid": request.rid, "bootstrap_room": request.room, "seqlen": request.tokens, "stage": name,
        });
        if name != "running" {
            listed["age_s"] = json!(request.age_s.map(|age| (age * 1e3).round() / 1e3));
        }
        if let Some(waits) = request.waits_for_input {
            listed["waiting_for_input"] = json!(waits);
            // What is too late is given up at once.
            listed["timeout_cancel_issued"] = json!(false);
        }
        listed
    };
    let queue = |queue: &InflightQueue| {
        let requests: Vec<_> = queue.requests.iter().map(|listed| request(queue.name, listed)).collect();
        json!({"name": queue.name, "num_reqs": requests.len(), "reqs": requests})
    };
    queues.iter().map(queue).collect()
}

fn disaggregation(app: &App, snapshot: &Snapshot) -> Value {
    let mode = app.mode();
    let mut part = json!({"mode": rollscope_config::Choice::spelling(mode)});
    match mode {
        DisaggregationMode::Null => {}
        DisaggregationMode::Prefill => {
            part["prefill_bootstrap_queue_reqs"] = json!(snapshot.bootstrap);
            part["prefill_inflight_queue_reqs"] = json!(snapshot.inflight);
            if let Some((speed_gib_s, duration_s)) = snapshot.last_transfer {
                part["kv_transfer_speed_gb_s"] = json!(speed_gib_s);
                part["kv_transfer_latency_ms"] = json!(duration_s * 1e3);
            }
        }
        DisaggregationMode::Decode => {
            part["decode_prealloc_queue_reqs"] = json!(snapshot.prealloc);
            part["decode_transfer_queue_reqs"] = json!(snapshot.transfer);
            part["decode_retracted_queue_reqs"] = json!(snapshot.retracted);
        }
    }
    part
}

// === impl Section ===

impl Section {
    /// The sections that `include` names. Those of other servers' kinds are known and have nothing to tell here.
    fn parse(include: &str) -> Result<Vec<Self>, ApiError> {
        let mut sections = Vec::new();
        for name in include.split(',').map(str::trim) {
            match name {
                "core" => sections.push(Self::Core),
                "memory" => sections.push(Self::Memory),
                "disagg" => sections.push(Self::Disaggregation),
                "queues" => sections.push(Self::Queues),
                "inflight" => sections.push(Self::Inflight),
                "all" => {
                    let all = [Self::Core, Self::Memory, Self::Disaggregation, Self::Queues, Self::Inflight];
                    sections.extend(all);
                }
                "spec" | "lora" => {}
                _ => {
                    return Err(ApiError::bad_request(format!(
                        "include must be of core, memory, spec, lora, disagg, queues, inflight, all; got {name}"
                    )));
                }
            }
        }
        Ok(sections)
    }
}

/// A moment in ISO 8601, UTC, to the millisecond.
fn timestamp(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days as i64);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// The date of a day since 1970-01-01: Howard Hinnant's `civil_from_days`, years beginning in March so that the leap day is
/// a year's last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_dates() {
        for (unix_s, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_772_323_199, "2026-02-28T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(timestamp(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s)), expected);
        }
    }
}
