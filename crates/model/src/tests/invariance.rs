//! A row's bits depend on its sequence alone: not on batch, chunks, pages, instruction set or a transfer in between.

use proptest::prelude::*;

use super::Shape;
use crate::forward::{Logits, Row, Wanted};
use crate::isa::Isa;
use crate::kv::{KvPool, PageId};
use crate::model::Model;
use crate::sampling::uniform;

/// A sequence under way in a pool.
struct Sequence {
    tokens: Vec<u32>,
    pages: Vec<PageId>,
    /// Positions computed.
    done: usize,
    /// The bits of the logits of each position computed.
    bits: Vec<Vec<u32>>,
}

/// How sequences are computed together.
#[derive(Debug, Clone, Copy)]
struct Schedule {
    seed: u64,
    page_tokens: usize,
    longest_chunk: usize,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let sizes = (1..80_usize, 1..70_usize, 1..70_usize, 1..3_usize);
    let heads = (1..4_usize, 1..4_usize, 1..20_usize, any::<bool>());
    (sizes, heads).prop_map(|((vocab, hidden, intermediate, layers), (kv_heads, group, half, tied))| Shape {
        vocab,
        hidden,
        intermediate,
        layers,
        kv_heads,
        group,
        head_dim: 2 * half,
        tied,
    })
}

/// Shapes whose matrices can be of all types of numbers: rows of whole blocks of 256, of 32, or of neither.
fn quantized_shapes() -> impl Strategy<Value = Shape> {
    let blocks = prop::sample::select(vec![32, 64, 256]);
    let heads = prop::sample::select(vec![(1, 2, 16), (1, 2, 128), (2, 1, 16), (1, 3, 14)]);
    (blocks.clone(), blocks, heads, any::<bool>()).prop_map(
        |(hidden, intermediate, (kv_heads, group, head_dim), tied)| Shape {
            vocab: 70,
            hidden,
            intermediate,
            layers: 2,
            kv_heads,
            group,
            head_dim,
            tied,
        },
    )
}

fn schedules() -> impl Strategy<Value = Schedule> {
    (any::<u64>(), 1..40_usize, 1..30_usize).prop_map(|(seed, page_tokens, longest_chunk)| Schedule {
        seed,
        page_tokens,
        longest_chunk,
    })
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|value| value.to_bits()).collect()
}

/// Each sequence by itself, in one piece, on pages in order.
fn alone(model: &Model, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut kv = KvPool::new(model.config(), 8, 16).unwrap();
    let pages = kv.alloc(8).unwrap();
    let mut logits = Logits::new();
    let row = Row { tokens, position: 0, pages: &pages, logits: Wanted::All };
    model.forward(&mut kv, &[row], &mut logits).unwrap();
    (0..logits.len()).map(|index| bits(logits.row(index))).collect()
}

/// All sequences together, in random chunks and random subsets, on shuffled pages that hold junk at first; half-way all of it
/// moves to another pool, as bytes.
fn together(model: &Model, sequences: &[Vec<u32>], schedule: Schedule) -> Vec<Vec<Vec<u32>>> {
    let mut counter = 0;
    let mut below = |bound: usize| {
        counter += 1;
        (uniform(schedule.seed, counter) * bound as f64) as usize
    };
    let count = sequences.iter().map(|tokens| tokens.len().div_ceil(schedule.page_tokens)).sum();
    let mut kv = KvPool::new(model.config(), count, schedule.page_tokens).unwrap();
    let mut pages = kv.alloc(count).unwrap();
    for page in &pages {
        kv.page_mut(*page).fill(0xff);
    }
    for index in (1..pages.len()).rev() {
        pages.swap(index, below(index + 1));
    }
    let mut live: Vec<Sequence> = sequences
        .iter()
        .map(|tokens| Sequence {
            tokens: tokens.clone(),
            pages: pages.split_off(pages.len() - tokens.len().div_ceil(schedule.page_tokens)),
            done: 0,
            bits: Vec::new(),
        })
        .collect();
    let mut logits = Logits::new();
    let mut steps = 0;
    while live.iter().any(|sequence| sequence.done < sequence.tokens.len()) {
        let mut chosen = Vec::new();
        for (index, sequence) in live.iter().enumerate() {
            let left = sequence.tokens.len() - sequence.done;
            if left > 0 && below(4) > 0 {
                chosen.push((index, 1 + below(left.min(schedule.longest_chunk))));
            }
        }
        let rows: Vec<Row<'_>> = chosen
            .iter()
            .map(|(index, len)| {
                let Sequence { tokens, pages, done, .. } = &live[*index];
                Row { tokens: &tokens[*done..done + len], position: *done, pages, logits: Wanted::All }
            })
            .collect();
        model.forward(&mut kv, &rows, &mut logits).unwrap();
        let mut next = 0;
        for (index, len) in chosen {
            live[index].done += len;
            for _ in 0..len {
                live[index].bits.push(bits(logits.row(next)));
                next += 1;
            }
        }
        steps += 1;
        if steps == 2 {
            kv = moved(model, &kv, &mut live);
        }
    }
    live.into_iter().map(|sequence| sequence.bits).collect()
}

/// Another pool holding the sequences' pages at other places.
fn moved(model: &Model, from: &KvPool, live: &mut [Sequence]) -> KvPool {
    let mut kv = KvPool::new(model.config(), from.total_pages() + 1, from.page_tokens()).unwrap();
    kv.alloc(1).unwrap();
    for sequence in live {
        let pages = kv.alloc(sequence.pages.len()).unwrap();
        for (source, target) in sequence.pages.iter().zip(&pages) {
            kv.page_mut(*target).copy_from_slice(from.page(*source));
        }
        sequence.pages = pages;
    }
    kv
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_rows_bits_depend_on_its_sequence_alone(
        shape in shapes(),
        seed in any::<u64>(),
        schedule in schedules(),
        sequences in prop::collection::vec(prop::collection::vec(any::<u32>(), 1..60), 1..14),
    ) {
        check(&|| shape.model(seed), shape.vocab, &sequences, schedule);
    }
}

proptest! {
    // Baseline instructions take their time for so many numbers.
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn so_they_do_where_weights_are_quantized(
        shape in quantized_shapes(),
        seed in any::<u64>(),
        schedule in schedules(),
        sequences in prop::collection::vec(prop::collection::vec(any::<u32>(), 1..20), 1..9),
    ) {
        check(&|| shape.quantized(seed), shape.vocab, &sequences, schedule);
    }
}

/// On each instruction set the sequences have the bits together that each has alone on the baseline.
fn check(model: &dyn Fn() -> Model, vocab: usize, sequences: &[Vec<u32>], schedule: Schedule) {
    let in_range = |tokens: &Vec<u32>| tokens.iter().map(|token| token % vocab as u32).collect();
    let sequences: Vec<Vec<u32>> = sequences.iter().map(in_range).collect();
    let baseline = model().on(Isa::PORTABLE);
    let expected: Vec<_> = sequences.iter().map(|tokens| alone(&baseline, tokens)).collect();
    assert!(expected.iter().flatten().flatten().all(|bits| f32::from_bits(*bits).is_finite()));
    for isa in Isa::all() {
        assert!(together(&model().on(isa), &sequences, schedule) == expected, "{isa:?}");
    }
}
