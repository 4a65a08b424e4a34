//! Steps that are read from elsewhere, and shown as far as they have been read.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rollscope_trace::{StepNumber, StepTrace};

use crate::step::{SharedStep, StepView};
use crate::tail::StepState;

/// Steps that are in no run's folder. Whoever reads them holds one of these, the viewer a clone of it.
#[derive(Clone, Debug, Default)]
pub struct Given(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    steps: BTreeMap<StepNumber, (StepState, SharedStep)>,
    is_reading: bool,
    trouble: Option<String>,
}

/// The first version of a step; not that of one that was sealed, since a run's folder has nothing of these.
const FIRST_VERSION: u64 = 2;

// === impl Given ===

impl Given {
    /// Steps of which more may come, until [`Self::end`].
    pub fn reading() -> Self {
        Self(Arc::new(Mutex::new(Held { is_reading: true, ..Held::default() })))
    }

    /// Shows a step, in place of what was known of it before.
    pub fn put(&self, trace: StepTrace) {
        let mut state = StepState {
            step: trace.step,
            version: FIRST_VERSION,
            requests: trace.requests().count() as u64,
            samples: trace.samples.len() as u64,
            user_spans: trace.samples.iter().map(|sample| sample.spans.len() as u64).sum(),
            passes: 0,
            closed: trace.close.map(|close| close.reason),
        };
        let view = Arc::new(StepView::new(trace));
        let mut held = self.0.lock();
        if let Some((before, _)) = held.steps.get(&state.step) {
            state.version = before.version + 1;
        }
        held.steps.insert(state.step, (state, view));
    }

    /// Tells that nothing more comes, and in a sentence why, where that is not all that there is.
    pub fn end(&self, trouble: Option<String>) {
        let mut held = self.0.lock();
        held.is_reading = false;
        held.trouble = trouble;
    }

    pub(crate) fn is_reading(&self) -> bool {
        self.0.lock().is_reading
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.0.lock().trouble.clone()
    }

    pub(crate) fn states(&self) -> Vec<StepState> {
        self.0.lock().steps.values().map(|(state, _)| *state).collect()
    }

    pub(crate) fn state(&self, step: StepNumber) -> Option<StepState> {
        self.0.lock().steps.get(&step).map(|(state, _)| *state)
    }

    pub(crate) fn step(&self, step: StepNumber) -> Option<SharedStep> {
        self.0.lock().steps.get(&step).map(|(_, view)| view.clone())
    }
}
