//! Steps made by hand, and their numbers worked out by hand.

use proptest::prelude::*;
use rollscope_trace::{
    CloseReason, Fault, Join, Leg, LegRole, Nanos, Outcome, Profile, Record, Report, RequestId, SampleKey,
    SampleMark, Scalar, StepClose, StepNumber, StepTrace, UnixNs, UserSpan, WorkerRef,
};

use super::*;
use crate::WorkerFigures;

const STEP: StepNumber = StepNumber(3);
const S: u64 = 1_000_000_000;

fn leg(role: LegRole, end: Nanos, pairs: &[(&str, Scalar<'_>)]) -> Leg {
    Leg {
        report: Report::from_pairs(pairs.iter().copied()),
        ..Leg::new(role, WorkerRef { url: "http://127.0.0.1:1".into(), instance: "w".into() }, Nanos(0), end)
    }
}

/// A request of `sample` (`group/name`), from `start_s` for `length_s` seconds.
fn request(id: u128, sample: (&str, &str), (start_s, length_s): (f64, f64), legs: Vec<Leg>) -> Profile {
    Profile {
        join: Join {
            step: Some(STEP),
            group: Some(sample.0.into()),
            sample: Some(sample.1.into()),
            ..Join::default()
        },
        legs,
        ..Profile::new(
            RequestId(id),
            UnixNs::from_secs_f64(1_700_000_000.0 + start_s).unwrap(),
            Nanos::from_secs_f64(length_s).unwrap(),
        )
    }
}

fn pd(prefill: &[(&'static str, f64)], decode: &[(&'static str, f64)]) -> Vec<Leg> {
    let scalars = |pairs: &[(&'static str, f64)]| -> Vec<_> {
        pairs.iter().map(|(name, value)| (*name, Scalar::Number(*value))).collect()
    };
    vec![
        leg(LegRole::Prefill, Nanos(S), &scalars(prefill)),
        leg(LegRole::Decode, Nanos(2 * S), &scalars(decode)),
    ]
}

fn mark(sample: (&str, &str), put: impl FnOnce(&mut SampleMark)) -> Record {
    let key = SampleKey { step: STEP, group: Some(sample.0.into()), sample: sample.1.into() };
    let mut mark = SampleMark::new(key);
    put(&mut mark);
    Record::Sample(mark)
}

fn rewarded(sample: (&str, &str), reward: f64, tokens: u64) -> Record {
    mark(sample, |mark| (mark.reward, mark.response_tokens) = (Some(reward), Some(tokens)))
}

fn numbers(records: Vec<Record>) -> StepNumbers {
    step_numbers(&StepTrace::gather(STEP, records))
}

fn profiles(profiles: Vec<Profile>) -> Vec<Record> {
    profiles.into_iter().map(|profile| Record::Profile(Box::new(profile))).collect()
}

#[track_caller]
fn check(numbers: &StepNumbers, expected: &[(&str, f64)]) {
    for (name, value) in expected {
        let found = numbers.metrics.get(*name).copied();
        let near = found.is_some_and(|found| (found - value).abs() <= 1e-9 * value.abs().max(1.0));
        assert!(near, "{name}: {found:?} instead of {value}");
    }
}

#[test]
fn a_pair_gives_each_number_from_the_leg_that_measured_it() {
    let legs = |k: f64| {
        pd(
            &[
                ("pd_prefill_bootstrap_queue_duration", 0.010 * k),
                ("pd_prefill_bootstrap_duration", 0.006 * k),
                ("pd_prefill_alloc_wait_duration", 0.004 * k),
                ("queue_time", 0.030 * k),
                ("pd_prefill_forward_duration", 0.100 * k),
                ("pd_prefill_transfer_queue_duration", 0.020 * k),
                ("pd_transfer_speed_gb_s", 2.0 * k),
                ("pd_transfer_total_mb", 8.0),
                ("pd_prefill_retry_count", 0.0),
                ("e2e_latency", 0.15 * k),
            ],
            &[
                ("pd_decode_prealloc_duration", 0.012 * k),
                ("pd_decode_bootstrap_duration", 0.002 * k),
                ("pd_decode_alloc_wait_duration", 0.010 * k),
                ("pd_decode_transfer_duration", 0.120 * k),
                ("queue_time", 0.001 * k),
                ("pd_decode_forward_duration", 1.0 * k),
                ("e2e_latency", 1.2 * k),
                ("decode_throughput", 50.0 / k),
                ("completion_tokens", 40.0),
            ],
        )
    };
    let step = numbers(profiles(vec![
        request(1, ("g", "a"), (0.0, 1.3), legs(1.0)),
        request(2, ("g", "b"), (0.5, 2.5), legs(2.0)),
        request(3, ("g", "c"), (1.0, 5.0), legs(4.0)),
    ]));
    check(
        &step,
        &[
            // Of 1.2, 2.4 and 4.8; rank of p90 is 1.8 of 0 … 2, of p99 1.98.
            ("perf/request/e2e_latency/mean", 2.8),
            ("perf/request/e2e_latency/median", 2.4),
            ("perf/request/e2e_latency/min", 1.2),
            ("perf/request/e2e_latency/max", 4.8),
            ("perf/request/e2e_latency/p90", 2.4 + 0.8 * 2.4),
            ("perf/request/e2e_latency/p99", 2.4 + 0.98 * 2.4),
            // Squared distances from 2.8: 2.56, 0.16 and 4.
            ("perf/request/e2e_latency/std", (6.72f64 / 3.0).sqrt()),
            ("perf/request/e2e_latency/count", 3.0),
            ("perf/request/gateway_latency/mean", (1.3 + 2.5 + 5.0) / 3.0),
            ("perf/request/queue_time/max", 0.004),
            ("perf/prefill/queue_time/max", 0.120),
            ("perf/prefill/bootstrap_queue_duration/median", 0.020),
            ("perf/prefill/bootstrap_duration/median", 0.012),
            ("perf/prefill/alloc_wait_duration/median", 0.008),
            ("perf/prefill/forward_duration/median", 0.200),
            ("perf/prefill/transfer_queue_duration/median", 0.040),
            ("perf/prefill/transfer_speed_gb_s/max", 8.0),
            ("perf/prefill/transfer_total_mb/mean", 8.0),
            ("perf/prefill/retry_count/mean", 0.0),
            ("perf/decode/prealloc_duration/median", 0.024),
            ("perf/decode/bootstrap_duration/median", 0.004),
            ("perf/decode/alloc_wait_duration/median", 0.020),
            ("perf/decode/transfer_duration/median", 0.240),
            ("perf/decode/forward_duration/median", 2.0),
            ("perf/decode/throughput/min", 12.5),
            ("perf/request/count", 3.0),
            ("perf/request/profiled_count", 3.0),
            ("perf/request/completed", 3.0),
            ("perf/request/failed", 0.0),
            ("perf/rollout_time", 6.0),
            ("perf/tokens_per_sec", 120.0 / 6.0),
            ("perf/longest_sample_tokens_per_sec", 40.0 / 6.0),
            ("rollout/samples", 3.0),
            ("rollout/groups", 1.0),
            ("rollout/response_len/mean", 40.0),
        ],
    );
    assert!(!step.metrics.contains_key("perf/tokens_per_gpu_per_sec"), "nobody told the number of GPUs");
}

#[test]
fn what_was_not_reported_gives_no_number_and_what_is_implausible_is_counted() {
    let bare = leg(LegRole::Regular, Nanos(S), &[]);
    let odd = [
        ("queue_time", Scalar::Number(-1.0)),
        ("e2e_latency", Scalar::Null),
        ("decode_throughput", Scalar::Number(5.0)),
    ];
    let odd = leg(LegRole::Regular, Nanos(S), &odd);
    let mut records = profiles(vec![
        request(1, ("g", "a"), (0.0, 1.0), vec![bare]),
        request(2, ("g", "b"), (0.0, 1.0), vec![odd]),
    ]);
    records.push(rewarded(("g", "b"), f64::NAN, 1));
    let step = numbers(records);
    check(
        &step,
        &[
            ("perf/request/count", 2.0),
            ("perf/request/profiled_count", 0.0),
            ("perf/anomaly/negative", 1.0),
            ("perf/anomaly/not_a_number", 1.0),
            ("perf/anomaly/not_finite", 1.0),
            ("perf/anomaly/too_large", 0.0),
            ("perf/decode/throughput/count", 1.0),
        ],
    );
    for absent in ["request/queue_time", "request/e2e_latency", "prefill/", "decode/forward"] {
        let found = step.metrics.keys().find(|name| name.starts_with(&format!("perf/{absent}")));
        assert_eq!(found, None);
    }
    assert!(!step.metrics.contains_key("rollout/reward/mean"));
    assert!(!step.metrics.contains_key("rollout/truncated_ratio"));
}

#[test]
fn rewards_lengths_and_the_end_of_the_step_are_as_told() {
    let finish = |kind| vec![leg(LegRole::Regular, Nanos(S), &[("finish_reason.type", Scalar::Text(kind))])];
    let mut records = profiles(vec![
        request(1, ("g1", "a"), (0.0, 1.0), finish("stop")),
        request(2, ("g1", "b"), (0.0, 2.0), finish("length")),
        request(3, ("g2", "a"), (0.0, 3.0), finish("stop")),
        request(4, ("g2", "b"), (0.0, 4.0), Vec::new()),
    ]);
    records.extend([
        rewarded(("g1", "a"), 1.0, 100),
        rewarded(("g1", "b"), 1.0, 300),
        rewarded(("g2", "a"), 0.0, 40),
        rewarded(("g2", "b"), 1.0, 60),
        mark(("g2", "a"), |mark| mark.truncated = Some(true)),
        Record::Close(StepClose {
            step: STEP,
            at: UnixNs(0),
            reason: CloseReason::Told,
            rollout_time: Some(Nanos(10 * S)),
            gpus: Some(5),
        }),
    ]);
    let step = numbers(records);
    check(
        &step,
        &[
            ("rollout/reward/mean", 0.75),
            ("rollout/reward/std", 0.1875f64.sqrt()),
            ("rollout/reward/count", 4.0),
            ("rollout/response_len/mean", 125.0),
            ("rollout/response_len/median", 80.0),
            // Of three whose end is known: cut by its finish reason, cut as told, and one that stopped.
            ("rollout/truncated_ratio", 2.0 / 3.0),
            ("rollout/groups", 2.0),
            ("rollout/zero_std/count", 1.0),
            ("rollout/zero_std/count_1.0", 1.0),
            ("perf/rollout_time", 10.0),
            ("perf/tokens_per_sec", 50.0),
            ("perf/tokens_per_gpu_per_sec", 10.0),
            ("perf/longest_sample_tokens_per_sec", 30.0),
        ],
    );
}

#[test]
fn only_the_last_attempt_counts_for_the_length_of_a_response() {
    let tokens = |n| vec![leg(LegRole::Regular, Nanos(S), &[("completion_tokens", Scalar::Number(n))])];
    let again = |mut profile: Profile| {
        profile.join.attempt = 1;
        profile
    };
    let step = numbers(profiles(vec![
        request(1, ("g", "a"), (0.0, 1.0), tokens(70.0)),
        again(request(2, ("g", "a"), (1.0, 1.0), tokens(10.0))),
        again(request(3, ("g", "a"), (2.0, 1.0), tokens(20.0))),
    ]));
    check(
        &step,
        &[("rollout/response_len/max", 30.0), ("perf/request/count", 3.0), ("rollout/samples", 1.0)],
    );
}

#[test]
fn evaluation_samples_are_kept_apart() {
    let tokens = |n| vec![leg(LegRole::Regular, Nanos(S), &[("completion_tokens", Scalar::Number(n))])];
    let mut records = profiles(vec![
        request(1, ("g", "a"), (0.0, 1.0), tokens(10.0)),
        request(2, ("e", "a"), (50.0, 2.0), tokens(1000.0)),
    ]);
    records.push(mark(("e", "a"), |mark| (mark.reward, mark.evaluation) = (Some(0.5), true)));
    let step = numbers(records);
    check(
        &step,
        &[
            ("perf/request/count", 1.0),
            ("perf/rollout_time", 1.0),
            ("rollout/response_len/max", 10.0),
            ("eval/request/count", 1.0),
            ("eval/rollout_time", 2.0),
            ("eval/reward/mean", 0.5),
            ("eval/response_len/max", 1000.0),
            ("eval/request/gateway_latency/max", 2.0),
        ],
    );
    assert!(!step.metrics.contains_key("rollout/reward/mean"));
    assert_eq!(step.shown(), &step.training);
}

#[test]
fn a_step_of_evaluation_alone_is_judged_by_it() {
    let told = |mark: &mut SampleMark| {
        (mark.reward, mark.response_tokens, mark.evaluation) = (Some(0.5), Some(60), true);
    };
    let (rollout_time, gpus) = (Some(Nanos(10 * S)), Some(2));
    let close = StepClose { step: STEP, at: UnixNs(0), reason: CloseReason::Told, rollout_time, gpus };
    let step = numbers(vec![mark(("e", "a"), told), Record::Close(close)]);
    let expected =
        [("eval/reward/mean", 0.5), ("eval/rollout_time", 10.0), ("eval/tokens_per_gpu_per_sec", 3.0)];
    check(&step, &expected);
    assert_eq!(step.shown().samples, 1);
    assert!(step.metrics.keys().all(|name| name.starts_with("eval/")));
}

#[test]
fn a_reward_that_is_no_number_makes_no_group_of_equals() {
    let infinite = |name| rewarded(("g", name), f64::INFINITY, 1);
    let step = numbers(vec![infinite("a"), infinite("b"), rewarded(("h", "a"), 1.0, 1)]);
    check(
        &step,
        &[("rollout/groups", 2.0), ("rollout/zero_std/count", 0.0), ("perf/anomaly/not_finite", 2.0)],
    );
}

/// As slime names them, by `str(round(reward, 1))` of a float in Python; of zeros there is one.
#[test]
fn groups_of_equals_are_named_by_their_reward_to_one_decimal() {
    for (reward, name) in [
        (1.0, "1.0"),
        (0.0, "0.0"),
        (-0.0, "0.0"),
        (-0.04, "0.0"),
        (0.04, "0.0"),
        (0.05, "0.1"),
        (-0.05, "-0.1"),
        (0.15, "0.1"),
        (0.25, "0.2"),
        (0.35, "0.3"),
        (0.95, "0.9"),
        (-0.96, "-1.0"),
        (-12.34, "-12.3"),
        (1e12, "1000000000000.0"),
    ] {
        let step = numbers(vec![rewarded(("g", "a"), reward, 1), rewarded(("g", "b"), reward, 1)]);
        let named: Vec<_> =
            step.metrics.keys().filter_map(|name| name.strip_prefix("rollout/zero_std/count_")).collect();
        assert_eq!(named, [name], "{reward:?}");
    }
}

/// Names of numbers of the whole evaluation, of another data set, and of a set of numbers.
#[test]
fn no_data_set_takes_another_number_s_name() {
    let datasets = ["samples", "request/count", "error_cat", "aime", "aime/samples", "aime-pass@1", "reward"];
    let records = datasets.iter().enumerate().flat_map(|(at, dataset)| {
        let reward = at as f64 / 10.0 + 2.0;
        ["a", "b"].map(|sample| {
            mark((dataset, sample), |mark| {
                (mark.reward, mark.dataset) = (Some(reward), Some((*dataset).into()));
                mark.category = Some("samples".into());
            })
        })
    });
    let verdicts = ["a", "b"].map(|sample| {
        mark(("verdicts", sample), |mark| (mark.reward, mark.dataset) = (Some(1.0), Some("math".into())))
    });
    let taken = mark(("taken", "a"), |mark| {
        (mark.reward, mark.dataset) = (Some(3.0), Some("math-pass@1".into()));
    });
    let step = numbers(records.chain(verdicts).chain([taken]).collect());
    check(
        &step,
        &[
            ("eval/samples", 17.0),
            ("eval/samples_", 2.0),
            ("eval/samples_/samples", 2.0),
            ("eval/request/count", 0.0),
            ("eval/request/count_", 2.1),
            ("eval/error_cat/samples", 1.0),
            ("eval/error_cat_", 2.2),
            ("eval/error_cat_/samples", 2.0),
            ("eval/aime", 2.3),
            ("eval/aime/samples", 2.0),
            ("eval/aime/samples_", 2.4),
            ("eval/aime-pass@1", 2.5),
            ("eval/reward", 2.6),
            ("eval/math-pass@1", 1.0),
            ("eval/math-pass@1_", 3.0),
        ],
    );
}

/// A step in which everything was told that can be: two groups, an attempt that was given up, speculative decoding,
/// weights that changed on the way, an evaluation of one data set.
fn loaded() -> Vec<Record> {
    let decode = |tokens: f64, version: f64| {
        vec![
            ("completion_tokens", Scalar::Number(tokens)),
            ("prompt_tokens", Scalar::Number(50.0)),
            ("e2e_latency", Scalar::Number(0.9)),
            ("decode_throughput", Scalar::Number(80.0)),
            ("finish_reason.type", Scalar::Text("stop")),
            ("queue_time", Scalar::Number(0.01)),
            ("spec_accept_token_num", Scalar::Number(tokens / 2.0)),
            ("spec_draft_token_num", Scalar::Number(tokens)),
            ("spec_verify_ct", Scalar::Number(tokens / 4.0)),
            ("weight_version", Scalar::Number(version)),
            ("pd_decode_prealloc_duration", Scalar::Number(0.01)),
            ("pd_decode_bootstrap_duration", Scalar::Number(0.002)),
            ("pd_decode_alloc_wait_duration", Scalar::Number(0.008)),
            ("pd_decode_transfer_duration", Scalar::Number(0.2)),
            ("pd_decode_forward_duration", Scalar::Number(0.6)),
        ]
    };
    let prefill = [
        ("pd_prefill_bootstrap_queue_duration", 0.02),
        ("pd_prefill_bootstrap_duration", 0.015),
        ("pd_prefill_alloc_wait_duration", 0.005),
        ("queue_time", 0.01),
        ("pd_prefill_forward_duration", 0.1),
        ("pd_prefill_transfer_queue_duration", 0.03),
        ("pd_transfer_speed_gb_s", 3.0),
        ("pd_transfer_total_mb", 12.0),
        ("pd_prefill_retry_count", 0.0),
        ("cached_tokens", 20.0),
        ("prompt_tokens", 50.0),
    ];
    let call = |id, sample, times, tokens, version| {
        let mut legs = pd(&prefill, &[]);
        legs[1] = leg(LegRole::Decode, Nanos(2 * S), &decode(tokens, version));
        request(id, sample, times, legs)
    };
    let unnamed = Profile {
        join: Join { step: Some(STEP), ..Join::default() },
        ..call(9, ("", ""), (0.0, 1.0), 9.0, 7.0)
    };
    let mut second = call(2, ("g", "a"), (3.0, 2.0), 40.0, 8.0);
    second.join.attempt = 1;
    second.retries = 2;
    let mut records = profiles(vec![
        call(1, ("g", "a"), (0.0, 2.0), 100.0, 7.0),
        unnamed,
        second,
        call(3, ("g", "b"), (0.0, 2.0), 60.0, 7.0),
        call(4, ("h", "a"), (0.0, 12.0), 60.0, 9.0),
        call(5, ("x", "a"), (0.0, 2.0), 5.0, 9.0),
    ]);
    let told = |sample, reward, effective, seconds: f64, category: &str| {
        mark(sample, |mark| {
            mark.reward = Some(reward);
            mark.response_tokens = Some(60);
            mark.effective_response_tokens = Some(effective);
            mark.non_generation_time = Nanos::from_secs_f64(seconds);
            mark.category = Some(category.into());
            mark.repetition = Some(reward > 0.5);
            mark.top_p_kept = Some(effective * 3);
        })
    };
    records.extend([
        told(("g", "a"), 1.0, 40, 0.5, "none"),
        told(("g", "b"), 1.0, 50, 1.5, "timeout"),
        told(("h", "a"), 0.0, 60, 4.0, "none"),
        mark(("x", "a"), |mark| (mark.reward, mark.dataset) = (Some(1.0), Some("aime".into()))),
        Record::Close(StepClose {
            step: STEP,
            at: UnixNs(0),
            reason: CloseReason::Told,
            rollout_time: Some(Nanos(10 * S)),
            gpus: Some(2),
        }),
    ]);
    records
}

#[test]
fn no_text_of_the_users_makes_a_name_that_a_tracker_refuses() {
    let long = "x".repeat(300);
    let texts = ["", "/", "a//b", "../x", ".", "line\nbreak", &long, "fine/as it is"];
    let records: Vec<Record> = texts
        .iter()
        .zip(["0", "1", "2", "3", "4", "5", "6", "7"])
        .flat_map(|(text, number)| {
            let told =
                |mark: &mut SampleMark| (mark.reward, mark.category) = (Some(1.0), Some((*text).into()));
            let evaluated = |mark: &mut SampleMark| {
                (mark.reward, mark.dataset, mark.category) =
                    (Some(1.0), Some((*text).into()), Some((*text).into()));
            };
            [mark(("g", number), told), mark(("e", number), evaluated)]
        })
        .collect();
    let names: Vec<String> = numbers(records).metrics.into_keys().collect();
    // As MLflow judges them.
    for name in &names {
        assert!(name.len() <= 250 && !name.contains(char::is_control), "{name:?}");
        assert!(name.split('/').all(|part| !matches!(part, "" | "." | "..")), "{name:?}");
    }
    for name in
        ["rollout/error_cat/fine/as it is", "eval/a/_/b/reward/mean", "eval/_", "rollout/error_cat/_/x"]
    {
        assert!(names.iter().any(|other| other == name), "{name} of {names:?}");
    }
}

#[test]
fn what_is_told_of_samples_gives_the_numbers_of_a_rollout() {
    check(
        &numbers(loaded()),
        &[
            ("rollout/response_len/mean", 50.0),
            ("rollout/repetition_frac", 2.0 / 3.0),
            ("rollout/error_cat/none", 2.0 / 3.0),
            ("rollout/error_cat/timeout", 1.0 / 3.0),
            ("rollout/top_p_kept_vocab_per_token", 3.0),
            ("rollout/zero_std/count_1.0", 1.0),
            // Of g with both right, and h with one sample that is wrong; of pairs only g has one.
            ("rollout/pass@1", 0.5),
            ("rollout/pass@2", 1.0),
            ("rollout/prefix_cache_hit_rate", 0.4),
            // Two requests of g/a, one each of the others.
            ("rollout/avg_cached_tokens_per_sample", 80.0 / 3.0),
            ("rollout/spec_accept_rate", 0.5),
            ("rollout/spec_accept_length", 4.0),
            ("rollout/weight_version/count", 3.0),
            ("rollout/weight_version/spread", 2.0),
            ("rollout/weight_version/mixed_sample_share", 1.0 / 3.0),
            ("perf/tokens_per_gpu_per_sec", 180.0 / 10.0 / 2.0),
            ("perf/effective_tokens_per_gpu_per_sec", 150.0 / 10.0 / 2.0),
            ("perf/longest_sample_tokens_per_sec", 6.0),
            ("perf/longest_effective_sample_tokens_per_sec", 6.0),
            ("perf/non_generation_time/mean", 2.0),
            // All three are as long; of the trained tokens h/a has most.
            ("perf/longest_sample_non_generation_time", 2.0),
            ("perf/longest_effective_sample_non_generation_time", 4.0),
            ("perf/longest_sample_tokens_per_sec_without_non_generation", 60.0 / 8.0),
            ("perf/longest_effective_sample_tokens_per_sec_without_non_generation", 60.0 / 6.0),
            ("perf/retries", 2.0),
            ("perf/extra_attempts", 1.0),
            ("perf/wasted_tokens", 100.0),
            ("perf/wasted_token_share", 100.0 / 260.0),
            ("perf/last_sample/duration", 12.0),
            ("perf/last_sample/decode_forward_time", 0.6),
            ("eval/aime", 1.0),
            ("eval/aime/reward/count", 1.0),
            ("eval/request/count", 1.0),
        ],
    );
}

#[test]
fn every_number_is_in_the_table_and_the_table_has_no_other() {
    let step = numbers(loaded());
    let of_training = |name: &&String| !name.starts_with("eval/");
    let number_of = |name: &str| {
        let found: Vec<_> = NUMBERS
            .iter()
            .filter(|number| {
                name.strip_prefix(number.kind.prefix())
                    .and_then(|rest| rest.strip_prefix('/'))
                    .is_some_and(|rest| number.has(rest))
            })
            .map(|number| number.name)
            .collect();
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found[0]
    };
    let given: BTreeSet<_> = step.metrics.keys().filter(of_training).map(|name| number_of(name)).collect();
    let missing: Vec<_> =
        NUMBERS.iter().map(|number| number.name).filter(|name| !given.contains(name)).collect();
    assert_eq!(missing, [""; 0], "a step in which everything was told has every number");
    // What servers publish has a colon in its name and a set of labels: none of it is ever sent.
    assert!(step.metrics.keys().all(|name| !name.contains([':', '{', ' '])), "{:?}", step.metrics.keys());
}

#[test]
fn names_stay_few_whatever_is_told() {
    let marks = (0..500).map(|number| {
        let (group, sample) = (format!("g{number}"), format!("s{number}"));
        mark((&group, &sample), |mark| {
            mark.reward = Some(f64::from(number));
            mark.category = Some(format!("c{number}").into());
            mark.dataset = (number % 2 == 0).then(|| format!("d{number}").into());
        })
    });
    let names = numbers(marks.collect()).metrics.len();
    assert!(names < 2_500, "{names} names");
}

#[test]
fn a_worker_is_judged_by_its_peers() {
    let call = |id: u128, worker: &str, seconds: f64| {
        let tokens = [("completion_tokens", Scalar::Number(100.0))];
        let mut leg = leg(LegRole::Regular, Nanos::from_secs_f64(seconds).unwrap(), &tokens);
        leg.worker = WorkerRef { url: format!("http://{worker}").into(), instance: worker.into() };
        request(id, ("g", &format!("s{id}")), (0.0, seconds), vec![leg])
    };
    let calls = (0..30).map(|id| match id % 3 {
        0 => call(id, "a", 1.0),
        1 => call(id, "b", 1.1),
        _ => call(id, "c", 2.0),
    });
    let step = numbers(profiles(calls.collect()));
    check(
        &step,
        &[
            ("perf/worker/count", 3.0),
            ("perf/worker/tokens/mean", 1000.0),
            ("perf/worker/max_tokens/max", 100.0),
            ("perf/worker/idle_share/max", 0.5),
            ("perf/worker/idle_share/min", 0.0),
            ("perf/worker/stragglers", 1.0),
            ("perf/worker/without_timings", 3.0),
            ("perf/worker/tokens_per_sec/max", 100.0),
        ],
    );
    let slow: Vec<_> = step.training.workers.iter().filter(|worker| worker.is_straggler).collect();
    assert_eq!(slow.len(), 1);
    assert_eq!((&*slow[0].worker.instance, slow[0].tokens_per_sec), ("c", Some(50.0)));
}

/// Each gateway of a run registers a worker by an id of its own, and a worker that is started anew gets another.
#[test]
fn a_worker_is_one_by_role_and_url_whoever_called_it() {
    let call = |id: u128, role, url: &str, instance: &str| {
        let tokens = [("completion_tokens", Scalar::Number(10.0)), ("prompt_tokens", Scalar::Number(10.0))];
        let worker = WorkerRef { url: url.into(), instance: instance.into() };
        let leg = Leg { worker, ..leg(role, Nanos(S), &tokens) };
        request(id, ("g", &format!("s{id}")), (0.0, 1.0), vec![leg])
    };
    let (decode, prefill) = (LegRole::Decode, LegRole::Prefill);
    let step = numbers(profiles(vec![
        call(1, decode, "http://w", "of the first gateway"),
        call(2, decode, "http://w", "of the second gateway"),
        call(3, decode, "http://w", "of the first gateway"),
        call(4, decode, "http://v", "of the first gateway"),
        call(5, prefill, "http://w", "of the first gateway"),
        // Where nothing is known of where it is.
        call(6, decode, "", "a"),
        call(7, decode, "", "b"),
        call(8, decode, "", "b"),
    ]));
    let requests = |worker: &WorkerFigures| (worker.role, worker.worker.url.to_string(), worker.requests);
    let found: Vec<_> = step.training.workers.iter().map(requests).collect();
    let expected = [
        (prefill, "http://w", 1),
        (decode, "", 1),
        (decode, "", 2),
        (decode, "http://v", 1),
        (decode, "http://w", 3),
    ];
    assert_eq!(found, expected.map(|(role, url, requests)| (role, url.to_owned(), requests)));
    check(&step, &[("perf/worker/count", 5.0), ("perf/worker/tokens/max", 30.0)]);
}

#[test]
fn the_tail_begins_when_a_tenth_is_left() {
    let calls = (0..20u32).map(|id| {
        let seconds = if id < 18 { 2.0 } else { 2.0 + f64::from(id - 17) * 4.0 };
        request(id.into(), ("g", &format!("s{id}")), (0.0, seconds), Vec::new())
    });
    let step = numbers(profiles(calls.collect()));
    // 19 of 20 have ended after 6 s, and the last one after 10.
    check(&step, &[("perf/tail/time", 4.0), ("perf/tail/share", 0.4), ("perf/last_sample/duration", 10.0)]);
    let late = &step.training.late_samples;
    assert_eq!((late.len(), late[0].key.to_string().as_str()), (10, "g/s19"));
}

#[test]
fn an_index_by_enum_is_its_place_in_the_list_of_all() {
    assert!(Fault::ALL.iter().enumerate().all(|(index, fault)| *fault as usize == index));
    assert!(Outcome::ALL.iter().enumerate().all(|(index, outcome)| *outcome as usize == index));
}

/// A sample of one request, made up: group, start, length, end-to-end latency, reward.
type Row = (u8, f64, f64, Option<f64>, f64);

fn records_of((id, (group, start, length, e2e, reward)): (usize, Row)) -> [Record; 2] {
    let (group, sample) = (format!("g{group}"), format!("s{id}"));
    let e2e: Vec<_> = e2e.iter().map(|value| ("e2e_latency", Scalar::Number(*value))).collect();
    let legs = vec![leg(LegRole::Regular, Nanos(S), &e2e)];
    let profile = request(id as u128, (&group, &sample), (start, length), legs);
    [Record::Profile(Box::new(profile)), rewarded((&group, &sample), reward, id as u64)]
}

proptest! {
    /// The log has no order, so neither have the numbers; and no number is one that a tracker refuses.
    #[test]
    fn numbers_do_not_depend_on_the_order_of_records(
        (ordered, shuffled) in prop::collection::vec(
            (0..4u8, 0.0..9.0f64, 0.0..9.0f64, prop::option::of(-1.0..9.0f64), prop::num::f64::ANY),
            1..40,
        )
        .prop_map(|rows| rows.into_iter().enumerate().flat_map(records_of).collect::<Vec<_>>())
        .prop_flat_map(|records| (Just(records.clone()), Just(records).prop_shuffle())),
    ) {
        let of = numbers(ordered);
        let other = numbers(shuffled);
        prop_assert_eq!(&of.metrics, &other.metrics);
        prop_assert!(of.metrics.values().all(|value| value.is_finite()));
        let ended = Outcome::ALL.map(|outcome| of.training.requests.ended(outcome));
        prop_assert_eq!(ended.iter().sum::<u64>(), of.training.requests.count);
    }
}

#[test]
fn a_request_without_a_name_is_nobody_s_where_others_have_one() {
    let with_name = request(1, ("g", "s"), (0.0, 2.0), pd(&[], &[("completion_tokens", 10.0)]));
    let without = Profile { join: Join { step: Some(STEP), ..Join::default() }, ..with_name.clone() };
    let without = Profile { id: RequestId(2), end: Nanos(90 * S), ..without };
    let both = numbers(profiles(vec![with_name, without.clone()]));
    check(
        &both,
        &[("perf/request/count", 1.0), ("perf/request/unnamed_count", 1.0), ("rollout/samples", 1.0)],
    );
    check(&both, &[("perf/rollout_time", 2.0)]);
    let alone = numbers(profiles(vec![without]));
    check(&alone, &[("perf/request/count", 1.0), ("rollout/samples", 1.0)]);
    assert!(!alone.metrics.contains_key("perf/request/unnamed_count"));
}

#[test]
fn a_span_that_is_years_away_stretches_nothing() {
    let of = request(1, ("g", "s"), (0.0, 2.0), pd(&[], &[("completion_tokens", 10.0)]));
    let key = of.sample_key(STEP);
    let span = |start_s: f64, end_s: f64| {
        let at = |seconds: f64| UnixNs::from_secs_f64(seconds).unwrap();
        let (start, end) = (at(start_s), Some(at(end_s)));
        Record::Span(UserSpan {
            key: key.clone(),
            attempt: 0,
            name: "x".into(),
            start,
            end,
            attrs: Vec::new(),
        })
    };
    let begin = 1_700_000_000.0;
    let records = [span(begin + 2.0, begin + 3.0), span(1_000_000_000.0, begin + 1.0), span(begin, 4e9)];
    let found = numbers(profiles(vec![of]).into_iter().chain(records).collect());
    check(&found, &[("perf/last_sample/duration", 3.0), ("perf/non_generation_time/max", 1.0)]);
}

/// Of requests that reached no worker, and of such that no worker answered, there is nothing but that they failed.
#[test]
fn a_step_that_failed_as_a_whole_has_its_counts_and_nothing_made_up() {
    let failed = |id: u128, legs: Vec<Leg>| Profile {
        outcome: Outcome::Failed,
        status: Some(503),
        error: Some("no worker".into()),
        ..request(id, ("g", &id.to_string()), (0.0, 0.0), legs)
    };
    let unanswered = Leg { outcome: Outcome::Failed, ..leg(LegRole::Regular, Nanos(0), &[]) };
    let found = numbers(profiles(vec![failed(1, vec![]), failed(2, vec![unanswered])]));
    check(
        &found,
        &[
            ("perf/request/count", 2.0),
            ("perf/request/failed", 2.0),
            ("perf/request/completed", 0.0),
            ("perf/request/profiled_count", 0.0),
            ("perf/rollout_time", 0.0),
            ("perf/tail/share", 0.0),
            ("rollout/samples", 2.0),
        ],
    );
    check(&found, &[("perf/worker/count", 1.0), ("perf/worker/without_timings", 0.0)]);
    let of_work = [
        "/decode/",
        "/prefill/",
        "_latency/",
        "throughput",
        "_per_sec",
        "/reward/",
        "/response_len/",
        "/worker/tokens/",
        "/worker/max_tokens/",
    ];
    let made_up = found.metrics.keys().find(|name| of_work.iter().any(|part| name.contains(part)));
    assert_eq!(made_up, None);
}
