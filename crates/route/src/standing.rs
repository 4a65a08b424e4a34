//! Whether a worker may be sent anything now: its checks, its breaker, its back-off, its removal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::breaker::{Breaker, BreakerConfig, BreakerState, Pass, Verdict};
use crate::health::{Health, HealthConfig, HealthState};
use crate::moment::Moment;

/// Whether a worker may be sent a request. Of several answers that hold, the one furthest down is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It may.
    Ready,
    /// It said that it is full a moment ago; it is sent something only when no other worker is ready.
    BackingOff,
    /// Its breaker is open, and it is being tried by as many requests as that takes; it is sent another one only when no
    /// other worker can be.
    OnTrial,
    /// Its breaker is open.
    Open,
    /// Its checks fail.
    Unhealthy,
    /// It has been removed, and what was begun at it ends.
    Draining,
}

/// What a worker's breaker has been told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Of [`Verdict::Success`].
    pub successes: u64,
    /// Of [`Verdict::Failure`].
    pub failures: u64,
}

/// Health, breaker, back-off and removal of one worker.
#[derive(Debug)]
pub(crate) struct Standing {
    /// Whether all is well, so that choosing looks at a healthy fleet without taking locks.
    is_plain: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    health: Health,
    breaker: Breaker,
    verdicts: Verdicts,
    backs_off_until: Option<Moment>,
    is_draining: bool,
}

/// A full worker that does not say when to come again is left alone for this long.
const DEFAULT_BACKOFF: Duration = Duration::from_secs(1);
/// However long a full worker asks for, it is not left alone for longer: its queue may be empty long before.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

// === impl Standing ===

impl Standing {
    pub(crate) fn new(breaker: BreakerConfig, health: HealthConfig) -> Self {
        let state = State {
            health: Health::new(health),
            breaker: Breaker::new(breaker),
            verdicts: Verdicts::default(),
            backs_off_until: None,
            is_draining: false,
        };
        Self { is_plain: AtomicBool::new(true), state: Mutex::new(state) }
    }

    pub(crate) fn availability(&self, now: Moment) -> Availability {
        if self.is_plain.load(Ordering::Acquire) {
            return Availability::Ready;
        }
        self.change(|state| {
            if state.backs_off_until.is_some_and(|until| until <= now) {
                state.backs_off_until = None;
            }
            state.availability(now)
        })
    }

    /// Lets a request through and begins it, so that nothing begins once the worker has been removed.
    pub(crate) fn admit<B>(&self, now: Moment, begin: impl FnOnce() -> B) -> Result<(Pass, B), Availability> {
        self.change(|state| {
            if state.is_draining {
                return Err(Availability::Draining);
            }
            let pass = state.breaker.admit(now).ok_or(Availability::Open)?;
            Ok((pass, begin()))
        })
    }

    /// Takes a pass back with what the request told.
    pub(crate) fn settle(&self, pass: &Pass, verdict: Verdict, now: Moment) {
        self.change(|state| {
            state.breaker.settle(pass, verdict, now);
            match verdict {
                Verdict::Success => {
                    state.verdicts.successes += 1;
                    // It has room again.
                    state.backs_off_until = None;
                }
                Verdict::Backpressure { retry_after } => {
                    let wait = retry_after.unwrap_or(DEFAULT_BACKOFF).min(MAX_BACKOFF);
                    state.backs_off_until = Some(now.after(wait));
                }
                Verdict::Failure => state.verdicts.failures += 1,
                Verdict::Neutral => {}
            }
        });
    }

    /// Takes a pass back that tells nothing.
    pub(crate) fn release(&self, pass: &Pass) {
        self.change(|state| state.breaker.release(pass));
    }

    /// Takes the result of an active check; gives the health if it has changed.
    pub(crate) fn check(&self, passed: bool) -> Option<HealthState> {
        self.change(|state| state.health.record(passed))
    }

    /// From now on nothing is let through.
    pub(crate) fn drain(&self) {
        self.change(|state| state.is_draining = true);
    }

    pub(crate) fn health(&self) -> HealthState {
        self.state.lock().health.state()
    }

    pub(crate) fn breaker(&self) -> BreakerState {
        self.state.lock().breaker.state()
    }

    pub(crate) fn verdicts(&self) -> Verdicts {
        self.state.lock().verdicts
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.is_plain.store(state.is_plain(), Ordering::Release);
        result
    }
}

// === impl State ===

impl State {
    fn availability(&self, now: Moment) -> Availability {
        if self.is_draining {
            Availability::Draining
        } else if self.health.state() == HealthState::Unhealthy {
            Availability::Unhealthy
        } else if !self.breaker.admits(now) {
            Availability::Open
        } else if self.breaker.has_probes() {
            Availability::OnTrial
        } else if self.backs_off_until.is_some() {
            Availability::BackingOff
        } else {
            Availability::Ready
        }
    }

    fn is_plain(&self) -> bool {
        !self.is_draining
            && self.health.state() != HealthState::Unhealthy
            && self.breaker.state() == BreakerState::Closed
            && self.backs_off_until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn settle(standing: &Standing, verdict: Verdict, now: Moment) {
        let (pass, ()) = standing.admit(now, || ()).unwrap();
        standing.settle(&pass, verdict, now);
    }

    #[test]
    fn what_speaks_most_against_a_worker_is_told() {
        let config = BreakerConfig { failure_threshold: Some(1), ..BreakerConfig::default() };
        let standing = Standing::new(config, HealthConfig::default());
        assert_eq!(standing.availability(at(0)), Availability::Ready);
        settle(&standing, Verdict::Backpressure { retry_after: None }, at(0));
        assert_eq!(standing.availability(at(0)), Availability::BackingOff);
        settle(&standing, Verdict::Failure, at(0));
        assert_eq!(standing.availability(at(0)), Availability::Open);
        assert_eq!(standing.availability(at(60)), Availability::Ready, "a probe is wanted");
        standing.check(false);
        assert_eq!(standing.availability(at(60)), Availability::Unhealthy);
        standing.drain();
        assert_eq!(standing.availability(at(60)), Availability::Draining);
        assert_eq!(standing.admit(at(60), || ()).err(), Some(Availability::Draining));
    }

    #[test]
    fn a_full_worker_is_left_alone_for_a_moment_and_never_shut_out() {
        for (retry_after, until) in [(None, 1), (Some(5), 5), (Some(0), 0), (Some(86_400), 30)] {
            let standing = Standing::new(BreakerConfig::default(), HealthConfig::default());
            let full = Verdict::Backpressure { retry_after: retry_after.map(Duration::from_secs) };
            for _ in 0..100 {
                settle(&standing, full, at(0));
            }
            for second in 0..40 {
                let expected = if second < until { Availability::BackingOff } else { Availability::Ready };
                assert_eq!(standing.availability(at(second)), expected, "{retry_after:?}, after {second} s");
            }
            settle(&standing, full, at(50));
            settle(&standing, Verdict::Success, at(50));
            assert_eq!(standing.availability(at(50)), Availability::Ready, "it has room again");
        }
    }
}
