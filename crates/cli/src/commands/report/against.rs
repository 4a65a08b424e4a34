//! `--against`: a run or a step compared with another, stage by stage.

use std::path::Path;

use rollscope_insight::{Change, Magnitude, compare};
use rollscope_stats::RequestValues;
use serde_json::{Value, json};

use super::{ReportOptions, read, shown};
use crate::damage::{StepDamage, Wanted};
use crate::exit::Failure;
use crate::opened::Opened;
use crate::output;
use crate::table::Table;

/// From here on a change is told as one.
const SURE: f64 = 0.95;

/// What became of each stage since the other run.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    changes: Vec<Change>,
    /// Steps of which records are lost: then nothing is compared, since what is missing would be taken for a change.
    damaged: Vec<String>,
}

/// Compares the steps that were asked for with those of the other run.
pub(super) fn compare_with(
    opened: &Opened,
    options: &ReportOptions,
    other: &Path,
) -> Result<Comparison, Failure> {
    let other = Opened::at(other)?;
    let mut comparison = Comparison::default();
    let before = comparison.values(&other, options.against_step.or(options.step))?;
    let after = comparison.values(opened, options.step)?;
    if comparison.damaged.is_empty() {
        comparison.changes = compare(before, after);
    }
    Ok(comparison)
}

pub(super) fn print(comparison: &Comparison) -> Result<(), Failure> {
    for line in comparison.lines() {
        output::line(format_args!("{line}"))?;
    }
    Ok(())
}

// === impl Comparison ===

impl Comparison {
    fn values(&mut self, opened: &Opened, step: Option<u64>) -> Result<RequestValues, Failure> {
        let mut values = RequestValues::default();
        for step in opened.steps(step)? {
            values.add_step(&read(&opened.run, step)?);
            let damage = StepDamage::of(&opened.run, step)?.filter(|damage| damage.is_of(Wanted::Records));
            self.damaged.extend(damage.map(|damage| damage.sentence()));
        }
        Ok(values)
    }

    fn lines(&self) -> Vec<String> {
        if self.damaged.is_empty() {
            return lines(&self.changes);
        }
        let refused = "against the other run: nothing is compared, since records are missing".to_owned();
        let damaged = self.damaged.iter().map(|damage| format!("  {damage}"));
        std::iter::once(refused).chain(damaged).collect()
    }
}

fn lines(changes: &[Change]) -> Vec<String> {
    if changes.is_empty() {
        return vec!["against the other run: nothing to compare, no stage was measured in both".to_owned()];
    }
    let mut table =
        Table::new(["stage", "before", "now", "change", "p99 before", "p99 now", "effect", "confidence"]);
    for change in changes {
        let unit = change.series.unit;
        table.row([
            change.series.name.to_owned(),
            shown(change.before.median, unit),
            shown(change.after.median, unit),
            relative(change).map_or_else(String::new, |change| format!("{:+.0}%", change * 100.0)),
            shown(change.before.p99, unit),
            shown(change.after.p99, unit),
            effect(change),
            sureness(change),
        ]);
    }
    let head =
        "against the other run: medians, how far the requests of the two lie apart, and how sure that is";
    let rows = table.lines().map(|line| format!("  {line}"));
    std::iter::once(head.to_owned()).chain(rows).collect()
}

/// Null where nothing is compared.
pub(super) fn json_of(comparison: &Comparison) -> Value {
    if !comparison.damaged.is_empty() {
        return Value::Null;
    }
    let change = |change: &Change| {
        let side = |of: &rollscope_stats::Distribution| json!(std::collections::BTreeMap::from(of.named()));
        json!({
            "name": format!("perf/{}", change.series.name),
            "before": side(&change.before),
            "after": side(&change.after),
            "median_change": relative(change),
            "confidence": change.confidence,
            "effect": change.effect,
            "magnitude": change.magnitude().name(),
        })
    };
    comparison.changes.iter().map(change).collect()
}

/// Of the median; nothing where it was 0.
fn relative(change: &Change) -> Option<f64> {
    let before = change.before.median;
    (before > 0.0).then(|| change.after.median / before - 1.0)
}

/// How far the two lie apart, where it is sure that they do.
fn effect(change: &Change) -> String {
    match change.confidence {
        Some(sure) if sure >= SURE => format!("{} ({:+.2})", change.magnitude().name(), change.effect),
        _ => String::new(),
    }
}

/// A chance is never told as certainty, and not at all where it is the chance of next to nothing: among many requests
/// the smallest change is certain.
fn sureness(change: &Change) -> String {
    match change.confidence {
        None => "too few".to_owned(),
        Some(sure) if sure < SURE => "no change seen".to_owned(),
        Some(_) if change.magnitude() == Magnitude::Negligible => "no change that matters".to_owned(),
        Some(sure) => format!("{:.1}%", (sure * 100.0).min(99.9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_with_nothing_in_common_get_a_sentence_instead_of_a_table() {
        let told = lines(&compare(RequestValues::default(), RequestValues::default()));
        assert_eq!(told, ["against the other run: nothing to compare, no stage was measured in both"]);
    }
}
