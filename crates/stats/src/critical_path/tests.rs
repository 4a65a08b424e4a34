//! Requests made by hand, and arbitrary ones: the parts sum to the whole.

use proptest::prelude::*;
use rollscope_trace::{Report, RequestId, Scalar, Stage, UnixNs, WorkerRef};

use super::*;

const MS: u64 = 1_000_000;

pub(crate) fn leg(role: LegRole, (dispatch_ms, end_ms): (u64, u64), pairs: &[(&str, f64)]) -> Leg {
    Leg {
        report: Report::from_pairs(pairs.iter().map(|(name, value)| (*name, Scalar::Number(*value)))),
        ..Leg::new(
            role,
            WorkerRef { url: "http://127.0.0.1:1".into(), instance: "w".into() },
            Nanos(dispatch_ms * MS),
            Nanos(end_ms * MS),
        )
    }
}

pub(crate) fn request(end_ms: u64, legs: Vec<Leg>) -> Profile {
    Profile { legs, ..Profile::new(RequestId(7), UnixNs(1_700_000_000_000_000_000), Nanos(end_ms * MS)) }
}

/// `part milliseconds`, a row a line.
#[track_caller]
fn check(profile: &Profile, expected: &[(Part, u64)]) {
    let rows = request_breakdown(profile).rows();
    let rows: Vec<_> = rows.iter().map(|row| (row.part, row.time.0 / MS)).collect();
    assert_eq!(rows, expected);
}

const PREFILL: [(&str, f64); 6] = [
    ("pd_prefill_bootstrap_queue_duration", 0.010),
    ("queue_time", 0.040),
    ("pd_prefill_forward_duration", 0.030),
    ("pd_prefill_transfer_queue_duration", 0.005),
    ("pd_prefill_bootstrap_duration", 0.010),
    ("e2e_latency", 0.090),
];
const DECODE: [(&str, f64); 5] = [
    ("pd_decode_prealloc_duration", 0.008),
    ("pd_decode_transfer_duration", 0.080),
    ("queue_time", 0.001),
    ("pd_decode_forward_duration", 0.200),
    ("pd_decode_bootstrap_duration", 0.008),
];

#[test]
fn the_wait_of_decode_is_explained_from_its_end_by_what_prefill_did() {
    let legs = vec![leg(LegRole::Prefill, (1, 91), &PREFILL), leg(LegRole::Decode, (1, 299), &DECODE)];
    check(
        &request(300, legs),
        &[
            (Part::Gateway, 2),
            // Of the 80 ms of transfer: 5 moving, 25 computing, 40 queueing, and the 10 of the bootstrap queue
            // that are left.
            (Part::PrefillBootstrapQueue, 10),
            (Part::PrefillQueue, 40),
            (Part::PrefillForward, 25),
            (Part::DecodePrealloc, 8),
            (Part::Transfer, 5),
            (Part::DecodeQueue, 1),
            (Part::DecodeForward, 200),
            (Part::Other, 9),
        ],
    );
}

#[test]
fn what_prefill_did_beside_prealloc_is_not_counted_again() {
    let decode = DECODE.map(|(name, value)| match name {
        "pd_decode_prealloc_duration" => (name, 0.060),
        "pd_decode_transfer_duration" => (name, 0.028),
        _ => (name, value),
    });
    let legs = vec![leg(LegRole::Prefill, (0, 91), &PREFILL), leg(LegRole::Decode, (0, 300), &decode)];
    check(
        &request(300, legs),
        &[
            (Part::PrefillForward, 23),
            (Part::DecodePrealloc, 60),
            (Part::Transfer, 5),
            (Part::DecodeQueue, 1),
            (Part::DecodeForward, 200),
            (Part::Other, 11),
        ],
    );
}

#[test]
fn a_wait_that_prefill_does_not_explain_is_transfer() {
    let legs = vec![leg(LegRole::Prefill, (0, 90), &[]), leg(LegRole::Decode, (0, 300), &DECODE)];
    check(
        &request(300, legs),
        &[
            (Part::DecodePrealloc, 8),
            (Part::Transfer, 80),
            (Part::DecodeQueue, 1),
            (Part::DecodeForward, 200),
            (Part::Other, 11),
        ],
    );
}

