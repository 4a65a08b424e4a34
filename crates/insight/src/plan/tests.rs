//! Plans from passes whose times are known.

use rollscope_trace::{Nanos, PassLoad, UnixNs, WorkerRef};

use super::*;

fn pass(endpoint: &str, number: u64, scheduled: PassLoad, wall_s: f64) -> ForwardPass {
    ForwardPass {
        wall: Nanos::from_secs_f64(wall_s).unwrap(),
        scheduled,
        ..ForwardPass::new(endpoint, number, UnixNs(number as i64))
    }
}

fn prefill(tokens: u64) -> PassLoad {
    PassLoad { prefill_requests: 1, prefill_tokens: tokens, ..PassLoad::default() }
}

fn decode(requests: u64, kv_tokens: u64) -> PassLoad {
    PassLoad { decode_requests: requests, decode_kv_tokens: kv_tokens, ..PassLoad::default() }
}

/// Time of a pass by its requests and its tokens.
type Wall = fn(f64, f64) -> f64;

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1e-6), "{found} is not {expected}");
}

#[test]
fn each_kind_of_rank_has_its_regression() {
    let mut passes = Vec::new();
    for number in 0..40 {
        let tokens = 100 + 37 * (number % 7);
        passes.push(pass("p", number, prefill(tokens), 4e-3 + 25e-6 * tokens as f64));
        let (requests, kv) = (1 + number % 5, 1000 + 311 * (number % 11));
        let wall_s = 1e-3 + 1e-4 * requests as f64 + 2e-7 * kv as f64;
        passes.push(pass("d", number, decode(requests, kv), wall_s));
        let both = PassLoad { prefill_requests: 1, prefill_tokens: tokens, ..decode(2, kv) };
        passes.push(pass("m", number, both, 2e-3 + 1e-5 * tokens as f64 + 3e-7 * kv as f64));
    }
    let plans = plan(&passes);
    let of = |kind: PassKind| plans.iter().find(|plan| plan.kind == kind).unwrap();
    for (kind, coefficients, intercept) in [
        (PassKind::Prefill, &[25e-6][..], 4e-3),
        (PassKind::Decode, &[1e-4, 2e-7], 1e-3),
        (PassKind::Mixed, &[1e-5, 3e-7], 2e-3),
    ] {
        let fit = of(kind).fit.as_ref().unwrap();
        assert_eq!(fit.coefficients_s.len(), kind.features().len());
        fit.coefficients_s.iter().zip(coefficients).for_each(|(found, expected)| close(*found, *expected));
        close(fit.intercept_s, intercept);
        close(fit.r_squared.unwrap(), 1.0);
        assert_eq!((of(kind).passes, of(kind).ranks), (40, 1));
    }
    assert_eq!((of(PassKind::Prefill).itl_s, of(PassKind::Decode).ttft_s), (None, None));
}

#[test]
fn the_queue_is_computed_chunk_by_chunk() {
    let mut passes: Vec<_> =
        (1..=10).map(|number| pass("p", number, prefill(100 * number), 1e-3 * number as f64)).collect();
    // 2,000 tokens wait; the average prompt has 550, a chunk 1,000: two whole chunks and one of 550.
    passes[9].queued.prefill_tokens = 2000;
    let ttft_s = plan(&passes)[0].ttft_s.unwrap();
    close(ttft_s, 10e-3 + 10e-3 + 5.5e-3);
}

#[test]
fn a_heartbeat_leaves_the_queue_and_teaches_nothing_else() {
    let mut passes: Vec<_> =
        (1..=10).map(|number| pass("p", number, prefill(100 * number), 1e-3 * number as f64)).collect();
    passes[9].queued.prefill_tokens = 2000;
    let busy = plan(&passes).remove(0);
    // A second of silence, in which a pass may be computed that takes longer than all before.
    passes.push(ForwardPass::new("p", 11, UnixNs(1_000_000_010)));
    // A rank of which nothing else is known is of no kind.
    passes.push(ForwardPass::new("unknown", 3, UnixNs(1_000_000_012)));
    assert_eq!(plan(&passes), [busy]);
}

