//! Spans of made-up profiles: nesting, containment, placement.

use proptest::prelude::*;

use super::*;
use crate::{Report, RequestId, Scalar, WorkerRef};

const MS: u64 = 1_000_000;

fn leg(role: LegRole, dispatch: u64, end: u64, pairs: &[(&str, f64)]) -> Leg {
    Leg {
        report: Report::from_pairs(pairs.iter().map(|(name, value)| (*name, Scalar::Number(*value)))),
        ..Leg::new(
            role,
            WorkerRef { url: "http://127.0.0.1:1".into(), instance: "w1".into() },
            Nanos(dispatch),
            Nanos(end),
        )
    }
}

fn profile(legs: Vec<Leg>) -> Profile {
    let end = Nanos(legs.iter().map(|leg| leg.end.0).max().unwrap_or(0) + MS);
    Profile { legs, ..Profile::new(RequestId(7), UnixNs(1_700_000_000_000_000_000), end) }
}

/// `indent name [start, end) ms since arrival`, a line a span.
fn tree(profile: &Profile) -> String {
    let spans = profile_spans(profile);
    let depth = |span: &Span| std::iter::successors(span.parent, |id| spans[*id as usize].parent).count();
    let ms = |at: UnixNs| (at.0 - profile.arrival.0) as f64 / MS as f64;
    let line = |span: &Span| {
        let indent = "  ".repeat(depth(span));
        format!("{indent}{} [{}, {})\n", span.name, ms(span.start), ms(span.end.unwrap()))
    };
    spans.iter().map(line).collect()
}

#[test]
fn both_legs_run_in_parallel_and_nested_stages_lie_inside() {
    let prefill = leg(
        LegRole::Prefill,
        MS,
        41 * MS,
        &[
            ("pd_prefill_bootstrap_queue_duration", 0.010),
            ("pd_prefill_bootstrap_duration", 0.007),
            ("pd_prefill_alloc_wait_duration", 0.003),
            ("queue_time", 0.004),
            ("pd_prefill_forward_duration", 0.020),
            ("pd_prefill_transfer_queue_duration", 0.005),
            ("e2e_latency", 0.036),
        ],
    );
    let decode = leg(
        LegRole::Decode,
        MS,
        101 * MS,
        &[
            ("pd_decode_prealloc_duration", 0.006),
            ("pd_decode_bootstrap_duration", 0.002),
            ("pd_decode_alloc_wait_duration", 0.004),
            ("pd_decode_transfer_duration", 0.030),
            ("queue_time", 0.0),
            ("pd_decode_forward_duration", 0.060),
            ("e2e_latency", 0.098),
        ],
    );
    assert_eq!(
        tree(&profile(vec![prefill, decode])),
        "request [0, 102)\n  \
           sglang_pd_prefill [1, 41)\n    \
             bootstrap_queue [3, 13)\n      \
               bootstrap [3, 10)\n      \
               alloc_wait [10, 13)\n    \
             queue [13, 17)\n    \
             forward [17, 37)\n      \
               transfer_queue [32, 37)\n  \
           sglang_pd_decode [1, 101)\n    \
             prealloc [2, 8)\n      \
               bootstrap [2, 4)\n      \
               alloc_wait [4, 8)\n    \
             transfer [8, 38)\n    \
             queue [38, 38)\n    \
             forward [38, 98)\n"
    );
}

#[test]
fn a_worker_ahead_by_an_hour_is_placed_by_its_stamps() {
    let wall = |ms: f64| 1_700_003_600.0 + ms / 1e3;
    let decode = leg(
        LegRole::Decode,
        0,
        100 * MS,
        &[
            ("request_received_ts", wall(2.0)),
            ("response_sent_to_client_ts", wall(98.0)),
            ("forward_entry_time", wall(50.0)),
            ("pd_decode_prealloc_duration", 0.010),
            ("pd_decode_transfer_duration", 0.030),
            ("pd_decode_forward_duration", 0.040),
        ],
    );
    let spans = profile_spans(&profile(vec![decode]));
    let forward = spans.iter().find(|span| span.name == "forward").unwrap();
    let start_ms = (forward.start.0 - 1_700_000_000_000_000_000) as f64 / 1e6;
    assert!((start_ms - 50.0).abs() < 0.001, "{start_ms}");
    // A double of this size holds a quarter of a microsecond.
    assert!((forward.bound.0 as f64 / 1e6 - 2.0).abs() < 0.001, "{:?}", forward.bound);
}

#[test]
fn a_missing_stage_gives_no_span() {
    let decode = leg(LegRole::Decode, 0, MS, &[("pd_decode_forward_duration", 0.0005)]);
    assert_eq!(tree(&profile(vec![decode])).lines().count(), 3);
    assert_eq!(tree(&profile(vec![leg(LegRole::Prefill, 0, MS, &[])])).lines().count(), 2);
}

#[test]
fn a_regular_leg_is_split_at_the_end_of_its_prompt() {
    let regular = leg(
        LegRole::Regular,
        0,
        100 * MS,
        &[
            ("queue_time", 0.010),
            ("forward_entry_time", 1_700_000_000.011),
            ("prefill_finished_time", 1_700_000_000.031),
            ("request_finished_ts", 1_700_000_000.091),
            ("e2e_latency", 0.090),
        ],
    );
    let spans = profile_spans(&profile(vec![regular]));
    let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["request", "sglang_generate", "queue", "prefill", "decode"]);
}

#[test]
fn a_leg_that_ends_before_it_begins_is_drawn_empty() {
    let backwards = leg(LegRole::Decode, 5 * MS, MS, &[("pd_decode_forward_duration", 0.0005)]);
    let spans = profile_spans(&profile(vec![backwards]));
    assert!(spans[1..].iter().all(|span| span.end == Some(span.start)), "{spans:?}");
}

proptest! {
    /// Whatever a worker claims, a child lies in its parent and siblings of a leg do not overlap.
    #[test]
    fn spans_nest_whatever_is_reported(
        values in prop::collection::vec(prop::option::of(-0.1..0.5f64), 13),
        dispatch in 0..50u64,
        length in 0..400u64,
        role in prop::sample::select(&LegRole::ALL[..]),
        stamps in prop::option::of((-5.0..5.0f64, 0.0..0.4f64, 0.0..0.4f64)),
    ) {
        let mut pairs: Vec<(&str, f64)> = Stage::ALL
            .iter()
            .map(|stage| stage.measure().name())
            .chain(["queue_time", "e2e_latency"])
            .zip(&values)
            .filter_map(|(name, value)| Some((name, (*value)?)))
            .collect();
        if let Some((ahead, entry, window)) = stamps {
            let wall = 1_700_000_000.0 + ahead;
            pairs.extend([
                ("request_received_ts", wall),
                ("forward_entry_time", wall + entry),
                ("response_sent_to_client_ts", wall + window),
            ]);
        }
        let mut leg = leg(role, dispatch * MS, (dispatch + length) * MS, &pairs);
        leg.report.bound_by(leg.duration());
        let spans = profile_spans(&profile(vec![leg]));
        for span in &spans {
            let end = span.end.unwrap();
            prop_assert!(span.start <= end, "{span:?}");
            if let Some(parent) = span.parent.map(|id| &spans[id as usize]) {
                prop_assert!(parent.id < span.id);
                prop_assert!(parent.start <= span.start && end <= parent.end.unwrap(), "{parent:?} {span:?}");
            }
            for sibling in spans.iter().filter(|other| other.parent == span.parent && other.id > span.id) {
                prop_assert!(end <= sibling.start, "{span:?} {sibling:?}");
            }
        }
    }
}