#[test]
fn a_decode_worker_without_timings_leaves_the_prefill_workers_word() {
    let legs = vec![leg(LegRole::Prefill, (0, 90), &PREFILL), leg(LegRole::Decode, (0, 300), &[])];
    check(
        &request(300, legs),
        &[
            (Part::PrefillBootstrapQueue, 10),
            (Part::PrefillQueue, 40),
            (Part::PrefillForward, 25),
            (Part::Transfer, 5),
            (Part::Other, 220),
        ],
    );
}

#[test]
fn a_worker_that_does_everything_is_split_where_its_stamps_allow() {
    let plain = [("queue_time", 0.010), ("e2e_latency", 0.090)];
    let legs = vec![leg(LegRole::Regular, (1, 99), &plain)];
    check(
        &request(100, legs),
        &[(Part::Gateway, 2), (Part::Queue, 10), (Part::Forward, 80), (Part::Other, 8)],
    );
    let stamped = [
        ("queue_time", 0.010),
        ("forward_entry_time", 1_700_000_000.0),
        ("prefill_finished_time", 1_700_000_000.25),
        ("request_finished_ts", 1_700_000_000.75),
    ];
    let legs = vec![leg(LegRole::Regular, (0, 800), &stamped)];
    check(
        &request(800, legs),
        &[(Part::Queue, 10), (Part::PrefillForward, 250), (Part::DecodeForward, 500), (Part::Other, 40)],
    );
}

#[test]
fn tries_that_were_given_up_are_told_apart() {
    let legs = vec![
        leg(LegRole::Prefill, (1, 21), &[]),
        leg(LegRole::Decode, (1, 31), &[]),
        leg(LegRole::Prefill, (40, 60), &[]),
        leg(LegRole::Decode, (41, 99), &[("pd_decode_forward_duration", 0.050)]),
    ];
    check(
        &request(100, legs),
        &[(Part::Gateway, 11), (Part::EarlierTries, 30), (Part::DecodeForward, 50), (Part::Other, 9)],
    );
    check(&request(100, Vec::new()), &[(Part::Gateway, 100)]);
    // Prefill refused and nothing was decoded.
    check(
        &request(100, vec![leg(LegRole::Prefill, (1, 91), &[])]),
        &[(Part::Gateway, 10), (Part::Other, 90)],
    );
}

fn any_leg() -> impl Strategy<Value = Leg> {
    let values = prop::collection::vec(prop::option::of(-0.1..0.9f64), Stage::ALL.len() + 2);
    let stamps = prop::option::of((0.0..0.5f64, 0.0..0.5f64));
    (prop::sample::select(&LegRole::ALL[..]), 0..600u64, 0..600u64, values, stamps).prop_map(
        |(role, dispatch, end, values, stamps)| {
            let names =
                Stage::ALL.iter().map(|stage| stage.measure().name()).chain(["queue_time", "e2e_latency"]);
            let mut pairs: Vec<_> =
                names.zip(&values).filter_map(|(name, value)| Some((name, (*value)?))).collect();
            if let Some((prompt, generation)) = stamps {
                pairs.extend([
                    ("forward_entry_time", 1e9),
                    ("prefill_finished_time", 1e9 + prompt),
                    ("request_finished_ts", 1e9 + prompt + generation),
                ]);
            }
            leg(role, (dispatch, end), &pairs)
        },
    )
}

proptest! {
    #[test]
    fn the_parts_sum_to_the_whole_whatever_is_reported(
        legs in prop::collection::vec(any_leg(), 0..5),
        end in 0..900u64,
    ) {
        let profile = request(end, legs);
        let breakdown = request_breakdown(&profile);
        prop_assert_eq!(breakdown.total(), profile.end);
        let shares: f64 = breakdown.rows().iter().map(|row| row.share).sum();
        prop_assert!(end == 0 || (shares - 1.0).abs() < 1e-9, "{shares}");
    }

    #[test]
    fn time_that_is_covered_is_counted_once(
        stretches in prop::collection::vec((0..60u64, 0..60u64), 0..12),
    ) {
        let by_the_tick = (0..60).filter(|tick| stretches.iter().any(|(a, b)| a <= tick && tick < b)).count();
        let sum = covered(stretches.iter().map(|(a, b)| (Nanos(*a), Nanos(*b))));
        prop_assert_eq!(sum.0, by_the_tick as u64);
    }
}
