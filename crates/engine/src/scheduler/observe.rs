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

    /// Counts a value so many times; one that was not measured not at all.
    fn observe(&mut self, value: Option<f64>, times: u64) {
        if let Some(value) = value {
            self.counts[self.bounds.partition_point(|bound| *bound < value)] += times;
            self.sum += value * times as f64;
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
    fn ended(&mut self, stamps: &Stamps, generated: u64) {
        let Self { queue_time_seconds: queue, time_to_first_token_seconds: first, .. } = self;
        queue.observe(stamps.queue_s(), 1);
        first.observe(stamps.first_token_s(), 1);
        self.e2e_request_latency_seconds.observe(stamps.whole_s(), 1);
        let intervals = generated.saturating_sub(1);
        let decoding =
            stamps.decoding_s().filter(|_| intervals > 0).map(|decoding| decoding / intervals as f64);
        self.inter_token_latency_seconds.observe(decoding, intervals);
        for (stage, seconds) in stamps.stages_s() {
            if seconds.is_some() {
                let histogram = self.per_stage_req_latency_seconds.entry(stage);
                histogram.or_insert_with(|| Histogram::new(SECONDS)).observe(seconds, 1);
            }
        }
        if let Some(transfer) = stamps.transfer {
            let (bootstrap, alloc) = stamps.before_prefill_s();
            self.kv_transfer_bootstrap_ms.observe(bootstrap.map(|seconds| seconds * 1e3), 1);
            self.kv_transfer_alloc_ms.observe(alloc.map(|seconds| seconds * 1e3), 1);
            self.kv_transfer_latency_ms.observe(Some(transfer.busy_s * 1e3), 1);
            self.kv_transfer_speed_gb_s.observe(transfer.speed_gib_s(), 1);
            self.kv_transfer_total_mb.observe(Some(transfer.bytes as f64 / f64::from(1 << 20)), 1);
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
        self.observations.ended(&request.spec.stamps, request.generated() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_where_they_fall() {
        let mut histogram = Histogram::new(TRANSFER_GB_S);
        for value in [0.1, 0.3, 5.0, 1000.0] {
            histogram.observe(Some(value), 2);
        }
        histogram.observe(None, 1);
        assert_eq!((histogram.count(), histogram.sum()), (8, 2.0 * 1005.4));
        let counts: Vec<_> = histogram.cumulative().map(|(_, count)| count).collect();
        assert_eq!(counts, [2, 4, 4, 6, 6, 6, 6, 6, 6, 6]);
    }
}
