//! The record of a forward pass, version 1.

/// No worker's name is longer, bytes: a subscriber keeps the name of each.
pub const MAX_WORKER_ID_BYTES: usize = 256;

/// One iteration of one rank's scheduler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForwardPassMetrics {
    /// Who served it, as the server was told to call itself; empty where it was not. Of [`MAX_WORKER_ID_BYTES`] at most.
    pub worker_id: Box<str>,
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// Number of the message, the same as that of the transport; 0 from publishers that do not fill it.
    pub counter_id: u64,
    /// Time of the forward pass itself, seconds; 0 in a heartbeat.
    pub wall_time: f64,
    /// What was computed.
    pub scheduled: ScheduledRequests,
    /// What was left waiting.
    pub queued: QueuedRequests,
}

/// The requests that took part in a forward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScheduledRequests {
    /// Requests of whose prompt a part was computed.
    pub num_prefill_requests: u64,
    /// Prompt tokens computed in this pass.
    pub sum_prefill_tokens: u64,
    /// Variance of the whole prompts' lengths, over the population; tokens squared.
    pub var_prefill_length: f64,
    /// Tokens of those prompts that the KV cache held before.
    pub sum_prefill_kv_tokens: u64,
    /// Requests that got their next token.
    pub num_decode_requests: u64,
    /// Tokens of their sequences.
    pub sum_decode_kv_tokens: u64,
    /// Variance of their sequences' lengths, over the population; tokens squared.
    pub var_decode_kv_tokens: f64,
}

/// The requests that waited meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueuedRequests {
    /// Requests whose prompt is to be computed.
    pub num_prefill_requests: u64,
    /// Tokens of their prompts.
    pub sum_prefill_tokens: u64,
    /// Variance of their prompts' lengths, over the population; tokens squared.
    pub var_prefill_length: f64,
    /// Requests whose prompt is computed, and whose KV cache is awaited or was given up.
    pub num_decode_requests: u64,
    /// Tokens of their sequences.
    pub sum_decode_kv_tokens: u64,
    /// Variance of their sequences' lengths, over the population; tokens squared.
    pub var_decode_kv_tokens: f64,
}

// === impl ForwardPassMetrics ===

impl ForwardPassMetrics {
    /// Whether it only says that the scheduler is there and has nothing to do.
    pub fn is_heartbeat(&self) -> bool {
        self.wall_time == 0.0
            && self.scheduled == ScheduledRequests::default()
            && self.queued == QueuedRequests::default()
    }
}
