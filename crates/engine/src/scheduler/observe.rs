//! Distributions of what requests took, kept since the start.

use std::collections::BTreeMap;

use super::core::Core;
use crate::request::Request;
use crate::stamps::Stamps;

/// How often values fell into ranges.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Histogram {
    /// Upper ends, ascending. Beyond the last is everything else.
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

/// One histogram each; names and units are SGLang's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observations {
    pub(crate) queue_time_seconds: Histogram,
    pub(crate) time_to_first_token_seconds: Histogram,
    pub(crate) inter_token_latency_seconds: Histogram,
    pub(crate) e2e_request_latency_seconds: Histogram,
    pub(crate) per_stage_req_latency_seconds: BTreeMap<&'static str, Histogram>,
    pub(crate) kv_transfer_bootstrap_ms: Histogram,
    pub(crate) kv_transfer_alloc_ms: Histogram,
    pub(crate) kv_transfer_latency_ms: Histogram,
    pub(crate) kv_transfer_speed_gb_s: Histogram,
    pub(crate) kv_transfer_total_mb: Histogram,
}

const SECONDS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0,
    500.0,
];
const BEFORE_TRANSFER_MS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0];
const TRANSFER_MS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0];
const TRANSFER_GB_S: &[f64] = &[0.1, 0.5, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0];
const TRANSFER_MB: &[f64] = &[1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0, 10_000.0];

// === impl Histogram ===

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts a value; one that was not measured not at all.
    fn observe(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
            self.sum += value;
        }
    }

    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Each bound with how many values were at most that.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut total = 0;
        self.bounds.iter().zip(&self.counts).map(move |(bound, count)| {
            total += count;
            (*bound, total)
        })
    }
}

// === impl Observations ===

impl Observations {
    /// A request has come to its end, whichever.
    fn ended(&mut self, stamps: &Stamps) {
        let Self { queue_time_seconds: queue, time_to_first_token_seconds: first, .. } = self;
        queue.observe(stamps.queue_s());
        first.observe(stamps.first_token_s());
        self.e2e_request_latency_seconds.observe(stamps.whole_s());
        for (stage, seconds) in stamps.stages_s() {
            if seconds.is_some() {
                let histogram = self.per_stage_req_latency_seconds.entry(stage);
                histogram.or_insert_with(|| Histogram::new(SECONDS)).observe(seconds);
            }
        }
        if let Some(transfer) = stamps.transfer {
            let (bootstrap, alloc) = stamps.before_prefill_s();
            self.kv_transfer_bootstrap_ms.observe(bootstrap.map(|seconds| seconds * 1e3));
            self.kv_transfer_alloc_ms.observe(alloc.map(|seconds| seconds * 1e3));
            self.kv_transfer_latency_ms.observe(Some(transfer.busy_s * 1e3));
            self.kv_transfer_speed_gb_s.observe(transfer.speed_gib_s());
            self.kv_transfer_total_mb.observe(Some(transfer.bytes as f64 / f64::from(1 << 20)));
        }
    }
}

impl Default for Observations {
    fn default() -> Self {
        let seconds = || Histogram::new(SECONDS);
        Self {
            queue_time_seconds: seconds(),
            time_to_first_token_seconds: seconds(),
            inter_token_latency_seconds: seconds(),
            e2e_request_latency_seconds: seconds(),
            per_stage_req_latency_seconds: BTreeMap::new(),
            kv_transfer_bootstrap_ms: Histogram::new(BEFORE_TRANSFER_MS),
            kv_transfer_alloc_ms: Histogram::new(BEFORE_TRANSFER_MS),
            kv_transfer_latency_ms: Histogram::new(TRANSFER_MS),
            kv_transfer_speed_gb_s: Histogram::new(TRANSFER_GB_S),
            kv_transfer_total_mb: Histogram::new(TRANSFER_MB),
        }
    }
}

// === impl Core ===

impl Core {
    /// Takes the measurements of a request that has come to its last token.
    pub(super) fn observe(&mut self, request: &Request) {
        if !request.spec.is_probe {
            self.observations.ended(&request.spec.stamps);
        }
    }

    /// A token was chosen for a request that is to be appended: measures from the one before. The first came with the prompt's end.
    pub(super) fn observe_token(&mut self, request: &mut Request) {
        if request.generated() > 0 {
            let now = self.clock.now();
            let before = request.latest_token.replace(now).or(request.spec.stamps.prefill_finished);
            let gap_s = before.map(|before| now.since(before).as_secs_f64());
            self.observations.inter_token_latency_seconds.observe(gap_s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_where_they_fall() {
        let mut histogram = Histogram::new(TRANSFER_GB_S);
        for value in [0.1, 0.3, 5.0, 1000.0] {
            histogram.observe(Some(value));
        }
        histogram.observe(None);
        assert_eq!((histogram.count(), histogram.sum()), (4, 1005.4));
        let counts: Vec<_> = histogram.cumulative().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 2, 2, 3, 3, 3, 3, 3, 3, 3]);
    }
}
