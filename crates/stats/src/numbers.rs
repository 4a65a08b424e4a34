//! The numbers of a step: figures under the names that trackers know.

use std::collections::BTreeMap;

use rollscope_trace::{Fault, Nanos, Outcome, StepNumber, StepTrace};

use crate::distribution::Distribution;
use crate::figures::Figures;

/// Rewards that are told apart in `zero_std/count_…`; with more, only the total is given, so that the set of
/// names stays bounded.
const MOST_ZERO_STD_REWARDS: usize = 16;

/// The numbers of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepNumbers {
    /// Which step.
    pub step: StepNumber,
    /// What trackers are sent: `perf/…` and `rollout/…` of the training samples, `eval/…` of the others. All
    /// finite.
    pub metrics: BTreeMap<String, f64>,
    /// Of the training samples.
    pub training: Figures,
    /// Of the evaluation samples, if there are any.
    pub evaluation: Option<Figures>,
}

/// Where names of a population begin.
struct Prefixes {
    perf: &'static str,
    rollout: &'static str,
}

/// Collects numbers by name.
struct Names {
    metrics: BTreeMap<String, f64>,
    prefix: &'static str,
}

/// Reduces a step to its numbers. Of a step that is still open, to those so far.
pub fn step_numbers(trace: &StepTrace) -> StepNumbers {
    let (evaluation, training): (Vec<_>, Vec<_>) =
        trace.samples.iter().partition(|sample| sample.mark.evaluation);
    let mut training = Figures::of(&training);
    if let Some(close) = &trace.close {
        training.rollout_time = close.rollout_time.or(training.rollout_time);
        training.gpus = close.gpus.filter(|gpus| *gpus > 0);
    }
    let evaluation = (!evaluation.is_empty()).then(|| Figures::of(&evaluation));

    let mut names = Names { metrics: BTreeMap::new(), prefix: "" };
    if training.samples > 0 || evaluation.is_none() {
        names.figures(&training, &Prefixes { perf: "perf", rollout: "rollout" });
    }
    if let Some(evaluation) = &evaluation {
        names.figures(evaluation, &Prefixes { perf: "eval", rollout: "eval" });
    }
    StepNumbers { step: trace.step, metrics: names.metrics, training, evaluation }
}

// === impl StepNumbers ===

impl StepNumbers {
    /// Figures of the samples that the step is judged by: those of training, or the evaluation where it is all
    /// there is.
    pub fn shown(&self) -> &Figures {
        match &self.evaluation {
            Some(evaluation) if self.training.samples == 0 => evaluation,
            _ => &self.training,
        }
    }
}

// === impl Names ===

impl Names {
    fn figures(&mut self, figures: &Figures, prefixes: &Prefixes) {
        self.prefix = prefixes.perf;
        self.perf(figures);
        self.prefix = prefixes.rollout;
        self.rollout(figures);
    }

    fn perf(&mut self, figures: &Figures) {
        for (series, of) in &figures.series {
            self.distribution(series.name, Some(of));
        }
        self.count("request/count", figures.requests.count);
        self.count("request/profiled_count", figures.requests.profiled);
        for outcome in Outcome::ALL {
            self.count(&format!("request/{}", outcome.name()), figures.requests.ended(outcome));
        }
        for fault in Fault::ALL {
            self.count(&format!("anomaly/{}", fault.name()), figures.anomalies[fault as usize]);
        }
        self.number("rollout_time", figures.rollout_time.map(Nanos::as_secs_f64));
        self.number("tokens_per_sec", figures.tokens_per_sec());
        self.number("tokens_per_gpu_per_sec", figures.tokens_per_gpu_per_sec());
        self.number("longest_sample_tokens_per_sec", figures.longest_sample_tokens_per_sec());
    }

    fn rollout(&mut self, figures: &Figures) {
        self.count("samples", figures.samples);
        if figures.groups > 0 {
            self.count("groups", figures.groups);
            self.count("zero_std/count", figures.zero_std.values().sum());
            if figures.zero_std.len() <= MOST_ZERO_STD_REWARDS {
                for (reward, groups) in &figures.zero_std {
                    self.count(&format!("zero_std/count_{reward}"), *groups);
                }
            }
        }
        self.distribution("reward", figures.reward.as_ref());
        self.distribution("response_len", figures.response_len.as_ref());
        self.number("truncated_ratio", figures.truncated_ratio);
    }

    fn distribution(&mut self, name: &str, of: Option<&Distribution>) {
        for (statistic, value) in of.iter().flat_map(|of| of.named()) {
            self.number(&format!("{name}/{statistic}"), Some(value));
        }
    }

    fn count(&mut self, name: &str, count: u64) {
        self.number(name, Some(count as f64));
    }

    /// A sum of huge values may overflow; no tracker takes an infinity.
    fn number(&mut self, name: &str, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.metrics.insert(format!("{}/{name}", self.prefix), value);
        }
    }
}

#[cfg(test)]
mod tests;
