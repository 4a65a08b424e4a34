//! From profiles to spans: what a timeline draws.
//!
//! A leg is drawn on the gateway's clock, from its own dispatch to its end. The stages inside it were measured
//! by the worker's clock; they are laid out in their order and placed as a whole, by the worker's stamps where
//! it sent them, in the middle of the leg where it did not. Every placed span carries the bound of that guess.
//! A nested stage lies inside its parent, so no time is drawn twice.

use std::borrow::Cow;

use crate::measure::Measure;
use crate::profile::{Leg, LegRole, Profile};
use crate::sample::SampleTrace;
use crate::stage::Stage;
use crate::time::{Nanos, UnixNs};

/// A named part of a sample's time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Unique within its sample; a parent's is smaller than its children's.
    pub id: u32,
    /// The span that contains it.
    pub parent: Option<u32>,
    /// What it is.
    pub name: Cow<'static, str>,
    /// Where it is drawn.
    pub lane: Lane,
    /// Begin.
    pub start: UnixNs,
    /// End; nothing while it is open.
    pub end: Option<UnixNs>,
    /// It may lie this much earlier or later than drawn; its length is not affected.
    pub bound: Nanos,
    /// Anything more.
    pub attrs: Vec<(Cow<'static, str>, Attr)>,
}

/// Where a span is drawn within its sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// The sample as a whole.
    Sample,
    /// A request as the gateway saw it, or its only leg.
    Request,
    /// The prefill leg.
    Prefill,
    /// The decode leg.
    Decode,
    /// The user's own code.
    User,
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any number.
    Float(f64),
    /// A text.
    Text(Box<str>),
}

/// A stretch of a leg, by the worker's clock.
struct Segment {
    name: &'static str,
    length: Nanos,
    /// Stages within it, in order; the last is set against its end where `last_at_end`.
    within: Vec<(&'static str, Nanos)>,
    last_at_end: bool,
}

/// Collects the spans of a sample and numbers them.
#[derive(Default)]
struct Builder {
    spans: Vec<Span>,
    /// Only where they lie is wanted.
    is_bare: bool,
}

/// The spans of a sample: one root, its requests with their legs and stages, and the user's own.
pub fn sample_spans(sample: &SampleTrace) -> Vec<Span> {
    let mut builder = Builder::default();
    let (Some(start), Some(end)) = (sample.start(), sample.end().or_else(|| sample.start())) else {
        return Vec::new();
    };
    let root = builder.push(None, "sample", Lane::Sample, (start, Some(end)));
    builder.attr(root, "sample", sample.key.to_string());
    if let Some(reward) = sample.mark.reward {
        builder.attr(root, "reward", reward);
    }
    if let Some(truncated) = sample.mark.truncated {
        builder.attr(root, "truncated", truncated);
    }
    if let Some(tokens) = sample.mark.response_tokens {
        builder.attr(root, "response_tokens", i64::try_from(tokens).unwrap_or(i64::MAX));
    }
    for request in &sample.requests {
        builder.request(request, Some(root));
    }
    for span in &sample.spans {
        let id = builder.push(Some(root), span.name.to_string(), Lane::User, (span.start, span.end));
        builder.attr(id, "attempt", i64::from(span.attempt));
        let attrs = span.attrs.iter().map(|(name, value)| (Cow::Owned(name.to_string()), value.clone()));
        builder.spans[id as usize].attrs.extend(attrs);
    }
    builder.spans
}

/// The spans of one request.
pub fn profile_spans(profile: &Profile) -> Vec<Span> {
    let mut builder = Builder::default();
    builder.request(profile, None);
    builder.spans
}

/// The same without attributes: where they lie.
pub fn bare_profile_spans(profile: &Profile) -> Vec<Span> {
    let mut builder = Builder { is_bare: true, ..Builder::default() };
    builder.request(profile, None);
    builder.spans
}

// === impl Builder ===

impl Builder {
    fn push(
        &mut self,
        parent: Option<u32>,
        name: impl Into<Cow<'static, str>>,
        lane: Lane,
        (start, end): (UnixNs, Option<UnixNs>),
    ) -> u32 {
        let id = u32::try_from(self.spans.len()).unwrap_or(u32::MAX);
        let name = name.into();
        self.spans.push(Span { id, parent, name, lane, start, end, bound: Nanos(0), attrs: Vec::new() });
        id
    }

