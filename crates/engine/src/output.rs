//! What a request has produced so far: written by the scheduler, read by whoever answers the client.
//!
//! The scheduler appends to one shared record and never waits for a reader; a slow reader sees the latest state and
//! misses only the states between. So the record is bounded by the request's own limits, whatever the client does. A
//! reader that goes away before the end leaves word, and the scheduler ends the request.
//!
//! A reader is woken only by what it waits for: waking a task costs the scheduler more than choosing a token, and a reply
//! that goes out whole needs it once, not once a token.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::scheduler::Waker;
use crate::stamps::Stamps;

/// The scheduler's end. Dropped before the request has ended, it ends it as a failure of the server.
#[derive(Debug)]
pub(crate) struct Publisher {
    shared: Arc<Shared>,
}

/// The answering end. Dropped before the request has ended, it cancels it.
#[derive(Debug)]
pub(crate) struct Listener {
    shared: Arc<Shared>,
    seen: u64,
}

/// A request's output, its measurements and its end.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    /// Decoded output that later tokens will not change.
    pub(crate) text: String,
    pub(crate) output_ids: Vec<u32>,
    /// Of the prompt, from the position asked for; the first has no log-probability, as what precedes it is not looked at.
    pub(crate) input_logprobs: Vec<(Option<f32>, u32)>,
    pub(crate) input_top_logprobs: Vec<Option<Vec<(f32, u32)>>>,
    /// By output token, if asked for.
    pub(crate) output_logprobs: Vec<f32>,
    pub(crate) output_top_logprobs: Vec<Vec<(f32, u32)>>,
    pub(crate) cached_tokens: usize,
    /// Times that it gave its pages back and was computed again.
    pub(crate) retractions: usize,
    /// Told at the end, if asked for and a filter is set.
    pub(crate) kept: Option<KeptIds>,
    pub(crate) stamps: Stamps,
    /// What the weights are called that the latest of it was computed with; `None` before anything was.
    pub(crate) weight_version: Option<Arc<str>>,
    /// How it ended; `None` while it lives.
    pub(crate) finish: Option<Finish>,
}

/// The tokens that the filters kept at each output token.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KeptIds {
    pub(crate) ids: Vec<u32>,
    /// Where in `ids` each output token's begin, and after the last one's.
    pub(crate) offsets: Vec<u32>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Finish {
    /// A stop token.
    StopToken(u32),
    /// A stop string.
    StopText(String),
    /// A limit, tokens; 0 on a prefill server, which is done when the transfer is.
    Length(usize),
    /// Anything else.
    Abort(Abort),
}

/// Why a request was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Abort {
    pub(crate) message: String,
    /// The HTTP status that it stands for; none for one that the client asked for.
    pub(crate) status: Option<u16>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    ended: Notify,
    cancelled: AtomicBool,
    waker: Waker,
}

#[derive(Debug)]
struct State {
    version: u64,
    progress: Progress,
}

/// Both ends of a request's output.
pub(crate) fn output(stamps: Stamps, waker: Waker) -> (Publisher, Listener) {
    let progress = Progress {
        text: String::new(),
        output_ids: Vec::new(),
        input_logprobs: Vec::new(),
        input_top_logprobs: Vec::new(),
        output_logprobs: Vec::new(),
        output_top_logprobs: Vec::new(),
        cached_tokens: 0,
        retractions: 0,
        kept: None,
        stamps,
        weight_version: None,
        finish: None,
    };
    let shared = Arc::new(Shared {
        state: Mutex::new(State { version: 0, progress }),
        changed: Notify::new(),
        ended: Notify::new(),
        cancelled: AtomicBool::new(false),
        waker,
    });
    (Publisher { shared: Arc::clone(&shared) }, Listener { shared, seen: 0 })
}

// === impl Publisher ===

impl Publisher {
    /// Changes the record and tells the reader. After the end nothing changes.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Progress)) {
        let mut state = self.shared.state.lock();
        if state.progress.finish.is_none() {
            change(&mut state.progress);
            state.version += 1;
            let is_end = state.progress.finish.is_some();
            drop(state);
            self.shared.changed.notify_one();
            if is_end {
                self.shared.ended.notify_one();
            }
        }
    }

    pub(crate) fn read<R>(&self, read: impl FnOnce(&Progress) -> R) -> R {
        read(&self.shared.state.lock().progress)
    }

    /// Whether nobody waits for the output any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Relaxed)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.update(|progress| {
            progress.finish = Some(Finish::Abort(Abort::failure("the engine's scheduler has stopped")));
        });
    }
}

// === impl KeptIds ===

