//! The samples of a step as columns: what the timeline draws.
//!
//! An object per span would repeat every key a million times, so the answer is a table: one array per column,
//! texts as indices into one table of strings, times in nanoseconds from one origin (their distance fits a double
//! without loss for 104 days). Spans stand sample by sample, a parent before its children; the rows of a sample
//! are found by offsets (`first_span[i] .. first_span[i + 1]`), and likewise the attributes of a span.

use std::collections::HashMap;

use rollscope_trace::{Attr, Nanos, SampleTrace, Span, StepTrace, UnixNs, sample_spans};
use serde::Serialize;

/// An attribute's text is cut after this many bytes: a timeline shows it in a tooltip.
const MAX_TEXT_BYTES: usize = 4096;
/// Whole numbers beyond this are sent as text, since a double cannot hold them.
const MAX_EXACT_INT: u64 = 1 << 53;
/// Spans of the user's that lie further from the step's requests than this, or than the step is long, do not
/// widen the range that is shown first: the clock that made them is off.
const FAR_OFF: Nanos = Nanos(60_000_000_000);

/// The answer of `/api/steps/N/samples`.
#[derive(Debug, Serialize)]
pub(crate) struct SampleTable {
    step: u64,
    /// Nanoseconds since the Unix epoch, as text: it does not fit a double.
    origin_unix_ns: String,
    /// What to show first, from the origin. Nothing when nothing has happened.
    extent_ns: Option<[i64; 2]>,
    strings: Strings,
    samples: SampleColumns,
    spans: SpanColumns,
    attrs: AttrColumns,
}

/// One entry a sample, by prompt group in order of the groups' first events.
#[derive(Debug, Default, Serialize)]
struct SampleColumns {
    group: Vec<Option<u32>>,
    name: Vec<u32>,
    evaluation: Vec<bool>,
    reward: Vec<Option<f64>>,
    response_tokens: Vec<Option<u64>>,
    /// One entry more than there are samples.
    first_span: Vec<usize>,
}

/// One entry a span.
#[derive(Debug, Default, Serialize)]
struct SpanColumns {
    name: Vec<u32>,
    lane: Vec<u32>,
    /// The row of the span that contains it.
    parent: Vec<Option<usize>>,
    start_ns: Vec<i64>,
    /// Nothing while it is open.
    end_ns: Vec<Option<i64>>,
    bound_ns: Vec<u64>,
    /// One entry more than there are spans.
    first_attr: Vec<usize>,
}

/// One entry an attribute: a text's index is in `text`, any other value in `value`.
#[derive(Debug, Default, Serialize)]
struct AttrColumns {
    name: Vec<u32>,
    text: Vec<Option<u32>>,
    value: Vec<Value>,
}

/// A value that is no text. A number that JSON cannot hold is `null`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Nothing,
}

/// Texts, each once. Serialised as the list.
#[derive(Debug, Default)]
struct Strings {
    list: Vec<Box<str>>,
    index: HashMap<Box<str>, u32>,
}

// === impl SampleTable ===

impl SampleTable {
    pub(crate) fn of(trace: &StepTrace) -> Self {
        let origin = origin(trace);
        let mut table = Self {
            step: trace.step.0,
            origin_unix_ns: origin.0.to_string(),
            extent_ns: extent(trace).map(|(start, end)| [distance(start, origin), distance(end, origin)]),
            strings: Strings::default(),
            samples: SampleColumns::default(),
            spans: SpanColumns::default(),
            attrs: AttrColumns::default(),
        };
        for sample in by_group(trace) {
            table.sample(sample, origin);
        }
        table.samples.first_span.push(table.spans.name.len());
        table.spans.first_attr.push(table.attrs.name.len());
        table
    }

