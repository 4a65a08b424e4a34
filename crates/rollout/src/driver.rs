//! The rollout itself: steps of groups of samples, as many in flight as allowed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _};
use serde_json::{Map, Value};

use crate::RolloutError;
use crate::client::{CallError, Client, GenerateReply, GenerateRequest, SamplingParams};
use crate::clock::Moment;
use crate::ingest::{Line, Reporter, Texts, end_step, is_recorded};
use crate::kept::AskForKept;
use crate::prompts::Prompt;
use crate::repetition::repeats_itself;
use crate::reward::chained_addition_reward;
use crate::sample::{Sample, write_step};

/// What to roll out.
#[derive(Clone, Debug)]
pub struct RolloutOptions {
    /// Address of the gateway, or of an engine: it must have `/generate`.
    pub url: String,
    /// Prompts; a step takes the next ones, from the beginning again at their end.
    pub prompts: Vec<Prompt>,
    /// Groups of a step.
    pub prompts_per_step: usize,
    /// Samples of a group.
    pub samples_per_prompt: usize,
    /// Steps.
    pub steps: u64,
    /// Number of the first step.
    pub first_step: u64,
    /// Requests in flight at most.
    pub concurrency: usize,
    /// Sampling temperature.
    pub temperature: f64,
    /// Nucleus. Below 1 the tokens that it keeps are asked for, and a reply that does not tell them is a failure.
    pub top_p: f64,
    /// Tokens of a response at most.
    pub max_new_tokens: u32,
    /// Makes every sample's draw reproducible; without it the workers draw at random.
    pub seed: Option<u64>,
    /// Tries of a sample before it counts as failed.
    pub attempts: u32,
    /// Whether to send what was asked and answered, at a moment for each turn.
    pub record_text: bool,
    /// Folder for the samples of each step.
    pub out: Option<PathBuf>,
}

/// A rollout that is ready to run.
#[derive(Debug)]
pub struct Rollout {
    options: RolloutOptions,
    client: Client,
}

/// What happens, as it happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// A step begins.
    StepBegan {
        /// Its number.
        step: u64,
        /// Samples it will have.
        samples: usize,
    },
    /// A sample is done, well or not.
    SampleDone(&'a Sample),
    /// A step has ended.
    StepEnded(&'a StepSummary),
}

/// A step in figures, as the rollout code itself measured it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSummary {
    /// Its number.
    pub step: u64,
    /// Samples that came back.
    pub completed: usize,
    /// Samples that could not be had.
    pub failed: usize,
    /// Tries beyond each sample's first.
    pub retries: u64,
    /// Mean over samples that have a reward.
    pub reward_mean: Option<f64>,
    /// Tokens generated.
    pub tokens: u64,
    /// First request to last sample.
    pub duration: Duration,
    /// Lines of spans and rewards that the gateway did not take.
    pub unreported: u64,
    /// The step's numbers by name, as a gateway that records has computed them at its end.
    pub numbers: Option<Map<String, Value>>,
}

/// One sample to be had.
#[derive(Clone, Copy, Debug)]
struct Slot {
    step: u64,
    group: u64,
    index: u64,
    prompt: usize,
}

// === impl Rollout ===

impl Rollout {
    /// Checks the address and that there is something to sample; nothing is sent yet.
    pub fn new(options: RolloutOptions) -> Result<Self, RolloutError> {
        let client = Client::new(&options.url)?;
        if options.prompts.is_empty() || options.prompts_per_step == 0 || options.samples_per_prompt == 0 {
            return Err(RolloutError::NothingToSample);
        }
        Ok(Self { options, client })
    }

    /// Whether the gateway records what it serves; nothing where it does not answer.
    pub async fn is_recorded(&self) -> Option<bool> {
        is_recorded(&self.client).await
    }

