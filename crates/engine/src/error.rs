//! Why an engine does not start or does not go on.

use std::io;

use rollscope_config::ConfigError;
use rollscope_model::ModelError;

use crate::sim::CostModelError;

/// An error that ends the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The options do not make sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cost model of a simulated backend cannot be used.
    #[error(transparent)]
    CostModel(#[from] CostModelError),
    /// The model cannot be loaded, or the KV cache cannot be made.
    #[error("cannot load model {model_path}: {}", sentence(.source))]
    Model {
        /// The model asked for.
        model_path: String,
        /// What is wrong with it.
        source: ModelError,
    },
    /// Longer sequences are asked for than the model knows.
    #[error("context_length is {asked}, the model's limit is {limit}")]
    ContextLength {
        /// Tokens asked for.
        asked: usize,
        /// The model's `max_position_embeddings`.
        limit: usize,
    },
    /// A port that other servers are to find cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// A thread cannot be started, or has panicked while it loaded the model.
    #[error("cannot run a thread: {0}")]
    Thread(#[source] io::Error),
    /// The scheduler ended by itself, which is a fault of the program.
    #[error("the scheduler has stopped")]
    SchedulerStopped,
    /// Pages, metadata slots or rooms are held without a request, or twice, which is one as well.
    #[error("the scheduler's books do not balance: {0}")]
    Unbalanced(String),
}

// === impl EngineError ===

impl EngineError {
    /// Whether the options are to blame: exit code 2 of the command line rather than 1.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Config(_) | Self::CostModel(_) | Self::Model { .. } | Self::ContextLength { .. } => true,
            // The same options are fine once the port is free.
            Self::Listen { .. } | Self::Thread(_) | Self::SchedulerStopped | Self::Unbalanced(_) => false,
        }
    }
}

/// A model's error with what is behind it, so that one sentence says all.
pub(crate) fn sentence(error: &ModelError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
