//! What the writing thread tells the other recorders of the run, and does about what they tell.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rollscope_run::{Presence, RunError};
use rollscope_trace::StepNumber;

use super::Writing;
use crate::sealing::Job;

// === impl Writing ===

impl Writing {
    /// After what is written was handed over, so that a step that is told not to go on any more can be read.
    pub(super) fn tell_peers(&mut self, live: &BTreeSet<StepNumber>, now: Instant) {
        let busy = self.steps.busy(live, now, self.superseded_after);
        let told = self.peers.tell(Presence { open: self.steps.open(), busy, leaving: false });
        self.told_or_troubled(told);
    }

    /// Steps of others that have gone are gone on with; what others have closed is.
    pub(super) fn look_at_peers(&mut self, now: Instant) {
        let left = self.peers.look();
        let left = self.told_or_troubled(left).unwrap_or_default();
        self.hear_peers(&left, now);
    }

    pub(super) fn hear_peers(&mut self, left: &BTreeMap<String, BTreeSet<StepNumber>>, now: Instant) {
        if !self.peers.has_met_any() {
            return;
        }
        if !left.is_empty() {
            // Of one that was killed nobody else seals the log.
            self.give(Job::Leftovers);
        }
        for presence in self.peers.live() {
            self.steps.heard_of(&presence.busy);
        }
        let closed = self.run.closed_steps();
        let closed = self.told_or_troubled(closed).unwrap_or_default();
        for step in left.values().flatten().filter(|step| !closed.contains(step)) {
            self.steps.adopt(*step, now);
        }
        for step in self.steps.open().into_iter().filter(|step| closed.contains(step)) {
            self.steps.closed_elsewhere(step, now);
        }
    }

    pub(super) fn told_or_troubled<T>(&mut self, outcome: Result<T, RunError>) -> Option<T> {
        let failed = |error: RunError| {
            // Once, since it is tried again all the time.
            if !std::mem::replace(&mut self.peers_troubled, true) {
                (self.on_trouble)(&error.into());
            }
        };
        outcome.map_err(failed).ok()
    }
}
