//! Time: wall-clock points, elapsed spans, and how far a worker's clock is from ours.
//!
//! Durations come from one monotonic clock in one process. A wall-clock point is that process's anchor plus a
//! monotonic duration, so differences of points that one process made are exact; points of two hosts are
//! compared only through a [`ClockOffset`], which carries its bound.

/// A point in time: nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixNs(pub i64);

/// An elapsed time in nanoseconds, from a monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

/// How far a worker's wall clock is ahead of the gateway's, with the largest possible error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// Worker's clock minus gateway's clock; positive when the worker's is ahead.
    pub offset_ns: i64,
    /// The true offset lies within `offset_ns ± bound`.
    pub bound: Nanos,
}

/// What many exchanges together say of a worker's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockEstimate {
    offset: ClockOffset,
    /// When it was that, by the gateway's clock.
    at: UnixNs,
}

/// Two clocks may drift apart by this share of the time: 15 millionths each (PHI of RFC 5905, section 7.2).
const DRIFT_PER_MILLION: u64 = 30;

// === impl UnixNs ===

impl UnixNs {
    /// From seconds since the epoch, as workers report them; nothing for a value that is no such time.
    pub fn from_secs_f64(secs: f64) -> Option<Self> {
        // Whole seconds and the rest apart: both are exact, where their product with 1e9 is not.
        let (whole, rest) = (secs.trunc(), secs.fract());
        let ns = (whole.abs() < 9e9).then(|| whole as i64 * 1_000_000_000 + (rest * 1e9).round() as i64)?;
        Some(Self(ns))
    }

    /// Seconds since the epoch, to the nearest double: they are 0.24 µs apart, so that such seconds come back from
    /// [`Self::from_secs_f64`] and here to the bit.
    pub fn as_secs_f64(self) -> f64 {
        (self.0 / 1_000_000_000) as f64 + (self.0 % 1_000_000_000) as f64 / 1e9
    }

    /// The point `elapsed` later.
    #[must_use]
    pub fn after(self, elapsed: Nanos) -> Self {
        self.offset_by(i64::try_from(elapsed.0).unwrap_or(i64::MAX))
    }

