//! A step: one forward pass over the running requests, each with its next token or a chunk of its prompt.

use rollscope_model::{ModelError, Row, Wanted};

use super::core::Core;
use super::outputs::Harvest;
use super::profile::Work;
use crate::error::sentence;
use crate::output::Abort;
use crate::request::Request;
use crate::sim::Load;

/// What a step computes of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Place in the running batch.
    pub(super) index: usize,
    /// First token of the part, and one past its last.
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) wanted: Wanted,
}

// === impl Core ===

impl Core {
    /// Computes one step of the running requests, which have the pages for it. Returns `false` if there was nothing to
    /// compute.
    pub(super) fn step(&mut self) -> bool {
        let parts = self.plan();
        if parts.is_empty() {
            return false;
        }
        let now = self.clock.now();
        for part in &parts {
            self.running[part.index].stamps().forward_entry.get_or_insert(now);
        }
        let rows: Vec<Row<'_>> = parts.iter().map(|part| part.row(&self.running[part.index])).collect();
        self.passes.work();
        let begin = self.clock.now();
        let outcome = match &self.simulated {
            None => self.model.forward(&mut self.kv, &rows, &mut self.logits),
            Some(costs) => {
                std::thread::sleep(costs.step(self.load(&parts)));
                Ok(())
            }
        };
        let end = self.clock.now();
        let load = self.load(&parts);
        self.profiler.end(&self.clock, Work::Forward(load), Some(begin));
        self.counts.computed_prompt_tokens += load.prompt_tokens as u64;
        self.counts.computed_next_tokens += load.requests as u64;
        match outcome {
            Ok(()) => {
                self.report_step(&parts, end.since(begin));
                self.harvest(&parts);
            }
            Err(error) => self.fail_step(&parts, &error),
        }
        self.profiler.end(&self.clock, Work::Harvest, Some(end));
        true
    }

    /// What a step would have to compute.
    fn load(&self, parts: &[Part]) -> Load {
        let mut load = Load::default();
        for part in parts {
            if self.running[part.index].is_prompt_computed() && part.to - part.from == 1 {
                load.requests += 1;
                load.kv_tokens += part.to;
            } else {
                load.prompt_tokens += part.to - part.from;
            }
        }
        load
    }

    /// The next token of each request whose prompt is computed, and chunks of the other prompts in order of arrival, as
    /// many tokens as a step may have.
    fn plan(&self) -> Vec<Part> {
        let mut budget = self.limits.chunk_tokens;
        let mut parts = Vec::with_capacity(self.running.len());
        for (index, request) in self.running.iter().enumerate() {
            let from = request.computed;
            let mut to = request.tokens.len();
            // The next token of a request that goes on is one that was just chosen; all else is prompt, or computed again.
            if !request.is_prompt_computed() || to - from > 1 {
                to = to.min(from + budget);
                budget -= to - from;
            }
            if from < to {
                parts.push(Part { index, from, to, wanted: wanted(request, from, to) });
            }
        }
        parts
    }

    /// Reads the logits, and sends each request where it belongs.
    fn harvest(&mut self, parts: &[Part]) {
        let mut running = std::mem::take(&mut self.running);
        let logits = std::mem::take(&mut self.logits);
        let mut harvests: Vec<Option<Harvest>> = running.iter().map(|_| None).collect();
        let (mut first_row, mut chosen) = (0, 0);
        for part in parts {
            let request = &mut running[part.index];
            let before = request.generated();
            let harvest = self.harvest_part(request, part, (&logits, first_row));
            chosen += request.generated() - before;
            harvests[part.index] = Some(harvest);
            first_row += part.logit_rows();
        }
        self.logits = logits;
        for (mut request, harvest) in running.into_iter().zip(harvests) {
            if matches!(harvest, Some(Harvest::Token | Harvest::Prefilled)) && request.generated() == 1 {
                self.share(&mut request);
            }
            match harvest {
                None | Some(Harvest::Chunk | Harvest::Token) => self.running.push_back(request),
                Some(Harvest::Prefilled) => self.prefilled.push_back(request),
                Some(Harvest::End(finish)) => self.complete(request, finish),
                Some(Harvest::Failed(why)) => self.doomed.push((request, why)),
            }
        }
        self.counts.generated_tokens += chosen as u64;
        self.throughput.add(chosen, self.clock.now());
    }

    /// Ends the request that the model cannot compute, or all of the step if it cannot say which. The others go on.
    fn fail_step(&mut self, parts: &[Part], error: &ModelError) {
        let guilty = match error {
            ModelError::Row { index, .. } => parts.get(*index).map(|part| part.index),
            _ => None,
        };
        let message = sentence(error);
        for (index, request) in std::mem::take(&mut self.running).into_iter().enumerate() {
            if guilty.is_none_or(|guilty| guilty == index) {
                self.doomed.push((request, Abort::failure(message.clone())));
            } else {
                self.running.push_back(request);
            }
        }
    }
}

// === impl Part ===

impl Part {
    fn row<'a>(&self, request: &'a Request) -> Row<'a> {
        Row {
            tokens: &request.tokens[self.from..self.to],
            position: self.from,
            pages: &request.pages,
            logits: self.wanted,
        }
    }

    fn logit_rows(&self) -> usize {
        match self.wanted {
            Wanted::None => 0,
            Wanted::Last => 1,
            Wanted::All => self.to - self.from,
        }
    }
}

/// The logits that are needed of a part: those at its end if a token is to be chosen, and all if one of its positions
/// tells of a prompt token whose log-probability is asked for.
fn wanted(request: &Request, from: usize, to: usize) -> Wanted {
    let last_told = to.min(request.prompt_len() - 1);
    match request.spec.logprobs.filter(|_| request.generated() == 0) {
        Some(logprobs) if from < last_told && logprobs.start < last_told => Wanted::All,
        _ if to == request.tokens.len() => Wanted::Last,
        _ => Wanted::None,
    }
}
