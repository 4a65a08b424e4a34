//! The gateway's clock: one monotonic clock, and one timeline of wall time for all that is recorded; and what is known of
//! the workers' clocks.
//!
//! The timeline goes at the pace of the monotonic clock. At each look at the system's clock it is slewed towards that, by no
//! more than the share of the time by which an NTP daemon slews, so that it follows any drift. If the system's clock is found
//! to have been set meanwhile (a step of NTP's, a machine that was suspended), the timeline stays as far from it as it was
//! moved: what lies within a step keeps its distance in time. Only when no request has come for a while, as between two
//! steps, does the timeline follow.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rollscope_route::{Counts, Moment};
use rollscope_trace::{ClockEstimate, ClockOffset, Nanos, UnixNs};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::options::LogLevel;

/// Tells the time.
#[derive(Debug)]
pub(crate) struct Clock {
    timeline: Mutex<Timeline>,
    origin: Instant,
    /// How often the system's clock was set, as far as was noticed.
    pub(crate) jumps: AtomicU64,
    /// How far it has been set ahead of the timeline, in nanoseconds.
    pub(crate) ahead_ns: AtomicI64,
}

/// Wall time, as it goes on whatever becomes of the system's clock.
#[derive(Debug)]
struct Timeline {
    anchor: Anchor,
    /// How far the system's clock has been set ahead of it.
    ahead_ns: i64,
    /// Requests that had been started when a look found some that had come, and when that was.
    started: u64,
    busy: Instant,
}

/// What a look at the system's clock has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockNews {
    /// It was set by so much.
    Set { by_ns: i64 },
    /// The timeline was moved by so much, to where the clock is.
    Followed { by_ns: i64 },
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

/// A clock that is further off than this was set, by ntpd's own threshold for a step.
const STEP_NS: i64 = 128_000_000;
/// The most that ntpd slews a clock by, in millionths of the time.
const SLEW_PER_MILLION: u64 = 500;
/// Without a request for so long, the timeline may follow a clock that was set.
const QUIET: Duration = Duration::from_mins(1);
/// A look that took longer was interrupted, and tells nothing.
const LOOK_WITHIN: Duration = Duration::from_millis(10);

/// Ticks at once and then so often; one that comes late puts off those after it.
pub(crate) fn tick(every: Duration) -> Interval {
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

// === impl Clock ===

impl Clock {
    pub(crate) fn new() -> Self {
        let (at, wall) = (Instant::now(), system_now());
        let timeline = Mutex::new(Timeline::new(Anchor { at, wall }));
        Self { timeline, origin: at, jumps: AtomicU64::new(0), ahead_ns: AtomicI64::new(0) }
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
        Anchor { at, wall: self.wall_at(at) }
    }

    /// A moment, on the timeline.
    pub(crate) fn wall_at(&self, at: Instant) -> UnixNs {
        self.timeline.lock().wall_at(at)
    }

    /// Looks at the system's clock; `requests` tell whether any have come.
    pub(crate) fn look(&self, requests: Counts) -> Option<ClockNews> {
        let before = Instant::now();
        let wall = system_now();
        if before.elapsed() > LOOK_WITHIN {
            return None;
        }
        let mut timeline = self.timeline.lock();
        let news = timeline.look(Anchor { at: before, wall }, requests);
        self.ahead_ns.store(timeline.ahead_ns, Ordering::Relaxed);
        if matches!(news, Some(ClockNews::Set { .. })) {
            self.jumps.fetch_add(1, Ordering::Relaxed);
        }
        news
    }
}

// === impl Timeline ===

impl Timeline {
    fn new(anchor: Anchor) -> Self {
        Self { anchor, ahead_ns: 0, started: 0, busy: anchor.at }
    }

    /// A moment may also be one before the last look.
    fn wall_at(&self, at: Instant) -> UnixNs {
        let before = Anchor { at, ..self.anchor }.elapsed(self.anchor.at);
        let before = i64::try_from(before.0).unwrap_or(i64::MAX);
        self.anchor.wall.after(self.anchor.elapsed(at)).offset_by(before.saturating_neg())
    }

    fn look(&mut self, system: Anchor, requests: Counts) -> Option<ClockNews> {
        let wall = self.wall_at(system.at);
        let off_ns = system.wall.0.saturating_sub(wall.0).saturating_sub(self.ahead_ns);
        let elapsed = self.anchor.elapsed(system.at).0;
        self.anchor = Anchor { at: system.at, wall };
        if requests.live > 0 || requests.started != self.started {
            (self.started, self.busy) = (requests.started, system.at);
        }
        if off_ns.saturating_abs() > STEP_NS {
            self.ahead_ns = self.ahead_ns.saturating_add(off_ns);
            return Some(ClockNews::Set { by_ns: off_ns });
        }
        let most = elapsed.saturating_mul(SLEW_PER_MILLION) / 1_000_000;
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let mut by_ns = off_ns.clamp(-most, most);
        let is_quiet = system.at.saturating_duration_since(self.busy) >= QUIET;
        let followed = (self.ahead_ns != 0 && is_quiet).then(|| std::mem::take(&mut self.ahead_ns));
        by_ns = by_ns.saturating_add(followed.unwrap_or(0));
        self.anchor.wall = wall.offset_by(by_ns);
        followed.map(|by_ns| ClockNews::Followed { by_ns })
    }
}

// === impl ClockNews ===

impl ClockNews {
    pub(crate) fn level(self) -> LogLevel {
        match self {
            Self::Set { .. } => LogLevel::Warn,
            Self::Followed { .. } => LogLevel::Info,
        }
    }
}

impl fmt::Display for ClockNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |by_ns: i64| by_ns as f64 / 1e9;
        match self {
            Self::Set { by_ns } => write!(
                f,
                "the system's clock was set by {:+.3} s; recorded times go on as before until no request has come for {QUIET:?}",
                seconds(*by_ns)
            ),
            Self::Followed { by_ns } => {
                write!(f, "recorded times have followed the system's clock by {:+.3} s", seconds(*by_ns))
            }
        }
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
}

