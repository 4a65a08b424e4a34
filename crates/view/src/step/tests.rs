//! Answers about made-up steps, read back.

use rollscope_trace::{
    Attr, Join, Leg, LegRole, Profile, Record, Report, RequestId, SampleKey, Scalar, StepNumber, UserSpan,
    WorkerRef,
};
use serde_json::{Value, json};

use super::*;
use crate::columns::tests::read;

const STEP: StepNumber = StepNumber(4);
const BASE_NS: i64 = 1_700_000_000_000_000_000;

fn call(id: u128, (group, sample): (&str, &str), (start_ns, length_ns): (i64, u64)) -> Record {
    let leg = Leg {
        report: Report::from_pairs([("pd_decode_forward_duration", Scalar::Number(length_ns as f64 / 1e9))]),
        ..Leg::new(
            LegRole::Decode,
            WorkerRef { url: "http://127.0.0.1:1".into(), instance: "w".into() },
            Nanos(0),
            Nanos(length_ns),
        )
    };
    Record::Profile(Box::new(Profile {
        join: Join {
            step: Some(STEP),
            group: Some(group.into()),
            sample: Some(sample.into()),
            ..Join::default()
        },
        legs: vec![leg],
        ..Profile::new(RequestId(id), UnixNs(BASE_NS + start_ns), Nanos(length_ns))
    }))
}

fn span((group, sample): (&str, &str), name: &str, start: UnixNs, attrs: Vec<(Box<str>, Attr)>) -> Record {
    let key = SampleKey { step: STEP, group: Some(group.into()), sample: sample.into() };
    Record::Span(UserSpan { key, attempt: 0, name: name.into(), start, end: None, attrs })
}

fn step(records: Vec<Record>) -> StepView {
    StepView::new(StepTrace::gather(STEP, records))
}

type Table = (Value, std::collections::BTreeMap<String, Vec<f64>>);

fn table(step: &StepView, wanted: Wanted) -> Table {
    read(&step.answer(wanted, None).unwrap().unwrap())
}

fn json_of(step: &StepView, wanted: Wanted) -> Value {
    serde_json::from_slice(&step.answer(wanted, None).unwrap().unwrap()).unwrap()
}

/// The entries of a column of texts.
fn texts(list: &Value, column: &[f64]) -> Vec<String> {
    column.iter().map(|index| list[*index as usize].as_str().unwrap().to_owned()).collect()
}

