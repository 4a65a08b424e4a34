//! What the scheduler's thread did when, kept while somebody asks for it.

use tokio::sync::oneshot;

use crate::clock::{Clock, Stamp};
use crate::sim::Load;

/// Something that the thread did, from one moment to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) work: Work,
    pub(crate) begin: Stamp,
    pub(crate) end: Stamp,
}

/// The parts of a turn, in their order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Work {
    /// Commands and what peers sent were taken in.
    Receive,
    /// Requests moved from queue to queue.
    Advance,
    /// The model computed.
    Forward(Load),
    /// Tokens were chosen and told.
    Harvest,
}

/// The spans of a profile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recording {
    pub(crate) spans: Vec<Span>,
    /// Spans that did not fit.
    pub(crate) missed: u64,
}

/// Records if it is told to.
#[derive(Debug, Default)]
pub(super) struct Profiler {
    active: Option<Active>,
}

#[derive(Debug)]
struct Active {
    recording: Recording,
    /// Forward passes until it ends by itself.
    steps_left: Option<u64>,
    done: oneshot::Sender<Recording>,
}

/// 12 MiB of spans; a turn has four.
const MAX_SPANS: usize = 1 << 18;

// === impl Profiler ===

impl Profiler {
    /// Begins anew; `done` gets what was recorded after so many forward passes, or at [`Profiler::stop`].
    pub(super) fn start(&mut self, steps: Option<u64>, done: oneshot::Sender<Recording>) {
        self.active = Some(Active { recording: Recording::default(), steps_left: steps, done });
    }

    pub(super) fn stop(&mut self) {
        if let Some(Active { recording, done, .. }) = self.active.take() {
            super::answer(done, recording);
        }
    }

    /// The moment at which something begins, if that is recorded.
    pub(super) fn begin(&self, clock: &Clock) -> Option<Stamp> {
        self.active.is_some().then(|| clock.now())
    }

    /// Something has ended that began at a moment.
    pub(super) fn end(&mut self, clock: &Clock, work: Work, begin: Option<Stamp>) {
        let (Some(active), Some(begin)) = (&mut self.active, begin) else { return };
        if active.recording.spans.len() < MAX_SPANS {
            active.recording.spans.push(Span { work, begin, end: clock.now() });
        } else {
            active.recording.missed += 1;
        }
        // A step ends with what is made of it.
        if work == Work::Harvest
            && let Some(left) = &mut active.steps_left
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.stop();
            }
        }
    }
}
