//! OpenTelemetry: a trace for each sample, its spans with `gen_ai.*` attributes where there is a name for what they
//! tell, and `rollscope.*` for everything else. A request is a client's span, as the conventions for generative models
//! have it; the legs and stages are spans in it. The rollout as a whole is a trace of its own, and so are the forward
//! passes of each rank of a worker.

use std::io::{self, Write};

use prost::Message as _;
use rollscope_trace::{Attr, ForwardPass, Lane, SampleTrace, Span, StepNumber, StepTrace};

use super::group::{Group, Kind, groups};
use super::proto::otlp::{
    self as proto, AnyValue, ExportTraceServiceRequest, KeyValue, Link, List, Resource, ResourceSpans, Scope,
    ScopeSpans, Status, Value,
};
use crate::hash::fnv;

/// `Span.SpanKind`.
const INTERNAL: i32 = 1;
const CLIENT: i32 = 3;
/// `Status.StatusCode`.
const OK: i32 = 1;
const ERROR: i32 = 2;
/// Attributes that the conventions name otherwise.
const GEN_AI: [(&str, &str); 4] = [
    ("prompt_tokens", "gen_ai.usage.input_tokens"),
    ("completion_tokens", "gen_ai.usage.output_tokens"),
    ("sglang_request_id", "gen_ai.response.id"),
    ("session", "gen_ai.conversation.id"),
];

/// Writes a step. Messages of this type put one behind the other are one with all their spans.
pub(super) fn step(trace: &StepTrace, passes: &[ForwardPass], out: &mut dyn Write) -> io::Result<()> {
    let resource = Resource {
        attributes: vec![
            text("service.name", "rollscope"),
            attribute("rollscope.step", Value::Int(trace.step.0 as i64)),
        ],
    };
    let scope = Scope { name: "rollscope".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    for group in groups(trace, passes) {
        let spans = spans(trace.step, &group);
        let scope_spans = vec![ScopeSpans { scope: Some(scope.clone()), spans }];
        let resource_spans = vec![ResourceSpans { resource: Some(resource.clone()), scope_spans }];
        out.write_all(&ExportTraceServiceRequest { resource_spans }.encode_to_vec())?;
    }
    Ok(())
}

fn spans(step: StepNumber, group: &Group<'_>) -> Vec<proto::Span> {
    let (step, key, spans) = (step.to_string(), &*group.name, &group.spans);
    // Samples may be named as anything.
    let kind = match group.kind {
        Kind::Sample(_) => "",
        Kind::Rollout => "rollout ",
        Kind::Rank => "forward passes ",
    };
    let of = |what: &str| format!("{kind}{what}");
    let trace_id = fnv(&[&of("trace"), &step, key]).to_be_bytes();
    let id = |number: u32| {
        let id = fnv(&[&of("span"), &step, key, &number.to_string()]) as u64;
        // No span has the id 0.
        id.max(1).to_be_bytes().to_vec()
    };
    let sample = match group.kind {
        Kind::Sample(sample) => Some(sample),
        Kind::Rollout | Kind::Rank => None,
    };
    // One that is open ends with what is known of the sample.
    let last = sample.and_then(|sample| sample.end().or_else(|| sample.start())).unwrap_or_default();
    let one = |span: &Span| {
        let ns = |at: i64| u64::try_from(at).unwrap_or(0);
        let end = span.end.unwrap_or(last).max(span.start);
        proto::Span {
            trace_id: trace_id.to_vec(),
            span_id: id(span.id),
            parent_span_id: span.parent.map(id).unwrap_or_default(),
            name: name(span),
            kind: if is_request(span) { CLIENT } else { INTERNAL },
            start_time_unix_nano: ns(span.start.0),
            end_time_unix_nano: ns(end.0),
            attributes: attributes(group, sample, span),
            links: links(span),
            status: status(span),
        }
    };
    // The answers' tokens are told of the request as a whole, which is what receivers look at.
    let mut written: Vec<proto::Span> = spans.iter().map(one).collect();
    for span in spans {
        let Some(request) =
            span.parent.and_then(|parent| spans.get(parent as usize)).filter(|of| is_request(of))
        else {
            continue;
        };
        if span.lane == Lane::Prefill {
            continue;
        }
        let told = attributes(group, sample, span).into_iter().filter(|told| told.key.starts_with("gen_ai."));
        let attributes = &mut written[request.id as usize].attributes;
        for attribute in told {
            if !attributes.iter().any(|known| known.key == attribute.key) {
                attributes.push(attribute);
            }
        }
    }
    written
}

fn is_request(span: &Span) -> bool {
    span.lane == Lane::Request && &*span.name == "request"
}

fn said<'a>(span: &'a Span, name: &str) -> Option<&'a str> {
    match span.attrs.iter().find(|(other, _)| &**other == name)? {
        (_, Attr::Text(text)) => Some(text),
        _ => None,
    }
}