#[test]
fn a_rank_that_left_nothing_waiting_and_is_silent_for_long_computes_nothing() {
    let passes: Vec<_> = (0..20)
        .map(|number| {
            pass(
                "d",
                number,
                decode(1 + number % 5, 1000 + 311 * (number % 11)),
                1e-3 * (1 + number % 7) as f64,
            )
        })
        .collect();
    let itl_s = |rest_after_ns: Option<i64>| {
        let rest = rest_after_ns.map(|after| ForwardPass::new("d", 20, UnixNs(19 + after)));
        plan(&passes.iter().cloned().chain(rest).collect::<Vec<_>>())[0].itl_s.unwrap()
    };
    assert_eq!(itl_s(Some(7_000_000)).to_bits(), itl_s(None).to_bits(), "a pass may take so long");
    assert!(itl_s(Some(7_000_001)) < itl_s(None));
}

#[test]
fn ranks_behind_one_endpoint_are_told_apart_by_their_publisher() {
    let of = |worker: &str, pass: ForwardPass| ForwardPass { worker_id: worker.into(), ..pass };
    let passes: Vec<_> = (1..=10)
        .flat_map(|number| {
            let prefill = pass("proxy", number, prefill(100 * number), 1e-3 * number as f64);
            let decode = pass("proxy", number, decode(number, 50 * number), 1e-3 * number as f64);
            [of("p", prefill), of("d", decode)]
        })
        .collect();
    let plans = plan(&passes);
    let told: Vec<_> = plans.iter().map(|plan| (plan.kind, plan.ranks, plan.passes)).collect();
    assert_eq!(told, [(PassKind::Prefill, 1, 10), (PassKind::Decode, 1, 10)]);
}

#[test]
fn a_rank_that_was_started_anew_elsewhere_is_one() {
    let worker = |instance: &str| WorkerRef { url: "http://w".into(), instance: instance.into() };
    let of = |endpoint: &str, instance, life, number| ForwardPass {
        worker: Some(worker(instance)),
        life,
        ..pass(endpoint, number, prefill(100 * number), 1e-3 * number as f64)
    };
    let before = (1..=10).map(|number| of("here", "first", 0, number));
    let after = (1..=10).map(|number| of("there", "second", 1, number));
    let plans = plan(&before.chain(after).collect::<Vec<_>>());
    assert_eq!((plans[0].ranks, plans[0].passes), (1, 20));
}

#[test]
fn a_pass_that_two_gateways_recorded_is_one() {
    let of = |instance: &str, later: i64, number| {
        let pass = pass("here", number, prefill(100 * number), 1e-3 * number as f64);
        let worker = WorkerRef { url: "http://w".into(), instance: instance.into() };
        ForwardPass { worker: Some(worker), received: UnixNs(pass.received.0 + later), ..pass }
    };
    let recorded = |instance, later| (1..=10).map(move |number| of(instance, later, number));
    let both: Vec<_> = recorded("first", 0).chain(recorded("second", 100)).collect();
    assert_eq!((plan(&both)[0].ranks, plan(&both)[0].passes), (1, 10));
    // A gateway that comes when the first is gone does not know that the worker was started anew in between.
    let then: Vec<_> = recorded("first", 0).chain(recorded("second", 60_000_000_000)).collect();
    assert_eq!((plan(&then)[0].ranks, plan(&then)[0].passes), (1, 20));
}