fn system_now() -> UnixNs {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixNs(i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK_INTERVAL: Duration = Duration::from_secs(5);
    const SECOND: i64 = 1_000_000_000;
    const HOUR: i64 = 3600 * SECOND;

    /// A machine whose clocks are made up.
    struct Machine {
        begin: Instant,
        /// What the monotonic clock shows.
        elapsed: Duration,
        /// What the system's clock shows beyond that.
        extra_ns: i64,
        /// By so much it runs too fast.
        drift_per_million: i64,
        timeline: Timeline,
        requests: Counts,
    }

    impl Machine {
        fn new() -> Self {
            let begin = Instant::now();
            let timeline = Timeline::new(Anchor { at: begin, wall: UnixNs(1_800_000_000 * SECOND) });
            let (elapsed, requests) = (Duration::ZERO, Counts::default());
            Self { begin, elapsed, extra_ns: 0, drift_per_million: 0, timeline, requests }
        }

        fn now(&self) -> UnixNs {
            self.timeline.wall_at(self.begin + self.elapsed)
        }

        fn system(&self) -> UnixNs {
            let elapsed = i64::try_from(self.elapsed.as_nanos()).unwrap();
            UnixNs(1_800_000_000 * SECOND + elapsed + self.extra_ns)
        }

        /// Time goes by, with a look now and then; gives what these found.
        fn pass(&mut self, seconds: u64, is_busy: bool) -> Vec<ClockNews> {
            let mut news = Vec::new();
            for _ in 0..seconds / LOOK_INTERVAL.as_secs() {
                self.elapsed += LOOK_INTERVAL;
                self.extra_ns += LOOK_INTERVAL.as_secs() as i64 * 1000 * self.drift_per_million;
                self.requests.started += u64::from(is_busy);
                let system = Anchor { at: self.begin + self.elapsed, wall: self.system() };
                news.extend(self.timeline.look(system, self.requests));
            }
            news
        }
    }

    #[test]
    fn drift_is_followed() {
        for drift in [-400, -50, 50, 400] {
            let mut machine = Machine::new();
            machine.drift_per_million = drift;
            assert_eq!(machine.pass(24 * 3600, true), [], "{drift}");
            let off = machine.system().0 - machine.now().0;
            assert!(off.abs() < SECOND / 100, "{drift}: off by {off} ns after a day");
        }
    }

    #[test]
    fn a_clock_that_is_off_a_little_is_slewed_and_not_set() {
        let mut machine = Machine::new();
        machine.extra_ns = STEP_NS - 1;
        let begin = machine.now();
        assert_eq!(machine.pass(60, true), []);
        let gone = machine.now().since(begin).0 as i64 - 60 * SECOND;
        assert_eq!(gone, 60 * 500_000, "at the most that is allowed");
        machine.pass(3600, true);
        assert_eq!(machine.now(), machine.system());
    }

    #[test]
    fn a_clock_that_is_set_does_not_change_what_a_step_takes() {
        for by_ns in [HOUR, -HOUR, 200_000_000, -200_000_000] {
            let mut machine = Machine::new();
            machine.drift_per_million = 20;
            machine.pass(60, true);
            let begin = machine.now();
            machine.pass(300, true);
            machine.extra_ns += by_ns;
            let news = machine.pass(300, true);
            let [ClockNews::Set { by_ns: told }] = news[..] else { panic!("{by_ns}: {news:?}") };
            assert!((told - by_ns).abs() < SECOND / 1000, "{told}");
            let step = machine.now().since(begin).0 as i64;
            assert!((step - 600 * SECOND).abs() < SECOND / 10, "{by_ns}: {step}");
            // A request that goes on keeps it so, even if none comes.
            machine.requests.live = 1;
            assert_eq!(machine.pass(3600, false), []);
            machine.requests.live = 0;
            assert_eq!(machine.pass(55, false), [], "not quiet for long enough");
            let news = machine.pass(60, false);
            assert!(matches!(news[..], [ClockNews::Followed { .. }]), "{by_ns}: {news:?}");
            let off = machine.system().0 - machine.now().0;
            assert!(off.abs() < SECOND / 1000, "{by_ns}: {off}");
        }
    }

    #[test]
    fn a_clock_that_is_set_and_set_back_is_where_it_was() {
        let mut machine = Machine::new();
        let begin = machine.now();
        machine.extra_ns += HOUR;
        assert_eq!(machine.pass(60, true), [ClockNews::Set { by_ns: HOUR }]);
        machine.extra_ns -= HOUR;
        assert_eq!(machine.pass(60, true), [ClockNews::Set { by_ns: -HOUR }]);
        assert_eq!(machine.pass(600, false), []);
        assert_eq!(machine.now().since(begin), Nanos(720 * SECOND as u64));
        assert_eq!(machine.now(), machine.system());
    }
}
