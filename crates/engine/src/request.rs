//! A request, as the API hands it over and as the scheduler owns it.
//!
//! # States
//! A request is in exactly one queue of the scheduler, which is its state:
//!
//! ```text
//! alone:    waiting → running → (gone)
//! prefill:  bootstrap → waiting → running → inflight → (gone)
//! decode:   prealloc → transfer → waiting → running → (gone)
//! any:      running → retracted → running
//! ```
//!
//! From each it may also go at once, by abort, failure or disconnect. KV pages are held from the way out of `waiting`
//! (decode: of `prealloc`) to the end, but not in `retracted`. Metadata slots are held from `bootstrap` or `prealloc` to the end
//! of the transfer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollscope_model::sampling::{Penalties, SamplingParams};
use rollscope_model::{PageId, Tokenizer};

use crate::clock::Stamp;
use crate::disagg::{BootstrapAddr, FirstToken, LinkId, Slot};
use crate::output::{Finish, KeptIds, Publisher};
use crate::scheduler::Shared;
use crate::stamps::{Stamps, Transferred};
use crate::text::Text;

/// A request that was found to make sense.
#[derive(Clone, Debug)]
pub(crate) struct GenerateSpec {
    /// The name that the client knows it by. Two live requests may have the same.
    pub(crate) rid: String,
    /// The name of the batch that it is of, if that has one of its own.
    pub(crate) batch_rid: Option<String>,
    pub(crate) input_ids: Vec<u32>,
    pub(crate) sampling: Sampling,
    pub(crate) max_new_tokens: usize,
    pub(crate) logprobs: Option<LogprobSpec>,
    /// The data-parallel rank that is asked for, one of this server's.
    pub(crate) dp_rank: Option<usize>,
    /// The tokens that the filters keep are told, and log-probabilities are those among them.
    pub(crate) tells_kept: bool,
    /// In a disaggregated pair: the request's number, and where the prefill server is found.
    pub(crate) room: Option<Room>,
    /// Prompts share cached beginnings with those of the same key alone.
    pub(crate) extra_key: Option<Arc<str>>,
    /// A health check: no client's, and not counted among theirs.
    pub(crate) is_probe: bool,
    pub(crate) stamps: Stamps,
}

/// How to choose tokens and when to stop. Cheap to clone: the requests of a batch share what may be long.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sampling {
    /// The seed in it counts if `seeded`; else the scheduler draws one.
    pub(crate) params: SamplingParams,
    pub(crate) seeded: bool,
    /// None if they would change nothing.
    pub(crate) penalties: Option<Arc<Penalties>>,
    /// No stop token is chosen before so many.
    pub(crate) min_new_tokens: usize,
    pub(crate) stop: Arc<[String]>,
    /// Those of the request and, unless ignored, those of the model.
    pub(crate) stop_token_ids: Arc<BTreeSet<u32>>,
    pub(crate) skip_special_tokens: bool,
    pub(crate) no_stop_trim: bool,
}

/// Which log-probabilities are wanted beside those of the output tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogprobSpec {
    /// First position of the prompt.
    pub(crate) start: usize,
    /// Most likely tokens at each position.
    pub(crate) top: usize,
}

/// A request's half of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// The same on both servers; 1 to 2^63 - 1, or 0 where nothing is transferred.
    pub(crate) number: u64,
    /// On a decode server.
    pub(crate) prefill: Option<BootstrapAddr>,
    /// On a decode server: the prefill server's rank, if it is not that of the room.
    pub(crate) prefill_rank: Option<usize>,
}

/// A live request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) spec: GenerateSpec,
    /// The prompt, then what was generated.
    pub(crate) tokens: Vec<u32>,
    /// Tokens whose keys and values are on the pages.
    pub(crate) computed: usize,
    pub(crate) pages: Vec<PageId>,
    /// Of the pages, those that are the prefix cache's.
    pub(crate) shared: Shared,
    /// Times that it gave its pages back.
    pub(crate) retractions: usize,
    pub(crate) text: Text,
    pub(crate) pair: Pair,
    /// How often each token was generated, where there are penalties.
    pub(crate) times: BTreeMap<u32, u32>,
    /// If it is told which tokens the filters keep.
    pub(crate) kept: Option<KeptIds>,
    /// What the weights were called that the latest of it was computed with.
    pub(crate) weight_version: Option<Arc<str>>,
    /// Of its transfer, once it is in a queue of one.
    pub(crate) poll: Option<KvPoll>,
    /// When its latest token was chosen, if it has more than the first.
    pub(crate) latest_token: Option<Stamp>,
    /// When it came into its queue, in time during which the scheduler was not paused.
    pub(crate) queued: Stamp,
    output: Publisher,
}

/// How far a transfer is. It only grows; a failure ends the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KvPoll {
    /// The other side has not appeared.
    Bootstrapping,
    /// It has; nothing has been sent.
    WaitingForInput,
    Transferring,
    Success,
}

/// What a request's half of a disaggregated pair needs beside.
#[derive(Debug)]
pub(crate) enum Pair {
    /// No pair.
    Alone,
    Prefill(Outgoing),
    Decode(Incoming),
}

/// The sending half.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// The connection on which the decode server has announced the room.
    pub(crate) link: Option<LinkId>,
    pub(crate) slot: Option<Slot>,
    pub(crate) sent_pages: usize,
    pub(crate) row_sent: bool,
    pub(crate) meter: Meter,
}

/// The receiving half.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// The agreed connection to the prefill server.
    pub(crate) link: Option<LinkId>,
    pub(crate) slot: Option<Slot>,
    /// The prefill server was told of the allocation.
    pub(crate) prepared: bool,
    pub(crate) received_pages: usize,
    pub(crate) row_received: bool,
    /// What the row said; from the end of the transfer until the request joins the batch.
    pub(crate) first: Option<FirstToken>,
}

