//! Every number that a worker can report of a request: one table of names, units and bounds.

/// A number that a worker reports in `meta_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Measure {
    /// Prefill: from arrival to the waiting queue; contains bootstrap and alloc wait.
    PrefillBootstrapQueue,
    /// Prefill: until the decode side had announced where the KV cache goes.
    PrefillBootstrap,
    /// Prefill: from then until the request could be queued for a forward pass.
    PrefillAllocWait,
    /// Prefill: from the first forward pass to the end of the transfer; contains the transfer queue.
    PrefillForward,
    /// Prefill: from the last chunk's hand-over to the end of the transfer.
    PrefillTransferQueue,
    /// Decode: from arrival to the transfer queue; contains bootstrap and alloc wait.
    DecodePrealloc,
    /// Decode: until the handshake with the prefill worker was done.
    DecodeBootstrap,
    /// Decode: from then until KV pages were allocated.
    DecodeAllocWait,
    /// Decode: waiting for the KV cache to arrive.
    DecodeTransfer,
    /// Decode: from joining the running batch to the last token.
    DecodeForward,
    /// Speed of the KV transfer.
    TransferSpeed,
    /// Size of the KV transfer.
    TransferTotal,
    /// Prefill attempts that were taken back.
    PrefillRetryCount,
    /// Time in the waiting queue.
    QueueTime,
    /// From the worker's receipt of the request to its end.
    E2eLatency,
    /// Tokens after the first, over the time from the first to the last.
    DecodeThroughput,
    /// Wall time at which the worker received the request.
    RequestReceivedTs,
    /// Wall time at which its API process had handed the request to the scheduler.
    ApiServerDispatchFinishTs,
    /// Wall time of the first forward pass.
    ForwardEntryTime,
    /// Wall time at which the prompt was computed.
    PrefillFinishedTime,
    /// Wall time at which the request was finished.
    RequestFinishedTs,
    /// Wall time at which the reply was written.
    ResponseSentToClientTs,
    /// Tokens of the prompt.
    PromptTokens,
    /// Tokens generated.
    CompletionTokens,
    /// Tokens of the prompt that the prefix cache held.
    CachedTokens,
    /// Times the request was put back for want of memory.
    NumRetractions,
    /// Data-parallel rank that served it.
    DpRank,
    /// Draft tokens of speculative decoding that were accepted.
    SpecAcceptTokens,
    /// Draft tokens that were proposed.
    SpecDraftTokens,
    /// Verifications of drafts.
    SpecVerifyCount,
    /// Number of the first forward pass that the request sat in, as its rank publishes them.
    ForwardPassFirst,
    /// Number of the last.
    ForwardPassLast,
}

/// The worker of a prefill/decode pair whose value of a measure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The prefill worker's.
    Prefill,
    /// The worker's that answers: decode, or the only one.
    Answer,
}

/// Unit of a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Seconds since the Unix epoch.
    UnixSeconds,
    /// A count of tokens.
    Tokens,
    /// Tokens per second.
    TokensPerSecond,
    /// A count of anything else, or a rank.
    Count,
    /// A number in a sequence that never ends.
    Sequence,
    /// 2^30 bytes per second, as SGLang computes its `…_gb_s`.
    GibPerSecond,
    /// 2^20 bytes, as SGLang computes its `…_mb`.
    Mib,
}

/// A row of the table.
struct Row {
    measure: Measure,
    /// Key in `meta_info`.
    name: &'static str,
    /// Older spellings of the key.
    aliases: &'static [&'static str],
    unit: Unit,
    side: Side,
}

const fn row(measure: Measure, name: &'static str, unit: Unit, side: Side) -> Row {
    Row { measure, name, aliases: &[], unit, side }
}

impl Row {
    const fn also(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }
}

