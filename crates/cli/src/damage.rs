//! What is missing of a step: commands tell it before anything that is made of what is left.

use rollscope_run::{Damage, Run, StepLosses};
use rollscope_trace::StepNumber;
use serde_json::{Value, json};

use crate::exit::Failure;

/// A step of which records are lost.
#[derive(Debug)]
pub(crate) struct StepDamage {
    step: StepNumber,
    losses: StepLosses,
    counts: Vec<Count>,
}

/// How many there are of what was recorded.
#[derive(Debug)]
struct Count {
    of: &'static str,
    read: u64,
    recorded: u64,
}

/// What of a step is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Its requests, spans and samples.
    Records,
    /// Its forward passes too.
    Passes,
}

// === impl StepDamage ===

impl StepDamage {
    /// What is missing of a step; nothing of one that is whole.
    pub(crate) fn of(run: &Run, step: StepNumber) -> Result<Option<Self>, Failure> {
        let losses = run.losses(step).map_err(anyhow::Error::from)?;
        if losses.is_empty() {
            return Ok(None);
        }
        let trace = run.step(step).map_err(anyhow::Error::from)?;
        let summaries = run.steps().map_err(anyhow::Error::from)?;
        let counts = summaries.iter().find(|summary| summary.step == step).map(|recorded| {
            let spans = trace.samples.iter().map(|sample| sample.spans.len()).sum::<usize>();
            let count = |of, read: usize, recorded: u64| {
                let read = read as u64;
                Count { of, read, recorded: recorded.max(read) }
            };
            vec![
                count("requests", trace.requests().count(), recorded.requests),
                count("samples", trace.samples.len(), recorded.samples),
                count("user_spans", spans, recorded.user_spans),
            ]
        });
        Ok(Some(Self { step, losses, counts: counts.unwrap_or_default() }))
    }

    /// The same of several steps, of which so much is wanted.
    pub(crate) fn of_each(run: &Run, steps: &[StepNumber], wanted: Wanted) -> Result<Vec<Self>, Failure> {
        let mut found = Vec::new();
        for step in steps {
            found.extend(Self::of(run, *step)?.filter(|damage| damage.is_of(wanted)));
        }
        Ok(found)
    }

    /// Whether something is missing of what is wanted.
    pub(crate) fn is_of(&self, wanted: Wanted) -> bool {
        !self.losses.records.is_empty() || (wanted == Wanted::Passes && !self.losses.passes.is_empty())
    }

    /// One line: what is left of it, and what is damaged.
    pub(crate) fn sentence(&self) -> String {
        let damaged: Vec<String> = self.damage().map(Damage::to_string).collect();
        let damaged = damaged.join("; ");
        if !self.is_of(Wanted::Records) {
            return format!("damaged: step {}, forward passes are missing: {damaged}", self.step);
        }
        let left = self.counts.iter().map(|count| {
            let of = count.of.replace('_', " ");
            format!("{} of {} {of}", count.read, count.recorded)
        });
        let left: Vec<String> = left.collect();
        format!("damaged: step {}, all that is told of it rests on {}: {damaged}", self.step, left.join(", "))
    }

    /// Damaged files, one by one.
    pub(crate) fn json(&self) -> Value {
        let damage = |damage: &Damage| json!({"path": damage.path.display().to_string(), "offset": damage.offset, "kind": damage.kind.name()});
        self.damage().map(damage).collect()
    }

    /// How much is left, by kind.
    pub(crate) fn rests_on(&self) -> Value {
        let count =
            |count: &Count| (count.of.to_owned(), json!({"read": count.read, "recorded": count.recorded}));
        Value::Object(self.counts.iter().map(count).collect())
    }

    fn damage(&self) -> impl Iterator<Item = &Damage> {
        self.losses.records.iter().chain(&self.losses.passes)
    }
}
