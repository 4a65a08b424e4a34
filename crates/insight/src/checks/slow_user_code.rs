//! Samples spend their time in rewards and tools.

use rollscope_stats::own_time;
use rollscope_trace::Nanos;

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
    // A span around the calls of the model is as long as they are; only what is its own is to be blamed on it.
    let spans = step.samples.iter().flat_map(|sample| sample.timely_spans().map(move |span| (*sample, span)));
    let owned = spans.map(|(sample, span)| (span, own_time(sample, span)));
    let longest = owned.filter(|(_, own)| own.0 > 0).max_by_key(|(_, own)| *own);
    let evidence = longest.map_or_else(Vec::new, |(span, own)| {
        vec![
            ("span".into(), (&*span.name).into()),
            ("sample".into(), span.key.to_string().into()),
            ("start_unix_s".into(), span.start.as_secs_f64().into()),
            ("own_time_s".into(), own.as_secs_f64().into()),
        ]
    });
    let told = longest.map_or_else(String::new, |(span, own)| {
        format!(", the longest of it `{}` with {:.1} s", span.name, own.as_secs_f64())
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
