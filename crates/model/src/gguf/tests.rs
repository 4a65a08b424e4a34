//! A GGUF of the bundled model is the bundled model; blocks are read as the `gguf` package of llama.cpp's authors reads them.

use safetensors::SafeTensors;
use serde_json::Value as Json;

use super::*;
use crate::forward::{Logits, Row, Wanted};
use crate::kv::KvPool;
use crate::model::Model;
use crate::tests::GgufFile;

const ASSETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/chained-addition/");

/// The rows of each head in turns, as llama.cpp has them.
fn in_turns(data: &[u8], row_bytes: usize, head_dim: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for head in data.chunks_exact(row_bytes * head_dim) {
        for index in 0..head_dim / 2 {
            for half in 0..2 {
                out.extend(&head[(half * head_dim / 2 + index) * row_bytes..][..row_bytes]);
            }
        }
    }
    out
}

/// The bundled model as a GGUF: its values are bf16, which is type 30, or type 0 once widened.
fn bundled(architecture: &str, kind: u32) -> Vec<u8> {
    bundled_with(architecture, kind, |file| file.bool("tokenizer.ggml.add_bos_token", true))
}

/// It with something more.
fn bundled_with(architecture: &str, kind: u32, more: impl FnOnce(&mut GgufFile)) -> Vec<u8> {
    let bytes = std::fs::read(format!("{ASSETS}model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tokenizer: Json =
        serde_json::from_slice(&std::fs::read(format!("{ASSETS}tokenizer.json")).unwrap()).unwrap();
    let mut tokens: Vec<String> = (0..320).map(|id| format!("<unused{id}>")).collect();
    for (token, id) in tokenizer["model"]["vocab"].as_object().unwrap() {
        tokens[id.as_u64().unwrap() as usize] = token.clone();
    }
    for added in tokenizer["added_tokens"].as_array().unwrap() {
        tokens[added["id"].as_u64().unwrap() as usize] = added["content"].as_str().unwrap().to_owned();
    }
    let mut file = GgufFile::default();
    file.text("general.architecture", architecture);
    for (key, value) in [
        ("llama.context_length", 2048),
        ("llama.embedding_length", 128),
        ("llama.block_count", 4),
        ("llama.feed_forward_length", 384),
        ("llama.attention.head_count", 4),
        ("llama.attention.head_count_kv", 2),
        ("tokenizer.ggml.bos_token_id", 256),
        ("tokenizer.ggml.eos_token_id", 257),
    ] {
        file.u32(key, value);
    }
    file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    file.text("tokenizer.chat_template", "{{ messages[0].content }}");
    file.tokenizer(&tokens, 256);
    more(&mut file);
    for (name, view) in tensors.iter() {
        let is_rotated = name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight");
        let values = if is_rotated { in_turns(view.data(), 128 * 2, 32) } else { view.data().to_vec() };
        let data = match kind {
            30 => values,
            _ => values.chunks(2).flat_map(|bf16| [0, 0, bf16[0], bf16[1]]).collect(),
        };
        file.tensor(&gguf_name(name).unwrap(), view.shape(), (kind, &data));
    }
    file.into_bytes()
}

fn open(bytes: &[u8]) -> Result<Model, ModelError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    Model::open(&path)
}

fn logits(model: &Model, tokens: &[u32]) -> Vec<f32> {
    let mut kv = KvPool::new(model.config(), 4, 16).unwrap();
    let pages = kv.alloc(4).unwrap();
    let mut logits = Logits::new();
    let row = Row { tokens, position: 0, pages: &pages, logits: Wanted::Last };
    model.forward(&mut kv, &[row], &mut logits).unwrap();
    logits.row(0).to_vec()
}

#[test]
fn a_gguf_of_the_bundled_model_is_the_bundled_model() {
    let expected = Model::bundled().unwrap();
    let tokens = expected.tokenizer().encode("47+85=?\n").unwrap();
    for kind in [30, 0] {
        let model = open(&bundled("llama", kind)).unwrap();
        assert_eq!(model.tokenizer().encode("47+85=?\n").unwrap(), tokens);
        assert_eq!(model.tokenizer().decode(&tokens, true).unwrap(), "47+85=?\n");
        assert_eq!(logits(&model, &tokens), logits(&expected, &tokens));
        assert_eq!(model.fingerprint(), expected.fingerprint());
        assert_eq!(model.chat_template().unwrap().bos_token, "<|bos|>");
        assert_eq!((model.config().bos_token_id, &*model.config().eos_token_ids), (Some(256), &[257][..]));
    }
}

#[test]
fn what_is_no_model_is_refused_by_name() {
    let whole = bundled("llama", 30);
    let replaced = |from: &str, to: &str| {
        let at = whole.windows(from.len()).position(|bytes| bytes == from.as_bytes()).unwrap();
        let mut bytes = whole.clone();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    let with = |more: fn(&mut GgufFile)| bundled_with("llama", 30, more);
    let bias = (0, [0; 4 * 128].as_slice());
    let biased = bundled_with("llama", 30, |file| file.tensor("blk.2.attn_q.bias", &[128], bias));
    let fifth = bundled_with("llama", 30, |file| file.tensor("blk.4.attn_norm.weight", &[128], bias));
    for (bytes, reason) in [
        (
            with(|file| file.u32("llama.rope.dimension_count", 16)),
            "unsupported llama.rope.dimension_count 16",
        ),
        (with(|file| file.f32("llama.rope.scale_linear", 2.0)), "unsupported llama.rope.scale_linear 2"),
        (with(|file| file.f32("llama.rope.scaling.factor", 8.0)), "unsupported llama.rope.scaling.factor 8"),
        (with(|file| file.text("llama.rope.scaling.type", "yarn")), "unsupported rope scaling \"yarn\""),
        (with(|file| file.bool("llama.attention.causal", false)), "unsupported llama.attention.causal false"),
        (biased, "unsupported tensor blk.2.attn_q.bias"),
        (fifth, "unsupported tensor blk.4.attn_norm.weight"),
        (b"GGUX".to_vec(), "malformed GGUF file"),
        (whole[..whole.len() - 1].to_vec(), "malformed GGUF file"),
        (whole[..2000].to_vec(), "malformed GGUF file"),
        (bundled("bert", 30), "unsupported architecture \"bert\""),
        (bundled("llama", 13), "unsupported type ggml type 13"),
        (replaced("gpt-2", "tekke"), "unsupported pre-tokenizer \"tekke\""),
        (replaced("gpt2", "bert"), "unsupported tokenizer \"bert\""),
        (replaced("output_norm.weight", "output_nurm.weight"), "no tensor output_norm.weight"),
    ] {
        let error = open(&bytes).unwrap_err();
        assert!(error.to_string().contains(reason), "{reason}: {error}");
    }
    let neutral = |file: &mut GgufFile| {
        file.u32("llama.rope.dimension_count", 32);
        file.f32("llama.rope.scaling.factor", 1.0);
        file.text("llama.rope.scaling.type", "none");
    };
    assert!(open(&bundled_with("llama", 30, neutral)).is_ok());
    // Wherever it is cut, it is an error and no more.
    for len in (0..4000).step_by(37) {
        assert!(open(&whole[..len]).is_err());
    }
}

#[test]
fn where_nothing_is_said_only_llama_3_begins_with_a_token_for_it() {
    for (pre, begins) in [("gpt-2", false), ("smollm", false), ("qwen2", false), ("llama-bpe", true)] {
        // The later entry of a key counts.
        let bytes = bundled_with("llama", 30, |file| file.text("tokenizer.ggml.pre", pre));
        let tokens = open(&bytes).unwrap().tokenizer().encode("1").unwrap();
        assert_eq!(tokens[0] == 256, begins, "{pre}");
    }
}

#[test]
fn blocks_are_read_as_their_definition_has_it() {
    for (name, kind) in [("q4_0", 2), ("q4_1", 3), ("q8_0", 8), ("q4k", 12), ("q6k", 14)] {
        let format = Format::of(kind).unwrap();
        let (values, bytes) = format.block();
        let path = format!("{}/tests/data/{name}.block", env!("CARGO_MANIFEST_DIR"));
        let data = std::fs::read(path).unwrap();
        let expected: Vec<f32> = data[bytes..]
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        let found = format.read(&data[..bytes]).into_values();
        assert_eq!((found.len(), expected.len()), (values, values));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= expected.abs() * 1e-5 + 1e-6, "{name}: {found} {expected}");
        }
    }
    let halves: Vec<u8> =
        [1.5_f32, -2.0].iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect();
    assert_eq!(Format::F16.read(&halves).into_values(), [1.5, -2.0]);
}
