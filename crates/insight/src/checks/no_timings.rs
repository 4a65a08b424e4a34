//! A worker reports no timings, so what it did with its time is not known.

use rollscope_stats::Part;
use rollscope_trace::{Attr, LegRole};

use crate::finding::{Found, Step, part_of};

pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let workers = &step.figures.workers;
    let silent: Vec<_> = workers.iter().filter(|worker| worker.is_silent()).collect();
    let first = silent.first()?;
    let (unknown, _) = step.in_parts(&[Part::Other, Part::Forward]);
    let calls: u64 = silent.iter().map(|worker| worker.completed).sum();
    let all: u64 = workers.iter().map(|worker| worker.completed).sum();
    let is_pair = silent.iter().any(|worker| worker.role != LegRole::Regular);
    let stages = if is_pair { ", with a build that reports `pd_*` stages in `meta_info`" } else { "" };
    Some(Found {
        explain: format!(
            "{} of {} workers report no timings, {} first: start them with `--enable-metrics`{stages}, and call \
             `/generate` rather than an OpenAI route, whose replies carry none",
            silent.len(),
            workers.len(),
            first.worker.url,
        ),
        evidence: silent
            .iter()
            .take(8)
            .map(|worker| ("worker".into(), Attr::from(&*worker.worker.url)))
            .collect(),
        stake: part_of(unknown, calls as f64 / all.max(1) as f64),
    })
}