    fn attr(&mut self, id: u32, name: &'static str, value: impl Into<Attr>) {
        self.spans[id as usize].attrs.push((Cow::Borrowed(name), value.into()));
    }

    fn request(&mut self, profile: &Profile, parent: Option<u32>) {
        let bounds = (profile.arrival, Some(profile.ended_at()));
        let id = self.push(parent, "request", Lane::Request, bounds);
        if !self.is_bare {
            self.request_attrs(profile, id);
        }
        for leg in &profile.legs {
            self.leg(profile.arrival, leg, id);
        }
    }

    fn request_attrs(&mut self, profile: &Profile, id: u32) {
        self.attr(id, "request", profile.id.to_string());
        self.attr(id, "endpoint", &*profile.endpoint);
        self.attr(id, "outcome", profile.outcome.name());
        self.attr(id, "attempt", i64::from(profile.join.attempt));
        self.attr(id, "stream", profile.stream);
        self.attr(id, "decision", &*profile.decision);
        if let Some(status) = profile.status {
            self.attr(id, "status", i64::from(status));
        }
        if let Some(error) = &profile.error {
            self.attr(id, "error", &**error);
        }
        if let Some(first) = profile.first_byte {
            self.attr(id, "first_byte_s", first.as_secs_f64());
        }
        for (name, value) in [
            ("traceparent", &profile.join.traceparent),
            ("session", &profile.join.session),
            ("rid", &profile.join.rid),
        ] {
            if let Some(value) = value {
                self.attr(id, name, &**value);
            }
        }
        let attrs = profile.attrs.iter().map(|(name, value)| (Cow::Owned(name.to_string()), value.clone()));
        self.spans[id as usize].attrs.extend(attrs);
    }

    fn leg(&mut self, arrival: UnixNs, leg: &Leg, request: u32) {
        let (name, lane) = match leg.role {
            LegRole::Regular => ("sglang_generate", Lane::Request),
            LegRole::Prefill => ("sglang_pd_prefill", Lane::Prefill),
            LegRole::Decode => ("sglang_pd_decode", Lane::Decode),
        };
        let start = arrival.after(leg.dispatch);
        let end = arrival.after(leg.end).max(start);
        let id = self.push(Some(request), name, lane, (start, Some(end)));
        if !self.is_bare {
            self.leg_attrs(arrival, leg, id);
        }
        self.segments(arrival, leg, id, lane);
    }

    fn leg_attrs(&mut self, arrival: UnixNs, leg: &Leg, id: u32) {
        self.attr(id, "worker", &*leg.worker.url);
        self.attr(id, "outcome", leg.outcome.name());
        if let Some(status) = leg.status {
            self.attr(id, "status", i64::from(status));
        }
        if let Some(error) = &leg.error {
            self.attr(id, "error", &**error);
        }
        if let Some(finish) = &leg.report.finish {
            self.attr(id, "finish_reason", finish.kind.name());
        }
        if let Some(request_id) = &leg.report.worker_request_id {
            self.attr(id, "sglang_request_id", &**request_id);
        }
        if let Some(version) = &leg.report.weight_version {
            self.attr(id, "weight_version", &**version);
        }
        if let Some(offset) = leg.clock_offset(arrival) {
            self.attr(id, "clock_offset_s", offset.offset_ns as f64 / 1e9);
            self.attr(id, "clock_offset_bound_s", offset.bound.as_secs_f64());
        }
        for (measure, reading) in leg.report.measures.iter() {
            match reading.fault {
                None => self.attr(id, measure.name(), reading.value),
                Some(fault) => {
                    let told = format!("{} ({})", reading.value, fault.name());
                    self.attr(id, measure.name(), told.as_str());
                }
            }
        }
    }

