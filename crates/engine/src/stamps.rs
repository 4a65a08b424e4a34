//! The moments of a request's life, and the durations that a reply reports of them.
//!
//! Moments are taken where they happen and only once, unless said otherwise. What was not taken gives no key: a missing
//! value is not zero. The formulas are those of SGLang's request time statistics and slime's `pd_*` keys:
//!
//! ```text
//! prefill:  bootstrap_queue_entry → bootstrap_done → wait_queue_entry → forward_entry → transfer_queue_entry → completion
//!           |------- bootstrap --------|--- alloc_wait ---|               |                  |- transfer_queue -|
//!           |------------ bootstrap_queue ---------------|                |------------- forward -------------|
//! decode:   prealloc_queue_entry → bootstrap_done → transfer_queue_entry → wait_queue_entry → forward_entry → completion
//!           |------- bootstrap -----|--- alloc_wait ---|------ transfer ------|                 |-- forward --|
//!           |------------- prealloc -------------------|
//! ```

use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::Number;

use crate::clock::{Clock, Stamp};
use crate::disagg::PrefillTiming;
use crate::options::DisaggregationMode;

/// The moments of one request on this server.
#[derive(Clone, Debug)]
pub(crate) struct Stamps {
    /// The HTTP request had been read.
    pub(crate) created: Stamp,
    /// The API had handed the request to the scheduler.
    pub(crate) dispatched: Option<Stamp>,
    /// Prefill: the scheduler had taken it into the bootstrap queue.
    pub(crate) bootstrap_queue_entry: Option<Stamp>,
    /// Decode: the scheduler had taken it into the prealloc queue.
    pub(crate) prealloc_queue_entry: Option<Stamp>,
    /// The other side was known to be there: on prefill its allocation had been announced, on decode the connection to
    /// the prefill server had been agreed on.
    pub(crate) bootstrap_done: Option<Stamp>,
    /// Prefill: the last chunk was ready to be sent. Decode: the allocation was announced.
    pub(crate) transfer_queue_entry: Option<Stamp>,
    /// It entered the waiting queue.
    pub(crate) wait_queue_entry: Option<Stamp>,
    /// It first took part in a forward pass; on decode, joined the running batch.
    pub(crate) forward_entry: Option<Stamp>,
    /// The prompt was computed and the first token chosen; on decode, taken over.
    pub(crate) prefill_finished: Option<Stamp>,
    /// Its last token was chosen; on prefill, the decode server had confirmed the transfer.
    pub(crate) completion: Option<Stamp>,
    /// The API saw that it had ended.
    pub(crate) finished: Option<Stamp>,
    /// Prefill: what was transferred.
    pub(crate) transfer: Option<Transferred>,
    /// The forward passes that it took part in, as they are published.
    pub(crate) passes: Option<Passes>,
    /// Decode: what the metadata row said of the prefill side.
    pub(crate) prefill: Option<PrefillTiming>,
}

/// Numbers of forward passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passes {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// A KV transfer, as its sender measured it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Transferred {
    /// Bytes of pages and metadata row, all confirmed.
    pub(crate) bytes: u64,
    /// Time during which some of them were under way.
    pub(crate) busy_s: f64,
}

/// The keys of `meta_info` that come from stamps, in order, each with its value.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Timings(Vec<(&'static str, Number)>);

const MIB: f64 = 1024.0 * 1024.0;

// === impl Stamps ===

impl Stamps {
    pub(crate) fn new(created: Stamp) -> Self {
        Self {
            created,
            dispatched: None,
            bootstrap_queue_entry: None,
            prealloc_queue_entry: None,
            bootstrap_done: None,
            transfer_queue_entry: None,
            wait_queue_entry: None,
            forward_entry: None,
            prefill_finished: None,
            completion: None,
            finished: None,
            transfer: None,
            passes: None,
            prefill: None,
        }
    }

