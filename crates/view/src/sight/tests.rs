//! Tiles that are made of a step's rows, and what of them is kept and can be seen.

use proptest::prelude::*;
use rollscope_run::{GlanceBlocks, Run, RunInfo};
use rollscope_trace::{
    Join, Leg, LegRole, Nanos, Profile, Record, Report, RequestId, SampleKey, Scalar, StepNumber, StepTrace,
    UnixNs, UserSpan, WorkerRef,
};

use super::*;
use crate::columns::tests::read;
use crate::glance::{Found, Glance, Keep, kept, put};
use crate::step::{StepView, Wanted};
use crate::tile;

const STEP: StepNumber = StepNumber(4);

/// A request of a pair: its sample, begin, length, and the share of it that its prefill takes.
type Request = (u8, u32, u32, u8);
/// A span of a sample: its begin and length, or an instant; one without a length has not ended.
type Own = (u8, u32, Option<u32>);

fn step(requests: &[Request], spans: &[Own]) -> StepView {
    let leg = |role: LegRole, number: u8, (from, to): (u64, u64), stage: &'static str| {
        let url = format!("http://{}-{number}:1", role.name());
        let worker = WorkerRef { url: url.into(), instance: "w".into() };
        let report = Report::from_pairs([(stage, Scalar::Number((to - from) as f64 / 1e9))]);
        Leg { report, ..Leg::new(role, worker, Nanos(from), Nanos(to)) }
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
fn owns() -> impl Strategy<Value = Vec<Own>> {
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
}

impl Drawn {
    fn is_instant(&self) -> bool {
        let [_, kind, ..] = self.run;
        kind == Kind::User as i64 && self.end <= self.start
    }

    /// Whether one that follows is not drawn.
    fn hides(&self, next: &Self, pixel: f64) -> bool {
        let is_mark_on_span = next.is_instant() && !self.is_instant();
        self.run == next.run && next.end < self.end + pixel && !is_mark_on_span
    }
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
            Drawn {
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
            let mut expected: Vec<Drawn> = Vec::new();
            for span in &all {
                let is_hidden = expected.last().is_some_and(|before| before.hides(span, pixel));
                if !is_hidden && span.end >= window.from && span.start <= window.to {
                    expected.push(span.clone());
                }
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

proptest! {
    // Each case writes files.
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// A step that was kept answers as one that is read.
    #[test]
    fn a_kept_tile_is_answered_as_its_step_would(
        requests in prop::collection::vec((0_u8..250, 0_u32..5000, 1_u32..900, any::<u8>()), 1..300),
    ) {
        let step = step(&requests, &[]);
        let dir = tempfile::tempdir().unwrap();
        let info = RunInfo { producer: "test".into(), created: UnixNs(0), config: serde_json::Value::Null };
        let run = Run::create(&dir.path().join("run"), &info).unwrap();
        run.put_glance(STEP, run.sealed_state(STEP).unwrap(), kept(&step, Keep::Everything).unwrap()).unwrap();
        let glance = Glance::open(run.glance(STEP).unwrap().unwrap()).unwrap();
        let numbers = (0..4).flat_map(|n| [Wanted::SampleTile(n), Wanted::WorkerTile(n), Wanted::Sample(n * 60)]);
        for wanted in numbers.chain([Wanted::Numbers, Wanted::Table, Wanted::WorkerTile(99)]) {
            let expected = step.answer(wanted, None).unwrap().map_or(Found::Nothing, Found::Answer);
            prop_assert_eq!(glance.answer(wanted), expected, "{:?}", wanted);
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
        let short = |_| table.picked(name, 0..1).unwrap();
        assert!(!is_reduced(&changed(name, &short)), "one entry of {name}");
    }
}

#[test]
fn a_block_that_cannot_be_made_leaves_the_others() {
    let mut blocks = GlanceBlocks::default();
    for block in [None, Some(b"a tile".to_vec()), Some(Vec::new())] {
        put(&mut blocks, block).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let info = RunInfo { producer: "test".into(), created: UnixNs(0), config: serde_json::Value::Null };
    let run = Run::create(&dir.path().join("run"), &info).unwrap();
    run.put_glance(STEP, run.sealed_state(STEP).unwrap(), blocks).unwrap();
    let kept = run.glance(STEP).unwrap().unwrap();
    assert_eq!([0, 1, 2].map(|number| kept.block(number).unwrap()), [vec![], b"a tile".to_vec(), vec![]]);
}
