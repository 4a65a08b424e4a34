//! The attributes of a sample's spans: what is told of one when it is pointed at.

use rollscope_trace::{Attr, LeftOut, SampleMark, SampleTrace, Span, profile_spans};
use serde::Serialize;

use crate::strings::{cut, cut_at};

/// Whole numbers beyond this are sent as text, since a double cannot hold them.
const MAX_EXACT_INT: u64 = 1 << 53;
/// Attributes that hold what was said in a turn: shown as a conversation, so that more of them is sent.
const TEXTS: [&str; 3] = ["prompt_text", "output_text", "output_token_logprobs"];
/// A text of theirs is cut after this many bytes.
const MAX_SAID_BYTES: usize = 256 << 10;
/// Beyond this many spans the attributes are left in the run.
const MAX_SPANS: usize = 4096;

/// The answer for a sample.
#[derive(Serialize)]
pub(crate) struct SampleDetails<'a> {
    group: Option<&'a str>,
    sample: &'a str,
    /// What the user's code said of it, by name; what it did not say is not there.
    mark: Vec<(&'static str, Value)>,
    /// The requests in order of arrival, then the user's spans in order of begin; each with the spans in it, itself
    /// first.
    parts: Vec<Vec<SpanDetails>>,
    /// Parts that there are beyond these.
    left_out: usize,
}

#[derive(Serialize)]
struct SpanDetails {
    name: String,
    lane: &'static str,
    attrs: Vec<(String, Value)>,
}

/// A number that JSON cannot hold is `null`.
#[derive(Serialize)]
#[serde(untagged)]
enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

// === impl SampleDetails ===

impl<'a> SampleDetails<'a> {
    pub(crate) fn of(sample: &'a SampleTrace) -> Self {
        let mut parts: Vec<Vec<SpanDetails>> = Vec::new();
        let mut spans = 0;
        for request in &sample.requests {
            if spans >= MAX_SPANS {
                break;
            }
            let part: Vec<_> = profile_spans(request).into_iter().map(SpanDetails::of).collect();
            spans += part.len();
            parts.push(part);
        }
        if parts.len() == sample.requests.len() {
            for span in sample.spans.iter().take(MAX_SPANS.saturating_sub(spans)) {
                let mut attrs = vec![("attempt".to_owned(), Value::Int(span.attempt.into()))];
                attrs.extend(span.attrs.iter().map(|(name, value)| attr(name, value)));
                parts.push(vec![SpanDetails { name: cut(&span.name).to_owned(), lane: "user", attrs }]);
            }
        }
        Self {
            group: sample.key.group.as_deref(),
            sample: &sample.key.sample,
            mark: mark(&sample.mark),
            left_out: sample.requests.len() + sample.spans.len() - parts.len(),
            parts,
        }
    }
}

fn mark(mark: &SampleMark) -> Vec<(&'static str, Value)> {
    let count = |value: u64| Value::of(&Attr::Int(value.try_into().unwrap_or(i64::MAX)));
    let text = |text: &str| Value::Text(cut(text).to_owned());
    let told = [
        ("reward", mark.reward.map(Value::Float)),
        ("truncated", mark.truncated.map(Value::Bool)),
        ("repetition", mark.repetition.map(Value::Bool)),
        ("category", mark.category.as_deref().map(text)),
        ("dataset", mark.dataset.as_deref().map(text)),
        ("response_tokens", mark.response_tokens.map(count)),
        ("effective_response_tokens", mark.effective_response_tokens.map(count)),
        ("top_p_kept", mark.top_p_kept.map(count)),
        ("left_out", left_out(&mark.left_out).as_deref().map(text)),
        ("non_generation_time", mark.non_generation_time.map(|time| Value::Float(time.as_secs_f64()))),
    ];
    told.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// What is wrong with what was left out.
fn left_out(left_out: &[LeftOut]) -> Option<String> {
    let names: Vec<_> = left_out.iter().map(|left_out| left_out.fault.name()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn attr(name: &str, value: &Attr) -> (String, Value) {
    let value = match value {
        Attr::Text(text) if TEXTS.contains(&name) => Value::Text(cut_at(text, MAX_SAID_BYTES).to_owned()),
        other => Value::of(other),
    };
    (cut(name).to_owned(), value)
}

impl SpanDetails {
    fn of(span: Span) -> Self {
        let attrs = span.attrs.iter().map(|(name, value)| attr(name, value));
        Self { attrs: attrs.collect(), lane: span.lane.name(), name: span.name.into_owned() }
    }
}

impl Value {
    fn of(attr: &Attr) -> Self {
        match attr {
            Attr::Bool(value) => Self::Bool(*value),
            Attr::Int(value) if value.unsigned_abs() > MAX_EXACT_INT => Self::Text(value.to_string()),
            Attr::Int(value) => Self::Int(*value),
            Attr::Float(value) => Self::Float(*value),
            Attr::Text(text) => Self::Text(cut(text).to_owned()),
        }
    }
}
