//! `rollscope rollout`: prompts through a gateway, rewarded samples back.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::{ArgMatches, Command};
use indicatif::{ProgressBar, ProgressStyle};
use rollscope_config::{OptionSet as _, Options as _, options, without_user_info};
use rollscope_record::{RecordError, Relay};
use rollscope_rollout::{Event, Prompt, Rollout, RolloutOptions, StepSummary};
use rollscope_trace::{StepNumber, sentence as sentence_of};
use rollscope_track::Target;
use serde_json::json;

use super::track::targets;
use super::{block_on, resolve};
use crate::exit::Failure;
use crate::lifetime::{LifetimeOptions, shutdown};
use crate::opened::create_run;
use crate::output;

options! {
    /// Roll out: send prompts through a gateway, reward the samples, report both to it.
    pub(crate) struct RolloutCommandOptions, environment "ROLLSCOPE_ROLLOUT" {
        serving {
            /// Address of the gateway, http://HOST:PORT.
            url: String, value_name("URL");
        }
        exec {
            /// Number of the first step.
            first_step: u64 = 1, range(0..=(1 << 53) - 1);
            /// Folder for each step's samples, as JSON lines.
            out: Option<String> = None, value_name("DIR");
        }
        observability {
            /// Send the numbers of each step, as the gateway has computed them from what it recorded, to a tracker:
            /// wandb[:PROJECT[/NAME]], tensorboard[:DIR], mlflow:URL or jsonl[:FILE]. Needs --out, which becomes a run for
            /// `rollscope track`.
            track: Vec<String> = &[], value_name("TARGET");
        }
    }
}

options! {
    /// What to sample.
    pub(crate) struct SamplingOptions, environment "ROLLSCOPE_ROLLOUT" {
        exec {
            /// File of prompts, a line {"prompt": …, "answer": …} each, or `bundled`.
            prompts: String = "bundled", value_name("FILE");
            /// Prompts of a step; a step takes the next ones, and the first ones again after the last.
            prompts_per_step: usize = 512, range(1..=1_000_000);
            /// Samples of a prompt.
            samples_per_prompt: usize = 8, range(1..=1_000_000);
            /// Steps.
            steps: u64 = 10, range(1..=1_000_000);
            /// Requests in flight at most.
            concurrency: usize = 128, range(1..=65_536);
            /// Sampling temperature.
            temperature: f64 = 1.0, range(0.0..=100.0);
            /// Nucleus of the distribution that is sampled from.
            ///
            /// Below 1 the tokens that it keeps are asked for; a reply without them is a failure.
            top_p: f64 = 1.0, range(0.000_001..=1.0);
            /// Tokens of a response at most.
            max_new_tokens: u32 = 96, range(1..=1_000_000);
            /// Makes every sample's draw reproducible; without it the workers draw at random.
            seed: Option<u64> = None;
            /// Tries of a sample before it counts as failed.
            attempts: u32 = 5, range(1..=1000);
            /// Send what was asked and answered with the spans, for the viewer to show as a conversation.
            record_text: bool = false;
        }
    }
}

/// Samples of a step at most: they are held until it ends.
const MOST_SAMPLES: usize = 10_000_000;

/// Shows a rollout's progress on stderr: a bar on a terminal, a line per step elsewhere.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    first_error_told: bool,
}

/// The trackers that get each step's numbers.
struct Tracked(Relay);

/// What the command takes.
pub(crate) type Options = (RolloutCommandOptions, SamplingOptions);

pub(crate) fn command() -> Command {
    SamplingOptions::args(RolloutCommandOptions::command("rollout"))
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let (command, sampling) = resolve::<Options>(matches)?;
    let targets = targets(&command.track)?;
    let out = command.out.as_ref().map(PathBuf::from);
    let options = sampling.rollout(command.url.clone(), command.first_step, out.clone())?;
    let rollout = Rollout::new(options).map_err(Failure::usage)?;
    block_on(async {
        let mut tracked = match (targets.as_slice(), out) {
            ([], _) => None,
            (_, None) => {
                return Err(Failure::Usage(anyhow!("--track needs --out: what is sent is kept there")));
            }
            (targets, Some(out)) => Some(Tracked::start(&rollout, &command, &out, targets).await?),
        };
        let interrupted = shutdown(&LifetimeOptions { exit_on_stdin_close: false })?;
        let mut progress = Progress::new();
        let mut told = Ok(());
        // Each step's result is told once, when it is there.
        let show = |event: Event<'_>| {
            progress.show(&event);
            if let (Event::StepEnded(step), Ok(())) = (&event, &told) {
                told = output::line(format_args!("{}", sentence(step)));
            }
            if let (Event::StepEnded(step), Some(tracked)) = (&event, &mut tracked) {
                tracked.send(step);
            }
        };
        tokio::select! {
            ended = rollout.run(show) => ended.map_err(anyhow::Error::from)?,
            () = interrupted => return Err(Failure::Other(anyhow!("interrupted; the step's samples are lost"))),
        };
        Ok(told?)
    })
}

