//! Least squares over one or two features, and how good they are.

use super::samples::Sample;

/// A time that is linear in what a pass holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Seconds for each unit of each feature.
    pub coefficients_s: Vec<f64>,
    /// Time of a pass with nothing in it, seconds.
    pub intercept_s: f64,
    /// Passes that it was made of.
    pub samples: usize,
    /// Share of their times' variance that it explains; nothing where they were all alike.
    pub r_squared: Option<f64>,
    /// What it is wrong by on average, seconds.
    pub mean_residual_s: f64,
    /// What it is wrong by at most, seconds.
    pub max_residual_s: f64,
}

/// Fewer tell nothing.
const MIN_SAMPLES: usize = 5;

// === impl Fit ===

impl Fit {
    /// The line or plane with the least squares of distances; of several, as when features go together, the one with the
    /// smallest coefficients. Nothing of too few samples.
    pub(super) fn of(samples: &[Sample], dimensions: usize) -> Option<Self> {
        if samples.len() < MIN_SAMPLES {
            return None;
        }
        let count = samples.len() as f64;
        let mean = |read: &dyn Fn(&Sample) -> f64| samples.iter().map(read).sum::<f64>() / count;
        let means = [mean(&|sample| sample.features[0]), mean(&|sample| sample.features[1])];
        let mean_wall_s = mean(&|sample| sample.wall_s);
        let centred: Vec<([f64; 2], f64)> = samples
            .iter()
            .map(|sample| {
                let [a, b] = sample.features;
                ([a - means[0], b - means[1]], sample.wall_s - mean_wall_s)
            })
            .collect();
        let coefficients = solve(&centred);
        let intercept_s = mean_wall_s - coefficients[0] * means[0] - coefficients[1] * means[1];
        let mut fit = Self {
            coefficients_s: coefficients[..dimensions].to_vec(),
            intercept_s,
            samples: samples.len(),
            r_squared: None,
            mean_residual_s: 0.0,
            max_residual_s: 0.0,
        };
        let residuals = samples.iter().map(|sample| (sample.wall_s - fit.predict_s(sample.features)).abs());
        let residuals: Vec<f64> = residuals.collect();
        let spread: f64 = centred.iter().map(|(_, wall)| wall * wall).sum();
        let missed: f64 = residuals.iter().map(|residual| residual * residual).sum();
        fit.r_squared = (spread > 0.0).then(|| 1.0 - missed / spread);
        fit.mean_residual_s = residuals.iter().sum::<f64>() / count;
        fit.max_residual_s = residuals.iter().copied().fold(0.0, f64::max);
        Some(fit)
    }

    /// Time of a pass with these features, seconds.
    pub(super) fn predict_s(&self, features: [f64; 2]) -> f64 {
        let terms = self.coefficients_s.iter().zip(features).map(|(coefficient, value)| coefficient * value);
        self.intercept_s + terms.sum::<f64>()
    }
}

/// Least squares with the smallest coefficients, by the singular values of two columns: one rotation makes the columns
/// orthogonal (M. R. Hestenes, 1958), and a direction in which they do not extend beyond rounding counts for nothing.
fn solve(centred: &[([f64; 2], f64)]) -> [f64; 2] {
    let sum =
        |read: &dyn Fn([f64; 2]) -> f64| centred.iter().map(|(features, _)| read(*features)).sum::<f64>();
    let (aa, bb) = (sum(&|[a, _]| a * a), sum(&|[_, b]| b * b));
    let ab = sum(&|[a, b]| a * b);
    let angle = 0.5 * (2.0 * ab).atan2(aa - bb);
    let (sin, cos) = angle.sin_cos();
    let directions = [[cos, sin], [-sin, cos]];
    // Along each direction: squared length, and what of the times goes with it.
    let along = directions.map(|[x, y]| {
        centred.iter().fold((0.0, 0.0), |(length, with), ([a, b], wall)| {
            let place = a * x + b * y;
            (length + place * place, with + place * wall)
        })
    });
    let longest = along[0].0.max(along[1].0).sqrt();
    let rounding = f64::EPSILON * centred.len().max(2) as f64 * longest;
    let mut coefficients = [0.0, 0.0];
    for ([x, y], (length, with)) in directions.into_iter().zip(along) {
        if length.sqrt() > rounding {
            coefficients[0] += x * with / length;
            coefficients[1] += y * with / length;
        }
    }
    coefficients
}
