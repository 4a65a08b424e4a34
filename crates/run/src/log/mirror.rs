//! Mirrors of the model for the log: what is serialized, with explicit conversions both ways.
//!
//! Every field is named and has a default, so an older reader passes over what is new and a newer one finds
//! what is old. A name of a closed set that is not known here makes the whole record unknown, except for a
//! fault: a reading with a fault that we do not know is still a faulty one.

mod pass;
mod profile;

use rollscope_trace::{
    Attr, CloseReason, DropCount, Fault, LeftOut, Measure, Nanos, PrefixCounts, Record, SampleKey,
    SampleMark, SpecCounts, StepClose, StepNumber, UnixNs, UserSpan,
};
use serde::{Deserialize, Serialize};

use crate::error::RunError;
use crate::log::frame::{self, Frame, KIND_VERSION, kind};
use crate::log::mirror::pass::PassMirror;
use crate::log::mirror::profile::ProfileMirror;
use crate::texts::SharedTexts;

/// The measures of a segment, by number; nothing for one that is not known here.
#[derive(Clone, Debug, Default)]
pub(crate) struct MeasureNames(Vec<Option<Measure>>);

/// What a frame holds.
#[derive(Debug)]
pub(crate) enum Content {
    Record(Record),
    Measures(MeasureNames),
    End,
    /// Of a later version, or not to be understood.
    Unknown,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SpanMirror<'a> {
    step: u64,
    #[serde(borrow, skip_serializing_if = "is_default")]
    group: Option<&'a str>,
    sample: &'a str,
    #[serde(skip_serializing_if = "is_default")]
    attempt: u32,
    name: &'a str,
    start_ns: i64,
    #[serde(skip_serializing_if = "is_default")]
    end_ns: Option<i64>,
    #[serde(borrow, skip_serializing_if = "is_default")]
    attrs: Vec<(&'a str, AttrMirror<'a>)>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AttrMirror<'a> {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SampleMirror<'a> {
    step: u64,
    #[serde(borrow, skip_serializing_if = "is_default")]
    group: Option<&'a str>,
    sample: &'a str,
    #[serde(skip_serializing_if = "is_default")]
    reward: Option<f64>,
    #[serde(skip_serializing_if = "is_default")]
    truncated: Option<bool>,
    #[serde(skip_serializing_if = "is_default")]
    response_tokens: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    effective_response_tokens: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    non_generation_ns: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    repetition: Option<bool>,
    #[serde(borrow, skip_serializing_if = "is_default")]
    category: Option<&'a str>,
    #[serde(skip_serializing_if = "is_default")]
    top_p_kept: Option<u64>,
    /// Accepted, drafted, verified, generated.
    #[serde(skip_serializing_if = "is_default")]
    spec: Option<(u64, u64, u64, u64)>,
    /// Tokens of prompts, and those of them from the prefix cache.
    #[serde(skip_serializing_if = "is_default")]
    prefix: Option<(u64, u64)>,
    /// By [`left_out_text`].
    #[serde(skip_serializing_if = "String::is_empty")]
    left_out: String,
    #[serde(borrow, skip_serializing_if = "is_default")]
    carrier: Option<&'a str>,
    #[serde(borrow, skip_serializing_if = "is_default")]
    dataset: Option<&'a str>,
    #[serde(skip_serializing_if = "is_default")]
    evaluation: bool,
}

/// The end of a step; stands in the log and in manifests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CloseMirror {
    step: u64,
    at_ns: i64,
    reason: String,
    #[serde(skip_serializing_if = "is_default")]
    rollout_time_ns: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    gpus: Option<u32>,
}

/// A loss; stands in the log and in manifests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DroppedMirror {
    pub(crate) at_ns: i64,
    pub(crate) profiles: u64,
    pub(crate) user_records: u64,
}

/// Appends a record as a frame.
pub(crate) fn put_record(buffer: &mut Vec<u8>, record: &Record) -> Result<(), RunError> {
    match record {
        Record::Profile(profile) => frame::put(buffer, kind::PROFILE, |buffer| profile::put(buffer, profile)),
        Record::Span(span) => put(buffer, kind::SPAN, &SpanMirror::of(span)),
        Record::Sample(mark) => put(buffer, kind::SAMPLE, &SampleMirror::of(mark)),
        Record::Close(close) => put(buffer, kind::CLOSE, &CloseMirror::of(close)),
        Record::ForwardPass(pass) => put(buffer, kind::FORWARD_PASS, &PassMirror::of(pass)),
        Record::Dropped(drops) => put(buffer, kind::DROPPED, &DroppedMirror::of(drops)),
    }
}