/// Measures a transfer: its bytes, and the time during which some of them were sent and not confirmed. The time in which a
/// chunk is computed and nothing is under way does not count, so bytes and time are those of the same thing.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    sent_bytes: u64,
    confirmed_bytes: u64,
    busy_since: Option<Stamp>,
    busy_s: f64,
}

// === impl GenerateSpec ===

impl GenerateSpec {
    /// One that arrived then and asks for the most likely tokens, so many, and for nothing else.
    pub(crate) fn greedy(rid: String, input_ids: Vec<u32>, max_new_tokens: usize, arrival: Stamp) -> Self {
        Self {
            rid,
            batch_rid: None,
            input_ids,
            sampling: Sampling {
                params: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
                seeded: true,
                penalties: None,
                min_new_tokens: 0,
                stop: Arc::default(),
                stop_token_ids: Arc::default(),
                skip_special_tokens: true,
                no_stop_trim: false,
            },
            max_new_tokens,
            logprobs: None,
            dp_rank: None,
            tells_kept: false,
            room: None,
            extra_key: None,
            is_probe: false,
            stamps: Stamps::new(arrival),
        }
    }
}

// === impl Request ===

impl Request {
    pub(crate) fn new(spec: GenerateSpec, output: Publisher, pair: Pair) -> Self {
        let sampling = &spec.sampling;
        let filtered = sampling.params.is_greedy() || !sampling.params.keeps_all();
        let kept = (spec.tells_kept && filtered).then(KeptIds::new);
        Self {
            tokens: spec.input_ids.clone(),
            text: Text::new(sampling),
            queued: spec.stamps.created,
            spec,
            computed: 0,
            pages: Vec::new(),
            shared: Shared::default(),
            retractions: 0,
            pair,
            times: BTreeMap::new(),
            kept,
            weight_version: None,
            poll: None,
            latest_token: None,
            output,
        }
    }

    pub(crate) fn prompt_len(&self) -> usize {
        self.spec.input_ids.len()
    }

    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len()
    }

    /// Appends a token that was chosen.
    pub(crate) fn push(&mut self, token: u32) {
        self.tokens.push(token);
        if self.spec.sampling.penalties.is_some() {
            *self.times.entry(token).or_default() += 1;
        }
    }

    pub(crate) fn is_prompt_computed(&self) -> bool {
        self.computed >= self.prompt_len()
    }

    /// The room's number; 0 for a request that has none.
    pub(crate) fn room(&self) -> u64 {
        self.spec.room.as_ref().map_or(0, |room| room.number)
    }

    /// Nothing is transferred: the other side is not asked for.
    pub(crate) fn is_fake(&self) -> bool {
        self.spec.room.as_ref().is_some_and(|room| room.number == 0)
    }

    /// Lets the state of its transfer grow.
    pub(crate) fn raise(&mut self, poll: KvPoll) {
        self.poll = self.poll.max(Some(poll));
    }

    pub(crate) fn is_named(&self, rid: &str) -> bool {
        self.spec.rid == rid || self.spec.batch_rid.as_deref() == Some(rid)
    }

    pub(crate) fn stamps(&mut self) -> &mut Stamps {
        &mut self.spec.stamps
    }

    pub(crate) fn output(&self) -> &Publisher {
        &self.output
    }

    /// Whether nobody waits for it any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.output.is_cancelled()
    }

    /// Ends it, with the text that was held back for what might have followed.
    pub(crate) fn end(mut self, finish: Finish, tokenizer: &Tokenizer) {
        let rest = self.text.finish(tokenizer);
        let kept = self.kept.take();
        let stamps = self.spec.stamps.clone();
        let weight_version = self.weight_version.take();
        self.output.update(|progress| {
            progress.text.push_str(&rest);
            progress.kept = kept;
            progress.stamps = stamps;
            progress.weight_version = weight_version;
            progress.finish = Some(finish);
        });
    }
}

// === impl KvPoll ===

impl KvPoll {
    /// The name that the field knows it by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bootstrapping => "Bootstrapping",
            Self::WaitingForInput => "WaitingForInput",
            Self::Transferring => "Transferring",
            Self::Success => "Success",
        }
    }
}

// === impl Meter ===

impl Meter {
    pub(crate) fn sent(&mut self, bytes: usize, now: Stamp) {
        self.busy_since.get_or_insert(now);
        self.sent_bytes += bytes as u64;
    }

    pub(crate) fn confirmed(&mut self, bytes: u64, at: Stamp) {
        self.confirmed_bytes = self.confirmed_bytes.saturating_add(bytes).min(self.sent_bytes);
        if self.confirmed_bytes == self.sent_bytes
            && let Some(since) = self.busy_since.take()
        {
            self.busy_s += at.since(since).as_secs_f64();
        }
    }

    pub(crate) fn transferred(&self) -> Transferred {
        Transferred { bytes: self.confirmed_bytes, busy_s: self.busy_s }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_transfer_is_timed_only_while_bytes_are_under_way() {
        let start = Clock::new().now();
        let at = |s: u64| start.after(Duration::from_secs(s));
        let mut meter = Meter::default();
        meter.sent(100, at(0));
        meter.sent(50, at(1));
        meter.confirmed(100, at(2));
        meter.confirmed(50, at(3));
        meter.sent(10, at(10));
        meter.confirmed(10, at(11));
        assert_eq!(meter.transferred(), Transferred { bytes: 160, busy_s: 4.0 });
        // A peer that confirms what was never sent changes nothing.
        meter.confirmed(u64::MAX, at(20));
        assert_eq!(meter.transferred(), Transferred { bytes: 160, busy_s: 4.0 });
    }
}
