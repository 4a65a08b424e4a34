//! Every per-request value of which statistics are made: one table of names and sources.

use rollscope_trace::{Measure, Side, Unit};

/// A value that each request of a step may have.
#[derive(Debug, PartialEq, Eq)]
pub struct Series {
    /// Its name below `perf/`, in the trackers' own spelling.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    source: Source,
}

/// Where a value comes from.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    /// A worker's report.
    Worker(Measure),
    /// The waiting queue of the prefill worker; `queue_time` of a reply is the decode worker's.
    PrefillQueue,
    /// The gateway's own clock, from the request's head to the reply's end, for requests that completed.
    Gateway,
}

/// All series, in the order in which they are shown.
pub static SERIES: [Series; 18] = {
    use Measure as M;
    let seconds = Unit::Seconds;
    [
        worker("request/e2e_latency", M::E2eLatency, seconds),
        Series { name: "request/gateway_latency", unit: seconds, source: Source::Gateway },
        worker("request/queue_time", M::QueueTime, seconds),
        worker("prefill/bootstrap_queue_duration", M::PrefillBootstrapQueue, seconds),
        worker("prefill/bootstrap_duration", M::PrefillBootstrap, seconds),
        worker("prefill/alloc_wait_duration", M::PrefillAllocWait, seconds),
        Series { name: "prefill/queue_time", unit: seconds, source: Source::PrefillQueue },
        worker("prefill/forward_duration", M::PrefillForward, seconds),
        worker("prefill/transfer_queue_duration", M::PrefillTransferQueue, seconds),
        worker("prefill/transfer_speed_gb_s", M::TransferSpeed, Unit::GibPerSecond),
        worker("prefill/transfer_total_mb", M::TransferTotal, Unit::Mib),
        worker("prefill/retry_count", M::PrefillRetryCount, Unit::Count),
        worker("decode/prealloc_duration", M::DecodePrealloc, seconds),
        worker("decode/bootstrap_duration", M::DecodeBootstrap, seconds),
        worker("decode/alloc_wait_duration", M::DecodeAllocWait, seconds),
        worker("decode/transfer_duration", M::DecodeTransfer, seconds),
        worker("decode/forward_duration", M::DecodeForward, seconds),
        worker("decode/throughput", M::DecodeThroughput, Unit::TokensPerSecond),
    ]
};

const fn worker(name: &'static str, measure: Measure, unit: Unit) -> Series {
    Series { name, unit, source: Source::Worker(measure) }
}

// === impl Series ===

impl Series {
    /// Where in [`SERIES`] that of the gateway's own clock stands.
    pub(crate) const GATEWAY: usize = {
        let mut at = 0;
        while !matches!(SERIES[at].source, Source::Gateway) {
            at += 1;
        }
        at
    };

    /// Whether a prefill worker's value of a measure is its value.
    pub(crate) fn of_prefill(&self, measure: Measure) -> bool {
        match self.source {
            Source::Worker(own) => own == measure && measure.side() == Side::Prefill,
            Source::PrefillQueue => measure == Measure::QueueTime,
            Source::Gateway => false,
        }
    }

    /// Whether the value of a measure is its value, where the worker that answers reports it and no prefill worker has.
    pub(crate) fn of_answer(&self, measure: Measure) -> bool {
        self.source == Source::Worker(measure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_units_are_those_of_the_measures() {
        let names: std::collections::BTreeSet<_> = SERIES.iter().map(|series| series.name).collect();
        assert_eq!(names.len(), SERIES.len());
        for series in &SERIES {
            if let Source::Worker(measure) = series.source {
                assert_eq!(series.unit, measure.unit(), "{}", series.name);
            }
        }
    }
}
