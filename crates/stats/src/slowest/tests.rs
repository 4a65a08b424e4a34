//! Which sample is the slowest, and what its time is made of.

use proptest::prelude::*;
use rollscope_trace::{LegRole, Profile, Record, RequestId, StepNumber, UserSpan};

use super::*;
use crate::critical_path::tests::{leg, request};
use crate::where_time_went;

const STEP: StepNumber = StepNumber(1);
const MS: i64 = 1_000_000;

fn at(ms: u64) -> UnixNs {
    UnixNs(1_700_000_000_000_000_000 + ms as i64 * MS)
}

fn key(sample: &str) -> SampleKey {
    SampleKey { step: STEP, group: None, sample: sample.into() }
}

fn call(id: u128, sample: &str, (start_ms, length_ms): (u64, u64)) -> Record {
    let forward = [("e2e_latency", length_ms as f64 / 1e3)];
    let mut profile: Profile = request(length_ms, vec![leg(LegRole::Regular, (0, length_ms), &forward)]);
    profile.id = RequestId(id);
    profile.arrival = at(start_ms);
    (profile.join.step, profile.join.sample) = (Some(STEP), Some(sample.into()));
    Record::Profile(Box::new(profile))
}

fn span(sample: &str, (start_ms, end_ms): (u64, u64)) -> Record {
    Record::Span(UserSpan {
        key: key(sample),
        attempt: 0,
        name: "reward".into(),
        start: at(start_ms),
        end: Some(at(end_ms)),
        attrs: Vec::new(),
    })
}

#[test]
fn the_slowest_sample_is_taken_apart() {
    let trace = StepTrace::gather(
        STEP,
        [
            call(1, "quick", (0, 100)),
            call(2, "slow", (10, 300)),
            call(3, "slow", (400, 100)),
            // Beside a request, then on its own.
            span("slow", (250, 340)),
            span("slow", (500, 560)),
        ],
    );
    let slowest = slowest_sample(&trace).unwrap();
    assert_eq!((slowest.key, slowest.start, slowest.duration), (key("slow"), at(10), Nanos(550_000_000)));
    let rows: Vec<_> =
        slowest.breakdown.rows().iter().map(|row| (row.part, row.time.0 / 1_000_000)).collect();
    assert_eq!(rows, [(Part::Forward, 400), (Part::UserCode, 90), (Part::Between, 60)]);
    assert_eq!(slowest.worker.as_deref(), Some("http://127.0.0.1:1"));
}

#[test]
fn a_step_without_events_has_no_slowest_sample() {
    let trace = StepTrace::gather(STEP, []);
    assert_eq!(slowest_sample(&trace), None);
}

#[test]
fn evaluation_samples_do_not_count_beside_training() {
    let mut mark = rollscope_trace::SampleMark::new(key("exam"));
    mark.evaluation = true;
    let records = [call(1, "train", (0, 100)), call(2, "exam", (0, 900)), Record::Sample(mark)];
    let trace = StepTrace::gather(STEP, records.clone());
    assert_eq!(slowest_sample(&trace).unwrap().key, key("train"));
    assert_eq!(where_time_went(&trace).total(), Nanos(100_000_000));
    let alone = StepTrace::gather(STEP, records.into_iter().skip(1));
    assert_eq!(slowest_sample(&alone).unwrap().key, key("exam"));
}

proptest! {
    /// One request after the other: the parts of a sample sum to its time.
    #[test]
    fn a_sample_sums_to_its_duration(
        steps in prop::collection::vec((0..50u64, 1..200u64), 1..6),
        spans in prop::collection::vec((0..800u64, 0..200u64), 0..4),
    ) {
        let mut now = 0;
        let mut records: Vec<_> = spans.iter().map(|(start, length)| span("s", (*start, start + length))).collect();
        for (id, (pause, length)) in steps.into_iter().enumerate() {
            records.push(call(id as u128, "s", (now + pause, length)));
            now += pause + length;
        }
        let slowest = slowest_sample(&StepTrace::gather(STEP, records)).unwrap();
        prop_assert_eq!(slowest.breakdown.total(), slowest.duration);
    }
}
