//! Whose forward passes are.

use std::collections::HashMap;

use rollscope_trace::{ForwardPass, WorkerRef};

/// The workers at endpoints, which not every pass names: one is heard at an address that somebody gave before its worker tells
/// of it, and another recorder may never learn whose it is. Nothing for an endpoint that is of several, as on several hosts.
pub(crate) struct Workers<'a>(HashMap<&'a str, Option<&'a WorkerRef>>);

// === impl Workers ===

impl<'a> Workers<'a> {
    pub(crate) fn of(passes: &'a [ForwardPass]) -> Self {
        let mut at = HashMap::new();
        for (worker, endpoint) in
            passes.iter().filter_map(|pass| Some((pass.worker.as_ref()?, &*pass.endpoint)))
        {
            let known = at.entry(endpoint).or_insert(Some(worker));
            if known.is_some_and(|known| known.url != worker.url) {
                *known = None;
            }
        }
        Self(at)
    }

    /// Whose a pass is, as it says itself or others from its endpoint do.
    pub(crate) fn at(&self, pass: &'a ForwardPass) -> Option<&'a WorkerRef> {
        let at_endpoint = || self.0.get(&*pass.endpoint).copied().flatten();
        pass.worker.as_ref().or_else(at_endpoint)
    }
}
