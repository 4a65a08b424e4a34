//! What is written of a dump, read back by the same messages.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use prost::Message as _;
use rollscope_trace::{
    CloseReason, ForwardPass, Lane, Nanos, PassLoad, Record, Span, StepClose, StepNumber, StepTrace, UnixNs,
};
use serde_json::Value as Json;

use super::lanes::tracks;
use super::proto::{otlp, perfetto};
use super::{ExportFormat, Exporter};
use crate::import::{ImportOptions, import};

fn trace() -> StepTrace {
    let mut records = Vec::new();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/turns.pt");
    let none = |_: &[u8]| Err("no line of ours".into());
    import(&path, &ImportOptions::default(), &none, &mut |record| {
        records.push(record);
        Ok(())
    })
    .unwrap();
    let first = records.iter().filter_map(|record| match record {
        Record::Profile(profile) => Some(profile.arrival),
        _ => None,
    });
    let at = first.min().unwrap();
    let (reason, rollout_time) = (CloseReason::Told, Some(Nanos(90_000_000_000)));
    records.push(Record::Close(StepClose { step: StepNumber(0), at, reason, rollout_time, gpus: Some(8) }));
    StepTrace::gather(StepNumber(0), records)
}

/// Two ranks of a worker that is not known, whose passes are heard of a second apart.
fn passes() -> Vec<ForwardPass> {
    let pass = |rank: u32, number: u64| ForwardPass {
        step: Some(StepNumber(0)),
        dp_rank: rank,
        uncertainty: Nanos(3),
        wall: Nanos(20_000_000),
        scheduled: PassLoad { decode_requests: 7, ..PassLoad::default() },
        ..ForwardPass::new(
            "ipc:///tmp/fpm",
            number,
            UnixNs(1_790_000_000_000_000_000 + number as i64 * 1_000_000_000),
        )
    };
    vec![pass(0, 1), pass(0, 2), pass(1, 1)]
}

fn exported(format: ExportFormat) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut exporter = Exporter::new(format, &mut bytes).unwrap();
    exporter.step(&trace(), &passes()).unwrap();
    exporter.finish().unwrap();
    bytes
}

fn span_count() -> usize {
    let of_samples =
        trace().samples.iter().map(|sample| rollscope_trace::sample_spans(sample).len()).sum::<usize>();
    // And the rollout as a whole.
    of_samples + passes().len() + 1
}

