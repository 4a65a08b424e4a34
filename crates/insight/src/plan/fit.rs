//! Least squares over one or two features with no time below 0, and how good they are.
//!
//! Where the line or plane of least squares has no negative term it is the fit, as in the planner. Noise, and passes that
//! are much alike, also give others: a pass that takes less time the more it holds, or less than none when it holds nothing.
//! Of those that hold some terms at 0 and have no negative one, the fit is then the one with the least squares (C. L. Lawson
//! and R. J. Hanson, *Solving Least Squares Problems*, 1974; three terms are few enough to try all). What is said of how good
//! it is, is said of that one.

use super::samples::Sample;

/// A time that is linear in what a pass holds; no term is negative.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Seconds for each unit of each feature; 0 where the passes show no growth with it.
    pub coefficients_s: Vec<f64>,
    /// Time of a pass with nothing in it, seconds.
    pub intercept_s: f64,
    /// Passes that it was made of.
    pub samples: usize,
    /// Share of their times' variance that it explains, below 0 where their mean would explain more; nothing where they
    /// were all alike.
    pub r_squared: Option<f64>,
    /// What it is wrong by on average, seconds.
    pub mean_residual_s: f64,
    /// What it is wrong by at most, seconds.
    pub max_residual_s: f64,
}

/// Why there is no fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoFit {
    /// So many passes tell nothing; [`MIN_SAMPLES`] are wanted.
    TooFew(usize),
    /// Passes with more in them do not take longer.
    NoGrowth,
}

/// Fewer passes give no fit.
pub const MIN_SAMPLES: usize = 5;

/// Which of the features and the intercept are free: all of them first.
const FREE: [([bool; 2], bool); 8] = [
    ([true, true], true),
    ([true, true], false),
    ([true, false], true),
    ([false, true], true),
    ([true, false], false),
    ([false, true], false),
    ([false, false], true),
    ([false, false], false),
];

// === impl Fit ===

impl Fit {
    /// The fit of these samples. Of several that are as good, as when features go together, it is the one with the smallest
    /// coefficients.
    pub(super) fn of(samples: &[Sample], dimensions: usize) -> Result<Self, NoFit> {
        if samples.len() < MIN_SAMPLES {
            return Err(NoFit::TooFew(samples.len()));
        }
        let mut fits = FREE.into_iter().map(|(features, intercept)| {
            let (coefficients, intercept_s) = least_squares(samples, features, intercept);
            Self::measured(samples, coefficients[..dimensions].to_vec(), intercept_s)
        });
        let all_free = fits.next().filter(|(fit, _)| fit.is_possible());
        // None of the others is better, whatever rounding says.
        let (fit, _) = all_free
            .or_else(|| fits.filter(|(fit, _)| fit.is_possible()).min_by(|a, b| a.1.total_cmp(&b.1)))
            .ok_or(NoFit::NoGrowth)?;
        let grows = fit.coefficients_s.iter().any(|coefficient| *coefficient > 0.0);
        if grows || are_alike(samples) { Ok(fit) } else { Err(NoFit::NoGrowth) }
    }

    /// A fit with these terms, how good it is, and the sum of its squared residuals.
    fn measured(samples: &[Sample], coefficients_s: Vec<f64>, intercept_s: f64) -> (Self, f64) {
        let mut fit = Self {
            coefficients_s,
            intercept_s,
            samples: samples.len(),
            r_squared: None,
            mean_residual_s: 0.0,
            max_residual_s: 0.0,
        };
        let residual = |sample: &Sample| (sample.wall_s - fit.predict_s(sample.features)).abs();
        let residuals: Vec<f64> = samples.iter().map(residual).collect();
        let missed: f64 = residuals.iter().map(|residual| residual * residual).sum();
        let mean_wall_s = mean(samples, |sample| sample.wall_s);
        let spread: f64 = samples.iter().map(|sample| (sample.wall_s - mean_wall_s).powi(2)).sum();
        fit.r_squared = (spread > 0.0).then(|| 1.0 - missed / spread);
        fit.mean_residual_s = residuals.iter().sum::<f64>() / samples.len() as f64;
        fit.max_residual_s = residuals.iter().copied().fold(0.0, f64::max);
        (fit, missed)
    }

