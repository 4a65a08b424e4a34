//! From logits to output: tokens are chosen, log-probabilities told, ends noticed.

use std::sync::Arc;

use rollscope_model::sampling::{LogSoftmax, MAX_BIAS, sample, sample_kept};
use rollscope_model::{Logits, ModelError, Wanted};

use super::batch::Part;
use super::core::Core;
use crate::disagg::{FirstToken, MAX_KEPT, MAX_TOP_LOGPROBS, PrefillTiming, kept_that_fit};
use crate::error::sentence;
use crate::output::{Abort, Finish};
use crate::request::{GenerateSpec, Pair, Request};
use crate::sim;

/// A token that was chosen, with its log-probability and those of the most likely ones.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chosen {
    pub(super) token: u32,
    pub(super) logprob: f32,
    /// As many as the request asks for, or more.
    pub(super) top: Vec<(f32, u32)>,
    /// The tokens that the filters kept, if that is told.
    pub(super) kept: Vec<u32>,
}

/// What came of a request's part of a step.
#[derive(Debug)]
pub(super) enum Harvest {
    /// Its prompt is not computed to the end yet.
    Chunk,
    /// A token; it goes on.
    Token,
    /// The first token, on a prefill server.
    Prefilled,
    /// Its last token.
    End(Finish),
    /// The token cannot be turned into text.
    Failed(Abort),
}

// === impl Core ===

impl Core {
    /// Reads the logits of one request, of which the first is `logits.1`-th of the step.
    pub(super) fn harvest_part(
        &mut self,
        request: &mut Request,
        part: &Part,
        logits: (&Logits, usize),
    ) -> Harvest {
        request.computed = part.to;
        request.weight_version = Some(Arc::clone(&self.weight_version));
        let is_prompt = request.generated() == 0;
        if is_prompt && self.simulated.is_none() {
            tell_prompt(request, part, logits);
        }
        if part.to < request.tokens.len() {
            return Harvest::Chunk;
        }
        if is_prompt {
            request.stamps().prefill_finished = Some(self.clock.now());
            self.counts.prompt_tokens += request.prompt_len() as u64;
            self.counts.cached_tokens += request.output().read(|progress| progress.cached_tokens) as u64;
        }
        let is_prefill = matches!(request.pair, Pair::Prefill(_));
        if request.spec.max_new_tokens == 0 && !is_prefill {
            return Harvest::End(Finish::Length(0));
        }
        let last = if part.wanted == Wanted::All { part.to - part.from - 1 } else { 0 };
        let chosen = if self.simulated.is_some() {
            simulate(request)
        } else {
            self.choose(request, logits.0.row(logits.1 + last))
        };
        if is_prefill {
            self.write_row(request, &chosen);
        } else {
            self.observe_token(request);
        }
        match self.accept(request, chosen) {
            Ok(_) if is_prefill => Harvest::Prefilled,
            Ok(Some(finish)) => Harvest::End(finish),
            Ok(None) => Harvest::Token,
            Err(error) => Harvest::Failed(Abort::failure(sentence(&error))),
        }
    }

    /// Appends a token to a request. Returns how the request ends with it, if it does.
    pub(super) fn accept(&self, request: &mut Request, chosen: Chosen) -> Result<Option<Finish>, ModelError> {
        let Chosen { token, logprob, mut top, kept: kept_ids } = chosen;
        request.push(token);
        if let Some(kept) = &mut request.kept {
            kept.push(&kept_ids);
        }
        let generated = request.generated();
        let GenerateSpec { sampling, max_new_tokens, .. } = &request.spec;
        let is_stop = sampling.stop_token_ids.contains(&token);
        let stop_text = if is_stop && !sampling.no_stop_trim {
            None
        } else {
            request.text.push(self.model.tokenizer(), token)?
        };
        let finish = match stop_text {
            _ if is_stop => Some(Finish::StopToken(token)),
            Some(text) => Some(Finish::StopText(text)),
            None if generated >= *max_new_tokens => Some(Finish::Length(*max_new_tokens)),
            None => None,
        };
        let fresh = request.text.show();
        let logprobs = request.spec.logprobs;
        let stamps = request.spec.stamps.clone();
        let weight_version = request.weight_version.clone();
        request.output().update(|progress| {
            progress.text.push_str(&fresh);
            progress.output_ids.push(token);
            if let Some(logprobs) = logprobs {
                progress.output_logprobs.push(logprob);
                top.truncate(logprobs.top);
                progress.output_top_logprobs.push(top);
            }
            progress.stamps = stamps;
            progress.weight_version = weight_version;
        });
        Ok(finish)
    }

