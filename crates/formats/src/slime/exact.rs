//! What a carrier has no names for: a request or a span as it was recorded, in the attribute `rollscope` of its last
//! event.

use rollscope_trace::{
    Attr, BatchSlot, ClockOffset, Fault, Finish, FinishKind, Join, Leg, LegRole, Measure, Nanos, Outcome,
    Profile, Reading, Report, RequestId, SampleKey, UnixNs, UserSpan, WorkerRef,
};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::element::{Element, Part};
use crate::tree::{Tree as _, attr_json, float_json};

/// The attribute, as [`crate::tree`] names one that is no scalar.
const NAME: &str = "rollscope:json";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Exact {
    Request(Box<RequestMirror>),
    Span(SpanMirror),
}

type Attrs = Vec<(Box<str>, Json)>;

#[derive(Serialize, Deserialize)]
struct SpanMirror {
    name: Box<str>,
    attempt: u32,
    start_ns: i64,
    end_ns: Option<i64>,
    attrs: Attrs,
}

#[derive(Serialize, Deserialize)]
struct RequestMirror {
    id: String,
    attempt: u32,
    traceparent: Option<Box<str>>,
    session: Option<Box<str>>,
    rid: Option<Box<str>>,
    /// The request names no sample and is its own.
    own_sample: bool,
    endpoint: Box<str>,
    stream: bool,
    batch: Option<(u32, u32)>,
    arrival_ns: i64,
    first_byte_ns: Option<u64>,
    end_ns: u64,
    status: Option<u16>,
    outcome: String,
    error: Option<Box<str>>,
    decision: Box<str>,
    retries: u32,
    legs: Vec<LegMirror>,
    attrs: Attrs,
}

#[derive(Serialize, Deserialize)]
struct LegMirror {
    role: String,
    worker: Box<str>,
    instance: Box<str>,
    dispatch_ns: u64,
    first_byte_ns: Option<u64>,
    end_ns: u64,
    status: Option<u16>,
    outcome: String,
    error: Option<Box<str>>,
    /// The worker's clock offset and its bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clock_ns: Option<(i64, u64)>,
    /// Name, value, and what is wrong with it.
    readings: Vec<(String, Json, Option<String>)>,
    /// Type, message, status.
    finish: Option<(String, Option<Box<str>>, Option<u16>)>,
    weight_version: Option<Box<str>>,
    worker_request_id: Option<Box<str>>,
}

/// The attribute of a part.
pub(super) fn attr(part: Part<'_>) -> (Box<str>, Attr) {
    let exact = match part {
        Part::Request(request) => Exact::Request(Box::new(RequestMirror::of(request))),
        Part::Span(span) => Exact::Span(SpanMirror::of(span)),
    };
    // Texts and finite numbers are written without fail. Members are sorted, as whoever reads them again sorts them.
    let json = serde_json::to_value(&exact).unwrap_or_default();
    (NAME.into(), Attr::Text(json.to_string().into()))
}

/// The part that such an attribute says, if there is one.
pub(super) fn element(attrs: &[(Box<str>, Attr)], key: &SampleKey) -> Option<Element> {
    let (_, Attr::Text(text)) = attrs.iter().find(|(name, _)| **name == *NAME)? else {
        return None;
    };
    match serde_json::from_str(text).ok()? {
        Exact::Request(request) => request.profile(key).map(|profile| Element::Request(Box::new(profile))),
        Exact::Span(span) => Some(Element::Span(span.span(key))),
    }
}

fn attrs_of(attrs: &[(Box<str>, Attr)]) -> Attrs {
    let value = |value: &Attr| match value {
        // A text that happens to be JSON is a text here.
        Attr::Text(text) => Json::from(&**text),
        other => attr_json("", other).1,
    };
    attrs.iter().map(|(name, of)| (name.clone(), value(of))).collect()
}

fn attrs_back(attrs: Attrs) -> Vec<(Box<str>, Attr)> {
    attrs
        .into_iter()
        .map(|(name, value)| {
            let attr = (&value).attr("").1;
            (name, attr)
        })
        .collect()
}

// === impl SpanMirror ===

impl SpanMirror {
    fn of(span: &UserSpan) -> Self {
        Self {
            name: span.name.clone(),
            attempt: span.attempt,
            start_ns: span.start.0,
            end_ns: span.end.map(|end| end.0),
            attrs: attrs_of(&span.attrs),
        }
    }

    fn span(self, key: &SampleKey) -> UserSpan {
        UserSpan {
            key: key.clone(),
            attempt: self.attempt,
            name: self.name,
            start: UnixNs(self.start_ns),
            end: self.end_ns.map(UnixNs),
            attrs: attrs_back(self.attrs),
        }
    }
}

