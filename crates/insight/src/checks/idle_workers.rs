//! Workers that answer stand idle while the step goes on. That prefill workers do so at its end is as it should be.

use rollscope_trace::{Attr, LegRole, Nanos};

use crate::finding::{Found, Step, part_of, percent};

const SHARE: f64 = 0.3;

pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let whole = step.figures.rollout_time?;
    let roles = [LegRole::Regular, LegRole::Decode].into_iter().filter_map(|role| {
        let of_role = || step.figures.workers.iter().filter(|worker| worker.role == role);
        let count = of_role().count();
        let idle = of_role().map(|worker| worker.idle_share).sum::<f64>() / count.max(1) as f64;
        (count > 0).then_some((role, idle))
    });
    let (role, idle) = roles.max_by(|a, b| a.1.total_cmp(&b.1))?;
    if idle < SHARE {
        return None;
    }
    let of_role = step.figures.workers.iter().filter(|worker| worker.role == role);
    let idlest = of_role.clone().max_by(|a, b| a.idle_share.total_cmp(&b.idle_share))?;
    let mut evidence = step.evidence_of_worker(idlest);
    evidence.push(("idle_share".into(), idlest.idle_share.into()));
    evidence.push(("requests".into(), Attr::Int(idlest.requests as i64)));
    Some(Found {
        explain: format!(
            "{} workers had nothing to do for {} of the step, {} most with {}: send more at a time, spread it \
             evenly, or use fewer of them",
            role.name(),
            percent(idle),
            idlest.worker.url,
            percent(idlest.idle_share),
        ),
        evidence,
        stake: of_role.fold(Nanos(0), |sum, worker| sum.plus(part_of(whole, worker.idle_share))),
    })
}