#[test]
fn a_rank_whose_worker_is_not_named_by_every_pass_is_one() {
    let worker = |url: &str| Some(WorkerRef { url: url.into(), instance: url.into() });
    let of = |worker, number| ForwardPass {
        worker,
        ..pass("here", number, prefill(100 * number), 1e-3 * number as f64)
    };
    let unnamed = (1..=10).map(|number| of(None, number));
    // Of the first three another recorder knew whose they are.
    let named = [1, 2, 3, 11, 12].map(|number| of(worker("http://w"), number));
    let mut passes: Vec<_> = unnamed.chain(named).collect();
    let plans = plan(&passes);
    assert_eq!((plans[0].ranks, plans[0].passes), (1, 12));
    // On another host the endpoint is another worker's; whose the others are is not known then.
    passes.push(of(worker("http://v"), 1));
    let plans = plan(&passes);
    assert_eq!((plans[0].ranks, plans[0].passes), (3, 16));
}

#[test]
fn a_long_queue_is_summed_up_and_not_walked_through() {
    let mut passes: Vec<_> =
        (1..=10).map(|number| pass("p", number, prefill(number), 1e-3 * number as f64)).collect();
    passes[9].queued.prefill_tokens = 1 << 60;
    let ttft_s = plan(&passes)[0].ttft_s.unwrap();
    close(ttft_s, 1e-3 * (1_u64 << 60) as f64);
}

#[test]
fn a_pass_that_was_recorded_twice_is_one() {
    let mut passes: Vec<_> =
        (1..=9).map(|number| pass("p", number, prefill(100 * number), 1e-3 * number as f64)).collect();
    let once = plan(&passes);
    let again: Vec<_> = passes
        .iter()
        .map(|pass| ForwardPass { received: UnixNs(pass.received.0 + 100), ..pass.clone() })
        .collect();
    passes.extend(again);
    assert_eq!(plan(&passes), once);
    // The same numbers of a publisher that was started anew are others.
    let anew: Vec<_> = passes[..9].iter().map(|pass| ForwardPass { life: 1, ..pass.clone() }).collect();
    passes.extend(anew);
    assert_eq!(plan(&passes)[0].passes, 18);
}

#[test]
fn a_rank_that_has_ended_has_no_queue() {
    let mut passes: Vec<_> =
        (1..=10).map(|number| pass("p", number, prefill(100 * number), 1e-3 * number as f64)).collect();
    let without = plan(&passes)[0].ttft_s.unwrap();
    let mut other = pass("ended", 1, prefill(550), 5.5e-3);
    other.queued.prefill_tokens = 1 << 30;
    other.received = UnixNs(0);
    passes.push(other);
    assert!(plan(&passes)[0].ttft_s.unwrap() > 100.0 * without, "it is at work as yet");
    for pass in &mut passes[..10] {
        pass.received = pass.received.after(AT_WORK_WITHIN);
    }
    let plans = plan(&passes);
    close(plans[0].ttft_s.unwrap(), without);
    assert_eq!((plans[0].ranks, plans[0].passes), (2, 11), "its passes tell of time as others do");
}

#[test]
fn where_there_is_no_fit_it_is_said_why() {
    let shrinking: Vec<_> =
        (1..=10).map(|number| pass("p", number, prefill(100 * number), 1.0 / number as f64)).collect();
    let plans = plan(&shrinking);
    assert_eq!((&plans[0].fit, plans[0].ttft_s), (&Err(NoFit::NoGrowth), None));
    let few: Vec<_> = (1..=4).map(|number| pass("p", number, prefill(number), number as f64)).collect();
    assert_eq!((&plan(&few)[0].fit, plan(&few)[0].ttft_s), (&Err(NoFit::TooFew(4)), None));
    assert_eq!(plan(&[]), []);
    // All alike: no slope, and the mean.
    let alike: Vec<_> = (1..=9).map(|number| pass("d", number, decode(3, 700), 0.5)).collect();
    let fit = plan(&alike)[0].fit.clone().unwrap();
    assert_eq!((fit.coefficients_s, fit.intercept_s, fit.r_squared), (vec![0.0, 0.0], 0.5, None));
    // Features that go together share the slope.
    let together: Vec<_> =
        (1..=9).map(|number| pass("d", number, decode(number, 10 * number), 0.101 * number as f64)).collect();
    let fit = plan(&together)[0].fit.clone().unwrap();
    close(fit.coefficients_s[1], 10.0 * fit.coefficients_s[0]);
    close(fit.coefficients_s[0], 0.001);
}

