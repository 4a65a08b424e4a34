//! The values that requests have of each series, and what these come to.
//!
//! What is known of many requests does not fit into any cache, so that they are gone through once, and what is read of them
//! is asked for beforehand ([`RequestValues::reach`]). Which value of a report is of which series is only looked up where
//! the report has other measures than the one before: nearly all have the same.

use rollscope_trace::{Leg, Measure, MeasureSet, Measures, Outcome, Profile, SampleTrace, Side, StepTrace};

use crate::distribution::Distribution;
use crate::series::{SERIES, Series};
use crate::step::population;

/// Requests, by how they ended, and their values of each series.
#[derive(Clone, Debug)]
pub struct RequestValues {
    counts: RequestCounts,
    /// In the order of [`SERIES`].
    columns: Vec<Vec<f64>>,
    of_prefill: Layout,
    of_answer: Layout,
    /// The measures of which a prefill worker's value goes before that of the worker that answers.
    prefill_first: MeasureSet,
}

/// Requests, by how they ended. `count` is the sum of the four outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// All of them.
    pub count: u64,
    /// Those for which a worker reported a timing.
    pub profiled: u64,
    /// In the order of [`Outcome::ALL`].
    pub by_outcome: [u64; Outcome::ALL.len()],
}

/// Where the values of a report belong.
#[derive(Clone, Debug, Default)]
struct Layout {
    present: MeasureSet,
    counted: MeasureSet,
    /// Where a value stands in the report, and its series.
    places: Vec<(usize, usize)>,
}

/// Reports of the same measures whose values are still to go behind those of their series.
#[derive(Default)]
struct Rows<'a>(Vec<&'a [f64]>);

/// The report of a worker, and those of its measures that count.
type Counted<'a> = (&'a Measures, MeasureSet);

/// Reports that are read at once, series by series: one by one they take three times as long.
const READ_ROWS: usize = 64;
/// Samples whose requests are asked for at once.
pub(crate) const REACHED_SAMPLES: usize = 8;

// === impl RequestValues ===

impl Default for RequestValues {
    fn default() -> Self {
        Self::for_requests(0)
    }
}

impl RequestValues {
    /// Takes the requests by which a step is judged: those of its training samples, or of the evaluation where it is all
    /// there is.
    pub fn add_step(&mut self, trace: &StepTrace) {
        let samples: Vec<_> = population(trace).collect();
        let count = samples.iter().map(|sample| sample.requests.len()).sum();
        self.columns.iter_mut().for_each(|values| values.reserve(count));
        let (mut prefill, mut answer) = (Rows::default(), Rows::default());
        for chunk in samples.chunks(REACHED_SAMPLES) {
            Self::reach(chunk);
            for request in chunk.iter().flat_map(|sample| &sample.requests) {
                let (of_prefill, of_answer) = self.take(request);
                if let Some(counted) = of_prefill {
                    prefill.add(counted, &mut self.of_prefill, Series::of_prefill, &mut self.columns);
                }
                if let Some(counted) = of_answer {
                    answer.add(counted, &mut self.of_answer, Series::of_answer, &mut self.columns);
                }
            }
        }
        prefill.end(&self.of_prefill, &mut self.columns);
        answer.end(&self.of_answer, &mut self.columns);
    }

    /// Of none yet; with room for so many.
    pub(crate) fn for_requests(count: usize) -> Self {
        Self {
            counts: RequestCounts::default(),
            columns: SERIES.iter().map(|_| Vec::with_capacity(count)).collect(),
            of_prefill: Layout::default(),
            of_answer: Layout::default(),
            prefill_first: MeasureSet::of(|measure| measure.side() == Side::Prefill),
        }
    }

    /// Takes a request.
    pub(crate) fn add(&mut self, request: &Profile) {
        let (of_prefill, of_answer) = self.take(request);
        if let Some((measures, counted)) = of_prefill {
            self.of_prefill.fit(measures, counted, Series::of_prefill);
            self.of_prefill.read(&[measures.values()], &mut self.columns);
        }
        if let Some((measures, counted)) = of_answer {
            self.of_answer.fit(measures, counted, Series::of_answer);
            self.of_answer.read(&[measures.values()], &mut self.columns);
        }
    }

