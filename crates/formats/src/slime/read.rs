//! From a carrier to the requests and spans of a sample.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::LazyLock;

use rollscope_trace::{
    Attr, Finish, FinishKind, Join, Leg, LegRole, Measure, Measures, Nanos, Outcome, Profile, Report,
    RequestId, SampleKey, Side, Stage, UnixNs, UserSpan, WorkerRef,
};
use serde_json::Value as Json;

use super::carrier::{Carrier, Event, EventKind};
use super::element::{self, Element, Part, derived_id, derived_trace_id};
use super::{exact, stages, write};
use crate::tree::JSON_MARK;

/// The spans that are calls of a worker.
const CALLS: [&str; 2] = ["sglang_generate", "sglang_generate_stream"];
/// A worker of which nothing is known; its name is shared by all calls.
static UNKNOWN_WORKER: LazyLock<WorkerRef> =
    LazyLock::new(|| WorkerRef { url: "unknown".into(), instance: "".into() });

/// A span whose events are being gathered, or an event that is in no span.
struct Draft {
    first: usize,
    end: Option<usize>,
    /// What the workers measured, by the spans made up from it.
    measures: Measures,
}

/// What a span's id stands for.
#[derive(Clone, Copy)]
enum Known {
    Draft(usize),
    /// A made-up span of this draft.
    StageOf(usize),
}

/// The parts of a trace in the order of their events, and whether these are all. `as_it_was` gives the carrier as it was
/// written.
pub(super) fn elements(
    carrier: &Carrier,
    key: &SampleKey,
    as_it_was: impl Fn() -> Json,
) -> (Vec<Element>, bool) {
    let events = &carrier.events;
    let drafts = drafts(events);
    let mut all_exact = true;
    let element = |draft: Draft| {
        let last = &events[draft.end.unwrap_or(draft.first)];
        let exact = exact::element(&last.attrs, key);
        all_exact &= exact.is_some();
        exact.or_else(|| draft.element(events, key))
    };
    let begun = drafts.len();
    let mut elements: Vec<Element> = drafts.into_iter().filter_map(element).collect();
    let is_whole = elements.len() == begun && !carrier.is_cut;
    // Of a carrier of ours everything is said.
    if all_exact || elements.is_empty() {
        return (elements, is_whole);
    }
    if carrier.trace_id != derived_trace_id(key) {
        let trace_id = (element::TRACE_ID.into(), Attr::from(&*carrier.trace_id));
        elements[0].attrs_mut().push(trace_id);
    }
    let parts: Vec<Part<'_>> = elements.iter().map(Element::part).collect();
    if carrier.odd || !says_the_same(carrier, &write::carrier(key, &parts)) {
        let whole = (element::CARRIER.into(), Attr::from(as_it_was().to_string()));
        elements[0].attrs_mut().push(whole);
    }
    (elements, is_whole)
}

/// Whether two carriers differ in nothing but the ids of made-up spans.
fn says_the_same(one: &Carrier, other: &Carrier) -> bool {
    let heads = |carrier: &Carrier| {
        let ids = (carrier.sample_id.clone(), carrier.group_id.clone());
        (carrier.trace_id.clone(), ids, carrier.attempt, carrier.events.len())
    };
    let mut ids = HashMap::new();
    let mut same = |(a, b): (&Event, &Event)| {
        if let (EventKind::Start, Some(of), Some(to)) = (a.kind, &a.span_id, &b.span_id)
            && stages::is_stage(&a.name)
        {
            ids.insert(of.clone(), to.clone());
        }
        a.says_the_same(b, &ids)
    };
    heads(one) == heads(other) && one.events.iter().zip(&other.events).all(&mut same)
}

