//! The figures of one population of samples: a step's training samples, or its evaluation samples.

use std::collections::BTreeMap;

use rollscope_trace::{Fault, Nanos, SampleTrace};

use crate::distribution::Distribution;
use crate::requests::{Requests, Tokens, reached};
use crate::samples::{self, LateSample, Marks, Tail, TokenFigures, VersionTally, Versions};
use crate::series::Series;
use crate::slowest::{SlowestSample, last_sample};
use crate::sums::{SampleFacts, Sums};
use crate::values::RequestCounts;
use crate::workers::WorkerFigures;

/// What is known of a population of samples. A figure that nothing was reported for is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Samples.
    pub samples: u64,
    /// Prompt groups that were named.
    pub groups: u64,
    /// Requests, by how they ended.
    pub requests: RequestCounts,
    /// Requests that named no sample where others did. They are in no other figure.
    pub unnamed_requests: u64,
    /// As told at the end of the step; else from the first request's arrival to the last one's end.
    pub rollout_time: Option<Nanos>,
    /// Accelerators that served it; never 0.
    pub gpus: Option<u32>,
    /// Statistics of each series that has values, in the order of [`crate::SERIES`].
    pub series: Vec<(&'static Series, Distribution)>,
    /// Rewards.
    pub reward: Option<Distribution>,
    /// Tokens of the samples' responses that are trained on; all of them where nothing else was told.
    pub response_len: Option<Distribution>,
    /// Tokens of the samples' responses: as told of the sample; else what its last attempt generated.
    pub tokens: Option<TokenFigures>,
    /// Those of them that are trained on.
    pub effective_tokens: Option<TokenFigures>,
    /// Seconds of each sample in anything but generation; nothing where none spent any.
    pub non_generation_time: Option<Distribution>,
    /// Share of samples whose response hit the limit of tokens, among those of which it is known.
    pub truncated_ratio: Option<f64>,
    /// Share of samples whose text repeats itself, among those of which it was told.
    pub repetition_frac: Option<f64>,
    /// Groups of two and more samples whose rewards are all the same, by that reward to one decimal.
    pub zero_std: BTreeMap<String, u64>,
    /// (k, pass@k).
    pub pass_rates: Vec<(u64, f64)>,
    /// Shares of samples by category.
    pub categories: BTreeMap<String, f64>,
    /// Share of prompt tokens that a prefix cache held.
    pub prefix_cache_hit_rate: Option<f64>,
    /// Tokens that a prefix cache held, a sample.
    pub avg_cached_tokens: Option<f64>,
    /// Vocabulary entries that nucleus sampling kept, a trained token.
    pub top_p_kept: Option<f64>,
    /// Share of draft tokens that were accepted, the mean over samples.
    pub spec_accept_rate: Option<f64>,
    /// Tokens generated a verification, the mean over samples.
    pub spec_accept_length: Option<f64>,
    /// Versions of the weights that answered.
    pub versions: Option<Versions>,
    /// Tries of the gateway after the first.
    pub retries: u64,
    /// Attempts of the user's code after the first.
    pub extra_attempts: u64,
    /// Tokens generated.
    pub generated_tokens: f64,
    /// Those of them that came to nothing: of attempts that another followed, and of requests that did not complete.
    pub wasted_tokens: f64,
    /// The end of the step, when most samples were done.
    pub tail: Option<Tail>,
    /// The last samples to end, the last one first.
    pub late_samples: Vec<LateSample>,
    /// The last sample to end, and what its time went to.
    pub last_sample: Option<SlowestSample>,
    /// The workers.
    pub workers: Vec<WorkerFigures>,
    /// Values that were left out, in the order of [`Fault::ALL`].
    pub anomalies: [u64; Fault::ALL.len()],
}

// === impl Figures ===

