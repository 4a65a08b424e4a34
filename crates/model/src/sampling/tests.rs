//! Draws follow the distribution and stay in the kept set; log-probabilities are exact; bad parameters are refused.

use proptest::prelude::*;

use super::*;

/// Probabilities 1/2, 1/4, 1/8, 1/16, 1/16, not in order of ids: token 3 is the likeliest, then 0, 4, 1 and 2.
const HALVES: [f32; 5] = [0.25, 0.0625, 0.0625, 0.5, 0.125];

fn logits() -> Vec<f32> {
    HALVES.iter().map(|probability| probability.ln() + 3.0).collect()
}

fn with(change: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
    let mut params = SamplingParams::default();
    change(&mut params);
    params
}

/// How often each token comes in `draws` positions.
fn counts(logits: &[f32], params: &SamplingParams, draws: u64) -> Vec<u64> {
    let mut scratch = SamplingScratch::default();
    let mut counts = vec![0; logits.len()];
    for position in 0..draws {
        counts[sample(logits, params, position, &mut scratch).token as usize] += 1;
    }
    counts
}

/// Asserts that counts fit the probabilities: Pearson's statistic stays below a bound that a true fit passes with
/// probability far under one in a million (seeds are fixed, so the test does not flicker).
fn assert_fits(counts: &[u64], weights: &[f64]) {
    let (draws, total) = (counts.iter().sum::<u64>() as f64, weights.iter().sum::<f64>());
    let mut statistic = 0.0;
    for (count, weight) in counts.iter().zip(weights) {
        let expected = draws * weight / total;
        if *weight == 0.0 {
            assert_eq!(*count, 0, "{counts:?} against {weights:?}");
        } else {
            statistic += (*count as f64 - expected).powi(2) / expected;
        }
    }
    let freedom = weights.len() as f64;
    assert!(
        statistic < freedom + 6.0 * (2.0 * freedom).sqrt(),
        "{statistic}: {counts:?} against {weights:?}"
    );
}

#[test]
fn draws_follow_the_kept_distribution() {
    let half = HALVES.map(f64::from);
    let root = half.map(f64::sqrt);
    let squares = half.map(|weight| weight * weight);
    let cases = [
        ("plain", SamplingParams::default(), half),
        ("hot", with(|params| params.temperature = 2.0), root),
        ("cold", with(|params| params.temperature = 0.5), squares),
        ("top-k 1", with(|params| params.top_k = 1), [0.0, 0.0, 0.0, 1.0, 0.0]),
        ("top-k 2", with(|params| params.top_k = 2), [0.25, 0.0, 0.0, 0.5, 0.0]),
        ("top-k 4: of equals the lower id", with(|params| params.top_k = 4), [0.25, 0.0625, 0.0, 0.5, 0.125]),
        ("top-k beyond the vocabulary", with(|params| params.top_k = 9), half),
        ("top-p under the likeliest", with(|params| params.top_p = 0.3), [0.0, 0.0, 0.0, 1.0, 0.0]),
        ("top-p 0.6 needs two", with(|params| params.top_p = 0.6), [0.25, 0.0, 0.0, 0.5, 0.0]),
        ("top-p 0.8 needs three", with(|params| params.top_p = 0.8), [0.25, 0.0, 0.0, 0.5, 0.125]),
        ("top-p almost 1", with(|params| params.top_p = 0.9999), half),
        ("min-p 0.4", with(|params| params.min_p = 0.4), [0.25, 0.0, 0.0, 0.5, 0.0]),
        ("min-p 1", with(|params| params.min_p = 1.0), [0.0, 0.0, 0.0, 1.0, 0.0]),
        (
            "top-p is measured before top-k cuts",
            with(|params| (params.top_k, params.top_p) = (2, 0.7)),
            [0.25, 0.0, 0.0, 0.5, 0.0],
        ),
    ];
    for (name, mut params, weights) in cases {
        params.validate().unwrap();
        for seed in 0..3 {
            params.seed = seed;
            println!("{name}, seed {seed}");
            assert_fits(&counts(&logits(), &params, 20_000), &weights);
        }
    }
}

