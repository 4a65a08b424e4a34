//! One pass over the requests of a population: everything that is counted, and the values of each series.

use rollscope_trace::{Fault, Leg, Measure, Profile, SampleTrace, UnixNs};

use crate::values::{REACHED_SAMPLES, RequestValues};
use crate::workers::Workers;

/// What is added up over requests.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) values: RequestValues,
    /// In the order of [`Fault::ALL`].
    pub(crate) anomalies: [u64; Fault::ALL.len()],
    pub(crate) retries: u64,
    /// First arrival and last end.
    pub(crate) window: Option<(UnixNs, UnixNs)>,
    pub(crate) workers: Workers,
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

/// Samples one by one, what is told of the requests of some of them having been looked at before: of each further place in
/// memory one waits for the next, but not there, where none hangs on another.
pub fn reached<'a>(samples: &'a [&'a SampleTrace]) -> impl Iterator<Item = &'a SampleTrace> {
    let reach = |chunk: &'a [&'a SampleTrace]| {
        reach(chunk);
        chunk.iter().copied()
    };
    samples.chunks(REACHED_SAMPLES).flat_map(reach)
}

/// As [`RequestValues::reach`], of what is read beside the values.
fn reach(samples: &[&SampleTrace]) {
    let requests = || samples.iter().flat_map(|sample| &sample.requests);
    let of_request = |request: &Profile| u64::from(request.join.attempt);
    let of_leg = |leg: &Leg| {
        let version = leg.report.weight_version.as_deref().and_then(|version| version.bytes().next());
        leg.dispatch.0 ^ leg.end.0 ^ u64::from(version.unwrap_or_default())
    };
    RequestValues::reach(samples);
    std::hint::black_box(requests().map(of_request).fold(0, |all, one| all ^ one));
    let legs = requests().flat_map(|request| &request.legs);
    std::hint::black_box(legs.map(of_leg).fold(0, |all, one| all ^ one));
}

// === impl Requests ===

impl Requests {
    /// For so many requests.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            values: RequestValues::for_requests(count),
            anomalies: [0; Fault::ALL.len()],
            retries: 0,
            window: None,
            workers: Workers::default(),
        }
    }

    /// Takes a request.
    pub(crate) fn add(&mut self, request: &Profile) -> Tokens {
        self.values.add(request);
        self.retries += u64::from(request.retries);
        let (start, end) = (request.arrival, request.ended_at());
        self.window =
            Some(self.window.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
        for leg in &request.legs {
            for fault in leg.report.measures.faults() {
                self.anomalies[*fault as usize] += 1;
            }
            self.workers.add(request.arrival, leg);
        }
        Tokens::of(request)
    }
}

// === impl Tokens ===

impl Tokens {
    fn of(request: &Profile) -> Self {
        let (answer, prefill) = (request.answer(), request.prefill());
        let of = |leg: Option<&Leg>, measure| leg.and_then(|leg| leg.report.measures.good(measure));
        Self {
            generated: of(answer, Measure::CompletionTokens),
            prompt: of(answer, Measure::PromptTokens),
            cached: of(prefill, Measure::CachedTokens).or_else(|| of(answer, Measure::CachedTokens)),
            spec_accepted: of(answer, Measure::SpecAcceptTokens),
            spec_drafted: of(answer, Measure::SpecDraftTokens),
            spec_verified: of(answer, Measure::SpecVerifyCount),
        }
    }
}
