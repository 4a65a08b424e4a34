//! GGUF files: metadata, tensors in several formats, and the checkpoint that they make.
//!
//! # Layout
//! Magic `GGUF`, version, the counts of tensors and of metadata entries; the entries; the tensors' names, shapes (innermost first),
//! types and offsets; then, aligned, the tensors. All numbers are little-endian. Quantized rows are blocks of 32 or 256 values with
//! scales of their own, by their definition in llama.cpp (`ggml-quants`).
//!
//! # From llama.cpp's names to Hugging Face's
//! Weights are the same but for the rows of the query and key matrices: there the two halves of a head, which the rotary embedding
//! turns against each other, lie in turns.

mod format;
mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::gguf::format::Format;
use crate::gguf::reader::{Malformed, Meta, Reader};
use crate::quants::Matrix;

/// A file, read whole.
#[derive(Debug)]
pub(crate) struct Gguf {
    path: PathBuf,
    bytes: Vec<u8>,
    metadata: BTreeMap<String, Meta>,
    tensors: BTreeMap<String, TensorInfo>,
    /// Where the tensors begin.
    data_start: usize,
}

#[derive(Debug)]
struct TensorInfo {
    /// Outermost first.
    shape: Vec<usize>,
    format: Format,
    /// From the beginning of the tensors.
    offset: usize,
}

const DEFAULT_ALIGNMENT: usize = 32;
/// Token types of `tokenizer.ggml.token_type` that are not plain text.
const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;

// === impl Gguf ===

