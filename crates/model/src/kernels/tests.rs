//! Kernels against straightforward arithmetic in f64, and each instruction set against the portable code.

use super::elementwise::exp;

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    for step in -87_000..=88_000_i32 {
        let x = step as f32 / 1e3;
        let exact = libm::exp(f64::from(x));
        let error = (f64::from(exp(x)) - exact).abs() / exact;
        assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}) is wrong by {error:e}");
    }
}
