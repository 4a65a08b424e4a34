//! The model's shape, from `config.json` and `generation_config.json`.

use std::path::Path;

use serde::Deserialize;

use crate::error::ModelError;

/// The shape of a model of the Llama family, checked: every size is positive and they fit each other.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// Hugging Face's name of the model family: `llama`, `qwen2` or `qwen3`.
    pub model_type: String,
    /// The classes that the checkpoint was written for.
    pub architectures: Vec<String>,
    /// Rows of the embedding, and logits a position.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's gated layer.
    pub intermediate_size: usize,
    /// Transformer layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Longest sequence, tokens.
    pub max_position_embeddings: usize,
    /// Added to the mean square in a norm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// The output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Queries, keys and values have a bias (Qwen2).
    pub qkv_bias: bool,
    /// Each head's query and key are normed before they are rotated (Qwen3).
    pub qk_norm: bool,
    /// Begin-of-sequence token.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a sequence: of `generation_config.json` if it names any, else of `config.json`.
    pub eos_token_ids: Vec<u32>,
}

/// The fields of `config.json` that may ask for more than plain Llama. They are read first: the other fields of another
/// architecture have other names.
#[derive(Debug, Deserialize)]
struct Demands {
    #[serde(default)]
    architectures: Vec<String>,
    rope_scaling: Option<RopeFile>,
    rope_parameters: Option<RopeFile>,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    /// What kind of attention each layer has, in newer configurations.
    #[serde(default)]
    layer_types: Vec<String>,
    partial_rotary_factor: Option<f32>,
    quantization_config: Option<serde::de::IgnoredAny>,
}

/// `config.json` of a Llama as it is on disk; unknown fields are ignored.
#[derive(Debug, Deserialize)]
struct ConfigFile {
    #[serde(default)]
    model_type: String,
    #[serde(default)]
    architectures: Vec<String>,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    rms_norm_eps: f32,
    rope_theta: Option<f32>,
    rope_parameters: Option<RopeFile>,
    #[serde(default)]
    tie_word_embeddings: bool,
    bos_token_id: Option<u32>,
    eos_token_id: Option<TokenIds>,
}

/// `rope_scaling` of older configurations, `rope_parameters` of newer ones.
#[derive(Debug, Deserialize)]
struct RopeFile {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f32>,
    factor: Option<f32>,
    partial_rotary_factor: Option<f32>,
}

/// The part of `generation_config.json` that matters here.
#[derive(Debug, Deserialize)]
struct GenerationFile {
    eos_token_id: Option<TokenIds>,
}

/// One token id or a list of them.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TokenIds {
    One(u32),
    Many(Vec<u32>),
}

const LLAMA: &str = "LlamaForCausalLM";
const QWEN2: &str = "Qwen2ForCausalLM";
const QWEN3: &str = "Qwen3ForCausalLM";

/// `rope_theta` where a configuration is silent, as Hugging Face has it.
const DEFAULT_ROPE_THETA: f32 = 10_000.0;

// === impl ModelConfig ===

impl ModelConfig {
    /// Parses `config.json`, read from `path`.
    pub(crate) fn parse(json: &[u8], path: &Path) -> Result<Self, ModelError> {
        let malformed = |source| ModelError::Json { path: path.to_owned(), source };
        let demands: Demands = serde_json::from_slice(json).map_err(malformed)?;
        if let Some(what) = demands.unsupported() {
            return Err(ModelError::Unsupported { path: path.to_owned(), what });
        }
        let file: ConfigFile = serde_json::from_slice(json).map_err(malformed)?;
        let config = file.into_config();
        match config.contradiction() {
            Some(reason) => Err(ModelError::Config { path: path.to_owned(), reason }),
            None => Ok(config),
        }
    }

    /// Lets `generation_config.json`, read from `path`, overrule the tokens that end a sequence.
    pub(crate) fn apply_generation(&mut self, json: &[u8], path: &Path) -> Result<(), ModelError> {
        let file: GenerationFile = serde_json::from_slice(json)
            .map_err(|source| ModelError::Json { path: path.to_owned(), source })?;
        if let Some(ids) = file.eos_token_id {
            self.eos_token_ids = ids.into_vec();
        }
        Ok(())
    }