fn operation(endpoint: &str) -> &'static str {
    if endpoint.contains("chat") { "chat" } else { "text_completion" }
}

fn name(span: &Span) -> String {
    match said(span, "endpoint").filter(|_| is_request(span)) {
        Some(endpoint) => operation(endpoint).to_owned(),
        None => span.name.to_string(),
    }
}

fn attributes(group: &Group<'_>, sample: Option<&SampleTrace>, span: &Span) -> Vec<KeyValue> {
    let mut attributes = vec![text("rollscope.lane", group.category(span))];
    if let Kind::Rank = group.kind {
        attributes.push(text("rollscope.rank", &group.name));
    }
    if span.bound.0 > 0 {
        attributes.push(attribute("rollscope.bound_s", Value::Double(span.bound.as_secs_f64())));
    }
    if let Some(group) = sample.filter(|_| span.lane == Lane::Sample).and_then(|of| of.key.group.as_deref()) {
        attributes.push(text("rollscope.group", group));
    }
    if is_request(span) {
        attributes.push(text("gen_ai.operation.name", operation(said(span, "endpoint").unwrap_or_default())));
        attributes.push(text("gen_ai.provider.name", "sglang"));
    }
    for (name, value) in &span.attrs {
        if &**name == "finish_reason"
            && let Attr::Text(reason) = value
        {
            let values = vec![AnyValue { value: Some(Value::Text(reason.to_string())) }];
            attributes.push(attribute("gen_ai.response.finish_reasons", Value::List(List { values })));
            continue;
        }
        let known = GEN_AI.iter().find(|(own, _)| own == name).map(|(_, name)| (*name).to_owned());
        let key = known.unwrap_or_else(|| format!("rollscope.{name}"));
        let value = match value {
            Attr::Bool(value) => Value::Bool(*value),
            Attr::Int(value) => Value::Int(*value),
            // Tokens are whole there.
            Attr::Float(value) if key.starts_with("gen_ai.usage.") => Value::Int(*value as i64),
            Attr::Float(value) => Value::Double(*value),
            Attr::Text(value) => Value::Text(value.to_string()),
        };
        attributes.push(attribute(&key, value));
    }
    attributes
}

/// The span that the client's own trace was in.
fn links(span: &Span) -> Vec<Link> {
    let parts = |text: &str| -> Option<Link> {
        let mut parts = text.split('-');
        let (_version, trace, parent) = (parts.next()?, parts.next()?, parts.next()?);
        let trace_id = u128::from_str_radix(trace, 16).ok().filter(|_| trace.len() == 32)?;
        let span_id = u64::from_str_radix(parent, 16).ok().filter(|_| parent.len() == 16)?;
        Some(Link { trace_id: trace_id.to_be_bytes().to_vec(), span_id: span_id.to_be_bytes().to_vec() })
    };
    said(span, "traceparent").and_then(parts).into_iter().collect()
}

fn status(span: &Span) -> Option<Status> {
    let outcome = said(span, "outcome")?;
    let message = said(span, "error").unwrap_or_default().to_owned();
    Some(Status { code: if outcome == "completed" { OK } else { ERROR }, message })
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::Text(value.to_owned()))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}
