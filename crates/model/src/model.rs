//! A model: configuration, weights and tokenizer.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;
use serde::Deserialize;

use crate::checkpoint::{Files, Tensors};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::forward::{self, Logits, Row};
use crate::gguf::Gguf;
use crate::isa::Isa;
use crate::kv::KvPool;
use crate::tokenizer::Tokenizer;
use crate::weights::{Source, Weights};

/// A model, ready to compute; share it behind an `Arc`. All of it is immutable but the weights, which can be given up and
/// replaced by others of the same shape.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    tokenizer: Tokenizer,
    /// None while they are released. A step holds them to its end.
    weights: RwLock<Option<Weights>>,
    /// Of the latest weights.
    fingerprint: AtomicU64,
    /// Memory that they take, to be told while a step holds them.
    weight_bytes: AtomicUsize,
    chat_template: Option<ChatTemplate>,
    isa: Isa,
}

/// How a checkpoint has messages written as a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    /// The template, Jinja.
    pub source: String,
    /// The text of the token that begins a sequence; empty if there is none.
    pub bos_token: String,
    /// That of the one that ends it.
    pub eos_token: String,
}

/// The part of `tokenizer_config.json` that matters here.
#[derive(Debug, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<SpecialToken>,
    eos_token: Option<SpecialToken>,
}

/// One template, or several by name.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// A token's text, by itself or with its properties.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Text(String),
    Object { content: String },
}

// === impl Model ===

impl Model {
    /// The model embedded in the program: byte-level chained addition (`47+85+19=?` is answered step by step), 829
    /// thousand parameters.
    pub fn bundled() -> Result<Self, ModelError> {
        Self::load(&Files::bundled())
    }

    /// No model: the tokenizer of the embedded one, a KV cache of two floats a token and side, and no weights, so that steps fail.
    /// It is for servers that only act as if they computed.
    pub fn simulated(context_length: usize) -> Result<Self, ModelError> {
        let model = Self::bundled()?;
        model.release_weights();
        let mut config = model.config.clone();
        (config.model_type, config.architectures) = ("simulated".to_owned(), vec!["Simulated".to_owned()]);
        (config.num_hidden_layers, config.num_key_value_heads, config.head_dim) = (1, 1, 2);
        config.max_position_embeddings = context_length;
        Ok(Self { config, ..model })
    }

