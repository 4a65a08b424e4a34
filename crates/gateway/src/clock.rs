//! The gateway's clock: one monotonic clock, and a wall-clock anchor that is renewed each minute; and what is known of
//! the workers' clocks.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rollscope_route::Moment;
use rollscope_trace::{ClockEstimate, ClockOffset, Nanos, UnixNs};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Tells the time.
#[derive(Debug)]
pub(crate) struct Clock {
    anchor: Mutex<Anchor>,
    origin: Instant,
}

/// A worker's clock, as far as its exchanges have told.
#[derive(Debug, Default)]
pub(crate) struct WorkerClock(Mutex<Option<ClockEstimate>>);

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    pub(crate) at: Instant,
    pub(crate) wall: UnixNs,
}

/// So old an anchor is renewed: long enough for no cost, short enough for a step of the wall clock.
const ANCHOR_AGE: Duration = Duration::from_mins(1);

/// Ticks at once and then so often; one that comes late puts off those after it.
pub(crate) fn tick(every: Duration) -> Interval {
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

// === impl Clock ===

impl Clock {
    pub(crate) fn new() -> Self {
        Self { anchor: Mutex::new(Anchor::take()), origin: Instant::now() }
    }

    /// Now, as routing counts it.
    pub(crate) fn moment(&self) -> Moment {
        self.moment_of(Instant::now())
    }

    /// A time, as routing counts it.
    pub(crate) fn moment_of(&self, at: Instant) -> Moment {
        Moment(at.saturating_duration_since(self.origin))
    }

    /// Now, on both clocks.
    pub(crate) fn now(&self) -> Anchor {
        let at = Instant::now();
        let mut anchor = self.anchor.lock();
        if at.saturating_duration_since(anchor.at) > ANCHOR_AGE {
            *anchor = Anchor::take();
        }
        Anchor { at, wall: anchor.wall.after(anchor.elapsed(at)) }
    }
}

// === impl WorkerClock ===

impl WorkerClock {
    /// Takes what the exchange that ended at a time tells, if anything. Gives what is known for that time.
    pub(crate) fn learn(&self, offset: Option<ClockOffset>, at: UnixNs) -> Option<ClockOffset> {
        let mut known = self.0.lock();
        if let Some(offset) = offset {
            let estimate = known.map_or(ClockEstimate::new(offset, at), |known| known.with(offset, at));
            *known = Some(estimate);
        }
        known.map(|known| known.at(at))
    }
}

// === impl Anchor ===

impl Anchor {
    /// Time from here to a later moment.
    pub(crate) fn elapsed(&self, at: Instant) -> Nanos {
        Nanos(u64::try_from(at.saturating_duration_since(self.at).as_nanos()).unwrap_or(u64::MAX))
    }

    fn take() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { at: Instant::now(), wall: UnixNs(i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX)) }
    }
}