#[test]
fn spans_that_overlap_get_lanes_of_their_own() {
    let spans: Vec<Span> =
        [(0, Some(10)), (1, Some(4)), (3, Some(6)), (4, Some(9)), (10, None), (11, Some(12)), (5, Some(5))]
            .into_iter()
            .enumerate()
            .map(|(id, (start, end))| Span {
                id: id as u32,
                parent: None,
                name: "x".into(),
                lane: Lane::User,
                start: UnixNs(start),
                end: end.map(UnixNs),
                bound: Nanos(0),
                attrs: Vec::new(),
            })
            .collect();
    assert_eq!(tracks(&spans).of_span, [0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn slices_of_perfetto_nest_on_every_track() {
    let trace = perfetto::Trace::decode(&*exported(ExportFormat::Perfetto)).unwrap();
    let mut open: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut begun = 0;
    let mut events: Vec<_> = trace.packet.iter().filter(|packet| packet.track_event.is_some()).collect();
    events.sort_by_key(|packet| packet.timestamp);
    for packet in events {
        let event = packet.track_event.as_ref().unwrap();
        let stack = open.entry(event.track_uuid.unwrap()).or_default();
        match event.r#type {
            Some(1) => {
                begun += 1;
                stack.push(packet.timestamp.unwrap());
            }
            Some(2) => assert!(stack.pop().unwrap() <= packet.timestamp.unwrap()),
            other => panic!("{other:?}"),
        }
    }
    assert!(open.into_iter().all(|(_, stack)| stack.is_empty()));
    assert_eq!(begun, span_count());
    let tracks = trace.packet.iter().filter_map(|packet| packet.track_descriptor.as_ref()?.name.as_deref());
    let tracks: Vec<&str> = tracks.collect();
    for name in ["rollout", "ipc:///tmp/fpm rank 0", "ipc:///tmp/fpm rank 1", "forward passes"] {
        assert!(tracks.contains(&name), "{name} of {tracks:?}");
    }
}

/// What is open lasts: it contains what begins with it.
#[test]
fn an_open_span_comes_before_those_in_it() {
    let span = |id: u32, end: Option<i64>| Span {
        id,
        parent: None,
        name: "x".into(),
        lane: Lane::User,
        start: UnixNs(5),
        end: end.map(UnixNs),
        bound: Nanos(0),
        attrs: Vec::new(),
    };
    let spans = [span(0, Some(9)), span(1, None)];
    assert_eq!(super::lanes::in_order(&spans), [1, 0]);
    assert_eq!(tracks(&spans).of_span, [0, 0]);
}

#[test]
fn events_of_chrome_nest_on_every_thread() {
    let json: Json = serde_json::from_slice(&exported(ExportFormat::Chrome)).unwrap();
    let mut threads: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    let mut categories: BTreeMap<String, usize> = BTreeMap::new();
    for event in json["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X") {
        let category = event["cat"].as_str().unwrap();
        *categories.entry(category.to_owned()).or_default() += 1;
        let (ts, dur) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        threads.entry(event["tid"].as_u64().unwrap()).or_default().push((ts, ts + dur));
    }
    assert_eq!(threads.values().map(Vec::len).sum::<usize>(), span_count());
    assert_eq!((categories["rollout"], categories["forward_pass"]), (1, 3));
    for events in threads.values() {
        for (index, a) in events.iter().enumerate() {
            // Microseconds since 1970 are a quarter of one apart.
            let apart = |b: &(f64, f64)| a.1 <= b.0 + 1.0 || b.1 <= a.0 + 1.0;
            let within = |b: &(f64, f64)| {
                (a.0 >= b.0 - 1.0 && a.1 <= b.1 + 1.0) || (b.0 >= a.0 - 1.0 && b.1 <= a.1 + 1.0)
            };
            assert!(events[..index].iter().all(|b| apart(b) || within(b)), "{a:?} crosses another");
        }
    }
}

#[test]
fn spans_of_otlp_are_trees_with_the_field_s_attributes() {
    let request = otlp::ExportTraceServiceRequest::decode(&*exported(ExportFormat::Otlp)).unwrap();
    let spans: Vec<&otlp::Span> =
        request.resource_spans.iter().flat_map(|of| &of.scope_spans).flat_map(|of| &of.spans).collect();
    assert_eq!(spans.len(), span_count());
    let by_id: HashMap<&[u8], &otlp::Span> = spans.iter().map(|span| (&*span.span_id, *span)).collect();
    assert_eq!(by_id.len(), spans.len());
    for span in &spans {
        if span.parent_span_id.is_empty() {
            assert!(["sample", "rollout", "forward pass"].contains(&&*span.name), "{}", span.name);
        } else {
            assert_eq!(by_id[&*span.parent_span_id].trace_id, span.trace_id);
        }
    }
    let names = |span: &otlp::Span| span.attributes.iter().map(|a| a.key.clone()).collect::<Vec<_>>();
    let requests: Vec<_> = spans.iter().filter(|span| span.kind == 3).collect();
    assert_eq!(requests.len(), trace().requests().count());
    for request in requests {
        for name in [
            "operation.name",
            "usage.input_tokens",
            "usage.output_tokens",
            "response.finish_reasons",
            "response.id",
        ] {
            assert!(names(request).contains(&format!("gen_ai.{name}")), "{name} of {:?}", names(request));
        }
    }
    assert!(spans.iter().any(|span| span.name == "transfer" && span.kind == 1));
}

#[test]
fn the_end_of_a_step_comes_back_from_slime_json() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("steps.jsonl");
    std::fs::write(&path, exported(ExportFormat::SlimeJson)).unwrap();
    let (mut records, none) = (Vec::new(), |_: &[u8]| Err("no line of ours".into()));
    import(&path, &ImportOptions::default(), &none, &mut |record| {
        records.push(record);
        Ok(())
    })
    .unwrap();
    let before = trace();
    let after = StepTrace::gather(StepNumber(0), records);
    assert_eq!((after.close, after.samples.len()), (before.close, before.samples.len()));
}