impl Gguf {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let bytes =
            std::fs::read(path).map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
        let malformed = |Malformed| ModelError::Gguf { path: path.to_owned() };
        let mut reader = Reader::new(&bytes);
        let (metadata, infos) = reader.head().map_err(malformed)?;
        let end = reader.at();
        let alignment = match metadata.get("general.alignment") {
            Some(Meta::Number(alignment)) if *alignment >= 1.0 => *alignment as usize,
            _ => DEFAULT_ALIGNMENT,
        };
        let data_start = end.next_multiple_of(alignment);
        let mut tensors = BTreeMap::new();
        for (name, shape, kind, offset) in infos {
            let Some(format) = Format::of(kind) else {
                let dtype = format!("ggml type {kind}");
                return Err(ModelError::Dtype { path: path.to_owned(), tensor: name, dtype });
            };
            let info = TensorInfo { shape, format, offset };
            let len = info.byte_len().ok_or(Malformed).map_err(malformed)?;
            let end = data_start.checked_add(offset).and_then(|start| start.checked_add(len));
            if end.is_none_or(|end| end > bytes.len()) {
                return Err(malformed(Malformed));
            }
            tensors.insert(name, info);
        }
        Ok(Self { path: path.to_owned(), bytes, metadata, tensors, data_start })
    }

    /// The model's shape.
    pub(crate) fn config(&self) -> Result<ModelConfig, ModelError> {
        let architecture = self.text("general.architecture").unwrap_or_default();
        if architecture != "llama" {
            return Err(self.unsupported(format!("architecture {architecture:?} (supported: llama)")));
        }
        if let Some(scaling) = self.text("llama.rope.scaling.type").filter(|scaling| *scaling != "none") {
            return Err(self.unsupported(format!("rope scaling {scaling:?}")));
        }
        if self.tensors.contains_key("rope_freqs.weight") {
            return Err(self.unsupported("rope scaling by rope_freqs.weight".to_owned()));
        }
        for key in ["rope.scaling.factor", "rope.scale_linear"] {
            // Without a type they scale linearly; 0 stands for 1, as in llama.cpp.
            if let Some(factor) =
                self.number(&format!("llama.{key}")).filter(|factor| ![0.0, 1.0].contains(factor))
            {
                return Err(self.unsupported(format!("llama.{key} {factor}")));
            }
        }
        if let Some(Meta::Bool(false)) = self.metadata.get("llama.attention.causal") {
            return Err(self.unsupported("llama.attention.causal false".to_owned()));
        }
        let size = |name: &str| self.number(&format!("llama.{name}")).map(|number| number as usize);
        let needed = |name: &str| {
            let reason = format!("llama.{name} is missing");
            size(name).ok_or_else(|| ModelError::Config { path: self.path.clone(), reason })
        };
        let heads = needed("attention.head_count")?;
        let hidden_size = needed("embedding_length")?;
        let vocab_size = self.tensors.get("token_embd.weight").and_then(|info| info.shape.first());
        let token = |name: &str| self.number(&format!("tokenizer.ggml.{name}")).map(|id| id as u32);
        let epsilon = self.number("llama.attention.layer_norm_rms_epsilon").unwrap_or(1e-5);
        let mut config = ModelConfig {
            model_type: "llama".to_owned(),
            architectures: vec!["LlamaForCausalLM".to_owned()],
            vocab_size: vocab_size.copied().unwrap_or_default(),
            hidden_size,
            intermediate_size: needed("feed_forward_length")?,
            num_hidden_layers: needed("block_count")?,
            num_attention_heads: heads,
            num_key_value_heads: size("attention.head_count_kv").unwrap_or(heads),
            head_dim: size("attention.key_length").unwrap_or(hidden_size / heads.max(1)),
            max_position_embeddings: needed("context_length")?,
            rms_norm_eps: epsilon as f32,
            rope_theta: self.number("llama.rope.freq_base").unwrap_or(10_000.0) as f32,
            tie_word_embeddings: !self.tensors.contains_key("output.weight"),
            qkv_bias: false,
            qk_norm: false,
            bos_token_id: token("bos_token_id"),
            eos_token_ids: ["eos_token_id", "eot_token_id"].into_iter().filter_map(token).collect(),
        };
        config.eos_token_ids.dedup();
        if let Some(reason) = config.contradiction() {
            return Err(ModelError::Config { path: self.path.clone(), reason });
        }
        match size("rope.dimension_count").filter(|rotated| *rotated != config.head_dim) {
            Some(rotated) => {
                let what = format!("llama.rope.dimension_count {rotated} for heads of {}", config.head_dim);
                Err(self.unsupported(what))
            }
            None => Ok(config),
        }
    }

    /// The tokenizer, in the words of `tokenizer.json`.
    pub(crate) fn tokenizer_json(&self) -> Result<Vec<u8>, ModelError> {
        let kind = self.text("tokenizer.ggml.model").unwrap_or_default();
        if kind != "gpt2" {
            return Err(self.unsupported(format!("tokenizer {kind:?} (supported: gpt2)")));
        }
        let pre = self.text("tokenizer.ggml.pre").unwrap_or("default");
        let Some(pre_tokenizer) = pre_tokenizer(pre) else {
            return Err(self.unsupported(format!("pre-tokenizer {pre:?}")));
        };
        let tokens = self.texts("tokenizer.ggml.tokens");
        let merges = self.texts("tokenizer.ggml.merges");
        let types = self.list("tokenizer.ggml.token_type");
        let added: Vec<Value> = tokens
            .iter()
            .zip(types)
            .enumerate()
            .filter(|(_, (_, kind))| [Meta::Number(CONTROL), Meta::Number(USER_DEFINED)].contains(kind))
            .map(|(id, (token, kind))| {
                json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": *kind == Meta::Number(CONTROL),
                })
            })
            .collect();
        let vocab: serde_json::Map<String, Value> =
            tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect();
        let begins = match self.metadata.get("tokenizer.ggml.add_bos_token") {
            Some(Meta::Bool(begins)) => *begins,
            // As in llama.cpp (`llama-vocab.cpp`): of those that are read here, Llama 3's alone begins so unasked.
            _ => pre == "llama-bpe",
        };
        let bos = self.number("tokenizer.ggml.bos_token_id").filter(|_| begins).map(|id| id as usize);
        let post_processor = match bos.and_then(|id| Some((id, tokens.get(id)?))) {
            Some((id, token)) => json!({
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {*token: {"id": token, "ids": [id], "tokens": [token]}},
            }),
            None => Value::Null,
        };
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": pre == "llama-bpe"},
        });
        serde_json::to_vec(&tokenizer).map_err(|source| ModelError::Json { path: self.path.clone(), source })
    }

    /// The chat template, and the texts of the tokens that begin and end a sequence.
    pub(crate) fn chat_template(&self) -> Option<(&str, [Option<&str>; 2])> {
        let tokens = self.texts("tokenizer.ggml.tokens");
        let token = |name: &str| {
            let id = self.number(&format!("tokenizer.ggml.{name}"))? as usize;
            tokens.get(id).copied()
        };
        Some((self.text("tokenizer.chat_template")?, [token("bos_token_id"), token("eos_token_id")]))
    }

    /// A tensor by Hugging Face's name, after checking its shape.
    pub(crate) fn load(
        &self,
        tensor: &str,
        expected: &[usize],
        config: &ModelConfig,
    ) -> Result<Matrix, ModelError> {
        let name = gguf_name(tensor);
        let Some(info) = name.as_ref().and_then(|name| self.tensors.get(name)) else {
            let tensor = name.unwrap_or_else(|| tensor.to_owned());
            return Err(ModelError::NoTensor { path: self.path.clone(), tensor });
        };
        if info.shape != expected {
            return Err(ModelError::Shape {
                path: self.path.clone(),
                tensor: tensor.to_owned(),
                found: info.shape.clone(),
                expected: expected.to_owned(),
            });
        }
        let len = info.byte_len().unwrap_or_default();
        let values = info.format.read(&self.bytes[self.data_start + info.offset..][..len]);
        let is_rotated = tensor.ends_with("q_proj.weight") || tensor.ends_with("k_proj.weight");
        Ok(if is_rotated {
            values.with_rows(expected[1], halves_in_order(expected[0], config.head_dim))
        } else {
            values
        })
    }

    /// Refuses a file with a tensor that is none of these, by Hugging Face's names: what is left out would be missing in every
    /// number.
    pub(crate) fn check_unread(&self, read: &BTreeSet<String>) -> Result<(), ModelError> {
        let read: BTreeSet<String> = read.iter().filter_map(|tensor| gguf_name(tensor)).collect();
        match self.tensors.keys().find(|name| !read.contains(*name)) {
            Some(name) => Err(self.unsupported(format!("tensor {name}"))),
            None => Ok(()),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn unsupported(&self, what: String) -> ModelError {
        ModelError::Unsupported { path: self.path.clone(), what }
    }

    fn number(&self, key: &str) -> Option<f64> {
        match self.metadata.get(key) {
            Some(Meta::Number(number)) => Some(*number),
            _ => None,
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key) {
            Some(Meta::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn list(&self, key: &str) -> &[Meta] {
        match self.metadata.get(key) {
            Some(Meta::List(list)) => list,
            _ => &[],
        }
    }

    fn texts(&self, key: &str) -> Vec<&str> {
        self.list(key)
            .iter()
            .map(|meta| if let Meta::Text(text) = meta { text.as_str() } else { "" })
            .collect()
    }
}

/// How text is cut before bytes are paired: by llama.cpp's name for it.
fn pre_tokenizer(name: &str) -> Option<Value> {
    let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let split = |digits: &str| {
        let pattern = format!(
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{{L}}\\p{{N}}]?\\p{{L}}+|\\p{{N}}{digits}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
        );
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
    };
    let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "pretokenizers": parts});
    match name {
        "gpt-2" => Some(bytes(true)),
        "smollm" => Some(sequence(vec![json!({"type": "Digits", "individual_digits": true}), bytes(true)])),
        "llama-bpe" => Some(sequence(vec![split("{1,3}"), bytes(false)])),
        "qwen2" => Some(sequence(vec![split(""), bytes(false)])),
        _ => None,
    }
}

/// llama.cpp's name of a tensor.
pub(crate) fn gguf_name(tensor: &str) -> Option<String> {
    let whole = match tensor {
        "model.embed_tokens.weight" => Some("token_embd.weight"),
        "model.norm.weight" => Some("output_norm.weight"),
        "lm_head.weight" => Some("output.weight"),
        _ => None,
    };
    if let Some(name) = whole {
        return Some(name.to_owned());
    }
    let (layer, part) = tensor.strip_prefix("model.layers.")?.split_once('.')?;
    let part = match part.strip_suffix(".weight")? {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "post_attention_layernorm" => "ffn_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{part}.weight"))
}

/// Which row of the file stands in which place: there the two halves of a head lie in turns, here one after the other.
fn halves_in_order(rows: usize, head_dim: usize) -> impl Iterator<Item = usize> + Clone {
    (0..rows).map(move |row| {
        let (head, place, half_dim) = (row / head_dim, row % head_dim, head_dim / 2);
        head * head_dim + 2 * (place % half_dim) + place / half_dim
    })
}

// === impl TensorInfo ===

impl TensorInfo {
    /// Bytes of the data; none if the shape does not fit the format's blocks.
    fn byte_len(&self) -> Option<usize> {
        let (values, bytes) = self.format.block();
        let count = self.shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size))?;
        let whole = self.shape.last().is_some_and(|columns| columns % values == 0);
        if whole { (count / values).checked_mul(bytes) } else { None }
    }
}

#[cfg(test)]
mod tests;
