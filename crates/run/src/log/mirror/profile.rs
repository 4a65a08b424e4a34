//! The mirror of a profile.

use rollscope_trace::{
    BatchSlot, ClockOffset, Fault, Finish, FinishKind, Join, Leg, LegRole, Nanos, Outcome, Profile, Reading,
    Report, RequestId, StepNumber, UnixNs, WorkerRef,
};
use serde::{Deserialize, Serialize};

use crate::log::mirror::{AttrMirror, MeasureNames, boxed, is_default};
use crate::texts::SharedTexts;

/// A name of a closed set that is not known here.
pub(super) struct UnknownName;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ProfileMirror<'a> {
    /// High and low half.
    id: (u64, u64),
    step: u64,
    #[serde(borrow, skip_serializing_if = "is_default")]
    group: Option<&'a str>,
    #[serde(borrow, skip_serializing_if = "is_default")]
    sample: Option<&'a str>,
    #[serde(skip_serializing_if = "is_default")]
    attempt: u32,
    #[serde(borrow, skip_serializing_if = "is_default")]
    traceparent: Option<&'a str>,
    #[serde(borrow, skip_serializing_if = "is_default")]
    session: Option<&'a str>,
    #[serde(borrow, skip_serializing_if = "is_default")]
    rid: Option<&'a str>,
    endpoint: &'a str,
    #[serde(skip_serializing_if = "is_default")]
    stream: bool,
    /// Index and size.
    #[serde(skip_serializing_if = "is_default")]
    batch: Option<(u32, u32)>,
    arrival_ns: i64,
    #[serde(skip_serializing_if = "is_default")]
    first_byte_ns: Option<u64>,
    end_ns: u64,
    #[serde(skip_serializing_if = "is_default")]
    status: Option<u16>,
    outcome: &'a str,
    #[serde(borrow, skip_serializing_if = "is_default")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "is_default")]
    decision: &'a str,
    #[serde(skip_serializing_if = "is_default")]
    retries: u32,
    #[serde(borrow, skip_serializing_if = "is_default")]
    legs: Vec<LegMirror<'a>>,
    #[serde(borrow, skip_serializing_if = "is_default")]
    attrs: Vec<(&'a str, AttrMirror<'a>)>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct LegMirror<'a> {
    role: &'a str,
    url: &'a str,
    instance: &'a str,
    dispatch_ns: u64,
    #[serde(skip_serializing_if = "is_default")]
    first_byte_ns: Option<u64>,
    end_ns: u64,
    #[serde(skip_serializing_if = "is_default")]
    status: Option<u16>,
    outcome: &'a str,
    #[serde(borrow, skip_serializing_if = "is_default")]
    error: Option<&'a str>,
    /// The worker's clock offset and its bound.
    #[serde(skip_serializing_if = "is_default")]
    clock_ns: Option<(i64, u64)>,
    /// Number of the measure and value.
    #[serde(skip_serializing_if = "is_default")]
    readings: Vec<(u16, f64)>,
    /// Number of the measure and what is wrong with its reading.
    #[serde(borrow, skip_serializing_if = "is_default")]
    faults: Vec<(u16, &'a str)>,
    #[serde(borrow, skip_serializing_if = "is_default")]
    finish: Option<&'a str>,
    #[serde(borrow, skip_serializing_if = "is_default")]
    finish_message: Option<&'a str>,
    #[serde(skip_serializing_if = "is_default")]
    finish_status: Option<u16>,
    #[serde(borrow, skip_serializing_if = "is_default")]
    weight_version: Option<&'a str>,
    #[serde(borrow, skip_serializing_if = "is_default")]
    worker_request_id: Option<&'a str>,
}

// === impl ProfileMirror ===

impl<'a> ProfileMirror<'a> {
    /// Nothing for a profile without a step.
    pub(super) fn of(profile: &'a Profile) -> Option<Self> {
        let join = &profile.join;
        Some(Self {
            id: ((profile.id.0 >> 64) as u64, profile.id.0 as u64),
            step: join.step?.0,
            group: join.group.as_deref(),
            sample: join.sample.as_deref(),
            attempt: join.attempt,
            traceparent: join.traceparent.as_deref(),
            session: join.session.as_deref(),
            rid: join.rid.as_deref(),
            endpoint: &profile.endpoint,
            stream: profile.stream,
            batch: profile.batch.map(|slot| (slot.index, slot.size)),
            arrival_ns: profile.arrival.0,
            first_byte_ns: profile.first_byte.map(|at| at.0),
            end_ns: profile.end.0,
            status: profile.status,
            outcome: profile.outcome.name(),
            error: profile.error.as_deref(),
            decision: &profile.decision,
            retries: profile.retries,
            legs: profile.legs.iter().map(LegMirror::of).collect(),
            attrs: profile.attrs.iter().map(|(name, value)| (&**name, AttrMirror::of(value))).collect(),
        })
    }

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

impl<'a> LegMirror<'a> {
    fn of(leg: &'a Leg) -> Self {
        let report = &leg.report;
        let finish = report.finish.as_ref();
        let faults = report.measures.iter().filter_map(|(m, r)| Some((m as u16, r.fault?.name())));
        Self {
            role: leg.role.name(),
            url: &leg.worker.url,
            instance: &leg.worker.instance,
            dispatch_ns: leg.dispatch.0,
            first_byte_ns: leg.first_byte.map(|at| at.0),
            end_ns: leg.end.0,
            status: leg.status,
            outcome: leg.outcome.name(),
            error: leg.error.as_deref(),
            clock_ns: leg.clock.map(|clock| (clock.offset_ns, clock.bound.0)),
            readings: report.measures.iter().map(|(m, r)| (m as u16, r.value)).collect(),
            faults: faults.collect(),
            finish: finish.map(|finish| finish.kind.name()),
            finish_message: finish.and_then(|finish| finish.message.as_deref()),
            finish_status: finish.and_then(|finish| finish.status_code),
            weight_version: report.weight_version.as_deref(),
            worker_request_id: report.worker_request_id.as_deref(),
        }
    }

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