    /// Reads a checkpoint: a GGUF file of the llama architecture, or a directory in Hugging Face's layout: `config.json`,
    /// `tokenizer.json`, `model.safetensors` (or shards with their index) and, if they are there, `generation_config.json`,
    /// `tokenizer_config.json` and `chat_template.jinja`. Quantized weights stay so in memory, others are f32 there.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        if path.extension().is_some_and(|extension| extension == "gguf") && path.is_file() {
            return Self::load_gguf(&Gguf::open(path)?);
        }
        Self::load(&Files::open(path)?)
    }

    fn load_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        let config = gguf.config()?;
        let tokenizer = Tokenizer::parse(&gguf.tokenizer_json()?, gguf.path())?;
        let weights = Weights::load(Source::Gguf(gguf), &config)?;
        let chat_template = gguf.chat_template().map(|(source, [bos, eos])| ChatTemplate {
            source: source.to_owned(),
            bos_token: bos.unwrap_or_default().to_owned(),
            eos_token: eos.unwrap_or_default().to_owned(),
        });
        Ok(Self::of(config, tokenizer, weights, chat_template))
    }

    fn of(
        config: ModelConfig,
        tokenizer: Tokenizer,
        weights: Weights,
        chat_template: Option<ChatTemplate>,
    ) -> Self {
        let fingerprint = AtomicU64::new(weights.fingerprint);
        let weight_bytes = AtomicUsize::new(weights.bytes());
        let weights = RwLock::new(Some(weights));
        Self { config, tokenizer, weights, fingerprint, weight_bytes, chat_template, isa: Isa::detect() }
    }

    pub(crate) fn load(files: &Files) -> Result<Self, ModelError> {
        let mut config = ModelConfig::parse(&files.read("config.json")?, &files.path("config.json"))?;
        if let Some(json) = files.try_read("generation_config.json")? {
            config.apply_generation(&json, &files.path("generation_config.json"))?;
        }
        let tokenizer = Tokenizer::parse(&files.read("tokenizer.json")?, &files.path("tokenizer.json"))?;
        let weights = Weights::load(Source::Safetensors(&Tensors::read(files)?), &config)?;
        Ok(Self::of(config, tokenizer, weights, ChatTemplate::read(files)?))
    }

    /// How messages become a prompt; none for a model that is not for chats.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat_template.as_ref()
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// A hash of shape and weights, the same in every process and for every element type that stores the same values.
    /// Engines that exchange KV pages must agree in it.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint.load(Ordering::Acquire)
    }

    /// Gives the weights' memory back to the operating system. Steps fail until [`Model::replace_weights`].
    pub fn release_weights(&self) {
        *self.weights.write() = None;
        self.weight_bytes.store(0, Ordering::Release);
    }

    /// Memory that the weights take, bytes; none while they are given up.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes.load(Ordering::Acquire)
    }

    /// The weights were given up.
    pub fn is_released(&self) -> bool {
        self.weights.read().is_none()
    }

    /// Computes with the weights of another model from now on.
    ///
    /// # Errors
    /// The other one has another shape; then nothing has changed.
    pub fn replace_weights(&self, other: Self) -> Result<(), ModelError> {
        if !self.config.has_shape_of(&other.config) {
            return Err(ModelError::OtherShape);
        }
        let mut weights = self.weights.write();
        self.fingerprint.store(other.fingerprint(), Ordering::Release);
        self.weight_bytes.store(other.weight_bytes(), Ordering::Release);
        *weights = other.weights.into_inner();
        Ok(())
    }

    /// Computes a step: writes the keys and values of every row's positions onto its pages and puts the logits of the
    /// wanted positions, row by row, into `out`. Runs on the calling thread. An error leaves pages and logits untouched.
    pub fn forward(&self, kv: &mut KvPool, rows: &[Row<'_>], out: &mut Logits) -> Result<(), ModelError> {
        if !kv.fits(&self.config) {
            return Err(ModelError::PoolShape);
        }
        for (index, row) in rows.iter().enumerate() {
            row.check(&self.config, kv).map_err(|source| ModelError::Row { index, source })?;
        }
        let weights = self.weights.read();
        let weights = weights.as_ref().ok_or(ModelError::Released)?;
        forward::run((&self.config, weights, self.isa), kv, rows, out);
        Ok(())
    }

    /// The same model computing with other instructions.
    #[cfg(test)]
    pub(crate) fn on(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self
    }
}

// === impl ChatTemplate ===

impl ChatTemplate {
    /// Of a checkpoint's files: the template has a file of its own, or is in the tokenizer's configuration.
    fn read(files: &Files) -> Result<Option<Self>, ModelError> {
        const NAME: &str = "tokenizer_config.json";
        let config = match files.try_read(NAME)? {
            Some(json) => serde_json::from_slice(&json)
                .map_err(|source| ModelError::Json { path: files.path(NAME), source })?,
            None => TokenizerConfig { chat_template: None, bos_token: None, eos_token: None },
        };
        let own = files.try_read("chat_template.jinja")?;
        let own = own.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let Some(source) = own.or_else(|| config.chat_template?.usual()) else { return Ok(None) };
        let text = |token: Option<SpecialToken>| match token {
            Some(SpecialToken::Text(text) | SpecialToken::Object { content: text }) => text,
            None => String::new(),
        };
        Ok(Some(Self { source, bos_token: text(config.bos_token), eos_token: text(config.eos_token) }))
    }
}

// === impl Templates ===

impl Templates {
    /// The one that is used when none is named.
    fn usual(self) -> Option<String> {
        match self {
            Self::One(template) => Some(template),
            Self::Named(templates) => {
                templates.into_iter().find(|named| named.name == "default").map(|named| named.template)
            }
        }
    }
}