#[test]
fn what_was_kept_is_told_with_its_share() {
    let mut scratch = SamplingScratch::default();
    let mut kept = |params: &SamplingParams| sample_kept(&logits(), params, 3, &mut scratch);
    assert_eq!(kept(&SamplingParams::default()).1, None);
    let greedy = kept(&with(|params| (params.temperature, params.top_p) = (0.0, 0.5)));
    assert_eq!(greedy.1, Some(Kept { token_ids: vec![3], logprob: 0.0 }));
    for (params, token_ids) in [
        (with(|params| params.top_p = 0.6), vec![3, 0]),
        (with(|params| params.top_k = 3), vec![3, 0, 4]),
        (with(|params| params.min_p = 0.2), vec![3, 0, 4]),
        (with(|params| (params.min_p, params.top_k) = (0.2, 2)), vec![3, 0]),
    ] {
        let mass: f32 = token_ids.iter().map(|token| HALVES[*token as usize]).sum();
        let (sampled, told) = kept(&params);
        let told = told.unwrap();
        assert_eq!((told.token_ids.contains(&sampled.token), told.token_ids), (true, token_ids));
        let expected = (HALVES[sampled.token as usize] / mass).ln();
        assert!((told.logprob - expected).abs() < 1e-5, "{} {expected}", told.logprob);
        // The choice is the one that is made without telling.
        assert_eq!(sampled, sample(&logits(), &params, 3, &mut SamplingScratch::default()));
    }
}

#[test]
fn seeds_are_independent_of_each_other() {
    // The same position under many seeds is as good a sequence of draws as many positions under one seed.
    let mut scratch = SamplingScratch::default();
    let mut pairs = vec![0_u64; 25];
    for seed in 0..40_000 {
        let params = with(|params| params.seed = seed);
        let here = sample(&logits(), &params, 7, &mut scratch).token as usize;
        let next = sample(&logits(), &params, 8, &mut scratch).token as usize;
        pairs[here * 5 + next] += 1;
    }
    let weights: Vec<f64> =
        HALVES.iter().flat_map(|a| HALVES.map(|b| f64::from(*a) * f64::from(b))).collect();
    assert_fits(&pairs, &weights);
}

#[test]
fn a_draw_is_the_same_for_ever() {
    let draws: Vec<u32> = (0..12)
        .map(|position| {
            sample(&logits(), &with(|params| params.seed = 42), position, &mut SamplingScratch::default())
                .token
        })
        .collect();
    assert_eq!(draws, [2, 4, 3, 0, 3, 0, 0, 3, 0, 3, 3, 0]);
    assert_eq!((uniform(42, 7) * (1_u64 << 53) as f64) as u64, 6_617_773_565_905_164);
}

#[test]
fn greedy_takes_the_lowest_of_equals_and_ignores_the_rest() {
    let params = with(|params| (params.temperature, params.seed) = (0.0, 9));
    let mut scratch = SamplingScratch::default();
    assert_eq!(sample(&[1.0, 5.0, 5.0, -2.0], &params, 0, &mut scratch).token, 1);
    let sampled = sample(&logits(), &params, 3, &mut scratch);
    assert_eq!(sampled.token, 3);
    assert!((sampled.logprob - 0.5_f32.ln()).abs() < 1e-6);
}

#[test]
fn logprobs_are_of_the_scaled_and_uncut_distribution() {
    let params = with(|params| (params.temperature, params.top_k) = (2.0, 1));
    let sampled = sample(&logits(), &params, 0, &mut SamplingScratch::default());
    let roots: f64 = HALVES.iter().map(|weight| f64::from(*weight).sqrt()).sum();
    assert!((f64::from(sampled.logprob) - (0.5_f64.sqrt() / roots).ln()).abs() < 1e-6);
    assert_eq!(sampled.logprob.to_bits(), LogSoftmax::new(&logits(), 2.0).at(&logits(), 3).to_bits());
}

#[test]
fn top_logprobs_are_ranked_with_the_lower_id_first_among_equals() {
    let top = |k| LogSoftmax::new(&logits(), 1.0).top(&logits(), k);
    let tokens = |k| top(k).into_iter().map(|(_, token)| token).collect::<Vec<_>>();
    assert_eq!(tokens(0), [0; 0]);
    assert_eq!(tokens(4), [3, 0, 4, 1]);
    assert_eq!(tokens(9), [3, 0, 4, 1, 2]);
    for (logprob, token) in top(5) {
        assert_eq!(logprob.to_bits(), token_logprob(&logits(), token).to_bits());
        assert!((logprob - HALVES[token as usize].ln()).abs() < 1e-6);
    }
    assert_eq!(token_logprob(&logits(), 5).to_bits(), f32::NEG_INFINITY.to_bits());
}

