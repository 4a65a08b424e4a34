//! Makers of runs and records.

use proptest::prelude::*;
use rollscope_run::{LogOptions, LogWriter, Run, RunInfo};
use rollscope_trace::{
    Attr, BatchSlot, ClockOffset, CloseReason, DropCount, Fault, Finish, FinishKind, ForwardPass, Join,
    LeftOut, Leg, LegRole, MarkValue, Measure, Measures, Nanos, Outcome, PassLoad, PrefixCounts, Profile,
    Reading, Record, Report, RequestId, SampleKey, SampleMark, SpecCounts, StepClose, StepNumber, UnixNs,
    UserSpan, WorkerRef,
};

/// A new run in a folder of its own.
pub(crate) fn run() -> (tempfile::TempDir, Run) {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::create(&dir.path().join("run"), &info()).unwrap();
    (dir, run)
}

pub(crate) fn info() -> RunInfo {
    RunInfo {
        producer: "rollscope test".to_owned(),
        created: UnixNs(1_700_000_000_000_000_000),
        config: serde_json::json!({"port": 30_000}),
    }
}

/// A writer with small segments, so that rotation is part of every test.
pub(crate) fn writer(run: &Run, name: &str) -> LogWriter {
    run.writer(name, LogOptions { segment_bytes: 4096, buffer_bytes: 1000, keep_bytes: 1 << 20 }).unwrap()
}

/// Appends records and hands them to the operating system.
pub(crate) fn append(writer: &mut LogWriter, records: &[Record]) {
    for record in records {
        writer.append(record).unwrap();
    }
    writer.flush().unwrap();
}

/// A plain request with a prefill and a decode leg.
pub(crate) fn profile(step: u64, number: u64) -> Profile {
    let leg = |role, readings: &[(Measure, f64)]| Leg {
        first_byte: Some(Nanos(5_000_000)),
        clock: Some(ClockOffset { offset_ns: -1_500, bound: Nanos(250) }),
        report: Report {
            measures: readings
                .iter()
                .map(|(m, value)| (*m, Reading { value: *value, fault: None }))
                .collect(),
            finish: Some(Finish { kind: FinishKind::Stop, message: None, status_code: None }),
            weight_version: Some("v1".into()),
            worker_request_id: Some(format!("r{number}").into()),
        },
        ..Leg::new(
            role,
            WorkerRef { url: format!("http://{}", role_host(role)).into(), instance: "w1".into() },
            Nanos(1_000),
            Nanos(9_000_000),
        )
    };
    Profile {
        join: Join {
            step: Some(StepNumber(step)),
            group: Some(format!("g{}", number / 4).into()),
            sample: Some(format!("s{number}").into()),
            ..Join::default()
        },
        first_byte: Some(Nanos(5_100_000)),
        decision: "random".into(),
        legs: vec![
            leg(LegRole::Prefill, &[(Measure::PrefillForward, 0.002), (Measure::PromptTokens, 28.0)]),
            leg(LegRole::Decode, &[(Measure::DecodeForward, 0.004), (Measure::CompletionTokens, 12.0)]),
        ],
        ..Profile::new(
            RequestId(u128::from(step) << 64 | u128::from(number)),
            UnixNs(1_700_000_000_000_000_000 + number as i64 * 1_000_000),
            Nanos(9_100_000),
        )
    }
}

fn role_host(role: LegRole) -> &'static str {
    if role == LegRole::Prefill { "10.0.0.1:30000" } else { "10.0.0.2:30000" }
}

pub(crate) fn profile_record(step: u64, number: u64) -> Record {
    Record::Profile(Box::new(profile(step, number)))
}

pub(crate) fn span_record(step: u64, number: u64) -> Record {
    let sample = format!("sample-{number}").into();
    Record::Span(UserSpan {
        key: SampleKey { step: StepNumber(step), group: None, sample },
        attempt: 0,
        name: "reward".into(),
        start: UnixNs(number as i64),
        end: Some(UnixNs(number as i64 + 5)),
        attrs: Vec::new(),
    })
}

pub(crate) fn close_record(step: u64) -> Record {
    Record::Close(StepClose {
        step: StepNumber(step),
        at: UnixNs(1_700_000_100_000_000_000),
        reason: CloseReason::Told,
        rollout_time: Some(Nanos(3_000_000_000)),
        gpus: Some(8),
    })
}

/// What a record is, exactly: two records are the same when this is, NaN and all.
pub(crate) fn exact(record: &Record) -> String {
    format!("{record:?}")
}

pub(crate) fn exact_all(records: &[Record]) -> Vec<String> {
    records.iter().map(exact).collect()
}

// === anything at all ===

