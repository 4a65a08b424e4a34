//! The forward passes that a sample's requests sat in, and who shared them.

use rollscope_insight::{Basis, Company, LegPasses, Shared, request_passes, time_of_passes};
use rollscope_run::Run;
use rollscope_trace::{ForwardPass, LegRole, RequestId, SampleTrace, StepNumber, StepTrace};
use serde_json::{Value, json};

use super::read;
use crate::exit::Failure;
use crate::table::{duration, significant};

/// The passes that samples of a step may have sat in, and who else did.
pub(super) struct Passes {
    step: StepNumber,
    heard: Vec<ForwardPass>,
    company: Company,
}

/// Others that are named of those who shared passes.
const COMPANY_SHOWN: usize = 5;

// === impl Passes ===

impl Passes {
    /// Those of the time of a step's requests, and the requests of all steps that went on then: of the steps before and after,
    /// as far as they reach into it.
    pub(super) fn read(run: &Run, step: &StepTrace) -> Result<Self, Failure> {
        let mut passes = Self { step: step.step, heard: Vec::new(), company: Company::default() };
        let Some(time) = time_of_passes(step.requests()) else { return Ok(passes) };
        passes.heard = run.passes_within(step.step, &time).map_err(anyhow::Error::from)?;
        if passes.heard.is_empty() {
            return Ok(passes);
        }
        let steps = run.steps().map_err(anyhow::Error::from)?;
        let steps = steps.into_iter().filter(|summary| summary.requests > 0);
        let steps: Vec<StepNumber> = steps.map(|summary| summary.step).collect();
        passes.company = Company::around(step.step, &steps, |company, other| {
            Ok::<_, Failure>(if other == step.step {
                company.add(step, &time)
            } else {
                company.add(&read(run, other)?, &time)
            })
        })?;
        Ok(passes)
    }

    /// A paragraph for each call of the sample of which passes are known.
    pub(super) fn lines(&self, sample: &SampleTrace) -> Vec<String> {
        let requests = request_passes(&sample.requests, &self.heard, &self.company);
        requests.iter().flatten().flat_map(|found| self.paragraph(found)).collect()
    }

    fn paragraph(&self, found: &LegPasses<'_>) -> Vec<String> {
        let (Some(first), Some(last)) = (found.passes.first(), found.passes.last()) else {
            return Vec::new();
        };
        let basis = match found.basis {
            Basis::Exact => "",
            Basis::Estimate => "at most, by time alone: ",
            Basis::Unnamed => {
                "at most, by time alone, and maybe another worker's, as it is not known whose they are: "
            }
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
        lines.extend(missing(found));
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
        let calls = request_passes(&sample.requests, &self.heard, &self.company);
        let requests = sample.requests.iter().zip(&calls);
        requests.flat_map(|(request, calls)| calls.iter().map(|found| json_of(&request.id, found))).collect()
    }

    fn name(&self, shared: &Shared) -> String {
        match shared.sample.step {
            step if step == self.step => shared.sample.to_string(),
            step => format!("{} of step {step}", shared.sample),
        }
    }
}

/// What is known of told numbers without a pass.
fn missing(found: &LegPasses<'_>) -> Option<String> {
    let of_told = format!("{} of the {} numbers that the worker told", found.not_found(), found.told);
    match (found.not_found(), found.lost) {
        (0, _) => None,
        (_, 0) => Some(format!("  {of_told} are no pass, as far as can be told")),
        (_, lost) => Some(format!("  {of_told} were not found; at least {lost} of them were passes")),
    }
}

fn json_of(request: &RequestId, found: &LegPasses<'_>) -> Value {
    let passes: Vec<Value> = found.passes.iter().map(|pass| pass_json(pass)).collect();
    let shared = found.shared.iter();
    let shared: Vec<Value> = shared
        .map(|shared| {
            json!({"request": shared.request.to_string(), "step": shared.sample.step.0,
            "sample": shared.sample.to_string(), "passes": shared.passes})
        })
        .collect();
    json!({
        "request": request.to_string(),
        "role": found.role.name(),
        "worker": found.worker,
        "exact": found.basis == Basis::Exact,
        "basis": found.basis.name(),
        "busy_s": found.busy().as_secs_f64(),
        "told": found.told,
        "not_found": found.not_found(),
        "lost_at_least": found.lost,
        "shared": shared,
        "passes": passes,
    })
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
