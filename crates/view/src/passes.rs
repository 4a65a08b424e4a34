//! The forward passes of a step as columns, worker by worker: what is drawn as a strip along a worker's row.
//!
//! A pass says neither when it was nor which requests it was for: it stands where it ended at the latest, when it was
//! heard of, and that may be `bound_ns` too late.
//!
//! Which of them a sample's requests sat in is `insight`'s to say ([`of_sample`]).
//!
//! More than [`REDUCED_OVER`] are sent as far as they can be seen: of those of a worker that end on one pixel of the window
//! that is looked at, the one with the most requests, and none outside of it.

use rollscope_insight::{Basis, Company, LegPasses, request_passes};
use rollscope_trace::{ForwardPass, SampleTrace};
use serde::Serialize;

use crate::columns::{Column, Columns};
use crate::sight::Window;
use crate::workers::Fleet;

/// No more passes are sent whole, whatever window was asked for.
const REDUCED_OVER: usize = 60_000;

/// The passes of a step.
#[derive(Debug)]
pub(crate) struct Passes {
    /// By worker, and in order of time.
    rows: Vec<Row>,
    /// Passes of workers that no request of the step was sent to.
    unplaced: usize,
    peaks: Vec<Peak>,
}

/// The passes of one call of a request.
#[derive(Debug, Serialize)]
pub(crate) struct CallPasses {
    /// Of the request, as the details of the sample number it.
    part: u32,
    role: &'static str,
    worker: String,
    /// Whether the worker told their numbers; else they are those that may have run meanwhile.
    is_exact: bool,
    count: usize,
    busy_s: f64,
    mean_batch: f64,
    slowest_s: f64,
    /// Numbers that the worker told and under which no pass was found.
    not_found: u64,
    /// At least so many of them were passes.
    lost: u64,
    /// Requests that sat in some of them.
    shared_with: usize,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    worker: u32,
    end_ns: f64,
    wall_ns: f64,
    bound_ns: f64,
    prefill_requests: f64,
    prefill_tokens: f64,
    decode_requests: f64,
    kv_tokens: f64,
    queued: f64,
    lost_before: f64,
}

/// The largest of a worker: what its strip is scaled by, whatever part of it is in sight.
#[derive(Clone, Copy, Debug, Serialize)]
struct Peak {
    worker: u32,
    requests: f64,
    kv_tokens: f64,
}

/// What stands beside the columns.
#[derive(Serialize)]
struct Meta<'a> {
    unplaced: usize,
    peaks: &'a [Peak],
    /// Passes that are not sent, as the window allows.
    left_out: usize,
}

/// The passes that the requests of a sample sat in, call by call, among those of its time.
pub(crate) fn of_sample(sample: &SampleTrace, heard: &[ForwardPass], company: &Company) -> Vec<CallPasses> {
    let requests = request_passes(&sample.requests, heard, company);
    let calls = requests.iter().zip(1..);
    calls.flat_map(|(calls, part)| calls.iter().map(move |found| CallPasses::of(part, found))).collect()
}

// === impl Passes ===

impl Passes {
    /// Of those that were heard of in a step.
    pub(crate) fn of(fleet: &Fleet, passes: &[ForwardPass]) -> Self {
        let mut rows: Vec<_> = passes.iter().filter_map(|pass| Some((Row::of(fleet, pass)?, pass))).collect();
        rows.sort_by_key(|(row, pass)| (row.worker, pass.received, pass.counter_id));
        let rows: Vec<Row> = rows.into_iter().map(|(row, _)| row).collect();
        let peaks = rows.chunk_by(|a, b| a.worker == b.worker).map(Peak::of).collect();
        let unplaced = passes.len() - rows.len();
        Self { rows, unplaced, peaks }
    }

    /// Those that can be seen in a window, or all.
    pub(crate) fn answer(&self, window: Option<Window>) -> Result<Vec<u8>, serde_json::Error> {
        let rows: Vec<&Row> = match window.filter(|_| self.rows.len() > REDUCED_OVER) {
            None => self.rows.iter().collect(),
            Some(window) => reduced(&self.rows, window),
        };
        let of = |value: fn(&Row) -> f64| Column::F64(rows.iter().map(|row| value(row)).collect());
        let mut columns = Columns::default();
        columns.put("worker", &Column::U32(rows.iter().map(|row| row.worker).collect()));
        for (name, column) in [
            ("end_ns", of(|row| row.end_ns)),
            ("wall_ns", of(|row| row.wall_ns)),
            ("bound_ns", of(|row| row.bound_ns)),
            ("prefill_requests", of(|row| row.prefill_requests)),
            ("prefill_tokens", of(|row| row.prefill_tokens)),
            ("decode_requests", of(|row| row.decode_requests)),
            ("kv_tokens", of(|row| row.kv_tokens)),
            ("queued", of(|row| row.queued)),
            ("lost_before", of(|row| row.lost_before)),
        ] {
            columns.put(name, &column);
        }
        let left_out = self.rows.len() - rows.len();
        columns.into_bytes(&Meta { unplaced: self.unplaced, peaks: &self.peaks, left_out })
    }
}

