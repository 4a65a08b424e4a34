//! Tiles that are made of a step's rows, and what of them can be seen.

use std::collections::HashSet;

use proptest::prelude::*;
use rollscope_trace::{
    Join, Leg, LegRole, Nanos, Profile, Record, Report, RequestId, SampleKey, Scalar, StepNumber, StepTrace,
    UnixNs, UserSpan, WorkerRef,
};

use super::*;
use crate::columns::tests::read;
use crate::step::StepView;
use crate::tile;

pub(crate) const STEP: StepNumber = StepNumber(4);

/// A request of a pair: its sample, begin, length, and the share of it that its prefill takes; one without a share has failed.
pub(crate) type Request = (u8, u32, u32, u8);
/// A span of a sample: its begin and length, or an instant; one without a length has not ended.
pub(crate) type Own = (u8, u32, Option<u32>);

pub(crate) fn step(requests: &[Request], spans: &[Own]) -> StepView {
    let leg = |role: LegRole, number: u8, (from, to): (u64, u64), stage: &'static str| {
        let outcome = if from == to { Outcome::Failed } else { Outcome::Completed };
        let url = format!("http://{}-{number}:1", role.name());
        let worker = WorkerRef { url: url.into(), instance: "w".into() };
        let report = Report::from_pairs([(stage, Scalar::Number((to - from) as f64 / 1e9))]);
        Leg { report, outcome, ..Leg::new(role, worker, Nanos(from), Nanos(to)) }
    };
    let requests = requests.iter().zip(0..).map(|((sample, start, length, share), id)| {
        let (length, share) = (u64::from(*length), u64::from(*share));
        let first = length * share / 255;
        let legs = vec![
            leg(LegRole::Prefill, sample % 3, (0, first), "pd_prefill_forward_duration"),
            leg(LegRole::Decode, sample % 2, (first, length), "pd_decode_forward_duration"),
        ];
        let sample = Some(sample.to_string().into());
        let join = Join { step: Some(STEP), sample, ..Join::default() };
        let profile = Profile::new(RequestId(id), UnixNs(i64::from(*start)), Nanos(length));
        Record::Profile(Box::new(Profile { join, legs, ..profile }))
    });
    let spans = spans.iter().map(|(sample, start, length)| {
        let key = SampleKey { step: STEP, group: None, sample: sample.to_string().into() };
        let end = length.map(|length| UnixNs(i64::from(start.saturating_add(length))));
        let start = UnixNs(i64::from(*start));
        Record::Span(UserSpan { key, attempt: 0, name: "tool".into(), start, end, attrs: vec![] })
    });
    StepView::new(StepTrace::gather(STEP, requests.chain(spans).collect::<Vec<_>>()))
}

/// Some of them instants, and some that have not ended.
pub(crate) fn owns() -> impl Strategy<Value = Vec<Own>> {
    let length =
        prop_oneof![Just(None), Just(Some(0)), (1_u32..90).prop_map(Some), (1_u32..90).prop_map(Some)];
    prop::collection::vec((0_u8..5, 0_u32..5000, length), 0..60)
}

/// A span as it is drawn.
#[derive(Clone, Debug, PartialEq)]
struct Drawn {
    run: [i64; 4],
    start: f64,
    end: f64,
    /// Its name and where its details are, by which it is known.
    what: [i64; 5],
    parent: Option<[i64; 5]>,
    is_mark: bool,
}

/// What is seen in a window: of all spans of a run that end in one cell the first, and the first mark.
fn expected(all: &[Drawn], window: Window) -> Vec<Drawn> {
    let mut cell = 1.0;
    while cell * 2.0 <= window.pixel {
        cell *= 2.0;
    }
    let mut taken = HashSet::new();
    let mut is_seen = |span: &Drawn| {
        let at = (span.end / cell).floor() as i64;
        let is_first = taken.insert((span.run, at, false));
        let is_first_mark = span.is_mark && taken.insert((span.run, at, true));
        window.pixel < 1.0 || is_first || is_first_mark
    };
    let seen = all.iter().filter(|span| is_seen(span));
    seen.filter(|span| span.end >= window.from - window.pixel && span.start <= window.to).cloned().collect()
}

