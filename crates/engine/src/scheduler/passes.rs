//! What each step is reported as: which requests were computed, which were left waiting.
//!
//! The counts are those of SGLang's forward-pass metrics. A step may mix prompts and next tokens, and each request counts
//! where its part belongs. Nothing is counted when nobody asked for the metrics.

use std::time::Duration;

use rollscope_fpm::{Pass, Publisher, QueuedRequests, ScheduledRequests, Statistics};

use super::batch::Part;
use super::core::{Core, Queue};
use super::{Scheduler, Side};
use crate::request::Request;

/// Reports steps to the publisher, if there is one.
#[derive(Debug)]
pub(super) struct PassReporter {
    publisher: Option<Publisher>,
    /// What waits while the next step is computed.
    queued: Queued,
}

/// Requests that wait, by their lengths.
#[derive(Clone, Debug, Default)]
struct Queued {
    /// Whose prompt is to be computed.
    prompts: Statistics,
    /// That wait for their pages, have given them back, or wait for room in a step.
    sequences: Statistics,
}

// === impl Scheduler ===

impl Scheduler {
    /// Counts the requests that the next step leaves waiting.
    pub(super) fn note_queued(&mut self) {
        let Self { core, side, .. } = self;
        if core.passes.publisher.is_none() {
            return;
        }
        let mut queued = Queued::default();
        let mut prompts =
            |queue: &Queue| queued.prompts.extend(queue.iter().map(|request| request.prompt_len() as u64));
        match side {
            Side::Alone => prompts(&core.waiting),
            Side::Prefill(side) => {
                prompts(&side.bootstrap);
                prompts(&core.waiting);
            }
            Side::Decode(side) => {
                let awaited = side.prealloc.iter().chain(&side.transfer);
                queued.sequences.extend(awaited.map(|request| request.tokens.len() as u64));
            }
        }
        // Those that have given their pages back are in the middle of their replies.
        queued.sequences.extend(core.retracted.iter().map(|request| request.tokens.len() as u64));
        core.passes.queued = queued;
    }
}

// === impl Core ===

impl Core {
    /// Reports the step that was computed in so long, before anything is made of it.
    pub(super) fn report_step(&mut self, parts: &[Part], wall_time: Duration) {
        let Some(publisher) = &mut self.passes.publisher else { return };
        let pass = Pass {
            wall_time: wall_time.as_secs_f64(),
            scheduled: scheduled(&self.running, parts),
            queued: self.passes.queued.clone().and_left_out(&self.running, parts).told(),
        };
        let number = publisher.publish(pass);
        for part in parts {
            self.running[part.index].stamps().took_part(number);
        }
    }
}

fn scheduled(running: &Queue, parts: &[Part]) -> ScheduledRequests {
    let (mut prompts, mut sequences) = (Statistics::default(), Statistics::default());
    let mut scheduled = ScheduledRequests::default();
    for part in parts {
        let request: &Request = &running[part.index];
        // As the plan has it: all but the one next token is prompt, or computed again.
        if request.is_prompt_computed() && part.to - part.from == 1 {
            sequences.add(request.tokens.len() as u64);
        } else {
            prompts.add(request.prompt_len() as u64);
            scheduled.sum_prefill_tokens += (part.to - part.from) as u64;
            scheduled.sum_prefill_kv_tokens += part.from as u64;
        }
    }
    ScheduledRequests {
        num_prefill_requests: prompts.count(),
        var_prefill_length: prompts.variance(),
        num_decode_requests: sequences.count(),
        sum_decode_kv_tokens: sequences.sum(),
        var_decode_kv_tokens: sequences.variance(),
        ..scheduled
    }
}

// === impl Queued ===

impl Queued {
    /// With the running requests for which the step had no tokens left: they have their pages, and wait all the same.
    fn and_left_out(mut self, running: &Queue, parts: &[Part]) -> Self {
        if parts.len() < running.len() {
            let mut parts = parts.iter().peekable();
            for (index, request) in running.iter().enumerate() {
                if parts.next_if(|part| part.index == index).is_some() {
                    continue;
                }
                if request.generated() > 0 {
                    self.sequences.add(request.tokens.len() as u64);
                } else {
                    self.prompts.add(request.prompt_len() as u64);
                }
            }
        }
        self
    }

    fn told(self) -> QueuedRequests {
        let Self { prompts, sequences } = self;
        QueuedRequests {
            num_prefill_requests: prompts.count(),
            sum_prefill_tokens: prompts.sum(),
            var_prefill_length: prompts.variance(),
            num_decode_requests: sequences.count(),
            sum_decode_kv_tokens: sequences.sum(),
            var_decode_kv_tokens: sequences.variance(),
        }
    }
}

// === impl PassReporter ===

impl PassReporter {
    pub(super) fn new(publisher: Option<Publisher>) -> Self {
        Self { publisher, queued: Queued::default() }
    }

    /// Steps that were reported and dropped; nothing if there is no publisher.
    pub(super) fn dropped(&self) -> Option<u64> {
        self.publisher.as_ref().map(Publisher::dropped)
    }

    /// Subscribers that were turned away; nothing if there is no publisher.
    pub(super) fn turned_away(&self) -> Option<u64> {
        self.publisher.as_ref().map(Publisher::turned_away)
    }

    /// A step is about to be computed.
    pub(super) fn work(&mut self) {
        if let Some(publisher) = &mut self.publisher {
            publisher.work();
        }
    }

    /// Nothing is computed for now.
    pub(super) fn rest(&mut self) {
        if let Some(publisher) = &mut self.publisher {
            publisher.rest();
        }
    }
}