// === impl RequestMirror ===

impl RequestMirror {
    fn of(profile: &Profile) -> Self {
        let join = &profile.join;
        Self {
            id: profile.id.to_string(),
            attempt: join.attempt,
            traceparent: join.traceparent.clone(),
            session: join.session.clone(),
            rid: join.rid.clone(),
            own_sample: join.sample.is_none(),
            endpoint: profile.endpoint.clone(),
            stream: profile.stream,
            batch: profile.batch.map(|slot| (slot.index, slot.size)),
            arrival_ns: profile.arrival.0,
            first_byte_ns: profile.first_byte.map(|at| at.0),
            end_ns: profile.end.0,
            status: profile.status,
            outcome: profile.outcome.name().to_owned(),
            error: profile.error.clone(),
            decision: profile.decision.clone(),
            retries: profile.retries,
            legs: profile.legs.iter().map(LegMirror::of).collect(),
            attrs: attrs_of(&profile.attrs),
        }
    }

    /// Nothing when it holds a name that is not known.
    fn profile(self, key: &SampleKey) -> Option<Profile> {
        Some(Profile {
            id: RequestId::parse(&self.id)?,
            join: Join {
                step: Some(key.step),
                group: key.group.clone(),
                sample: (!self.own_sample).then(|| key.sample.clone()),
                attempt: self.attempt,
                traceparent: self.traceparent,
                session: self.session,
                rid: self.rid,
            },
            endpoint: self.endpoint,
            stream: self.stream,
            batch: self.batch.map(|(index, size)| BatchSlot { index, size }),
            arrival: UnixNs(self.arrival_ns),
            first_byte: self.first_byte_ns.map(Nanos),
            end: Nanos(self.end_ns),
            status: self.status,
            outcome: Outcome::from_name(&self.outcome)?,
            error: self.error,
            decision: self.decision,
            retries: self.retries,
            legs: self.legs.into_iter().map(LegMirror::leg).collect::<Option<_>>()?,
            attrs: attrs_back(self.attrs),
        })
    }
}

// === impl LegMirror ===

impl LegMirror {
    fn of(leg: &Leg) -> Self {
        let report = &leg.report;
        let finish = report.finish.as_ref();
        let reading = |(measure, reading): (Measure, Reading)| {
            let fault = reading.fault.map(|fault| fault.name().to_owned());
            (measure.name().to_owned(), float_json(reading.value), fault)
        };
        Self {
            role: leg.role.name().to_owned(),
            worker: (&*leg.worker.url).into(),
            instance: (&*leg.worker.instance).into(),
            dispatch_ns: leg.dispatch.0,
            first_byte_ns: leg.first_byte.map(|at| at.0),
            end_ns: leg.end.0,
            status: leg.status,
            outcome: leg.outcome.name().to_owned(),
            error: leg.error.clone(),
            clock_ns: leg.clock.map(|clock| (clock.offset_ns, clock.bound.0)),
            readings: report.measures.iter().map(reading).collect(),
            finish: finish
                .map(|finish| (finish.kind.name().to_owned(), finish.message.clone(), finish.status_code)),
            weight_version: report.weight_version.clone(),
            worker_request_id: report.worker_request_id.clone(),
        }
    }

    fn leg(self) -> Option<Leg> {
        let reading = |(name, value, fault): (String, Json, Option<String>)| {
            let value = (&value).number()?;
            let fault = fault.map(|fault| Fault::from_name(&fault).unwrap_or(Fault::NotANumber));
            Some((Measure::from_name(&name)?, Reading { value, fault }))
        };
        Some(Leg {
            role: LegRole::from_name(&self.role)?,
            worker: WorkerRef { url: self.worker.into(), instance: self.instance.into() },
            dispatch: Nanos(self.dispatch_ns),
            first_byte: self.first_byte_ns.map(Nanos),
            end: Nanos(self.end_ns),
            status: self.status,
            outcome: Outcome::from_name(&self.outcome)?,
            error: self.error,
            clock: self.clock_ns.map(|(offset_ns, bound)| ClockOffset { offset_ns, bound: Nanos(bound) }),
            report: Report {
                measures: self.readings.into_iter().filter_map(reading).collect(),
                finish: self.finish.map(|(kind, message, status_code)| Finish {
                    kind: FinishKind::from_name(&kind),
                    message,
                    status_code,
                }),
                weight_version: self.weight_version,
                worker_request_id: self.worker_request_id,
            },
        })
    }
}
