//! From logits to a token and its log-probability.
//!
//! A draw depends on the logits, the parameters, the seed and the position, and on nothing else: there is no generator
//! whose state another request could advance. So a sample can be drawn again from the same logits, in another batch or in
//! another process.
//!
//! The distribution is softmax(logits / temperature). From it are kept the tokens that pass all of: top-k (the k most
//! likely), top-p (those before which the mass is at most p, as SGLang has it) and min-p (at least that share of the most
//! likely one's probability). The draw is from what is kept, in proportion.
//! Wherever tokens are equally likely the lower id comes first. [`Penalties`] change the logits before all that.

use std::cmp::Ordering;

use crate::isa::Isa;
use crate::kernels::exp_shifted;

mod penalties;

pub use penalties::{MAX_BIAS, Penalties};

/// How to choose the next token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 (anything below 1e-6) takes the most likely token.
    pub temperature: f32,
    /// Mass that the kept tokens must reach, in (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Number of tokens kept; -1 keeps all.
    pub top_k: i32,
    /// Probability relative to the most likely token's that a kept token needs, in [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Seed of the draws.
    pub seed: u64,
}

/// A chosen token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log-softmax of logits / temperature; of the bare logits if greedy. Not of the kept tokens alone.
    pub logprob: f32,
}

/// What the filters kept of a distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// The tokens, the likeliest first.
    pub token_ids: Vec<u32>,
    /// The chosen token's log-probability among them.
    pub logprob: f32,
}

/// Working memory of [`sample`], kept from call to call.
#[derive(Debug, Default)]
pub struct SamplingScratch {
    /// exp(logit / temperature - highest), by token.
    weights: Vec<f32>,
    /// Candidates and their weights.
    ranked: Vec<(f32, u32)>,
}

/// The log-softmax of logits / temperature.
#[derive(Debug, Clone, Copy)]
pub struct LogSoftmax {
    scale: f32,
    /// The highest logit.
    top: f32,
    /// The sum of exp((logit - top) · scale).
    total: f64,
    /// Its logarithm.
    log_total: f64,
}

/// A sampling parameter that is out of its range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// Negative, infinite or not a number.
    #[error("temperature must be finite and at least 0, got {0}")]
    Temperature(f32),
    /// Not in (0, 1].
    #[error("top_p must be in (0, 1], got {0}")]
    TopP(f32),
    /// 0, or below -1.
    #[error("top_k must be -1 (all) or at least 1, got {0}")]
    TopK(i32),
    /// Not in [0, 1].
    #[error("min_p must be in [0, 1], got {0}")]
    MinP(f32),
    /// Not in [-2, 2].
    #[error("{name} must be in [-2, 2], got {value}")]
    Penalty {
        /// Which one.
        name: &'static str,
        /// What it was.
        value: f32,
    },
    /// Not in (0, 2].
    #[error("repetition_penalty must be in (0, 2], got {0}")]
    RepetitionPenalty(f32),
    /// Beyond [`MAX_BIAS`], or not a number.
    #[error("logit_bias must be within ±{MAX_BIAS:e}, got {bias} for token {token}")]
    LogitBias {
        /// The token that it is for.
        token: u32,
        /// What it was.
        bias: f32,
    },
}

/// Temperatures below this are greedy: dividing by them would only overflow.
const GREEDY_BELOW: f32 = 1e-6;

/// What the mass of kept tokens is taken for at least, before it divides.
const MIN_MASS: f64 = 1e-12;

/// Exponentials computed side by side on the stack.
const SUMMED_AT_ONCE: usize = 256;

/// Chooses the next token from finite logits by valid parameters ([`SamplingParams::validate`]); `position` is the
/// place in its sequence of the token to choose. At least one logit is needed.
pub fn sample(
    logits: &[f32],
    params: &SamplingParams,
    position: u64,
    scratch: &mut SamplingScratch,
) -> Sampled {
    if params.is_greedy() {
        let token = highest(logits);
        return Sampled { token, logprob: token_logprob(logits, token) };
    }
    let softmax = LogSoftmax::new(logits, params.temperature);
    let SamplingScratch { weights, ranked } = scratch;
    weights.resize(logits.len(), 0.0);
    exp_shifted(Isa::detect(), logits, softmax.top, softmax.scale, weights);
    let draw = uniform(params.seed, position);
    let token = if params.keeps_all() {
        pick(draw * softmax.total, weights.iter().copied().zip(0..))
    } else {
        ranked.clear();
        ranked.extend(weights.iter().copied().zip(0..));
        keep(params, softmax.total, ranked);
        let kept = ranked.iter().map(|(weight, _)| f64::from(*weight)).sum::<f64>();
        pick(draw * kept, ranked.iter().copied())
    };
    Sampled { token, logprob: softmax.at(logits, token) }
}

