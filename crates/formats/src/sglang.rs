//! SGLang's export of its requests (`--export-metrics-to-file`): a line for each, with the request's parameters as a
//! text of JSON in `request_parameters` and the members of the reply's `meta_info` beside it.
//!
//! A request's id here follows from its own and from when it came, so that files which overlap tell of each once.
//!
//! Each worker writes such a file of its own, so of a prefill/decode pair each side is a request here. A line says
//! nothing of a sample, so that each request is its own.

use std::collections::HashMap;

use rollscope_trace::{
    FinishKind, Join, Leg, LegRole, Measure, Nanos, Outcome, Profile, Record, Report, RequestId, Scalar,
    StepNumber, UnixNs, WorkerRef,
};
use serde_json::Value as Json;

use crate::hash::fnv;

/// Makes requests of lines; tells the steps by the versions of the weights, in order of their appearance.
#[derive(Debug)]
pub(crate) struct Requests {
    step: Option<StepNumber>,
    versions: Vec<Box<str>>,
    /// Requests of one id that came at one time to one side of a pair.
    alike: HashMap<u128, u64>,
}

/// A request without a time.
#[derive(Debug, thiserror::Error)]
#[error(
    "the request has neither `request_received_ts` nor `request_finished_ts`, which a server started with \
     --enable-metrics writes"
)]
pub(crate) struct NoTime;

// === impl Requests ===

impl Requests {
    /// All of them in one step, where one is given.
    pub(crate) fn new(step: Option<StepNumber>) -> Self {
        Self { step, versions: Vec::new(), alike: HashMap::new() }
    }

    /// The request of a line; nothing when the line tells of none. One that was at no time is refused: it would be
    /// drawn in 1970, and make its step last for half a century.
    pub(crate) fn record(&mut self, line: &Json) -> Option<Result<Record, NoTime>> {
        let parameters = line.get("request_parameters")?.as_str()?;
        let parameters: Json = serde_json::from_str(parameters).unwrap_or_default();
        let mut report = Report::from_pairs(pairs(line));
        let measures = &report.measures;
        let stamp = |measure| measures.stamp(measure);
        let latency = measures.duration(Measure::E2eLatency);
        let received = stamp(Measure::RequestReceivedTs);
        let finished = stamp(Measure::RequestFinishedTs);
        let begun = || Some(finished?.offset_by(-i64::try_from(latency.unwrap_or_default().0).ok()?));
        let Some(arrival) = received.or_else(begun) else {
            return Some(Err(NoTime));
        };
        let length = latency.or_else(|| Some(finished?.since(arrival))).unwrap_or_default();
        report.bound_by(length);
        let step = self.step(report.weight_version.as_deref());
        let profile = self.profile(&parameters, report, (arrival, length), step);
        Some(Ok(Record::Profile(Box::new(profile))))
    }

    fn step(&mut self, version: Option<&str>) -> StepNumber {
        if let Some(step) = self.step {
            return step;
        }
        let version = version.unwrap_or_default();
        let known = self.versions.iter().position(|known| **known == *version);
        StepNumber(known.unwrap_or_else(|| {
            self.versions.push(version.into());
            self.versions.len() - 1
        }) as u64)
    }

    fn profile(
        &mut self,
        parameters: &Json,
        report: Report,
        (arrival, length): (UnixNs, Nanos),
        step: StepNumber,
    ) -> Profile {
        let text = |name: &str| parameters.get(name).and_then(Json::as_str).map(Box::<str>::from);
        let rid = text("rid").or_else(|| report.worker_request_id.clone());
        let aborted = report.finish.as_ref().is_some_and(|finish| finish.kind == FinishKind::Abort);
        let outcome = if aborted { Outcome::Aborted } else { Outcome::Completed };
        let has = |side: &str| report.measures.iter().any(|(measure, _)| measure.name().starts_with(side));
        let role = match (has("pd_prefill_"), has("pd_decode_")) {
            (true, false) => LegRole::Prefill,
            (_, true) => LegRole::Decode,
            (false, false) => LegRole::Regular,
        };
        let name = rid.as_deref().unwrap_or_default();
        let at = arrival.0.to_string();
        let alike = self.alike.entry(fnv(&[name, &at, role.name()])).or_default();
        *alike += 1;
        let id = RequestId(fnv(&[name, &at, role.name(), &alike.to_string()]));
        Profile {
            join: Join { step: Some(step), session: text("routing_key"), rid, ..Join::default() },
            stream: parameters.get("stream").and_then(Json::as_bool).unwrap_or(false),
            status: None,
            outcome,
            error: report.finish.as_ref().and_then(|finish| finish.message.clone()),
            legs: vec![Leg {
                status: None,
                outcome,
                report,
                ..Leg::new(role, WorkerRef { url: "unknown".into(), instance: "".into() }, Nanos(0), length)
            }],
            attrs: vec![("source".into(), "sglang".into())],
            ..Profile::new(id, arrival, length)
        }
    }
}

/// The members of a line as a worker's reply has them.
fn pairs(line: &Json) -> Vec<(&str, Scalar<'_>)> {
    let mut pairs = Vec::new();
    let scalar = |value| match value {
        &Json::Null => Some(Scalar::Null),
        &Json::Bool(value) => Some(Scalar::Bool(value)),
        Json::Number(number) => number.as_f64().map(Scalar::Number),
        Json::String(text) => Some(Scalar::Text(text)),
        Json::Array(_) | Json::Object(_) => None,
    };
    for (name, value) in line.as_object().into_iter().flatten() {
        pairs.extend(scalar(value).map(|scalar| (name.as_str(), scalar)));
        if name == "finish_reason" {
            for (member, name) in [
                ("type", "finish_reason.type"),
                ("message", "finish_reason.message"),
                ("status_code", "finish_reason.status_code"),
            ] {
                pairs.extend(value.get(member).and_then(scalar).map(|scalar| (name, scalar)));
            }
        }
    }
    pairs
}
