//! The numbers of a step: one table of names, units and where each is taken from.
//!
//! What trackers are sent and what the guide in `docs/` lists are both made from it.

use rollscope_trace::{Fault, Nanos, Outcome};

use crate::breakdown::Part;
use crate::distribution::Distribution;
use crate::figures::Figures;
use crate::samples::TokenFigures;

/// A number, or a set of numbers under one name.
#[derive(Debug)]
pub struct Number {
    /// Below its population's prefix; a part in capitals stands for what the numbers of a set differ in.
    pub name: &'static str,
    /// Where its name begins.
    pub kind: Kind,
    /// As people write it.
    pub unit: &'static str,
    pub(crate) source: Source,
}

/// Where a name begins: of training samples; those of an evaluation are all under `eval/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `perf/`: what serving did.
    Perf,
    /// `rollout/`: what it produced.
    Rollout,
}

/// How a number comes from the figures.
#[derive(Debug)]
pub(crate) enum Source {
    Value(fn(&Figures) -> Option<f64>),
    /// Each statistic below the name.
    Statistics(fn(&Figures) -> Option<Distribution>),
    /// What the part in capitals is, with the number.
    Set(fn(&Figures) -> Vec<(String, f64)>),
}

/// Rewards that are told apart in `zero_std/count_…`; with more, only the total is given, so that the set of
/// names stays bounded.
const MOST_ZERO_STD_REWARDS: usize = 16;

const fn value(
    kind: Kind,
    name: &'static str,
    unit: &'static str,
    of: fn(&Figures) -> Option<f64>,
) -> Number {
    Number { name, kind, unit, source: Source::Value(of) }
}

const fn statistics(
    kind: Kind,
    name: &'static str,
    unit: &'static str,
    of: fn(&Figures) -> Option<Distribution>,
) -> Number {
    Number { name, kind, unit, source: Source::Statistics(of) }
}

const fn set(
    kind: Kind,
    name: &'static str,
    unit: &'static str,
    of: fn(&Figures) -> Vec<(String, f64)>,
) -> Number {
    Number { name, kind, unit, source: Source::Set(of) }
}

/// Statistics of a series of the same name.
macro_rules! series {
    ($name:literal, $unit:literal) => {
        statistics(Kind::Perf, $name, $unit, |of| of.series($name).copied())
    };
}

/// Requests that ended in one way.
macro_rules! ended {
    ($name:literal, $outcome:ident) => {
        value(Kind::Perf, $name, "requests", |of| Some(of.requests.ended(Outcome::$outcome) as f64))
    };
}

/// Values with one fault.
macro_rules! anomaly {
    ($name:literal, $fault:ident) => {
        value(Kind::Perf, $name, "values", |of| Some(of.anomalies[Fault::$fault as usize] as f64))
    };
}

/// Statistics of a figure over the workers.
macro_rules! workers {
    ($name:literal, $unit:literal, $of:expr) => {
        statistics(Kind::Perf, $name, $unit, |of| {
            Distribution::of(of.workers.iter().filter_map($of).collect())
        })
    };
}