fn drafts(events: &[Event]) -> Vec<Draft> {
    let mut drafts: Vec<Draft> = Vec::new();
    let mut known: HashMap<Rc<str>, Known> = HashMap::new();
    for (index, event) in events.iter().enumerate() {
        let of = |id: &Option<Rc<str>>| id.as_ref().and_then(|id| known.get(id)).copied();
        // A stage belongs to the call that it is in, be it directly or within another.
        let call =
            of(&event.parent).filter(|_| stages::is_stage(&event.name)).and_then(|parent| match parent {
                Known::StageOf(draft) => Some(draft),
                Known::Draft(draft) => CALLS.contains(&&*events[drafts[draft].first].name).then_some(draft),
            });
        match (event.kind, of(&event.span_id), call) {
            (EventKind::Start, _, Some(call)) => {
                known.extend(event.span_id.clone().map(|id| (id, Known::StageOf(call))));
            }
            (EventKind::Point, _, Some(call)) if &*event.name == stages::SUMMARY => {
                stages::absorb(event, &mut drafts[call].measures);
            }
            (EventKind::End, Some(Known::StageOf(call)), _) => {
                stages::absorb(event, &mut drafts[call].measures);
            }
            (EventKind::End, Some(Known::Draft(draft)), _) if drafts[draft].end.is_none() => {
                drafts[draft].end = Some(index);
            }
            _ => {
                if let (EventKind::Start, Some(id)) = (event.kind, &event.span_id) {
                    known.insert(id.clone(), Known::Draft(drafts.len()));
                }
                drafts.push(Draft { first: index, end: None, measures: Measures::default() });
            }
        }
    }
    drafts
}

// === impl Draft ===

impl Draft {
    fn element(self, events: &[Event], key: &SampleKey) -> Option<Element> {
        let (first, end) = (&events[self.first], self.end.map(|end| &events[end]));
        let start = UnixNs::from_secs_f64(first.ts)?;
        match end {
            Some(end) if first.kind == EventKind::Start && CALLS.contains(&&*first.name) => {
                let end_at = UnixNs::from_secs_f64(end.ts)?;
                // A clock that was set back in between.
                let length = (end_at >= start).then(|| end_at.since(start));
                let profile = self.profile(first, end, (start, length), key);
                Some(Element::Request(Box::new(profile)))
            }
            _ => Some(Element::Span(user_span(first, end, start, key))),
        }
    }

    fn profile(
        mut self,
        first: &Event,
        end: &Event,
        (arrival, length): (UnixNs, Option<Nanos>),
        key: &SampleKey,
    ) -> Profile {
        let mut attrs = first.attrs.clone();
        let start_attrs = attrs.len();
        let mut report = Report::default();
        for (name, value) in &end.attrs {
            match (&**name, value) {
                ("finish_reason", Attr::Text(kind)) => {
                    let kind = FinishKind::from_name(kind);
                    report.finish = Some(Finish { kind, message: None, status_code: None });
                }
                ("sglang_request_id", Attr::Text(id)) => report.worker_request_id = Some(id.clone()),
                // A number that is none, such as a null, is a reading that is left out.
                _ => match Measure::from_name(name.strip_suffix(JSON_MARK).unwrap_or(name)) {
                    // An older spelling never replaces the current one.
                    Some(measure)
                        if name.strip_suffix(JSON_MARK).unwrap_or(name) != measure.name()
                            && self.measures.get(measure).is_some() => {}
                    Some(measure) => self.measures.set(measure, stages::reading(measure, value)),
                    None => attrs.push((name.clone(), value.clone())),
                },
            }
        }
        if attrs.len() > start_attrs {
            attrs.push((element::START_ATTRS.into(), Attr::Int(start_attrs as i64)));
        }
        attrs.push((element::NAME.into(), Attr::from(&*first.name)));
        let span_id =
            first.span_id.clone().unwrap_or_else(|| derived_id(&[&first.name, &first.ts.to_string()]));
        let id = RequestId::parse(&span_id).filter(|id| *id.to_string() == *span_id);
        if id.is_none() {
            attrs.push((element::SPAN_ID.into(), Attr::from(&*span_id)));
        }
        attrs.extend(first.parent.as_ref().map(|id| (element::PARENT.into(), Attr::from(&**id))));
        attrs.extend(end_attempt(first, Some(end)));
        // The worker's clock is none that is set.
        let length = length.or_else(|| self.measures.duration(Measure::E2eLatency)).unwrap_or(Nanos(0));
        let aborted = report.finish.as_ref().is_some_and(|finish| finish.kind == FinishKind::Abort);
        let outcome = if aborted { Outcome::Aborted } else { Outcome::Completed };
        Profile {
            join: Join {
                step: Some(key.step),
                group: key.group.clone(),
                sample: Some(key.sample.clone()),
                attempt: first.attempt,
                ..Join::default()
            },
            stream: &*first.name == CALLS[1],
            status: None,
            outcome,
            legs: legs(&self.measures, report, length, outcome),
            attrs,
            ..Profile::new(id.unwrap_or_else(|| RequestId(crate::hash::fnv(&[&span_id]))), arrival, length)
        }
    }
}