    /// Lays out what the worker measured within its leg.
    fn segments(&mut self, arrival: UnixNs, leg: &Leg, leg_span: u32, lane: Lane) {
        let segments = segments_of(leg);
        if segments.is_empty() {
            return;
        }
        let leg_start = arrival.after(leg.dispatch);
        // A damaged file may hold a leg that ends before it begins.
        let leg_end = arrival.after(leg.end).max(leg_start);
        let (mut at, bound) = placement(arrival, leg, &segments);
        for segment in &segments {
            let start = at.clamp(leg_start, leg_end);
            let end = at.after(segment.length).clamp(leg_start, leg_end);
            let id = self.push(Some(leg_span), segment.name, lane, (start, Some(end)));
            self.spans[id as usize].bound = bound;
            let mut within_at = start;
            for (index, (name, length)) in segment.within.iter().enumerate() {
                let length = Nanos(length.0.min(end.since(within_at).0));
                if segment.last_at_end && index + 1 == segment.within.len() {
                    within_at = within_at.after(end.since(within_at).minus(length));
                }
                let bounds = (within_at, Some(within_at.after(length)));
                let child = self.push(Some(id), *name, lane, bounds);
                self.spans[child as usize].bound = bound;
                within_at = within_at.after(length);
            }
            at = at.after(segment.length);
        }
    }
}

/// Where the first segment begins, and how far that may be off.
fn placement(arrival: UnixNs, leg: &Leg, segments: &[Segment]) -> (UnixNs, Nanos) {
    let measures = &leg.report.measures;
    let leg_start = arrival.after(leg.dispatch);
    let (received, entered) =
        (measures.stamp(Measure::RequestReceivedTs), measures.stamp(Measure::ForwardEntryTime));
    if let Some(offset) = leg.clock_offset(arrival)
        && (received.is_some() || entered.is_some())
    {
        let received = received.map_or(leg_start, |at| offset.to_gateway(at));
        // The first forward pass has a stamp of its own: what comes before it is laid backwards from it.
        let before: u64 = segments
            .iter()
            .take_while(|segment| !matches!(segment.name, "forward" | "prefill"))
            .map(|segment| segment.length.0)
            .sum();
        let start = entered.map_or(received, |at| {
            let start = offset.to_gateway(at).offset_by(i64::try_from(before).unwrap_or(0).saturating_neg());
            start.max(received)
        });
        return (start, offset.bound);
    }
    let e2e = measures.duration(Measure::E2eLatency);
    let total = Nanos(segments.iter().map(|segment| segment.length.0).sum());
    let slack = leg.duration().minus(e2e.unwrap_or(total).max(total));
    let half = Nanos(slack.0 / 2);
    (leg_start.after(half), half)
}

/// What the worker measured, as a sequence without overlap.
fn segments_of(leg: &Leg) -> Vec<Segment> {
    let measures = &leg.report.measures;
    let plain = |name, length: Option<Nanos>| {
        length.map(|length| Segment { name, length, within: Vec::new(), last_at_end: false })
    };
    let stage = |stage: Stage| {
        let within: Vec<_> = Stage::ALL
            .into_iter()
            .filter(|child| child.parent() == Some(stage))
            .filter_map(|child| Some((child.name(), measures.duration(child.measure())?)))
            .collect();
        let last_at_end = stage == Stage::PrefillForward;
        measures.duration(stage.measure()).map(|length| Segment {
            name: stage.name(),
            length,
            within,
            last_at_end,
        })
    };
    let queue = plain("queue", measures.duration(Measure::QueueTime));
    let segments = match leg.role {
        LegRole::Prefill => vec![stage(Stage::PrefillBootstrapQueue), queue, stage(Stage::PrefillForward)],
        LegRole::Decode => vec![
            stage(Stage::DecodePrealloc),
            stage(Stage::DecodeTransfer),
            queue,
            stage(Stage::DecodeForward),
        ],
        LegRole::Regular => {
            let (prompt, generation) = measures.prompt_and_generation().unzip();
            let waited = measures.duration(Measure::QueueTime).unwrap_or_default();
            let computing = measures.duration(Measure::E2eLatency).map(|all| all.minus(waited));
            let undivided = computing.filter(|_| prompt.is_none());
            vec![queue, plain("prefill", prompt), plain("decode", generation), plain("forward", undivided)]
        }
    };
    segments.into_iter().flatten().collect()
}

// === impl Lane ===

impl Lane {
    /// All of them, in the order in which they are drawn.
    pub const ALL: [Self; 5] = [Self::Sample, Self::Request, Self::Prefill, Self::Decode, Self::User];

    /// As written in files and pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sample => "sample",
            Self::Request => "request",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::User => "user",
        }
    }

    /// Reads [`Self::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lane| lane.name() == name)
    }
}

// === impl Attr ===

impl From<bool> for Attr {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Attr {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Attr {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Attr {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}

impl From<String> for Attr {
    fn from(value: String) -> Self {
        Self::Text(value.into())
    }
}

#[cfg(test)]
mod tests;
