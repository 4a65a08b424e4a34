//! A sample as the rollout code sees it, and the file of a step's samples.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::RolloutError;

/// One finished sample: a line of `samples-step-NNNNNN.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Its step.
    pub step: u64,
    /// Its prompt's number within the step.
    pub group: u64,
    /// Its number within the group.
    pub index: u64,
    /// The attempt that gave it; the first is 0.
    pub attempt: u32,
    /// What the model was given.
    pub prompt: String,
    /// What it said.
    pub response: String,
    /// Tokens of the response.
    pub output_ids: Vec<u32>,
    /// Log-probability of each token; null where the worker had none.
    pub output_logprobs: Vec<Option<f64>>,
    /// The tokens that top-p below 1 kept at each of them, as SGLang tells them: base64 of little-endian int32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p_token_ids: Option<String>,
    /// Where each token's begin among them, and after the last one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p_token_offsets: Option<String>,
    /// How many they are, also where the worker only counted them; nothing where it told nothing.
    pub response_tokens: Option<u64>,
    /// Its reward, where the prompt has an answer.
    pub reward: Option<f64>,
    /// Why generation ended; nothing where the worker did not say.
    pub finish_reason: Option<String>,
    /// Weights that answered.
    pub weight_version: Option<String>,
    /// Why it could not be had; its other results are empty then.
    pub error: Option<String>,
}

impl Sample {
    /// Whether the limit of tokens cut it; nothing where the worker did not say why it ended.
    pub fn is_truncated(&self) -> Option<bool> {
        self.finish_reason.as_ref().map(|reason| reason == "length")
    }
}

/// Writes a step's samples, in order of group and index.
pub(crate) fn write_step(dir: &Path, step: u64, samples: &[Sample]) -> Result<PathBuf, RolloutError> {
    let path = dir.join(format!("samples-step-{step:06}.jsonl"));
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(dir)?;
        let mut file = BufWriter::new(File::create(&path)?);
        for sample in samples {
            serde_json::to_writer(&mut file, sample)?;
            file.write_all(b"\n")?;
        }
        file.flush()
    };
    write().map_err(|source| RolloutError::Output { path: path.clone(), source })?;
    Ok(path)
}
