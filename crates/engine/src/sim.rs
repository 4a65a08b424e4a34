//! The simulated backend: a server without a model, for load tests and planning at sizes that no CPU could run.
//!
//! All is real but the computing: queues, pages, the prefix cache, the transfer. A step takes the time that a cost model says, and
//! tokens are letters drawn from the request's seed. Requests end by their limit, or by a stop of letters.
//!
//! The cost model is a JSON file, all times in seconds:
//!
//! ```json
//! {"prefill": {"base_s": 0.004, "per_token_s": 0.00005},
//!  "decode": {"base_s": 0.006, "per_request_s": 0.0001, "per_kv_token_s": 0.0000001},
//!  "context_length": 131072}
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// What steps cost.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CostModel {
    prefill: PrefillCost,
    decode: DecodeCost,
    /// Longest sequence, tokens.
    #[serde(default = "default_context_length")]
    pub(crate) context_length: usize,
}

/// Of a step that computes prompts: `base_s + per_token_s · tokens`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrefillCost {
    base_s: f64,
    per_token_s: f64,
}

/// Of a step that computes next tokens: `base_s + per_request_s · requests + per_kv_token_s · tokens` of their sequences.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "units come last in names")]
struct DecodeCost {
    base_s: f64,
    per_request_s: f64,
    per_kv_token_s: f64,
}

/// What a step has to compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) prompt_tokens: usize,
    pub(crate) requests: usize,
    pub(crate) kv_tokens: usize,
}

/// Why a cost model cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CostModelError {
    /// The file cannot be read.
    #[error("cannot read cost model {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is not one.
    #[error("malformed cost model {}: {source}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A cost is negative, or too large to be waited for.
    #[error("cost model {}: times must be from 0 to 3600 s, and context_length from 2 to 2^24", .path.display())]
    Range {
        /// The file.
        path: PathBuf,
    },
}

/// Longest time that a cost may be, seconds.
const MAX_S: f64 = 3600.0;
const LETTERS: u64 = 26;

// === impl CostModel ===

impl CostModel {
    pub(crate) fn read(path: &Path) -> Result<Self, CostModelError> {
        let path_buf = || path.to_owned();
        let json = std::fs::read(path).map_err(|source| CostModelError::Read { path: path_buf(), source })?;
        let model: Self = serde_json::from_slice(&json)
            .map_err(|source| CostModelError::Malformed { path: path_buf(), source })?;
        let Self { prefill, decode, context_length } = &model;
        let times =
            [prefill.base_s, prefill.per_token_s, decode.base_s, decode.per_request_s, decode.per_kv_token_s];
        if times.iter().all(|time| (0.0..=MAX_S).contains(time)) && (2..=1 << 24).contains(context_length) {
            Ok(model)
        } else {
            Err(CostModelError::Range { path: path_buf() })
        }
    }

    /// The time of a step.
    pub(crate) fn step(&self, load: Load) -> Duration {
        let mut seconds = 0.0;
        if load.prompt_tokens > 0 {
            seconds += self.prefill.base_s + self.prefill.per_token_s * load.prompt_tokens as f64;
        }
        if load.requests > 0 {
            let Self { decode, .. } = self;
            seconds += decode.base_s + decode.per_request_s * load.requests as f64;
            seconds += decode.per_kv_token_s * load.kv_tokens as f64;
        }
        Duration::from_secs_f64(seconds.min(MAX_S))
    }
}

/// A letter, drawn from the seed for its place in the sequence, and the log-probability of any letter. In place of one that is ruled
/// out comes the next in the alphabet that is not, if there is one.
pub(crate) fn token(seed: u64, position: usize, is_ruled_out: impl Fn(u32) -> bool) -> (u32, f32) {
    // The output function of SplitMix64 (Steele, Lea and Flood, 2014).
    let mut bits = seed.wrapping_add((position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    let letter = |steps: u64| u32::from(b'a') + ((bits % LETTERS + steps) % LETTERS) as u32;
    let token = (0..LETTERS).map(letter).find(|token| !is_ruled_out(*token)).unwrap_or(letter(0));
    (token, -(LETTERS as f32).ln())
}

fn default_context_length() -> usize {
    131_072
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_costs_what_is_computed() {
        let model: CostModel = serde_json::from_str(
            r#"{"prefill": {"base_s": 1, "per_token_s": 0.5},
                "decode": {"base_s": 10, "per_request_s": 2, "per_kv_token_s": 0.25}}"#,
        )
        .unwrap();
        let step = |prompt_tokens, requests, kv_tokens| {
            model.step(Load { prompt_tokens, requests, kv_tokens }).as_secs_f64()
        };
        let costs = [step(0, 0, 0), step(4, 0, 0), step(0, 3, 8), step(4, 3, 8)];
        assert!(
            costs.iter().zip([0.0, 3.0, 18.0, 21.0]).all(|(found, expected)| (found - expected).abs() < 1e-9)
        );
    }

    #[test]
    fn tokens_are_letters_of_the_seed() {
        let text = |seed| (0..50).map(|position| token(seed, position, |_| false).0).collect::<Vec<_>>();
        assert!(text(1) == text(1) && text(1) != text(2));
        assert!(text(3).iter().all(|token| (u32::from(b'a')..=u32::from(b'z')).contains(token)));
        let ruled_out = |token: u32| token != u32::from(b'q');
        assert!((0..50).all(|position| token(1, position, ruled_out).0 == u32::from(b'q')));
        assert_eq!(token(1, 0, |_| true), token(1, 0, |_| false));
    }
}
