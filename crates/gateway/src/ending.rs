//! The end of the time that a gateway which is to end lets its requests have.
//!
//! What is under way then looks at it whenever it is polled, so that its client can be told why it is cut; whoever ends the gateway
//! has all connections' tasks look.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use crate::fault::Refusal;

/// Whether the time is over.
#[derive(Debug, Default)]
pub(crate) struct Ending(AtomicBool);

// === impl Ending ===

impl Ending {
    /// It is over from now on.
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The result of some work of a request, or the refusal of the request if the time is over.
    pub(crate) fn bound<'a, T>(
        &'a self,
        mut work: Pin<&'a mut impl Future<Output = T>>,
    ) -> impl Future<Output = Result<T, Refusal>> + 'a {
        poll_fn(move |context| {
            if self.has_begun() {
                return Poll::Ready(Err(Refusal::Ending));
            }
            work.as_mut().poll(context).map(Ok)
        })
    }
}
