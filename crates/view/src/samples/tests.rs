//! Tables of made-up steps, read back by their offsets.

use rollscope_trace::{
    Join, Leg, LegRole, Outcome, Profile, Record, Report, RequestId, SampleKey, Scalar, StepNumber, UserSpan,
    WorkerRef,
};
use serde_json::{Value as Json, json};

use super::*;

const STEP: StepNumber = StepNumber(4);
const BASE_NS: i64 = 1_700_000_000_000_000_000;

fn call(id: u128, (group, sample): (&str, &str), (start_ns, length_ns): (i64, u64)) -> Record {
    let leg = Leg {
        role: LegRole::Decode,
        worker: WorkerRef { url: "http://127.0.0.1:1".into(), instance: "w".into() },
        dispatch: Nanos(0),
        first_byte: None,
        end: Nanos(length_ns),
        status: Some(200),
        outcome: Outcome::Completed,
        error: None,
        clock: None,
        report: Report::from_pairs([("pd_decode_forward_duration", Scalar::Number(length_ns as f64 / 1e9))]),
    };
    Record::Profile(Box::new(Profile {
        id: RequestId(id),
        join: Join {
            step: Some(STEP),
            group: Some(group.into()),
            sample: Some(sample.into()),
            ..Join::default()
        },
        endpoint: "/generate".into(),
        stream: false,
        batch: None,
        arrival: UnixNs(BASE_NS + start_ns),
        first_byte: None,
        end: Nanos(length_ns),
        status: Some(200),
        outcome: Outcome::Completed,
        error: None,
        decision: "".into(),
        retries: 0,
        legs: vec![leg],
        attrs: Vec::new(),
    }))
}

fn span((group, sample): (&str, &str), name: &str, start: UnixNs, attrs: Vec<(Box<str>, Attr)>) -> Record {
    let key = SampleKey { step: STEP, group: Some(group.into()), sample: sample.into() };
    Record::Span(UserSpan { key, attempt: 0, name: name.into(), start, end: None, attrs })
}

fn table(records: Vec<Record>) -> Json {
    serde_json::to_value(SampleTable::of(&StepTrace::gather(STEP, records))).unwrap()
}

/// The entries of a column of texts.
fn texts(table: &Json, column: &Json) -> Vec<String> {
    let text = |index: &Json| table["strings"][index.as_u64().unwrap() as usize].as_str().unwrap().to_owned();
    column.as_array().unwrap().iter().map(text).collect()
}

#[test]
fn groups_stand_side_by_side_and_offsets_cut_the_spans() {
    let table = table(vec![
        call(1, ("g1", "a"), (0, 100)),
        call(2, ("g2", "a"), (10, 100)),
        call(3, ("g1", "b"), (20, 500)),
    ]);
    assert_eq!(texts(&table, &table["samples"]["group"]), ["g1", "g1", "g2"]);
    assert_eq!(texts(&table, &table["samples"]["name"]), ["a", "b", "a"]);
    assert_eq!(table["origin_unix_ns"], BASE_NS.to_string());
    assert_eq!(table["extent_ns"], json!([0, 520]));
    let names = ["sample", "request", "sglang_pd_decode", "forward"];
    assert_eq!(texts(&table, &table["spans"]["name"]), names.repeat(3));
    assert_eq!(table["samples"]["first_span"], json!([0, 4, 8, 12]));
    assert_eq!(
        table["spans"]["parent"].as_array().unwrap()[4..8],
        [json!(null), json!(4), json!(5), json!(6)]
    );
    assert_eq!(table["spans"]["start_ns"].as_array().unwrap()[4..6], [json!(20), json!(20)]);
    let first_attr = table["spans"]["first_attr"].as_array().unwrap();
    assert_eq!(first_attr.len(), 13);
    assert_eq!(first_attr[12], table["attrs"]["name"].as_array().unwrap().len());
    assert!(texts(&table, &table["attrs"]["name"]).contains(&"pd_decode_forward_duration".to_owned()));
}

#[test]
fn a_clock_that_is_off_does_not_widen_what_is_shown() {
    let sample = ("g", "a");
    let near = UnixNs(BASE_NS + 2_000_000_000);
    let table = table(vec![
        call(1, sample, (0, 1_000_000_000)),
        span(sample, "reward", near, vec![]),
        span(sample, "from_1970", UnixNs(5), vec![]),
    ]);
    assert_eq!(table["extent_ns"], json!([0, 2_000_000_000]));
    let at = texts(&table, &table["spans"]["name"]).iter().position(|name| name == "from_1970").unwrap();
    assert_eq!(table["spans"]["start_ns"][at], json!(5 - BASE_NS));
    assert_eq!(table["spans"]["end_ns"][at], json!(null));
}

#[test]
fn what_json_cannot_hold_is_sent_so_that_it_can_be_shown() {
    let attrs = vec![
        ("nan".into(), Attr::Float(f64::NAN)),
        ("big".into(), Attr::Int(i64::MAX)),
        ("flag".into(), Attr::Bool(true)),
        ("long".into(), Attr::Text("é".repeat(5000).into())),
        ("</script>".into(), Attr::Text("<img src=x onerror=alert(1)>".into())),
    ];
    let table = table(vec![span(("g", "a"), "x", UnixNs(BASE_NS), attrs)]);
    let names = texts(&table, &table["attrs"]["name"]);
    let of = |name: &str| {
        let at = names.iter().position(|other| other == name).unwrap();
        let text = table["attrs"]["text"][at].as_u64();
        (text.map(|index| table["strings"][index as usize].as_str().unwrap()), &table["attrs"]["value"][at])
    };
    assert_eq!(of("nan"), (None, &json!(null)));
    assert_eq!(of("big"), (Some("9223372036854775807"), &json!(null)));
    assert_eq!(of("flag"), (None, &json!(true)));
    assert_eq!(of("long").0.map(str::len), Some(4096));
    assert_eq!(of("</script>").0, Some("<img src=x onerror=alert(1)>"));
}

#[test]
fn a_step_without_events_has_an_empty_table() {
    let table = table(vec![]);
    assert_eq!(table["extent_ns"], json!(null));
    assert_eq!(table["samples"]["first_span"], json!([0]));
    assert_eq!(table["spans"]["first_attr"], json!([0]));
}
