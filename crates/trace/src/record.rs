//! What a run is made of: the records that its writers log, in no particular order.

use crate::ids::{SampleKey, StepNumber};
use crate::left_out::{LeftOut, MarkValue};
use crate::pass::ForwardPass;
use crate::profile::Profile;
use crate::report::Fault;
use crate::span::Attr;
use crate::time::{Nanos, UnixNs};

/// One record of a run's log.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A request, with its step known.
    Profile(Box<Profile>),
    /// A span of the user's own code.
    Span(UserSpan),
    /// What the user's code said of a sample.
    Sample(SampleMark),
    /// A step was closed.
    Close(StepClose),
    /// A forward pass of a worker.
    ForwardPass(Box<ForwardPass>),
    /// Records were lost.
    Dropped(DropCount),
}

/// A span of the user's own code: a reward computation, a tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct UserSpan {
    /// The sample it belongs to.
    pub key: SampleKey,
    /// Which try of the sample; the first is 0.
    pub attempt: u32,
    /// What it is.
    pub name: Box<str>,
    /// Begin, by the clock of whoever sent it.
    pub start: UnixNs,
    /// End; nothing while it is open.
    pub end: Option<UnixNs>,
    /// Anything more.
    pub attrs: Vec<(Box<str>, Attr)>,
}

/// What the user's code said of a sample. Later marks of the same sample amend earlier ones field by field.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleMark {
    /// The sample.
    pub key: SampleKey,
    /// Its reward.
    pub reward: Option<f64>,
    /// Whether its response hit the limit of tokens.
    pub truncated: Option<bool>,
    /// Tokens of its response, over all its turns.
    pub response_tokens: Option<u64>,
    /// Those of them that are trained on: what its loss mask leaves.
    pub effective_response_tokens: Option<u64>,
    /// Time that it spent on anything but generation, as the user's code measured it.
    pub non_generation_time: Option<Nanos>,
    /// Whether its text repeats itself.
    pub repetition: Option<bool>,
    /// The category of its reward, such as a kind of failure.
    pub category: Option<Box<str>>,
    /// Vocabulary entries that nucleus sampling kept, summed over its trained tokens.
    pub top_p_kept: Option<u64>,
    /// What speculative decoding did for it, over all its requests.
    pub spec: Option<Box<SpecCounts>>,
    /// Tokens of its prompts, over all its requests.
    pub prefix: Option<Box<PrefixCounts>>,
    /// Those values told of it that are left out, until they are told again.
    pub left_out: Box<[LeftOut]>,
    /// Its trace as another program carried it along, where nothing of that is a request or a span.
    pub carrier: Option<Box<str>>,
    /// The evaluation's data set; a sample that has one belongs to an evaluation.
    pub dataset: Option<Box<str>>,
    /// Whether it belongs to an evaluation and not to training.
    pub evaluation: bool,
}

/// What speculative decoding did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecCounts {
    /// Draft tokens that were accepted.
    pub accepted: u64,
    /// Draft tokens that were proposed.
    pub drafted: u64,
    /// Verifications of drafts.
    pub verified: u64,
    /// Tokens generated.
    pub generated: u64,
}

/// Tokens of prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    /// All of them.
    pub prompt: u64,
    /// Those that the prefix cache held.
    pub cached: u64,
}

/// Tokens that a sample can have, as [`Measure`](crate::Measure) has it of a request.
const MOST_TOKENS: u64 = 1_000_000_000;
/// Entries of a vocabulary that can be kept for them: a million of each.
const MOST_KEPT: u64 = MOST_TOKENS * 1_000_000;
/// Time in the user's code: a week.
const LONGEST: Nanos = Nanos(7 * 86_400 * 1_000_000_000);
/// A reward's size; what is beyond was made up by an overflow or a division.
const LARGEST_REWARD: f64 = 1e12;

/// The end of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepClose {
    /// The step.
    pub step: StepNumber,
    /// When it was closed.
    pub at: UnixNs,
    /// Why.
    pub reason: CloseReason,
    /// Time of the rollout as told by whoever ended it; first arrival to last completion otherwise.
    pub rollout_time: Option<Nanos>,
    /// Accelerators that served it.
    pub gpus: Option<u32>,
}

/// Why a step was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The trainer said so.
    Told,
    /// A later step has begun and nothing of this one has been live for a while.
    Superseded,
    /// The recorder was shut down.
    Shutdown,
}

/// Records lost before the log: the queue was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropCount {
    /// When the count was taken.
    pub at: UnixNs,
    /// Profiles lost since the count before.
    pub profiles: u64,
    /// Spans and marks of the user's lost since the count before.
    pub user_records: u64,
}

// === impl Record ===

