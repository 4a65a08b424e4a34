//! When something that comes in pieces is given up: at a time of its own, or when it pauses for too long.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

/// When something is given up. It takes one timer, and none if nothing is waited for.
#[derive(Debug)]
pub(crate) struct Deadline {
    at: Instant,
    limit: Duration,
    timer: Option<Timer>,
}

/// A timer, be it one that was set for something else: it goes off too early then, or is set anew. As a rule the former,
/// since limits are long, so that one that is kept costs next to nothing.
pub(crate) type Timer = Pin<Box<Sleep>>;

// === impl Deadline ===

impl Deadline {
    pub(crate) fn after(begin: Instant, limit: Duration) -> Self {
        Self { at: begin + limit, limit, timer: None }
    }

    /// With a timer that somebody else no longer needs, if there is one.
    pub(crate) fn with_timer(self, timer: Option<Timer>) -> Self {
        Self { timer, ..self }
    }

    /// Gives the timer up, if it took one.
    pub(crate) fn take_timer(&mut self) -> Option<Timer> {
        self.timer.take()
    }

    /// Whether its own time is over.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }

    /// The result of some work, or else the limit within which it is not there: the leg's, or its own.
    ///
    /// The work stays where it is, here and wherever a future of a request is awaited with something else: moved into
    /// another it would take its room twice, at each level.
    pub(crate) fn bound<'a, T>(
        &'a mut self,
        mut work: Pin<&'a mut impl Future<Output = T>>,
        own_limit: Option<Duration>,
    ) -> impl Future<Output = Result<T, Duration>> {
        let mut chosen = None;
        poll_fn(move |context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(done));
            }
            let (at, limit) = *chosen.get_or_insert_with(|| self.sooner(own_limit));
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at.into())));
            // As a rule it was set for an earlier wait, and goes off too early rather than being set anew each time.
            if timer.deadline() > at.into() {
                timer.as_mut().reset(at.into());
            }
            while timer.as_mut().poll(context).is_ready() {
                if Instant::now() >= at {
                    return Poll::Ready(Err(limit));
                }
                timer.as_mut().reset(at.into());
            }
            Poll::Pending
        })
    }

    /// When a wait that begins now is given up, and for which limit.
    fn sooner(&self, own_limit: Option<Duration>) -> (Instant, Duration) {
        let own = own_limit.map(|limit| (Instant::now() + limit, limit));
        own.filter(|(at, _)| *at < self.at).unwrap_or((self.at, self.limit))
    }
}
