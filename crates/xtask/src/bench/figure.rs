//! What is measured, what a figure has to reach, and whether it does.

use std::collections::BTreeMap;

use super::system::System;

/// Something that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Figure {
    /// Requests a second.
    Rate,
    /// Latency of a whole reply, in milliseconds: median, and 99 of 100.
    P50,
    P99,
    /// CPU time a request, children included, in microseconds.
    Cpu,
    /// The same of the threads that serve, and of the process's whole life with its sealing at the end.
    ServingCpu,
    WholeCpu,
    /// Of the share of the processor that it is held to, how much it used, in percent: near 100 it was the limit itself.
    Share,
    /// Time to the first event of a stream, in milliseconds.
    FirstEventP50,
    FirstEventP99,
    /// Resident memory in MiB, and what an open stream adds to it in KiB.
    Memory,
    StreamMemory,
    /// Streams that were open at once.
    Streams,
    /// Size of a reply in KB.
    Reply,
    /// Requests of a rollout step, the mean of the steps that were recorded.
    StepRequests,
    /// Records that the recorder did not take.
    Dropped,
    /// Requests without a whole reply of status 200.
    Failed,
}

/// Figures of one system in one round.
pub(super) type Figures = BTreeMap<Figure, f64>;

/// Rounds of each system of a case.
#[derive(Debug, Default)]
pub(super) struct Measured {
    rounds: BTreeMap<System, Vec<Figures>>,
}

/// What a figure of one system has to reach.
#[derive(Debug)]
pub(super) struct Bar {
    of: System,
    figure: Figure,
    against: Against,
    limit: Limit,
}

#[derive(Debug)]
enum Against {
    Nothing,
    /// Divided by another system's.
    Times(System),
    /// The other system's taken off.
    Over(System),
}

#[derive(Debug)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// There is nothing to reach: it is only told.
    None,
}

/// A bar with what came of it.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) bar: String,
    /// The median over the rounds, the least and the most; none where a system is missing.
    pub(super) value: Option<[f64; 3]>,
    /// Where the median would be found again in 95 of 100 repetitions; none of few rounds.
    pub(super) interval: Option<[f64; 2]>,
    pub(super) is_met: Option<bool>,
}

// === impl Figure ===

impl Figure {
    /// As the head of a column.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Rate => "req/s",
            Self::P50 => "p50 ms",
            Self::P99 => "p99 ms",
            Self::Cpu => "CPU µs/req",
            Self::Share => "% of its share",
            Self::ServingCpu => "serving µs/req",
            Self::WholeCpu => "in all µs/req",
            Self::FirstEventP50 => "1st event p50 ms",
            Self::FirstEventP99 => "1st event p99 ms",
            Self::Memory => "RSS MiB",
            Self::StreamMemory => "KiB/stream",
            Self::Streams => "streams",
            Self::Reply => "reply KB",
            Self::StepRequests => "req/step",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }

    /// As a key of the JSON file.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Rate => "requests_per_s",
            Self::P50 => "p50_ms",
            Self::P99 => "p99_ms",
            Self::Cpu => "cpu_us_per_request",
            Self::Share => "percent_of_share",
            Self::ServingCpu => "serving_cpu_us_per_request",
            Self::WholeCpu => "whole_cpu_us_per_request",
            Self::FirstEventP50 => "first_event_p50_ms",
            Self::FirstEventP99 => "first_event_p99_ms",
            Self::Memory => "resident_mib",
            Self::StreamMemory => "resident_kib_per_stream",
            Self::Streams => "streams",
            Self::Reply => "reply_kb",
            Self::StepRequests => "requests_per_step",
            Self::Dropped => "records_dropped",
            Self::Failed => "failed",
        }
    }

    /// Digits behind the point that say something.
    pub(super) fn digits(self) -> usize {
        match self {
            Self::Rate
            | Self::Share
            | Self::Memory
            | Self::Streams
            | Self::StepRequests
            | Self::Dropped
            | Self::Failed => 0,
            Self::Cpu | Self::ServingCpu | Self::WholeCpu | Self::StreamMemory | Self::Reply => 1,
            Self::P50 | Self::P99 => 2,
            Self::FirstEventP50 | Self::FirstEventP99 => 3,
        }
    }
}

// === impl Measured ===

impl Measured {
    pub(super) fn add(&mut self, system: System, figures: Figures) {
        self.rounds.entry(system).or_default().push(figures);
    }

    pub(super) fn systems(&self) -> impl Iterator<Item = System> {
        self.rounds.keys().copied()
    }

    /// The figures that were measured at all.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let mut figures: Vec<_> = self.rounds.values().flatten().flat_map(BTreeMap::keys).copied().collect();
        figures.sort_unstable();
        figures.dedup();
        figures
    }

    /// A figure of each round.
    pub(super) fn rounds(&self, system: System, figure: Figure) -> Vec<f64> {
        let rounds = self.rounds.get(&system).map(Vec::as_slice).unwrap_or_default();
        rounds.iter().filter_map(|figures| figures.get(&figure).copied()).collect()
    }

    pub(super) fn median(&self, system: System, figure: Figure) -> Option<f64> {
        spread(self.rounds(system, figure)).map(|[median, ..]| median)
    }
}

// === impl Bar ===

impl Bar {
    /// Our figure is at most so many times another system's.
    pub(super) const fn at_most(figure: Figure, times: f64, system: System) -> Self {
        Self { of: System::Rollscope, figure, against: Against::Times(system), limit: Limit::AtMost(times) }
    }