impl Figures {
    /// Reduces samples. What the end of a step tells, its time and its accelerators, is not known here.
    pub(crate) fn of(samples: &[&SampleTrace]) -> Self {
        let mut requests = Requests::new(samples.iter().map(|sample| sample.requests.len()).sum());
        let mut facts = Vec::with_capacity(samples.len());
        let mut tokens: Vec<Tokens> = Vec::new();
        let (mut sums, mut versions, mut marks) =
            (Sums::default(), VersionTally::default(), Marks::default());
        for sample in reached(samples) {
            tokens.clear();
            tokens.extend(sample.requests.iter().map(|request| requests.add(request)));
            facts.push(sums.add(sample, &tokens));
            versions.add(sample);
            marks.add(sample);
        }
        let (tail, late_samples) = samples::tail(samples, &facts).unzip();
        let mut figures = Self {
            samples: samples.len() as u64,
            requests: requests.values.counts(),
            rollout_time: requests.window.map(|(first, last)| last.since(first)),
            series: requests.values.statistics(),
            retries: requests.retries,
            versions: versions.versions(),
            tail,
            late_samples: late_samples.unwrap_or_default(),
            last_sample: last_sample(samples, &facts),
            anomalies: requests.anomalies,
            workers: requests.workers.figures(requests.window),
            ..Self::default()
        };
        figures.add_marks(marks);
        figures.add_facts(&facts);
        figures.add_sums(&sums);
        figures
    }

    fn add_marks(&mut self, marks: Marks<'_>) {
        self.groups = marks.groups.len() as u64;
        self.anomalies.iter_mut().zip(marks.left_out).for_each(|(all, more)| *all += more);
        self.zero_std = samples::zero_std(&marks.groups);
        self.pass_rates = samples::pass_rates(&marks.groups);
        self.categories = marks.category_shares();
        self.repetition_frac = samples::share(marks.repetitions.into_iter());
        self.reward = Distribution::of(marks.rewards);
    }

    fn add_facts(&mut self, facts: &[SampleFacts]) {
        self.response_len = Distribution::of(facts.iter().filter_map(|of| of.effective_tokens).collect());
        self.tokens = TokenFigures::of(facts, |of| of.response_tokens);
        self.effective_tokens = TokenFigures::of(facts, |of| of.effective_tokens);
        let other = Distribution::of(facts.iter().filter_map(|of| of.non_generation).collect());
        self.non_generation_time = other.filter(|other| other.max > 0.0);
    }

    fn add_sums(&mut self, sums: &Sums) {
        self.truncated_ratio = sums.truncated.get();
        self.generated_tokens = sums.generated;
        self.wasted_tokens = sums.wasted;
        self.extra_attempts = sums.extra_attempts;
        self.avg_cached_tokens = sums.cached.get();
        self.prefix_cache_hit_rate =
            self.avg_cached_tokens.filter(|_| sums.prompt > 0.0).map(|_| sums.cached.sum / sums.prompt);
        self.top_p_kept = (sums.top_p_tokens > 0.0).then(|| sums.top_p_kept / sums.top_p_tokens);
        self.spec_accept_rate = sums.spec_accept_rate.get();
        self.spec_accept_length = sums.spec_accept_length.get();
    }

    /// The statistics of a series by its name below `perf/`.
    pub fn series(&self, name: &str) -> Option<&Distribution> {
        self.series.iter().find(|(series, _)| series.name == name).map(|(_, of)| of)
    }

    /// Tokens of all responses over the rollout's time.
    pub fn tokens_per_sec(&self) -> Option<f64> {
        self.per_second(self.tokens?.sum)
    }

    /// A number of tokens over the rollout's time.
    pub(crate) fn per_second(&self, tokens: f64) -> Option<f64> {
        self.rollout_time.filter(|time| time.0 > 0).map(|time| tokens / time.as_secs_f64())
    }

    /// A number of tokens over the rollout's time for each accelerator.
    pub(crate) fn per_gpu_per_second(&self, tokens: f64) -> Option<f64> {
        Some(self.per_second(tokens)? / f64::from(self.gpus?))
    }
}
