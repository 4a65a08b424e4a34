//! One sample of a run: its spans as a tree, with their attributes.

use anyhow::anyhow;
use rollscope_run::Run;
use rollscope_trace::{Attr, SampleTrace, Span, StepNumber, sample_spans};
use serde_json::{Map, Value, json};

use super::passes::Passes;
use super::{attr_json, missing_of_run, read};
use crate::damage::{StepDamage, Wanted};
use crate::exit::Failure;
use crate::output;
use crate::table::duration;

/// Prints every sample of that name in the steps given.
pub(super) fn print(run: &Run, steps: &[StepNumber], id: &str, as_json: bool) -> Result<(), Failure> {
    let dir = run.dir();
    let damaged = StepDamage::of_each(run, steps, Wanted::Passes)?;
    let damaged: Vec<String> = damaged.iter().map(StepDamage::sentence).chain(missing_of_run(run)?).collect();
    if !as_json {
        damaged.iter().try_for_each(|damage| output::line(format_args!("{damage}")))?;
    }
    let mut found: Vec<Value> = Vec::new();
    let mut is_found = false;
    for step in steps {
        let step = read(run, *step)?;
        let mut passes = None;
        for sample in step.samples.iter().filter(|sample| sample.key.to_string() == id) {
            is_found = true;
            let passes = match &mut passes {
                Some(passes) => passes,
                none => none.insert(Passes::read(run, &step)?),
            };
            if as_json {
                found.push(json_of(sample, passes));
                continue;
            }
            output::line(format_args!("step {}, sample {}", sample.key.step, sample.key))?;
            for line in lines(&sample_spans(sample)).into_iter().chain(passes.lines(sample)) {
                output::line(format_args!("{line}"))?;
            }
        }
    }
    if !is_found {
        let hint = if damaged.is_empty() {
            hint(run, steps, id)?
        } else {
            format!("; it may be among what is lost: {}", damaged.join("; "))
        };
        return Err(Failure::Other(anyhow!("no sample {id} in {}{hint}", dir.display())));
    }
    if as_json {
        output::line(format_args!(
            "{}",
            json!({"run": dir.display().to_string(), "damage": damaged, "samples": found})
        ))?;
    }
    Ok(())
}

/// How a sample is named, by one that the user may have meant.
fn hint(run: &Run, steps: &[StepNumber], id: &str) -> Result<String, Failure> {
    let mut named = None;
    for step in steps {
        for key in read(run, *step)?.samples.into_iter().map(|sample| sample.key) {
            let is_meant = key.group.is_some() && *key.sample == *id;
            if is_meant || named.is_none() {
                let form = if key.group.is_some() {
                    "GROUP/SAMPLE"
                } else {
                    "by their own name or the request's id"
                };
                named = Some(format!("; samples are named {form}, such as {key}"));
            }
            if is_meant {
                return Ok(named.unwrap_or_default());
            }
        }
    }
    Ok(named.unwrap_or_default())
}

/// A longer attribute, such as the text of a reply, is cut; `--json` has all of it.
const MAX_TOLD_BYTES: usize = 2000;

/// A line per span: begin since the sample's own, length, name; then its attributes, indented.
fn lines(spans: &[Span]) -> Vec<String> {
    let Some(root) = spans.first() else { return Vec::new() };
    let mut lines = Vec::new();
    for span in spans {
        let depth = std::iter::successors(span.parent, |id| spans.get(*id as usize)?.parent).count();
        let indent = "  ".repeat(depth);
        let begin = duration(span.start.since(root.start).as_secs_f64());
        let length = span
            .end
            .map_or_else(|| "still open".to_owned(), |end| duration(end.since(span.start).as_secs_f64()));
        let placed = match span.bound.0 {
            0 => String::new(),
            _ => format!(" (placed within ±{})", duration(span.bound.as_secs_f64())),
        };
        lines.push(format!("{begin:>9} {length:>10}  {indent}{}{placed}", span.name));
        let attr = |(name, value): &(_, Attr)| {
            let told = attr_json(value).to_string();
            let kept = told.floor_char_boundary(MAX_TOLD_BYTES);
            let more = if kept < told.len() { format!("… ({} bytes)", told.len()) } else { String::new() };
            format!("{:22}{indent}  {name} = {}{more}", "", &told[..kept])
        };
        lines.extend(span.attrs.iter().map(attr));
    }
    lines
}

fn json_of(sample: &SampleTrace, passes: &Passes) -> Value {
    let spans: Vec<Value> = sample_spans(sample)
        .iter()
        .map(|span| {
            let attrs: Map<String, Value> =
                span.attrs.iter().map(|(name, attr)| (name.to_string(), attr_json(attr))).collect();
            json!({
                "id": span.id,
                "parent": span.parent,
                "name": span.name,
                "lane": span.lane.name(),
                "start_unix_ns": span.start.0,
                "end_unix_ns": span.end.map(|end| end.0),
                "bound_ns": span.bound.0,
                "attrs": attrs,
            })
        })
        .collect();
    json!({"step": sample.key.step.0, "sample": sample.key.to_string(), "reward": sample.mark.reward, "spans": spans,
        "forward_passes": passes.json(sample)})
}
