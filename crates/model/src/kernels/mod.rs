//! The arithmetic of a forward pass: products, norms, gates and attention, in a fixed order of operations.
//!
//! # Why the order is fixed
//! Floating-point addition is not associative: a library that sums in another order for eight rows than for one gives
//! the same row other bits in another batch. Then log-probabilities recomputed after a rollout differ from those of the
//! rollout, and a decode engine differs from the prefill engine it took over from.
//!
//! # The rule
//! Side by side (in vector lanes, registers, loop iterations) are only *independent* results: outputs of a product,
//! positions of a score, elements of a head. Each single result is one chain of fused multiply-adds in ascending index
//! order. The width of the vectors, the number of rows and the place of a page then cannot show in the bits. The one
//! exception is the sum of squares of a norm, kept in sixteen partial sums by index modulo sixteen.
//!
//! # One source
//! Every kernel is written once, in safe Rust over arrays of a constant size, and compiled for each instruction set by
//! [`crate::isa::kernel`]. Fused multiply-add is explicit (`f32::mul_add`): correctly rounded in hardware and in software.

mod attention;
mod elementwise;
mod matmul;
mod packed;

pub(crate) use attention::{LayerKv, attend};
pub(crate) use elementwise::{add, exp_shifted, rms_norm, rotate, silu_gate};
pub(crate) use matmul::matmul;
pub(crate) use packed::{Lanes, Packed};

#[cfg(test)]
mod tests;