/// Appends the names of the measures, which readings refer to by number.
pub(crate) fn put_measures(buffer: &mut Vec<u8>) -> Result<(), RunError> {
    put(buffer, kind::MEASURES, &Measure::all().map(Measure::name).collect::<Vec<_>>())
}

/// Appends an end mark.
pub(crate) fn put_end(buffer: &mut Vec<u8>) -> Result<(), RunError> {
    frame::put(buffer, kind::END, |_| Ok(()))
}

/// Reads a frame.
pub(crate) fn content(frame: Frame<'_>, names: &MeasureNames, texts: &mut SharedTexts) -> Content {
    if frame.version > KIND_VERSION {
        return Content::Unknown;
    }
    let record = match frame.kind {
        kind::END => return Content::End,
        kind::MEASURES => {
            let names = read::<Vec<&str>>(frame.payload);
            return names.map_or(Content::Unknown, |names| Content::Measures(MeasureNames::of(&names)));
        }
        kind::PROFILE => read::<ProfileMirror<'_>>(frame.payload)
            .and_then(|mirror| Some(Record::Profile(Box::new(mirror.profile(names, texts).ok()?)))),
        kind::SPAN => read::<SpanMirror<'_>>(frame.payload).map(|mirror| Record::Span(mirror.span())),
        kind::SAMPLE => read::<SampleMirror<'_>>(frame.payload).map(|mirror| Record::Sample(mirror.mark())),
        kind::CLOSE => {
            read::<CloseMirror>(frame.payload).and_then(|mirror| mirror.close()).map(Record::Close)
        }
        kind::DROPPED => {
            read::<DroppedMirror>(frame.payload).map(|mirror| Record::Dropped(mirror.drop_count()))
        }
        kind::FORWARD_PASS => {
            read::<PassMirror<'_>>(frame.payload).map(|mirror| Record::ForwardPass(Box::new(mirror.pass())))
        }
        _ => None,
    };
    record.map_or(Content::Unknown, Content::Record)
}

fn put(buffer: &mut Vec<u8>, kind: u8, value: &impl Serialize) -> Result<(), RunError> {
    frame::put(buffer, kind, |buffer| serialize(buffer, value))
}

fn serialize(buffer: &mut Vec<u8>, value: &impl Serialize) -> Result<(), RunError> {
    let mut serializer = rmp_serde::Serializer::new(buffer).with_struct_map();
    value.serialize(&mut serializer).map_err(|source| RunError::Encode { source })
}