    fn is_possible(&self) -> bool {
        self.intercept_s >= 0.0 && self.coefficients_s.iter().all(|coefficient| *coefficient >= 0.0)
    }

    /// Time of a pass with these features, seconds.
    pub(super) fn predict_s(&self, features: [f64; 2]) -> f64 {
        let terms = self.coefficients_s.iter().zip(features).map(|(coefficient, value)| coefficient * value);
        self.intercept_s + terms.sum::<f64>()
    }
}

/// Whether all hold the same, so that nothing can be said of growth.
fn are_alike(samples: &[Sample]) -> bool {
    let bits = |sample: &Sample| sample.features.map(f64::to_bits);
    samples.windows(2).all(|two| bits(&two[0]) == bits(&two[1]))
}

fn mean(samples: &[Sample], read: impl Fn(&Sample) -> f64) -> f64 {
    samples.iter().map(read).sum::<f64>() / samples.len() as f64
}

/// The coefficients and the intercept of least squares; what is not free is 0.
fn least_squares(samples: &[Sample], features: [bool; 2], intercept: bool) -> ([f64; 2], f64) {
    let of = |sample: &Sample| [0, 1].map(|index| if features[index] { sample.features[index] } else { 0.0 });
    // Distances from the means, or from nothing where the line is to go through it.
    let centre = |value: f64| if intercept { value } else { 0.0 };
    let means = [0, 1].map(|index| centre(mean(samples, |sample| of(sample)[index])));
    let mean_wall_s = centre(mean(samples, |sample| sample.wall_s));
    let distances = samples.iter().map(|sample| {
        let [a, b] = of(sample);
        ([a - means[0], b - means[1]], sample.wall_s - mean_wall_s)
    });
    let solved = solve(&distances.collect::<Vec<_>>());
    // Turning back leaves a grain of rounding where nothing is.
    let coefficients = [0, 1].map(|index| if features[index] { solved[index] } else { 0.0 });
    (coefficients, mean_wall_s - coefficients[0] * means[0] - coefficients[1] * means[1])
}

/// Least squares with the smallest coefficients, by the singular values of two columns: one rotation makes the columns
/// orthogonal (M. R. Hestenes, 1958), and a direction in which they do not extend beyond rounding counts for nothing.
fn solve(points: &[([f64; 2], f64)]) -> [f64; 2] {
    let sum =
        |read: &dyn Fn([f64; 2]) -> f64| points.iter().map(|(features, _)| read(*features)).sum::<f64>();
    let (aa, bb) = (sum(&|[a, _]| a * a), sum(&|[_, b]| b * b));
    let ab = sum(&|[a, b]| a * b);
    let angle = 0.5 * (2.0 * ab).atan2(aa - bb);
    let (sin, cos) = angle.sin_cos();
    let directions = [[cos, sin], [-sin, cos]];
    // Along each direction: squared length, and what of the times goes with it.
    let along = directions.map(|[x, y]| {
        points.iter().fold((0.0, 0.0), |(length, with), ([a, b], wall)| {
            let place = a * x + b * y;
            (length + place * place, with + place * wall)
        })
    });
    let longest = along[0].0.max(along[1].0).sqrt();
    let rounding = f64::EPSILON * points.len().max(2) as f64 * longest;
    let mut coefficients = [0.0, 0.0];
    for ([x, y], (length, with)) in directions.into_iter().zip(along) {
        if length.sqrt() > rounding {
            coefficients[0] += x * with / length;
            coefficients[1] += y * with / length;
        }
    }
    coefficients
}