// === impl Tracked ===

impl Tracked {
    /// Makes a run of the folder, or goes on with the one that is there.
    async fn start(
        rollout: &Rollout,
        command: &RolloutCommandOptions,
        out: &Path,
        targets: &[Target],
    ) -> Result<Self, Failure> {
        if rollout.is_recorded().await == Some(false) {
            let url = without_user_info(&command.url);
            return Err(Failure::Usage(anyhow!(
                "--track needs a gateway that records (--record), which computes the numbers: {url}"
            )));
        }
        let run = create_run(out, json!({"rollout": command.to_json()}))?;
        let on_trouble = |error: &RecordError| {
            output::note(format_args!("rollscope: tracking: {}", sentence_of(error)));
        };
        let relay = Relay::start(&run, targets, on_trouble).map_err(anyhow::Error::from)?;
        Ok(Self(relay))
    }

    /// A rollout goes on without its trackers; what went wrong is told.
    fn send(&mut self, step: &StepSummary) {
        let number = step.step;
        let trouble = match &step.numbers {
            None => "the gateway told no numbers".to_owned(),
            Some(numbers) => match self.0.send(StepNumber(number), numbers) {
                Ok(()) => return,
                Err(error) => sentence_of(&error),
            },
        };
        output::note(format_args!("step {number}: none of its numbers were sent: {trouble}"));
    }
}

// === impl SamplingOptions ===

impl SamplingOptions {
    /// The driver's options for a rollout through `url`.
    pub(crate) fn rollout(
        &self,
        url: String,
        first_step: u64,
        out: Option<PathBuf>,
    ) -> Result<RolloutOptions, Failure> {
        let samples = self.prompts_per_step.saturating_mul(self.samples_per_prompt);
        if samples > MOST_SAMPLES {
            return Err(Failure::Usage(anyhow!(
                "--prompts-per-step times --samples-per-prompt may be {MOST_SAMPLES} at most, got {samples}"
            )));
        }
        let last_step = first_step.saturating_add(self.steps - 1);
        if StepNumber::new(last_step).is_none() {
            return Err(Failure::Usage(anyhow!(
                "--first-step and --steps lead to a step that is none, got {last_step}"
            )));
        }
        let prompts = match self.prompts.as_str() {
            "bundled" => Prompt::bundled(),
            path => Prompt::read(Path::new(path)),
        };
        Ok(RolloutOptions {
            url,
            prompts: prompts.map_err(Failure::usage)?,
            prompts_per_step: self.prompts_per_step,
            samples_per_prompt: self.samples_per_prompt,
            steps: self.steps,
            first_step,
            concurrency: self.concurrency,
            temperature: self.temperature,
            top_p: self.top_p,
            max_new_tokens: self.max_new_tokens,
            seed: self.seed,
            attempts: self.attempts,
            record_text: self.record_text,
            out,
        })
    }
}

// === impl Progress ===

impl Progress {
    pub(crate) fn new() -> Self {
        Self { bar: ProgressBar::hidden(), first_error_told: false }
    }

    pub(crate) fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::StepBegan { step, samples } => {
                let style = ProgressStyle::with_template("{prefix} {bar:40} {pos}/{len} samples, {eta} left");
                self.bar = ProgressBar::new(*samples as u64).with_prefix(format!("step {step}"));
                if let Ok(style) = style {
                    self.bar.set_style(style);
                }
                if self.bar.is_hidden() {
                    output::note(format_args!("step {step}: sampling {samples}"));
                }
            }
            Event::SampleDone(sample) => {
                self.bar.inc(1);
                if let (Some(error), false) = (&sample.error, self.first_error_told) {
                    self.first_error_told = true;
                    let told = format!(
                        "step {} sample {}/{} failed (further failures are counted only): {error}",
                        sample.step, sample.group, sample.index
                    );
                    self.bar.suspend(|| output::note(format_args!("{told}")));
                }
            }
            Event::StepEnded(_) => self.bar.finish_and_clear(),
        }
    }
}

/// A step in one line.
pub(super) fn sentence(step: &StepSummary) -> String {
    let seconds = step.duration.as_secs_f64();
    let mut parts = vec![format!("{} samples", step.completed)];
    parts.extend(step.reward_mean.map(|reward| format!("reward mean {reward:.3}")));
    parts.push(format!(
        "{} tokens in {seconds:.1} s ({:.0} tokens/s)",
        step.tokens,
        step.tokens as f64 / seconds
    ));
    let mut count = |number: u64, what: &str| {
        if number > 0 {
            parts.push(format!("{number} {what}"));
        }
    };
    count(step.retries, "retries");
    count(step.failed as u64, "FAILED");
    count(step.unreported, "spans and rewards not taken by the gateway");
    format!("step {}: {}", step.step, parts.join(", "))
}
