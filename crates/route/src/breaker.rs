//! The circuit breaker of one worker.
//!
//! A worker that fails again and again is left alone for a while, and then tried with a few requests before it gets
//! its share again.
//!
//! | from | to | when |
//! |---|---|---|
//! | Closed | Open | `failure_threshold` failures in a row, all within the window |
//! | Open | `HalfOpen` | the timeout is over, and a request is let through as a probe |
//! | `HalfOpen` | Closed | `success_threshold` probes have succeeded since it opened |
//! | `HalfOpen` | Open | a probe failed: the timeout begins anew |
//! | `HalfOpen` | Open | the last live probe ended without deciding it: the next request is a probe at once |
//!
//! No more probes are asked for than are needed. Where there is nobody else, more are let through all the same: they do no
//! harm to a worker that works, and each of them is a probe like the others.
//!
//! Half-open is not kept: it *is* "open with live probes". A probe holds a [`Pass`], and whoever holds a pass gives it
//! back in whatever way the probe ends, so half-open can not outlive its probes.
//!
//! What was let through before the state last changed says nothing about the worker now: a pass carries the number
//! of the state that it was given in (its epoch), and one of an earlier epoch is taken back without effect. A stream
//! that began half an hour ago neither opens nor closes a breaker that has moved since.

use std::collections::VecDeque;
use std::time::Duration;

use crate::moment::Moment;

/// When a breaker opens and closes; the names are those of SGLang's router, with the prefix `cb_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// So many failures in a row open it; none, or more than [`MAX_FAILURE_THRESHOLD`]: it never opens. Zero counts as
    /// one.
    pub failure_threshold: Option<u32>,
    /// So many probes that succeed close it. Zero counts as one.
    pub success_threshold: u32,
    /// So long it stays open before the first probe (`cb_timeout_duration_secs`).
    pub timeout: Duration,
    /// Failures count together when they lie no further apart (`cb_window_duration_secs`).
    pub window: Duration,
}

/// What a breaker does with the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Lets it through.
    Closed,
    /// Refuses it, or lets it through as the first probe when the timeout is over.
    Open,
    /// Probes are live: lets it through if more are needed, or nobody else is there.
    HalfOpen,
}

/// How an upstream call ended, as far as it tells whether the worker works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Success,
    /// It does not: no connection, a reply that breaks off, a 5xx, no reply in time.
    Failure,
    /// Nothing can be told: the request was at fault (any 4xx), or it was given up.
    Neutral,
    /// The worker is full (429, 503): no fault, but better to leave it alone for a moment.
    Backpressure {
        /// What it asked for.
        retry_after: Option<Duration>,
    },
}

/// Counts failures, and refuses what would only fail.
#[derive(Debug)]
pub(crate) struct Breaker {
    config: BreakerConfig,
    epoch: u64,
    state: State,
}

/// A request was let through; to be given back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Pass {
    epoch: u64,
    pub(crate) is_probe: bool,
}

#[derive(Debug)]
enum State {
    /// The failures since the last success, the oldest first; never more than the threshold.
    Closed { failures: VecDeque<Moment> },
    /// Half-open while `probes` are live.
    Open { since: Moment, successes: u32, probes: u32 },
}

/// Bound on the failures that are remembered, one moment each.
pub const MAX_FAILURE_THRESHOLD: u32 = 1 << 16;

// === impl BreakerConfig ===

impl Default for BreakerConfig {
    /// The defaults of SGLang's router.
    fn default() -> Self {
        Self {
            failure_threshold: Some(10),
            success_threshold: 3,
            timeout: Duration::from_mins(1),
            window: Duration::from_mins(2),
        }
    }
}

// === impl BreakerState ===

