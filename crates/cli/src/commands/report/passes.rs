//! The forward passes that a sample's requests sat in, and who shared them.

use std::collections::BTreeMap;

use rollscope_insight::{Basis, LegPasses, Shared, request_passes};
use rollscope_run::Run;
use rollscope_trace::{ForwardPass, LegRole, RequestId, SampleKey, SampleTrace, StepTrace};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::table::{duration, significant};

/// The passes of a step, and where its requests belong.
pub(super) struct Passes<'a> {
    step: &'a StepTrace,
    heard: Vec<ForwardPass>,
    samples: BTreeMap<RequestId, &'a SampleKey>,
}

/// Others that are named of those who shared passes.
const COMPANY_SHOWN: usize = 5;

// === impl Passes ===

impl<'a> Passes<'a> {
    /// Those heard of in a step and in the one before: until the first request of a step has ended, passes may stand there.
    pub(super) fn read(run: &Run, step: &'a StepTrace) -> Result<Self, Failure> {
        let mut passes = run.forward_passes(step.step).map_err(anyhow::Error::from)?;
        let steps = run.steps().map_err(anyhow::Error::from)?;
        let before = steps.iter().map(|summary| summary.step).filter(|other| *other < step.step).max();
        if let Some(before) = before {
            passes.extend(run.forward_passes(before).map_err(anyhow::Error::from)?);
        }
        let samples = step
            .samples
            .iter()
            .flat_map(|sample| sample.requests.iter().map(move |request| (request.id, &sample.key)));
        Ok(Self { step, heard: passes, samples: samples.collect() })
    }

    /// A paragraph for each call of the sample of which passes are known.
    pub(super) fn lines(&self, sample: &SampleTrace) -> Vec<String> {
        let mut lines = Vec::new();
        for request in &sample.requests {
            for found in request_passes(self.step, request, &self.heard) {
                lines.extend(self.paragraph(&found));
            }
        }
        lines
    }

    fn paragraph(&self, found: &LegPasses<'_>) -> Vec<String> {
        let (Some(first), Some(last)) = (found.passes.first(), found.passes.last()) else {
            return Vec::new();
        };
        let basis = match found.basis {
            Basis::Exact => "",
            Basis::Estimate => "at most, by time alone: ",
        };
        let role = match found.role {
            LegRole::Regular => String::new(),
            role => format!("{} ", role.name()),
        };
        let mut lines = vec![format!(
            "{role}forward passes on {}: {basis}{}, {} of computing, {} requests in a pass on average (#{} to #{})",
            found.worker,
            found.passes.len(),
            duration(found.busy().as_secs_f64()),
            significant(found.mean_batch()),
            first.counter_id,
            last.counter_id,
        )];
        if let Some(slowest) = found.slowest() {
            let scheduled = &slowest.scheduled;
            lines.push(format!(
                "  slowest: #{}, {}, with {} prompt tokens of {} requests and {} decoding",
                slowest.counter_id,
                duration(slowest.wall.as_secs_f64()),
                scheduled.prefill_tokens,
                scheduled.prefill_requests,
                scheduled.decode_requests,
            ));
        }
        let (mixed, time) = found.mixed();
        if mixed > 0 {
            let time = duration(time.as_secs_f64());
            lines.push(format!("  {mixed} of them computed prompts beside next tokens: {time}"));
        }
        if found.lost > 0 {
            lines.push(format!("  {} passes between them were not heard of", found.lost));
        }
        if !found.shared.is_empty() {
            let named = found.shared.iter().take(COMPANY_SHOWN);
            let named: Vec<_> =
                named.map(|shared| format!("{} ({})", self.name(shared), shared.passes)).collect();
            let others = match found.shared.len().saturating_sub(COMPANY_SHOWN) {
                0 => String::new(),
                others => format!(" and {others} others"),
            };
            lines.push(format!("  shared with {}{others}", named.join(", ")));
        }
        lines
    }

    /// The same for programs.
    pub(super) fn json(&self, sample: &SampleTrace) -> Value {
        let requests = sample.requests.iter();
        let found = requests.flat_map(|request| {
            let legs = request_passes(self.step, request, &self.heard);
            legs.into_iter().map(|found| self.json_of(&request.id, &found)).collect::<Vec<_>>()
        });
        found.collect()
    }

    fn json_of(&self, request: &RequestId, found: &LegPasses<'_>) -> Value {
        let passes: Vec<Value> = found.passes.iter().map(|pass| pass_json(pass)).collect();
        let shared = found.shared.iter();
        let shared: Vec<Value> = shared
            .map(|shared| json!({"request": shared.request.to_string(), "sample": self.name(shared), "passes": shared.passes}))
            .collect();
        json!({
            "request": request.to_string(),
            "role": found.role.name(),
            "worker": found.worker,
            "exact": found.basis == Basis::Exact,
            "busy_s": found.busy().as_secs_f64(),
            "lost": found.lost,
            "shared": shared,
            "passes": passes,
        })
    }

    fn name(&self, shared: &Shared) -> String {
        self.samples.get(&shared.request).map_or_else(|| shared.request.to_string(), ToString::to_string)
    }
}

fn pass_json(pass: &ForwardPass) -> Value {
    let scheduled = &pass.scheduled;
    json!({
        "dp_rank": pass.dp_rank,
        "counter_id": pass.counter_id,
        "received_unix_ns": pass.received.0,
        "uncertainty_ns": pass.uncertainty.0,
        "wall_s": pass.wall.as_secs_f64(),
        "prefill_requests": scheduled.prefill_requests,
        "prefill_tokens": scheduled.prefill_tokens,
        "decode_requests": scheduled.decode_requests,
        "decode_kv_tokens": scheduled.decode_kv_tokens,
        "queued_requests": pass.queued.prefill_requests.saturating_add(pass.queued.decode_requests),
    })
}
