//! Requests failed, and why most of them did.

use std::borrow::Cow;
use std::collections::HashMap;

use rollscope_trace::{Attr, Nanos, Outcome, Profile};

use crate::finding::{Finding, Found, Step, evidence_of, percent};

const SHARE: f64 = 0.02;
/// Of an error this much is told; characters.
const TOLD: usize = 200;

/// What most of the failed requests met.
struct Reason {
    text: String,
    requests: usize,
}

/// Of a step in which no request came to an end: that, in place of everything else.
pub(crate) fn all_failed(step: &Step<'_>) -> Option<Finding> {
    let failed: Vec<&Profile> = requests(step).collect();
    if failed.is_empty() || failed.iter().any(|request| !is_failed(request)) {
        return None;
    }
    let reason = Reason::of(&failed)?;
    let explain = format!(
        "all {} requests failed, {}: nothing was generated, so that the step's times tell nothing of serving; see \
         whether the workers run and can be reached, and what the trainer sends",
        failed.len(),
        reason.sentence(failed.len()),
    );
    Some(Finding { check: "all_failed", explain, evidence: evidence(step, &reason) })
}

/// Of a step in which some did.
pub(super) fn check(step: &Step<'_>) -> Option<Found> {
    let failed: Vec<&Profile> = requests(step).filter(|request| is_failed(request)).collect();
    let share = failed.len() as f64 / step.figures.requests.count.max(1) as f64;
    let reason = Reason::of(&failed).filter(|_| share >= SHARE)?;
    Some(Found {
        explain: format!(
            "{} of {} requests failed ({}), {}: see what the workers say of these requests, and take out one that fails \
             more than others",
            failed.len(),
            step.figures.requests.count,
            percent(share),
            reason.sentence(failed.len()),
        ),
        evidence: evidence(step, &reason),
        stake: failed.iter().fold(Nanos(0), |sum, request| sum.plus(request.end)),
    })
}

fn requests<'a>(step: &Step<'a>) -> impl Iterator<Item = &'a Profile> {
    step.samples.iter().flat_map(|sample| &sample.requests)
}

fn is_failed(request: &Profile) -> bool {
    request.outcome == Outcome::Failed
}

fn evidence(step: &Step<'_>, reason: &Reason) -> Vec<(Cow<'static, str>, Attr)> {
    let longest = step.worst(|request| {
        let is_one = is_failed(request) && reason_of(request) == reason.text;
        is_one.then(|| request.end.as_secs_f64())
    });
    let mut evidence = evidence_of(longest, "duration_s");
    evidence.push(("error".into(), Attr::from(&*reason.text)));
    evidence.push(("requests_with_it".into(), Attr::Int(reason.requests as i64)));
    evidence
}

/// The request's own error; else that of a call to a worker; else its status.
fn reason_of(request: &Profile) -> String {
    let of_leg = || request.legs.iter().find_map(|leg| leg.error.as_deref());
    let told = request.error.as_deref().or_else(of_leg);
    let told = told.map(|told| told.chars().take(TOLD).collect());
    told.or_else(|| request.status.map(|status| format!("status {status}")))
        .unwrap_or_else(|| "without an answer".to_owned())
}

// === impl Reason ===

impl Reason {
    /// Nothing of no requests.
    fn of(failed: &[&Profile]) -> Option<Self> {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for request in failed {
            *counts.entry(reason_of(request)).or_default() += 1;
        }
        let mut reasons: Vec<Self> =
            counts.into_iter().map(|(text, requests)| Self { text, requests }).collect();
        // Of reasons that are as frequent always the same.
        reasons.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.text.cmp(&b.text)));
        reasons.into_iter().next()
    }

    fn sentence(&self, all: usize) -> String {
        match self.requests {
            one if one == all => format!("with `{}`", self.text),
            most => format!("{most} of them with `{}`", self.text),
        }
    }
}