#[test]
fn parameters_out_of_range_are_named() {
    let cases = [
        (with(|params| params.temperature = -0.1), "temperature must be finite and at least 0, got -0.1"),
        (with(|params| params.temperature = f32::NAN), "temperature must be finite and at least 0, got NaN"),
        (
            with(|params| params.temperature = f32::INFINITY),
            "temperature must be finite and at least 0, got inf",
        ),
        (with(|params| params.top_p = 0.0), "top_p must be in (0, 1], got 0"),
        (with(|params| params.top_p = 1.01), "top_p must be in (0, 1], got 1.01"),
        (with(|params| params.top_p = f32::NAN), "top_p must be in (0, 1], got NaN"),
        (with(|params| params.top_k = 0), "top_k must be -1 (all) or at least 1, got 0"),
        (with(|params| params.top_k = -2), "top_k must be -1 (all) or at least 1, got -2"),
        (with(|params| params.min_p = -0.5), "min_p must be in [0, 1], got -0.5"),
        (with(|params| params.min_p = 1.5), "min_p must be in [0, 1], got 1.5"),
        (with(|params| params.min_p = f32::NAN), "min_p must be in [0, 1], got NaN"),
    ];
    for (params, message) in cases {
        assert_eq!(params.validate().unwrap_err().to_string(), message);
    }
}

proptest! {
    #[test]
    fn a_sample_is_a_token_with_a_probability(
        quarters in prop::collection::vec(-400..400_i16, 1..600),
        temperature in prop_oneof![Just(0.0_f32), 0.0..0.01_f32, 0.01..10_f32, Just(f32::MAX)],
        (top_p, top_k, min_p) in (0.001..=1_f32, prop_oneof![Just(-1), 1..700], 0.0..=1_f32),
        (seed, position) in (any::<u64>(), any::<u64>()),
    ) {
        let logits: Vec<f32> = quarters.into_iter().map(|quarter| f32::from(quarter) / 4.0).collect();
        let params = SamplingParams { temperature, top_p, top_k, min_p, seed };
        prop_assert!(params.validate().is_ok());
        let sampled = sample(&logits, &params, position, &mut SamplingScratch::default());
        prop_assert!((sampled.token as usize) < logits.len());
        prop_assert!(sampled.logprob.is_finite() && sampled.logprob <= 1e-6, "{sampled:?}");
        // At the highest temperature all are equally likely.
        let rank = logits.iter().filter(|logit| **logit > logits[sampled.token as usize]).count();
        prop_assert!(temperature > 10.0 || top_k == -1 || rank < top_k as usize);
    }

    #[test]
    fn log_softmax_is_exact(
        logits in prop::collection::vec(-30_f32..30.0, 1..600),
        temperature in 0.1..5_f32,
    ) {
        let scaled: Vec<f64> = logits.iter().map(|logit| f64::from(*logit) / f64::from(temperature)).collect();
        let top = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_total = top + scaled.iter().map(|value| (value - top).exp()).sum::<f64>().ln();
        let softmax = LogSoftmax::new(&logits, temperature);
        for (token, value) in scaled.iter().enumerate() {
            let exact = value - log_total;
            let found = f64::from(softmax.at(&logits, token as u32));
            prop_assert!((found - exact).abs() <= 1e-6 * exact.abs().max(1.0), "{found} is not {exact}");
        }
    }
}

#[test]
fn penalties_change_the_logits_of_what_was_generated() {
    let none = Penalties::default;
    let halves: [f32; 4] = [1.0, -1.0, 0.5, 2.0];
    // Token 0 twice, token 1 once, and one that the vocabulary lacks.
    let generated = [(0, 2), (1, 1), (9, 1)].into();
    assert!(none().are_none());
    for (penalties, expected) in [
        (none(), halves),
        (Penalties { frequency: 0.25, ..none() }, [0.5, -1.25, 0.5, 2.0]),
        (Penalties { presence: 0.25, ..none() }, [0.75, -1.25, 0.5, 2.0]),
        (Penalties { repetition: 2.0, ..none() }, [0.5, -2.0, 0.5, 2.0]),
        // The differences come first, and may turn the sign that says whether to divide.
        (Penalties { frequency: 1.0, repetition: 2.0, ..none() }, [-2.0, -4.0, 0.5, 2.0]),
        (
            Penalties { bias: [(1, 3.0), (3, -MAX_BIAS), (7, 1.0)].into(), ..none() },
            [1.0, 2.0, 0.5, -MAX_BIAS],
        ),
    ] {
        assert_eq!(penalties.validate(), Ok(()));
        let mut logits = halves;
        penalties.apply(&mut logits, &generated);
        assert_eq!(logits.map(f32::to_bits), expected.map(f32::to_bits), "{penalties:?}");
    }
    for penalties in [
        Penalties { frequency: 2.1, ..none() },
        Penalties { frequency: f32::NAN, ..none() },
        Penalties { presence: -2.1, ..none() },
        Penalties { repetition: 0.0, ..none() },
        Penalties { repetition: f32::NAN, ..none() },
        Penalties { bias: [(1, f32::INFINITY)].into(), ..none() },
        Penalties { bias: [(1, f32::NAN)].into(), ..none() },
    ] {
        assert!(penalties.validate().is_err(), "{penalties:?}");
    }
}