impl Record {
    /// The step it belongs to; nothing when that is not known, or for a loss.
    pub fn step(&self) -> Option<StepNumber> {
        match self {
            Self::Profile(profile) => profile.join.step,
            Self::Span(span) => Some(span.key.step),
            Self::Sample(mark) => Some(mark.key.step),
            Self::Close(close) => Some(close.step),
            Self::ForwardPass(pass) => pass.step,
            Self::Dropped(_) => None,
        }
    }

    /// The sample it belongs to; nothing for what belongs to none.
    pub fn sample_key(&self) -> Option<SampleKey> {
        match self {
            Self::Profile(profile) => profile.join.step.map(|step| profile.sample_key(step)),
            Self::Span(span) => Some(span.key.clone()),
            Self::Sample(mark) => Some(mark.key.clone()),
            Self::Close(_) | Self::ForwardPass(_) | Self::Dropped(_) => None,
        }
    }
}

// === impl SampleMark ===

impl SampleMark {
    /// A mark that says nothing yet.
    pub fn new(key: SampleKey) -> Self {
        Self {
            key,
            reward: None,
            truncated: None,
            response_tokens: None,
            effective_response_tokens: None,
            non_generation_time: None,
            repetition: None,
            category: None,
            top_p_kept: None,
            spec: None,
            prefix: None,
            left_out: Box::default(),
            carrier: None,
            dataset: None,
            evaluation: false,
        }
    }

    /// Whether it tells nothing but its key.
    pub fn says_nothing(&self) -> bool {
        let Self { key: _, reward, truncated, response_tokens, effective_response_tokens, .. } = self;
        let Self { non_generation_time, repetition, category, top_p_kept, spec, prefix, left_out, .. } = self;
        let counts = [response_tokens, effective_response_tokens, top_p_kept];
        reward.is_none()
            && truncated.is_none()
            && counts.iter().all(|count| count.is_none())
            && non_generation_time.is_none()
            && repetition.is_none()
            && category.is_none()
            && spec.is_none()
            && prefix.is_none()
            && left_out.is_empty()
            && !self.is_evaluation()
    }

    /// Whether the sample belongs to an evaluation.
    pub fn is_evaluation(&self) -> bool {
        self.evaluation || self.dataset.is_some()
    }

    /// Takes out the values that cannot be true, and tells so in [`Self::left_out`]. A reward that is not finite stays:
    /// it is known by itself.
    pub fn leave_out_implausible(&mut self) {
        let mut faults = std::mem::take(&mut self.left_out).into_vec();
        let mut leave_out = |is_out: bool, value: MarkValue, fault: Fault| {
            faults.extend(is_out.then_some(LeftOut { value: Some(value), fault }));
        };
        let reward = self.reward.take_if(|reward| reward.is_finite() && reward.abs() > LARGEST_REWARD);
        leave_out(reward.is_some(), MarkValue::Reward, Fault::TooLarge);
        for (count, most, value) in [
            (&mut self.response_tokens, MOST_TOKENS, MarkValue::ResponseTokens),
            (&mut self.effective_response_tokens, MOST_TOKENS, MarkValue::EffectiveResponseTokens),
            (&mut self.top_p_kept, MOST_KEPT, MarkValue::TopPKept),
        ] {
            leave_out(count.take_if(|count| *count > most).is_some(), value, Fault::TooLarge);
        }
        let time = self.non_generation_time.take_if(|time| *time > LONGEST);
        leave_out(time.is_some(), MarkValue::NonGenerationTime, Fault::TooLarge);
        let spec = self.spec.take_if(|spec| {
            [spec.accepted, spec.drafted, spec.verified, spec.generated]
                .iter()
                .any(|count| *count > MOST_TOKENS)
        });
        leave_out(spec.is_some(), MarkValue::Spec, Fault::TooLarge);
        let prefix = self.prefix.take_if(|prefix| prefix.prompt > MOST_TOKENS);
        leave_out(prefix.is_some(), MarkValue::Prefix, Fault::TooLarge);
        let prefix = self.prefix.take_if(|prefix| prefix.cached > prefix.prompt);
        leave_out(prefix.is_some(), MarkValue::Prefix, Fault::MoreThanPrompt);
        self.left_out = faults.into();
    }

    /// Takes over whatever `later` says.
    pub fn amend(&mut self, later: &Self) {
        self.reward = later.reward.or(self.reward);
        self.truncated = later.truncated.or(self.truncated);
        self.response_tokens = later.response_tokens.or(self.response_tokens);
        self.effective_response_tokens = later.effective_response_tokens.or(self.effective_response_tokens);
        self.non_generation_time = later.non_generation_time.or(self.non_generation_time);
        self.repetition = later.repetition.or(self.repetition);
        self.category = later.category.clone().or(self.category.take());
        self.top_p_kept = later.top_p_kept.or(self.top_p_kept);
        self.spec = later.spec.clone().or(self.spec.take());
        self.prefix = later.prefix.clone().or(self.prefix.take());
        let stays = self.left_out.iter().filter(|left_out| !later.speaks_of(left_out.value));
        self.left_out = stays.chain(&later.left_out).copied().collect();
        self.carrier = later.carrier.clone().or(self.carrier.take());
        self.dataset = later.dataset.clone().or(self.dataset.take());
        self.evaluation |= later.evaluation;
    }

