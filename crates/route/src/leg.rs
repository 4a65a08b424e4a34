//! What is counted for one worker, and the guard of each leg that was begun at it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::books::{Books, Ending, Ticket};
use crate::breaker::{BreakerConfig, Pass, Verdict};
use crate::health::HealthConfig;
use crate::load::{Change, Load, LoadReports, ReportedLoad};
use crate::moment::Moment;
use crate::standing::{Availability, Standing};

/// A live leg: it is load, and if its worker is being tried, it is a probe.
///
/// It is to live as long as the reply's body. It closes exactly once: by [`LegGuard::end`], or as aborted when it is
/// dropped, which tells nothing about the worker.
#[derive(Debug)]
#[must_use]
pub struct LegGuard {
    vitals: Arc<Vitals>,
    ticket: Option<Ticket>,
    /// None once it has told what it could.
    pass: Option<Pass>,
    size_bytes: u64,
    begun: Moment,
}

/// What is counted for a worker, shared by it and its live legs.
#[derive(Debug)]
pub(crate) struct Vitals {
    pub(crate) books: Books,
    pub(crate) standing: Standing,
    /// Bytes of the bodies of all live legs.
    size_bytes: AtomicU64,
    reports: Mutex<LoadReports>,
    /// Whether there has been a report: where nobody reports, no leg pays for it.
    is_reported: AtomicBool,
}

// === impl LegGuard ===

impl LegGuard {
    /// The reply's first token is here. A probe has thereby succeeded, although the reply may take another half hour;
    /// for any other leg it means nothing yet.
    pub fn first_token(&mut self, now: Moment) {
        if let Some(pass) = self.pass.take_if(|pass| pass.is_probe) {
            self.vitals.standing.settle(&pass, Verdict::Success, now);
        }
    }

    /// Ends it.
    pub fn end(mut self, ending: Ending, verdict: Verdict, now: Moment) {
        if let Some(pass) = self.pass.take() {
            self.vitals.standing.settle(&pass, verdict, now);
        }
        if let Some(ticket) = self.ticket.take() {
            ticket.end(ending);
            self.vitals.note(Change::End, now);
        }
    }
}

impl Drop for LegGuard {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.vitals.standing.release(&pass);
        }
        self.vitals.size_bytes.fetch_sub(self.size_bytes, Ordering::Relaxed);
        if let Some(ticket) = self.ticket.take() {
            // As aborted. When is not known; it is as if it had never begun.
            drop(ticket);
            self.vitals.note(Change::End, self.begun);
        }
    }
}

// === impl Vitals ===

impl Vitals {
    pub(crate) fn new(breaker: BreakerConfig, health: HealthConfig) -> Self {
        Self {
            books: Books::default(),
            standing: Standing::new(breaker, health),
            size_bytes: AtomicU64::new(0),
            reports: Mutex::default(),
            is_reported: AtomicBool::new(false),
        }
    }

    pub(crate) fn begin(self: &Arc<Self>, size_bytes: u64, now: Moment) -> Result<LegGuard, Availability> {
        let (pass, ticket) = self.standing.admit(now, || self.books.open())?;
        self.size_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        self.note(Change::Begin, now);
        Ok(LegGuard {
            vitals: Arc::clone(self),
            ticket: Some(ticket),
            pass: Some(pass),
            size_bytes,
            begun: now,
        })
    }

    pub(crate) fn in_flight(&self) -> Load {
        Load { requests: self.books.counts().live, size: self.size_bytes.load(Ordering::Relaxed) }
    }

    /// Keeps what the worker said of its load at a moment, unless later news are kept already.
    pub(crate) fn report(&self, load: ReportedLoad, at: Moment) {
        let mut reports = self.reports.lock();
        self.is_reported.store(true, Ordering::Relaxed);
        reports.take(load, at, self.in_flight().requests);
    }

    fn note(&self, change: Change, at: Moment) {
        if self.is_reported.load(Ordering::Relaxed) {
            self.reports.lock().note(change, at);
        }
    }

    /// The load by the worker's own report, if there is one of that age.
    pub(crate) fn reported(&self, now: Moment, max_age: Duration) -> Option<Load> {
        if !self.is_reported.load(Ordering::Relaxed) {
            return None;
        }
        let report = self.reports.lock().last()?;
        report.load(now, max_age, self.in_flight().requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::BreakerState;

    #[test]
    fn the_first_token_of_a_probe_is_enough() {
        let config =
            BreakerConfig { failure_threshold: Some(1), success_threshold: 1, ..BreakerConfig::default() };
        let vitals = Arc::new(Vitals::new(config, HealthConfig::default()));
        let at = |minutes| Moment(Duration::from_mins(minutes));
        let mut leg = vitals.begin(0, at(0)).unwrap();
        leg.first_token(at(0));
        leg.end(Ending::Truncated, Verdict::Failure, at(0));
        assert_eq!(
            vitals.standing.breaker(),
            BreakerState::Open,
            "it was no probe, and it failed in the end"
        );
        let mut probe = vitals.begin(0, at(1)).unwrap();
        assert_eq!(vitals.standing.availability(at(1)), Availability::OnTrial);
        probe.first_token(at(1));
        assert_eq!(vitals.standing.breaker(), BreakerState::Closed);
        assert_eq!(vitals.in_flight().requests, 1, "it is load until its end");
        probe.end(Ending::Completed, Verdict::Success, at(30));
        assert_eq!(vitals.in_flight().requests, 0);
    }

    #[test]
    fn legs_of_many_threads_leave_nothing_behind() {
        let config =
            BreakerConfig { failure_threshold: Some(2), timeout: Duration::ZERO, ..BreakerConfig::default() };
        let vitals = Arc::new(Vitals::new(config, HealthConfig::default()));
        let now = Moment::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let vitals = &vitals;
                scope.spawn(move || {
                    for round in 0..3_000 {
                        let Ok(mut leg) = vitals.begin(3, now) else { continue };
                        match (round + thread) % 5 {
                            0 | 1 => leg.end(Ending::Failed, Verdict::Failure, now),
                            2 => leg.end(Ending::Completed, Verdict::Success, now),
                            3 => leg.first_token(now),
                            _ => drop(leg),
                        }
                        assert!(vitals.books.counts().balance());
                    }
                });
            }
        });
        assert_eq!(vitals.in_flight(), Load::default());
        assert_ne!(vitals.standing.breaker(), BreakerState::HalfOpen);
        assert!(vitals.begin(0, now).is_ok(), "whatever happened, a request gets through in the end");
    }
}
