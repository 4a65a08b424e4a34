//! Checkpoints, kernels, paged KV cache and sampling of the embedded engine.
//!
//! A [`Model`] is a checkpoint with its [`Tokenizer`]: shared behind an `Arc`, computing on the caller's thread, immutable but
//! for its weights, which may be given up and replaced. A scheduler step is one call of [`Model::forward`] over [`Row`]s, each a
//! stretch of one sequence whose keys and values lie on pages of a [`KvPool`].
//!
//! Invariant: the bits of a row's logits depend on the sequence alone: not on the other rows of the step, not on how
//! the prompt was cut into chunks, not on which pages hold it, not on the instruction set of the machine. So a decode
//! engine that received its pages over the network goes on exactly as the prefill engine would have. It holds because
//! every reduction has one fixed order, written once in portable code (see the module `kernels`).
//!
//! Absent here: threads, clocks, async, the network, logging.

mod error;

mod config;

mod checkpoint;

mod quants;

mod gguf;

mod tokenizer;

mod memory;

mod isa;

mod kernels;

mod kv;

mod weights;

mod forward;

mod model;

pub mod sampling;

#[cfg(test)]
mod tests;

pub use config::ModelConfig;
pub use error::{ModelError, RowError};
pub use forward::{Logits, Row, Wanted};
pub use kv::{KvPool, PageId};
pub use model::{ChatTemplate, Model};
pub use tokenizer::{TextStream, Tokenizer};
