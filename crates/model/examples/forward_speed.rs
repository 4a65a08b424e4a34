//! Prints how fast a model computes on one thread: `forward_speed [MODEL_DIR]`, the bundled model by default.

#![expect(clippy::print_stdout, reason = "the figures are what it is for")]

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use rollscope_model::sampling::{SamplingParams, SamplingScratch, sample};
use rollscope_model::{KvPool, Logits, Model, PageId, Row, Wanted};

const BATCHES: [usize; 3] = [1, 8, 32];
const PAGE_TOKENS: usize = 16;
/// Sequences begin with prompts of this and twice this length, in turns.
const PROMPT_TOKENS: usize = 32;
const DECODE_STEPS: usize = 64;
/// Each figure is the best of this many.
const REPEATS: usize = 5;

struct Sequence {
    tokens: Vec<u32>,
    pages: Vec<PageId>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let model = match std::env::args_os().nth(1) {
        Some(dir) => Model::open(Path::new(&dir))?,
        None => Model::bundled()?,
    };
    println!("tokens/s on one thread, best of {REPEATS}");
    println!("{:>6} {:>10} {:>10} {:>16}", "batch", "prefill", "decode", "decode + sample");
    for batch in BATCHES {
        let mut best = [0.0_f64; 3];
        for _ in 0..REPEATS {
            for (best, speed) in best.iter_mut().zip(measure(&model, batch)?) {
                *best = best.max(speed);
            }
        }
        println!("{batch:>6} {:>10.0} {:>10.0} {:>16.0}", best[0], best[1], best[2]);
    }
    Ok(())
}

/// Tokens a second of a prefill step, of decode steps, and of decode steps with sampling.
fn measure(model: &Model, batch: usize) -> Result<[f64; 3], Box<dyn Error>> {
    let longest = 2 * PROMPT_TOKENS + 2 * DECODE_STEPS;
    let pages_each = longest.div_ceil(PAGE_TOKENS);
    let mut kv = KvPool::new(model.config(), batch * pages_each, PAGE_TOKENS)?;
    let mut logits = Logits::new();
    let mut sequences = Vec::new();
    for index in 0..batch {
        let pages = kv.alloc(pages_each).ok_or("the pool is too small")?;
        let tokens =
            (0..PROMPT_TOKENS * (1 + index % 2)).map(|place| ((place * 7 + index) % 256) as u32).collect();
        sequences.push(Sequence { tokens, pages });
    }
    let prompt_tokens: usize = sequences.iter().map(|sequence| sequence.tokens.len()).sum();

    let begin = Instant::now();
    step(model, &mut kv, &sequences, true, &mut logits)?;
    let prefill = prompt_tokens as f64 / begin.elapsed().as_secs_f64();

    let decoded = (batch * DECODE_STEPS) as f64;
    let begin = Instant::now();
    for _ in 0..DECODE_STEPS {
        for sequence in &mut sequences {
            sequence.tokens.push(1);
        }
        step(model, &mut kv, &sequences, false, &mut logits)?;
    }
    let decode = decoded / begin.elapsed().as_secs_f64();

    let mut scratch = SamplingScratch::default();
    let begin = Instant::now();
    for _ in 0..DECODE_STEPS {
        for (index, sequence) in sequences.iter_mut().enumerate() {
            let params = SamplingParams { seed: index as u64, ..SamplingParams::default() };
            let position = sequence.tokens.len() as u64;
            sequence.tokens.push(sample(logits.row(index), &params, position, &mut scratch).token);
        }
        step(model, &mut kv, &sequences, false, &mut logits)?;
    }
    Ok([prefill, decode, decoded / begin.elapsed().as_secs_f64()])
}

/// Computes the whole prompts, or the last token of each sequence.
fn step(
    model: &Model,
    kv: &mut KvPool,
    sequences: &[Sequence],
    whole: bool,
    logits: &mut Logits,
) -> Result<(), Box<dyn Error>> {
    let rows: Vec<Row<'_>> = sequences
        .iter()
        .map(|Sequence { tokens, pages }| {
            let position = if whole { 0 } else { tokens.len() - 1 };
            Row { tokens: &tokens[position..], position, pages, logits: Wanted::Last }
        })
        .collect();
    Ok(model.forward(kv, &rows, logits)?)
}
