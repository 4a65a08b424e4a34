//! The bundled model against PyTorch: `tools/reference_chained_addition.py` made the expected values.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rollscope_model::sampling::{SamplingParams, SamplingScratch, sample, token_logprob};
use rollscope_model::{KvPool, Logits, Model, PageId, Row, Wanted};
use serde::Deserialize;

#[derive(Deserialize)]
struct Reference {
    prompt: String,
    prompt_ids: Vec<u32>,
    /// Of each prompt token but the first.
    prompt_logprobs: Vec<f32>,
    output_ids: Vec<u32>,
    output_logprobs: Vec<f32>,
}

const TOLERANCE: f32 = 1e-4;
const PAGES_EACH: usize = 10;

fn references() -> Vec<Reference> {
    serde_json::from_str(include_str!("data/reference.json")).unwrap()
}

fn assert_close(found: f32, expected: f32, what: &str) {
    assert!((found - expected).abs() <= TOLERANCE, "{what}: {found}, the reference has {expected}");
}

/// All prompts in one step, then greedy decoding of all together until each has ended.
#[test]
fn greedy_tokens_and_logprobs_are_those_of_pytorch() {
    let model = Model::bundled().unwrap();
    let references = references();
    assert_eq!(references.len(), 10);
    let mut kv = KvPool::new(model.config(), PAGES_EACH * references.len(), 16).unwrap();
    let pages: Vec<Vec<PageId>> = references.iter().map(|_| kv.alloc(PAGES_EACH).unwrap()).collect();
    let (mut logits, mut scratch) = (Logits::new(), SamplingScratch::default());
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };

    let prompts: Vec<Vec<u32>> =
        references.iter().map(|reference| model.tokenizer().encode(&reference.prompt).unwrap()).collect();
    let rows: Vec<Row<'_>> = prompts
        .iter()
        .zip(&pages)
        .map(|(tokens, pages)| Row { tokens, position: 0, pages, logits: Wanted::All })
        .collect();
    model.forward(&mut kv, &rows, &mut logits).unwrap();
    let mut outputs: Vec<Vec<(u32, f32)>> = Vec::new();
    let mut next = 0;
    for (reference, prompt) in references.iter().zip(&prompts) {
        assert_eq!(*prompt, reference.prompt_ids);
        for (token, expected) in prompt[1..].iter().zip(&reference.prompt_logprobs) {
            assert_close(token_logprob(logits.row(next), *token), *expected, &reference.prompt);
            next += 1;
        }
        let first = sample(logits.row(next), &greedy, prompt.len() as u64, &mut scratch);
        next += 1;
        outputs.push(vec![(first.token, first.logprob)]);
    }

    loop {
        let live: Vec<usize> =
            (0..outputs.len()).filter(|i| outputs[*i].len() < references[*i].output_ids.len()).collect();
        if live.is_empty() {
            break;
        }
        let last: Vec<u32> = live.iter().map(|i| outputs[*i].last().unwrap().0).collect();
        let rows: Vec<Row<'_>> = live
            .iter()
            .zip(last.chunks(1))
            .map(|(i, tokens)| {
                let position = prompts[*i].len() + outputs[*i].len() - 1;
                Row { tokens, position, pages: &pages[*i], logits: Wanted::Last }
            })
            .collect();
        model.forward(&mut kv, &rows, &mut logits).unwrap();
        for (row, i) in live.into_iter().enumerate() {
            let position = (prompts[i].len() + outputs[i].len()) as u64;
            let sampled = sample(logits.row(row), &greedy, position, &mut scratch);
            outputs[i].push((sampled.token, sampled.logprob));
        }
    }

    for (reference, output) in references.iter().zip(&outputs) {
        let tokens: Vec<u32> = output.iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, reference.output_ids, "{}", reference.prompt);
        for ((_, found), expected) in output.iter().zip(&reference.output_logprobs) {
            assert_close(*found, *expected, &reference.prompt);
        }
    }
}
