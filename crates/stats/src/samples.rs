//! Figures of samples: what was told of them, and what their requests add up to.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use rollscope_trace::{Fault, FinishKind, Nanos, SampleKey, SampleTrace, UnixNs, UserSpan};

use crate::critical_path::covered;
use crate::distribution::Distribution;
use crate::sums::{Mean, SampleFacts};
use crate::told::name_part;

/// Tokens over time, of all tokens or of those that are trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenFigures {
    /// Of all samples.
    pub sum: f64,
    /// Of the longest sample.
    pub longest: f64,
    /// Seconds that the longest sample spent on anything but generation; the mean where several are as long.
    pub longest_non_generation: Option<f64>,
}

/// Versions of the weights that answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Versions {
    /// Different ones.
    pub count: u64,
    /// Largest less smallest, where all are numbers.
    pub spread: Option<f64>,
    /// Share of samples that more than one version has answered.
    pub mixed_share: f64,
}

/// Collects [`Versions`], sample by sample.
#[derive(Debug, Default)]
pub(crate) struct VersionTally<'a> {
    all: BTreeSet<&'a str>,
    last: Option<&'a str>,
    /// Samples of which a version is known, and those of more than one.
    known: u64,
    mixed: u64,
}

/// Collects what was told of samples.
#[derive(Debug, Default)]
pub(crate) struct Marks<'a> {
    /// In the order of the samples, finite or not.
    pub(crate) rewards: Vec<f64>,
    /// Values that were left out, in the order of [`Fault::ALL`].
    pub(crate) left_out: [u64; Fault::ALL.len()],
    pub(crate) repetitions: Vec<bool>,
    /// The finite rewards of each group that was named, in the order in which the groups appear.
    pub(crate) groups: Vec<Vec<f64>>,
    places: HashMap<&'a str, usize>,
    /// The group before, which the next sample is mostly of.
    last: Option<(&'a str, usize)>,
    categories: BTreeMap<&'a str, u64>,
}

/// The end of a step, when most samples are done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tail {
    /// From when fewer than a tenth of the samples were left to the end.
    pub time: Nanos,
    /// Share of the time from the first event to the last.
    pub share: f64,
    /// Fewer samples than this were left.
    pub fewer_than: u64,
}

/// One of the last samples to end.
#[derive(Clone, Debug, PartialEq)]
pub struct LateSample {
    /// Which sample.
    pub key: SampleKey,
    /// From its first to its last event.
    pub duration: Nanos,
    /// From the first event of all samples to its last.
    pub ended_after: Nanos,
}

/// Late samples that are kept.
const LATE_SAMPLES: usize = 10;
/// Samples are in the tail while fewer than this share is left.
const TAIL_LEFT: f64 = 0.1;
/// Values of one kind that get a name of their own; what is beyond is left out, so that names stay bounded.
const MOST_NAMES: usize = 32;

/// Time of one of the user's spans that is its own: in no request, and in no other span that lies within it. So a span
/// around a call of the model, or around the whole sample, has only what nothing in it explains.
pub fn own_time(sample: &SampleTrace, span: &UserSpan) -> Nanos {
    let Some(end) = span.end else {
        return Nanos(0);
    };
    let length = end.since(span.start);
    let requests = sample.requests.iter().map(|request| (request.arrival, request.ended_at()));
    let within = sample.spans.iter().filter_map(|other| Some((other.start, other.end?)));
    let within = within.filter(|(from, to)| *from >= span.start && *to <= end && to.since(*from) < length);
    let clipped = requests.chain(within).map(|(from, to)| {
        let from = from.since(span.start).min(length);
        (from, to.since(span.start).min(length))
    });
    length.minus(covered(clipped))
}

// === impl TokenFigures ===

