//! How much a worker has to do: what is in flight from here, and what it says itself.

use std::collections::VecDeque;
use std::time::Duration;

use crate::moment::Moment;

/// A worker's load, compared by requests and then by size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load {
    /// Requests that it has.
    pub requests: u64,
    /// How large they are: bytes of their bodies if they were counted here, tokens if the worker says so.
    pub size: u64,
}

/// Where loads come from. Loads are compared only when they come from the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadBasis {
    /// What was begun here and has not ended.
    InFlight,
    /// What the worker says, brought up to date by what has begun and ended here since.
    Reported,
}

/// What a worker says of its load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedLoad {
    /// Requests that are running.
    pub running: u64,
    /// Requests that wait, in whatever queue.
    pub waiting: u64,
    /// Tokens held.
    pub tokens: u64,
}

/// The last report of a worker, and what has changed since the moment of which it tells.
#[derive(Debug, Default)]
pub(crate) struct LoadReports {
    last: Option<LoadReport>,
    /// What began and ended here, about in order.
    changes: VecDeque<(Moment, Change)>,
}

/// A report, as it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadReport {
    load: ReportedLoad,
    at: Moment,
    /// What was in flight from here at that moment.
    in_flight: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Begin,
    End,
}

/// Beyond so many the oldest are forgotten: a report of a moment before those that are left is taken for one of the oldest's.
const MAX_CHANGES: usize = 4096;

// === impl LoadBasis ===

impl LoadBasis {
    /// For texts: "3 in flight", "3 reported".
    pub fn name(self) -> &'static str {
        match self {
            Self::InFlight => "in flight",
            Self::Reported => "reported",
        }
    }
}

// === impl ReportedLoad ===

impl ReportedLoad {
    /// Of both together.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            running: self.running.saturating_add(other.running),
            waiting: self.waiting.saturating_add(other.waiting),
            tokens: self.tokens.saturating_add(other.tokens),
        }
    }
}

// === impl LoadReports ===

impl LoadReports {
    /// Takes note of a leg that begins or ends. It is for nothing until there has been a report.
    pub(crate) fn note(&mut self, change: Change, at: Moment) {
        if self.changes.len() >= MAX_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back((at, change));
    }

    /// Keeps what the worker said of its load at a moment, unless later news are kept already. `in_flight` is what is in
    /// flight from here now: what began after that moment the worker cannot have meant.
    pub(crate) fn take(&mut self, load: ReportedLoad, at: Moment, in_flight: u64) {
        if self.last.is_some_and(|last| at < last.at) {
            return;
        }
        // Two threads may note two changes of about one moment in either order.
        self.changes.retain(|(of, _)| *of >= at);
        let count = |change| self.changes.iter().filter(|(_, other)| *other == change).count() as u64;
        let then = (in_flight + count(Change::End)).saturating_sub(count(Change::Begin));
        self.last = Some(LoadReport::new(load, at, then));
    }

    pub(crate) fn last(&self) -> Option<LoadReport> {
        self.last
    }
}

// === impl LoadReport ===

impl LoadReport {
    fn new(load: ReportedLoad, at: Moment, in_flight: u64) -> Self {
        Self { load, at, in_flight }
    }

    /// The load now, unless the report is older than allowed.
    ///
    /// The worker also has what other gateways sent it. What began here since the report is added and what ended
    /// is taken off, and it is never less than what is in flight from here. So a burst within one interval
    /// between two reports does not all go to the worker that was idle at its beginning.
    pub(crate) fn load(&self, now: Moment, max_age: Duration, in_flight: u64) -> Option<Load> {
        if now.since(self.at) > max_age {
            return None;
        }
        let then = self.load.running.saturating_add(self.load.waiting);
        let estimate = then.saturating_add(in_flight).saturating_sub(self.in_flight);
        Some(Load { requests: estimate.max(in_flight), size: self.load.tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_brought_up_to_date_and_expires() {
        let max_age = Duration::from_secs(5);
        let at = |seconds| Moment(Duration::from_secs(seconds));
        let report = LoadReport::new(ReportedLoad { running: 3, waiting: 1, tokens: 900 }, at(10), 2);
        for (second, in_flight, requests) in [
            (10, 2, Some(4)),
            (15, 2, Some(4)),
            (16, 2, None),
            (9, 2, Some(4)),
            (12, 5, Some(7)),
            (12, 0, Some(2)),
        ] {
            let load = report.load(at(second), max_age, in_flight);
            assert_eq!(load.map(|load| load.requests), requests, "at {second} s with {in_flight}");
            assert!(load.is_none_or(|load| load.size == 900));
        }
        let idle = LoadReport::new(ReportedLoad::default(), at(10), 7);
        assert_eq!(idle.load(at(10), max_age, 7).unwrap().requests, 7, "never less than is known here");
    }

    #[test]
    fn a_report_does_not_speak_of_what_began_after_it() {
        let at = |millis| Moment(Duration::from_millis(millis));
        let report = |running| ReportedLoad { running, ..ReportedLoad::default() };
        let mut reports = LoadReports::default();
        reports.take(report(3), at(10), 1);
        let mut in_flight = 1;
        let load = |reports: &LoadReports, in_flight| {
            let load = reports.last().unwrap().load(at(100), Duration::from_secs(1), in_flight);
            load.unwrap().requests
        };
        for millis in [20, 30, 40] {
            reports.note(Change::Begin, at(millis));
            in_flight += 1;
        }
        assert_eq!(load(&reports, in_flight), 6);
        // Heard only now, it tells of a moment between the first and the second of the three.
        reports.take(report(4), at(25), in_flight);
        assert_eq!(load(&reports, in_flight), 6);
        reports.note(Change::End, at(50));
        in_flight -= 1;
        reports.take(report(5), at(45), in_flight);
        assert_eq!(load(&reports, in_flight), 4, "one of the five has ended since");
        reports.take(report(9), at(44), in_flight);
        assert_eq!(load(&reports, in_flight), 4, "older news");
        reports.take(report(5), at(60), in_flight);
        assert_eq!((load(&reports, in_flight), reports.changes.len()), (5, 0));
    }

    #[test]
    fn size_decides_between_equal_numbers_of_requests() {
        let load = |requests, size| Load { requests, size };
        assert!(load(1, 900) < load(2, 0) && load(1, 10) < load(1, 11));
    }
}