    /// The point moved by a signed number of nanoseconds.
    #[must_use]
    pub fn offset_by(self, ns: i64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// The time from `earlier` to this point; zero when it is not earlier.
    pub fn since(self, earlier: Self) -> Nanos {
        Nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

// === impl Nanos ===

impl Nanos {
    /// From seconds; nothing for a negative or non-finite number.
    pub fn from_secs_f64(secs: f64) -> Option<Self> {
        let ns = secs * 1e9;
        (ns.is_finite() && (0.0..u64::MAX as f64).contains(&ns)).then(|| Self(ns.round() as u64))
    }

    /// In seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The sum; stops at the largest number instead of wrapping.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference; zero when `other` is larger.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

// === impl ClockOffset ===

impl ClockOffset {
    /// From the four stamps of one exchange (NTP, RFC 5905 section 8): the gateway sent at `sent` and had the
    /// whole reply at `returned` (its clock); the worker had the request at `received` and answered at
    /// `replied` (its clock). Nothing when the worker says it held the request longer than the exchange took.
    pub fn from_stamps(sent: UnixNs, received: UnixNs, replied: UnixNs, returned: UnixNs) -> Option<Self> {
        let there = i128::from(received.0) - i128::from(sent.0);
        let back = i128::from(replied.0) - i128::from(returned.0);
        // The way there plus the way back, clock offset cancelled.
        let on_the_way = there - back;
        if on_the_way < 0 || replied < received {
            return None;
        }
        Some(Self {
            offset_ns: i64::try_from(i128::midpoint(there, back)).ok()?,
            bound: Nanos(u64::try_from(on_the_way / 2).ok()?),
        })
    }

    /// The least and the most that it can be.
    fn range(self) -> (i128, i128) {
        let (offset, bound) = (i128::from(self.offset_ns), i128::from(self.bound.0));
        (offset - bound, offset + bound)
    }

    /// A point of the worker's clock, on the gateway's.
    pub fn to_gateway(self, worker: UnixNs) -> UnixNs {
        worker.offset_by(self.offset_ns.saturating_neg())
    }
}

// === impl ClockEstimate ===

impl ClockEstimate {
    /// By a first exchange, that ended at a time by the gateway's clock.
    pub fn new(offset: ClockOffset, at: UnixNs) -> Self {
        Self { offset, at }
    }

    /// With one more exchange. The true offset lies within the bounds of both, so within what they share (the
    /// intersection algorithm of RFC 5905, section 11.2.1, for two). Where they share nothing a clock was set, and only
    /// the new one counts.
    #[must_use]
    pub fn with(self, offset: ClockOffset, at: UnixNs) -> Self {
        let (low, high) = self.at(at).range();
        let (new_low, new_high) = offset.range();
        let (low, high) = (low.max(new_low), high.min(new_high));
        if low > high {
            return Self::new(offset, at);
        }
        let middle = i128::midpoint(low, high);
        let shared = ClockOffset {
            offset_ns: i64::try_from(middle).unwrap_or(offset.offset_ns),
            // Rounded up, so that both ends stay inside.
            bound: Nanos(u64::try_from((high - middle).max(middle - low)).unwrap_or(u64::MAX)),
        };
        Self { offset: shared, at: self.at.max(at) }
    }

    /// As far as it can be known at a time: the older it is, the less certain.
    pub fn at(self, now: UnixNs) -> ClockOffset {
        let age = now.0.abs_diff(self.at.0);
        let drift = u128::from(age) * u128::from(DRIFT_PER_MILLION) / 1_000_000;
        let drift = Nanos(u64::try_from(drift).unwrap_or(u64::MAX));
        ClockOffset { bound: self.offset.bound.plus(drift), ..self.offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_found_within_its_bound() {
        // The worker is 500 ahead; 30 there, 10 back.
        let (sent, received, replied, returned) = (UnixNs(1000), UnixNs(1530), UnixNs(1630), UnixNs(1140));
        let offset = ClockOffset::from_stamps(sent, received, replied, returned).unwrap();
        assert_eq!(offset, ClockOffset { offset_ns: 510, bound: Nanos(20) });
        assert!((offset.offset_ns - 500).unsigned_abs() <= offset.bound.0);
        assert_eq!(offset.to_gateway(received), UnixNs(1020));
    }

    #[test]
    fn an_exchange_shorter_than_the_worker_says_gives_no_offset() {
        assert_eq!(ClockOffset::from_stamps(UnixNs(0), UnixNs(0), UnixNs(100), UnixNs(50)), None);
        assert_eq!(ClockOffset::from_stamps(UnixNs(0), UnixNs(20), UnixNs(10), UnixNs(50)), None);
    }

    #[test]
    fn seconds_come_back_to_the_bit() {
        let next = |secs: &f64| Some(secs.next_up());
        for secs in std::iter::successors(Some(1_790_000_002.590_662), next).take(5000) {
            assert_eq!(UnixNs::from_secs_f64(secs).unwrap().as_secs_f64().to_bits(), secs.to_bits());
        }
        assert_eq!(
            UnixNs::from_secs_f64(-1.25).map(|at| (at.0, at.as_secs_f64())),
            Some((-1_250_000_000, -1.25))
        );
    }

    #[test]
    fn seconds_that_are_no_time_are_refused() {
        for bad in [f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(UnixNs::from_secs_f64(bad), None);
            assert_eq!(Nanos::from_secs_f64(bad), None);
        }
        assert_eq!(Nanos::from_secs_f64(-1e-9), None);
        assert_eq!(Nanos::from_secs_f64(1.5), Some(Nanos(1_500_000_000)));
    }

    #[test]
    fn exchanges_together_know_more_than_each() {
        // The worker is a second ahead. What the way there and the way back take differs each time.
        let truth = 1_000_000_000;
        let exchange = |start: i64, there: i64, back: i64| {
            let (sent, received) = (UnixNs(start), UnixNs(start + there + truth));
            let (replied, returned) = (received.offset_by(5000), UnixNs(start + there + 5000 + back));
            (ClockOffset::from_stamps(sent, received, replied, returned).unwrap(), returned)
        };
        let (first, at) = exchange(0, 900, 100);
        let mut estimate = ClockEstimate::new(first, at);
        for (number, (there, back)) in
            [(100, 900), (700, 700), (50, 60), (999, 1), (4, 4000)].into_iter().enumerate()
        {
            let (offset, at) = exchange(10_000 * (number as i64 + 1), there, back);
            estimate = estimate.with(offset, at);
            let known = estimate.at(at);
            assert!((known.offset_ns - truth).unsigned_abs() <= known.bound.0, "{known:?}");
            assert!(known.bound <= offset.bound && known.bound.0 <= first.bound.0 + 2, "{known:?}");
        }
        // An hour later it may have drifted by a tenth of a second.
        let later = estimate.at(UnixNs(3_600_000_000_000));
        assert!((107_000_000..109_000_000).contains(&later.bound.0), "{later:?}");
        // A clock that was set is known anew.
        let set = ClockOffset { offset_ns: -5, bound: Nanos(1) };
        assert_eq!(estimate.with(set, UnixNs(60_000)).at(UnixNs(60_000)), set);
    }
}