impl BreakerState {
    /// For figures and texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

// === impl Verdict ===

impl Verdict {
    /// What the status of a whole reply tells. A burst of prompts that are too long (400) says nothing about the
    /// worker, and a full queue (429, 503) is not a broken one.
    pub fn of_status(status: u16, retry_after: Option<Duration>) -> Self {
        match status {
            429 | 503 => Self::Backpressure { retry_after },
            400..=499 => Self::Neutral,
            500.. => Self::Failure,
            _ => Self::Success,
        }
    }
}

// === impl Breaker ===

impl Breaker {
    pub(crate) fn new(config: BreakerConfig) -> Self {
        Self { config, epoch: 0, state: State::Closed { failures: VecDeque::new() } }
    }

    pub(crate) fn state(&self) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { probes: 0, .. } => BreakerState::Open,
            State::Open { .. } => BreakerState::HalfOpen,
        }
    }

    /// Whether a request would be let through.
    pub(crate) fn admits(&self, now: Moment) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { since, .. } => now.since(since) >= self.config.timeout,
        }
    }

    /// Whether as many probes are live as could still be needed.
    pub(crate) fn has_probes(&self) -> bool {
        match self.state {
            State::Closed { .. } => false,
            State::Open { successes, probes, .. } => successes + probes >= self.successes_needed(),
        }
    }

    /// Lets a request through, or not.
    pub(crate) fn admit(&mut self, now: Moment) -> Option<Pass> {
        if !self.admits(now) {
            return None;
        }
        let is_probe = match &mut self.state {
            State::Closed { .. } => false,
            // Open => HalfOpen
            State::Open { probes, .. } => {
                *probes += 1;
                true
            }
        };
        Some(Pass { epoch: self.epoch, is_probe })
    }

    /// Takes a pass back with what the request told.
    pub(crate) fn settle(&mut self, pass: &Pass, verdict: Verdict, now: Moment) {
        match verdict {
            Verdict::Success => self.succeed(pass),
            Verdict::Failure => self.fail(pass, now),
            Verdict::Neutral | Verdict::Backpressure { .. } => self.release(pass),
        }
    }

    /// Takes a pass back that tells nothing.
    pub(crate) fn release(&mut self, pass: &Pass) {
        if pass.epoch != self.epoch || !pass.is_probe {
            return;
        }
        // HalfOpen => (HalfOpen | Open)
        if let State::Open { probes, .. } = &mut self.state {
            *probes -= 1;
        }
    }

    fn succeed(&mut self, pass: &Pass) {
        if pass.epoch != self.epoch {
            return;
        }
        let needed = self.successes_needed();
        match &mut self.state {
            State::Closed { failures } => failures.clear(),
            State::Open { probes, successes, .. } if pass.is_probe => {
                *probes -= 1;
                *successes += 1;
                // HalfOpen => (HalfOpen | Open | Closed)
                if *successes >= needed {
                    self.enter(State::Closed { failures: VecDeque::new() });
                }
            }
            State::Open { .. } => {}
        }
    }

    fn fail(&mut self, pass: &Pass, now: Moment) {
        if pass.epoch != self.epoch {
            return;
        }
        let BreakerConfig { failure_threshold, window, .. } = self.config;
        let threshold = failure_threshold.filter(|threshold| *threshold <= MAX_FAILURE_THRESHOLD);
        let is_tripped = match &mut self.state {
            State::Closed { failures } => threshold.is_some_and(|threshold| {
                failures.push_back(now);
                while failures.front().is_some_and(|oldest| now.since(*oldest) > window) {
                    failures.pop_front();
                }
                failures.len() >= threshold as usize
            }),
            State::Open { .. } => pass.is_probe,
        };
        // (Closed | HalfOpen) => Open
        if is_tripped {
            self.enter(State::Open { since: now, successes: 0, probes: 0 });
        }
    }

    fn enter(&mut self, state: State) {
        self.epoch += 1;
        self.state = state;
    }

    fn successes_needed(&self) -> u32 {
        self.config.success_threshold.max(1)
    }
}

#[cfg(test)]
mod tests;
