//! What is told of a set of values: how many, where they lie, how far they spread.

/// The summary of a set of finite values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distribution {
    /// How many values; at least 1.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// Their arithmetic mean.
    pub mean: f64,
    /// The 50th percentile.
    pub median: f64,
    /// The largest.
    pub max: f64,
    /// The smallest.
    pub min: f64,
    /// Standard deviation of the population: the root of the mean squared distance from the mean, divided by
    /// the number of values and not by one less.
    pub std: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
}

// === impl Distribution ===

impl Distribution {
    /// Sums up `values` in any order; those that are not finite are left out. Nothing when none is left.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        let (mut sum, mut min, mut max) = (0.0, f64::INFINITY, f64::NEG_INFINITY);
        for &value in &values {
            sum += value;
            min = min.min(value);
            max = max.max(value);
        }
        if values.is_empty() {
            return None;
        }
        let number = values.len() as f64;
        let mean = (sum / number).clamp(min, max);
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let [median, p90, p99] = quantiles(&mut values, [0.5, 0.9, 0.99]);
        let std = (squares / number).sqrt();
        Some(Self { count: values.len() as u64, sum, mean, median, max, min, std, p90, p99 })
    }

    /// The last parts of the names of the statistics that go to a tracker.
    pub const NAMES: [&'static str; 8] = ["mean", "median", "max", "min", "std", "p90", "p99", "count"];

    /// The statistics that go to a tracker, by the last part of their names.
    pub fn named(&self) -> [(&'static str, f64); 8] {
        let values =
            [self.mean, self.median, self.max, self.min, self.std, self.p90, self.p99, self.count as f64];
        std::array::from_fn(|index| (Self::NAMES[index], values[index]))
    }
}

/// Quantiles in rising order, by linear interpolation between the two nearest ranks: definition 7 of Hyndman and
/// Fan, "Sample Quantiles in Statistical Packages", 1996, the default of `numpy.quantile`. As there, the
/// interpolation starts from the nearer end, so that a larger quantile never has a smaller value.
///
/// Values are selected and not sorted; each selection leaves what is smaller before it, so the next one only looks
/// at what comes after.
fn quantiles<const N: usize>(values: &mut [f64], wanted: [f64; N]) -> [f64; N] {
    let last = values.len() - 1;
    let mut settled = 0;
    wanted.map(|q| {
        let rank = last as f64 * q;
        let (below, part) = (rank.floor() as usize, rank - rank.floor());
        let (_, low, above) = values[settled..].select_nth_unstable_by(below - settled, f64::total_cmp);
        let low = *low;
        settled = below;
        let high = above.iter().copied().reduce(f64::min).unwrap_or(low);
        if part < 0.5 { low + (high - low) * part } else { high - (high - low) * (1.0 - part) }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * a.abs().max(b.abs()).max(1.0)
    }

    #[test]
    fn agrees_with_the_formulas_written_out() {
        let of = Distribution::of(vec![3.0, 1.0, 10.0, 2.0, f64::NAN, f64::INFINITY]).unwrap();
        // numpy.quantile([1, 2, 3, 10], q): ranks 1.5, 2.7 and 2.97 of 0 … 3.
        assert_eq!((of.count, of.min, of.max, of.sum, of.mean), (4, 1.0, 10.0, 16.0, 4.0));
        assert!(near(of.median, 2.5), "{}", of.median);
        assert!(near(of.p90, 3.0 + 0.7 * 7.0), "{}", of.p90);
        assert!(near(of.p99, 3.0 + 0.97 * 7.0), "{}", of.p99);
        // numpy.std([1, 2, 3, 10]): (9 + 4 + 1 + 36) / 4.
        assert!(near(of.std, 12.5f64.sqrt()), "{}", of.std);
    }

    #[test]
    fn a_single_value_is_its_own_statistics_and_none_has_none() {
        let one = Distribution::of(vec![-0.25]).unwrap();
        assert_eq!((one.median, one.p90, one.p99, one.mean, one.std), (-0.25, -0.25, -0.25, -0.25, 0.0));
        assert_eq!(Distribution::of(vec![]), None);
        assert_eq!(Distribution::of(vec![f64::NAN]), None);
    }

    proptest! {
        #[test]
        fn order_does_not_matter_and_ranks_are_in_order(
            (values, shuffled) in prop::collection::vec(-1e9..1e9f64, 1..200)
                .prop_flat_map(|values| (Just(values.clone()), Just(values).prop_shuffle())),
        ) {
            let of = Distribution::of(values).unwrap();
            let other = Distribution::of(shuffled).unwrap();
            // Sums differ by what rounding makes of their order.
            for ((name, value), (_, other)) in of.named().into_iter().zip(other.named()) {
                prop_assert!((value - other).abs() <= 1e-6 * (1.0 + of.max.abs().max(of.min.abs())), "{name}");
            }
            let ranks = [of.min, of.median, of.p90, of.p99, of.max];
            prop_assert!(ranks.is_sorted(), "{ranks:?}");
            prop_assert!(of.min <= of.mean && of.mean <= of.max);
            prop_assert!(of.std <= (of.max - of.min) * (1.0 + 1e-9));
        }
    }
}