    fn choose(&mut self, request: &Request, logits: &[f32]) -> Chosen {
        let sampling = &request.spec.sampling;
        let rules_out_stops = request.generated() < sampling.min_new_tokens;
        let logits = if rules_out_stops || sampling.penalties.is_some() {
            self.adjusted.clear();
            self.adjusted.extend_from_slice(logits);
            if let Some(penalties) = &sampling.penalties {
                penalties.apply(&mut self.adjusted, &request.times);
            }
            for token in sampling.stop_token_ids.iter().filter(|_| rules_out_stops) {
                if let Some(logit) = self.adjusted.get_mut(*token as usize) {
                    *logit = -MAX_BIAS;
                }
            }
            &self.adjusted
        } else {
            logits
        };
        let position = request.tokens.len() as u64;
        let (mut sampled, told) = if request.kept.is_some() {
            sample_kept(logits, &sampling.params, position, &mut self.scratch)
        } else {
            (sample(logits, &sampling.params, position, &mut self.scratch), None)
        };
        let mut kept = Vec::new();
        if let Some(told) = told {
            (sampled.logprob, kept) = (told.logprob, told.token_ids);
        }
        let top = match request.spec.logprobs {
            Some(logprobs) if logprobs.top > 0 => {
                LogSoftmax::new(logits, sampling.params.temperature).top(logits, logprobs.top)
            }
            _ => Vec::new(),
        };
        Chosen { token: sampled.token, logprob: sampled.logprob, top, kept }
    }

    /// Writes down the first token for the decode server.
    fn write_row(&mut self, request: &Request, chosen: &Chosen) {
        if let Pair::Prefill(outgoing) = &request.pair
            && let Some(slot) = &outgoing.slot
        {
            if chosen.kept.len() > MAX_KEPT {
                self.warnings.tell(format!(
                    "{} tokens were kept, a metadata row holds {MAX_KEPT}: the sampled one alone is told, rid {}",
                    chosen.kept.len(),
                    request.spec.rid
                ));
            }
            let timing = if self.limits.prefill_timing {
                request.spec.stamps.prefill_timing()
            } else {
                PrefillTiming::default()
            };
            let first = FirstToken {
                room: request.room(),
                token: chosen.token,
                logprob: chosen.logprob,
                top: chosen.top.iter().take(MAX_TOP_LOGPROBS).copied().collect(),
                kept: kept_that_fit(&chosen.kept, chosen.token),
                cached_tokens: request.output().read(|progress| progress.cached_tokens) as u32,
                timing,
            };
            self.slots.write(slot, &first);
        }
    }
}

/// The next token where nothing is computed: a letter, and where it is told what the filters keep, that alone.
fn simulate(request: &Request) -> Chosen {
    let sampling = &request.spec.sampling;
    let rules_out_stops = request.generated() < sampling.min_new_tokens;
    let is_ruled_out = |token: u32| rules_out_stops && sampling.stop_token_ids.contains(&token);
    let (token, logprob) = sim::token(sampling.params.seed, request.tokens.len(), is_ruled_out);
    if request.kept.is_some() {
        // Nothing else was kept, so it had to come.
        return Chosen { token, logprob: 0.0, top: Vec::new(), kept: vec![token] };
    }
    Chosen { token, logprob, top: Vec::new(), kept: Vec::new() }
}

/// Tells the log-probabilities of the prompt's tokens that this part's positions speak of, if they are asked for. They are
/// the model's own, whatever the temperature.
fn tell_prompt(request: &Request, part: &Part, (logits, first_row): (&Logits, usize)) {
    let Some(asked) = request.spec.logprobs else { return };
    let positions = part.from.max(asked.start)..part.to.min(request.prompt_len() - 1);
    let told: Vec<_> = positions
        .map(|position| {
            let token = request.tokens[position + 1];
            let logits = logits.row(first_row + position - part.from);
            let softmax = LogSoftmax::new(logits, 1.0);
            let top = (asked.top > 0).then(|| softmax.top(logits, asked.top));
            ((Some(softmax.at(logits, token)), token), top)
        })
        .collect();
    request.output().update(|progress| {
        if progress.input_logprobs.is_empty() {
            // Nothing that is looked at tells of the first one.
            progress.input_logprobs.push((None, request.tokens[asked.start]));
            progress.input_top_logprobs.push(None);
        }
        for (logprob, top) in told {
            progress.input_logprobs.push(logprob);
            progress.input_top_logprobs.push(top);
        }
    });
}