/// All numbers, in the order in which the guide lists them.
pub static NUMBERS: &[Number] = {
    use Kind::{Perf, Rollout};
    &[
        value(Perf, "rollout_time", "s", |of| of.rollout_time.map(Nanos::as_secs_f64)),
        value(Perf, "tokens_per_sec", "tokens/s", Figures::tokens_per_sec),
        value(Perf, "tokens_per_gpu_per_sec", "tokens/s", |of| of.per_gpu_per_second(of.tokens?.sum)),
        value(Perf, "effective_tokens_per_gpu_per_sec", "tokens/s", |of| {
            of.per_gpu_per_second(of.effective_tokens?.sum)
        }),
        value(Perf, "longest_sample_tokens_per_sec", "tokens/s", |of| of.per_second(of.tokens?.longest)),
        value(Perf, "longest_effective_sample_tokens_per_sec", "tokens/s", |of| {
            of.per_second(of.effective_tokens?.longest)
        }),
        statistics(Perf, "non_generation_time", "s", |of| of.non_generation_time),
        value(Perf, "longest_sample_non_generation_time", "s", |of| longest_other(of, of.tokens)),
        value(Perf, "longest_effective_sample_non_generation_time", "s", |of| {
            longest_other(of, of.effective_tokens)
        }),
        value(Perf, "longest_sample_tokens_per_sec_without_non_generation", "tokens/s", |of| {
            without_other(of, of.tokens)
        }),
        value(Perf, "longest_effective_sample_tokens_per_sec_without_non_generation", "tokens/s", |of| {
            without_other(of, of.effective_tokens)
        }),
        value(Perf, "tail/time", "s", |of| Some(of.tail?.time.as_secs_f64())),
        value(Perf, "tail/share", "share", |of| Some(of.tail?.share)),
        value(Perf, "last_sample/duration", "s", |of| Some(of.last_sample.as_ref()?.duration.as_secs_f64())),
        set(Perf, "last_sample/PART_time", "s", last_sample),
        value(Perf, "request/count", "requests", |of| Some(of.requests.count as f64)),
        value(Perf, "request/profiled_count", "requests", |of| Some(of.requests.profiled as f64)),
        value(Perf, "request/unnamed_count", "requests", |of| {
            (of.unnamed_requests > 0).then_some(of.unnamed_requests as f64)
        }),
        ended!("request/completed", Completed),
        ended!("request/truncated", Truncated),
        ended!("request/failed", Failed),
        ended!("request/aborted", Aborted),
        series!("request/e2e_latency", "s"),
        series!("request/gateway_latency", "s"),
        series!("request/queue_time", "s"),
        series!("prefill/bootstrap_queue_duration", "s"),
        series!("prefill/bootstrap_duration", "s"),
        series!("prefill/alloc_wait_duration", "s"),
        series!("prefill/queue_time", "s"),
        series!("prefill/forward_duration", "s"),
        series!("prefill/transfer_queue_duration", "s"),
        series!("prefill/transfer_speed_gb_s", "GiB/s"),
        series!("prefill/transfer_total_mb", "MiB"),
        series!("prefill/retry_count", "retries"),
        series!("decode/prealloc_duration", "s"),
        series!("decode/bootstrap_duration", "s"),
        series!("decode/alloc_wait_duration", "s"),
        series!("decode/transfer_duration", "s"),
        series!("decode/forward_duration", "s"),
        series!("decode/throughput", "tokens/s"),
        value(Perf, "worker/count", "workers", |of| known(of, of.workers.len() as f64)),
        workers!("worker/tokens", "tokens", |worker| worker.tokens),
        workers!("worker/max_tokens", "tokens", |worker| worker.max_tokens),
        workers!("worker/tokens_per_sec", "tokens/s", |worker| worker.tokens_per_sec),
        workers!("worker/idle_share", "share", |worker| Some(worker.idle_share)),
        value(Perf, "worker/stragglers", "workers", |of| {
            known(of, of.workers.iter().filter(|worker| worker.is_straggler).count() as f64)
        }),
        value(Perf, "worker/without_timings", "workers", |of| {
            known(of, of.workers.iter().filter(|worker| worker.is_silent()).count() as f64)
        }),
        value(Perf, "retries", "retries", |of| Some(of.retries as f64)),
        value(Perf, "extra_attempts", "attempts", |of| Some(of.extra_attempts as f64)),
        value(Perf, "wasted_tokens", "tokens", |of| (of.generated_tokens > 0.0).then_some(of.wasted_tokens)),
        value(Perf, "wasted_token_share", "share", |of| {
            (of.generated_tokens > 0.0).then(|| of.wasted_tokens / of.generated_tokens)
        }),
        anomaly!("anomaly/not_a_number", NotANumber),
        anomaly!("anomaly/not_finite", NotFinite),
        anomaly!("anomaly/negative", Negative),
        anomaly!("anomaly/too_large", TooLarge),
        anomaly!("anomaly/longer_than_leg", LongerThanLeg),
        anomaly!("anomaly/more_than_prompt", MoreThanPrompt),
        anomaly!("anomaly/unreadable", Unreadable),
        value(Rollout, "samples", "samples", |of| Some(of.samples as f64)),
        value(Rollout, "groups", "groups", |of| in_groups(of, of.groups as f64)),
        statistics(Rollout, "reward", "", |of| of.reward),
        statistics(Rollout, "response_len", "tokens", |of| of.response_len),
        value(Rollout, "truncated_ratio", "share", |of| of.truncated_ratio),
        value(Rollout, "repetition_frac", "share", |of| of.repetition_frac),
        value(Rollout, "zero_std/count", "groups", |of| {
            in_groups(of, of.zero_std.values().sum::<u64>() as f64)
        }),
        set(Rollout, "zero_std/count_REWARD", "groups", zero_std),
        set(Rollout, "pass@K", "share", |of| {
            of.pass_rates.iter().map(|(k, rate)| (k.to_string(), *rate)).collect()
        }),
        value(Rollout, "prefix_cache_hit_rate", "share", |of| of.prefix_cache_hit_rate),
        value(Rollout, "avg_cached_tokens_per_sample", "tokens", |of| of.avg_cached_tokens),
        value(Rollout, "top_p_kept_vocab_per_token", "entries", |of| of.top_p_kept),
        value(Rollout, "spec_accept_rate", "share", |of| of.spec_accept_rate),
        value(Rollout, "spec_accept_length", "tokens", |of| of.spec_accept_length),
        set(Rollout, "error_cat/CATEGORY", "share", |of| of.categories.clone().into_iter().collect()),
        value(Rollout, "weight_version/count", "versions", |of| Some(of.versions?.count as f64)),
        value(Rollout, "weight_version/spread", "versions", |of| of.versions?.spread),
        value(Rollout, "weight_version/mixed_sample_share", "share", |of| Some(of.versions?.mixed_share)),
    ]
};