/// What is reported of how good a fit is belongs to the terms that are reported, and no better ones without a negative one
/// are near.
#[test]
fn no_time_is_negative_and_the_residuals_are_those_of_the_fit() {
    let noise = |number: u64| [3e-4, -5e-4, 1e-4, 4e-4, -3e-4][(number % 5) as usize];
    // The terms are those of SciPy's `nnls`.
    let cases: [(&str, Wall, [f64; 3]); 4] = [
        (
            "an empty pass takes less than nothing",
            |requests, _| 5e-4 * requests * requests,
            [7.719_094_077e-3, 0.0, 0.0],
        ),
        (
            "requests make it faster",
            |requests, kv| 0.02 - 4e-4 * requests + 1e-5 * kv,
            [0.0, 6.270_926_797e-6, 1.706_958_748e-2],
        ),
        (
            "tokens make it faster",
            |requests, kv| 0.02 + 4e-3 * requests - 1e-5 * kv,
            [3.983_590_226e-3, 0.0, 1.860_855_263e-2],
        ),
        (
            "all is as it should be",
            |requests, kv| 0.02 + 4e-4 * requests + 1e-5 * kv,
            [3.982_486_887e-4, 9.963_574_806e-6, 2.052_590_602e-2],
        ),
    ];
    for (name, wall, expected) in cases {
        let points: Vec<(u64, u64, f64)> = (0..40)
            .map(|number| {
                let (requests, kv) = (1 + number % 20, 100 + 37 * (number % 7));
                (requests, kv, wall(requests as f64, kv as f64).max(1e-4) + 5e-4 + noise(number))
            })
            .collect();
        let passes: Vec<_> = (0..)
            .zip(&points)
            .map(|(number, (requests, kv, wall_s))| pass("d", number, decode(*requests, *kv), *wall_s))
            .collect();
        let fit = plan(&passes)[0].fit.clone().unwrap();
        let terms = [fit.coefficients_s[0], fit.coefficients_s[1], fit.intercept_s];
        assert_eq!(terms.map(|term| term == 0.0), expected.map(|term| term == 0.0), "{name}: {fit:?}");
        terms.iter().zip(expected).for_each(|(term, expected)| close(*term, expected));
        let residuals = |[a, b, c]: [f64; 3]| {
            let of = |(requests, kv, wall_s): &(u64, u64, f64)| {
                wall_s - (a * *requests as f64 + b * *kv as f64 + c)
            };
            points.iter().map(of).collect::<Vec<f64>>()
        };
        let own = residuals(terms);
        close(fit.mean_residual_s, own.iter().map(|residual| residual.abs()).sum::<f64>() / 40.0);
        close(fit.max_residual_s, own.iter().map(|residual| residual.abs()).fold(0.0, f64::max));
        let squares = |terms| residuals(terms).iter().map(|residual| residual * residual).sum::<f64>();
        let least = squares(terms);
        for index in 0..3 {
            for step in [-1e-6, 1e-6] {
                let mut near = terms;
                near[index] = (near[index] + step).max(0.0);
                assert!(squares(near) >= least, "{name}: {near:?} is better than {terms:?}");
            }
        }
    }
}

#[test]
fn samples_keep_the_whole_range() {
    let mut samples = Samples::new(1);
    for number in 0..1000 {
        let at = if number < 20 { f64::from(number) * 50.0 } else { 10.0 };
        samples.add(Sample { features: [at, 0.0], wall_s: f64::from(number) });
    }
    let all = samples.all();
    assert_eq!(all.len(), 64);
    assert_eq!(all.iter().filter(|sample| sample.features[0] > 100.0).count(), 17);
}
