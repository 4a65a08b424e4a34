//! Forward passes that are heard of before it is known which step goes on.

use std::collections::VecDeque;

use rollscope_trace::ForwardPass;

/// Keeps the latest passes. What there is no room for is counted as lost before the next pass of its stream.
#[derive(Debug, Default)]
pub(crate) struct EarlyPasses(VecDeque<Box<ForwardPass>>);

/// Passes that wait for the first step.
const LIMIT: usize = 16_384;

// === impl EarlyPasses ===

impl EarlyPasses {
    pub(crate) fn push(&mut self, pass: Box<ForwardPass>) {
        self.0.push_back(pass);
        if self.0.len() <= LIMIT {
            return;
        }
        let Some(oldest) = self.0.pop_front() else { return };
        let is_next = |pass: &&mut Box<ForwardPass>| {
            (&pass.endpoint, pass.life) == (&oldest.endpoint, oldest.life) && pass.dp_rank == oldest.dp_rank
        };
        if let Some(next) = self.0.iter_mut().find(is_next) {
            next.lost_before = next.lost_before.saturating_add(oldest.lost_before).saturating_add(1);
        }
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
    fn the_latest_are_kept_and_the_others_counted() {
        let mut early = EarlyPasses::default();
        for number in 0..LIMIT as u64 + 10 {
            // Two streams: of the one every fourth pass, of the other the rest.
            let endpoint = if number % 4 == 0 { "a" } else { "b" };
            early.push(Box::new(ForwardPass {
                lost_before: u64::from(number == 1),
                ..ForwardPass::new(endpoint, number, UnixNs(0))
            }));
        }
        let kept: Vec<_> = early.take().collect();
        assert_eq!((kept.len(), kept[0].counter_id), (LIMIT, 10));
        // Dropped were 0, 4 and 8 of the one, seven of the other, before whose first one was lost.
        let lost = |endpoint: &str| -> u64 {
            kept.iter().filter(|pass| &*pass.endpoint == endpoint).map(|pass| pass.lost_before).sum()
        };
        assert_eq!((lost("a"), lost("b")), (3, 8));
        assert!(early.is_empty());
    }
}