fn text() -> impl Strategy<Value = Box<str>> {
    prop_oneof![Just(String::new()), "[a-z]{1,6}", ".{1,12}"].prop_map(Into::into)
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        Just(f64::NAN),
        Just(f64::NEG_INFINITY),
        Just(0.0),
        Just(-0.0),
        Just(0.1 + 0.2),
        (0u32..1000).prop_map(f64::from),
    ]
}

fn nanos() -> impl Strategy<Value = Nanos> {
    prop_oneof![0..10_000_000_000u64, any::<u64>()].prop_map(Nanos)
}

fn unix() -> impl Strategy<Value = UnixNs> {
    prop_oneof![any::<i64>(), 1_700_000_000_000_000_000..1_700_000_100_000_000_000i64].prop_map(UnixNs)
}

fn one_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    prop::sample::select(all)
}

fn measures() -> impl Strategy<Value = Measures> {
    let all: Vec<Measure> = Measure::all().collect();
    let reading =
        (number(), prop::option::of(one_of(&Fault::ALL))).prop_map(|(value, fault)| Reading { value, fault });
    prop::collection::vec((prop::sample::select(all), reading), 0..30).prop_map(Measures::from_iter)
}

fn report() -> BoxedStrategy<Report> {
    let finish = (text(), prop::option::of(text()), prop::option::of(any::<u16>()));
    let finish = prop_oneof![
        finish,
        (Just("abort".into()), Just(Some("gone".into())), Just(Some(500))),
        (Just("length".into()), Just(None), Just(None)),
    ]
    .prop_map(|(kind, message, status_code)| {
        let kind: Box<str> = kind;
        Finish { kind: FinishKind::from_name(&kind), message, status_code }
    });
    (measures(), prop::option::of(finish), prop::option::of(text()), prop::option::of(text()))
        .prop_map(|(measures, finish, weight_version, worker_request_id)| Report {
            measures,
            finish,
            weight_version,
            worker_request_id,
        })
        .boxed()
}

fn leg() -> BoxedStrategy<Leg> {
    let call = (nanos(), prop::option::of(nanos()), nanos(), prop::option::of(any::<u16>()));
    let ending = (one_of(&Outcome::ALL), prop::option::of(text()));
    let clock = (any::<i64>(), nanos()).prop_map(|(offset_ns, bound)| ClockOffset { offset_ns, bound });
    let said = (prop::option::of(clock), report());
    (one_of(&LegRole::ALL), (text(), text()), call, ending, said)
        .prop_map(
            |(
                role,
                (url, instance),
                (dispatch, first_byte, end, status),
                (outcome, error),
                (clock, report),
            )| {
                Leg {
                    role,
                    worker: WorkerRef { url: url.into(), instance: instance.into() },
                    dispatch,
                    first_byte,
                    end,
                    status,
                    outcome,
                    error,
                    clock,
                    report,
                }
            },
        )
        .boxed()
}

fn join(step: u64) -> impl Strategy<Value = Join> {
    let optional = || prop::option::of(text());
    (optional(), optional(), any::<u32>(), optional(), optional(), optional()).prop_map(
        move |(group, sample, attempt, traceparent, session, rid)| Join {
            step: Some(StepNumber(step)),
            group,
            sample,
            attempt,
            traceparent,
            session,
            rid,
        },
    )
}

fn any_profile(step: u64) -> impl Strategy<Value = Profile> {
    let batch =
        prop::option::of((any::<u32>(), any::<u32>()).prop_map(|(index, size)| BatchSlot { index, size }));
    let call = (text(), any::<bool>(), batch, unix());
    let times = (prop::option::of(nanos()), nanos(), prop::option::of(any::<u16>()));
    let ending = (one_of(&Outcome::ALL), prop::option::of(text()), text(), any::<u32>());
    let legs = prop::collection::vec(leg(), 0..5);
    (any::<u128>(), join(step), call, times, ending, (legs, attrs())).prop_map(
        |(id, join, (endpoint, stream, batch, arrival), (first_byte, end, status), ending, more)| {
            let (outcome, error, decision, retries) = ending;
            let (legs, attrs) = more;
            Profile {
                id: RequestId(id),
                join,
                endpoint,
                stream,
                batch,
                arrival,
                first_byte,
                end,
                status,
                outcome,
                error,
                decision,
                retries,
                legs,
                attrs,
            }
        },
    )
}

fn key(step: u64) -> impl Strategy<Value = SampleKey> {
    (prop::option::of(text()), text()).prop_map(move |(group, sample)| SampleKey {
        step: StepNumber(step),
        group,
        sample,
    })
}

fn attrs() -> impl Strategy<Value = Vec<(Box<str>, Attr)>> {
    let attr = prop_oneof![
        any::<bool>().prop_map(Attr::Bool),
        any::<i64>().prop_map(Attr::Int),
        number().prop_map(Attr::Float),
        text().prop_map(Attr::Text),
    ];
    prop::collection::vec((text(), attr), 0..4)
}

