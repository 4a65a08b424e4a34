//! A worker reports no timings, or none by stages, so what it did with its time is not known.

use rollscope_stats::Part;
use rollscope_trace::{Attr, LegRole};

use crate::finding::{Found, Step, part_of};

pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let workers = &step.figures.workers;
    let silent: Vec<_> = workers.iter().filter(|worker| worker.is_silent()).collect();
    let without_stages: Vec<_> = workers.iter().filter(|worker| worker.is_without_stages()).collect();
    // The sentence is of one kind; the workers of the other are named beside it.
    let told_of = if silent.is_empty() { &without_stages } else { &silent };
    let first = told_of.first()?;
    let found = || silent.iter().chain(&without_stages);
    let (unknown, _) = step.in_parts(&[Part::Other, Part::Forward]);
    let calls: u64 = found().map(|worker| worker.completed).sum();
    let all: u64 = workers.iter().map(|worker| worker.completed).sum();
    let told = format!("{} of {} workers report no", told_of.len(), workers.len());
    let url = &first.worker.url;
    let with_stages = "with a build that reports `pd_*` stages in `meta_info`";
    let openai = "call `/generate` rather than an OpenAI route, whose replies carry none";
    let explain = match first.role {
        _ if !first.is_silent() => format!("{told} `pd_*` stages, {url} first: start them {with_stages}"),
        LegRole::Regular => {
            format!("{told} timings, {url} first: start them with `--enable-metrics`, and {openai}")
        }
        LegRole::Prefill | LegRole::Decode => format!(
            "{told} timings, {url} first: start them with `--enable-metrics`, {with_stages}, and {openai}"
        ),
    };
    let mut evidence = step.evidence_of_worker(first);
    evidence.extend(found().skip(1).take(7).map(|worker| ("also".into(), Attr::from(&*worker.worker.url))));
    Some(Found { explain, evidence, stake: part_of(unknown, calls as f64 / all.max(1) as f64) })
}