    /// It took part in a forward pass.
    pub(crate) fn took_part(&mut self, pass: u64) {
        self.passes.get_or_insert(Passes { first: pass, last: pass }).last = pass;
    }

    /// What a reply written at `sent` reports after `completion_tokens` tokens. Durations are seconds, `…_ts` and `…_time` are
    /// seconds since the Unix epoch.
    pub(crate) fn timings(
        &self,
        mode: DisaggregationMode,
        clock: &Clock,
        (completion_tokens, sent): (usize, Stamp),
    ) -> Timings {
        let anchor = clock.anchor();
        let unix = |stamp: Option<Stamp>| stamp.map(|stamp| anchor.unix_s(stamp));
        let mut timings = Timings::default();
        timings.add("e2e_latency", seconds(Some(self.created), self.finished));
        timings.add("queue_time", seconds(self.wait_queue_entry, self.forward_entry));
        timings.add("decode_throughput", self.decode_throughput(completion_tokens));
        timings.add("request_received_ts", unix(Some(self.created)));
        timings.add("api_server_dispatch_finish_ts", unix(self.dispatched));
        timings.add("forward_entry_time", unix(self.forward_entry));
        timings.add("prefill_finished_time", unix(self.prefill_finished));
        timings.add("request_finished_ts", unix(self.finished));
        timings.add("response_sent_to_client_ts", self.finished.and(unix(Some(sent))));
        if let Some(Passes { first, last }) = self.passes {
            timings.0.push(("forward_pass_first_counter_id", first.into()));
            timings.0.push(("forward_pass_last_counter_id", last.into()));
        }
        match mode {
            DisaggregationMode::Null => {}
            DisaggregationMode::Prefill => self.add_prefill_stages(&mut timings),
            DisaggregationMode::Decode => self.add_decode_stages(&mut timings),
        }
        timings
    }

    /// Tokens a second after the first.
    fn decode_throughput(&self, completion_tokens: usize) -> Option<f64> {
        let tokens = completion_tokens.checked_sub(1).filter(|tokens| *tokens > 0)?;
        let decoding_s = seconds(self.prefill_finished, self.completion).filter(|seconds| *seconds > 0.0)?;
        Some(tokens as f64 / decoding_s)
    }

    fn add_prefill_stages(&self, timings: &mut Timings) {
        let (queued, waiting) = (self.bootstrap_queue_entry, self.wait_queue_entry);
        timings.add("pd_prefill_bootstrap_queue_duration", seconds(queued, waiting));
        timings.add("pd_prefill_bootstrap_duration", seconds(queued, self.bootstrap_done));
        timings.add("pd_prefill_alloc_wait_duration", seconds(self.bootstrap_done, waiting));
        timings.add("pd_prefill_forward_duration", seconds(self.forward_entry, self.completion));
        timings
            .add("pd_prefill_transfer_queue_duration", seconds(self.transfer_queue_entry, self.completion));
        timings.add("pd_transfer_speed_gb_s", self.transfer.and_then(Transferred::speed_gib_s));
        timings.add("pd_transfer_total_mb", self.transfer.map(|transfer| transfer.bytes as f64 / MIB));
        timings.add_retry_count();
    }

    fn add_decode_stages(&self, timings: &mut Timings) {
        let (queued, transferring) = (self.prealloc_queue_entry, self.transfer_queue_entry);
        timings.add("pd_decode_prealloc_duration", seconds(queued, transferring));
        timings.add("pd_decode_bootstrap_duration", seconds(queued, self.bootstrap_done));
        timings.add("pd_decode_alloc_wait_duration", seconds(self.bootstrap_done, transferring));
        timings.add("pd_decode_transfer_duration", seconds(transferring, self.wait_queue_entry));
        timings.add("pd_decode_forward_duration", seconds(self.forward_entry, self.completion));
        if let Some(prefill) = self.prefill {
            timings.add_prefill(prefill);
        }
    }

