//! The spans that slime makes up from a reply's numbers of a prefill/decode pair: one for each worker, in it one for
//! each stage, all in a sequence from the request's begin, and an event with the numbers of the transfer.

use std::rc::Rc;

use rollscope_trace::{Attr, Measure, Measures, Profile, Reading, Scalar, Side, Stage, Unit};

use super::carrier::{Event, EventKind};
use super::element::derived_id;

/// What the names of those spans begin with.
const FAMILY: &str = "sglang_pd_";
/// The event with the numbers of the transfer.
pub(super) const SUMMARY: &str = "sglang_pd_summary";
/// What it tells.
const SUMMARY_MEASURES: [Measure; 3] =
    [Measure::TransferSpeed, Measure::TransferTotal, Measure::PrefillRetryCount];

/// Whether a span or an event is one of those.
pub(super) fn is_stage(name: &str) -> bool {
    name.starts_with(FAMILY)
}

/// Takes the numbers that an event of them tells.
pub(super) fn absorb(event: &Event, measures: &mut Measures) {
    for (name, value) in &event.attrs {
        if let Some(measure) = Measure::from_name(name).filter(|measure| measure.name() == &**name) {
            measures.set(measure, reading(measure, value));
        }
    }
}

/// An attribute as a number of a report.
pub(super) fn reading(measure: Measure, value: &Attr) -> Reading {
    let scalar = match value {
        Attr::Bool(value) => Scalar::Bool(*value),
        Attr::Int(value) => Scalar::Number(*value as f64),
        Attr::Float(value) => Scalar::Number(*value),
        Attr::Text(text) => Scalar::Text(text),
    };
    Reading::check(measure, scalar)
}

/// A number of a report as an attribute: counts are whole numbers.
pub(super) fn measure_attr(measure: Measure, value: f64) -> (Box<str>, Attr) {
    let is_count = matches!(measure.unit(), Unit::Tokens | Unit::Count);
    let is_whole = value.fract() == 0.0 && value.abs() < (1u64 << 53) as f64;
    let value = if is_count && is_whole { Attr::Int(value as i64) } else { Attr::Float(value) };
    (measure.name().into(), value)
}

/// The number that counts of a measure, plausible or not.
pub(super) fn reported(profile: &Profile, measure: Measure) -> Option<f64> {
    let answer = profile.answer().and_then(|leg| leg.report.measures.get(measure));
    let reading = match measure.side() {
        Side::Prefill => profile.prefill().and_then(|leg| leg.report.measures.get(measure)).or(answer),
        Side::Answer => answer,
    };
    reading.map(|reading| reading.value)
}

/// Appends the made-up events of a request.
pub(super) fn put(profile: &Profile, request_id: &Rc<str>, events: &mut Vec<Event>) {
    // Sums in another order would differ in their last bit: workers are added up from the request's begin, stages
    // from their worker's.
    let (arrival, mut passed_s) = (profile.arrival.as_secs_f64(), 0.0);
    for (side, phase) in [(Side::Prefill, "prefill"), (Side::Answer, "decode")] {
        let stages = Stage::ALL.into_iter().filter(|stage| stage.side() == side);
        let stages: Vec<(Stage, f64)> = stages
            .filter_map(|stage| Some((stage, reported(profile, stage.measure())?)))
            .filter(|(_, duration_s)| duration_s.is_finite())
            .collect();
        if !stages.is_empty() {
            let of = |kind, name: String, ts, (id, parent): (&Rc<str>, &Rc<str>), attrs| Event {
                kind,
                name: name.into(),
                ts,
                attempt: profile.join.attempt,
                span_id: Some(id.clone()),
                parent: (kind == EventKind::Start).then(|| parent.clone()),
                attrs,
            };
            let name = || format!("{FAMILY}{phase}");
            let id = derived_id(&[request_id, phase]);
            let (begin, mut whole_s) = (arrival + passed_s, 0.0);
            let mut at = begin;
            events.push(of(EventKind::Start, name(), at, (&id, request_id), Vec::new()));
            for (stage, duration_s) in stages {
                let name = || format!("{FAMILY}{phase}_{}", stage.name());
                let own = derived_id(&[request_id, phase, stage.name()]);
                events.push(of(EventKind::Start, name(), at, (&own, &id), Vec::new()));
                whole_s += duration_s;
                at = begin + whole_s;
                let told = vec![measure_attr(stage.measure(), duration_s)];
                events.push(of(EventKind::End, name(), at, (&own, &id), told));
            }
            passed_s += whole_s;
            let told = vec![("phase".into(), Attr::from(phase)), ("duration_s".into(), Attr::Float(whole_s))];
            events.push(of(EventKind::End, name(), arrival + passed_s, (&id, request_id), told));
        }
    }
    let told = SUMMARY_MEASURES.into_iter();
    let attrs: Vec<_> = told
        .filter_map(|measure| Some(measure_attr(measure, reported(profile, measure)?)))
        .filter(|(_, value)| !matches!(value, Attr::Float(value) if !value.is_finite()))
        .collect();
    if !attrs.is_empty() {
        events.push(Event {
            kind: EventKind::Point,
            name: SUMMARY.into(),
            ts: arrival + passed_s,
            attempt: profile.join.attempt,
            span_id: None,
            parent: Some(request_id.clone()),
            attrs,
        });
    }
}
