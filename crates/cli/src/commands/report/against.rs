//! `--against`: a run or a step compared with another, stage by stage.

use std::path::Path;

use rollscope_insight::{Change, Magnitude, compare};
use rollscope_stats::RequestValues;
use serde_json::{Value, json};

use super::{ReportOptions, read, shown};
use crate::exit::Failure;
use crate::opened::Opened;
use crate::output;
use crate::table::Table;

/// From here on a change is told as one.
const SURE: f64 = 0.95;

/// What became of each stage since the other run.
pub(super) fn changes(
    opened: &Opened,
    options: &ReportOptions,
    other: &Path,
) -> Result<Vec<Change>, Failure> {
    let other = Opened::at(other)?;
    let before = values(&other, options.against_step.or(options.step))?;
    Ok(compare(before, values(opened, options.step)?))
}

fn values(opened: &Opened, step: Option<u64>) -> Result<RequestValues, Failure> {
    let mut values = RequestValues::default();
    for step in opened.steps(step)? {
        values.add_step(&read(&opened.run, step)?);
    }
    Ok(values)
}

pub(super) fn print(changes: &[Change]) -> Result<(), Failure> {
    for line in lines(changes) {
        output::line(format_args!("{line}"))?;
    }
    Ok(())
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

pub(super) fn json_of(changes: &[Change]) -> Value {
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
    changes.iter().map(change).collect()
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
