//! `sampling_params`: how tokens are chosen and where generation stops.

use std::collections::BTreeSet;
use std::sync::Arc;

use rollscope_model::sampling::{Penalties, SamplingParams};
use serde_json::Map;

use super::App;
use super::fields::{Fields, PerRequest, REFUSED_SAMPLING_FIELDS};
use super::respond::ApiError;
use crate::request::Sampling;

/// `sampling_params`, of which the prompt's length is not known yet.
#[derive(Clone)]
pub(super) struct AskedSampling {
    sampling: Sampling,
    max_new_tokens: Option<usize>,
    /// Replies a prompt.
    pub(super) n: usize,
    /// The tokens that the filters keep are told, where log-probabilities are.
    pub(super) tells_kept: bool,
}

/// Where nothing else limits what the client gives.
const MAX_STOPS: usize = 64;
const MAX_STOP_BYTES: usize = 4096;
/// What SGLang generates when nothing is said.
const DEFAULT_NEW_TOKENS: usize = 128;

// === impl AskedSampling ===

impl AskedSampling {
    pub(super) fn read(app: &App, mut fields: Fields) -> Result<Self, ApiError> {
        fields.refuse(REFUSED_SAMPLING_FIELDS)?;
        let seed: Option<i64> = fields.take("sampling_seed")?;
        let params = SamplingParams {
            temperature: fields.take("temperature")?.unwrap_or(1.0),
            top_p: fields.take("top_p")?.unwrap_or(1.0),
            top_k: fields.take("top_k")?.unwrap_or(-1),
            min_p: fields.take("min_p")?.unwrap_or(0.0),
            seed: seed.unwrap_or_default().cast_unsigned(),
        };
        params.validate().map_err(|error| ApiError::bad_request(error.to_string()))?;
        let penalties = penalties(app, &mut fields)?;
        let config = app.model.config();
        let mut stop_token_ids = fields.take::<BTreeSet<u32>>("stop_token_ids")?.unwrap_or_default();
        if !fields.take("ignore_eos")?.unwrap_or(false) {
            stop_token_ids.extend(&config.eos_token_ids);
        }
        // Others are never chosen.
        stop_token_ids.retain(|token| (*token as usize) < config.vocab_size);
        let n: usize = fields.take("n")?.unwrap_or(1);
        if n == 0 {
            return Err(ApiError::bad_request("n must be at least 1, got 0"));
        }
        let custom = fields.take::<Map<_, _>>("custom_params")?.map(Fields::of);
        let tells_kept = match custom {
            Some(mut custom) => custom.take("return_top_p_token_ids")?.unwrap_or(false),
            None => false,
        };
        let sampling = Sampling {
            params,
            seeded: seed.is_some(),
            penalties: (!penalties.are_none()).then(|| Arc::new(penalties)),
            min_new_tokens: fields.take("min_new_tokens")?.unwrap_or(0),
            stop: stops(&mut fields)?.into(),
            stop_token_ids: Arc::new(stop_token_ids),
            skip_special_tokens: fields.take("skip_special_tokens")?.unwrap_or(true),
            no_stop_trim: fields.take("no_stop_trim")?.unwrap_or(false),
        };
        Ok(Self { sampling, max_new_tokens: fields.take("max_new_tokens")?, n, tells_kept })
    }

    /// With the most tokens that may be generated: those asked for, which must fit, or the default, cut to what fits.
    pub(super) fn fit(self, app: &App, prompt_len: usize) -> Result<(Sampling, usize), ApiError> {
        let Self { sampling, max_new_tokens, .. } = self;
        let room = app.context_length - prompt_len;
        let max_new_tokens = max_new_tokens.unwrap_or(DEFAULT_NEW_TOKENS.min(room));
        if max_new_tokens > room {
            return Err(ApiError::bad_request(format!(
                "Requested token count exceeds the model's maximum context length of {} tokens: {prompt_len} tokens of \
                 prompt and {max_new_tokens} new ones.",
                app.context_length
            )));
        }
        if sampling.min_new_tokens > max_new_tokens {
            return Err(ApiError::bad_request(format!(
                "min_new_tokens must be in 0..=max_new_tokens ({max_new_tokens}), got {}",
                sampling.min_new_tokens
            )));
        }
        Ok((sampling, max_new_tokens))
    }
}

/// How many replies each prompt is to have: one number for the whole batch.
pub(super) fn same_n(sampling: &PerRequest<AskedSampling>) -> Result<usize, ApiError> {
    match sampling {
        PerRequest::All(sampling) => Ok(sampling.n),
        PerRequest::Each(each) => {
            let n = each.first().map_or(1, |first| first.n);
            if each.iter().any(|sampling| sampling.n != n) {
                return Err(ApiError::bad_request("n must be the same in all sampling_params of a batch"));
            }
            Ok(n)
        }
    }
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take_per_request::<String>("stop")? {
        PerRequest::All(stop) if stop.is_empty() => Vec::new(),
        PerRequest::All(stop) => vec![stop],
        PerRequest::Each(stops) => stops,
    };
    if stops.len() > MAX_STOPS || stops.iter().any(|stop| !(1..=MAX_STOP_BYTES).contains(&stop.len())) {
        return Err(ApiError::bad_request(format!(
            "stop must be at most {MAX_STOPS} texts of 1 to {MAX_STOP_BYTES} bytes"
        )));
    }
    Ok(stops)
}

fn penalties(app: &App, fields: &mut Fields) -> Result<Penalties, ApiError> {
    let penalties = Penalties {
        frequency: fields.take("frequency_penalty")?.unwrap_or(0.0),
        presence: fields.take("presence_penalty")?.unwrap_or(0.0),
        repetition: fields.take("repetition_penalty")?.unwrap_or(1.0),
        bias: fields.take("logit_bias")?.unwrap_or_default(),
    };
    penalties.validate().map_err(|error| ApiError::bad_request(error.to_string()))?;
    let vocab_size = app.model.config().vocab_size;
    match penalties.bias.keys().find(|token| **token as usize >= vocab_size) {
        Some(token) => Err(ApiError::bad_request(format!(
            "logit_bias: token {token} is not in the vocabulary of {vocab_size}"
        ))),
        None => Ok(penalties),
    }
}
