//! A model: configuration, weights and tokenizer.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::checkpoint::{Files, Tensors};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::forward::{self, Logits, Row};
use crate::isa::Isa;
use crate::kv::KvPool;
use crate::tokenizer::Tokenizer;
use crate::weights::Weights;

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
    isa: Isa,
}

// === impl Model ===

impl Model {
    /// The model embedded in the program: byte-level chained addition (`47+85+19=?` is answered step by step), 829
    /// thousand parameters.
    pub fn bundled() -> Result<Self, ModelError> {
        Self::load(&Files::bundled())
    }

    /// Reads a checkpoint in Hugging Face's layout: `config.json`, `tokenizer.json`, `model.safetensors` (or shards with
    /// their index) and, if there is one, `generation_config.json`. Weights may be BF16, F16 or F32; they are f32 in memory.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        Self::load(&Files::open(dir)?)
    }

    pub(crate) fn load(files: &Files) -> Result<Self, ModelError> {
        let mut config = ModelConfig::parse(&files.read("config.json")?, &files.path("config.json"))?;
        if let Some(json) = files.try_read("generation_config.json")? {
            config.apply_generation(&json, &files.path("generation_config.json"))?;
        }
        let tokenizer = Tokenizer::parse(&files.read("tokenizer.json")?, &files.path("tokenizer.json"))?;
        let weights = Weights::load(&Tensors::read(files)?, &config)?;
        let fingerprint = AtomicU64::new(weights.fingerprint);
        Ok(Self { config, tokenizer, weights: RwLock::new(Some(weights)), fingerprint, isa: Isa::detect() })
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

    /// The same model computing with baseline instructions.
    #[cfg(test)]
    pub(crate) fn on_portable_kernels(mut self) -> Self {
        self.isa = Isa::PORTABLE;
        self
    }
}
