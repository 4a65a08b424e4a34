//! What is kept of a step, and answered from it.

use proptest::prelude::*;
use rollscope_run::{Run, RunInfo};
use rollscope_trace::Profile;
use tempfile::TempDir;

use super::*;
use crate::sight::tests::{Own, Request, STEP, owns, step};

/// What is kept, written and read again.
fn opened(blocks: GlanceBlocks) -> (TempDir, Blocks) {
    let dir = tempfile::tempdir().unwrap();
    let info = RunInfo { producer: "test".into(), created: UnixNs(0), config: serde_json::Value::Null };
    let run = Run::create(&dir.path().join("run"), &info).unwrap();
    run.put_glance(STEP, run.sealed_state(STEP).unwrap(), blocks).unwrap();
    let blocks = run.glance(STEP).unwrap().unwrap();
    (dir, blocks)
}

proptest! {
    // Each case writes files.
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// A step that was kept answers as one that is read.
    #[test]
    fn what_was_kept_is_answered_as_its_step_would(
        requests in prop::collection::vec((0_u8..250, 0_u32..5000, 1_u32..900, any::<u8>()), 1..300),
        spans in owns(),
        sought in "[a-z0-9]{0,2}",
    ) {
        let step = step(&requests, &spans);
        let (_dir, blocks) = opened(kept(&step, Keep::Everything).unwrap());
        let glance = Glance::open(blocks).unwrap();
        let numbers = (0..4).flat_map(|n| [Wanted::SampleTile(n), Wanted::WorkerTile(n), Wanted::Sample(n * 60)]);
        for wanted in numbers.chain([Wanted::Numbers, Wanted::Table, Wanted::WorkerTile(99)]) {
            let expected = step.answer(wanted, None).unwrap().map_or(Found::Nothing, Found::Answer);
            prop_assert_eq!(glance.answer(wanted, None), expected, "{:?}", wanted);
        }
        prop_assert_eq!(glance.find(&sought).unwrap(), step.find(&sought));
        for row in 0..step.samples().len() as u32 {
            let Found::Answer(kept) = glance.sample_calls(STEP, row) else { panic!("the calls of {row} are not kept") };
            let sample = step.sample(row).unwrap();
            let calls = |sample: &SampleTrace| -> Vec<_> {
                let legs = |of: &Profile| of.legs.iter().map(|leg| (leg.role, leg.worker.clone(), leg.dispatch, leg.end)).collect::<Vec<_>>();
                sample.requests.iter().map(|of| (of.arrival, legs(of))).collect()
            };
            prop_assert_eq!(calls(&kept), calls(sample));
        }
        prop_assert!(matches!(glance.sample_calls(STEP, step.samples().len() as u32), Found::Nothing));
    }
}

#[test]
fn of_a_tile_of_many_spans_nothing_is_kept_whole() {
    let requests: Vec<Request> = (0..12_500).map(|at| ((at % 3) as u8, at * 1000, 900, 99)).collect();
    let step = step(&requests, &[]);
    let (_dir, blocks) = opened(kept(&step, Keep::Tiles).unwrap());
    let whole = step.answer(Wanted::SampleTile(0), None).unwrap().unwrap();
    assert!(!sight::is_sent_whole(&whole));
    let largest = (0..).map_while(|number| blocks.block(number)).map(|block| block.len()).max().unwrap();
    assert!(largest < whole.len() / 2, "{largest} of {}", whole.len());
    let glance = Glance::open(blocks).unwrap();
    for (from, to, pixel) in [(0.0, 2e7, 1e5), (1e6, 1.1e6, 50.0), (-9.0, -3.0, 1.0)] {
        let window = Some(Window { from, to, pixel });
        let expected = step.answer(Wanted::SampleTile(0), window).unwrap().unwrap();
        assert_eq!(glance.answer(Wanted::SampleTile(0), window), Found::Answer(expected));
    }
}

#[test]
fn samples_whose_texts_are_not_kept_are_counted() {
    let requests: Vec<Request> = (0..200).map(|sample| (sample, 0, 900, 99)).collect();
    let step = step(&requests, &[] as &[Own]);
    let mut blocks = GlanceBlocks::default();
    let mut places = Places::put(&step, Keep::Everything, &mut blocks).unwrap();
    places.texts[1] = put(&mut blocks, None).unwrap();
    blocks.push_first(&first_sight(&step, Some(places)).unwrap()).unwrap();
    let (_dir, blocks) = opened(blocks);
    let glance = Glance::open(blocks).unwrap();
    assert_eq!(glance.find("prefill").unwrap().left_out, 200 - TILE_ROWS as usize);
    assert_eq!(step.find("prefill").left_out, 0);
}

#[test]
fn a_block_that_cannot_be_made_leaves_the_others() {
    let mut blocks = GlanceBlocks::default();
    let numbers =
        [None, Some(b"a tile".to_vec()), Some(Vec::new())].map(|block| put(&mut blocks, block).unwrap());
    blocks.push_first(b"first").unwrap();
    assert_eq!(numbers, [1, 2, 3]);
    let (_dir, kept) = opened(blocks);
    assert_eq!(
        [0, 1, 2, 3].map(|number| kept.block(number).unwrap()),
        [b"first".to_vec(), vec![], b"a tile".to_vec(), vec![]]
    );
}
