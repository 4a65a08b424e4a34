//! What is done element by element: exponential, norm, rotation, gate.

use std::f32::consts::{LN_2, LOG2_E};

use crate::isa::kernel;

/// Partial sums of a norm.
const LANES: usize = 16;

/// 1.5 · 2²³: added to a small number, it leaves the nearest integer in the low bits of the mantissa.
const ROUNDER: f32 = 12_582_912.0;
/// ln 2 as the sum of a part whose multiples by small integers are exact and a rest.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = (std::f64::consts::LN_2 - LN_2_HIGH as f64) as f32;
/// Where 2ⁿ is still a normal number.
const EXP_MIN: f32 = -87.0;
const EXP_MAX: f32 = 88.0;

/// eˣ to about one unit in the last place, of `x` clamped to -87 … 88; NaN stays NaN.
///
/// eˣ = 2ⁿ · eʳ with n = round(x / ln 2), hence |r| ≤ ln 2 / 2, where the series to r⁷/7! is wrong by at most 5.2e-9.
#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Not `clamp`, `min` or `max`: these comparisons are single vector instructions that keep NaN.
    let x = if x < EXP_MIN { EXP_MIN } else { x };
    let x = if x > EXP_MAX { EXP_MAX } else { x };
    let rounded = x.mul_add(LOG2_E, ROUNDER);
    let n = rounded - ROUNDER;
    let r = (-n).mul_add(LN_2_LOW, (-n).mul_add(LN_2_HIGH, x));
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = r.mul_add(series, coefficient);
    }
    let exponent = rounded.to_bits().wrapping_sub(ROUNDER.to_bits()).wrapping_add(127);
    series * f32::from_bits(exponent << 23)
}

kernel! {
    /// `y = exp((x - shift) · scale)`, element by element.
    fn exp_shifted(x: &[f32], shift: f32, scale: f32, y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = exp((x - shift) * scale);
        }
    }
}

kernel! {
    /// `x += y`.
    fn add(x: &mut [f32], y: &[f32]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }
}

kernel! {
    /// Root-mean-square norm of each row: `y = x / √(mean(x²) + eps) · weight`.
    fn rms_norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
        for (x, y) in x.chunks_exact(weight.len()).zip(y.chunks_exact_mut(weight.len())) {
            let scale = 1.0 / (sum_of_squares(x) / weight.len() as f32 + eps).sqrt();
            for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
                *y = x * scale * weight;
            }
        }
    }
}

/// Sixteen partial sums by index modulo sixteen, then halved by pairs: 0+8, 1+9, …; 0+4, …; 0+2, 1+3; 0+1.
#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for values in whole {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = value.mul_add(*value, *sum);
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum = value.mul_add(*value, *sum);
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    sums[0]
}

kernel! {
    /// Rotates each head of one position in place (rotary embedding): the halves `a`, `b` of a head become
    /// `a·cos - b·sin` and `b·cos + a·sin`, with as many angles as a half has elements.
    fn rotate(heads: &mut [f32], cos: &[f32], sin: &[f32]) {
        for head in heads.chunks_exact_mut(2 * cos.len()) {
            let (low, high) = head.split_at_mut(cos.len());
            for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

kernel! {
    /// The gate of the MLP: rows of `gate | up`, each `width` wide, become rows of `gate / (1 + exp(-gate)) · up`.
    fn silu_gate(gate_up: &[f32], width: usize, y: &mut [f32]) {
        for (gate_up, y) in gate_up.chunks_exact(2 * width).zip(y.chunks_exact_mut(width)) {
            let (gate, up) = gate_up.split_at(width);
            for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
                *y = gate / (1.0 + exp(-gate)) * up;
            }
        }
    }
}

const _: () = assert!(LN_2_HIGH > LN_2, "the low part is negative, and exact in f32 to twice its precision");
