//! A forward pass: one iteration of a scheduler, as it was heard of while the run was recorded.

use crate::ids::{StepNumber, WorkerRef};
use crate::time::{Nanos, UnixNs};

/// One iteration of one rank's scheduler. What its server says of it carries neither a time nor requests: it is placed by
/// when it was heard of.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardPass {
    /// The step that was going on, as far as was known.
    pub step: Option<StepNumber>,
    /// Address that it was published at.
    pub endpoint: Box<str>,
    /// The worker whose endpoint that is, where it was found by asking the worker.
    pub worker: Option<WorkerRef>,
    /// What the server calls itself; often empty.
    pub worker_id: Box<str>,
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// How often its publisher had been started anew, here or elsewhere: a number is unique within one life.
    pub life: u32,
    /// Its number, counted by the publisher.
    pub counter_id: u64,
    /// Messages lost just before it.
    pub lost_before: u64,
    /// When it was heard of, by the recorder's clock. It had ended by then.
    pub received: UnixNs,
    /// It ended at most so long before it was heard of, if the network was not at fault.
    pub uncertainty: Nanos,
    /// Time of the forward pass itself.
    pub wall: Nanos,
    /// What was computed.
    pub scheduled: PassLoad,
    /// What was left waiting.
    pub queued: PassLoad,
}

/// Requests of a forward pass, by what is computed of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassLoad {
    /// Requests at their prompt.
    pub prefill_requests: u64,
    /// Prompt tokens: those computed; of what waits, all.
    pub prefill_tokens: u64,
    /// Variance of the prompts' lengths, tokens squared.
    pub prefill_length_variance: f64,
    /// Tokens of the prompts that were in the KV cache before; not told of what waits.
    pub prefill_kv_tokens: u64,
    /// Requests at their next token.
    pub decode_requests: u64,
    /// Tokens of their sequences.
    pub decode_kv_tokens: u64,
    /// Variance of their sequences' lengths, tokens squared.
    pub decode_kv_variance: f64,
}

// === impl ForwardPass ===

impl ForwardPass {
    /// A pass of rank 0, of no known step, that took no time and computed nothing.
    pub fn new(endpoint: &str, counter_id: u64, received: UnixNs) -> Self {
        Self {
            step: None,
            endpoint: endpoint.into(),
            worker: None,
            worker_id: "".into(),
            dp_rank: 0,
            life: 0,
            counter_id,
            lost_before: 0,
            received,
            uncertainty: Nanos(0),
            wall: Nanos(0),
            scheduled: PassLoad::default(),
            queued: PassLoad::default(),
        }
    }

    /// Whether it is none, and only tells that the rank had nothing to compute and nothing waiting: such a record stands where a
    /// rank came to rest.
    pub fn is_rest(&self) -> bool {
        self.wall == Nanos(0) && self.scheduled == PassLoad::default() && self.queued == PassLoad::default()
    }

    /// The earliest that it can have begun.
    pub fn earliest_start(&self) -> UnixNs {
        let before = self.wall.plus(self.uncertainty);
        self.received.offset_by(i64::try_from(before.0).unwrap_or(i64::MAX).saturating_neg())
    }
}
