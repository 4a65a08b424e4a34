//! One pass over the requests of a population: everything that is counted, and the values of each series.
//!
//! What is known of a million requests does not fit into any cache, so that it is gone through once. Of each report
//! only those measures are looked at that count, by sets of bits.

use rollscope_trace::{Fault, Leg, LegRole, Measure, MeasureSet, Profile, SampleTrace, Side, UnixNs};

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
    /// Measures that anything is made of, by whose value counts.
    of_answer: MeasureSet,
    of_prefill: MeasureSet,
    /// By the index of a measure the series that takes it, or [`NO_SERIES`].
    series: Vec<u8>,
    /// Values of each series.
    values: Vec<Vec<f64>>,
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
        let series = |measure: Measure| {
            let place = SERIES.iter().position(|of| of.measure() == Some(measure));
            place.map_or(NO_SERIES, |at| at as u8)
        };
        let is_of = |side: Side| {
            move |measure: Measure| {
                measure.side() == side && (series(measure) != NO_SERIES || Tokens::has(measure))
            }
        };
        Self {
            counts: RequestCounts::default(),
            anomalies: [0; Fault::ALL.len()],
            retries: 0,
            window: None,
            workers: Workers::default(),
            of_answer: MeasureSet::of(is_of(Side::Answer)),
            of_prefill: MeasureSet::of(is_of(Side::Prefill)),
            series: Measure::all().map(series).collect(),
            values: SERIES.iter().map(|_| Vec::with_capacity(count)).collect(),
        }
    }

    /// Looks at the begin of what [`Self::add`] is about to read of a sample's requests. They lie apart in memory, which
    /// takes as long for one of them as for many that are asked for at once.
    pub(crate) fn reach(sample: &SampleTrace) {
        let begin = |leg: &Leg| {
            let value = leg.report.measures.plausible_of(MeasureSet::ALL).next();
            value.map_or(0, |(_, value)| value.to_bits()) ^ leg.role as u64 ^ leg.worker.instance.len() as u64
        };
        let legs = sample.requests.iter().flat_map(|request| &request.legs);
        std::hint::black_box(legs.map(begin).fold(0, |all, begin| all ^ begin));
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
            let measures = &leg.report.measures;
            for fault in measures.faults() {
                self.anomalies[*fault as usize] += 1;
            }
            let mut counts = MeasureSet::NONE;
            if Some(index) == prefill {
                counts = self.of_prefill;
            }
            if Some(index) == answer {
                // A decode reply may carry its prefill's numbers; the prefill worker's own go before.
                let said =
                    prefill.map_or(MeasureSet::NONE, |at| profile.legs[at].report.measures.plausible());
                counts = self.of_answer.or(self.of_prefill.without(said));
            }
            for (measure, value) in measures.plausible_of(counts) {
                match self.series[measure as usize] {
                    NO_SERIES => tokens.take(measure, value),
                    series => self.values[usize::from(series)].push(value),
                }
            }
            let timed = !measures.plausible().and(MeasureSet::DURATIONS).is_empty();
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

// === impl Tokens ===

impl Tokens {
    fn take(&mut self, measure: Measure, value: f64) {
        if let Some(field) = self.field(measure) {
            *field = Some(value);
        }
    }

    /// Whether it holds a measure.
    fn has(measure: Measure) -> bool {
        Self::default().field(measure).is_some()
    }

    fn field(&mut self, measure: Measure) -> Option<&mut Option<f64>> {
        Some(match measure {
            Measure::CompletionTokens => &mut self.generated,
            Measure::PromptTokens => &mut self.prompt,
            Measure::CachedTokens => &mut self.cached,
            Measure::SpecAcceptTokens => &mut self.spec_accepted,
            Measure::SpecDraftTokens => &mut self.spec_drafted,
            Measure::SpecVerifyCount => &mut self.spec_verified,
            _ => return None,
        })
    }
}
