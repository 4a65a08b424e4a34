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
        if oldest.is_rest() {
            return;
        }
        let is_next = |pass: &&mut Box<ForwardPass>| {
            let is_of_life = (pass.dp_rank, pass.life) == (oldest.dp_rank, oldest.life);
            let is_of_publisher = (&pass.endpoint, &pass.worker_id) == (&oldest.endpoint, &oldest.worker_id);
            !pass.is_rest() && is_of_life && is_of_publisher
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
    use rollscope_trace::{Nanos, UnixNs};

    use super::*;

    #[test]
    fn the_latest_are_kept_and_the_others_counted() {
        let mut early = EarlyPasses::default();
        for number in 0..LIMIT as u64 + 10 {
            // Two streams: of the one every fourth pass, of the other the rest.
            let endpoint = if number % 4 == 0 { "a" } else { "b" };
            early.push(Box::new(ForwardPass {
                lost_before: u64::from(number == 1),
                wall: Nanos(1),
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

    #[test]
    fn a_rest_is_no_pass_that_is_lost_or_tells_of_lost_ones() {
        let mut early = EarlyPasses::default();
        let pass =
            |number: u64, wall| ForwardPass { wall: Nanos(wall), ..ForwardPass::new("a", number, UnixNs(0)) };
        // A rest, a pass, another rest, and as many passes as there is room for, before which the first three go.
        for number in 0..LIMIT as u64 + 3 {
            early.push(Box::new(pass(number, u64::from(number != 0 && number != 2))));
        }
        let kept: Vec<_> = early.take().collect();
        assert_eq!((kept.len(), kept[0].counter_id), (LIMIT, 3));
        assert_eq!(kept.iter().map(|pass| pass.lost_before).sum::<u64>(), 1);
        let mut early = EarlyPasses::default();
        early.push(Box::new(pass(0, 1)));
        early.push(Box::new(pass(1, 0)));
        for number in 2..=LIMIT as u64 {
            early.push(Box::new(pass(number, 1)));
        }
        let kept: Vec<_> = early.take().collect();
        assert_eq!((kept[0].lost_before, kept[1].lost_before), (0, 1), "a rest does not say what was lost");
    }
}
