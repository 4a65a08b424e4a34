//! Values against the definition of each series, request by request.

use proptest::prelude::*;
use rollscope_trace::{
    Fault, Join, Leg, LegRole, Measure, Nanos, Outcome, Profile, Reading, Record, RequestId, StepNumber,
    UnixNs, WorkerRef,
};

use super::*;

/// The value of one request, as a series is defined.
fn value(series: &Series, request: &Profile) -> Option<f64> {
    match series.name {
        "request/gateway_latency" => {
            (request.outcome == Outcome::Completed).then(|| request.end.as_secs_f64())
        }
        "prefill/queue_time" => request.prefill()?.report.measures.good(Measure::QueueTime),
        _ => {
            let measure = Measure::all().find(|measure| series.of_answer(*measure));
            measure.and_then(|measure| request.measure(measure))
        }
    }
}

fn leg() -> impl Strategy<Value = Leg> {
    let readings = prop::collection::vec(
        (
            prop::sample::select(Measure::all().collect::<Vec<_>>()),
            0.0..100.0f64,
            prop::option::weighted(0.1, prop::sample::select(&Fault::ALL[..])),
        ),
        0..24,
    );
    (prop::sample::select(&LegRole::ALL[..]), readings).prop_map(|(role, readings)| {
        let worker = WorkerRef { url: "http://127.0.0.1:1".into(), instance: "w".into() };
        let mut leg = Leg::new(role, worker, Nanos(0), Nanos(9));
        for (measure, value, fault) in readings {
            leg.report.measures.set(measure, Reading { value, fault });
        }
        leg
    })
}

fn request() -> impl Strategy<Value = Profile> {
    let outcome = prop::sample::select(&Outcome::ALL[..]);
    let legs = prop::collection::vec(leg(), 0..4);
    (outcome, legs, 0..1_000_000_000u64).prop_map(|(outcome, legs, end)| Profile {
        outcome,
        legs,
        ..Profile::new(RequestId(1), UnixNs(0), Nanos(end))
    })
}

/// A step of such requests, a sample each.
fn step_of(requests: &[&Profile]) -> StepTrace {
    let step = StepNumber(1);
    let record = |(id, request): (u128, &&Profile)| {
        let join = Join { step: Some(step), ..Join::default() };
        Record::Profile(Box::new(Profile { id: RequestId(id), join, ..Profile::clone(request) }))
    };
    StepTrace::gather(step, (1..).zip(requests).map(record))
}

fn sorted_bits(values: &[f64]) -> Vec<u64> {
    let mut bits: Vec<_> = values.iter().map(|value| value.to_bits()).collect();
    bits.sort_unstable();
    bits
}

proptest! {
    // Of a few kinds, over and over, as requests that are served are.
    #[test]
    fn columns_hold_the_value_of_each_request_that_has_one(
        kinds in prop::collection::vec(request(), 1..6),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..4 * READ_ROWS),
    ) {
        let requests: Vec<_> = order.iter().map(|at| at.get(&kinds)).collect();
        let mut one_by_one = RequestValues::default();
        for request in &requests {
            one_by_one.add(request);
        }
        let mut at_once = RequestValues::default();
        at_once.add_step(&step_of(&requests));
        for values in [one_by_one, at_once] {
            prop_assert_eq!(values.counts().count, requests.len() as u64);
            let profiled = requests.iter().filter(|request| request.is_profiled()).count();
            prop_assert_eq!(values.counts().profiled, profiled as u64);
            for (series, column) in values.into_columns() {
                let expected: Vec<_> = requests.iter().filter_map(|request| value(series, request)).collect();
                prop_assert_eq!(sorted_bits(&column), sorted_bits(&expected), "{}", series.name);
            }
        }
    }
}
