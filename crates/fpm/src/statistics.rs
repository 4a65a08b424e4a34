//! Count, sum and variance of lengths, in one pass.

/// Sums up lengths by Welford's method, which loses nothing where lengths are large and alike.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Statistics {
    count: u64,
    sum: u64,
    mean: f64,
    /// Sum of squared distances from the mean.
    squares: f64,
}

// === impl Statistics ===

impl Statistics {
    /// Takes one more.
    pub fn add(&mut self, length: u64) {
        self.count += 1;
        self.sum += length;
        let distance = length as f64 - self.mean;
        self.mean += distance / self.count as f64;
        self.squares += distance * (length as f64 - self.mean);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Their variance over the population; 0 of none.
    pub fn variance(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.squares / self.count as f64 }
    }
}

impl Extend<u64> for Statistics {
    fn extend<I: IntoIterator<Item = u64>>(&mut self, lengths: I) {
        lengths.into_iter().for_each(|length| self.add(length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variance_is_that_of_the_population() {
        let mut statistics = Statistics::default();
        assert_eq!((statistics.count(), statistics.sum(), statistics.variance()), (0, 0, 0.0));
        statistics.extend([2, 4, 4, 4, 5, 5, 7, 9]);
        assert_eq!((statistics.count(), statistics.sum(), statistics.variance()), (8, 40, 4.0));
        // Two passes over sums of squares would lose these ones in rounding.
        let mut alike = Statistics::default();
        alike.extend([1_000_000_000, 1_000_000_002]);
        assert_eq!((alike.sum(), alike.variance()), (2_000_000_002, 1.0));
    }
}
