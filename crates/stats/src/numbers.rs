//! The numbers of a step: figures under the names that trackers know.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use rollscope_trace::{SampleTrace, StepNumber, StepTrace};

use crate::catalog::{Kind, NUMBERS};
use crate::figures::Figures;
use crate::step::named;
use crate::told::name_part;

/// Data sets of an evaluation that get names of their own; with more, those of the rest are left out, so that names
/// stay bounded.
const MOST_DATASETS: usize = 32;

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

/// Reduces a step to its numbers. Of a step that is still open, to those so far.
pub fn step_numbers(trace: &StepTrace) -> StepNumbers {
    let (evaluation, training): (Vec<_>, Vec<_>) =
        named(trace).partition(|sample| sample.mark.is_evaluation());
    let unnamed = trace.samples.len() - evaluation.len() - training.len();
    let mut metrics = BTreeMap::new();
    for dataset in datasets(&evaluation) {
        let of_it = evaluation.iter().filter(|sample| dataset_of(sample).as_ref() == Some(&dataset));
        put_dataset(&mut metrics, &dataset, &Figures::of(&of_it.copied().collect::<Vec<_>>()));
    }
    let mut evaluation = (!evaluation.is_empty()).then(|| Figures::of(&evaluation));
    let mut training = Figures::of(&training);
    training.unnamed_requests = unnamed as u64;
    if let Some(close) = &trace.close {
        // What is told of a step's end is of what it is judged by.
        let judged = evaluation.as_mut().filter(|_| training.samples == 0).unwrap_or(&mut training);
        judged.rollout_time = close.rollout_time.or(judged.rollout_time);
        judged.gpus = close.gpus.filter(|gpus| *gpus > 0);
    }
    if training.samples > 0 || evaluation.is_none() {
        put(&mut metrics, &training, Kind::prefix);
    }
    if let Some(evaluation) = &evaluation {
        put(&mut metrics, evaluation, |_| "eval");
    }
    StepNumbers { step: trace.step, metrics, training, evaluation }
}

/// Puts every number of a population under the prefix of its kind.
fn put(metrics: &mut BTreeMap<String, f64>, figures: &Figures, prefix: impl Fn(Kind) -> &'static str) {
    for number in NUMBERS {
        for (name, value) in number.of(figures) {
            put_one(metrics, format!("{}/{name}", prefix(number.kind)), value);
        }
    }
}

/// The numbers of one data set, as trackers of an evaluation have them: `eval/NAME` is the mean reward. Where one of these names
/// is a number's of the whole evaluation or of another data set, this one's is longer.
fn put_dataset(metrics: &mut BTreeMap<String, f64>, dataset: &str, figures: &Figures) {
    let of_it = of_dataset(figures);
    let mut dataset = dataset.to_owned();
    let is_taken = |name: &str| {
        metrics.contains_key(&format!("eval/{name}")) || NUMBERS.iter().any(|number| number.has(name))
    };
    while of_it.iter().any(|(behind, _)| is_taken(&format!("{dataset}{behind}"))) {
        dataset.push('_');
    }
    for (behind, value) in of_it {
        put_one(metrics, format!("eval/{dataset}{behind}"), value);
    }
}

/// The numbers of a data set, by what follows its name in theirs.
fn of_dataset(figures: &Figures) -> Vec<(String, f64)> {
    let reward = figures.reward.map(|reward| (String::new(), reward.mean));
    let pass_rates = figures.pass_rates.iter().map(|(k, rate)| (format!("-pass@{k}"), *rate));
    let truncated = figures.truncated_ratio.map(|ratio| ("-truncated_ratio".to_owned(), ratio));
    let below = NUMBERS.iter().filter(|number| number.kind == Kind::Rollout);
    let below = below.flat_map(|number| number.of(figures)).map(|(name, value)| (format!("/{name}"), value));
    reward.into_iter().chain(pass_rates).chain(truncated).chain(below).collect()
}

/// A sum of huge values may overflow; no tracker takes an infinity.
fn put_one(metrics: &mut BTreeMap<String, f64>, name: String, value: f64) {
    if value.is_finite() {
        metrics.insert(name, value);
    }
}

/// The data sets, by name.
fn datasets<'a>(evaluation: &[&'a SampleTrace]) -> impl Iterator<Item = Cow<'a, str>> + use<'a> {
    let names: BTreeSet<_> = evaluation.iter().filter_map(|sample| dataset_of(sample)).collect();
    names.into_iter().take(MOST_DATASETS)
}

/// What a sample's data set is called in names.
fn dataset_of(sample: &SampleTrace) -> Option<Cow<'_, str>> {
    sample.mark.dataset.as_deref().map(name_part)
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

#[cfg(test)]
mod tests;