    /// Runs all steps. Every sample ends in a [`Sample`]; only a step without a single good one ends the
    /// rollout.
    pub async fn run(&self, mut on_event: impl FnMut(Event<'_>)) -> Result<Vec<StepSummary>, RolloutError> {
        let mut summaries = Vec::new();
        for step in 0..self.options.steps {
            let summary = self.step(step, &mut on_event).await?;
            on_event(Event::StepEnded(&summary));
            summaries.push(summary);
        }
        Ok(summaries)
    }

    async fn step(
        &self,
        nth: u64,
        on_event: &mut impl FnMut(Event<'_>),
    ) -> Result<StepSummary, RolloutError> {
        let options = &self.options;
        let step = options.first_step + nth;
        let samples = options.prompts_per_step * options.samples_per_prompt;
        on_event(Event::StepBegan { step, samples });
        let reporter = Reporter::start(self.client.clone());
        let begun = Instant::now();
        let mut done = Vec::new();
        let mut ended = stream::iter(self.slots(nth, step))
            .map(|slot| sample(options, &self.client, slot, &reporter))
            .buffer_unordered(options.concurrency.max(1));
        while let Some(sample) = ended.next().await {
            on_event(Event::SampleDone(&sample));
            done.push(sample);
        }
        drop(ended);
        let duration = begun.elapsed();
        let unreported = reporter.finish().await;
        let numbers = end_step(&self.client, step, duration).await;
        done.sort_by_key(|sample| (sample.group, sample.index));
        if let Some(dir) = &options.out {
            write_step(dir, step, &done)?;
        }
        let summary = summarise(step, samples, &done, duration)?;
        Ok(StepSummary { unreported, numbers, ..summary })
    }

    fn slots(&self, nth: u64, step: u64) -> impl Iterator<Item = Slot> {
        let (groups, samples) = (self.options.prompts_per_step, self.options.samples_per_prompt);
        let prompts = self.options.prompts.len();
        let first = usize::try_from(nth).unwrap_or(0).wrapping_mul(groups);
        (0..groups).flat_map(move |group| {
            (0..samples).map(move |index| Slot {
                step,
                group: group as u64,
                index: index as u64,
                prompt: first.wrapping_add(group) % prompts,
            })
        })
    }
}

fn summarise(
    step: u64,
    wanted: usize,
    samples: &[Sample],
    duration: Duration,
) -> Result<StepSummary, RolloutError> {
    let completed = samples.iter().filter(|sample| sample.error.is_none()).count();
    if completed == 0 {
        let last = samples.iter().rev().find_map(|sample| sample.error.clone());
        return Err(RolloutError::StepFailed { step, last: last.unwrap_or_else(|| "no samples".to_owned()) });
    }
    let rewards: Vec<f64> = samples.iter().filter_map(|sample| sample.reward).collect();
    Ok(StepSummary {
        step,
        completed,
        failed: wanted - completed,
        retries: samples.iter().map(|sample| u64::from(sample.attempt)).sum(),
        reward_mean: (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64),
        tokens: samples.iter().filter_map(|sample| sample.response_tokens).sum(),
        duration,
        unreported: 0,
        numbers: None,
    })
}

/// Has one sample, in as many attempts as it takes and may take.
async fn sample(options: &RolloutOptions, client: &Client, slot: Slot, reporter: &Reporter) -> Sample {
    let mut attempt = 0;
    loop {
        match generate(options, client, slot, attempt).await {
            Ok(reply) => {
                if options.record_text {
                    report_turn(options, slot, attempt, &reply, reporter);
                }
                return reward(options, slot, attempt, reply, reporter);
            }
            Err(error) if error.retry && attempt + 1 < options.attempts => {
                tokio::time::sleep(backoff(attempt)).await;
                attempt += 1;
            }
            Err(error) => return slot.failed(options, attempt, error.message),
        }
    }
}

/// 100 ms, doubled each time, 5 s at most; up to half of it more, so that retries do not come in a herd.
fn backoff(attempt: u32) -> Duration {
    let base = Duration::from_millis(100 << attempt.min(6)).min(Duration::from_secs(5));
    base + base.mul_f64(rand::random::<f64>() / 2.0)
}

async fn generate(
    options: &RolloutOptions,
    client: &Client,
    slot: Slot,
    attempt: u32,
) -> Result<GenerateReply, CallError> {
    let request = GenerateRequest {
        text: &options.prompts[slot.prompt].text,
        sampling_params: SamplingParams {
            temperature: options.temperature,
            top_p: options.top_p,
            max_new_tokens: options.max_new_tokens,
            sampling_seed: options.seed.map(|seed| slot.seed(seed)),
            custom_params: AskForKept::of(options.top_p),
        },
        return_logprob: true,
        rid: format!("{:032x}", rand::random::<u128>()),
    };
    let headers = [
        ("x-rollscope-step", slot.step.to_string()),
        ("x-rollscope-group", slot.group.to_string()),
        ("x-rollscope-sample", slot.index.to_string()),
        ("x-rollscope-attempt", attempt.to_string()),
    ];
    client.generate(&request, &headers).await
}

/// Reports what was asked and answered: a moment and no time of its own, since that is the request's.
fn report_turn(
    options: &RolloutOptions,
    slot: Slot,
    attempt: u32,
    reply: &GenerateReply,
    reporter: &Reporter,
) {
    // Lists of numbers and texts can be encoded.
    let logprobs = serde_json::to_string(&reply.meta_info.output_token_logprobs).unwrap_or_default();
    let now = Moment::now().unix_s;
    reporter.report(Line::Span {
        step: slot.step,
        group: slot.group.to_string(),
        sample: slot.index.to_string(),
        attempt,
        name: "turn",
        start: now,
        end: now,
        attrs: Some(Texts {
            prompt_text: options.prompts[slot.prompt].text.clone(),
            output_text: reply.text.clone(),
            output_token_logprobs: logprobs,
        }),
    });
}

/// Rewards a reply and reports it.
fn reward(
    options: &RolloutOptions,
    slot: Slot,
    attempt: u32,
    reply: GenerateReply,
    reporter: &Reporter,
) -> Sample {
    let prompt = &options.prompts[slot.prompt];
    let begun = Moment::now();
    let reward = prompt.answer.as_ref().map(|answer| chained_addition_reward(&reply.text, answer));
    let (start, end) = (begun.unix_s, begun.now_unix_s());
    let mut sample = slot.sample(options, attempt);
    sample.reward = reward;
    sample.response_tokens = reply.response_tokens();
    sample.finish_reason = reply.meta_info.finish_reason.map(|finish| finish.kind);
    sample.weight_version = reply.meta_info.weight_version.map(|version| match version {
        Value::String(text) => text,
        other => other.to_string(),
    });
    sample.output_logprobs =
        reply.meta_info.output_token_logprobs.iter().map(|(logprob, ..)| *logprob).collect();
    sample.output_ids = reply.output_ids;
    (sample.top_p_token_ids, sample.top_p_token_offsets) =
        (reply.meta_info.kept.top_p_token_ids, reply.meta_info.kept.top_p_token_offsets);
    sample.response = reply.text;
    let (step, group, name) = (slot.step, slot.group.to_string(), slot.index.to_string());
    if reward.is_some() {
        let (group, sample) = (group.clone(), name.clone());
        reporter.report(Line::Span { step, group, sample, attempt, name: "reward", start, end, attrs: None });
    }
    let (truncated, response_tokens) = (sample.is_truncated(), sample.response_tokens);
    let repetition = repeats_itself(&sample.response);
    reporter.report(Line::Sample {
        step,
        group,
        sample: name,
        reward,
        truncated,
        response_tokens,
        repetition,
    });
    sample
}

// === impl Slot ===

impl Slot {
    /// A seed of its own for each sample, by FNV-1a over the parts (Fowler, Noll, Vo, 64 bits).
    fn seed(self, seed: u64) -> u64 {
        let parts = [seed, self.step, self.group, self.index];
        let bytes = parts.into_iter().flat_map(u64::to_le_bytes);
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        // Workers read seeds as signed 64-bit integers, and JavaScript as doubles.
        hash >> 11
    }

    fn sample(self, options: &RolloutOptions, attempt: u32) -> Sample {
        Sample {
            step: self.step,
            group: self.group,
            index: self.index,
            attempt,
            prompt: options.prompts[self.prompt].text.clone(),
            response: String::new(),
            output_ids: Vec::new(),
            output_logprobs: Vec::new(),
            top_p_token_ids: None,
            top_p_token_offsets: None,
            response_tokens: None,
            reward: None,
            finish_reason: None,
            weight_version: None,
            error: None,
        }
    }

    fn failed(self, options: &RolloutOptions, attempt: u32, error: String) -> Sample {
        let finish_reason = Some("error".to_owned());
        Sample { error: Some(error), finish_reason, ..self.sample(options, attempt) }
    }
}