    fn sample(&mut self, sample: &SampleTrace, origin: UnixNs) {
        let samples = &mut self.samples;
        samples.group.push(sample.key.group.as_deref().map(|group| self.strings.index(group)));
        samples.name.push(self.strings.index(&sample.key.sample));
        samples.evaluation.push(sample.mark.evaluation);
        samples.reward.push(sample.mark.reward);
        samples.response_tokens.push(sample.mark.response_tokens);
        let first = self.spans.name.len();
        samples.first_span.push(first);
        for span in sample_spans(sample) {
            self.span(&span, first, origin);
        }
    }

    fn span(&mut self, span: &Span, first: usize, origin: UnixNs) {
        let spans = &mut self.spans;
        spans.name.push(self.strings.index(cut(&span.name)));
        spans.lane.push(self.strings.index(span.lane.name()));
        spans.parent.push(span.parent.map(|parent| first + parent as usize));
        spans.start_ns.push(distance(span.start, origin));
        spans.end_ns.push(span.end.map(|end| distance(end, origin)));
        spans.bound_ns.push(span.bound.0);
        spans.first_attr.push(self.attrs.name.len());
        for (name, value) in &span.attrs {
            let (text, value) = match value {
                Attr::Bool(value) => (None, Value::Bool(*value)),
                Attr::Int(value) if value.unsigned_abs() > MAX_EXACT_INT => {
                    (Some(self.strings.index(&value.to_string())), Value::Nothing)
                }
                Attr::Int(value) => (None, Value::Int(*value)),
                Attr::Float(value) => (None, Value::Float(*value)),
                Attr::Text(text) => (Some(self.strings.index(cut(text))), Value::Nothing),
            };
            self.attrs.name.push(self.strings.index(cut(name)));
            self.attrs.text.push(text);
            self.attrs.value.push(value);
        }
    }
}

/// Samples of one group side by side, groups in order of their first sample.
fn by_group(trace: &StepTrace) -> Vec<&SampleTrace> {
    let mut rank: HashMap<&str, usize> = HashMap::new();
    let mut ranked: Vec<_> = trace
        .samples
        .iter()
        .enumerate()
        .map(|(index, sample)| {
            let group = sample.key.group.as_deref();
            (group.map_or(index, |group| *rank.entry(group).or_insert(index)), sample)
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, sample)| sample).collect()
}

/// The first request's arrival; without requests, the first event.
fn origin(trace: &StepTrace) -> UnixNs {
    let arrival = trace.requests().map(|request| request.arrival).min();
    arrival.or_else(|| trace.samples.iter().filter_map(SampleTrace::start).min()).unwrap_or_default()
}

fn extent(trace: &StepTrace) -> Option<(UnixNs, UnixNs)> {
    let requests = trace.requests().map(|request| (request.arrival, request.ended_at())).reduce(hull);
    let spans = trace.samples.iter().flat_map(|sample| &sample.spans);
    let mut spans = spans.map(|span| (span.start, span.end.unwrap_or(span.start)));
    let Some((start, end)) = requests else {
        return spans.reduce(hull);
    };
    let margin = end.since(start).max(FAR_OFF);
    let near = |span: &(UnixNs, UnixNs)| start.since(span.0) <= margin && span.1.since(end) <= margin;
    Some(spans.by_ref().filter(near).fold((start, end), hull))
}

fn hull(a: (UnixNs, UnixNs), b: (UnixNs, UnixNs)) -> (UnixNs, UnixNs) {
    (a.0.min(b.0), a.1.max(b.1))
}

fn distance(at: UnixNs, origin: UnixNs) -> i64 {
    at.0.saturating_sub(origin.0)
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

// === impl Strings ===

impl Strings {
    fn index(&mut self, text: &str) -> u32 {
        if let Some(index) = self.index.get(text) {
            return *index;
        }
        let index = self.list.len() as u32;
        self.list.push(text.into());
        self.index.insert(text.into(), index);
        index
    }
}

impl Serialize for Strings {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.list.serialize(serializer)
    }
}

#[cfg(test)]
mod tests;
