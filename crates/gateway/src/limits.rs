//! How many requests are served at once and begin in a second, and the queue of those that wait.
//!
//! A request waits before its body is read, so that the queue holds connections and no bodies, but for those that an abort by
//! name has had read (`called_off.rs`). It is live from its arrival on: what it waited stands in its profile, between arrival
//! and the dispatch of its first leg.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rollscope_route::Moment;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::clock::tick;
use crate::fault::Refusal;
use crate::options::GatewayOptions;
use crate::watch::Watch;

/// The limits of a gateway.
#[derive(Debug)]
pub(crate) struct Limits {
    /// One permit for each request that may be served; none: no limit.
    places: Option<Arc<Semaphore>>,
    rate: Option<Rate>,
    queue_size: usize,
    queue_timeout: Duration,
    waiting: AtomicUsize,
    /// Requests that were refused since too many waited.
    pub(crate) refused: AtomicU64,
    /// Requests that were refused since they had waited for too long.
    pub(crate) timed_out: AtomicU64,
}

/// A place of a request that is served, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Place {
    _permit: Option<OwnedSemaphorePermit>,
}

/// So many may begin in a second (a token bucket).
#[derive(Debug)]
struct Rate {
    per_second: f64,
    burst: f64,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    /// Below zero, so many are on their way to begin.
    tokens: f64,
    at: Moment,
}

/// A place in the queue.
struct Waiting<'a>(&'a Limits);

/// A right to begin, which is given back if the request does not.
struct Token<'a> {
    rate: Option<&'a Rate>,
    /// Until it may be used.
    pause: Duration,
}

/// So often it is looked whether the client of a request that waits has left.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

// === impl Limits ===

impl Limits {
    pub(crate) fn new(options: &GatewayOptions) -> Self {
        let places = options.concurrency_limit();
        let rate =
            options.rate_limit_tokens_per_second.filter(|per_second| *per_second > 0).map(|per_second| {
                let burst = places.map_or(f64::from(per_second), |places| places as f64);
                Rate::new(f64::from(per_second), burst)
            });
        Self {
            places: places.map(|places| Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)))),
            rate,
            queue_size: options.queue_size,
            queue_timeout: Duration::from_secs(options.queue_timeout_secs),
            waiting: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
        }
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether a request may have to wait.
    pub(crate) fn have_queue(&self) -> bool {
        self.rate.is_some() || self.places.is_some()
    }

    /// A place for a request; it waits for one if it has to, and for no longer than until it is called off: then it needs
    /// none. Its connection, if known, is told that it waits, and served now and then, so that a client that leaves leaves the queue.
    pub(crate) async fn admit<F>(
        &self,
        now: Moment,
        connection: Option<&Watch>,
        called_off: impl FnOnce() -> F,
    ) -> Result<Place, Refusal>
    where
        F: Future<Output = Result<(), Refusal>>,
    {
        if !self.have_queue() {
            return Ok(Place::default());
        }
        let limit = self.queue_timeout;
        let late = || {
            self.timed_out.fetch_add(1, Ordering::Relaxed);
            Refusal::Queued { limit }
        };
        let token = Token::take(self.rate.as_ref(), now);
        if token.pause.is_zero()
            && let Some(permit) = self.try_place()
        {
            token.spend();
            return Ok(Place { _permit: permit });
        }
        let _waiting = self.join_queue()?;
        if token.pause > limit {
            return Err(late());
        }
        let mut turn = pin!(timeout(limit, self.turn(token.pause)));
        let _waits = connection.map(Watch::wait);
        // On the heap: most requests do not wait, and need no room for it.
        let mut called_off = Box::pin(called_off());
        let mut look = tick(LOOK_INTERVAL);
        let permit = loop {
            tokio::select! {
                biased;
                permit = &mut turn => break permit.map_err(|_| late())?,
                called_off = &mut called_off => return called_off.map(|()| Place::default()),
                _ = look.tick() => {}
            }
        };
        token.spend();
        Ok(Place { _permit: permit })
    }

    /// Waits for a token and then for a permit, if one is needed.
    async fn turn(&self, pause: Duration) -> Option<OwnedSemaphorePermit> {
        tokio::time::sleep(pause).await;
        // It is never closed.
        Arc::clone(self.places.as_ref()?).acquire_owned().await.ok()
    }

    /// A permit if one is to be had at once; none is needed where there is no limit.
    #[expect(clippy::option_option, reason = "whether there is a place, and whether a place needs a permit")]
    fn try_place(&self) -> Option<Option<OwnedSemaphorePermit>> {
        let Some(places) = &self.places else { return Some(None) };
        Arc::clone(places).try_acquire_owned().ok().map(Some)
    }

    fn join_queue(&self) -> Result<Waiting<'_>, Refusal> {
        let join = |waiting| (waiting < self.queue_size).then_some(waiting + 1);
        let joined = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, join);
        joined.map(|_| Waiting(self)).map_err(|_| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            Refusal::Busy { queue_size: self.queue_size }
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Token ===

impl<'a> Token<'a> {
    /// Of a rate, if there is one.
    fn take(rate: Option<&'a Rate>, now: Moment) -> Self {
        Self { rate, pause: rate.map_or(Duration::ZERO, |rate| rate.take(now)) }
    }

    /// The request begins.
    fn spend(mut self) {
        self.rate = None;
    }
}

impl Drop for Token<'_> {
    fn drop(&mut self) {
        if let Some(rate) = self.rate {
            rate.give_back();
        }
    }
}

// === impl Rate ===

impl Rate {
    fn new(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst, bucket: Mutex::new(Bucket { tokens: burst, at: Moment::default() }) }
    }

    /// Takes a token, if need be one that is yet to come; time until it is there.
    fn take(&self, now: Moment) -> Duration {
        let mut bucket = self.bucket.lock();
        bucket.fill(now, self);
        bucket.tokens -= 1.0;
        Duration::from_secs_f64((-bucket.tokens).max(0.0) / self.per_second)
    }

    fn give_back(&self) {
        let mut bucket = self.bucket.lock();
        bucket.tokens = (bucket.tokens + 1.0).min(self.burst);
    }
}

impl Bucket {
    fn fill(&mut self, now: Moment, rate: &Rate) {
        let passed = now.since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * rate.per_second).min(rate.burst);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment(Duration::from_millis(millis))
    }

    #[test]
    fn a_rate_lets_a_burst_begin_and_then_so_many_a_second() {
        let rate = Rate::new(2.0, 3.0);
        let taken: Vec<u128> = [0, 0, 0, 0, 0].map(|millis| rate.take(at(millis)).as_millis()).to_vec();
        assert_eq!(taken, [0, 0, 0, 500, 1000]);
        assert_eq!(rate.take(at(1000)).as_millis(), 500, "two have been promised the tokens of a second");
        assert_eq!(rate.take(at(3_600_000)).as_millis(), 0);
        assert_eq!(rate.take(at(0)).as_millis(), 0, "time does not go back");
    }

    #[test]
    fn who_does_not_begin_gives_its_token_back() {
        let rate = Rate::new(1.0, 1.0);
        Token::take(Some(&rate), at(0)).spend();
        for _ in 0..100 {
            assert_eq!(Token::take(Some(&rate), at(0)).pause.as_millis(), 1000);
        }
        Token::take(Some(&rate), at(0)).spend();
        assert_eq!(Token::take(Some(&rate), at(0)).pause.as_millis(), 2000, "spent is spent");
    }
}
