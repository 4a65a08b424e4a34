//! Two steps or runs against each other, stage by stage.
//!
//! Each stage's values of one side are ranked among those of the other: the rank test of Mann and Whitney, "On a Test
//! of Whether one of Two Random Variables is Stochastically Larger than the Other", 1947, two-sided, by the normal
//! approximation with the correction for ties. It asks nothing of how values are distributed, which latencies would
//! not answer. The *effect* is how far the two sides lie apart: Cliff, "Dominance Statistics: Ordinal Analyses to
//! Answer Ordinal Questions", 1993, by the same ranks: how much likelier a value of now is above one of before than
//! below it. With many requests the smallest change is certain, and only the effect tells whether it matters. The
//! *confidence* is one less the chance of ranks at least as uneven if nothing had changed. It takes
//! requests as independent; those of one batch are not quite, so that a little above 95% says less than it seems.

use rollscope_stats::{Distribution, RequestValues, Series};

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
    /// From -1, every value is below every one of before, to 1, every one is above.
    pub effect: f64,
}

/// How far two sides lie apart, by the bounds of Romano, Kromrey, Coraggio and Skowronek, "Appropriate Statistics for
/// Ordinal Level Data", 2006.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Magnitude {
    /// Nothing that matters, however certain.
    Negligible,
    /// Seen in figures only.
    Small,
    /// Seen by whoever looks.
    Medium,
    /// Two different things.
    Large,
}

/// A side with fewer values says nothing; the normal approximation is good from here on.
const FEWEST: f64 = 8.0;

/// Every stage that both sides have, in the order of [`rollscope_stats::SERIES`].
pub fn compare(before: RequestValues, after: RequestValues) -> Vec<Change> {
    let both = before.into_columns().zip(after.into_columns());
    let change = |((series, before), (_, after)): ((&'static Series, Vec<f64>), (_, Vec<f64>))| {
        let uneven = Uneven::of(&before, &after);
        Some(Change {
            series,
            confidence: uneven.confidence(),
            effect: uneven.effect(),
            before: Distribution::of(before)?,
            after: Distribution::of(after)?,
        })
    };
    both.filter_map(change).collect()
}

/// The ranks of two sides against each other.
struct Uneven {
    before: f64,
    after: f64,
    /// The sum of the first side's ranks beyond what it would be if nothing had changed.
    beyond: f64,
    ties: f64,
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

// === impl Magnitude ===

impl Magnitude {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Negligible => "negligible",
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
        }
    }
}

// === impl Change ===

impl Change {
    /// How far the two sides lie apart.
    pub fn magnitude(&self) -> Magnitude {
        match self.effect.abs() {
            effect if effect < 0.147 => Magnitude::Negligible,
            effect if effect < 0.33 => Magnitude::Small,
            effect if effect < 0.474 => Magnitude::Medium,
            _ => Magnitude::Large,
        }
    }
}

// === impl Uneven ===

impl Uneven {
    fn of(before: &[f64], after: &[f64]) -> Self {
        let (m, n) = (before.len() as f64, after.len() as f64);
        let (ranks, ties) = ranks_of_first(before, after);
        Self { before: m, after: n, beyond: (ranks - m * (m + 1.0) / 2.0) - m * n / 2.0, ties }
    }

    /// Pairs in which the later value is larger, less those in which it is smaller, among all.
    fn effect(&self) -> f64 {
        let pairs = self.before * self.after;
        if pairs > 0.0 { -2.0 * self.beyond / pairs } else { 0.0 }
    }

    fn confidence(&self) -> Option<f64> {
        let (m, n) = (self.before, self.after);
        if m.min(n) < FEWEST {
            return None;
        }
        let all = m + n;
        let variance = m * n / 12.0 * ((all + 1.0) - self.ties / (all * (all - 1.0)));
        if variance <= 0.0 {
            // All values are the same.
            return Some(0.0);
        }
        // Half a rank for what is not continuous.
        let z = (self.beyond.abs() - 0.5).max(0.0) / variance.sqrt();
        Some(1.0 - libm::erfc(z / std::f64::consts::SQRT_2))
    }
}

#[cfg(test)]
mod tests {
    use rollscope_stats::SERIES;

    use super::*;

    #[test]
    fn confidence_is_that_of_the_test_written_out() {
        // scipy.stats.mannwhitneyu(a, b, method="asymptotic"): p = 0.000_939_1, 1.0 and 0.046_617_8.
        let confidence = |before: &[f64], after: &[f64]| Uneven::of(before, after).confidence();
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

    #[test]
    fn what_is_certain_need_not_matter() {
        let before: Vec<f64> = (0..20_000).map(f64::from).collect();
        let shifted = |by: f64| -> Vec<f64> { before.iter().map(|value| value + by).collect() };
        for (by, effect, magnitude) in [
            (400.0, 0.04, Magnitude::Negligible),
            (2000.0, 0.19, Magnitude::Small),
            (-4000.0, -0.36, Magnitude::Medium),
            (20_000.0, 1.0, Magnitude::Large),
        ] {
            let uneven = Uneven::of(&before, &shifted(by));
            let of = Distribution::of(before.clone()).unwrap();
            let change = Change {
                series: &SERIES[0],
                before: of,
                after: of,
                confidence: uneven.confidence(),
                effect: uneven.effect(),
            };
            assert!(change.confidence.unwrap() > 0.999, "{change:?}");
            assert!((change.effect - effect).abs() < 0.01, "{} instead of {effect}", change.effect);
            assert_eq!(change.magnitude(), magnitude);
        }
    }
}
