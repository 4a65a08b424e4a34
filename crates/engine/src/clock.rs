//! The process's one clock: monotonic stamps, and where they lie in wall time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// Source of stamps; shared by everything that stamps a request.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: Instant,
    anchor: Mutex<Anchor>,
}

/// A moment, as nanoseconds since the clock's origin. Stamps of one clock never go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(u64);

/// A moment on both clocks, read together: it says where stamps lie in wall time. What is told together goes by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    stamp: Stamp,
    unix_s: f64,
}

/// Tells how much time has passed outside pauses. Its stamps are compared with each other alone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ActiveTime {
    paused: Duration,
    since: Option<Stamp>,
}

/// Wall and monotonic time drift apart by some 10 parts in a million at most: 0.6 ms a minute.
const ANCHOR_LIFE: Duration = Duration::from_mins(1);

// === impl Clock ===

impl Clock {
    pub(crate) fn new() -> Self {
        let origin = Instant::now();
        Self { origin, anchor: Mutex::new(Anchor { stamp: Stamp(0), unix_s: unix_now_s() }) }
    }

    pub(crate) fn now(&self) -> Stamp {
        Stamp(self.origin.elapsed().as_nanos() as u64)
    }

    /// The current anchor; it is renewed each minute.
    pub(crate) fn anchor(&self) -> Anchor {
        let mut anchor = self.anchor.lock();
        let now = self.now();
        if now.since(anchor.stamp) > ANCHOR_LIFE {
            *anchor = Anchor { stamp: now, unix_s: unix_now_s() };
        }
        *anchor
    }
}

// === impl Anchor ===

impl Anchor {
    /// A stamp as seconds since the Unix epoch.
    pub(crate) fn unix_s(self, stamp: Stamp) -> f64 {
        self.unix_s + (stamp.0 as f64 - self.stamp.0 as f64) / 1e9
    }
}

// === impl ActiveTime ===

impl ActiveTime {
    /// The moment, as if pauses had not been.
    pub(crate) fn at(&self, now: Stamp) -> Stamp {
        let now = self.since.map_or(now, |since| since.min(now));
        Stamp(now.0.saturating_sub(self.paused.as_nanos() as u64))
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.since.is_some()
    }

    /// Pausing what is paused changes nothing.
    pub(crate) fn pause(&mut self, now: Stamp) {
        self.since.get_or_insert(now);
    }

    pub(crate) fn go_on(&mut self, now: Stamp) {
        if let Some(since) = self.since.take() {
            self.paused += now.since(since);
        }
    }
}

// === impl Stamp ===

impl Stamp {
    /// The time from an earlier stamp to this one; zero if the other is the later one.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment so much later.
    #[cfg(test)]
    pub(crate) fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay.as_nanos().try_into().unwrap_or(u64::MAX)))
    }
}

fn unix_now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_time_stands_still_in_pauses() {
        let start = Clock::new().now();
        let at = |s: u64| start.after(Duration::from_secs(s));
        let mut active = ActiveTime::default();
        let entry = active.at(at(1));
        active.pause(at(3));
        active.pause(at(4));
        assert_eq!(active.at(at(9)).since(entry), Duration::from_secs(2));
        active.go_on(at(10));
        active.go_on(at(11));
        assert_eq!(active.at(at(11)).since(entry), Duration::from_secs(3));
        // What comes in a pause is no older than its end.
        active.pause(at(12));
        let entry = active.at(at(15));
        active.go_on(at(20));
        assert_eq!(active.at(at(21)).since(entry), Duration::from_secs(1));
    }

    #[test]
    fn wall_time_passes_as_stamps_do() {
        let clock = Clock::new();
        let (start, before) = (clock.now(), unix_now_s());
        let anchor = clock.anchor();
        let later = start.after(Duration::from_millis(1500));
        assert!((anchor.unix_s(later) - anchor.unix_s(start) - 1.5).abs() < 1e-5);
        // A stamp from before the anchor as well.
        let anchor = Anchor { stamp: later, ..anchor };
        assert!((anchor.unix_s(start) - anchor.unix_s(later) + 1.5).abs() < 1e-5);
        // Neither clock steps by an hour while this runs.
        assert!((clock.anchor().unix_s(start) - before).abs() < 3600.0);
    }
}
