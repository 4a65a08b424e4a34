//! The forward passes of a step as columns, worker by worker: what is drawn as a strip along a worker's row.
//!
//! A pass says neither when it was nor which requests it was for: it stands where it ended at the latest, when it was
//! heard of, and that may be `bound_ns` too late.

use rollscope_trace::ForwardPass;
use serde::Serialize;

use crate::columns::{Column, Columns};
use crate::step::StepView;

/// What stands beside the columns.
#[derive(Serialize)]
struct Meta {
    /// Passes of workers that no request of the step was sent to.
    left_out: usize,
}

/// The passes whose worker has a row, by worker and in order of time.
pub(crate) fn answer(step: &StepView, passes: &[ForwardPass]) -> Result<Vec<u8>, serde_json::Error> {
    let number_of = |pass: &ForwardPass| {
        let worker = pass.worker.as_ref()?;
        step.workers().number_at(&worker.url, pass.dp_rank)
    };
    let mut rows: Vec<(u32, &ForwardPass)> =
        passes.iter().filter_map(|pass| Some((number_of(pass)?, pass))).collect();
    rows.sort_by_key(|(worker, pass)| (*worker, pass.received, pass.counter_id));
    let left_out = passes.len() - rows.len();
    let of = |value: fn(&ForwardPass) -> f64| Column::F64(rows.iter().map(|(_, pass)| value(pass)).collect());
    let mut columns = Columns::default();
    for (name, column) in [
        ("worker", Column::U32(rows.iter().map(|(worker, _)| *worker).collect())),
        ("end_ns", Column::F64(rows.iter().map(|(_, pass)| step.since_origin(pass.received)).collect())),
        ("wall_ns", of(|pass| pass.wall.0 as f64)),
        ("bound_ns", of(|pass| pass.uncertainty.0 as f64)),
        ("prefill_requests", of(|pass| pass.scheduled.prefill_requests as f64)),
        ("prefill_tokens", of(|pass| pass.scheduled.prefill_tokens as f64)),
        ("decode_requests", of(|pass| pass.scheduled.decode_requests as f64)),
        ("kv_tokens", of(|pass| (pass.scheduled.decode_kv_tokens + pass.scheduled.prefill_kv_tokens) as f64)),
        ("queued", of(|pass| (pass.queued.prefill_requests + pass.queued.decode_requests) as f64)),
        ("lost_before", of(|pass| pass.lost_before as f64)),
    ] {
        columns.put(name, &column);
    }
    columns.into_bytes(&Meta { left_out })
}