    /// Our figure is at least so many times another system's.
    pub(super) const fn at_least(figure: Figure, times: f64, system: System) -> Self {
        Self { of: System::Rollscope, figure, against: Against::Times(system), limit: Limit::AtLeast(times) }
    }

    /// Our figure goes beyond another system's by so much at most.
    pub(super) const fn over(figure: Figure, more: f64, system: System) -> Self {
        Self { of: System::Rollscope, figure, against: Against::Over(system), limit: Limit::AtMost(more) }
    }

    /// Our figure is at most so much.
    pub(super) const fn below(figure: Figure, most: f64) -> Self {
        Self { of: System::Rollscope, figure, against: Against::Nothing, limit: Limit::AtMost(most) }
    }

    /// How many times another system's figure ours is, whatever that is.
    pub(super) const fn told(figure: Figure, system: System) -> Self {
        Self { of: System::Rollscope, figure, against: Against::Times(system), limit: Limit::None }
    }

    /// The same of another system than plain Rollscope.
    pub(super) const fn of(mut self, system: System) -> Self {
        self.of = system;
        self
    }

    /// Compares within each round, where the machine was as busy for both; then takes the median.
    pub(super) fn judge(&self, measured: &Measured) -> Verdict {
        let ours = measured.rounds(self.of, self.figure);
        let values: Vec<f64> = match self.against {
            Against::Nothing => ours,
            Against::Times(system) => pairs(&ours, &measured.rounds(system, self.figure), |a, b| a / b),
            Against::Over(system) => pairs(&ours, &measured.rounds(system, self.figure), |a, b| a - b),
        };
        let interval = interval(values.clone());
        let value = spread(values);
        let is_met = value.and_then(|[median, ..]| match self.limit {
            Limit::AtMost(most) => Some(median <= most),
            Limit::AtLeast(least) => Some(median >= least),
            Limit::None => None,
        });
        Verdict { bar: self.text(), value, interval, is_met }
    }

    fn text(&self) -> String {
        let title = self.figure.title();
        let what = match self.against {
            Against::Nothing => format!("{}: {title}", self.of.name()),
            Against::Times(system) => format!("{} / {}: {title}", self.of.name(), system.name()),
            Against::Over(system) => format!("{} - {}: {title}", self.of.name(), system.name()),
        };
        match self.limit {
            Limit::AtMost(most) => format!("{what} <= {most}"),
            Limit::AtLeast(least) => format!("{what} >= {least}"),
            Limit::None => what,
        }
    }
}

fn pairs(ours: &[f64], theirs: &[f64], compare: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(a, b)| compare(*a, *b)).collect()
}

/// Median, least and most.
fn spread(mut values: Vec<f64>) -> Option<[f64; 3]> {
    values.sort_by(f64::total_cmp);
    let (least, most) = (*values.first()?, *values.last()?);
    let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    Some([f64::midpoint(low, high), least, most])
}

/// The confidence interval of the median, whatever the values are distributed like: so many of them are on either side of the
/// true median as heads are thrown, half of them give or take 0.98 √n.
fn interval(mut values: Vec<f64>) -> Option<[f64; 2]> {
    const FEW: usize = 12;
    if values.len() < FEW {
        return None;
    }
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let low = (count / 2.0 - 0.98 * count.sqrt()) as usize;
    Some([values[low], values[values.len() - 1 - low]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rows: &[(System, &[f64])]) -> Measured {
        let mut measured = Measured::default();
        for (system, values) in rows {
            for value in *values {
                measured.add(*system, Figures::from([(Figure::Cpu, *value)]));
            }
        }
        measured
    }

    #[test]
    fn the_interval_of_a_median_leaves_out_both_ends() {
        let values = |count: u32| (0..count).rev().map(f64::from).collect();
        assert_eq!(interval(values(11)), None);
        assert_eq!(interval(values(12)), Some([2.0, 9.0]));
        assert_eq!(interval(values(40)), Some([13.0, 26.0]));
    }

    #[test]
    fn bars_are_judged_by_the_median_of_the_rounds() {
        let ours: (System, &[f64]) = (System::Rollscope, &[10.0, 30.0, 24.0]);
        let theirs: (System, &[f64]) = (System::Nginx, &[10.0, 10.0, 20.0]);
        for (bar, value, is_met) in [
            (Bar::at_most(Figure::Cpu, 1.2, System::Nginx), Some([1.2, 1.0, 3.0]), Some(true)),
            (Bar::at_most(Figure::Cpu, 1.1, System::Nginx), Some([1.2, 1.0, 3.0]), Some(false)),
            (Bar::at_least(Figure::Cpu, 1.2, System::Nginx), Some([1.2, 1.0, 3.0]), Some(true)),
            (Bar::over(Figure::Cpu, 3.9, System::Nginx), Some([4.0, 0.0, 20.0]), Some(false)),
            (Bar::below(Figure::Cpu, 24.0), Some([24.0, 10.0, 30.0]), Some(true)),
            (Bar::told(Figure::Cpu, System::Nginx), Some([1.2, 1.0, 3.0]), None),
            (Bar::at_most(Figure::Cpu, 1.0, System::Smg), None, None),
        ] {
            let verdict = bar.judge(&measured(&[ours, theirs]));
            assert_eq!((verdict.value, verdict.is_met), (value, is_met), "{}", verdict.bar);
        }
    }
}