impl TokenFigures {
    /// Of the tokens of each sample and its seconds of anything but generation; nothing where no tokens are known.
    pub(crate) fn of(facts: &[SampleFacts], tokens: fn(&SampleFacts) -> Option<f64>) -> Option<Self> {
        let (mut sum, mut longest, mut others) = (0.0, None, Mean::default());
        for of in facts {
            let Some(tokens) = tokens(of) else { continue };
            sum += tokens;
            if longest.is_none_or(|longest| tokens > longest) {
                (longest, others) = (Some(tokens), Mean::default());
            }
            if let (true, Some(other)) = (longest.is_some_and(|longest| tokens >= longest), of.non_generation)
            {
                others.add(other);
            }
        }
        longest.map(|longest| Self { sum, longest, longest_non_generation: others.get() })
    }
}

// === impl VersionTally ===

impl<'a> VersionTally<'a> {
    /// Takes a sample.
    pub(crate) fn add(&mut self, sample: &'a SampleTrace) {
        let mut versions = sample.requests.iter().filter_map(|request| request.weight_version());
        let Some(first) = versions.next() else { return };
        self.known += 1;
        self.insert(first);
        let mut is_mixed = false;
        for version in versions.filter(|version| *version != first) {
            is_mixed = true;
            self.insert(version);
        }
        self.mixed += u64::from(is_mixed);
    }

    fn insert(&mut self, version: &'a str) {
        // Nearly always the one before.
        if self.last != Some(version) {
            self.all.insert(version);
            self.last = Some(version);
        }
    }

    /// Nothing where no worker told any.
    pub(crate) fn versions(&self) -> Option<Versions> {
        let numbers: Option<Vec<f64>> =
            self.all.iter().map(|version| version.parse::<u64>().ok().map(|number| number as f64)).collect();
        let numbers = numbers.and_then(Distribution::of);
        (self.known > 0).then(|| Versions {
            count: self.all.len() as u64,
            spread: numbers.map(|numbers| numbers.max - numbers.min),
            mixed_share: self.mixed as f64 / self.known as f64,
        })
    }
}

// === impl Marks ===

impl<'a> Marks<'a> {
    /// Takes a sample.
    pub(crate) fn add(&mut self, sample: &'a SampleTrace) {
        let mark = &sample.mark;
        if let Some(reward) = mark.reward {
            self.left_out[Fault::NotFinite as usize] += u64::from(!reward.is_finite());
            self.rewards.push(reward);
        }
        for left_out in &mark.left_out {
            self.left_out[left_out.fault as usize] += 1;
        }
        self.repetitions.extend(mark.repetition);
        if let Some(category) = mark.category.as_deref() {
            *self.categories.entry(category).or_default() += 1;
        }
        let Some(group) = sample.key.group.as_deref() else { return };
        let place = match self.last {
            Some((last, place)) if last == group => place,
            _ => *self.places.entry(group).or_insert(self.groups.len()),
        };
        self.last = Some((group, place));
        if place == self.groups.len() {
            self.groups.push(Vec::new());
        }
        self.groups[place].extend(mark.reward.filter(|reward| reward.is_finite()));
    }

    /// Share of samples by the category that was told of them, among those of which one was told.
    pub(crate) fn category_shares(&self) -> BTreeMap<String, f64> {
        let all: u64 = self.categories.values().sum();
        let mut named: BTreeMap<Cow<'_, str>, u64> = BTreeMap::new();
        for (category, count) in &self.categories {
            *named.entry(name_part(category)).or_default() += count;
        }
        let mut counts: Vec<_> = named.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts.truncate(MOST_NAMES);
        counts.into_iter().map(|(name, count)| (name.into_owned(), count as f64 / all as f64)).collect()
    }
}

