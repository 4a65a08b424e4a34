//! What a planner makes of the passes that are heard of now.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rollscope_config::options;
use rollscope_fpm::{Heard, Origin, What};
use rollscope_insight::plan;
use rollscope_record::{PassSource, PassStream};
use rollscope_trace::{ForwardPass, sentence};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::Watched;
use crate::commands::report::plan::{json_of, lines};
use crate::exit::Failure;
use crate::output;

options! {
    /// Print what a planner makes of the passes, again and again: how long one takes by what is in it, and what the next
    /// request may expect.
    pub(crate) struct PlanOptions, environment "ROLLSCOPE_FPM_PLAN" {
        observability {
            /// Servers that are asked where they publish.
            server: Vec<String> = &[], value_name("URL");
            /// Seconds between two looks.
            interval: u16 = 5, range(1..=3600);
            /// End after so many looks.
            count: Option<u32> = None, range(1..=1_000_000);
            /// Passes that are looked at: the latest of all ranks.
            passes: usize = 20_000, range(5..=1_000_000);
            /// Print each look as JSON.
            json: bool = false;
        }
    }
}

pub(super) async fn run(mut watched: Watched, options: &PlanOptions) -> Result<(), Failure> {
    let mut streams: BTreeMap<Origin<PassSource>, PassStream> = BTreeMap::new();
    let mut passes: VecDeque<ForwardPass> = VecDeque::new();
    let mut left = options.count;
    let mut looks = interval(Duration::from_secs(options.interval.into()));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks.tick().await;
    while left != Some(0) {
        tokio::select! {
            heard = watched.recv() => {
                let Some(Heard { from, what }) = heard else { return Ok(()) };
                match what {
                    What::Message(message) => {
                        let stream = streams.entry(from.clone()).or_default();
                        passes.extend(stream.take(&from, message));
                        if passes.len() > options.passes {
                            passes.pop_front();
                        }
                    }
                    What::Lost(error) => output::note(format_args!("{}: {}", from.endpoint, sentence(&error))),
                    What::Connected => {}
                    What::Moved(_) => streams.entry(from).or_default().begin_anew(),
                    What::Left => drop(streams.remove(&from)),
                }
            }
            _ = looks.tick() => {
                show(passes.make_contiguous(), options.json)?;
                left = left.map(|left| left - 1);
            }
        }
    }
    Ok(())
}

fn show(passes: &[ForwardPass], as_json: bool) -> Result<(), Failure> {
    let plans = plan(passes);
    if as_json {
        let plans: Vec<Value> = plans.iter().map(json_of).collect();
        output::line(format_args!("{}", json!({"plan": plans})))?;
        return Ok(());
    }
    if plans.is_empty() {
        output::line(format_args!("no forward passes yet"))?;
    }
    for line in plans.iter().flat_map(lines) {
        output::line(format_args!("{line}"))?;
    }
    output::line(format_args!(""))?;
    Ok(())
}
