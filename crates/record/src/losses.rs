//! Forward passes that the run did not get, until the next pass of their stream tells of them.

use std::collections::BTreeMap;

use rollscope_trace::{ForwardPass, UnixNs};

/// Passes by the stream that they are of.
#[derive(Debug, Default)]
pub(crate) struct StreamCounts(BTreeMap<Stream, Count>);

/// A publisher in one of its lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stream {
    endpoint: Box<str>,
    worker_id: Box<str>,
    dp_rank: u32,
    life: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    passes: u64,
    /// When the last of them was heard.
    heard: UnixNs,
}

/// Streams that are kept at most: those that were heard last, as publishers that are gone never ask for theirs.
const MAX_STREAMS: usize = 4096;

// === impl StreamCounts ===

impl StreamCounts {
    /// Adds passes of a stream, the last of which was heard then.
    pub(crate) fn add(&mut self, stream: Stream, passes: u64, heard: UnixNs) {
        if self.0.len() >= MAX_STREAMS && !self.0.contains_key(&stream) {
            let longest_silent = self.0.iter().min_by_key(|(_, count)| count.heard);
            if let Some(gone) = longest_silent.map(|(stream, _)| stream.clone()) {
                self.0.remove(&gone);
            }
        }
        let count = self.0.entry(stream).or_default();
        count.passes = count.passes.saturating_add(passes);
        count.heard = count.heard.max(heard);
    }

    pub(crate) fn add_all(&mut self, other: Self) {
        other.0.into_iter().for_each(|(stream, count)| self.add(stream, count.passes, count.heard));
    }

    /// How many there are of a stream, which are none from now on.
    pub(crate) fn take(&mut self, stream: &Stream) -> u64 {
        self.0.remove(stream).map_or(0, |count| count.passes)
    }
}

// === impl Stream ===

impl Stream {
    pub(crate) fn of(pass: &ForwardPass) -> Self {
        let (endpoint, worker_id) = (pass.endpoint.clone(), pass.worker_id.clone());
        Self { endpoint, worker_id, dp_rank: pass.dp_rank, life: pass.life }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_that_was_silent_longest_makes_room() {
        let stream = |life| Stream::of(&ForwardPass { life, ..ForwardPass::new("a", 0, UnixNs(0)) });
        let most = MAX_STREAMS as u32;
        let mut counts = StreamCounts::default();
        for life in 0..most {
            counts.add(stream(life), 1, UnixNs(life.into()));
        }
        counts.add(stream(0), 2, UnixNs(most.into()));
        counts.add(stream(most), 1, UnixNs(most.into()));
        assert_eq!([0, 1, 2, most].map(|life| counts.take(&stream(life))), [3, 0, 1, 1]);
        assert_eq!(counts.take(&stream(0)), 0);
    }
}
