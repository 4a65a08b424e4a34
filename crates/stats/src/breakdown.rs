//! Time divided into parts that sum to the whole.

use rollscope_trace::Nanos;

/// A part of a request's or a sample's time. No two parts overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// In the gateway, with no call to a worker under way: choosing, and writing the reply.
    Gateway,
    /// Calls to workers that were given up and tried again.
    EarlierTries,
    /// Waiting for a forward pass on a worker that does everything.
    Queue,
    /// The prefill worker had the request but could not queue it: no word from the decode worker, or no slot.
    PrefillBootstrapQueue,
    /// Waiting for a forward pass on the prefill worker.
    PrefillQueue,
    /// Computing the prompt.
    PrefillForward,
    /// The decode worker was waiting for the handshake or for memory.
    DecodePrealloc,
    /// The KV cache was on its way, and nothing else explains the wait for it.
    Transfer,
    /// Waiting for a forward pass on the decode worker.
    DecodeQueue,
    /// Generating.
    DecodeForward,
    /// Computing, where the worker does not tell the prompt from the generation.
    Forward,
    /// In a worker or on the way to it, and explained by nothing that it reported.
    Other,
    /// Of a sample: in the user's own code, with no request under way.
    UserCode,
    /// Of a sample: neither a request nor a span of the user's was under way.
    Between,
}

/// Time divided into parts. The parts sum to the whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    parts: [Nanos; Part::ALL.len()],
}

/// A row of a breakdown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Which part.
    pub part: Part,
    /// How long; never 0.
    pub time: Nanos,
    /// Share of the whole, from 0 to 1.
    pub share: f64,
}

// === impl Part ===

impl Part {
    /// All of them, in the order in which they come.
    pub const ALL: [Self; 14] = [
        Self::Gateway,
        Self::EarlierTries,
        Self::Queue,
        Self::PrefillBootstrapQueue,
        Self::PrefillQueue,
        Self::PrefillForward,
        Self::DecodePrealloc,
        Self::Transfer,
        Self::DecodeQueue,
        Self::DecodeForward,
        Self::Forward,
        Self::Other,
        Self::UserCode,
        Self::Between,
    ];

    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::EarlierTries => "earlier tries",
            Self::Queue => "queue",
            Self::PrefillBootstrapQueue => "prefill bootstrap queue",
            Self::PrefillQueue => "prefill queue",
            Self::PrefillForward => "prefill forward",
            Self::DecodePrealloc => "decode prealloc",
            Self::Transfer => "KV transfer",
            Self::DecodeQueue => "decode queue",
            Self::DecodeForward => "decode forward",
            Self::Forward => "forward",
            Self::Other => "unaccounted",
            Self::UserCode => "user code",
            Self::Between => "between requests",
        }
    }

    /// As a part of a metric's name: `kv_transfer`.
    pub fn key(self) -> String {
        self.name().to_lowercase().replace(' ', "_")
    }
}

// === impl Breakdown ===

impl Breakdown {
    /// The whole.
    pub fn total(&self) -> Nanos {
        self.parts.iter().fold(Nanos(0), |sum, part| sum.plus(*part))
    }

    /// One part.
    pub fn part(&self, part: Part) -> Nanos {
        self.parts[part as usize]
    }

    /// The parts that took any time, in the order in which they come.
    pub fn rows(&self) -> Vec<Row> {
        let total = self.total();
        let row = |part: Part| {
            let time = self.part(part);
            Row { part, time, share: time.0 as f64 / total.0.max(1) as f64 }
        };
        Part::ALL.into_iter().map(row).filter(|row| row.time.0 > 0).collect()
    }

    /// The parts of one percent and more, the largest first: `62% decode forward, 31% prefill queue`.
    pub fn shares(&self) -> String {
        let mut rows = self.rows();
        rows.sort_by_key(|row| std::cmp::Reverse(row.time));
        let shown = rows.iter().filter(|row| row.share >= 0.01);
        let shares: Vec<_> =
            shown.map(|row| format!("{:.0}% {}", row.share * 100.0, row.part.name())).collect();
        if shares.is_empty() { "nothing was measured".into() } else { shares.join(", ") }
    }

    /// [`Self::shares`] as a sentence.
    pub fn sentence(&self) -> String {
        format!("where the time went: {}", self.shares())
    }

    /// Adds to a part.
    pub(crate) fn add(&mut self, part: Part, time: Nanos) {
        let held = &mut self.parts[part as usize];
        *held = held.plus(time);
    }

    /// Adds each part of another.
    pub(crate) fn extend(&mut self, other: &Self) {
        for part in Part::ALL {
            self.add(part, other.part(part));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_the_largest_parts_first_and_nothing_below_a_percent() {
        let mut breakdown = Breakdown::default();
        assert_eq!(breakdown.sentence(), "where the time went: nothing was measured");
        breakdown.add(Part::Gateway, Nanos(4));
        breakdown.add(Part::DecodeForward, Nanos(620));
        breakdown.add(Part::PrefillQueue, Nanos(376));
        assert_eq!(breakdown.sentence(), "where the time went: 62% decode forward, 38% prefill queue");
        let parts: Vec<_> = breakdown.rows().iter().map(|row| row.part).collect();
        assert_eq!(parts, [Part::Gateway, Part::PrefillQueue, Part::DecodeForward]);
    }

    #[test]
    fn a_part_is_its_place_in_the_list_of_all() {
        assert!(Part::ALL.iter().enumerate().all(|(index, part)| *part as usize == index));
    }
}
