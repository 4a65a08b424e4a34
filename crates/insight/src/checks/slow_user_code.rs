//! Samples spend their time in rewards and tools.

use rollscope_trace::{Nanos, UserSpan};

use crate::finding::{Found, Step, percent};

const SHARE: f64 = 0.1;

pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let other = step.figures.non_generation_time?;
    let whole: f64 = step
        .samples
        .iter()
        .filter_map(|sample| Some(sample.end()?.since(sample.start()?).as_secs_f64()))
        .sum();
    let share = other.sum / whole;
    if whole <= 0.0 || share < SHARE {
        return None;
    }
    let length = |span: &UserSpan| span.end.map(|end| end.since(span.start)).unwrap_or_default();
    let spans = step.samples.iter().flat_map(|sample| &sample.spans);
    let longest = spans.max_by_key(|span| length(span));
    let evidence = longest.map_or_else(Vec::new, |span| {
        vec![
            ("span".into(), (&*span.name).into()),
            ("sample".into(), span.key.to_string().into()),
            ("start_unix_s".into(), span.start.as_secs_f64().into()),
            ("duration_s".into(), length(span).as_secs_f64().into()),
        ]
    });
    let told = longest.map_or_else(String::new, |span| {
        format!(", the longest of it `{}` with {:.1} s", span.name, length(span).as_secs_f64())
    });
    Some(Found {
        explain: format!(
            "samples spent {} of their time in your own code{told}: run it beside generation, in more processes, or \
             with a limit of time",
            percent(share)
        ),
        evidence,
        stake: Nanos::from_secs_f64(other.sum)?,
    })
}
