//! From a sample's requests and spans to a carrier.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::rc::Rc;

use rollscope_trace::{Attr, Measure, Profile, SampleKey, UnixNs};
use serde_json::Value as Json;

use super::carrier::{Carrier, Event, EventKind};
use super::element::{CARRIER, Part, TRACE_ID, derived_trace_id};
use super::{exact, stages};
use crate::tree::Scalar;

/// Where an event stands among others: by time; at the same time what ends before what begins, and around what is
/// within.
#[derive(PartialEq)]
struct Place<'a> {
    /// Its time; of an end before its begin that of the begin.
    at: f64,
    ts: f64,
    turn: Turn,
    start: f64,
    name: &'a str,
    id: Option<Rc<str>>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    End(Reverse<u32>),
    Point,
    Start(u32),
    /// Of a span that has just begun.
    EndAtOnce(Reverse<u32>),
}

/// Spans within spans that are told apart by depth.
const MAX_DEPTH: u32 = 64;

/// The carrier of a sample as slime would have written it.
pub(super) fn carrier(key: &SampleKey, parts: &[Part<'_>]) -> Carrier {
    let trace_id = parts.iter().find_map(|part| part.said(TRACE_ID));
    let mut placed: Vec<(Place<'_>, Part<'_>, EventKind)> = Vec::new();
    let depths = depths(parts);
    for (part, depth) in parts.iter().zip(depths) {
        let start = part.start().as_secs_f64();
        let end = part.end().map(UnixNs::as_secs_f64);
        let mut put = |ts: f64, turn, kind| {
            let place = Place { at: ts.max(start), ts, turn, start, name: part.name(), id: part.span_id() };
            placed.push((place, *part, kind));
        };
        match part.kind() {
            EventKind::Point => put(start, Turn::Point, EventKind::Point),
            EventKind::End => put(start, Turn::End(Reverse(depth)), EventKind::End),
            EventKind::Start => {
                put(start, Turn::Start(depth), EventKind::Start);
                if let Some(end) = end {
                    let at_once = end <= start;
                    let turn =
                        if at_once { Turn::EndAtOnce(Reverse(depth)) } else { Turn::End(Reverse(depth)) };
                    put(end, turn, EventKind::End);
                }
            }
        }
    }
    placed.sort_by(|(a, ..), (b, ..)| a.order(b));
    let mut events = Vec::new();
    for (place, part, kind) in placed {
        event(&place, part, kind, &mut events);
    }
    Carrier {
        trace_id: trace_id.map_or_else(|| derived_trace_id(key), Into::into),
        sample_id: id(&key.sample),
        group_id: key.group.as_deref().map_or(Scalar::Null, id),
        attempt: parts.iter().map(|part| part.attempt().max(part.end_attempt())).max().unwrap_or(0),
        events,
        odd: false,
        is_cut: false,
    }
}

/// The carrier of a sample as JSON; one that slime would have written otherwise as it was.
pub(super) fn carrier_json(key: &SampleKey, parts: &[Part<'_>]) -> Json {
    let as_it_was = parts.iter().find_map(|part| serde_json::from_str(part.said(CARRIER)?).ok());
    as_it_was.unwrap_or_else(|| carrier(key, parts).json())
}

/// A number where it is one: so slime writes its ids.
fn id(text: &str) -> Scalar {
    match text.parse::<i64>() {
        Ok(number) if number.to_string() == text => Scalar::Int(number),
        _ => Scalar::Text(text.into()),
    }
}

/// How many spans each part lies in.
fn depths(parts: &[Part<'_>]) -> Vec<u32> {
    let parents: HashMap<Rc<str>, &str> =
        parts.iter().filter_map(|part| Some((part.span_id()?, part.said(super::element::PARENT)?))).collect();
    let depth = |part: &Part<'_>| {
        let mut parent = part.said(super::element::PARENT);
        let mut depth = 0;
        while let Some(id) = parent.filter(|_| depth < MAX_DEPTH) {
            depth += 1;
            parent = parents.get(id).copied();
        }
        depth
    };
    parts.iter().map(depth).collect()
}

fn event(place: &Place<'_>, part: Part<'_>, kind: EventKind, events: &mut Vec<Event>) {
    let (start_attrs, mut end_attrs) = part.start_and_end_attrs();
    let is_native = !part.is_foreign();
    if let (Part::Request(request), EventKind::End) = (part, kind) {
        if let Some(id) = &place.id {
            stages::put(request, id, events);
        }
        let more = std::mem::take(&mut end_attrs);
        end_attrs = reply_attrs(request);
        end_attrs.extend(more);
    }
    let mut attrs = match (kind, part.kind()) {
        (EventKind::End, EventKind::Start) => end_attrs,
        _ => start_attrs,
    };
    // With the last event of a part.
    if is_native && (kind == EventKind::End || part.end().is_none()) {
        attrs.push(exact::attr(part));
    }
    events.push(Event {
        kind,
        name: part.name().into(),
        ts: place.ts,
        attempt: if kind == EventKind::End { part.end_attempt() } else { part.attempt() },
        span_id: place.id.clone(),
        parent: part.said(super::element::PARENT).filter(|_| kind != EventKind::End).map(Into::into),
        attrs,
    });
}

/// What slime keeps of a reply's `meta_info`.
fn reply_attrs(profile: &Profile) -> Vec<(Box<str>, Attr)> {
    const FIRST: [Measure; 6] = [
        Measure::PromptTokens,
        Measure::CompletionTokens,
        Measure::CachedTokens,
        Measure::QueueTime,
        Measure::E2eLatency,
        Measure::DecodeThroughput,
    ];
    // What a pair measured is in spans of its own, and what was drafted is with the sample.
    let elsewhere =
        |measure: &Measure| measure.name().starts_with("pd_") || super::sample::DRAFTS.contains(measure);
    let others = Measure::all().filter(|measure| !FIRST.contains(measure) && !elsewhere(measure));
    let mut attrs: Vec<(Box<str>, Attr)> = FIRST
        .into_iter()
        .chain(others)
        .filter_map(|measure| Some(stages::measure_attr(measure, stages::reported(profile, measure)?)))
        .collect();
    if let Some(finish) = profile.finish() {
        attrs.push(("finish_reason".into(), Attr::from(finish.kind.name())));
    }
    if let Some(id) = profile.answer().and_then(|leg| leg.report.worker_request_id.as_deref()) {
        attrs.push(("sglang_request_id".into(), Attr::from(id)));
    }
    attrs
}

// === impl Place ===

impl Place<'_> {
    fn order(&self, other: &Self) -> Ordering {
        let by_time = self.at.total_cmp(&other.at).then_with(|| self.turn.cmp(&other.turn));
        let by_start = by_time.then_with(|| self.start.total_cmp(&other.start));
        by_start.then_with(|| (self.name, &self.id).cmp(&(other.name, &other.id)))
    }
}
