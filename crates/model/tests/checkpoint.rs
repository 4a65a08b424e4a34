//! Checkpoints on disk: every way of storing the same weights gives the same model, and every fault is named.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use rollscope_model::{KvPool, Logits, Model, ModelError, Row, RowError, Wanted};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/chained-addition")
}

/// A copy of the bundled checkpoint, to be changed.
fn copy() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(assets().join(name), dir.path().join(name)).unwrap();
    }
    dir
}

fn edit_json(path: &Path, edit: impl FnOnce(&mut Value)) {
    let mut json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    edit(&mut json);
    fs::write(path, json.to_string()).unwrap();
}

type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// The bundled tensors, all BF16.
fn tensors() -> Vec<Tensor> {
    let bytes = fs::read(assets().join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    tensors
        .iter()
        .map(|(name, view)| (name.to_owned(), view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect()
}

fn store(path: &Path, tensors: &[Tensor]) {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn widened(tensors: Vec<Tensor>) -> Vec<Tensor> {
    let widen =
        |data: Vec<u8>| data.chunks(2).flat_map(|bytes| [0, 0, bytes[0], bytes[1]]).collect::<Vec<u8>>();
    tensors.into_iter().map(|(name, _, shape, data)| (name, Dtype::F32, shape, widen(data))).collect()
}

/// An error with all its causes, without the directory's own path.
fn message(dir: &Path, error: &ModelError) -> String {
    let causes = std::iter::successors(Some(error as &dyn Error), |error| (*error).source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ").replace(&dir.display().to_string(), "DIR")
}

fn open_error(dir: &Path) -> String {
    message(dir, &Model::open(dir).unwrap_err())
}

fn first_logits(model: &Model) -> Vec<f32> {
    let mut kv = KvPool::new(model.config(), 1, 16).unwrap();
    let pages = kv.alloc(1).unwrap();
    let mut logits = Logits::new();
    let row = Row { tokens: &[256, 49, 43], position: 0, pages: &pages, logits: Wanted::Last };
    model.forward(&mut kv, &[row], &mut logits).unwrap();
    logits.row(0).to_vec()
}

#[test]
fn disk_and_program_hold_the_same_model() {
    let (bundled, opened) = (Model::bundled().unwrap(), Model::open(&assets()).unwrap());
    assert_eq!(bundled.config(), opened.config());
    assert_eq!(bundled.fingerprint(), opened.fingerprint());
    assert_eq!(
        bundled.fingerprint(),
        0x796b_80e9_9133_6c2e,
        "pinned: engines of different builds must agree"
    );
    assert_eq!(first_logits(&bundled), first_logits(&opened));
}

#[test]
fn element_type_and_shards_do_not_matter() {
    let bundled = Model::bundled().unwrap();
    let wide = copy();
    store(&wide.path().join("model.safetensors"), &widened(tensors()));
    let wide = Model::open(wide.path()).unwrap();
    assert_eq!(wide.fingerprint(), bundled.fingerprint());
    assert_eq!(first_logits(&wide), first_logits(&bundled));

    let sharded = copy();
    fs::remove_file(sharded.path().join("model.safetensors")).unwrap();
    let all = tensors();
    let mut weight_map = serde_json::Map::new();
    for (shard, tensors) in all.chunks(10).enumerate() {
        let name = format!("model-{shard}.safetensors");
        store(&sharded.path().join(&name), tensors);
        weight_map.extend(tensors.iter().map(|tensor| (tensor.0.clone(), json!(name))));
    }
    let index = sharded.path().join("model.safetensors.index.json");
    fs::write(&index, json!({"metadata": {}, "weight_map": weight_map}).to_string()).unwrap();
    assert_eq!(Model::open(sharded.path()).unwrap().fingerprint(), bundled.fingerprint());
    fs::remove_file(sharded.path().join("model-1.safetensors")).unwrap();
    let text = open_error(sharded.path());
    assert!(text.starts_with("cannot read DIR/model-1.safetensors: "), "{text}");
}

#[test]
fn a_head_of_its_own_is_used() {
    let dir = copy();
    edit_json(&dir.path().join("config.json"), |config| config["tie_word_embeddings"] = json!(false));
    assert_eq!(open_error(dir.path()), "no tensor lm_head.weight in DIR/model.safetensors");

    let mut all = tensors();
    let embedding = all.iter().find(|tensor| tensor.0 == "model.embed_tokens.weight").unwrap();
    let mut head = embedding.clone();
    head.0 = "lm_head.weight".to_owned();
    head.3.rotate_right(128 * 2);
    all.push(head);
    store(&dir.path().join("model.safetensors"), &all);
    let untied = Model::open(dir.path()).unwrap();
    let tied = Model::bundled().unwrap();
    assert_ne!(untied.fingerprint(), tied.fingerprint());
    // Each row of the head moved by one, so each logit did.
    let mut expected = first_logits(&tied);
    expected.rotate_right(1);
    assert_eq!(first_logits(&untied), expected);
}

#[test]
fn one_weight_changes_the_fingerprint() {
    let dir = copy();
    let mut all = tensors();
    all[20].3[0] ^= 1;
    store(&dir.path().join("model.safetensors"), &all);
    assert_ne!(Model::open(dir.path()).unwrap().fingerprint(), Model::bundled().unwrap().fingerprint());
}

#[test]
fn half_precision_is_read() {
    let dir = copy();
    let mut all = tensors();
    let norm = all.iter_mut().find(|tensor| tensor.0 == "model.norm.weight").unwrap();
    // 0x3c00 is 1 as F16, 0x3f80 as BF16.
    (norm.1, norm.3) = (Dtype::F16, [0x00, 0x3c].repeat(128));
    store(&dir.path().join("model.safetensors"), &all);
    let half = Model::open(dir.path()).unwrap().fingerprint();
    let norm = all.iter_mut().find(|tensor| tensor.0 == "model.norm.weight").unwrap();
    (norm.1, norm.3) = (Dtype::BF16, [0x80, 0x3f].repeat(128));
    store(&dir.path().join("model.safetensors"), &all);
    assert_eq!(Model::open(dir.path()).unwrap().fingerprint(), half);
}

#[test]
fn configuration_of_newer_and_older_layouts() {
    let dir = copy();
    edit_json(&dir.path().join("config.json"), |config| {
        let config = config.as_object_mut().unwrap();
        for name in ["head_dim", "rope_theta", "rope_scaling", "hidden_act", "attention_bias", "mlp_bias"] {
            config.remove(name);
        }
        config.insert("rope_parameters".to_owned(), json!({"rope_type": "default", "rope_theta": 500_000.0}));
    });
    edit_json(&dir.path().join("generation_config.json"), |config| config["eos_token_id"] = json!([257, 10]));
    let model = Model::open(dir.path()).unwrap();
    assert_eq!(model.config().head_dim, 32);
    assert_eq!(model.config().rope_theta.to_bits(), 500_000.0_f32.to_bits());
    assert_eq!(model.config().eos_token_ids, [257, 10]);
    assert_eq!(model.config().bos_token_id, Some(256));

    fs::remove_file(dir.path().join("generation_config.json")).unwrap();
    assert_eq!(Model::open(dir.path()).unwrap().config().eos_token_ids, [257]);
}

#[test]
fn a_missing_directory_or_file_is_named() {
    let dir = copy();
    assert_eq!(open_error(&dir.path().join("none")), "no model directory at DIR");
    assert_eq!(
        message(dir.path(), &Model::open(&dir.path().join("config.json")).unwrap_err()),
        "no model directory at DIR/config.json"
    );
    for name in ["model.safetensors", "tokenizer.json", "config.json"] {
        fs::remove_file(dir.path().join(name)).unwrap();
        let text = open_error(dir.path());
        assert!(text.starts_with(&format!("cannot read DIR/{name}: ")), "{text}");
    }
}

#[test]
fn malformed_files_are_named() {
    let cases: [(&str, &[u8], &str); 7] = [
        (
            "config.json",
            br#"{"architectures": ["LlamaForCausalLM"]}"#,
            "malformed DIR/config.json: missing field `vocab_size`",
        ),
        ("config.json", b"{\"vocab_size\": ", "malformed DIR/config.json: EOF while parsing"),
        (
            "config.json",
            b"{}",
            "unsupported architecture [] (supported: LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM) in DIR/config.json",
        ),
        ("generation_config.json", b"[", "malformed DIR/generation_config.json: "),
        ("tokenizer.json", b"{}", "malformed tokenizer DIR/tokenizer.json: "),
        ("model.safetensors", b"", "malformed safetensors DIR/model.safetensors: "),
        ("model.safetensors.index.json", b"{}", "malformed DIR/model.safetensors.index.json: missing field"),
    ];
    for (name, content, start) in cases {
        let dir = copy();
        fs::write(dir.path().join(name), content).unwrap();
        let text = open_error(dir.path());
        assert!(text.starts_with(start), "{text}");
    }
}

#[test]
fn configurations_that_cannot_be_computed_are_refused() {
    let cases = [
        ("architectures", json!(["GPT2LMHeadModel"]), r#"unsupported architecture ["GPT2LMHeadModel"]"#),
        ("rope_scaling", json!({"rope_type": "llama3"}), r#"unsupported rope type "llama3""#),
        ("rope_scaling", json!({"type": "linear"}), r#"unsupported rope type "linear""#),
        ("rope_scaling", json!({"factor": 2.0}), "unsupported rope factor 2"),
        ("rope_parameters", json!({"partial_rotary_factor": 0.5}), "unsupported partial_rotary_factor 0.5"),
        ("partial_rotary_factor", json!(0.25), "unsupported partial_rotary_factor 0.25"),
        ("use_sliding_window", json!(true), "unsupported use_sliding_window true"),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            r#"unsupported layer type "sliding_attention""#,
        ),
        ("quantization_config", json!({"quant_method": "fp8"}), "unsupported quantization_config"),
        ("hidden_act", json!("gelu"), r#"unsupported hidden_act "gelu""#),
        ("attention_bias", json!(true), "unsupported attention_bias true"),
        ("mlp_bias", json!(true), "unsupported mlp_bias true"),
        ("vocab_size", json!(0), "impossible configuration in DIR/config.json: vocab_size is 0"),
        (
            "num_attention_heads",
            json!(0),
            "impossible configuration in DIR/config.json: num_attention_heads is 0",
        ),
        (
            "hidden_size",
            json!(1_u64 << 60),
            "impossible configuration in DIR/config.json: hidden_size is 11529",
        ),
        ("num_key_value_heads", json!(3), "impossible configuration in DIR/config.json: 4 attention heads"),
        ("head_dim", json!(31), "impossible configuration in DIR/config.json: head_dim is odd: 31"),
        ("rope_theta", json!(0.0), "impossible configuration in DIR/config.json: rope_theta is 0"),
        ("rms_norm_eps", json!(-1.0), "impossible configuration in DIR/config.json: rms_norm_eps is -1"),
        ("vocab_size", json!("many"), "malformed DIR/config.json: invalid type: string \"many\""),
    ];
    for (field, value, start) in cases {
        let dir = copy();
        edit_json(&dir.path().join("config.json"), |config| config[field] = value);
        let text = open_error(dir.path());
        assert!(text.starts_with(start), "{text}");
    }
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let dir = copy();
    edit_json(&dir.path().join("config.json"), |config| config["intermediate_size"] = json!(380));
    assert_eq!(
        open_error(dir.path()),
        "tensor model.layers.0.mlp.gate_proj.weight in DIR/model.safetensors has shape [384, 128], expected [380, 128]"
    );

    let dir = copy();
    let mut all = tensors();
    all.iter_mut().find(|tensor| tensor.0 == "model.norm.weight").unwrap().1 = Dtype::I16;
    store(&dir.path().join("model.safetensors"), &all);
    assert_eq!(
        open_error(dir.path()),
        "tensor model.norm.weight in DIR/model.safetensors has unsupported type I16"
    );
    all.retain(|tensor| tensor.0 != "model.norm.weight");
    store(&dir.path().join("model.safetensors"), &all);
    assert_eq!(open_error(dir.path()), "no tensor model.norm.weight in DIR/model.safetensors");
}

#[test]
fn tensors_that_would_be_left_out_are_named() {
    let path = |dir: &TempDir| dir.path().join("model.safetensors");
    let with = |name: &str, len: usize| {
        let mut all = tensors();
        all.push((name.to_owned(), Dtype::BF16, vec![len], vec![0; 2 * len]));
        let dir = copy();
        store(&path(&dir), &all);
        dir
    };
    for name in
        ["model.layers.0.self_attn.q_proj.bias", "model.layers.4.input_layernorm.weight", "score.weight"]
    {
        let text = open_error(with(name, 128).path());
        assert_eq!(text, format!("unsupported tensor {name} in DIR/model.safetensors"));
    }
    // No part of the model: the head is the embedding, and the frequencies follow from the configuration.
    for name in ["lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"] {
        let model = Model::open(with(name, 16).path()).unwrap();
        assert_eq!(model.fingerprint(), Model::bundled().unwrap().fingerprint());
    }
}

/// Cut anywhere, the file is an error and no crash.
#[test]
fn truncated_weights_are_refused() {
    let dir = copy();
    let path = dir.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    for len in [0, 1, 7, 8, 9, 100, 4000, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..len]).unwrap();
        let text = open_error(dir.path());
        assert!(text.starts_with("malformed safetensors DIR/model.safetensors: "), "{len}: {text}");
    }
    let mut absurd = whole;
    absurd[..8].fill(0xff);
    fs::write(&path, &absurd).unwrap();
    assert!(open_error(dir.path()).starts_with("malformed safetensors "));
}

#[test]
fn rows_that_cannot_be_computed_leave_the_pool_untouched() {
    let model = Model::bundled().unwrap();
    let mut kv = KvPool::new(model.config(), 200, 16).unwrap();
    let pages = kv.alloc(199).unwrap();
    let strangers = vec![rollscope_model::PageId(200); 199];
    let good = Row { tokens: &[256], position: 0, pages: &pages, logits: Wanted::Last };
    let cases = [
        (Row { tokens: &[], ..good }, RowError::Empty),
        (Row { tokens: &[1, 2], position: 2047, ..good }, RowError::TooLong { end: 2049, limit: 2048 }),
        (Row { position: usize::MAX, ..good }, RowError::TooLong { end: usize::MAX, limit: 2048 }),
        (Row { tokens: &[5, 320], ..good }, RowError::Token { token: 320, vocab_size: 320 }),
        (Row { position: 16, pages: &pages[..1], ..good }, RowError::FewPages { needed: 2, pages: 1 }),
        (Row { pages: &strangers, ..good }, RowError::Page { page: 200, total: 200 }),
    ];
    let mut logits = Logits::new();
    for (bad, expected) in cases {
        match model.forward(&mut kv, &[good, bad], &mut logits) {
            Err(ModelError::Row { index: 1, source }) => assert_eq!(source, expected),
            other => unreachable!("{other:?}"),
        }
        assert!(pages.iter().all(|page| kv.page(*page).iter().all(|byte| *byte == 0)));
        assert!(logits.is_empty());
    }
    model.forward(&mut kv, &[], &mut logits).unwrap();
    assert_eq!(logits.len(), 0);
    model.forward(&mut kv, &[Row { logits: Wanted::None, ..good }, good], &mut logits).unwrap();
    assert_eq!(logits.len(), 1);
}
