//! A forward pass in the log.

use rollscope_trace::{ForwardPass, Nanos, PassLoad, StepNumber, UnixNs, WorkerRef};
use serde::{Deserialize, Serialize};

use super::is_default;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PassMirror<'a> {
    #[serde(skip_serializing_if = "is_default")]
    step: Option<u64>,
    endpoint: &'a str,
    #[serde(borrow, skip_serializing_if = "is_default")]
    worker_url: Option<&'a str>,
    #[serde(borrow, skip_serializing_if = "is_default")]
    worker_instance: Option<&'a str>,
    #[serde(skip_serializing_if = "is_default")]
    worker_id: &'a str,
    #[serde(skip_serializing_if = "is_default")]
    dp_rank: u32,
    #[serde(skip_serializing_if = "is_default")]
    life: u32,
    counter_id: u64,
    #[serde(skip_serializing_if = "is_default")]
    lost_before: u64,
    received_ns: i64,
    uncertainty_ns: u64,
    wall_ns: u64,
    scheduled: LoadMirror,
    queued: LoadMirror,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LoadMirror {
    // Zeros are left out, but for variances: of those there are two.
    #[serde(skip_serializing_if = "is_default")]
    prefill_requests: u64,
    #[serde(skip_serializing_if = "is_default")]
    prefill_tokens: u64,
    prefill_length_variance: f64,
    #[serde(skip_serializing_if = "is_default")]
    prefill_kv_tokens: u64,
    #[serde(skip_serializing_if = "is_default")]
    decode_requests: u64,
    #[serde(skip_serializing_if = "is_default")]
    decode_kv_tokens: u64,
    decode_kv_variance: f64,
}

// === impl PassMirror ===

impl<'a> PassMirror<'a> {
    pub(super) fn of(pass: &'a ForwardPass) -> Self {
        Self {
            step: pass.step.map(|step| step.0),
            endpoint: &pass.endpoint,
            worker_url: pass.worker.as_ref().map(|worker| &*worker.url),
            worker_instance: pass.worker.as_ref().map(|worker| &*worker.instance),
            worker_id: &pass.worker_id,
            dp_rank: pass.dp_rank,
            life: pass.life,
            counter_id: pass.counter_id,
            lost_before: pass.lost_before,
            received_ns: pass.received.0,
            uncertainty_ns: pass.uncertainty.0,
            wall_ns: pass.wall.0,
            scheduled: LoadMirror::of(&pass.scheduled),
            queued: LoadMirror::of(&pass.queued),
        }
    }

    pub(super) fn pass(self) -> ForwardPass {
        let worker = self.worker_url.zip(self.worker_instance);
        ForwardPass {
            step: self.step.map(StepNumber),
            endpoint: self.endpoint.into(),
            worker: worker.map(|(url, instance)| WorkerRef { url: url.into(), instance: instance.into() }),
            worker_id: self.worker_id.into(),
            dp_rank: self.dp_rank,
            life: self.life,
            counter_id: self.counter_id,
            lost_before: self.lost_before,
            received: UnixNs(self.received_ns),
            uncertainty: Nanos(self.uncertainty_ns),
            wall: Nanos(self.wall_ns),
            scheduled: self.scheduled.load(),
            queued: self.queued.load(),
        }
    }
}

// === impl LoadMirror ===

impl LoadMirror {
    fn of(load: &PassLoad) -> Self {
        Self {
            prefill_requests: load.prefill_requests,
            prefill_tokens: load.prefill_tokens,
            prefill_length_variance: load.prefill_length_variance,
            prefill_kv_tokens: load.prefill_kv_tokens,
            decode_requests: load.decode_requests,
            decode_kv_tokens: load.decode_kv_tokens,
            decode_kv_variance: load.decode_kv_variance,
        }
    }

    fn load(self) -> PassLoad {
        PassLoad {
            prefill_requests: self.prefill_requests,
            prefill_tokens: self.prefill_tokens,
            prefill_length_variance: self.prefill_length_variance,
            prefill_kv_tokens: self.prefill_kv_tokens,
            decode_requests: self.decode_requests,
            decode_kv_tokens: self.decode_kv_tokens,
            decode_kv_variance: self.decode_kv_variance,
        }
    }
}