/// Of each worker and pixel of the window, the pass with the most requests.
fn reduced(rows: &[Row], window: Window) -> Vec<&Row> {
    let pixel_of = |row: &Row| (row.end_ns / window.pixel.max(1.0)).floor() as i64;
    let mut kept: Vec<&Row> = Vec::new();
    for row in rows {
        if row.end_ns < window.from || row.end_ns - row.wall_ns > window.to {
            continue;
        }
        match kept.last_mut() {
            Some(last) if last.worker == row.worker && pixel_of(last) == pixel_of(row) => {
                if row.requests() > last.requests() {
                    *last = row;
                }
            }
            _ => kept.push(row),
        }
    }
    kept
}

// === impl CallPasses ===

impl CallPasses {
    fn of(part: u32, found: &LegPasses<'_>) -> Self {
        Self {
            part,
            role: found.role.name(),
            worker: found.worker.to_owned(),
            is_exact: found.basis == Basis::Exact,
            count: found.passes.len(),
            busy_s: found.busy().as_secs_f64(),
            mean_batch: found.mean_batch(),
            slowest_s: found.slowest().map_or(0.0, |pass| pass.wall.as_secs_f64()),
            not_found: found.not_found(),
            lost: found.lost,
            shared_with: found.shared.len(),
        }
    }
}

// === impl Row ===

impl Row {
    /// Nothing for a worker that has no row.
    fn of(fleet: &Fleet, pass: &ForwardPass) -> Option<Self> {
        let worker = pass.worker.as_ref()?;
        Some(Self {
            worker: fleet.number_at(&worker.url, pass.dp_rank)?,
            end_ns: fleet.since_origin(pass.received),
            wall_ns: pass.wall.0 as f64,
            bound_ns: pass.uncertainty.0 as f64,
            prefill_requests: pass.scheduled.prefill_requests as f64,
            prefill_tokens: pass.scheduled.prefill_tokens as f64,
            decode_requests: pass.scheduled.decode_requests as f64,
            kv_tokens: (pass.scheduled.decode_kv_tokens + pass.scheduled.prefill_kv_tokens) as f64,
            queued: (pass.queued.prefill_requests + pass.queued.decode_requests) as f64,
            lost_before: pass.lost_before as f64,
        })
    }

    fn requests(&self) -> f64 {
        self.prefill_requests + self.decode_requests
    }
}

// === impl Peak ===

impl Peak {
    /// Of one worker's passes, of which there is one at least.
    fn of(rows: &[Row]) -> Self {
        let most = |value: fn(&Row) -> f64| rows.iter().map(value).fold(0.0, f64::max);
        Self {
            worker: rows.first().map_or(0, |row| row.worker),
            requests: most(Row::requests),
            kv_tokens: most(|row| row.kv_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_passes_on_one_pixel_the_largest_is_kept() {
        let row = |worker, end_ns, decode_requests| Row {
            worker,
            end_ns,
            wall_ns: 1.0,
            bound_ns: 0.0,
            prefill_requests: 0.0,
            prefill_tokens: 0.0,
            decode_requests,
            kv_tokens: 0.0,
            queued: 0.0,
            lost_before: 0.0,
        };
        let rows =
            [row(0, 1.0, 1.0), row(0, 5.0, 9.0), row(0, 8.0, 2.0), row(0, 12.0, 1.0), row(1, 13.0, 1.0)];
        let kept = |from, to| -> Vec<f64> {
            reduced(&rows, Window { from, to, pixel: 10.0 }).into_iter().map(|row| row.end_ns).collect()
        };
        assert_eq!(kept(0.0, 100.0), [5.0, 12.0, 13.0]);
        assert_eq!(kept(10.0, 12.0), [12.0, 13.0]);
        assert!(kept(50.0, 60.0).is_empty());
    }
}
