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
        let mut moments = Moments::of(&values);
        // An infinite sum may be of finite values; without one there is nothing else among them.
        if !moments.sum.is_finite() && !values.iter().all(|value| value.is_finite()) {
            values.retain(|value| value.is_finite());
            moments = Moments::of(&values);
        }
        if values.is_empty() {
            return None;
        }
        let number = values.len() as f64;
        let Moments { sum, min, max, squares, .. } = moments;
        let mean = (sum / number).clamp(min, max);
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

/// What is added up of values. Many do not fit into a cache, so that they are gone through once, block by block, and the
/// squared distances from the means of two blocks are put together as in Chan, Golub and `LeVeque`, "Algorithms for
/// Computing the Sample Variance", 1983.
#[derive(Clone, Copy, Debug)]
struct Moments {
    count: f64,
    sum: f64,
    min: f64,
    max: f64,
    /// Squared distances from the mean.
    squares: f64,
}

/// Values that are gone through twice while they are in the nearest cache.
const BLOCK: usize = 1024;
/// Values that are taken at a time: a sum that waits for each addition takes four times as long, and is less exact.
const LANES: usize = 8;

// === impl Moments ===

impl Moments {
    const NONE: Self =
        Self { count: 0.0, sum: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY, squares: 0.0 };

    fn of(values: &[f64]) -> Self {
        values.chunks(BLOCK).map(Self::of_block).fold(Self::NONE, Self::and)
    }

    fn of_block(values: &[f64]) -> Self {
        let (chunks, rest) = values.as_chunks::<LANES>();
        let mut sums = [0.0; LANES];
        let (mut least, mut most) = ([f64::INFINITY; LANES], [f64::NEG_INFINITY; LANES]);
        for chunk in chunks {
            for lane in 0..LANES {
                let value = chunk[lane];
                sums[lane] += value;
                least[lane] = if value < least[lane] { value } else { least[lane] };
                most[lane] = if value > most[lane] { value } else { most[lane] };
            }
        }
        let all = |of: [f64; LANES]| of.into_iter().chain(rest.iter().copied());
        let sum: f64 = all(sums).sum();
        let mean = sum / values.len() as f64;
        let square = |value: f64| (value - mean) * (value - mean);
        let mut squares = [0.0; LANES];
        for chunk in chunks {
            for lane in 0..LANES {
                squares[lane] += square(chunk[lane]);
            }
        }
        Self {
            count: values.len() as f64,
            sum,
            min: all(least).fold(f64::INFINITY, f64::min),
            max: all(most).fold(f64::NEG_INFINITY, f64::max),
            squares: squares.into_iter().sum::<f64>() + rest.iter().map(|value| square(*value)).sum::<f64>(),
        }
    }

    fn and(self, other: Self) -> Self {
        if self.count == 0.0 {
            return other;
        }
        let count = self.count + other.count;
        let apart = other.sum / other.count - self.sum / self.count;
        Self {
            count,
            sum: self.sum + other.sum,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            squares: self.squares + other.squares + apart * apart * (self.count / count) * other.count,
        }
    }
}

/// Quantiles in rising order, by linear interpolation between the two nearest ranks: definition 7 of Hyndman and
/// Fan, "Sample Quantiles in Statistical Packages", 1996, the default of `numpy.quantile`. As there, the
/// interpolation starts from the nearer end, so that a larger quantile never has a smaller value.
///
/// Values are selected and not sorted. Of few, each selection leaves what is smaller before it, so the next one only
/// looks at what comes after. Of many, those are taken out first that are of the right coarse size.
fn quantiles<const N: usize>(values: &mut [f64], wanted: [f64; N]) -> [f64; N] {
    let last = values.len() - 1;
    let ranks = wanted.map(|q| {
        let rank = last as f64 * q;
        (rank.floor() as usize, rank - rank.floor())
    });
    let near =
        if values.len() < COARSE_FROM { near(values, ranks) } else { Coarse::of(values).near(values, ranks) };
    std::array::from_fn(|index| {
        let ([low, high], (_, part)) = (near[index], ranks[index]);
        if part < 0.5 { low + (high - low) * part } else { high - (high - low) * (1.0 - part) }
    })
}

/// The values of each rank and of the one after it.
fn near<const N: usize>(values: &mut [f64], ranks: [(usize, f64); N]) -> [[f64; 2]; N] {
    let mut settled = 0;
    ranks.map(|(below, _)| {
        let found = neighbours(&mut values[settled..], below - settled);
        settled = below;
        found
    })
}

/// The value of a rank and the next one; the last has none after it and stands for both.
fn neighbours(values: &mut [f64], below: usize) -> [f64; 2] {
    let (_, low, above) = values.select_nth_unstable_by(below, f64::total_cmp);
    [*low, above.iter().copied().reduce(f64::min).unwrap_or(*low)]
}

