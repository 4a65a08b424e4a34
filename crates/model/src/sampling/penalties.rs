//! Changes of the logits that a request asks for: penalties of what it has generated, and biases of tokens.

use std::collections::BTreeMap;

use super::SamplingError;

/// What is taken from the logits of tokens that were generated before, and added to those of certain tokens.
///
/// Tokens of the prompt are not penalised, as in SGLang.
#[derive(Debug, Clone, PartialEq)]
pub struct Penalties {
    /// Taken from a token's logit for each time that it was generated, in [-2, 2].
    pub frequency: f32,
    /// Taken once from the logit of a token that was generated, in [-2, 2].
    pub presence: f32,
    /// Divides the logit of a token that was generated, or multiplies it if negative, in (0, 2]; 1 changes nothing.
    pub repetition: f32,
    /// Added to tokens' logits, within ±[`MAX_BIAS`].
    pub bias: BTreeMap<u32, f32>,
}

/// Far beyond any logit that a model computes, and finite at any temperature: it rules a token out, or in.
pub const MAX_BIAS: f32 = 1e30;

// === impl Penalties ===

impl Default for Penalties {
    /// None.
    fn default() -> Self {
        Self { frequency: 0.0, presence: 0.0, repetition: 1.0, bias: BTreeMap::new() }
    }
}

impl Penalties {
    /// Checks that each parameter is in its range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        for (name, penalty) in [("frequency_penalty", self.frequency), ("presence_penalty", self.presence)] {
            if !(-2.0..=2.0).contains(&penalty) {
                return Err(SamplingError::Penalty { name, value: penalty });
            }
        }
        if !(self.repetition > 0.0 && self.repetition <= 2.0) {
            return Err(SamplingError::RepetitionPenalty(self.repetition));
        }
        match self.bias.iter().find(|(_, bias)| !(-MAX_BIAS..=MAX_BIAS).contains(*bias)) {
            Some((token, bias)) => Err(SamplingError::LogitBias { token: *token, bias: *bias }),
            None => Ok(()),
        }
    }

    /// No logit is changed, whatever was generated.
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }

    /// Changes the logits of the token that comes after those that were generated, each so often. No logit is changed beyond
    /// ±[`MAX_BIAS`]; tokens that have none are passed over.
    pub fn apply(&self, logits: &mut [f32], generated: &BTreeMap<u32, u32>) {
        for (token, times) in generated {
            let Some(logit) = logits.get_mut(*token as usize) else { continue };
            *logit -= self.frequency * *times as f32 + self.presence;
            *logit = if *logit < 0.0 { *logit * self.repetition } else { *logit / self.repetition };
            *logit = logit.clamp(-MAX_BIAS, MAX_BIAS);
        }
        for (token, bias) in &self.bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit = (*logit + bias).clamp(-MAX_BIAS, MAX_BIAS);
            }
        }
    }
}