/// The tail, and the last samples to end, the last one first. Nothing where no time is known.
pub(crate) fn tail(samples: &[&SampleTrace], facts: &[SampleFacts]) -> Option<(Tail, Vec<LateSample>)> {
    let timed = facts.iter().zip(0..).filter_map(|(of, index)| {
        let (start, end) = of.bounds?;
        Some((end, start, index))
    });
    let mut timed: Vec<(UnixNs, UnixNs, usize)> = timed.collect();
    let first = timed.iter().map(|(_, start, _)| *start).min()?;
    // So many have ended when fewer than a tenth is left.
    let ended = ((timed.len() as f64 * (1.0 - TAIL_LEFT)) as usize + 1).min(timed.len());
    let fewer_than = (timed.len() + 1 - ended) as u64;
    let (_, begin, after) = timed.select_nth_unstable(ended - 1);
    let begin = *begin;
    // The last of them are among those after it, unless these are too few.
    let among: &mut [_] = if after.len() >= LATE_SAMPLES { after } else { &mut timed };
    among.sort_unstable();
    let (last, ..) = *among.last()?;
    let (time, whole) = (last.since(begin.0), last.since(first));
    let tail = Tail { time, share: time.0 as f64 / whole.0.max(1) as f64, fewer_than };
    let late = among.iter().rev().take(LATE_SAMPLES).map(|(end, start, index)| LateSample {
        key: samples[*index].key.clone(),
        duration: end.since(*start),
        ended_after: end.since(first),
    });
    Some((tail, late.collect()))
}

/// Whether a sample's response hit the limit of tokens: as told; else by why its last request that tells ended.
pub fn is_truncated(sample: &SampleTrace) -> Option<bool> {
    let by_finish = || {
        let finish = sample.requests.iter().rev().find_map(|request| request.finish())?;
        Some(finish.kind == FinishKind::Length)
    };
    sample.mark.truncated.or_else(by_finish)
}

/// Share of what is true; nothing of nothing.
pub(crate) fn share(truths: impl Iterator<Item = bool>) -> Option<f64> {
    let (count, all) = truths.fold((0u64, 0u64), |(count, all), truth| (count + u64::from(truth), all + 1));
    (all > 0).then(|| count as f64 / all as f64)
}

/// Groups of two and more samples whose rewards are all the same, by that reward to one decimal.
#[expect(clippy::float_cmp, reason = "rewards are compared as they were told, not computed")]
pub(crate) fn zero_std(groups: &[Vec<f64>]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for rewards in groups {
        if let [first, rest @ ..] = &rewards[..]
            && !rest.is_empty()
            && rest.iter().all(|reward| reward == first)
        {
            let rounded = format!("{first:.1}");
            let name = if rounded == "-0.0" { "0.0".to_owned() } else { rounded };
            *counts.entry(name).or_default() += 1;
        }
    }
    counts
}

/// pass@k for k = 1, 2, 4 … up to the largest group: the chance that of k samples of a prompt at least one is right,
/// that is, has a reward of 1; the mean over groups of at least k samples. By the unbiased estimator
/// 1 − C(n − c, k) / C(n, k) of Chen et al., "Evaluating Large Language Models Trained on Code", 2021. Nothing
/// unless every reward is −1, 0 or 1, and some group has two samples.
#[expect(clippy::float_cmp, reason = "rewards are compared as they were told, not computed")]
pub(crate) fn pass_rates(groups: &[Vec<f64>]) -> Vec<(u64, f64)> {
    let largest = groups.iter().map(Vec::len).max().unwrap_or(0);
    let verdicts = groups.iter().flatten().all(|reward| [-1.0, 0.0, 1.0].contains(reward));
    if largest < 2 || !verdicts {
        return Vec::new();
    }
    // A group without a reward says nothing.
    let counted = groups.iter().filter(|rewards| !rewards.is_empty()).map(|rewards| {
        let right = rewards.iter().filter(|reward| **reward == 1.0).count();
        (rewards.len(), right)
    });
    let powers = std::iter::successors(Some(1usize), |k| Some(k * 2)).take_while(|k| *k <= largest);
    let rate = |k: usize| {
        let large_enough = counted.clone().filter(|(n, _)| *n >= k);
        let chances: Vec<f64> = large_enough.map(|(n, right)| chance(n, right, k)).collect();
        Distribution::of(chances).map(|of| (k as u64, of.mean))
    };
    powers.filter_map(rate).collect()
}

fn chance(n: usize, right: usize, k: usize) -> f64 {
    let wrong = n - right;
    if wrong < k {
        return 1.0;
    }
    1.0 - (wrong + 1..=n).map(|i| 1.0 - k as f64 / i as f64).product::<f64>()
}
