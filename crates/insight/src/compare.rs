//! Two steps or runs against each other, stage by stage.
//!
//! Each stage's values of one side are ranked among those of the other: the rank test of Mann and Whitney, "On a Test
//! of Whether one of Two Random Variables is Stochastically Larger than the Other", 1947, two-sided, by the normal
//! approximation with the correction for ties. It asks nothing of how values are distributed, which latencies would
//! not answer. The *confidence* is one less the chance of ranks at least as uneven if nothing had changed. It takes
//! requests as independent; those of one batch are not quite, so that a little above 95% says less than it seems.

use rollscope_stats::{Distribution, SERIES, Series, population};
use rollscope_trace::StepTrace;

/// The values of each series, of one step or of several.
#[derive(Clone, Debug)]
pub struct Values(Vec<Vec<f64>>);

/// What became of a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Which values.
    pub series: &'static Series,
    /// What they were.
    pub before: Distribution,
    /// What they are.
    pub after: Distribution,
    /// From 0 to 1; nothing where a side has too few values to say.
    pub confidence: Option<f64>,
}

/// A side with fewer values says nothing; the normal approximation is good from here on.
const FEWEST: usize = 8;

// === impl Values ===

impl Default for Values {
    fn default() -> Self {
        Self(vec![Vec::new(); SERIES.len()])
    }
}

impl Values {
    /// Takes the requests of a step, those that it is judged by.
    pub fn add(&mut self, trace: &StepTrace) {
        for request in population(trace).flat_map(|sample| &sample.requests) {
            for (series, values) in SERIES.iter().zip(&mut self.0) {
                values.extend(series.value(request));
            }
        }
    }
}

/// Every stage that both sides have, in the order of [`SERIES`].
pub fn compare(before: Values, after: Values) -> Vec<Change> {
    let both = SERIES.iter().zip(before.0.into_iter().zip(after.0));
    let change = |(series, (before, after)): (&'static Series, (Vec<f64>, Vec<f64>))| {
        let confidence = confidence(&before, &after);
        Some(Change {
            series,
            before: Distribution::of(before)?,
            after: Distribution::of(after)?,
            confidence,
        })
    };
    both.filter_map(change).collect()
}

fn confidence(before: &[f64], after: &[f64]) -> Option<f64> {
    if before.len().min(after.len()) < FEWEST {
        return None;
    }
    let (m, n) = (before.len() as f64, after.len() as f64);
    let (ranks, ties) = ranks_of_first(before, after);
    let uneven = (ranks - m * (m + 1.0) / 2.0) - m * n / 2.0;
    let all = m + n;
    let variance = m * n / 12.0 * ((all + 1.0) - ties / (all * (all - 1.0)));
    if variance <= 0.0 {
        // All values are the same.
        return Some(0.0);
    }
    // Half a rank for what is not continuous.
    let z = (uneven.abs() - 0.5).max(0.0) / variance.sqrt();
    Some(1.0 - libm::erfc(z / std::f64::consts::SQRT_2))
}

/// The sum of the ranks of the first side among both, ties sharing theirs; and the sum of t³ − t over the ties.
fn ranks_of_first(first: &[f64], second: &[f64]) -> (f64, f64) {
    let mut all: Vec<(f64, bool)> =
        first.iter().map(|value| (*value, true)).chain(second.iter().map(|value| (*value, false))).collect();
    all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut ranks, mut ties, mut before) = (0.0, 0.0, 0.0);
    for tied in all.chunk_by(|a, b| a.0.total_cmp(&b.0).is_eq()) {
        let count = tied.len() as f64;
        let of_first = tied.iter().filter(|(_, is_first)| *is_first).count() as f64;
        ranks += of_first * (before + f64::midpoint(count, 1.0));
        ties += count.powi(3) - count;
        before += count;
    }
    (ranks, ties)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidence_is_that_of_the_test_written_out() {
        // scipy.stats.mannwhitneyu(a, b, method="asymptotic"): p = 0.000_939_1, 1.0 and 0.046_617_8.
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let far: Vec<f64> = a.iter().map(|value| value + 7.5).collect();
        let near = |found: Option<f64>, expected: f64| {
            assert!((found.unwrap() - expected).abs() < 1e-4, "{found:?} instead of {expected}");
        };
        near(confidence(&a, &far), 1.0 - 0.000_939_1);
        near(confidence(&a, &a), 0.0);
        let tied = [4.0, 5.0, 5.0, 6.0, 8.0, 8.0, 9.0, 9.0, 9.0];
        near(confidence(&a, &tied), 1.0 - 0.046_617_8);
        assert_eq!(confidence(&a[1..], &far), None);
        assert_eq!(confidence(&[1.0; 9], &[1.0; 9]), Some(0.0));
    }
}