/// Only where there are workers.
fn known(of: &Figures, value: f64) -> Option<f64> {
    (!of.workers.is_empty()).then_some(value)
}

/// Only where groups were named.
fn in_groups(of: &Figures, value: f64) -> Option<f64> {
    (of.groups > 0).then_some(value)
}

/// Only where some sample spent time on anything but generation.
fn longest_other(of: &Figures, tokens: Option<TokenFigures>) -> Option<f64> {
    of.non_generation_time?;
    tokens?.longest_non_generation
}

fn without_other(of: &Figures, tokens: Option<TokenFigures>) -> Option<f64> {
    let rest = of.rollout_time?.as_secs_f64() - longest_other(of, tokens)?;
    (rest > 0.0).then_some(tokens?.longest / rest)
}

fn last_sample(of: &Figures) -> Vec<(String, f64)> {
    let parts = |breakdown: &crate::Breakdown| {
        let of = |part: Part| (part.key(), breakdown.part(part).as_secs_f64());
        Part::ALL.into_iter().map(of).filter(|(_, time)| *time > 0.0).collect()
    };
    of.last_sample.as_ref().map(|last| parts(&last.breakdown)).unwrap_or_default()
}

fn zero_std(of: &Figures) -> Vec<(String, f64)> {
    if of.zero_std.len() > MOST_ZERO_STD_REWARDS {
        return Vec::new();
    }
    of.zero_std.iter().map(|(reward, groups)| (reward.clone(), *groups as f64)).collect()
}

// === impl Number ===

impl Number {
    /// The last parts of its names, where it has several: `mean`, `median` …
    pub fn statistics(&self) -> &'static [&'static str] {
        match self.source {
            Source::Statistics(_) => &Distribution::NAMES,
            Source::Value(_) | Source::Set(_) => &[],
        }
    }

    /// Whether a name below the prefix is this number's.
    pub fn has(&self, name: &str) -> bool {
        match self.source {
            Source::Value(_) => name == self.name,
            Source::Statistics(_) => {
                let last = name.strip_prefix(self.name).and_then(|rest| rest.strip_prefix('/'));
                last.is_some_and(|last| Distribution::NAMES.contains(&last))
            }
            Source::Set(_) => {
                let (before, after) = self.around_set();
                let part = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                part.is_some_and(|part| !part.is_empty())
            }
        }
    }

    /// Its numbers of a population, by name below the prefix.
    pub(crate) fn of(&self, figures: &Figures) -> Vec<(String, f64)> {
        match self.source {
            Source::Value(of) => of(figures).map(|value| (self.name.to_owned(), value)).into_iter().collect(),
            Source::Statistics(of) => of(figures)
                .iter()
                .flat_map(Distribution::named)
                .map(|(statistic, value)| (format!("{}/{statistic}", self.name), value))
                .collect(),
            Source::Set(of) => {
                let (before, after) = self.around_set();
                let name = |(part, value)| (format!("{before}{part}{after}"), value);
                of(figures).into_iter().map(name).collect()
            }
        }
    }

    /// What stands before and after the part in capitals.
    fn around_set(&self) -> (&'static str, &'static str) {
        let is_capital = |c: char| c.is_ascii_uppercase();
        let from = self.name.find(is_capital).unwrap_or(self.name.len());
        let to = self.name.rfind(is_capital).map_or(self.name.len(), |at| at + 1);
        (&self.name[..from], &self.name[to..])
    }
}

// === impl Kind ===

impl Kind {
    /// The first part of a training sample's names.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Perf => "perf",
            Self::Rollout => "rollout",
        }
    }
}