    /// Seconds between becoming ready to be computed and being computed.
    pub(crate) fn queue_s(&self) -> Option<f64> {
        seconds(self.wait_queue_entry, self.forward_entry)
    }

    /// Seconds from the arrival to the first token.
    pub(crate) fn first_token_s(&self) -> Option<f64> {
        seconds(Some(self.created), self.prefill_finished)
    }

    /// Seconds from the arrival to the last token.
    pub(crate) fn whole_s(&self) -> Option<f64> {
        seconds(Some(self.created), self.completion)
    }

    /// Seconds of each stage, by the names of SGLang's traces. A server has those of its place in a pair.
    pub(crate) fn stages_s(&self) -> [(&'static str, Option<f64>); 6] {
        let (transferring, waiting) = (self.transfer_queue_entry, self.wait_queue_entry);
        let computed = self.prefill_finished.filter(|_| self.prealloc_queue_entry.is_none());
        let received = transferring.filter(|_| self.prealloc_queue_entry.is_some());
        let sending = transferring.filter(|_| self.bootstrap_queue_entry.is_some());
        [
            ("prefill_bootstrap", seconds(self.bootstrap_queue_entry, waiting)),
            ("prefill_forward", seconds(self.forward_entry, computed)),
            ("prefill_transfer_kv_cache", seconds(sending, self.completion)),
            ("decode_bootstrap", seconds(self.prealloc_queue_entry, transferring)),
            ("decode_transferred", seconds(received, waiting)),
            ("decode_waiting", seconds(received.and(waiting), self.forward_entry)),
        ]
    }

    /// Prefill: seconds until the decode side was there, and from then until there was a metadata slot.
    pub(crate) fn before_prefill_s(&self) -> (Option<f64>, Option<f64>) {
        let bootstrap = seconds(self.bootstrap_queue_entry, self.bootstrap_done);
        (bootstrap, seconds(self.bootstrap_done, self.wait_queue_entry))
    }

    /// What a metadata row can tell of the stages: those before the transfer. With it ends `forward` too.
    pub(crate) fn prefill_timing(&self) -> PrefillTiming {
        let (queued, waiting) = (self.bootstrap_queue_entry, self.wait_queue_entry);
        let of = |from, to| span(from, to).unwrap_or_default();
        PrefillTiming {
            bootstrap_queue: of(queued, waiting),
            bootstrap: of(queued, self.bootstrap_done),
            alloc_wait: of(self.bootstrap_done, waiting),
        }
    }
}

// === impl Timings ===

impl Timings {
    /// What a metadata row said; 0 there is what was not known.
    fn add_prefill(&mut self, timing: PrefillTiming) {
        for (name, value) in [
            ("pd_prefill_bootstrap_queue_duration", timing.bootstrap_queue),
            ("pd_prefill_bootstrap_duration", timing.bootstrap),
            ("pd_prefill_alloc_wait_duration", timing.alloc_wait),
        ] {
            self.add(name, (!value.is_zero()).then_some(value.as_secs_f64()));
        }
        self.add_retry_count();
    }

    /// Nothing is computed before the decode side has announced itself, so nothing is ever taken back.
    fn add_retry_count(&mut self) {
        self.0.push(("pd_prefill_retry_count", 0.into()));
    }