/// In the order of the enum, so that a measure is its row's index.
const TABLE: &[Row] = {
    use Measure as M;
    use Side::{Answer, Prefill};
    use Unit::{Count, GibPerSecond, Mib, Seconds, Sequence, Tokens, TokensPerSecond, UnixSeconds};
    &[
        row(M::PrefillBootstrapQueue, "pd_prefill_bootstrap_queue_duration", Seconds, Prefill)
            .also(&["fwd_prefill_bootstrap_queue_duration"]),
        row(M::PrefillBootstrap, "pd_prefill_bootstrap_duration", Seconds, Prefill)
            .also(&["fwd_prefill_bootstrap_duration", "pd_bootstrap_duration"]),
        row(M::PrefillAllocWait, "pd_prefill_alloc_wait_duration", Seconds, Prefill)
            .also(&["fwd_prefill_alloc_wait_duration", "pd_alloc_waiting_duration"]),
        row(M::PrefillForward, "pd_prefill_forward_duration", Seconds, Prefill)
            .also(&["fwd_prefill_forward_duration"]),
        row(M::PrefillTransferQueue, "pd_prefill_transfer_queue_duration", Seconds, Prefill)
            .also(&["fwd_prefill_transfer_queue_duration"]),
        row(M::DecodePrealloc, "pd_decode_prealloc_duration", Seconds, Answer),
        row(M::DecodeBootstrap, "pd_decode_bootstrap_duration", Seconds, Answer),
        row(M::DecodeAllocWait, "pd_decode_alloc_wait_duration", Seconds, Answer),
        row(M::DecodeTransfer, "pd_decode_transfer_duration", Seconds, Answer),
        row(M::DecodeForward, "pd_decode_forward_duration", Seconds, Answer),
        row(M::TransferSpeed, "pd_transfer_speed_gb_s", GibPerSecond, Prefill)
            .also(&["fwd_transfer_speed_gb_s"]),
        row(M::TransferTotal, "pd_transfer_total_mb", Mib, Prefill).also(&["fwd_transfer_total_mb"]),
        row(M::PrefillRetryCount, "pd_prefill_retry_count", Count, Prefill)
            .also(&["fwd_prefill_retry_count"]),
        row(M::QueueTime, "queue_time", Seconds, Answer),
        row(M::E2eLatency, "e2e_latency", Seconds, Answer),
        row(M::DecodeThroughput, "decode_throughput", TokensPerSecond, Answer),
        row(M::RequestReceivedTs, "request_received_ts", UnixSeconds, Answer),
        row(M::ApiServerDispatchFinishTs, "api_server_dispatch_finish_ts", UnixSeconds, Answer),
        row(M::ForwardEntryTime, "forward_entry_time", UnixSeconds, Answer),
        row(M::PrefillFinishedTime, "prefill_finished_time", UnixSeconds, Answer),
        row(M::RequestFinishedTs, "request_finished_ts", UnixSeconds, Answer),
        row(M::ResponseSentToClientTs, "response_sent_to_client_ts", UnixSeconds, Answer),
        row(M::PromptTokens, "prompt_tokens", Tokens, Answer),
        row(M::CompletionTokens, "completion_tokens", Tokens, Answer),
        row(M::CachedTokens, "cached_tokens", Tokens, Prefill),
        row(M::NumRetractions, "num_retractions", Count, Answer).also(&["total_retractions"]),
        row(M::DpRank, "dp_rank", Count, Answer),
        row(M::SpecAcceptTokens, "spec_accept_token_num", Tokens, Answer),
        row(M::SpecDraftTokens, "spec_draft_token_num", Tokens, Answer),
        row(M::SpecVerifyCount, "spec_verify_ct", Tokens, Answer),
        row(M::ForwardPassFirst, "forward_pass_first_counter_id", Sequence, Answer),
        row(M::ForwardPassLast, "forward_pass_last_counter_id", Sequence, Answer),
    ]
};

/// The names, each where [`slot_of`] it is or in the next that is free: every request that is recorded asks for dozens.
static SLOTS: [Option<(&str, Measure)>; 256] = {
    let (mut slots, mut at) = ([None; 256], 0);
    while at < TABLE.len() {
        let row = &TABLE[at];
        let mut spelling = 0;
        while spelling <= row.aliases.len() {
            let name = if spelling == 0 { row.name } else { row.aliases[spelling - 1] };
            let mut slot = slot_of(name);
            while slots[slot].is_some() {
                slot = (slot + 1) % slots.len();
            }
            slots[slot] = Some((name, row.measure));
            spelling += 1;
        }
        at += 1;
    }
    slots
};

/// By the name's length and its last 16 bytes, in which all names differ.
const fn slot_of(name: &str) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (before, last) = last_word(name.as_bytes());
    let (_, before_last) = last_word(before);
    let hash = (name.len() as u64 ^ last).wrapping_mul(ODD) ^ before_last;
    (hash.wrapping_mul(ODD) >> 56) as usize
}

/// The last eight bytes, or what there is, and what is before them.
const fn last_word(text: &[u8]) -> (&[u8], u64) {
    if let Some((before, last)) = text.split_last_chunk() {
        return (before, u64::from_le_bytes(*last));
    }
    let (mut word, mut at) = (0, 0);
    while at < text.len() {
        word = word << 8 | text[at] as u64;
        at += 1;
    }
    (&[], word)
}

// === impl Measure ===

impl Measure {
    /// How many there are; no more than a set has bits for.
    pub(crate) const COUNT: usize = TABLE.len();
    /// Every measure, in the order of the enum.
    pub(crate) const ALL: [Self; Self::COUNT] = {
        assert!(Self::COUNT <= 64);
        let (mut all, mut at) = ([TABLE[0].measure; Self::COUNT], 0);
        while at < Self::COUNT {
            all[at] = TABLE[at].measure;
            at += 1;
        }
        all
    };

    /// Every measure, in the order of the enum.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter()
    }

    /// The measure that a `meta_info` key names, be it the current or an older spelling.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut slot = slot_of(name);
        while let Some((known, measure)) = SLOTS[slot] {
            if known == name {
                return Some(measure);
            }
            slot = (slot + 1) % SLOTS.len();
        }
        None
    }

    /// Its key in `meta_info`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Its unit.
    pub const fn unit(self) -> Unit {
        self.row().unit
    }

    /// Whose value counts in a prefill/decode pair.
    pub fn side(self) -> Side {
        self.row().side
    }

    /// The largest value that can be true; what is beyond it was not measured but made up by an overflow, an
    /// unset stamp or a unit mistaken.
    pub(crate) fn largest_plausible(self) -> f64 {
        match self.unit() {
            Unit::Seconds => 7.0 * 86_400.0,
            Unit::UnixSeconds => 4_102_444_800.0, // the year 2100
            Unit::Tokens => 1e9,
            Unit::TokensPerSecond | Unit::Count => 1e6,
            Unit::Sequence => 9_007_199_254_740_992.0, // beyond 2^53 it would not be exact
            Unit::GibPerSecond => 2_000.0,             // above any interconnect of today
            Unit::Mib => 16.0 * 1024.0 * 1024.0,
        }
    }

    const fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum_and_names_are_unique() {
        let mut names = std::collections::BTreeSet::new();
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.measure as usize, index, "{}", row.name);
            for name in std::iter::once(&row.name).chain(row.aliases) {
                assert!(names.insert(*name), "{name} stands twice");
                assert_eq!(Measure::from_name(name), Some(row.measure));
            }
        }
        assert_eq!(Measure::from_name("pd_prefill_sleep"), None);
    }
}
