//! The mirror of a profile.

use rollscope_trace::{
    BatchSlot, ClockOffset, Fault, Finish, FinishKind, Join, Leg, LegRole, Nanos, Outcome, Profile, Reading,
    Report, RequestId, StepNumber, UnixNs, WorkerRef,
};
use serde::Deserialize;

use crate::error::RunError;
use crate::log::mirror::{AttrMirror, MeasureNames, boxed, serialize};
use crate::log::pack::{self, Map};
use crate::texts::SharedTexts;

/// A name of a closed set that is not known here.
pub(super) struct UnknownName;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ProfileMirror<'a> {
    /// High and low half.
    id: (u64, u64),
    step: u64,
    #[serde(borrow)]
    group: Option<&'a str>,
    #[serde(borrow)]
    sample: Option<&'a str>,
    attempt: u32,
    #[serde(borrow)]
    traceparent: Option<&'a str>,
    #[serde(borrow)]
    session: Option<&'a str>,
    #[serde(borrow)]
    rid: Option<&'a str>,
    endpoint: &'a str,
    stream: bool,
    /// Index and size.
    batch: Option<(u32, u32)>,
    arrival_ns: i64,
    first_byte_ns: Option<u64>,
    end_ns: u64,
    status: Option<u16>,
    outcome: &'a str,
    #[serde(borrow)]
    error: Option<&'a str>,
    decision: &'a str,
    retries: u32,
    #[serde(borrow)]
    legs: Vec<LegMirror<'a>>,
    #[serde(borrow)]
    attrs: Vec<(&'a str, AttrMirror<'a>)>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LegMirror<'a> {
    role: &'a str,
    url: &'a str,
    instance: &'a str,
    dispatch_ns: u64,
    first_byte_ns: Option<u64>,
    end_ns: u64,
    status: Option<u16>,
    outcome: &'a str,
    #[serde(borrow)]
    error: Option<&'a str>,
    /// The worker's clock offset and its bound.
    clock_ns: Option<(i64, u64)>,
    /// Number of the measure and value.
    readings: Vec<(u16, f64)>,
    /// Number of the measure and what is wrong with its reading.
    #[serde(borrow)]
    faults: Vec<(u16, &'a str)>,
    #[serde(borrow)]
    finish: Option<&'a str>,
    #[serde(borrow)]
    finish_message: Option<&'a str>,
    finish_status: Option<u16>,
    #[serde(borrow)]
    weight_version: Option<&'a str>,
    #[serde(borrow)]
    worker_request_id: Option<&'a str>,
}

/// Appends a profile as its mirror is read; what is as by default is left out. There is one for each request, which is why
/// it is written by hand.
pub(super) fn put(buffer: &mut Vec<u8>, profile: &Profile) -> Result<(), RunError> {
    let join = &profile.join;
    let step = join.step.ok_or(RunError::NoStep { id: profile.id })?;
    let mut map = Map::begin(buffer);
    put_pair(map.value_of("id"), |buffer| {
        pack::uint(buffer, (profile.id.0 >> 64) as u64);
        pack::uint(buffer, profile.id.0 as u64);
    });
    map.uint("step", step.0);
    map.text_if_any("group", join.group.as_deref());
    map.text_if_any("sample", join.sample.as_deref());
    map.uint_unless_zero("attempt", join.attempt);
    map.text_if_any("traceparent", join.traceparent.as_deref());
    map.text_if_any("session", join.session.as_deref());
    map.text_if_any("rid", join.rid.as_deref());
    map.text("endpoint", &profile.endpoint);
    map.flag("stream", profile.stream);
    if let Some(slot) = profile.batch {
        put_pair(map.value_of("batch"), |buffer| {
            pack::uint(buffer, slot.index.into());
            pack::uint(buffer, slot.size.into());
        });
    }
    map.int("arrival_ns", profile.arrival.0);
    map.uint_if_any("first_byte_ns", profile.first_byte.map(|at| at.0));
    map.uint("end_ns", profile.end.0);
    map.uint_if_any("status", profile.status);
    map.text("outcome", profile.outcome.name());
    map.text_if_any("error", profile.error.as_deref());
    map.text("decision", &profile.decision);
    map.uint_unless_zero("retries", profile.retries);
    let legs = map.value_of("legs");
    pack::array(legs, profile.legs.len());
    profile.legs.iter().for_each(|leg| put_leg(legs, leg));
    if !profile.attrs.is_empty() {
        let attrs: Vec<_> =
            profile.attrs.iter().map(|(name, value)| (&**name, AttrMirror::of(value))).collect();
        serialize(map.value_of("attrs"), &attrs)?;
    }
    map.end();
    Ok(())
}