#[test]
fn groups_stand_side_by_side_and_so_do_their_spans() {
    let step = step(vec![
        call(1, ("g1", "a"), (0, 100)),
        call(2, ("g2", "a"), (10, 100)),
        call(3, ("g1", "b"), (20, 500)),
    ]);
    let (meta, columns) = table(&step, Wanted::Table);
    assert_eq!(texts(&meta["strings"], &columns["group"]), ["g1", "g1", "g2"]);
    assert_eq!(texts(&meta["strings"], &columns["name"]), ["a", "b", "a"]);
    assert_eq!(meta["origin_unix_ns"], BASE_NS.to_string());
    assert_eq!(meta["extent_ns"], json!([0.0, 520.0]));
    assert_eq!(columns["decode_forward"], [100e-9, 500e-9, 100e-9]);
    assert!(columns["prefill_forward"].iter().all(|sum| sum.is_nan()), "what nobody reports is missing");
    assert_eq!(columns["tracks_decode"], [1.0; 3]);
    assert_eq!(columns["worker"], [0.0; 3]);

    let (meta, spans) = table(&step, Wanted::SampleTile(0));
    let names = ["sample/sample", "request/request", "decode/sglang_pd_decode", "decode/forward"];
    assert_eq!(texts(&meta["names"], &spans["name"]), names.repeat(3));
    assert_eq!(spans["run_row"], [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
    assert_eq!(spans["run_first"].len(), 13);
    assert_eq!(spans["parent"][4..8], [-1.0, -1.0, 5.0, 6.0]);
    assert_eq!(spans["start_ns"][4..6], [20.0, 20.0]);
    assert_eq!(spans["part"][4..8], [0.0, 1.0, 1.0, 1.0]);
    assert_eq!(step.answer(Wanted::SampleTile(1), None).unwrap(), None);
}

#[test]
fn legs_of_a_worker_stand_on_tracks_and_name_their_samples() {
    let step = step(vec![
        call(1, ("g", "a"), (0, 100)),
        call(2, ("g", "b"), (10, 100)),
        call(3, ("g", "c"), (105, 100)),
    ]);
    let (meta, _) = table(&step, Wanted::Table);
    assert_eq!(meta["workers"][0]["tracks"], json!(2));
    assert_eq!(meta["workers"][0]["legs"], json!(3));
    let (meta, spans) = table(&step, Wanted::WorkerTile(0));
    assert_eq!(spans["run_track"], [0.0, 0.0, 1.0, 1.0]);
    let names = texts(&meta["names"], &spans["name"]);
    assert_eq!(names[..2], ["decode/sglang_pd_decode", "decode/sglang_pd_decode"]);
    assert_eq!(spans["sample"], [0.0, 2.0, 0.0, 2.0, 1.0, 1.0]);
    assert_eq!(step.answer(Wanted::WorkerTile(1), None).unwrap(), None);
}

#[test]
fn a_clock_that_is_off_does_not_widen_what_is_shown() {
    let sample = ("g", "a");
    let near = UnixNs(BASE_NS + 2_000_000_000);
    let step = step(vec![
        call(1, sample, (0, 1_000_000_000)),
        span(sample, "reward", near, vec![]),
        span(sample, "from_1970", UnixNs(5), vec![]),
    ]);
    assert_eq!(table(&step, Wanted::Table).0["extent_ns"], json!([0.0, 2e9]));
    let (meta, spans) = table(&step, Wanted::SampleTile(0));
    let names = texts(&meta["names"], &spans["name"]);
    let at = names.iter().position(|name| name == "user/from_1970").unwrap();
    assert_eq!(spans["start_ns"][at..=at], [(5 - BASE_NS) as f64]);
    assert!(spans["end_ns"][at].is_nan(), "it is open");
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
    let step = step(vec![span(("g", "a"), "x", UnixNs(BASE_NS), attrs)]);
    let details = json_of(&step, Wanted::Sample(0));
    let attrs = details["parts"][0][0]["attrs"].as_array().unwrap();
    let of = |name: &str| attrs.iter().find(|attr| attr[0] == name).unwrap()[1].clone();
    assert_eq!(of("nan"), json!(null));
    assert_eq!(of("big"), "9223372036854775807");
    assert_eq!(of("flag"), json!(true));
    assert_eq!(of("long").as_str().map(str::len), Some(4096));
    assert_eq!(of("</script>"), "<img src=x onerror=alert(1)>");
}

#[test]
fn a_text_is_found_where_it_stands() {
    let step = step(vec![
        call(1, ("g", "a"), (0, 100)),
        call(2, ("g", "b"), (10, 100)),
        span(("g", "b"), "Reward", UnixNs(BASE_NS), vec![("checker".into(), Attr::from("exact"))]),
    ]);
    for (sought, rows, parts) in [
        ("g/b", vec![1], vec![0]),
        ("reward", vec![1], vec![2]),
        ("EXACT", vec![1], vec![2]),
        ("127.0.0.1", vec![0, 1], vec![1, 1]),
        ("nowhere", vec![], vec![]),
        ("", vec![], vec![]),
    ] {
        let found = serde_json::to_value(step.find(sought)).unwrap();
        assert_eq!(
            found,
            json!({"total": rows.len(), "rows": rows, "parts": parts, "left_out": 0}),
            "{sought}"
        );
    }
}

#[test]
fn a_step_without_events_has_an_empty_table() {
    let step = step(vec![]);
    let (meta, columns) = table(&step, Wanted::Table);
    assert_eq!(meta["extent_ns"], json!(null));
    assert!(columns["start_ns"].is_empty());
    assert_eq!(step.answer(Wanted::SampleTile(0), None).unwrap(), None);
    assert_eq!(step.answer(Wanted::Sample(0), None).unwrap(), None);
}

#[test]
fn of_many_spans_those_are_sent_that_can_be_seen() {
    let at = |index: i64| UnixNs(BASE_NS + index * 10);
    let many = (0..70_000).map(|index| {
        let Record::Span(mut span) = span(("g", "a"), "x", at(index), vec![]) else { unreachable!() };
        span.end = Some(at(index + 1));
        Record::Span(span)
    });
    let step = step(many.collect());
    let sent = |window| {
        let bytes = step.answer(Wanted::SampleTile(0), window).unwrap().unwrap();
        let (meta, columns) = read(&bytes);
        (columns["start_ns"].len(), meta["left_out"].as_u64().unwrap())
    };
    // One for each cell of 512 ns that it begins, and the sample itself.
    let coarse = sent(Some(Window { from: 0.0, to: 700_000.0, pixel: 700.0 }));
    assert_eq!(coarse, (1369, 68_632));
    let fine = sent(Some(Window { from: 1000.0, to: 2000.0, pixel: 1.0 }));
    assert_eq!(fine.0, 103, "those that touch the window");
    assert_eq!(sent(None), (70_001, 0));
}
