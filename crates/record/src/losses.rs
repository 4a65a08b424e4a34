//! Forward passes that the run did not get, until the next pass of their stream tells of them.

use std::collections::BTreeMap;

use rollscope_trace::ForwardPass;

/// Passes by the stream that they are of.
#[derive(Debug, Default)]
pub(crate) struct StreamCounts(BTreeMap<Stream, u64>);

/// A publisher in one of its lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stream {
    endpoint: Box<str>,
    worker_id: Box<str>,
    dp_rank: u32,
    life: u32,
}

/// Streams that are kept at most; those of publishers that are gone are never asked for.
const MAX_STREAMS: usize = 4096;

// === impl StreamCounts ===

impl StreamCounts {
    pub(crate) fn add(&mut self, stream: Stream, passes: u64) {
        if self.0.len() >= MAX_STREAMS && !self.0.contains_key(&stream) {
            self.0.pop_first();
        }
        let count = self.0.entry(stream).or_default();
        *count = count.saturating_add(passes);
    }

    pub(crate) fn add_all(&mut self, other: Self) {
        other.0.into_iter().for_each(|(stream, passes)| self.add(stream, passes));
    }

    /// How many there are of a stream, which are none from now on.
    pub(crate) fn take(&mut self, stream: &Stream) -> u64 {
        self.0.remove(stream).unwrap_or(0)
    }
}

// === impl Stream ===

impl Stream {
    pub(crate) fn of(pass: &ForwardPass) -> Self {
        let (endpoint, worker_id) = (pass.endpoint.clone(), pass.worker_id.clone());
        Self { endpoint, worker_id, dp_rank: pass.dp_rank, life: pass.life }
    }
}
