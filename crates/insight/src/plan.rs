//! What a planner makes of forward passes: how long a pass takes by what is in it, and what that means for who comes next.
//!
//! The regressions are those of Dynamo's planner, so that its figures can be understood, and checked, from a run:
//!
//! ```text
//! prefill   wall time ~ prompt tokens
//! decode    wall time ~ (requests, tokens in the KV cache)
//! mixed     wall time ~ (prompt tokens, tokens in the KV cache)
//! ```
//!
//! A pass counts once, however many recorders heard it. A rank belongs to the kind of what was ever seen on it, and all ranks
//! of a kind are fitted together.
//!
//! A heartbeat leaves a rank's queue as the last pass told it: some publishers (SGLang up to 0.5.15, Dynamo's for vLLM) send
//! heartbeats in the middle of a pass that takes long, and no message tells whether its publisher does. Only a rank whose last
//! pass left nothing waiting, and after it was silent for longer than any of its passes took, is taken to compute nothing.
//!
//! No term is negative. Where the planner would give a regression up for such a term, or cut the term off, it is held at 0
//! here and the others are fitted anew.

use std::collections::{BTreeMap, HashMap};

use rollscope_trace::{ForwardPass, Nanos, PassLoad, UnixNs};

pub use self::fit::{Fit, MIN_SAMPLES, NoFit};
use self::samples::{MovingAverage, Sample, Samples};
use crate::passes::HEARD_WITHIN;
use crate::workers::Workers;

mod fit;
mod samples;

/// What ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PassKind {
    /// Only prompts.
    Prefill,
    /// Only next tokens.
    Decode,
    /// Both.
    Mixed,
}

/// What is known of the ranks of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The kind.
    pub kind: PassKind,
    /// Ranks of it.
    pub ranks: usize,
    /// Passes of theirs.
    pub passes: usize,
    /// How long a pass takes.
    pub fit: Result<Fit, NoFit>,
    /// Time to the first token for the next request on the rank at work with the longest queue, seconds; for ranks that
    /// compute prompts.
    pub ttft_s: Option<f64>,
    /// Time of the next pass on the rank at work with most to decode, seconds; for ranks that decode.
    pub itl_s: Option<f64>,
}

/// A rank is at work, and may get the next request, if it was heard of no longer than this before the newest of its kind; any
/// other is taken to have ended.
const AT_WORK_WITHIN: Nanos = Nanos(5_000_000_000);

/// Sums up the passes of a kind, in the order in which they were heard of.
struct Model<'a> {
    kind: PassKind,
    samples: Samples,
    passes: usize,
    prompt_len: MovingAverage,
    sequence_len: MovingAverage,
    decoding: MovingAverage,
    prompt_tokens: MovingAverage,
    /// Most prompt tokens seen in a pass: as many as one may have, as far as can be seen.
    chunk_tokens: f64,
    ranks: BTreeMap<Rank<'a>, State>,
}

/// A rank: its worker, or its endpoint if that is not known, as what its publisher calls itself, and its number. A worker may
/// publish elsewhere after it was started anew, and a proxy carries several ranks to one endpoint.
type Rank<'a> = (&'a str, &'a str, u32);

/// What is known of a rank at present.
struct State {
    /// Its latest pass; with nothing in it where the rank came to rest after it.
    latest: ForwardPass,
    /// When it was heard of last, be it by a heartbeat.
    heard: UnixNs,
    /// The longest that a pass took.
    longest: Nanos,
}

/// What the passes of a run, or of a part of it, tell a planner: an entry for each kind of rank that there is.
pub fn plan(passes: &[ForwardPass]) -> Vec<Plan> {
    let workers = Workers::of(passes);
    let mut kinds: BTreeMap<Rank<'_>, (bool, bool)> = BTreeMap::new();
    for pass in passes {
        let (prefill, decode) = kinds.entry(rank_of(&workers, pass)).or_default();
        *prefill |= pass.scheduled.prefill_requests > 0;
        *decode |= pass.scheduled.decode_requests > 0;
    }
    let mut ordered: Vec<&ForwardPass> = passes.iter().collect();
    ordered.sort_by(|a, b| {
        (a.received, &a.endpoint, a.counter_id).cmp(&(b.received, &b.endpoint, b.counter_id))
    });
    // Each recorder of a run hears of a pass, and knows its worker by an id of its own. One that came later counts a rank's lives
    // from there, so that time tells them apart.
    let mut known = HashMap::new();
    ordered.retain(|pass| {
        let identity = (rank_of(&workers, pass), &*pass.endpoint, pass.life, pass.counter_id);
        let before: Option<UnixNs> = known.insert(identity, pass.received);
        before.is_none_or(|before| pass.received > before.after(HEARD_WITHIN))
    });
    let mut models: BTreeMap<PassKind, Model<'_>> = BTreeMap::new();
    for pass in ordered {
        let rank = rank_of(&workers, pass);
        let kind = match kinds.get(&rank) {
            Some((true, true)) => PassKind::Mixed,
            Some((false, true)) => PassKind::Decode,
            Some((true, false)) => PassKind::Prefill,
            // Never anything but queues.
            _ => continue,
        };
        models.entry(kind).or_insert_with(|| Model::new(kind)).add(rank, pass);
    }
    models.into_values().map(Model::plan).collect()
}

fn rank_of<'a>(workers: &Workers<'a>, pass: &'a ForwardPass) -> Rank<'a> {
    let place = workers.at(pass).map_or(&*pass.endpoint, |worker| &*worker.url);
    (place, &pass.worker_id, pass.dp_rank)
}

// === impl PassKind ===

