//! Findings: what a report says of a step, each in one sentence with its number, its evidence and what to try.

use std::borrow::Cow;

use rollscope_stats::{
    Breakdown, Figures, Part, SlowestSample, StepNumbers, WorkerFigures, population, slowest_sample,
    where_time_went,
};
use rollscope_trace::{Attr, Leg, Nanos, Profile, SampleTrace, StepTrace};

use crate::checks::CHECKS;

/// Something that was found in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The check that found it, by its stable name.
    pub check: &'static str,
    /// What was found, with its number, and what to try.
    pub explain: String,
    /// What it rests on: names and values; times in seconds.
    pub evidence: Vec<(Cow<'static, str>, Attr)>,
}

/// What a check looks at.
pub(crate) struct Step<'a> {
    /// The samples that the step is judged by.
    pub(crate) samples: Vec<&'a SampleTrace>,
    pub(crate) figures: &'a Figures,
    /// The time of all requests.
    pub(crate) time: Breakdown,
}

/// What a check has found, and the time of requests that is at stake: of all requests together, as in a breakdown.
pub(crate) struct Found {
    pub(crate) explain: String,
    pub(crate) evidence: Vec<(Cow<'static, str>, Attr)>,
    pub(crate) stake: Nanos,
}

/// Runs every check: first where the time went and the slowest sample, then what is out of order, by the time that is
/// at stake. A check that finds nothing says nothing. Of a step of which no request came to an end there is nothing to
/// say but that, and why: the times of requests that failed tell nothing of the time that serving takes. The numbers are those
/// of this trace.
pub fn findings(trace: &StepTrace, numbers: &StepNumbers) -> Vec<Finding> {
    findings_beside(trace, numbers, &where_time_went(trace), slowest_sample(trace).as_ref())
}

/// The same for who has asked already where the time of this trace went, and for its slowest sample.
pub fn findings_beside(
    trace: &StepTrace,
    numbers: &StepNumbers,
    time: &Breakdown,
    slowest: Option<&SlowestSample>,
) -> Vec<Finding> {
    let step = Step { samples: population(trace).collect(), figures: numbers.shown(), time: time.clone() };
    if let Some(failed) = crate::checks::all_failed(&step) {
        return vec![failed];
    }
    let overview = [crate::checks::where_time_went(&step), slowest.map(crate::checks::slowest_sample)];
    let mut found: Vec<_> = CHECKS.iter().filter_map(|(name, check)| Some((*name, check(&step)?))).collect();
    found.sort_by_key(|(_, found)| std::cmp::Reverse(found.stake));
    let found = found.into_iter().map(|(check, Found { explain, mut evidence, stake })| {
        evidence.push(("time_at_stake_s".into(), stake.as_secs_f64().into()));
        Finding { check, explain, evidence }
    });
    overview.into_iter().flatten().chain(found).collect()
}

// === impl Step ===

impl<'a> Step<'a> {
    /// Time in some of the parts, and its share of all.
    pub(crate) fn in_parts(&self, parts: &[Part]) -> (Nanos, f64) {
        let time = parts.iter().fold(Nanos(0), |sum, part| sum.plus(self.time.part(*part)));
        (time, time.0 as f64 / self.time.total().0.max(1) as f64)
    }

    /// The request with the largest of something, with its sample.
    pub(crate) fn worst(
        &self,
        of: impl Fn(&Profile) -> Option<f64>,
    ) -> Option<(&'a SampleTrace, &'a Profile, f64)> {
        let requests =
            self.samples.iter().flat_map(|sample| sample.requests.iter().map(move |of| (*sample, of)));
        let valued = requests.filter_map(|(sample, request)| Some((sample, request, of(request)?)));
        valued.reduce(|worst, other| if other.2 > worst.2 { other } else { worst })
    }

    /// Evidence: a worker, and its longest call by its sample and time.
    pub(crate) fn evidence_of_worker(&self, worker: &WorkerFigures) -> Vec<(Cow<'static, str>, Attr)> {
        let longest = |request: &Profile| {
            let is_of = |leg: &&Leg| leg.role == worker.role && leg.worker.is(&worker.worker);
            request.legs.iter().filter(is_of).map(|leg| leg.duration().as_secs_f64()).max_by(f64::total_cmp)
        };
        let mut evidence = vec![("worker".into(), Attr::from(&*worker.worker.url))];
        let call = evidence_of(self.worst(longest), "duration_s");
        evidence.extend(call.into_iter().filter(|(name, _)| !name.ends_with("worker")));
        evidence
    }
}

/// Evidence: the worst request, by its sample, worker and time.
pub(crate) fn evidence_of(
    worst: Option<(&SampleTrace, &Profile, f64)>,
    name: &'static str,
) -> Vec<(Cow<'static, str>, Attr)> {
    let Some((sample, request, value)) = worst else { return Vec::new() };
    let mut evidence: Vec<(Cow<'static, str>, Attr)> = vec![
        ("sample".into(), sample.key.to_string().into()),
        ("request".into(), request.id.to_string().into()),
        ("start_unix_s".into(), request.arrival.as_secs_f64().into()),
        (name.into(), value.into()),
    ];
    if let Some(leg) = request.answer() {
        evidence.push(("worker".into(), Attr::from(&*leg.worker.url)));
    }
    if let Some(leg) = request.prefill() {
        evidence.push(("prefill_worker".into(), Attr::from(&*leg.worker.url)));
    }
    evidence
}

/// Evidence: a sample, by its time and its worker.
pub(crate) fn evidence_of_sample(sample: &SlowestSample) -> Vec<(Cow<'static, str>, Attr)> {
    let mut evidence: Vec<(Cow<'static, str>, Attr)> = vec![
        ("sample".into(), sample.key.to_string().into()),
        ("start_unix_s".into(), sample.start.as_secs_f64().into()),
        ("duration_s".into(), sample.duration.as_secs_f64().into()),
    ];
    evidence.extend(sample.worker.as_deref().map(|worker| ("worker".into(), Attr::from(worker))));
    evidence
}

/// Rows of a breakdown as evidence.
pub(crate) fn rows(breakdown: &Breakdown) -> Vec<(Cow<'static, str>, Attr)> {
    let row = |row: rollscope_stats::Row| (row.part.name().into(), row.time.as_secs_f64().into());
    breakdown.rows().into_iter().map(row).collect()
}

/// `12%`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Part of a time.
pub(crate) fn part_of(time: Nanos, share: f64) -> Nanos {
    Nanos((time.0 as f64 * share.clamp(0.0, 1.0)) as u64)
}
