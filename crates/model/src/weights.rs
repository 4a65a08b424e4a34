//! A checkpoint's weights, laid out for the kernels.

use std::collections::BTreeSet;

use crate::checkpoint::Tensors;
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::gguf::Gguf;
use crate::kernels::Packed;
use crate::quants::Matrix;

/// All weights of a model.
#[derive(Debug)]
pub(crate) struct Weights {
    /// One output a token: a lookup, and the output head if that is tied.
    pub(crate) embedding: Packed,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Vec<f32>,
    /// Radians that each pair of a head's dimensions turns by a position. Not in the checkpoint.
    pub(crate) rotary: Vec<f32>,
    /// The output head, if it is not the embedding.
    pub(crate) head: Option<Packed>,
    /// A hash of the shape and of every weight.
    pub(crate) fingerprint: u64,
}

/// The weights of a transformer layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    /// Queries, then keys, then values.
    pub(crate) qkv: Packed,
    /// Added to them.
    pub(crate) qkv_bias: Option<Vec<f32>>,
    /// Norms of a head's query and of its key.
    pub(crate) qk_norm: Option<[Vec<f32>; 2]>,
    pub(crate) output: Packed,
    pub(crate) mlp_norm: Vec<f32>,
    /// Gate, then up.
    pub(crate) gate_up: Packed,
    pub(crate) down: Packed,
}

/// Where tensors are read from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Safetensors(&'a Tensors),
    Gguf(&'a Gguf),
}

/// Reads tensors in a fixed order and hashes them on the way.
struct Loader<'a> {
    source: Source<'a>,
    config: &'a ModelConfig,
    hash: u64,
    /// The names of those that were read.
    read: BTreeSet<String>,
}

// === impl Weights ===

impl Weights {
    pub(crate) fn load(source: Source<'_>, config: &ModelConfig) -> Result<Self, ModelError> {
        let mut loader = Loader { source, config, hash: 0, read: BTreeSet::new() };
        loader.hash_shape(config);
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embedding =
            Packed::stack(hidden, &[&loader.matrix("model.embed_tokens.weight", vocab, hidden)?])?;
        let layers = (0..config.num_hidden_layers)
            .map(|index| loader.layer(index, config))
            .collect::<Result<_, _>>()?;
        let norm = loader.vector("model.norm.weight", hidden)?;
        let head = if config.tie_word_embeddings {
            None
        } else {
            Some(Packed::stack(hidden, &[&loader.matrix("lm_head.weight", vocab, hidden)?])?)
        };
        match source {
            Source::Safetensors(tensors) => tensors.check_unread(&loader.read)?,
            Source::Gguf(gguf) => gguf.check_unread(&loader.read)?,
        }
        Ok(Self { embedding, layers, norm, rotary: rotary(config), head, fingerprint: loader.hash })
    }

    /// Memory that they take.
    pub(crate) fn bytes(&self) -> usize {
        let floats = |values: &[f32]| size_of_val(values);
        let layer = |layer: &Layer| {
            let matrices = [&layer.qkv, &layer.output, &layer.gate_up, &layer.down].map(Packed::bytes);
            let norms = layer.qk_norm.iter().flatten().map(|norm| floats(norm)).sum::<usize>();
            let bias = layer.qkv_bias.as_deref().map_or(0, floats);
            let vectors = floats(&layer.attention_norm) + floats(&layer.mlp_norm) + norms + bias;
            matrices.into_iter().sum::<usize>() + vectors
        };
        self.embedding.bytes()
            + self.layers.iter().map(layer).sum::<usize>()
            + floats(&self.norm)
            + floats(&self.rotary)
            + self.head.as_ref().map_or(0, Packed::bytes)
    }

    pub(crate) fn head(&self) -> &Packed {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// The rotary frequencies. In f32 where Hugging Face's implementation is, for the models were trained on its rounding.
fn rotary(config: &ModelConfig) -> Vec<f32> {
    let frequency = |index: usize| {
        let exponent = 2.0 * index as f64 / config.head_dim as f64;
        (1.0 / libm::pow(f64::from(config.rope_theta), exponent)) as f32
    };
    (0..config.head_dim / 2).map(frequency).collect()
}

// === impl Loader ===

impl Loader<'_> {
    fn layer(&mut self, index: usize, config: &ModelConfig) -> Result<Layer, ModelError> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (queries, kv) = (config.query_size(), config.kv_size());
        let name = |part: &str| format!("model.layers.{index}.{part}.weight");
        let attention_norm = self.vector(&name("input_layernorm"), hidden)?;
        let q = self.matrix(&name("self_attn.q_proj"), queries, hidden)?;
        let k = self.matrix(&name("self_attn.k_proj"), kv, hidden)?;
        let v = self.matrix(&name("self_attn.v_proj"), kv, hidden)?;
        let output = self.matrix(&name("self_attn.o_proj"), hidden, queries)?;
        let qkv_bias = if config.qkv_bias { Some(self.biases(index, config)?) } else { None };
        let qk_norm = if config.qk_norm {
            let norms = ["self_attn.q_norm", "self_attn.k_norm"];
            Some([
                self.vector(&name(norms[0]), config.head_dim)?,
                self.vector(&name(norms[1]), config.head_dim)?,
            ])
        } else {
            None
        };
        let mlp_norm = self.vector(&name("post_attention_layernorm"), hidden)?;
        let gate = self.matrix(&name("mlp.gate_proj"), inner, hidden)?;
        let up = self.matrix(&name("mlp.up_proj"), inner, hidden)?;
        let down = self.matrix(&name("mlp.down_proj"), hidden, inner)?;
        Ok(Layer {
            attention_norm,
            qkv_bias,
            qk_norm,
            qkv: Packed::stack(hidden, &[&q, &k, &v])?,
            output: Packed::stack(queries, &[&output])?,
            mlp_norm,
            gate_up: Packed::stack(hidden, &[&gate, &up])?,
            down: Packed::stack(inner, &[&down])?,
        })
    }

    /// Those of queries, keys and values, one after the other.
    fn biases(&mut self, index: usize, config: &ModelConfig) -> Result<Vec<f32>, ModelError> {
        let mut biases = Vec::new();
        for (part, len) in [("q", config.query_size()), ("k", config.kv_size()), ("v", config.kv_size())] {
            biases.extend(self.vector(&format!("model.layers.{index}.self_attn.{part}_proj.bias"), len)?);
        }
        Ok(biases)
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Matrix, ModelError> {
        self.load(name, &[rows, columns])
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.load(name, &[len]).map(Matrix::into_values)
    }

    fn load(&mut self, name: &str, shape: &[usize]) -> Result<Matrix, ModelError> {
        let matrix = match self.source {
            Source::Safetensors(tensors) => Matrix::Floats(tensors.load(name, shape)?),
            Source::Gguf(gguf) => gguf.load(name, shape, self.config)?,
        };
        self.read.insert(name.to_owned());
        matrix.for_each_value(|value| self.hash(u64::from(value.to_bits())));
        Ok(matrix)
    }

    fn hash_shape(&mut self, config: &ModelConfig) {
        let sizes = [
            config.vocab_size,
            config.hidden_size,
            config.intermediate_size,
            config.num_hidden_layers,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            usize::from(config.tie_word_embeddings),
        ];
        for size in sizes {
            self.hash(size as u64);
        }
        self.hash(u64::from(config.rms_norm_eps.to_bits()));
        self.hash(u64::from(config.rope_theta.to_bits()));
    }

    /// A step of a multiplicative hash by an odd constant, 2⁶⁴ over the golden ratio.
    fn hash(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(25) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
