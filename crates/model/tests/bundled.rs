//! The bundled model does what it was trained for.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rollscope_model::sampling::{SamplingParams, SamplingScratch, sample};
use rollscope_model::{KvPool, Logits, Model, Row, TextStream, Wanted};

fn answer(model: &Model, prompt: &str) -> String {
    let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let mut kv = KvPool::new(model.config(), 16, 16).unwrap();
    let pages = kv.alloc(16).unwrap();
    let (mut logits, mut scratch) = (Logits::new(), SamplingScratch::default());
    let mut text = TextStream::new(true);
    let mut tokens = model.tokenizer().encode(prompt).unwrap();
    let mut answer = String::new();
    let mut done = 0;
    while tokens.len() < 200 {
        let row = Row { tokens: &tokens[done..], position: done, pages: &pages, logits: Wanted::Last };
        model.forward(&mut kv, &[row], &mut logits).unwrap();
        done = tokens.len();
        let token = sample(logits.row(0), &params, done as u64, &mut scratch).token;
        if model.config().eos_token_ids.contains(&token) {
            break;
        }
        answer += &text.push(model.tokenizer(), token).unwrap();
        tokens.push(token);
    }
    answer + &text.finish(model.tokenizer()).unwrap()
}

#[test]
fn adds_step_by_step() {
    let model = Model::bundled().unwrap();
    assert_eq!(answer(&model, "47+85+19=?\n"), "47+85=132\n132+19=151\n#151");
    assert_eq!(answer(&model, "7+8=?\n"), "7+8=15\n#15");
}
