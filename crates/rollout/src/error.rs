//! What can end a rollout.

use std::path::PathBuf;

/// Why a rollout ended early, or never began.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// The address is no HTTP URL.
    #[error("not an http:// address of a gateway: {url}")]
    Url {
        /// As given.
        url: String,
    },
    /// A file of prompts could not be read.
    #[error("cannot read prompts from {}: {source}", path.display())]
    PromptsUnreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line of a file of prompts is no prompt.
    #[error("{}: line {line}: {reason}", path.display())]
    PromptMalformed {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// There is nothing to sample.
    #[error("no prompts in {}", path.display())]
    NoPrompts {
        /// The file.
        path: PathBuf,
    },
    /// A step would have no samples.
    #[error("there is nothing to sample: no prompts, or no samples of them")]
    NothingToSample,
    /// Samples could not be written.
    #[error("cannot write samples to {}: {source}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not one sample of a step could be had.
    #[error("step {step}: every sample failed; the last error: {last}")]
    StepFailed {
        /// The step.
        step: u64,
        /// What the last of them met.
        last: String,
    },
}
