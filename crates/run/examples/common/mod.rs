//! A request as large as real ones are.

use rollscope_trace::{
    Finish, FinishKind, Join, Leg, LegRole, Measure, Nanos, Outcome, Profile, Reading, Report, RequestId,
    StepNumber, UnixNs, WorkerRef,
};

/// A request of a prefill/decode pair with all its stages.
pub(crate) fn profile() -> Profile {
    let seconds =
        |name: Measure| (name, Reading { value: 0.001 + name as usize as f64 / 977.0, fault: None });
    let leg = |role: LegRole| {
        let prefix = format!("pd_{}", role.name());
        let own =
            |measure: &Measure| !measure.name().starts_with("pd_") || measure.name().starts_with(&prefix);
        Leg {
            role,
            worker: WorkerRef {
                url: format!("http://{}-0:30000", role.name()).into(),
                instance: "w-0001".into(),
            },
            dispatch: Nanos(180_000),
            first_byte: Some(Nanos(91_000_000)),
            end: Nanos(1_200_000_000),
            status: Some(200),
            outcome: Outcome::Completed,
            error: None,
            clock: None,
            report: Report {
                measures: Measure::all().filter(own).map(seconds).collect(),
                finish: Some(Finish { kind: FinishKind::Stop, message: None, status_code: None }),
                weight_version: Some("default".into()),
                worker_request_id: Some("4b0c9a3c5a7f4c53a9a6d6f1a8e2b7c1".into()),
            },
        }
    };
    Profile {
        id: RequestId(0),
        join: Join {
            step: Some(StepNumber(1)),
            group: Some("prompt-17".into()),
            sample: Some("sample-3".into()),
            ..Join::default()
        },
        endpoint: "/generate".into(),
        stream: false,
        batch: None,
        arrival: UnixNs(0),
        first_byte: Some(Nanos(91_200_000)),
        end: Nanos(1_200_100_000),
        status: Some(200),
        outcome: Outcome::Completed,
        error: None,
        decision: "power_of_two of 4 prefill, power_of_two of 4 decode".into(),
        retries: 0,
        legs: vec![leg(LegRole::Prefill), leg(LegRole::Decode)],
        attrs: Vec::new(),
    }
}
