//! What may go wrong with a checkpoint, a step or a pool, each naming the file, tensor or row at fault.

use std::io;
use std::path::PathBuf;

/// An error of this crate, sampling parameters aside ([`crate::sampling::SamplingError`]).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The model directory does not exist, or is not a directory.
    #[error("no model directory at {}", .dir.display())]
    NoDirectory {
        /// The directory asked for.
        dir: PathBuf,
    },
    /// A file of the checkpoint cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file of the checkpoint is not the JSON expected of it.
    #[error("malformed {}", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The configuration asks for something that this crate does not compute.
    #[error("unsupported {what} in {}", .path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The field and its value.
        what: String,
    },
    /// The configuration contradicts itself.
    #[error("impossible configuration in {}: {reason}", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        reason: String,
    },
    /// A weights file is truncated, or not in the safetensors format.
    #[error("malformed safetensors {}", .path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: safetensors::SafeTensorError,
    },
    /// A GGUF file is truncated, or not one.
    #[error("malformed GGUF file {}", .path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
    },
    /// The weights lack a tensor.
    #[error("no tensor {tensor} in {}", .path.display())]
    NoTensor {
        /// The weights file, or the index of a sharded checkpoint.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor has another shape than the configuration asks for.
    #[error("tensor {tensor} in {} has shape {found:?}, expected {expected:?}", .path.display())]
    Shape {
        /// The weights file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that the configuration implies.
        expected: Vec<usize>,
    },
    /// A tensor's elements are of a type that cannot be read; BF16, F16 and F32 can.
    #[error("tensor {tensor} in {} has unsupported type {dtype}", .path.display())]
    Dtype {
        /// The weights file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The type in the file.
        dtype: String,
    },
    /// `tokenizer.json` cannot be understood.
    #[error("malformed tokenizer {}", .path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The tokenizer's own words.
        source: tokenizers::Error,
    },
    /// The tokenizer cannot encode a text.
    #[error("cannot encode the text")]
    Encode(#[source] tokenizers::Error),
    /// The tokenizer cannot decode token ids.
    #[error("cannot decode the tokens")]
    Decode(#[source] tokenizers::Error),
    /// The weights do not fit into memory.
    #[error("no memory for {bytes} bytes of weights")]
    Memory {
        /// Bytes of one matrix.
        bytes: usize,
        /// What the operating system said.
        source: io::Error,
    },
    /// The weights were given up.
    #[error("the model's weights are released")]
    Released,
    /// A checkpoint is not one of the same model.
    #[error("the checkpoint is of another shape than the model that is served")]
    OtherShape,
    /// A KV pool of this size cannot exist.
    #[error("cannot make a KV pool of {pages} pages of {page_tokens} tokens")]
    PoolSize {
        /// Pages asked for.
        pages: usize,
        /// Tokens a page asked for.
        page_tokens: usize,
    },
    /// The pool was made for a model of another shape.
    #[error("the KV pool was made for another model shape")]
    PoolShape,
    /// A row of a step cannot be computed. The step has changed nothing.
    #[error("row {index} of the step")]
    Row {
        /// The row's place in the step.
        index: usize,
        /// What is wrong with it.
        source: RowError,
    },
}

/// Why a row cannot be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// It has no tokens.
    #[error("no tokens")]
    Empty,
    /// It ends beyond the longest sequence that the model knows.
    #[error("ends at position {end}, the limit is {limit}")]
    TooLong {
        /// One past its last position.
        end: usize,
        /// The model's `max_position_embeddings`.
        limit: usize,
    },
    /// A token id is not in the vocabulary.
    #[error("token {token} is not in the vocabulary of {vocab_size}")]
    Token {
        /// The token.
        token: u32,
        /// The size of the vocabulary.
        vocab_size: usize,
    },
    /// Its pages do not hold its last position.
    #[error("needs {needed} pages, has {pages}")]
    FewPages {
        /// Pages that its last position needs.
        needed: usize,
        /// Pages that it has.
        pages: usize,
    },
    /// A page is not in the pool.
    #[error("page {page} is not in the pool of {total}")]
    Page {
        /// The page.
        page: u32,
        /// The pool's size, pages.
        total: usize,
    },
}
