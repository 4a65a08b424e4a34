//! Qwen2 and Qwen3, sharded: logits against another implementation, in double precision.
//!
//! `tests/data/qwen2` and `qwen3` are random weights; `expected.json` holds what NumPy computed of them by the definition of the
//! architectures in Hugging Face's `transformers`.

use std::fs;
use std::path::Path;

use rollscope_model::{KvPool, Logits, Model, Row, Wanted};
use serde_json::Value;

#[test]
fn the_qwen_families_compute_what_they_should() {
    for (family, is_biased) in [("qwen2", true), ("qwen3", false)] {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(family);
        let dir = tempfile::tempdir().unwrap();
        for file in fs::read_dir(&data).unwrap() {
            let path = file.unwrap().path();
            fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
        }
        let tokenizer = data.join("../../../assets/chained-addition/tokenizer.json");
        fs::copy(tokenizer, dir.path().join("tokenizer.json")).unwrap();
        let model = Model::open(dir.path()).unwrap();
        assert_eq!((model.config().qkv_bias, model.config().qk_norm), (is_biased, !is_biased));

        let expected: Value = serde_json::from_slice(&fs::read(data.join("expected.json")).unwrap()).unwrap();
        let tokens: Vec<u32> = serde_json::from_value(expected["tokens"].clone()).unwrap();
        let expected: Vec<f32> = serde_json::from_value(expected["logits"].clone()).unwrap();
        let mut kv = KvPool::new(model.config(), 4, 4).unwrap();
        let pages = kv.alloc(4).unwrap();
        let mut logits = Logits::new();
        // In two chunks.
        for (from, to) in [(0, 3), (3, tokens.len())] {
            let row = Row { tokens: &tokens[from..to], position: from, pages: &pages, logits: Wanted::Last };
            model.forward(&mut kv, &[row], &mut logits).unwrap();
        }
        for (found, expected) in logits.row(0).iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-4, "{family}: {found} {expected}");
        }
    }
}