    /// Whether weights of one fit the other, and mean the same.
    pub(crate) fn has_shape_of(&self, other: &Self) -> bool {
        let sizes = |config: &Self| {
            let Self { vocab_size, hidden_size, intermediate_size, num_hidden_layers, .. } = *config;
            let heads = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
            let floats = (config.rms_norm_eps.to_bits(), config.rope_theta.to_bits());
            let tied = (config.tie_word_embeddings, config.qkv_bias, config.qk_norm);
            ((vocab_size, hidden_size, intermediate_size, num_hidden_layers), heads, floats, tied)
        };
        sizes(self) == sizes(other)
    }

    /// Width of all query heads together.
    pub(crate) fn query_size(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub(crate) fn kv_size(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// What in it cannot be.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_position_embeddings),
        ];
        if let Some((name, size)) = sizes.iter().find(|(_, size)| !(1..=1 << 24).contains(size)) {
            return Some(format!("{name} is {size}"));
        }
        let Self { num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } = self;
        if heads % kv_heads != 0 {
            return Some(format!("{heads} attention heads are no multiple of {kv_heads} key-value heads"));
        }
        if head_dim % 2 != 0 {
            return Some(format!("head_dim is odd: {head_dim}"));
        }
        if !(self.rope_theta.is_finite() && self.rope_theta > 0.0) {
            return Some(format!("rope_theta is {}", self.rope_theta));
        }
        if !(self.rms_norm_eps.is_finite() && self.rms_norm_eps >= 0.0) {
            return Some(format!("rms_norm_eps is {}", self.rms_norm_eps));
        }
        None
    }
}

// === impl Demands ===

impl Demands {
    /// The first field that asks for more than plain Llama, with its value.
    fn unsupported(&self) -> Option<String> {
        if !self.architectures.iter().any(|name| [LLAMA, QWEN2, QWEN3].contains(&name.as_str())) {
            return Some(format!(
                "architecture {:?} (supported: {LLAMA}, {QWEN2}, {QWEN3})",
                self.architectures
            ));
        }
        for rope in [&self.rope_scaling, &self.rope_parameters].into_iter().flatten() {
            if let Some(kind) = rope.rope_type.as_deref().filter(|kind| *kind != "default") {
                return Some(format!("rope type {kind:?}"));
            }
            if let Some(factor) = rope.factor.filter(|factor| ![1.0].contains(factor)) {
                return Some(format!("rope factor {factor}"));
            }
        }
        let of_rope = self.rope_parameters.as_ref().and_then(|rope| rope.partial_rotary_factor);
        if let Some(part) = self.partial_rotary_factor.or(of_rope).filter(|part| ![1.0].contains(part)) {
            return Some(format!("partial_rotary_factor {part}"));
        }
        if let Some(kind) = self.layer_types.iter().find(|kind| *kind != "full_attention") {
            return Some(format!("layer type {kind:?}"));
        }
        if self.quantization_config.is_some() {
            return Some("quantization_config".to_owned());
        }
        if let Some(act) = self.hidden_act.as_deref().filter(|act| *act != "silu") {
            return Some(format!("hidden_act {act:?}"));
        }
        if self.attention_bias {
            return Some("attention_bias true".to_owned());
        }
        if self.use_sliding_window {
            return Some("use_sliding_window true".to_owned());
        }
        self.mlp_bias.then(|| "mlp_bias true".to_owned())
    }
}

// === impl ConfigFile ===

impl ConfigFile {
    fn into_config(self) -> ModelConfig {
        let rope_theta = self.rope_theta.or_else(|| self.rope_parameters.as_ref()?.rope_theta);
        ModelConfig {
            qkv_bias: self.architectures.iter().any(|name| name == QWEN2),
            qk_norm: self.architectures.iter().any(|name| name == QWEN3),
            model_type: self.model_type,
            architectures: self.architectures,
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_dim: self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1)),
            max_position_embeddings: self.max_position_embeddings,
            rms_norm_eps: self.rms_norm_eps,
            rope_theta: rope_theta.unwrap_or(DEFAULT_ROPE_THETA),
            tie_word_embeddings: self.tie_word_embeddings,
            bos_token_id: self.bos_token_id,
            eos_token_ids: self.eos_token_id.map_or_else(Vec::new, TokenIds::into_vec),
        }
    }
}

// === impl TokenIds ===

impl TokenIds {
    fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}
