//! `rollscope track`: the numbers of a run's steps to a tracker, afterwards or once more.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgMatches, Command, value_parser};
use rollscope_config::{Options as _, options};
use rollscope_record::{catch_up, origin_of};
use rollscope_run::{Run, WriterState};
use rollscope_trace::StepNumber;
use rollscope_track::{Target, TrackError, Tracker};

use super::resolve;
use crate::exit::Failure;
use crate::output;

options! {
    /// Send the numbers of a run's closed steps to trackers that do not have them yet.
    pub(crate) struct TrackOptions, environment "ROLLSCOPE_TRACK" {
        observability {
            /// Where to: wandb[:PROJECT[/NAME]], tensorboard[:DIR], mlflow:URL or jsonl[:FILE].
            to: Vec<String>, value_name("TARGET");
        }
    }
}

/// What the command takes.
pub(crate) type Options = TrackOptions;

pub(crate) fn command() -> Command {
    let run = Arg::new("run").value_name("RUN").required(true).value_parser(value_parser!(PathBuf));
    TrackOptions::command("track").arg(run.help("Folder of the run"))
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let options = resolve::<Options>(matches)?;
    let targets = targets(&options.to)?;
    let path = matches.get_one::<PathBuf>("run").context("no run was given")?;
    let run = Run::open(path).map_err(anyhow::Error::from)?;
    // What was computed when the recorder was killed.
    if let Err(error) = run.metrics_log().make_up(&mut BTreeSet::new()) {
        output::note(format_args!(
            "rollscope: numbers that were computed and never sent cannot all be: {error}"
        ));
    }
    for target in &targets {
        let (sent, left_out) = send(&run, target).with_context(|| format!("cannot send to {target}"))?;
        output::line(format_args!("{sent}"))?;
        if let Some(error) = left_out {
            output::note(format_args!("rollscope: {error}"));
        }
    }
    let unsent = without_numbers(&run)?;
    if !unsent.is_empty() {
        let why = "steps that are closed have no numbers in metrics.jsonl, so none of them was sent";
        return Err(anyhow!("{why}: {}", unsent.join(", ")).into());
    }
    Ok(())
}

/// The closed steps that metrics.jsonl, from which trackers get their numbers, does not have. While a run is recorded they come
/// a moment after the step's end.
fn without_numbers(run: &Run) -> anyhow::Result<Vec<String>> {
    if run.writers()?.iter().any(|writer| writer.state == WriterState::Live) {
        return Ok(Vec::new());
    }
    let known: BTreeSet<StepNumber> = run.metrics()?.into_iter().map(|sent| sent.step).collect();
    let closed = run.steps()?.into_iter().filter(|summary| summary.close.is_some());
    let unsent = closed.map(|summary| summary.step).filter(|step| !known.contains(step));
    Ok(unsent.map(|step| step.to_string()).collect())
}

/// Targets as they are written on the command line.
pub(super) fn targets(texts: &[String]) -> Result<Vec<Target>, Failure> {
    texts.iter().map(|text| text.parse().map_err(Failure::usage)).collect()
}

/// Sends what is missing; gives what to say of it, and of numbers that were not taken.
fn send(run: &Run, target: &Target) -> anyhow::Result<(String, Option<TrackError>)> {
    let mut tracker = Tracker::open(target, &origin_of(run))?;
    let (sent, left_out) = catch_up(run, &mut tracker)?;
    let place = tracker.place();
    tracker.finish()?;
    let next = match target {
        Target::Wandb { .. } => format!("; to send it to W&B: wandb sync {place}"),
        _ => String::new(),
    };
    Ok((format!("{sent} steps sent to {place}{next}"), left_out))
}