/// The calls that a reply's numbers tell of: of a pair, or of one worker that does everything.
fn legs(measures: &Measures, mut report: Report, length: Nanos, outcome: Outcome) -> Vec<Leg> {
    let is_prefill = |measure: Measure| measure.side() == Side::Prefill && measure.name().starts_with("pd_");
    let is_pair = measures.iter().any(|(measure, _)| measure.name().starts_with("pd_"));
    report.measures = measures.iter().filter(|(measure, _)| !is_prefill(*measure)).collect();
    report.check_cached();
    report.bound_by(length);
    let leg = |role, end, report| Leg {
        status: None,
        outcome,
        report,
        ..Leg::new(role, UNKNOWN_WORKER.clone(), Nanos(0), end)
    };
    if !is_pair {
        return vec![leg(LegRole::Regular, length, report)];
    }
    let own = measures.iter().filter(|(measure, _)| is_prefill(*measure)).collect();
    let mut prefill = Report { measures: own, ..Report::default() };
    prefill.bound_by(length);
    // When the prefill worker was done is not told; its stages follow each other from the request's begin.
    let stages = [Stage::PrefillBootstrapQueue, Stage::PrefillForward];
    let stages = stages.into_iter().filter_map(|stage| prefill.measures.duration(stage.measure()));
    let end = stages.fold(Nanos(0), Nanos::plus).min(length);
    let end = if end == Nanos(0) { length } else { end };
    vec![leg(LegRole::Prefill, end, prefill), leg(LegRole::Decode, length, report)]
}

fn end_attempt(first: &Event, end: Option<&Event>) -> Option<(Box<str>, Attr)> {
    let other = end.map(|end| end.attempt).filter(|attempt| *attempt != first.attempt)?;
    Some((element::END_ATTEMPT.into(), Attr::Int(other.into())))
}

fn user_span(first: &Event, end: Option<&Event>, start: UnixNs, key: &SampleKey) -> UserSpan {
    let mut attrs = first.attrs.clone();
    let start_attrs = attrs.len();
    if let Some(end) = end.filter(|end| !end.attrs.is_empty()) {
        attrs.extend(end.attrs.iter().cloned());
        attrs.push((element::START_ATTRS.into(), Attr::Int(start_attrs as i64)));
    }
    let kind = match first.kind {
        EventKind::Start => None,
        EventKind::Point => Some("event"),
        EventKind::End => Some("span_end"),
    };
    let said = [
        (element::KIND, kind),
        (element::SPAN_ID, first.span_id.as_deref()),
        (element::PARENT, first.parent.as_deref()),
    ];
    attrs.extend(said.into_iter().filter_map(|(name, value)| Some((name.into(), Attr::from(value?)))));
    attrs.extend(end_attempt(first, end));
    UserSpan {
        key: key.clone(),
        attempt: first.attempt,
        name: first.name.as_ref().into(),
        start,
        end: match first.kind {
            EventKind::Start => end.and_then(|end| UnixNs::from_secs_f64(end.ts)),
            EventKind::Point | EventKind::End => Some(start),
        },
        attrs,
    }
}