    fn add(&mut self, name: &'static str, value: Option<f64>) {
        self.0.extend(value.and_then(Number::from_f64).map(|value| (name, value)));
    }
}

impl Serialize for Timings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

// === impl Transferred ===

impl Transferred {
    /// 2^30 bytes per second; `None` for a duration that was too short to measure.
    pub(crate) fn speed_gib_s(self) -> Option<f64> {
        (self.busy_s > 0.0).then(|| self.bytes as f64 / MIB / 1024.0 / self.busy_s)
    }
}

/// Seconds from one moment to another, if both were taken and in this order.
fn seconds(from: Option<Stamp>, to: Option<Stamp>) -> Option<f64> {
    span(from, to).map(|span| span.as_secs_f64())
}

fn span(from: Option<Stamp>, to: Option<Stamp>) -> Option<Duration> {
    let (from, to) = from.zip(to)?;
    (to >= from).then(|| to.since(from))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The keys and values, without the ones that are wall time.
    fn check(stamps: &Stamps, mode: DisaggregationMode, tokens: usize, expected: &[(&str, f64)]) {
        let clock = Clock::new();
        let timings = stamps.timings(mode, &clock, (tokens, clock.now()));
        let durations =
            timings.0.iter().filter(|(name, _)| !name.ends_with("_ts") && !name.ends_with("_time"));
        let durations: Vec<_> = durations.map(|(name, value)| (*name, value.as_f64().unwrap())).collect();
        assert_eq!(durations, expected);
    }

    #[test]
    fn a_stamp_that_was_not_taken_gives_no_key() {
        let stamps = Stamps::new(Clock::new().now());
        check(&stamps, DisaggregationMode::Null, 0, &[]);
        check(&stamps, DisaggregationMode::Decode, 0, &[]);
        check(&stamps, DisaggregationMode::Prefill, 0, &[("pd_prefill_retry_count", 0.0)]);
    }

    #[test]
    fn stages_are_differences_of_their_moments() {
        let start = Clock::new().now();
        let at = |ms: u64| Some(start.after(Duration::from_millis(ms)));
        let mut stamps = Stamps::new(start);
        (stamps.bootstrap_queue_entry, stamps.bootstrap_done) = (at(1), at(3));
        (stamps.wait_queue_entry, stamps.forward_entry) = (at(7), at(15));
        (stamps.transfer_queue_entry, stamps.completion) = (at(31), at(63));
        (stamps.finished, stamps.transfer) = (at(127), Some(Transferred { bytes: 1 << 20, busy_s: 0.5 }));
        check(
            &stamps,
            DisaggregationMode::Prefill,
            1,
            &[
                ("e2e_latency", 0.127),
                ("pd_prefill_bootstrap_queue_duration", 0.006),
                ("pd_prefill_bootstrap_duration", 0.002),
                ("pd_prefill_alloc_wait_duration", 0.004),
                ("pd_prefill_forward_duration", 0.048),
                ("pd_prefill_transfer_queue_duration", 0.032),
                ("pd_transfer_speed_gb_s", 2.0 / 1024.0),
                ("pd_transfer_total_mb", 1.0),
                ("pd_prefill_retry_count", 0.0),
            ],
        );
        (stamps.prealloc_queue_entry, stamps.bootstrap_done) = (at(1), at(3));
        (stamps.transfer_queue_entry, stamps.wait_queue_entry) = (at(7), at(15));
        (stamps.forward_entry, stamps.prefill_finished) = (at(31), at(31));
        check(
            &stamps,
            DisaggregationMode::Decode,
            9,
            &[
                ("e2e_latency", 0.127),
                ("decode_throughput", 8.0 / 0.032),
                ("pd_decode_prealloc_duration", 0.006),
                ("pd_decode_bootstrap_duration", 0.002),
                ("pd_decode_alloc_wait_duration", 0.004),
                ("pd_decode_transfer_duration", 0.008),
                ("pd_decode_forward_duration", 0.032),
            ],
        );
    }

    #[test]
    fn no_duration_is_negative_and_one_token_has_no_throughput() {
        let start = Clock::new().now();
        let later = start.after(Duration::from_secs(2));
        assert_eq!(seconds(Some(later), Some(start)), None);
        let mut stamps = Stamps::new(start);
        (stamps.prefill_finished, stamps.completion) = (Some(start), Some(later));
        let throughput = |tokens| stamps.decode_throughput(tokens);
        assert_eq!((throughput(0), throughput(1), throughput(5)), (None, None, Some(2.0)));
        stamps.completion = Some(start);
        assert_eq!(stamps.decode_throughput(5), None);
    }
}