impl KeptIds {
    /// Of no token.
    pub(crate) fn new() -> Self {
        Self { ids: Vec::new(), offsets: vec![0] }
    }

    /// Takes those of the next token.
    pub(crate) fn push(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
        self.offsets.push(self.ids.len() as u32);
    }
}

// === impl Listener ===

impl Listener {
    /// Waits until the record has changed since the last call.
    pub(crate) async fn changed(&mut self) {
        loop {
            let version = self.shared.state.lock().version;
            if version != self.seen {
                self.seen = version;
                return;
            }
            self.shared.changed.notified().await;
        }
    }

    /// Waits for the end, whatever comes before.
    pub(crate) async fn finished(&self) {
        while self.read(|progress| progress.finish.is_none()) {
            self.shared.ended.notified().await;
        }
    }

    pub(crate) fn read<R>(&self, read: impl FnOnce(&Progress) -> R) -> R {
        read(&self.shared.state.lock().progress)
    }

    pub(crate) fn snapshot(&self) -> Progress {
        self.read(Progress::clone)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.read(|progress| progress.finish.is_none()) {
            self.shared.cancelled.store(true, Ordering::Relaxed);
            self.shared.waker.wake();
        }
    }
}

// === impl Abort ===

impl Abort {
    /// The client's fault.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: Some(400) }
    }

    /// This server's fault, or its peer's.
    pub(crate) fn failure(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: Some(500) }
    }

    /// It took too long.
    pub(crate) fn timed_out(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: Some(504) }
    }

    /// Not now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: Some(503) }
    }

    /// Someone asked for it. What is said then goes by where the request is found, in SGLang's words; these are for one that runs.
    pub(crate) fn asked_for() -> Self {
        Self { message: "Aborted".to_owned(), status: None }
    }

    /// The same where the request waits to be computed, for the first time or again.
    pub(crate) fn while_waiting(&self) -> Self {
        self.or_if_asked_for("Abort in waiting queue", None)
    }

    /// The same where its transfer is not over, which fails by that: to the other server's client, and so to this one's.
    pub(crate) fn while_transferred(&self) -> Self {
        self.or_if_asked_for("Aborted by AbortReq.", Some(500))
    }

    fn or_if_asked_for(&self, message: &str, status: Option<u16>) -> Self {
        match self.status {
            None => Self { message: message.to_owned(), status },
            Some(_) => self.clone(),
        }
    }

    /// What the other half of a pair ends with. What was asked for here was not asked for there.
    pub(crate) fn status_of_peer(&self) -> u16 {
        self.status.unwrap_or(500)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Wake};

    use super::*;
    use crate::clock::Clock;

    /// Counts how often a task would have been woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn ends() -> (Publisher, Listener) {
        output(Stamps::new(Clock::new().now()), Waker::of_current_thread())
    }

    #[tokio::test]
    async fn a_slow_reader_sees_the_latest_state_and_the_end() {
        let (publisher, mut listener) = ends();
        for token in 0..3 {
            publisher.update(|progress| progress.output_ids.push(token));
        }
        listener.changed().await;
        assert_eq!(listener.snapshot().output_ids, [0, 1, 2]);
        publisher.update(|progress| progress.finish = Some(Finish::Length(3)));
        publisher.update(|progress| progress.output_ids.clear());
        listener.finished().await;
        assert_eq!(listener.snapshot().output_ids, [0, 1, 2]);
    }

    #[test]
    fn a_reader_is_woken_only_by_what_it_waits_for() {
        for (for_the_end, expected) in [(true, [0, 0, 1]), (false, [1, 1, 1])] {
            let (publisher, mut listener) = ends();
            let count = Arc::new(Wakes::default());
            let waker = Arc::clone(&count).into();
            let mut wait = pin!(async {
                if for_the_end { listener.finished().await } else { listener.changed().await }
            });
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let mut seen = Vec::new();
            for finish in [None, None, Some(Finish::Length(2))] {
                publisher.update(|progress| progress.finish = finish);
                seen.push(count.0.load(Ordering::Relaxed));
            }
            assert_eq!(seen, expected, "waits for the end: {for_the_end}");
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        }
    }

    #[tokio::test]
    async fn either_end_learns_that_the_other_has_gone() {
        let (publisher, listener) = ends();
        assert!(!publisher.is_cancelled());
        drop(listener);
        assert!(publisher.is_cancelled());

        let (publisher, listener) = ends();
        drop(publisher);
        listener.finished().await;
        assert!(
            matches!(listener.snapshot().finish, Some(Finish::Abort(abort)) if abort.status == Some(500))
        );
    }
}
