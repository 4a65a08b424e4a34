//! Rewards that need no model: the answer is right or it is not.

/// 1 if the text after the last `#` is the answer, else 0.
///
/// The completion of a chained addition ends in `#` and the sum: `47+85=132\n132+19=151\n#151`.
pub fn chained_addition_reward(response: &str, answer: &str) -> f64 {
    match response.rsplit_once('#') {
        Some((_, given)) if given == answer => 1.0,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::chained_addition_reward;

    #[test]
    fn only_the_exact_sum_after_the_last_mark_is_rewarded() {
        for (response, reward) in [
            ("47+85=132\n#132", 1.0),
            ("#1\n#132", 1.0),
            ("132", 0.0),
            ("#132 ", 0.0),
            ("#1320", 0.0),
            ("#", 0.0),
            ("", 0.0),
        ] {
            assert_eq!(
                chained_addition_reward(response, "132").to_bits(),
                f64::to_bits(reward),
                "{response:?}"
            );
        }
    }
}