fn put_leg(buffer: &mut Vec<u8>, leg: &Leg) {
    let Report { measures, finish, weight_version, worker_request_id } = &leg.report;
    let mut map = Map::begin(buffer);
    map.text("role", leg.role.name());
    map.text("url", &leg.worker.url);
    map.text("instance", &leg.worker.instance);
    map.uint("dispatch_ns", leg.dispatch.0);
    map.uint_if_any("first_byte_ns", leg.first_byte.map(|at| at.0));
    map.uint("end_ns", leg.end.0);
    map.uint_if_any("status", leg.status);
    map.text("outcome", leg.outcome.name());
    map.text_if_any("error", leg.error.as_deref());
    if let Some(clock) = leg.clock {
        put_pair(map.value_of("clock_ns"), |buffer| {
            pack::int(buffer, clock.offset_ns);
            pack::uint(buffer, clock.bound.0);
        });
    }
    let readings = map.value_of("readings");
    pack::array(readings, measures.values().len());
    for (measure, value) in measures.present().iter().zip(measures.values()) {
        put_pair(readings, |buffer| {
            pack::uint(buffer, measure as u64);
            pack::float(buffer, *value);
        });
    }
    if !measures.faults().is_empty() {
        let faults = map.value_of("faults");
        pack::array(faults, measures.faults().len());
        for (measure, fault) in measures.iter().filter_map(|(measure, of)| Some((measure, of.fault?))) {
            put_pair(faults, |buffer| {
                pack::uint(buffer, measure as u64);
                pack::text(buffer, fault.name());
            });
        }
    }
    if let Some(finish) = finish {
        map.text("finish", finish.kind.name());
        map.text_if_any("finish_message", finish.message.as_deref());
        map.uint_if_any("finish_status", finish.status_code);
    }
    map.text_if_any("weight_version", weight_version.as_deref());
    map.text_if_any("worker_request_id", worker_request_id.as_deref());
    map.end();
}

fn put_pair(buffer: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    pack::array(buffer, 2);
    put(buffer);
}

// === impl ProfileMirror ===

impl ProfileMirror<'_> {
    pub(super) fn profile(
        self,
        names: &MeasureNames,
        texts: &mut SharedTexts,
    ) -> Result<Profile, UnknownName> {
        Ok(Profile {
            id: RequestId(u128::from(self.id.0) << 64 | u128::from(self.id.1)),
            join: Join {
                step: Some(StepNumber(self.step)),
                group: boxed(self.group),
                sample: boxed(self.sample),
                attempt: self.attempt,
                traceparent: boxed(self.traceparent),
                session: boxed(self.session),
                rid: boxed(self.rid),
            },
            endpoint: self.endpoint.into(),
            stream: self.stream,
            batch: self.batch.map(|(index, size)| BatchSlot { index, size }),
            arrival: UnixNs(self.arrival_ns),
            first_byte: self.first_byte_ns.map(Nanos),
            end: Nanos(self.end_ns),
            status: self.status,
            outcome: Outcome::from_name(self.outcome).ok_or(UnknownName)?,
            error: boxed(self.error),
            decision: self.decision.into(),
            retries: self.retries,
            legs: self.legs.into_iter().map(|leg| leg.leg(names, texts)).collect::<Result<_, _>>()?,
            attrs: self.attrs.into_iter().map(|(name, value)| (name.into(), value.attr())).collect(),
        })
    }
}

// === impl LegMirror ===

impl LegMirror<'_> {
    fn leg(self, names: &MeasureNames, texts: &mut SharedTexts) -> Result<Leg, UnknownName> {
        let fault = |number: u16| {
            let (_, name) = self.faults.iter().find(|(of, _)| *of == number)?;
            Some(Fault::from_name(name).unwrap_or(Fault::NotANumber))
        };
        let readings = self.readings.iter().filter_map(|(number, value)| {
            Some((names.get(*number)?, Reading { value: *value, fault: fault(*number) }))
        });
        Ok(Leg {
            role: LegRole::from_name(self.role).ok_or(UnknownName)?,
            worker: WorkerRef { url: texts.of(self.url), instance: texts.of(self.instance) },
            dispatch: Nanos(self.dispatch_ns),
            first_byte: self.first_byte_ns.map(Nanos),
            end: Nanos(self.end_ns),
            status: self.status,
            outcome: Outcome::from_name(self.outcome).ok_or(UnknownName)?,
            error: boxed(self.error),
            clock: self.clock_ns.map(|(offset_ns, bound)| ClockOffset { offset_ns, bound: Nanos(bound) }),
            report: Report {
                measures: readings.collect(),
                finish: self.finish.map(|kind| Finish {
                    kind: FinishKind::from_name(kind),
                    message: boxed(self.finish_message),
                    status_code: self.finish_status,
                }),
                weight_version: boxed(self.weight_version),
                worker_request_id: boxed(self.worker_request_id),
            },
        })
    }
}
