//! Perfetto's format: a track for the rollout, for each sample and for each rank of a worker, in it one for each lane.
//!
//! A step is a process of the trace, named by its number. Names are interned once a step. Slices are written as begin
//! and end, which Perfetto nests by their time on each track.

use std::collections::HashMap;
use std::io::{self, Write};

use prost::Message as _;
use rollscope_trace::{Attr, ForwardPass, Span, StepTrace};

use super::group::groups;
use super::lanes::{in_order, tracks};
use super::proto::perfetto::{
    DebugAnnotation, InternedData, Name, ProcessDescriptor, Trace, TracePacket, TrackDescriptor, TrackEvent,
};

/// `TrackEvent.Type`.
const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
/// `TracePacket.SequenceFlags`: what was interned before counts no more; this packet needs what was.
const INCREMENTAL_STATE_CLEARED: u32 = 1;
const NEEDS_INCREMENTAL_STATE: u32 = 2;
/// Nothing is known of the system's processes, so steps count from a number that no pid has.
const FIRST_PID: i32 = 10_000_000;

/// Writes packets of a step.
struct Writer<'a> {
    out: &'a mut dyn Write,
    /// Numbers of names, by text; of events and of attributes.
    names: [HashMap<String, u64>; 2],
    sequence: u32,
}

/// Writes a step; `tracks_before` numbers the tracks of the whole file.
pub(super) fn step(
    trace: &StepTrace,
    passes: &[ForwardPass],
    tracks_before: &mut u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut next = || {
        *tracks_before += 1;
        *tracks_before
    };
    let process = next();
    let sequence = u32::try_from(process % u64::from(u32::MAX)).unwrap_or(0) + 1;
    let mut writer = Writer { out, names: Default::default(), sequence };
    let pid = FIRST_PID + i32::try_from(trace.step.0 % 1_000_000).unwrap_or(0);
    let process_name = Some(format!("step {}", trace.step));
    writer.descriptor(TrackDescriptor {
        uuid: Some(process),
        process: Some(ProcessDescriptor { pid: Some(pid), process_name }),
        ..TrackDescriptor::default()
    })?;
    writer.clear()?;
    for group in groups(trace, passes) {
        let lanes = tracks(&group.spans);
        let whole = next();
        writer.track(whole, process, group.name.clone())?;
        let mut uuids = Vec::with_capacity(lanes.names.len());
        for lane in &lanes.names {
            let uuid = next();
            writer.track(uuid, whole, group.track_text(*lane))?;
            uuids.push(uuid);
        }
        for index in in_order(&group.spans) {
            writer.span(&group.spans[index], uuids[lanes.of_span[index]])?;
        }
    }
    Ok(())
}

// === impl Writer ===

impl Writer<'_> {
    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let packet = TracePacket { trusted_packet_sequence_id: Some(self.sequence), ..packet };
        // A trace is its packets, so that pieces of it are simply put together.
        self.out.write_all(&Trace { packet: vec![packet] }.encode_to_vec())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.packet(TracePacket { sequence_flags: Some(INCREMENTAL_STATE_CLEARED), ..TracePacket::default() })
    }

    fn descriptor(&mut self, descriptor: TrackDescriptor) -> io::Result<()> {
        self.packet(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }

    fn track(&mut self, uuid: u64, parent: u64, name: String) -> io::Result<()> {
        let (uuid, parent_uuid, name) = (Some(uuid), Some(parent), Some(name));
        self.descriptor(TrackDescriptor { uuid, name, parent_uuid, process: None })
    }

    fn span(&mut self, span: &Span, track: u64) -> io::Result<()> {
        let mut interned = InternedData::default();
        let name_iid = self.intern(0, &span.name, &mut interned.event_names);
        let mut annotations = Vec::with_capacity(span.attrs.len() + 1);
        let bound = (span.bound.0 > 0).then(|| Attr::Float(span.bound.as_secs_f64()));
        let attrs = span.attrs.iter().map(|(name, value)| (&**name, value));
        for (name, value) in attrs.chain(bound.as_ref().map(|bound| ("bound_s", bound))) {
            let name_iid = self.intern(1, name, &mut interned.debug_annotation_names);
            annotations.push(annotation(name_iid, value));
        }
        let is_new = interned != InternedData::default();
        self.packet(TracePacket {
            timestamp: Some(timestamp(span.start.0)),
            interned_data: is_new.then_some(interned),
            sequence_flags: Some(NEEDS_INCREMENTAL_STATE),
            track_event: Some(TrackEvent {
                r#type: Some(SLICE_BEGIN),
                track_uuid: Some(track),
                name_iid: Some(name_iid),
                debug_annotations: annotations,
                category_iids: Vec::new(),
            }),
            ..TracePacket::default()
        })?;
        let Some(end) = span.end else {
            return Ok(());
        };
        self.packet(TracePacket {
            timestamp: Some(timestamp(end.0.max(span.start.0))),
            track_event: Some(TrackEvent {
                r#type: Some(SLICE_END),
                track_uuid: Some(track),
                ..TrackEvent::default()
            }),
            ..TracePacket::default()
        })
    }

    /// The number of a name; told where it is new.
    fn intern(&mut self, kind: usize, name: &str, told: &mut Vec<Name>) -> u64 {
        let names = &mut self.names[kind];
        if let Some(iid) = names.get(name) {
            return *iid;
        }
        let iid = names.len() as u64 + 1;
        names.insert(name.to_owned(), iid);
        told.push(Name { iid: Some(iid), name: Some(name.to_owned()) });
        iid
    }
}

fn annotation(name_iid: u64, value: &Attr) -> DebugAnnotation {
    let mut annotation = DebugAnnotation { name_iid: Some(name_iid), ..DebugAnnotation::default() };
    match value {
        Attr::Bool(value) => annotation.bool_value = Some(*value),
        Attr::Int(value) => annotation.int_value = Some(*value),
        Attr::Float(value) => annotation.double_value = Some(*value),
        Attr::Text(value) => annotation.string_value = Some(value.to_string()),
    }
    annotation
}

/// Times before 1970 are none.
fn timestamp(ns: i64) -> u64 {
    u64::try_from(ns).unwrap_or(0)
}