    /// Takes a request but for what workers report of it: that of its prefill worker and that of the one that answers.
    fn take<'a>(&mut self, request: &'a Profile) -> (Option<Counted<'a>>, Option<Counted<'a>>) {
        self.counts.add(request);
        if request.outcome == Outcome::Completed {
            self.columns[Series::GATEWAY].push(request.end.as_secs_f64());
        }
        let plausible = |leg: &'a Leg| (&leg.report.measures, leg.report.measures.plausible());
        let prefill = request.prefill().map(plausible);
        // A decode reply may carry its prefill's numbers.
        let said = prefill.map_or(MeasureSet::NONE, |(_, counted)| counted.and(self.prefill_first));
        let answer = request.answer().map(plausible);
        (prefill, answer.map(|(measures, counted)| (measures, counted.without(said))))
    }

    /// Looks at what [`Self::add`] is about to read of some samples. It lies apart in memory, which takes as long for one
    /// place as for many that are asked for at once; where a call lies is only known when its request is there, so that
    /// all requests are asked for first, then all calls, then all values.
    pub(crate) fn reach(samples: &[&SampleTrace]) {
        let requests = || samples.iter().flat_map(|sample| &sample.requests);
        let legs = || requests().flat_map(|request| &request.legs);
        let of_request = |request: &Profile| request.legs.len() ^ request.outcome as usize;
        let of_leg = |leg: &Leg| leg.report.measures.values().len() ^ leg.role as usize;
        let of_values = |leg: &Leg| match leg.report.measures.values() {
            [first, .., last] => first.to_bits() ^ last.to_bits(),
            [only] => only.to_bits(),
            [] => 0,
        };
        std::hint::black_box(requests().map(of_request).fold(0, |all, one| all ^ one));
        std::hint::black_box(legs().map(of_leg).fold(0, |all, one| all ^ one));
        std::hint::black_box(legs().map(of_values).fold(0, |all, one| all ^ one));
    }

    /// The requests.
    pub fn counts(&self) -> RequestCounts {
        self.counts
    }

    /// The values of each series, in the order of [`SERIES`].
    pub fn into_columns(self) -> impl Iterator<Item = (&'static Series, Vec<f64>)> {
        SERIES.iter().zip(self.columns)
    }

    /// The statistics of each series that has values, in the order of [`SERIES`].
    pub fn statistics(self) -> Vec<(&'static Series, Distribution)> {
        self.into_columns().filter_map(|(series, values)| Some((series, Distribution::of(values)?))).collect()
    }
}

// === impl RequestCounts ===

impl RequestCounts {
    fn add(&mut self, request: &Profile) {
        self.count += 1;
        self.profiled += u64::from(request.is_profiled());
        self.by_outcome[request.outcome as usize] += 1;
    }

    /// Requests that ended in one way.
    pub fn ended(&self, outcome: Outcome) -> u64 {
        self.by_outcome[outcome as usize]
    }
}

// === impl Layout ===

impl Layout {
    fn fits(&self, measures: &Measures, counted: MeasureSet) -> bool {
        (self.present, self.counted) == (measures.present(), counted)
    }

    /// Makes it that of a report.
    fn fit(&mut self, measures: &Measures, counted: MeasureSet, is_of: fn(&Series, Measure) -> bool) {
        if !self.fits(measures, counted) {
            *self = Self::of(measures.present(), counted, is_of);
        }
    }

    /// Puts those values of its reports that count behind those of their series.
    fn read(&self, rows: &[&[f64]], columns: &mut [Vec<f64>]) {
        for (place, series) in &self.places {
            columns[*series].extend(rows.iter().map(|values| values[*place]));
        }
    }

    fn of(present: MeasureSet, counted: MeasureSet, is_of: fn(&Series, Measure) -> bool) -> Self {
        let series = |measure| SERIES.iter().position(|series| is_of(series, measure));
        let counting = present.iter().enumerate().filter(|(_, measure)| counted.has(*measure));
        let places = counting.filter_map(|(place, measure)| Some((place, series(measure)?))).collect();
        Self { present, counted, places }
    }
}

// === impl Rows ===

impl<'a> Rows<'a> {
    /// Takes a report; those before it are read if they are of other measures or many.
    fn add(
        &mut self,
        (measures, counted): Counted<'a>,
        layout: &mut Layout,
        is_of: fn(&Series, Measure) -> bool,
        columns: &mut [Vec<f64>],
    ) {
        if self.0.len() == READ_ROWS || !layout.fits(measures, counted) {
            self.end(layout, columns);
            layout.fit(measures, counted, is_of);
        }
        self.0.push(measures.values());
    }

    /// Reads what it has.
    fn end(&mut self, layout: &Layout, columns: &mut [Vec<f64>]) {
        layout.read(&self.0, columns);
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
