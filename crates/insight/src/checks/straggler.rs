//! A worker is much slower than its peers.

use rollscope_trace::{Attr, Nanos};

use crate::finding::{Found, Step, part_of};

pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let slow = step.figures.workers.iter().filter(|worker| worker.is_straggler);
    let rated = slow.filter_map(|worker| {
        let (own, others) = (worker.tokens_per_sec?, worker.others_tokens_per_sec?);
        let time = Nanos::from_secs_f64(worker.tokens? / own)?;
        Some((worker, own, others, part_of(time, 1.0 - own / others)))
    });
    let mut rated: Vec<_> = rated.collect();
    rated.sort_by_key(|(.., lost)| std::cmp::Reverse(*lost));
    let (worst, own, others, _) = *rated.first()?;
    let more = match rated.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let (role, url) = (worst.role.name(), &worst.worker.url);
    let mut evidence = step.evidence_of_worker(worst);
    evidence.push(("tokens_per_sec".into(), own.into()));
    evidence.push(("others_tokens_per_sec".into(), others.into()));
    evidence.push(("requests".into(), Attr::Int(worst.requests as i64)));
    Some(Found {
        explain: format!(
            "the {role} worker {url}{more} gave {own:.0} tokens/s to a request where its peers gave {others:.0}: \
             look at its GPU's clock, its neighbours and its batch sizes, or take it out"
        ),
        evidence,
        stake: rated.iter().fold(Nanos(0), |sum, (.., lost)| sum.plus(*lost)),
    })
}
