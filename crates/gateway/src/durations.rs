//! How long requests take, as histograms: in all, until the first token of a stream, and for each further token.
//!
//! Names and labels of what they become on `/metrics` are those of SGLang's router.

use std::sync::atomic::{AtomicU64, Ordering};

use rollscope_trace::Nanos;

/// The histograms of each kind of request.
#[derive(Debug)]
pub(crate) struct Durations {
    /// Upper bounds of the buckets, in seconds.
    pub(crate) bounds_s: Vec<f64>,
    of: Vec<OfEndpoint>,
}

/// The histograms of one kind of request.
#[derive(Debug)]
pub(crate) struct OfEndpoint {
    /// From arrival to the last byte.
    pub(crate) request: Histogram,
    /// From arrival to the first event of a stream.
    pub(crate) first_token: Histogram,
    /// From the first event of a stream to its last byte, by token but the first.
    pub(crate) per_token: Histogram,
    /// Requests that have been read, whose replies are not to be streams and are to be.
    pub(crate) asked: [AtomicU64; 2],
}

/// How often what lasted how long.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// One for each bound, and one for what lasts longer.
    buckets: Vec<AtomicU64>,
    sum_ns: AtomicU64,
}

/// What is told apart: whatever a client asks for, there are no more series.
pub(crate) const ENDPOINTS: [(&str, &str); 7] = [
    ("/generate", "generate"),
    ("/v1/chat/completions", "chat"),
    ("/v1/completions", "completions"),
    ("/v1/embeddings", "embeddings"),
    ("/v1/rerank", "rerank"),
    ("/v1/responses", "responses"),
    ("", "other"),
];

// === impl Durations ===

impl Durations {
    pub(crate) fn new(bounds_s: &[f64]) -> Self {
        let histogram = || Histogram::new(bounds_s.len());
        let of = ENDPOINTS.iter().map(|_| OfEndpoint {
            request: histogram(),
            first_token: histogram(),
            per_token: histogram(),
            asked: Default::default(),
        });
        Self { bounds_s: bounds_s.to_vec(), of: of.collect() }
    }

    /// Of a path.
    pub(crate) fn of(&self, path: &str) -> &OfEndpoint {
        let path = if path == "/rerank" { "/v1/rerank" } else { path };
        let at = ENDPOINTS.iter().position(|(known, _)| *known == path);
        &self.of[at.unwrap_or(ENDPOINTS.len() - 1)]
    }

    /// Counts a request that has been read.
    pub(crate) fn count(&self, path: &str, is_stream: bool) {
        self.of(path).asked[usize::from(is_stream)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn observe(&self, histogram: &Histogram, duration: Nanos) {
        let seconds = duration.0 as f64 / 1e9;
        let at = self.bounds_s.partition_point(|bound| *bound < seconds);
        histogram.buckets[at].fetch_add(1, Ordering::Relaxed);
        histogram.sum_ns.fetch_add(duration.0, Ordering::Relaxed);
    }
}

// === impl Histogram ===

impl Histogram {
    pub(crate) fn new(bounds: usize) -> Self {
        Self { buckets: (0..=bounds).map(|_| AtomicU64::new(0)).collect(), sum_ns: AtomicU64::new(0) }
    }

    /// How often it lasted no longer than each bound, and how often in all; and the seconds altogether.
    pub(crate) fn cumulative(&self) -> (Vec<u64>, f64) {
        let mut sum = 0;
        let counts = self.buckets.iter().map(|bucket| {
            sum += bucket.load(Ordering::Relaxed);
            sum
        });
        (counts.collect(), self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_every_bucket_that_is_wide_enough() {
        let durations = Durations::new(&[0.1, 1.0]);
        let histogram = &durations.of("/generate").request;
        for ms in [50, 100, 101, 1000, 90_000] {
            durations.observe(histogram, Nanos(ms * 1_000_000));
        }
        assert_eq!(histogram.cumulative(), (vec![2, 4, 5], 91.251));
        assert_eq!(durations.of("/generate").first_token.cumulative().0, [0, 0, 0]);
        assert!(std::ptr::eq(durations.of("/made/up"), durations.of("/other")));
    }
}
