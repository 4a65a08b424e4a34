//! JSON of Chrome's trace viewer: complete events (`X`) on a thread for the rollout, each lane of a sample, and each
//! rank of a worker.
//!
//! A viewer drops events that overlap on one thread, so lanes are those on which nothing does. Times are microseconds.

use std::io::{self, Write};

use rollscope_trace::{Attr, ForwardPass, Span, StepTrace};
use serde_json::{Map, Value as Json, json};

use super::group::groups;
use super::lanes::tracks;
use crate::tree::float_json;

/// A viewer takes thread 0 and thread 1 of a process for one.
const FIRST_THREAD: u64 = 1000;

/// What the whole file has so far.
#[derive(Debug)]
pub(super) struct Written<'a> {
    pub(super) threads: &'a mut u64,
    pub(super) events: &'a mut u64,
}

/// Writes a step.
pub(super) fn step(
    trace: &StepTrace,
    passes: &[ForwardPass],
    written: &mut Written<'_>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut put = |event: Json| {
        let separator: &[u8] = if *written.events == 0 { b"\n" } else { b",\n" };
        *written.events += 1;
        out.write_all(separator)?;
        Ok::<_, io::Error>(serde_json::to_writer(&mut *out, &event)?)
    };
    let process = trace.step.0 + 1;
    put(named("process_name", process, 0, &format!("step {}", trace.step)))?;
    for group in groups(trace, passes) {
        let lanes = tracks(&group.spans);
        let first = FIRST_THREAD + *written.threads;
        *written.threads += lanes.names.len() as u64;
        for (lane, thread) in lanes.names.iter().zip(first..) {
            let name = format!("{} {}", group.name, group.track_text(*lane));
            put(named("thread_name", process, thread, &name))?;
        }
        for (span, lane) in group.spans.iter().zip(&lanes.of_span) {
            put(event(span, group.category(span), process, first + *lane as u64))?;
        }
    }
    Ok(())
}

fn named(what: &str, process: u64, thread: u64, name: &str) -> Json {
    json!({"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}})
}

fn event(span: &Span, category: &str, process: u64, thread: u64) -> Json {
    let attr = |value: &Attr| match value {
        Attr::Bool(value) => json!(value),
        Attr::Int(value) => json!(value),
        Attr::Float(value) => float_json(*value),
        Attr::Text(value) => json!(value),
    };
    let args: Map<String, Json> =
        span.attrs.iter().map(|(name, value)| (name.to_string(), attr(value))).collect();
    let micros = |ns: i64| ns as f64 / 1e3;
    let mut event = json!({
        "name": span.name, "cat": category, "pid": process, "tid": thread,
        "ts": micros(span.start.0), "args": args,
    });
    // One that is open has no end to tell.
    match span.end {
        Some(end) => {
            event["ph"] = json!("X");
            event["dur"] = json!(micros(end.since(span.start).0 as i64));
        }
        None => event["ph"] = json!("B"),
    }
    event
}