fn read<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Option<T> {
    rmp_serde::from_slice(payload).ok()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn boxed(text: Option<&str>) -> Option<Box<str>> {
    text.map(Into::into)
}

// === impl MeasureNames ===

impl MeasureNames {
    fn of(names: &[&str]) -> Self {
        Self(names.iter().map(|name| Measure::from_name(name)).collect())
    }

    fn get(&self, number: u16) -> Option<Measure> {
        self.0.get(usize::from(number)).copied().flatten()
    }
}

// === impl SpanMirror ===

impl<'a> SpanMirror<'a> {
    fn of(span: &'a UserSpan) -> Self {
        Self {
            step: span.key.step.0,
            group: span.key.group.as_deref(),
            sample: &span.key.sample,
            attempt: span.attempt,
            name: &span.name,
            start_ns: span.start.0,
            end_ns: span.end.map(|end| end.0),
            attrs: span.attrs.iter().map(|(name, value)| (&**name, AttrMirror::of(value))).collect(),
        }
    }

    fn span(self) -> UserSpan {
        UserSpan {
            key: key(self.step, self.group, self.sample),
            attempt: self.attempt,
            name: self.name.into(),
            start: UnixNs(self.start_ns),
            end: self.end_ns.map(UnixNs),
            attrs: self.attrs.into_iter().map(|(name, value)| (name.into(), value.attr())).collect(),
        }
    }
}

fn key(step: u64, group: Option<&str>, sample: &str) -> SampleKey {
    SampleKey { step: StepNumber(step), group: boxed(group), sample: sample.into() }
}

// === impl AttrMirror ===

impl<'a> AttrMirror<'a> {
    fn of(attr: &'a Attr) -> Self {
        match attr {
            Attr::Bool(value) => Self::Bool(*value),
            Attr::Int(value) => Self::Int(*value),
            Attr::Float(value) => Self::Float(*value),
            Attr::Text(value) => Self::Text(value),
        }
    }

    fn attr(self) -> Attr {
        match self {
            Self::Bool(value) => Attr::Bool(value),
            Self::Int(value) => Attr::Int(value),
            Self::Float(value) => Attr::Float(value),
            Self::Text(value) => Attr::from(value),
        }
    }
}

/// What is left out of a sample's values, as written in a file.
pub(crate) fn left_out_text(left_out: &[LeftOut]) -> String {
    left_out.iter().map(LeftOut::to_string).collect::<Vec<_>>().join(";")
}

/// Reads [`left_out_text`]. A fault that is not known here is still one.
pub(crate) fn left_out_of(text: &str) -> Box<[LeftOut]> {
    let unknown = LeftOut { value: None, fault: Fault::NotANumber };
    let names = text.split(';').filter(|name| !name.is_empty());
    names.map(|name| LeftOut::from_name(name).unwrap_or(unknown)).collect()
}

// === impl SampleMirror ===

impl<'a> SampleMirror<'a> {
    fn of(mark: &'a SampleMark) -> Self {
        Self {
            step: mark.key.step.0,
            group: mark.key.group.as_deref(),
            sample: &mark.key.sample,
            reward: mark.reward,
            truncated: mark.truncated,
            response_tokens: mark.response_tokens,
            effective_response_tokens: mark.effective_response_tokens,
            non_generation_ns: mark.non_generation_time.map(|time| time.0),
            repetition: mark.repetition,
            category: mark.category.as_deref(),
            top_p_kept: mark.top_p_kept,
            spec: mark.spec.as_deref().map(|of| (of.accepted, of.drafted, of.verified, of.generated)),
            prefix: mark.prefix.as_deref().map(|of| (of.prompt, of.cached)),
            left_out: left_out_text(&mark.left_out),
            carrier: mark.carrier.as_deref(),
            dataset: mark.dataset.as_deref(),
            evaluation: mark.evaluation,
        }
    }

    fn mark(self) -> SampleMark {
        SampleMark {
            key: key(self.step, self.group, self.sample),
            reward: self.reward,
            truncated: self.truncated,
            response_tokens: self.response_tokens,
            effective_response_tokens: self.effective_response_tokens,
            non_generation_time: self.non_generation_ns.map(Nanos),
            repetition: self.repetition,
            category: boxed(self.category),
            top_p_kept: self.top_p_kept,
            spec: self.spec.map(|(accepted, drafted, verified, generated)| {
                Box::new(SpecCounts { accepted, drafted, verified, generated })
            }),
            prefix: self.prefix.map(|(prompt, cached)| Box::new(PrefixCounts { prompt, cached })),
            left_out: left_out_of(&self.left_out),
            carrier: boxed(self.carrier),
            dataset: boxed(self.dataset),
            evaluation: self.evaluation,
        }
    }
}

// === impl CloseMirror ===

impl CloseMirror {
    /// The step that was closed.
    pub(crate) fn step(&self) -> StepNumber {
        StepNumber(self.step)
    }

    pub(crate) fn of(close: &StepClose) -> Self {
        Self {
            step: close.step.0,
            at_ns: close.at.0,
            reason: close.reason.name().into(),
            rollout_time_ns: close.rollout_time.map(|time| time.0),
            gpus: close.gpus,
        }
    }

    /// Nothing when the reason is not known here.
    pub(crate) fn close(&self) -> Option<StepClose> {
        Some(StepClose {
            step: StepNumber(self.step),
            at: UnixNs(self.at_ns),
            reason: CloseReason::from_name(&self.reason)?,
            rollout_time: self.rollout_time_ns.map(Nanos),
            gpus: self.gpus,
        })
    }
}

// === impl DroppedMirror ===

impl DroppedMirror {
    pub(crate) fn of(drops: &DropCount) -> Self {
        Self { at_ns: drops.at.0, profiles: drops.profiles, user_records: drops.user_records }
    }

    pub(crate) fn drop_count(self) -> DropCount {
        DropCount { at: UnixNs(self.at_ns), profiles: self.profiles, user_records: self.user_records }
    }
}
