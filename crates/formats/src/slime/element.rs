//! A part of a sample's trace, and what its attributes say of how a carrier wrote it.

use std::fmt::Write as _;
use std::rc::Rc;

use rollscope_trace::{Attr, Profile, RequestId, SampleKey, UnixNs, UserSpan};

use super::PREFIX;
use super::carrier::EventKind;

/// Names and values.
pub(super) type Attrs = Vec<(Box<str>, Attr)>;

/// A request, or a span of the user's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part<'a> {
    Request(&'a Profile),
    Span(&'a UserSpan),
}

/// The same, owned.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Element {
    Request(Box<Profile>),
    Span(UserSpan),
}

/// The name of the span that a request was.
pub(super) const NAME: &str = "slime.name";
/// The id of its span, where it cannot be told otherwise.
pub(super) const SPAN_ID: &str = "slime.span_id";
/// The span that it was in.
pub(super) const PARENT: &str = "slime.parent_span_id";
/// What a user's span was, where it was none.
pub(super) const KIND: &str = "slime.kind";
/// How many of its attributes came with its begin; all where it is not said.
pub(super) const START_ATTRS: &str = "slime.start_attrs";
/// The attempt at its end, where that is another: the carrier's when the event was written.
pub(super) const END_ATTEMPT: &str = "slime.end_attempt";
/// The trace's id; with its first part.
pub(super) const TRACE_ID: &str = "slime.trace_id";
/// The whole carrier, where it is written otherwise than slime writes it; with its first part.
pub(super) const CARRIER: &str = "slime.carrier";

// === impl Part ===

impl<'a> Part<'a> {
    pub(super) fn attrs(self) -> &'a [(Box<str>, Attr)] {
        match self {
            Self::Request(request) => &request.attrs,
            Self::Span(span) => &span.attrs,
        }
    }

    /// Whether it came from a carrier.
    pub(super) fn is_foreign(self) -> bool {
        self.attrs().iter().any(|(name, _)| name.starts_with(PREFIX))
    }

    pub(super) fn said(self, name: &str) -> Option<&'a str> {
        match self.attrs().iter().find(|(other, _)| **other == *name)? {
            (_, Attr::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn start(self) -> UnixNs {
        match self {
            Self::Request(request) => request.arrival,
            Self::Span(span) => span.start,
        }
    }

    pub(super) fn end(self) -> Option<UnixNs> {
        match self {
            Self::Request(request) => Some(request.ended_at()),
            Self::Span(span) => span.end,
        }
    }

    pub(super) fn attempt(self) -> u32 {
        match self {
            Self::Request(request) => request.join.attempt,
            Self::Span(span) => span.attempt,
        }
    }

    pub(super) fn end_attempt(self) -> u32 {
        let said = self.attrs().iter().find(|(name, _)| **name == *END_ATTEMPT);
        match said {
            Some((_, Attr::Int(attempt))) => u32::try_from(*attempt).unwrap_or(self.attempt()),
            _ => self.attempt(),
        }
    }

    pub(super) fn name(self) -> &'a str {
        match self {
            Self::Request(request) if request.stream => self.said(NAME).unwrap_or("sglang_generate_stream"),
            Self::Request(_) => self.said(NAME).unwrap_or("sglang_generate"),
            Self::Span(span) => &span.name,
        }
    }

    /// The id of its span; nothing when it is no span.
    pub(super) fn span_id(self) -> Option<Rc<str>> {
        if let Some(id) = self.said(SPAN_ID) {
            return Some(id.into());
        }
        match self {
            Self::Request(request) => Some(request.id.to_string().into()),
            Self::Span(_) if self.is_foreign() => None,
            Self::Span(span) => {
                let (start, attempt) = (span.start.0.to_string(), span.attempt.to_string());
                Some(derived_id(&[&span.key.to_string(), &span.name, &start, &attempt]))
            }
        }
    }

    /// What it was in the carrier; a span by its begin.
    pub(super) fn kind(self) -> EventKind {
        match self.said(KIND) {
            Some("event") => EventKind::Point,
            Some("span_end") => EventKind::End,
            _ => EventKind::Start,
        }
    }

    /// Its attributes with its begin and with its end, without those that say how it was written.
    pub(super) fn start_and_end_attrs(self) -> (Attrs, Attrs) {
        let count = self.attrs().iter().find_map(|(name, value)| match value {
            Attr::Int(count) if **name == *START_ATTRS => usize::try_from(*count).ok(),
            _ => None,
        });
        let own = self.attrs().iter().filter(|(name, _)| !name.starts_with(PREFIX)).cloned();
        let mut start: Vec<_> = own.collect();
        let end = start.split_off(count.unwrap_or(start.len()).min(start.len()));
        (start, end)
    }
}

// === impl Element ===

impl Element {
    pub(super) fn part(&self) -> Part<'_> {
        match self {
            Self::Request(request) => Part::Request(request),
            Self::Span(span) => Part::Span(span),
        }
    }

    pub(super) fn attrs_mut(&mut self) -> &mut Vec<(Box<str>, Attr)> {
        match self {
            Self::Request(request) => &mut request.attrs,
            Self::Span(span) => &mut span.attrs,
        }
    }
}

/// The trace of a sample that has been given none.
pub(super) fn derived_trace_id(key: &SampleKey) -> Rc<str> {
    derived_id(&["trace", &key.step.to_string(), &key.to_string()])
}

/// 32 hexadecimal digits that follow from texts, by FNV-1a of 128 bits: the same each time, and no secret.
pub(super) fn derived_id(parts: &[&str]) -> Rc<str> {
    let mut text = String::with_capacity(32);
    // Writing into a text does not fail.
    let _written = write!(text, "{}", RequestId(crate::hash::fnv(parts)));
    text.into()
}
