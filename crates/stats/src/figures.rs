//! The figures of one population of samples: a step's training samples, or its evaluation samples.

use std::collections::{BTreeMap, BTreeSet};

use rollscope_trace::{Fault, FinishKind, Measure, Nanos, Outcome, Profile, SampleTrace};

use crate::distribution::Distribution;
use crate::series::{SERIES, Series};

/// What is known of a population of samples. A figure that nothing was reported for is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Samples.
    pub samples: u64,
    /// Prompt groups that were named.
    pub groups: u64,
    /// Requests, by how they ended.
    pub requests: RequestCounts,
    /// As told at the end of the step; else from the first request's arrival to the last one's end.
    pub rollout_time: Option<Nanos>,
    /// Accelerators that served it; never 0.
    pub gpus: Option<u32>,
    /// Statistics of each series that has values, in the order of [`SERIES`].
    pub series: Vec<(&'static Series, Distribution)>,
    /// Rewards.
    pub reward: Option<Distribution>,
    /// Tokens of the samples' responses: as told of the sample; else what its last attempt generated.
    pub response_len: Option<Distribution>,
    /// Share of samples whose response hit the limit of tokens, among those of which it is known.
    pub truncated_ratio: Option<f64>,
    /// Groups of two and more samples whose rewards are all the same, by that reward to one decimal.
    pub zero_std: BTreeMap<String, u64>,
    /// Values that were left out, in the order of [`Fault::ALL`].
    pub anomalies: [u64; Fault::ALL.len()],
}

/// Requests, by how they ended. `count` is the sum of the four outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// All of them.
    pub count: u64,
    /// Those for which a worker reported a timing.
    pub profiled: u64,
    /// In the order of [`Outcome::ALL`].
    pub by_outcome: [u64; Outcome::ALL.len()],
}

// === impl Figures ===

impl Figures {
    /// Reduces samples. What the end of a step tells, its time and its accelerators, is not known here.
    pub(crate) fn of(samples: &[&SampleTrace]) -> Self {
        let requests = || samples.iter().flat_map(|sample| &sample.requests);
        let groups: BTreeSet<&str> =
            samples.iter().filter_map(|sample| sample.key.group.as_deref()).collect();
        let rewards = || samples.iter().filter_map(|sample| sample.mark.reward);
        let mut figures = Self {
            samples: samples.len() as u64,
            groups: groups.len() as u64,
            requests: RequestCounts::of(requests()),
            rollout_time: first_to_last(requests()),
            gpus: None,
            series: Vec::new(),
            reward: Distribution::of(rewards().collect()),
            response_len: Distribution::of(
                samples.iter().filter_map(|sample| response_tokens(sample)).collect(),
            ),
            truncated_ratio: truncated_ratio(samples),
            zero_std: zero_std(samples),
            anomalies: anomalies(requests()),
        };
        figures.anomalies[Fault::NotFinite as usize] +=
            rewards().filter(|reward| !reward.is_finite()).count() as u64;
        for series in &SERIES {
            let values = requests().filter_map(|request| series.value(request)).collect();
            figures.series.extend(Distribution::of(values).map(|of| (series, of)));
        }
        figures
    }

    /// The statistics of a series by its name below `perf/`.
    pub fn series(&self, name: &str) -> Option<&Distribution> {
        self.series.iter().find(|(series, _)| series.name == name).map(|(_, of)| of)
    }

    /// Tokens of all responses over the rollout's time.
    pub fn tokens_per_sec(&self) -> Option<f64> {
        self.per_second(self.response_len?.sum)
    }

    /// The same for each accelerator.
    pub fn tokens_per_gpu_per_sec(&self) -> Option<f64> {
        Some(self.tokens_per_sec()? / f64::from(self.gpus?))
    }

    /// Tokens of the longest response over the rollout's time: how fast the step would be if that sample were
    /// all there is.
    pub fn longest_sample_tokens_per_sec(&self) -> Option<f64> {
        self.per_second(self.response_len?.max)
    }

    fn per_second(&self, tokens: f64) -> Option<f64> {
        self.rollout_time.filter(|time| time.0 > 0).map(|time| tokens / time.as_secs_f64())
    }
}

fn first_to_last<'a>(requests: impl Iterator<Item = &'a Profile> + Clone) -> Option<Nanos> {
    let first = requests.clone().map(|request| request.arrival).min()?;
    requests.map(Profile::ended_at).max().map(|last| last.since(first))
}

fn response_tokens(sample: &SampleTrace) -> Option<f64> {
    if let Some(tokens) = sample.mark.response_tokens {
        return Some(tokens as f64);
    }
    let last_attempt = sample.requests.iter().map(|request| request.join.attempt).max()?;
    let of_it = sample.requests.iter().filter(|request| request.join.attempt == last_attempt);
    of_it.filter_map(|request| request.measure(Measure::CompletionTokens)).reduce(|a, b| a + b)
}

fn truncated_ratio(samples: &[&SampleTrace]) -> Option<f64> {
    let by_finish = |sample: &SampleTrace| {
        let finish = sample.requests.iter().rev().find_map(|request| request.finish())?;
        Some(finish.kind == FinishKind::Length)
    };
    let known = samples.iter().filter_map(|sample| sample.mark.truncated.or_else(|| by_finish(sample)));
    let (mut truncated, mut all) = (0u64, 0u64);
    for cut in known {
        truncated += u64::from(cut);
        all += 1;
    }
    (all > 0).then(|| truncated as f64 / all as f64)
}

#[expect(clippy::float_cmp, reason = "rewards are compared as they were told, not computed")]
fn zero_std(samples: &[&SampleTrace]) -> BTreeMap<String, u64> {
    let mut groups: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        let reward = sample.mark.reward.filter(|reward| reward.is_finite());
        if let (Some(group), Some(reward)) = (&sample.key.group, reward) {
            groups.entry(group).or_default().push(reward);
        }
    }
    let mut counts = BTreeMap::new();
    for rewards in groups.into_values() {
        if let [first, rest @ ..] = &rewards[..]
            && !rest.is_empty()
            && rest.iter().all(|reward| reward == first)
        {
            // Adding zero takes the sign from a negative zero.
            *counts.entry(format!("{:.1}", first + 0.0)).or_default() += 1;
        }
    }
    counts
}

fn anomalies<'a>(requests: impl Iterator<Item = &'a Profile>) -> [u64; Fault::ALL.len()] {
    let mut counts = [0; Fault::ALL.len()];
    for leg in requests.flat_map(|request| &request.legs) {
        for fault in leg.report.measures.iter().filter_map(|(_, reading)| reading.fault) {
            counts[fault as usize] += 1;
        }
    }
    counts
}

// === impl RequestCounts ===

impl RequestCounts {
    fn of<'a>(requests: impl Iterator<Item = &'a Profile>) -> Self {
        let mut counts = Self::default();
        for request in requests {
            counts.count += 1;
            counts.profiled += u64::from(request.is_profiled());
            counts.by_outcome[request.outcome as usize] += 1;
        }
        counts
    }

    /// Requests that ended in one way.
    pub fn ended(&self, outcome: Outcome) -> u64 {
        self.by_outcome[outcome as usize]
    }
}