/// Fewer values are selected from as they are.
const COARSE_FROM: usize = 1 << 17;
/// Leading bits by which values are counted: the sign, the exponent and four of the fraction, which tell values apart
/// that differ by a sixteenth, whatever their scale.
const COARSE_BITS: u32 = 16;

/// How many values there are of each coarse size.
struct Coarse(Vec<u32>);

// === impl Coarse ===

impl Coarse {
    fn of(values: &[f64]) -> Self {
        let mut counts = vec![0; 1 << COARSE_BITS];
        for value in values {
            counts[Self::size(*value)] += 1;
        }
        Self(counts)
    }

    /// In the order of [`f64::total_cmp`]: the bits of a number that is not negative rise with it, those of a negative
    /// one fall.
    fn size(value: f64) -> usize {
        let bits = value.to_bits();
        let ordered = if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
        (ordered >> (64 - COARSE_BITS)) as usize
    }

    /// As [`near`] of all values.
    fn near<const N: usize>(&self, values: &[f64], ranks: [(usize, f64); N]) -> [[f64; 2]; N] {
        let last = values.len() - 1;
        let places = ranks.map(|(below, _)| [self.place(below), self.place((below + 1).min(last))]);
        // Those that are of a size that is asked for, size by size.
        let mut sizes: Vec<usize> = places.iter().flatten().map(|place| place.0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut of_sizes: Vec<Vec<f64>> =
            sizes.iter().map(|size| Vec::with_capacity(self.0[*size] as usize)).collect();
        let mut taken = vec![u8::MAX; self.0.len()];
        for (index, size) in (0u8..).zip(&sizes) {
            taken[*size] = index;
        }
        for value in values {
            if let Some(of_size) = of_sizes.get_mut(usize::from(taken[Self::size(*value)])) {
                of_size.push(*value);
            }
        }
        places.map(|[(size, rank), (next_size, _)]| {
            let found = of_sizes.get_mut(usize::from(taken[size])).map(|of_size| neighbours(of_size, rank));
            let [low, high] = found.unwrap_or([f64::NAN; 2]);
            if next_size == size {
                return [low, high];
            }
            let next = of_sizes.get(usize::from(taken[next_size])).into_iter().flatten();
            [low, next.copied().fold(f64::INFINITY, f64::min)]
        })
    }

    /// The coarse size of the value of a rank, and its rank among those of that size.
    fn place(&self, rank: usize) -> (usize, usize) {
        let mut left = rank;
        let found = self.0.iter().position(|count| {
            let is_here = left < *count as usize;
            left -= if is_here { 0 } else { *count as usize };
            is_here
        });
        (found.unwrap_or(0), left)
    }
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

    #[test]
    fn blocks_add_up_to_what_all_values_have() {
        // Far from zero and near to each other, with one that is not: what squares of the values themselves would lose.
        let mut values: Vec<f64> = (0..BLOCK * 3 + 5).map(|at| 1e9 + f64::from(at as u32 % 97)).collect();
        values[BLOCK] = -4e9;
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let of = Distribution::of(values).unwrap();
        assert!(near(of.mean, mean) && near(of.std, (squares / count).sqrt()), "{of:?}");
        assert_eq!((of.min, of.max), (-4e9, 1e9 + 96.0));
        // No more than fits into a number, though their sum does not.
        let of = Distribution::of(vec![f64::MAX, f64::MAX, f64::NAN]).unwrap();
        assert_eq!((of.count, of.mean, of.median), (2, f64::MAX, f64::MAX));
    }

    #[test]
    fn many_values_have_the_quantiles_that_sorting_gives() {
        // Of all scales, with ties, negative ones and zeros of both signs; all but a few alike; all alike.
        let mut draw = 1u64;
        let mut drawn = |_| {
            draw = draw * 48_271 % 0x7fff_ffff;
            let unit = draw as f64 / 2_147_483_647.0;
            match draw % 5 {
                0 => -unit,
                1 => (unit * 10.0).floor() - 5.0,
                2 => 10f64.powf(unit * 40.0 - 20.0),
                3 => -0.0,
                _ => unit,
            }
        };
        let many = COARSE_FROM * 2 + 1;
        let mixed: Vec<f64> = (0..many).map(&mut drawn).collect();
        let mut alike = vec![2.5; many];
        alike[7] = 1e300;
        for values in [mixed, alike, vec![-3.0; COARSE_FROM]] {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let wanted = [0.0, 0.5, 0.9, 0.99, 1.0];
            let expected = wanted.map(|q| {
                let rank = (sorted.len() - 1) as f64 * q;
                let (below, above) = (rank.floor() as usize, rank.ceil() as usize);
                let (low, high, part) = (sorted[below], sorted[above], rank - rank.floor());
                if part < 0.5 { low + (high - low) * part } else { high - (high - low) * (1.0 - part) }
            });
            let found = quantiles(&mut values.clone(), wanted);
            assert_eq!(
                found.map(f64::to_bits),
                expected.map(f64::to_bits),
                "{found:?} instead of {expected:?}"
            );
        }
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
