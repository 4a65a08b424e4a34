//! Forward passes that wait for being written: it is not known yet which step goes on, or the log does not take them.

use std::collections::VecDeque;

use rollscope_trace::ForwardPass;

/// Keeps the latest passes.
#[derive(Debug, Default)]
pub(crate) struct WaitingPasses(VecDeque<Box<ForwardPass>>);

/// Passes that wait.
const LIMIT: usize = 16_384;

// === impl WaitingPasses ===

impl WaitingPasses {
    /// Gives the oldest, where there is no room for it any more.
    #[must_use]
    pub(crate) fn push(&mut self, pass: Box<ForwardPass>) -> Option<Box<ForwardPass>> {
        self.0.push_back(pass);
        if self.0.len() > LIMIT { self.0.pop_front() } else { None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, in the order in which they came.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Box<ForwardPass>> + use<> {
        std::mem::take(&mut self.0).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use rollscope_trace::UnixNs;

    use super::*;

    #[test]
    fn the_latest_are_kept_and_the_others_given_back() {
        let mut waiting = WaitingPasses::default();
        let pass = |number| Box::new(ForwardPass::new("a", number, UnixNs(0)));
        let gone = (0..LIMIT as u64 + 3).filter_map(|number| waiting.push(pass(number)));
        assert_eq!(gone.map(|pass| pass.counter_id).collect::<Vec<_>>(), [0, 1, 2]);
        let kept: Vec<_> = waiting.take().collect();
        assert_eq!((kept.len(), kept[0].counter_id), (LIMIT, 3));
        assert!(waiting.is_empty());
    }
}
