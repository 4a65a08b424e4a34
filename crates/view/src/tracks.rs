//! Tracks: where things that overlap in time stand one below the other.
//!
//! Each takes the topmost track that is free at its begin. What ends as the next begins leaves its track to it, and
//! what has no length takes none from anybody.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use rollscope_trace::UnixNs;

/// Gives out tracks to things in order of their begin.
#[derive(Debug, Default)]
pub(crate) struct Tracks {
    busy: BinaryHeap<Reverse<(UnixNs, u32)>>,
    free: BTreeSet<u32>,
    count: u32,
}

impl Tracks {
    /// The track of the next thing. It must not begin before the one before it.
    pub(crate) fn place(&mut self, start: UnixNs, end: UnixNs) -> u32 {
        while let Some(Reverse((ended, track))) = self.busy.peek().copied()
            && ended <= start
        {
            self.busy.pop();
            self.free.insert(track);
        }
        let track = self.free.pop_first().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        });
        self.busy.push(Reverse((end, track)));
        track
    }

    /// Tracks that were needed.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_stands_apart_and_free_tracks_are_taken_from_the_top() {
        for (things, expected) in [
            (vec![(0, 10), (10, 20), (20, 30)], vec![0, 0, 0]),
            (vec![(0, 10), (5, 20), (7, 8), (9, 12), (11, 13)], vec![0, 1, 2, 2, 0]),
            (vec![(0, 100), (1, 2), (3, 4)], vec![0, 1, 1]),
            (vec![(5, 5), (5, 9), (5, 6)], vec![0, 0, 1]),
            (vec![], vec![]),
        ] {
            let mut tracks = Tracks::default();
            let placed: Vec<u32> =
                things.iter().map(|(start, end)| tracks.place(UnixNs(*start), UnixNs(*end))).collect();
            assert_eq!(placed, expected, "{things:?}");
            let most = expected.iter().max().map_or(0, |most| most + 1);
            assert_eq!(tracks.count(), most);
        }
    }
}