    /// Whether it tells a value, or leaves it out; of those that are not named, whether it leaves out any.
    fn speaks_of(&self, value: Option<MarkValue>) -> bool {
        let tells = value.is_some_and(|value| match value {
            MarkValue::Reward => self.reward.is_some(),
            MarkValue::ResponseTokens => self.response_tokens.is_some(),
            MarkValue::EffectiveResponseTokens => self.effective_response_tokens.is_some(),
            MarkValue::NonGenerationTime => self.non_generation_time.is_some(),
            MarkValue::TopPKept => self.top_p_kept.is_some(),
            MarkValue::Spec => self.spec.is_some(),
            MarkValue::Prefix => self.prefix.is_some(),
            MarkValue::Trace => false,
        });
        tells || self.left_out.iter().any(|left_out| left_out.value == value)
    }
}

// === impl StepClose ===

impl StepClose {
    /// The last word on the end of a step that was ended several times: the latest end, with what only an earlier
    /// one told.
    pub fn last_word(closes: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut closes: Vec<Self> = closes.into_iter().collect();
        closes.sort_by_key(|close| close.at);
        closes.into_iter().reduce(|before, after| Self {
            rollout_time: after.rollout_time.or(before.rollout_time),
            gpus: after.gpus.or(before.gpus),
            ..after
        })
    }
}

// === impl CloseReason ===

impl CloseReason {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Told, Self::Superseded, Self::Shutdown];

    /// As written in files and pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Told => "told",
            Self::Superseded => "superseded",
            Self::Shutdown => "shutdown",
        }
    }

    /// Reads [`Self::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_forgotten_when_it_is_told_and_joined_by_what_else_is_left_out() {
        let key = SampleKey { step: StepNumber(1), group: None, sample: "s".into() };
        let mark = |reward: Option<f64>, time: Option<Nanos>| {
            let mut mark = SampleMark { reward, non_generation_time: time, ..SampleMark::new(key.clone()) };
            mark.leave_out_implausible();
            mark
        };
        let too_large = |value| LeftOut { value: Some(value), fault: Fault::TooLarge };
        let (reward, time) = (too_large(MarkValue::Reward), too_large(MarkValue::NonGenerationTime));
        let (bad, good) = (Some(1e300), Some(0.5));
        let (long, short) = (Some(Nanos(LONGEST.0 + 1)), Some(Nanos(1)));
        for (marks, expected) in [
            (&[(bad, None)][..], &[reward][..]),
            (&[(bad, None), (good, None)], &[]),
            (&[(bad, None), (None, short)], &[reward]),
            (&[(bad, None), (None, long)], &[reward, time]),
            (&[(bad, long), (good, None)], &[time]),
            (&[(bad, long), (bad, long)], &[reward, time]),
            (&[(good, None), (bad, None)], &[reward]),
        ] {
            let mut amended = SampleMark::new(key.clone());
            for (reward, time) in marks {
                amended.amend(&mark(*reward, *time));
            }
            assert_eq!(&*amended.left_out, expected, "{marks:?}");
            for left_out in &amended.left_out {
                assert_eq!(LeftOut::from_name(&left_out.to_string()), Some(*left_out));
            }
        }
        // As it was written before values were named.
        let of_old = LeftOut { value: None, fault: Fault::TooLarge };
        assert_eq!(LeftOut::from_name("too_large"), Some(of_old));
    }

    #[test]
    fn a_later_end_keeps_what_it_does_not_tell() {
        let close = |at, reason, seconds: Option<u64>, gpus| StepClose {
            step: StepNumber(1),
            at: UnixNs(at),
            reason,
            rollout_time: seconds.map(|seconds| Nanos(seconds * 1_000_000_000)),
            gpus,
        };
        let told = close(1, CloseReason::Told, Some(4), Some(8));
        let corrected = close(2, CloseReason::Told, Some(5), None);
        let shutdown = close(3, CloseReason::Shutdown, None, None);
        for closes in [[told, corrected, shutdown], [shutdown, corrected, told]] {
            let expected = close(3, CloseReason::Shutdown, Some(5), Some(8));
            assert_eq!(StepClose::last_word(closes), Some(expected));
        }
        assert_eq!(StepClose::last_word([]), None);
    }
}