fn any_span(step: u64) -> impl Strategy<Value = UserSpan> {
    (key(step), any::<u32>(), text(), unix(), prop::option::of(unix()), attrs()).prop_map(
        |(key, attempt, name, start, end, attrs)| UserSpan { key, attempt, name, start, end, attrs },
    )
}

fn any_mark(step: u64) -> impl Strategy<Value = SampleMark> {
    let (reward, truth) = (prop::option::of(number()), || prop::option::of(any::<bool>()));
    let (count, name) = (|| prop::option::of(any::<u64>()), || prop::option::of(text()));
    let told = (reward, truth(), truth(), any::<bool>(), count(), count());
    let spec = prop::option::of(any::<[u64; 4]>().prop_map(|[accepted, drafted, verified, generated]| {
        Box::new(SpecCounts { accepted, drafted, verified, generated })
    }));
    let prefix = prop::option::of(
        any::<[u64; 2]>().prop_map(|[prompt, cached]| Box::new(PrefixCounts { prompt, cached })),
    );
    let value = prop::option::of(prop::sample::select(&MarkValue::ALL[..]));
    let left_out = (value, prop::sample::select(&Fault::ALL[..]));
    let left_out = left_out.prop_map(|(value, fault)| LeftOut { value, fault });
    let left_out = prop::collection::vec(left_out, 0..3);
    let more = (spec, prefix, left_out, name());
    (key(step), told, count(), count(), name(), name(), more).prop_map(
        |(key, told, non_generation_ns, top_p_kept, category, dataset, (spec, prefix, left_out, carrier))| {
            let (reward, truncated, repetition, evaluation, response_tokens, effective_response_tokens) =
                told;
            SampleMark {
                key,
                reward,
                truncated,
                response_tokens,
                effective_response_tokens,
                non_generation_time: non_generation_ns.map(Nanos),
                repetition,
                category,
                top_p_kept,
                spec,
                prefix,
                left_out: left_out.into(),
                carrier,
                dataset,
                evaluation,
            }
        },
    )
}

fn any_load() -> impl Strategy<Value = PassLoad> {
    (any::<[u64; 5]>(), number(), number()).prop_map(
        |(counts, prefill_length_variance, decode_kv_variance)| PassLoad {
            prefill_requests: counts[0],
            prefill_tokens: counts[1],
            prefill_length_variance,
            prefill_kv_tokens: counts[2],
            decode_requests: counts[3],
            decode_kv_tokens: counts[4],
            decode_kv_variance,
        },
    )
}

pub(crate) fn any_pass(step: u64) -> impl Strategy<Value = ForwardPass> {
    let worker = prop::option::of((text(), text()));
    let whose = (text(), worker, text(), any::<u32>(), any::<u32>());
    let numbers = (any::<u64>(), any::<u64>(), unix(), nanos(), nanos());
    (whose, numbers, any_load(), any_load()).prop_map(move |(whose, numbers, scheduled, queued)| {
        let (endpoint, worker, worker_id, dp_rank, life) = whose;
        let (counter_id, lost_before, received, uncertainty, wall) = numbers;
        ForwardPass {
            step: Some(StepNumber(step)),
            endpoint,
            worker: worker.map(|(url, instance)| WorkerRef { url: url.into(), instance: instance.into() }),
            worker_id,
            dp_rank,
            life,
            counter_id,
            lost_before,
            received,
            uncertainty,
            wall,
            scheduled,
            queued,
        }
    })
}

/// Any record of a step that its own parts hold.
///
/// Boxed, as is what it is of: strategies are large, and lie on the stack.
pub(crate) fn any_step_record(step: u64) -> impl Strategy<Value = Record> {
    prop_oneof![
        3 => any_profile(step).prop_map(|profile| Record::Profile(Box::new(profile))).boxed(),
        1 => any_span(step).prop_map(Record::Span),
        1 => any_mark(step).prop_map(Record::Sample),
        1 => any_pass(step).prop_map(|pass| Record::ForwardPass(Box::new(pass))).boxed(),
    ]
}

/// Any record.
pub(crate) fn any_record() -> impl Strategy<Value = Record> {
    let close =
        (unix(), one_of(&CloseReason::ALL), prop::option::of(nanos()), prop::option::of(any::<u32>()))
            .prop_map(|(at, reason, rollout_time, gpus)| {
                Record::Close(StepClose { step: StepNumber(1), at, reason, rollout_time, gpus })
            });
    let dropped = (unix(), any::<u64>(), any::<u64>())
        .prop_map(|(at, profiles, user_records)| Record::Dropped(DropCount { at, profiles, user_records }));
    prop_oneof![4 => any_step_record(1).boxed(), 2 => any_step_record(u64::MAX).boxed(), 1 => close, 1 => dropped]
}