fn drawn(tile: &[u8]) -> Vec<Drawn> {
    let (_, columns) = read(tile);
    let of = |name: &str, at: usize| columns[name][at] as i64;
    let what = |at: usize| ["name", "sample", "part", "span", "worker"].map(|name| of(name, at));
    let first = &columns["run_first"];
    let mut drawn = Vec::new();
    for run in 0..first.len() - 1 {
        let spans = first[run] as usize..first[run + 1] as usize;
        drawn.extend(spans.map(|at| {
            let (start, end) = (columns["start_ns"][at], columns["end_ns"][at]);
            let is_instant = of("run_kind", run) == Kind::User as i64 && end <= start;
            Drawn {
                is_mark: is_instant || of("outcome", at) != 0 || of("flags", at) != 0,
                run: ["run_row", "run_kind", "run_lane", "run_track"].map(|name| of(name, run)),
                start,
                end: if end.is_nan() { f64::INFINITY } else { end },
                what: what(at),
                parent: usize::try_from(of("parent", at)).ok().map(what),
            }
        }));
    }
    assert_eq!(drawn.len(), columns["start_ns"].len(), "every span is of a run");
    drawn
}

proptest! {
    /// What is sent is what counting over all spans of the rows gives.
    #[test]
    fn what_is_seen_of_a_tile_is_what_its_rows_have(
        requests in prop::collection::vec((0_u8..5, 0_u32..5000, 1_u32..900, any::<u8>()), 0..60),
        spans in owns(),
        (from, length, pixel) in (-100.0..6000.0, 0.0..6000.0, 0.0..300.0),
    ) {
        let step = step(&requests, &spans);
        let window = Window { from, to: from + length, pixel };
        let tiles = [tile::of_samples(&step, 0).unwrap(), tile::of_worker(&step, 0).unwrap()];
        for whole in tiles.into_iter().flatten() {
            let sent = reduced(Table::of(&whole).unwrap(), window).unwrap();
            let all = drawn(&whole);
            let mut expected = expected(&all, window);
            // What is left out has no pixel of its own, and what it says is said on its pixel.
            for span in all.iter().filter(|span| span.end >= from && span.start <= window.to) {
                let stands_for = |seen: &Drawn| {
                    seen.run == span.run
                        && (seen.is_mark || !span.is_mark)
                        && (seen.what == span.what || (seen.end <= span.start && span.end < seen.end + pixel))
                };
                prop_assert!(expected.iter().any(stands_for), "{:?}", span);
            }
            // Of a parent that is left out nothing is told.
            let sent_too: Vec<_> = expected.iter().map(|span| span.what).collect();
            for span in &mut expected {
                span.parent = span.parent.filter(|of| sent_too.contains(of));
            }
            prop_assert_eq!(&read(&sent).0["left_out"], all.len() - expected.len());
            prop_assert_eq!(drawn(&sent), expected);
        }
    }
}

#[test]
fn what_is_no_tile_is_not_reduced() {
    let whole =
        tile::of_samples(&step(&[(1, 0, 500, 9), (2, 90, 500, 9)], &[(1, 5, Some(5))]), 0).unwrap().unwrap();
    let changed = |name: &str, change: &dyn Fn(Column) -> Column| {
        let table: Table<'_, Meta> = Table::of(&whole).unwrap();
        let mut columns = Columns::default();
        for of in table.names() {
            let column = table.column(of).unwrap();
            columns.put(of, &if of == name { change(column) } else { column });
        }
        columns.into_bytes(&table.into_meta()).unwrap()
    };
    let is_reduced = |tile: &[u8]| {
        let window = Window { from: f64::NEG_INFINITY, to: f64::INFINITY, pixel: 0.0 };
        reduced(Table::of(tile).unwrap(), window).is_some()
    };
    assert!(is_reduced(&changed("parent", &|column| column)));
    let table: Table<'_, Meta> = Table::of(&whole).unwrap();
    let (spans, runs) = (table.entries("start_ns").unwrap() as u32, table.entries("run_row").unwrap());
    let again_and_again =
        |_| Column::U32((0..=runs).map(|run| if run % 2 == 0 { 0 } else { spans }).collect());
    assert!(!is_reduced(&changed("run_first", &again_and_again)), "runs that begin before those before them");
    let beyond = |_| Column::U32((0..=runs).map(|run| if run < runs { 0 } else { spans + 1 }).collect());
    assert!(!is_reduced(&changed("run_first", &beyond)), "spans that are not there");
    for name in table.names().filter(|name| !name.starts_with("transfer_")) {
        let short = |_| Table::gathered(&[&table], name, [(0, 0)].into_iter()).unwrap();
        assert!(!is_reduced(&changed(name, &short)), "one entry of {name}");
    }
}
