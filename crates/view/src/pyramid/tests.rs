//! A tile that was cut is answered as the whole would be, from what lies in the window.

use proptest::prelude::*;

use super::*;
use crate::sight::reduced;
use crate::sight::tests::{Request, owns, step};
use crate::tile;

/// The blocks of a tile, in pieces of so many spans.
fn cut_tile(tile: &[u8], piece_spans: usize) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut put = |block: &[u8]| {
        blocks.push(block.to_vec());
        Some(())
    };
    cut_in(&Spans::of(tile).unwrap(), piece_spans, &mut put).unwrap();
    blocks
}

fn seen_of(blocks: &[Vec<u8>], window: Window) -> Option<Vec<u8>> {
    seen(blocks.first()?, window, |piece| blocks.get(piece + 1))
}

proptest! {
    #[test]
    fn a_window_is_answered_from_pieces_as_from_the_whole(
        requests in prop::collection::vec((0_u8..5, 0_u32..5000, 1_u32..900, any::<u8>()), 1..60),
        spans in owns(),
        piece_spans in 1_usize..40,
        (from, length, pixel) in (-100.0..6000.0, 0.0..6000.0, 0.0..300.0),
    ) {
        let step = step(&requests, &spans);
        for whole in [tile::of_samples(&step, 0).unwrap().unwrap(), tile::of_worker(&step, 0).unwrap().unwrap()] {
            let blocks = cut_tile(&whole, piece_spans);
            let pieces: Vec<_> = blocks[1..].iter().map(|block| piece(block).unwrap()).collect();
            prop_assert!(is_cut(&blocks[0]) && !is_cut(&whole));
            prop_assert!(pieces.iter().all(|piece| piece.at.len() <= piece_spans));
            let mut all: Vec<u32> = pieces.iter().flat_map(|piece| piece.at.clone()).collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..Spans::of(&whole).unwrap().entries("start_ns").unwrap() as u32));
            for window in [Window { from, to: from + length, pixel }, Window::ALL] {
                prop_assert_eq!(seen_of(&blocks, window), reduced(Spans::of(&whole).unwrap(), window));
            }
        }
    }
}

#[test]
fn a_window_costs_what_is_seen_in_it() {
    // Twenty thousand calls on the first worker, each with a stage.
    let requests: Vec<Request> = (0..20_000).map(|at| (0, at * 1000, 900, 99)).collect();
    let step = step(&requests, &[]);
    let blocks = cut_tile(&tile::of_worker(&step, 0).unwrap().unwrap(), 256);
    let all = blocks.len() - 1;
    for (what, from, to, pixels) in [
        ("all of it", 0.0, 2e7, 500.0),
        ("a thousandth of it", 9_000_000.0, 9_020_000.0, 500.0),
        ("what lies beside it", -2e7, -1e7, 500.0),
    ] {
        let mut read = 0;
        let window = Window { from, to, pixel: (to - from) / pixels };
        let answer = seen(&blocks[0], window, |piece| {
            read += 1;
            blocks.get(piece + 1)
        });
        assert!(answer.is_some() && read <= all / 8, "{what}: {read} of {all} pieces");
    }
}

#[test]
fn what_is_no_piece_is_not_read() {
    let requests: Vec<Request> = (0..50).map(|at| (at as u8 % 3, at * 100, 90, 99)).collect();
    let blocks = cut_tile(&tile::of_samples(&step(&requests, &[]), 0).unwrap().unwrap(), 40);
    assert!(seen_of(&blocks, Window::ALL).is_some());
    for block in 0..blocks.len() {
        let mut missing = blocks.clone();
        missing.truncate(block);
        assert_eq!(seen_of(&missing, Window::ALL), None, "without {block} and those behind it");
        let mut twice = blocks.clone();
        twice[block] = blocks[(block + 1) % blocks.len()].clone();
        assert_eq!(seen_of(&twice, Window::ALL), None, "another in the place of {block}");
        for length in (0..blocks[block].len()).step_by(61) {
            let mut short = blocks.clone();
            short[block].truncate(length);
            // Only what fills up the end may be missing.
            assert!(
                seen_of(&short, Window::ALL).is_none() || blocks[block].len() - length < 8,
                "{length} bytes of {block}"
            );
        }
    }
}
