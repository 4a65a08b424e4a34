//! One pass over the requests of a population: everything that is counted, and the values of each series.

use rollscope_trace::{Fault, LegRole, Measure, Profile, Side, Unit, UnixNs};

use crate::distribution::Distribution;
use crate::figures::RequestCounts;
use crate::series::{SERIES, Series};
use crate::workers::Workers;

/// What is added up over requests.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) counts: RequestCounts,
    /// In the order of [`Fault::ALL`].
    pub(crate) anomalies: [u64; Fault::ALL.len()],
    pub(crate) retries: u64,
    /// First arrival and last end.
    pub(crate) window: Option<(UnixNs, UnixNs)>,
    pub(crate) workers: Workers,
    /// By the index of a measure.
    kinds: Vec<MeasureKind>,
    /// Values of each series.
    values: Vec<Vec<f64>>,
}

/// What the pass asks of a measure for each reading, side by side.
#[derive(Clone, Copy, Debug)]
struct MeasureKind {
    is_duration: bool,
    side: Side,
    /// The series that takes it, or [`NO_SERIES`].
    series: u8,
}

const NO_SERIES: u8 = u8::MAX;

/// What a request contributes to its sample; nothing where it was not reported.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tokens {
    pub(crate) generated: Option<f64>,
    pub(crate) prompt: Option<f64>,
    /// Of the prompt, from the prefix cache.
    pub(crate) cached: Option<f64>,
    pub(crate) spec_accepted: Option<f64>,
    pub(crate) spec_drafted: Option<f64>,
    pub(crate) spec_verified: Option<f64>,
}

// === impl Requests ===

impl Requests {
    /// For so many requests.
    pub(crate) fn new(count: usize) -> Self {
        let kind = |measure: Measure| MeasureKind {
            is_duration: measure.unit() == Unit::Seconds,
            side: measure.side(),
            series: SERIES
                .iter()
                .position(|of| of.measure() == Some(measure))
                .map_or(NO_SERIES, |at| at as u8),
        };
        Self {
            counts: RequestCounts::default(),
            anomalies: [0; Fault::ALL.len()],
            retries: 0,
            window: None,
            workers: Workers::default(),
            kinds: Measure::all().map(kind).collect(),
            values: SERIES.iter().map(|_| Vec::with_capacity(count)).collect(),
        }
    }

    /// Takes a request.
    pub(crate) fn add(&mut self, profile: &Profile) -> Tokens {
        self.retries += u64::from(profile.retries);
        let (start, end) = (profile.arrival, profile.ended_at());
        self.window =
            Some(self.window.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
        let answer = profile.legs.iter().rposition(|leg| leg.role != LegRole::Prefill);
        let prefill = profile.legs.iter().rposition(|leg| leg.role == LegRole::Prefill);
        let (mut tokens, mut profiled) = (Tokens::default(), false);
        for (index, leg) in profile.legs.iter().enumerate() {
            let (is_answer, is_prefill) = (Some(index) == answer, Some(index) == prefill);
            let mut timed = false;
            for (measure, reading) in leg.report.measures.iter() {
                if let Some(fault) = reading.fault {
                    self.anomalies[fault as usize] += 1;
                    continue;
                }
                let value = reading.value;
                let kind = self.kinds[measure as usize];
                timed |= kind.is_duration;
                let counts = match kind.side {
                    Side::Answer => is_answer,
                    // A decode reply may carry its prefill's numbers; the prefill worker's own go before.
                    Side::Prefill => {
                        is_prefill || is_answer && prefill.is_none_or(|at| !says(profile, at, measure))
                    }
                };
                if counts {
                    if kind.series == NO_SERIES {
                        tokens.take(measure, value);
                    } else {
                        self.values[usize::from(kind.series)].push(value);
                    }
                }
            }
            profiled |= timed;
            self.workers.add(profile.arrival, leg, timed);
        }
        for (index, series) in SERIES.iter().enumerate().filter(|(_, series)| series.measure().is_none()) {
            self.values[index].extend(series.value(profile));
        }
        self.counts.add(profile, profiled);
        tokens
    }

    /// The statistics of each series that has values.
    pub(crate) fn series(&mut self) -> Vec<(&'static Series, Distribution)> {
        let values = std::mem::take(&mut self.values);
        let of = |(series, values)| Distribution::of(values).map(|of| (series, of));
        SERIES.iter().zip(values).filter_map(of).collect()
    }
}

fn says(profile: &Profile, leg: usize, measure: Measure) -> bool {
    profile.legs[leg].report.measures.good(measure).is_some()
}

// === impl Tokens ===

impl Tokens {
    fn take(&mut self, measure: Measure, value: f64) {
        let field = match measure {
            Measure::CompletionTokens => &mut self.generated,
            Measure::PromptTokens => &mut self.prompt,
            Measure::CachedTokens => &mut self.cached,
            Measure::SpecAcceptTokens => &mut self.spec_accepted,
            Measure::SpecDraftTokens => &mut self.spec_drafted,
            Measure::SpecVerifyCount => &mut self.spec_verified,
            _ => return,
        };
        *field = Some(value);
    }
}
