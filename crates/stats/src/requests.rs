//! One pass over the requests of a population: everything that is counted, and the values of each series.
//!
//! What is known of a million requests does not fit into any cache, so that it is gone through once. Of each report
//! only those measures are looked at that count, by sets of bits.

use rollscope_trace::{
    Fault, Leg, LegRole, Measure, MeasureSet, Measures, Profile, SampleTrace, Side, UnixNs,
};

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
    /// How the last report of the side was read; the next one mostly has the same measures.
    prefill_layout: Layout,
    answer_layout: Layout,
    /// Where the values stand that no report has as they are.
    prefill_queue: Option<usize>,
    gateway: Option<usize>,
    /// Values of each series.
    values: Vec<Vec<f64>>,
}

/// What each value of a report is for.
#[derive(Debug, Default)]
struct Layout {
    present: MeasureSet,
    counted: MeasureSet,
    /// In the order of the report's values.
    uses: Vec<Use>,
}

/// What a value is for.
#[derive(Clone, Copy, Debug)]
enum Use {
    Nothing,
    Series(u8),
    Sample(Measure),
}

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
        let is_of = |side: Side| {
            move |measure: Measure| measure.side() == side && !matches!(Use::of(measure), Use::Nothing)
        };
        Self {
            counts: RequestCounts::default(),
            anomalies: [0; Fault::ALL.len()],
            retries: 0,
            window: None,
            workers: Workers::default(),
            of_answer: MeasureSet::of(is_of(Side::Answer)),
            of_prefill: MeasureSet::of(is_of(Side::Prefill)),
            prefill_layout: Layout::default(),
            answer_layout: Layout::default(),
            prefill_queue: SERIES.iter().position(Series::is_prefill_queue),
            gateway: SERIES.iter().position(Series::is_gateway),
            values: SERIES.iter().map(|_| Vec::with_capacity(count)).collect(),
        }
    }

    /// Looks at what [`Self::add`] is about to read of some samples. It lies apart in memory, which takes as long for one
    /// place as for many that are asked for at once; where a call lies is only known when its request is there, so that
    /// all requests are asked for first, then all calls, then all values.
    pub(crate) fn reach(samples: &[&SampleTrace]) {
        let requests = || samples.iter().flat_map(|sample| &sample.requests);
        let legs = || requests().flat_map(|request| &request.legs);
        let of_request = |request: &Profile| {
            request.arrival.0 as u64 ^ u64::from(request.join.attempt) ^ request.legs.len() as u64
        };
        let of_leg = |leg: &Leg| {
            leg.worker.instance.len() as u64
                ^ leg.dispatch.0
                ^ leg.report.measures.values().len() as u64
                ^ u64::from(leg.report.finish.is_some())
        };
        let of_values = |leg: &Leg| {
            let version = leg.report.weight_version.as_deref().and_then(|version| version.bytes().next());
            let values = match leg.report.measures.values() {
                [first, .., last] => first.to_bits() ^ last.to_bits(),
                [only] => only.to_bits(),
                [] => 0,
            };
            values ^ u64::from(version.unwrap_or_default())
        };
        std::hint::black_box(requests().map(of_request).fold(0, |all, one| all ^ one));
        std::hint::black_box(legs().map(of_leg).fold(0, |all, one| all ^ one));
        std::hint::black_box(legs().map(of_values).fold(0, |all, one| all ^ one));
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
            if Some(index) == prefill {
                let counted = measures.plausible().and(self.of_prefill);
                self.prefill_layout.read(measures, counted, &mut self.values, &mut tokens);
                if let (Some(at), Some(queue)) = (self.prefill_queue, measures.good(Measure::QueueTime)) {
                    self.values[at].push(queue);
                }
            }
            if Some(index) == answer {
                // A decode reply may carry its prefill's numbers; the prefill worker's own go before.
                let said =
                    prefill.map_or(MeasureSet::NONE, |at| profile.legs[at].report.measures.plausible());
                let counted = measures.plausible().and(self.of_answer.or(self.of_prefill.without(said)));
                self.answer_layout.read(measures, counted, &mut self.values, &mut tokens);
            }
            let timed = !measures.plausible().and(MeasureSet::TIMINGS).is_empty();
            profiled |= timed;
            self.workers.add(profile.arrival, leg, timed);
        }
        if let (Some(at), Some(latency)) = (self.gateway, Series::gateway_latency(profile)) {
            self.values[at].push(latency);
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

// === impl Layout ===

impl Layout {
    /// Puts those values of a report that count where they belong.
    fn read(
        &mut self,
        measures: &Measures,
        counted: MeasureSet,
        series: &mut [Vec<f64>],
        tokens: &mut Tokens,
    ) {
        if (self.present, self.counted) != (measures.present(), counted) {
            let of = |measure| if counted.has(measure) { Use::of(measure) } else { Use::Nothing };
            let uses = measures.present().iter().map(of).collect();
            *self = Self { present: measures.present(), counted, uses };
        }
        for (of, value) in self.uses.iter().zip(measures.values()) {
            match *of {
                Use::Nothing => {}
                Use::Series(at) => series[usize::from(at)].push(*value),
                Use::Sample(measure) => tokens.take(measure, *value),
            }
        }
    }
}

// === impl Use ===

impl Use {
    fn of(measure: Measure) -> Self {
        match SERIES.iter().position(|series| series.measure() == Some(measure)) {
            Some(at) => Self::Series(at as u8),
            None if Tokens::has(measure) => Self::Sample(measure),
            None => Self::Nothing,
        }
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
