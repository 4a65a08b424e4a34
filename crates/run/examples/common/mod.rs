//! A request as large as real ones are.

use rollscope_trace::{
    Finish, FinishKind, Join, Leg, LegRole, Measure, Nanos, Profile, Reading, Report, RequestId, StepNumber,
    UnixNs, WorkerRef,
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
            first_byte: Some(Nanos(91_000_000)),
            report: Report {
                measures: Measure::all().filter(own).map(seconds).collect(),
                finish: Some(Finish { kind: FinishKind::Stop, message: None, status_code: None }),
                weight_version: Some("default".into()),
                worker_request_id: Some("4b0c9a3c5a7f4c53a9a6d6f1a8e2b7c1".into()),
            },
            ..Leg::new(
                role,
                WorkerRef {
                    url: format!("http://{}-0:30000", role.name()).into(),
                    instance: "w-0001".into(),
                },
                Nanos(180_000),
                Nanos(1_200_000_000),
            )
        }
    };
    Profile {
        join: Join {
            step: Some(StepNumber(1)),
            group: Some("prompt-17".into()),
            sample: Some("sample-3".into()),
            ..Join::default()
        },
        first_byte: Some(Nanos(91_200_000)),
        decision: "power_of_two of 4 prefill, power_of_two of 4 decode".into(),
        legs: vec![leg(LegRole::Prefill), leg(LegRole::Decode)],
        ..Profile::new(RequestId(0), UnixNs(0), Nanos(1_200_100_000))
    }
}