/// Chooses as [`sample`] does, and tells what the filters have left to choose from: the one token if greedy, nothing if no
/// filter is set.
pub fn sample_kept(
    logits: &[f32],
    params: &SamplingParams,
    position: u64,
    scratch: &mut SamplingScratch,
) -> (Sampled, Option<Kept>) {
    let sampled = sample(logits, params, position, scratch);
    if params.is_greedy() {
        return (sampled, Some(Kept { token_ids: vec![sampled.token], logprob: 0.0 }));
    }
    if params.keeps_all() {
        return (sampled, None);
    }
    let mass: f64 = scratch.ranked.iter().map(|(weight, _)| f64::from(*weight)).sum();
    let own = scratch.ranked.iter().find(|(_, token)| *token == sampled.token);
    let share = own.map_or(0.0, |(weight, _)| f64::from(*weight)) / mass.max(MIN_MASS);
    let token_ids = scratch.ranked.iter().map(|(_, token)| *token).collect();
    (sampled, Some(Kept { token_ids, logprob: libm::log(share) as f32 }))
}

/// The log-softmax of the bare logits at a token; minus infinity for one that is not in the vocabulary.
pub fn token_logprob(logits: &[f32], token: u32) -> f32 {
    LogSoftmax::new(logits, 1.0).at(logits, token)
}

/// The most likely token, the lowest id of equals.
fn highest(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (logit, token) in logits.iter().zip(0..) {
        if *logit > best.0 {
            best = (*logit, token);
        }
    }
    best.1
}

/// Leaves the candidates that are kept, at least one, the likeliest first. Weights are relative to the likeliest's, which
/// is 1, and `total` is the sum of all.
fn keep(params: &SamplingParams, total: f64, candidates: &mut Vec<(f32, u32)>) {
    candidates.retain(|(weight, _)| *weight >= params.min_p);
    let top_k = usize::try_from(params.top_k).unwrap_or(usize::MAX);
    if top_k < candidates.len() {
        candidates.select_nth_unstable_by(top_k, likelier);
        candidates.truncate(top_k);
    }
    candidates.sort_unstable_by(likelier);
    if params.top_p < 1.0 {
        let mut room = total * f64::from(params.top_p);
        let kept = candidates.iter().take_while(|(weight, _)| {
            let fits = room >= 0.0;
            room -= f64::from(*weight);
            fits
        });
        let kept = kept.count();
        candidates.truncate(kept);
    }
}

/// Descending by weight, then ascending by token.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that sorting takes")]
fn likelier(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// The candidate in which `place` falls when their weights are laid end to end.
fn pick(mut place: f64, candidates: impl Iterator<Item = (f32, u32)>) -> u32 {
    let mut last = 0;
    for (weight, token) in candidates {
        place -= f64::from(weight);
        last = token;
        if place < 0.0 {
            break;
        }
    }
    last
}

/// A number from [0, 1) with 53 random bits, a function of its arguments alone.
///
/// The position is the counter of a `SplitMix64` sequence (Steele, Lea and Flood, 2014) that begins at the hash of the seed.
pub(crate) fn uniform(seed: u64, position: u64) -> f64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let start = mix(seed.wrapping_add(GOLDEN));
    let bits = mix(start.wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN)));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// The output function of `SplitMix64`.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

// === impl SamplingParams ===

impl Default for SamplingParams {
    /// The plain distribution: temperature 1, all tokens kept, seed 0.
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: -1, min_p: 0.0, seed: 0 }
    }
}

impl SamplingParams {
    /// Checks that each parameter is in its range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return Err(SamplingError::Temperature(self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(SamplingError::TopP(self.top_p));
        }
        if self.top_k < -1 || self.top_k == 0 {
            return Err(SamplingError::TopK(self.top_k));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return Err(SamplingError::MinP(self.min_p));
        }
        Ok(())
    }

    /// The most likely token is taken, without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }

    /// No filter is set: the draw is from all tokens.
    pub fn keeps_all(&self) -> bool {
        self.top_p >= 1.0 && self.top_k == -1 && self.min_p <= 0.0
    }
}

// === impl LogSoftmax ===

impl LogSoftmax {
    /// Of `logits / temperature`; a temperature below 1e-6 (greedy) counts as 1.
    pub fn new(logits: &[f32], temperature: f32) -> Self {
        let scale = if temperature < GREEDY_BELOW { 1.0 } else { 1.0 / temperature };
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (isa, mut weights, mut total) = (Isa::detect(), [0.0; SUMMED_AT_ONCE], 0.0);
        for logits in logits.chunks(SUMMED_AT_ONCE) {
            let weights = &mut weights[..logits.len()];
            exp_shifted(isa, logits, top, scale, weights);
            total = weights.iter().fold(total, |total, weight| total + f64::from(*weight));
        }
        Self { scale, top, total, log_total: libm::log(total) }
    }

    /// The log-probability of a token; minus infinity for one that is not in the vocabulary.
    pub fn at(&self, logits: &[f32], token: u32) -> f32 {
        logits.get(token as usize).map_or(f32::NEG_INFINITY, |logit| self.of(*logit))
    }

    /// The `k` highest log-probabilities with their tokens, highest first, the lower id first among equals.
    pub fn top(&self, logits: &[f32], k: usize) -> Vec<(f32, u32)> {
        let mut ranked: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
        if k < ranked.len() {
            ranked.select_nth_unstable_by(k, likelier);
            ranked.truncate(k);
        }
        ranked.sort_unstable_by(likelier);
        for (value, _) in &mut ranked {
            *value = self.of(*value);
        }
        ranked
    }

    fn of(&self, logit: f32) -> f32 {
        ((f64::from(logit) - f64::from(self.top)) * f64::from(self.scale) - self.log_total) as f32
    }
}

#[cfg(test)]
mod tests;