impl PassKind {
    /// As written in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Mixed => "mixed",
        }
    }

    /// What its passes are fitted over, in the order of [`Fit::coefficients_s`].
    pub fn features(self) -> &'static [&'static str] {
        match self {
            Self::Prefill => &["prefill_tokens"],
            Self::Decode => &["decode_requests", "decode_kv_tokens"],
            Self::Mixed => &["prefill_tokens", "decode_kv_tokens"],
        }
    }

    fn features_of(self, pass: &ForwardPass) -> [f64; 2] {
        let scheduled = &pass.scheduled;
        let kv_tokens = scheduled.decode_kv_tokens as f64;
        match self {
            Self::Prefill => [scheduled.prefill_tokens as f64, 0.0],
            Self::Decode => [scheduled.decode_requests as f64, kv_tokens],
            Self::Mixed => [scheduled.prefill_tokens as f64, kv_tokens],
        }
    }
}

// === impl Model ===

impl<'a> Model<'a> {
    fn new(kind: PassKind) -> Self {
        Self {
            kind,
            samples: Samples::new(kind.features().len()),
            passes: 0,
            prompt_len: MovingAverage::default(),
            sequence_len: MovingAverage::default(),
            decoding: MovingAverage::default(),
            prompt_tokens: MovingAverage::default(),
            chunk_tokens: 0.0,
            ranks: BTreeMap::new(),
        }
    }

    fn add(&mut self, rank: Rank<'a>, pass: &ForwardPass) {
        if pass.is_rest() {
            if let Some(state) = self.ranks.get_mut(&rank) {
                state.rest(pass);
            }
            return;
        }
        let longest = self.ranks.get(&rank).map_or(pass.wall, |state| state.longest.max(pass.wall));
        self.ranks.insert(rank, State { latest: pass.clone(), heard: pass.received, longest });
        let scheduled = &pass.scheduled;
        let per_request = |tokens: u64, requests: u64| tokens as f64 / requests as f64;
        match scheduled.prefill_requests {
            0 if self.kind == PassKind::Prefill => self.prompt_len.add(0.0),
            0 => {}
            requests => self.prompt_len.add(per_request(scheduled.prefill_tokens, requests)),
        }
        if scheduled.decode_requests > 0 {
            self.sequence_len.add(per_request(scheduled.decode_kv_tokens, scheduled.decode_requests));
        }
        self.decoding.add(scheduled.decode_requests as f64);
        self.prompt_tokens.add(scheduled.prefill_tokens as f64);
        self.chunk_tokens = self.chunk_tokens.max(scheduled.prefill_tokens as f64);
        self.passes += 1;
        if pass.wall.0 > 0 {
            self.samples
                .add(Sample { features: self.kind.features_of(pass), wall_s: pass.wall.as_secs_f64() });
        }
    }

    fn plan(self) -> Plan {
        let fit = Fit::of(&self.samples.all(), self.kind.features().len());
        let longest = |estimate: &dyn Fn(&Fit, &ForwardPass) -> f64| {
            let estimates = fit.iter().flat_map(|fit| self.at_work().map(|pass| estimate(fit, pass)));
            estimates.reduce(f64::max)
        };
        let ttft_s = longest(&|fit, pass| self.ttft_s(fit, pass)).filter(|_| self.kind != PassKind::Decode);
        let itl_s = longest(&|fit, pass| self.itl_s(fit, pass)).filter(|_| self.kind != PassKind::Prefill);
        Plan { kind: self.kind, ranks: self.ranks.len(), passes: self.passes, ttft_s, itl_s, fit }
    }

    /// The latest pass of each rank that has not ended, as far as can be seen.
    fn at_work(&self) -> impl Iterator<Item = &ForwardPass> {
        let newest = self.ranks.values().map(|state| state.heard).max();
        let is_at_work =
            move |state: &&State| newest.is_some_and(|newest| state.heard.after(AT_WORK_WITHIN) >= newest);
        self.ranks.values().filter(is_at_work).map(|state| &state.latest)
    }

    /// The queue and a prompt of average length, in chunks of the greatest length but for the last.
    fn ttft_s(&self, fit: &Fit, latest: &ForwardPass) -> f64 {
        let tokens = latest.queued.prefill_tokens as f64 + self.prompt_len.value();
        let kv_tokens = latest.scheduled.decode_kv_tokens as f64;
        let whole = if self.chunk_tokens > 0.0 { (tokens / self.chunk_tokens).floor() } else { 0.0 };
        let rest = tokens - whole * self.chunk_tokens;
        let last_s = if rest > 0.0 { fit.predict_s([rest, kv_tokens]) } else { 0.0 };
        whole * fit.predict_s([self.chunk_tokens, kv_tokens]) + last_s
    }

    /// The next pass, with what is queued and a request of average length more.
    fn itl_s(&self, fit: &Fit, latest: &ForwardPass) -> f64 {
        let scheduled = latest.scheduled.decode_kv_tokens as f64;
        let kv_tokens = scheduled + latest.queued.decode_kv_tokens as f64 + self.sequence_len.value();
        let beside = match self.kind {
            PassKind::Decode => self.decoding.value() + 1.0,
            PassKind::Prefill | PassKind::Mixed => self.prompt_tokens.value(),
        };
        fit.predict_s([beside, kv_tokens])
    }
}

// === impl State ===

impl State {
    fn rest(&mut self, rest: &ForwardPass) {
        self.heard = rest.received;
        let is_silent = rest.received.since(self.latest.received) > self.longest;
        if is_silent && self.latest.queued == PassLoad::default() {
            self.latest.scheduled = PassLoad::default();
        }
    }
}

#[cfg(test)]
mod tests;
