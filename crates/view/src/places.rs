//! Which track each thing of a sample stands on.

use rollscope_trace::{LegRole, SampleTrace, UnixNs};

use crate::tracks::Tracks;
use crate::workers::for_each_leg;

/// Lanes of a sample's row from the top: its requests, the legs of workers that do everything, the prefill legs,
/// the decode legs, the user's own spans.
pub(crate) const LANES: usize = 5;

/// An open span goes on.
const NEVER: UnixNs = UnixNs(i64::MAX);

/// The tracks of a sample's row.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) requests: Vec<u32>,
    /// Of each request.
    pub(crate) legs: Vec<Vec<u32>>,
    pub(crate) spans: Vec<u32>,
    /// Tracks of each lane.
    pub(crate) counts: [u32; LANES],
}

impl Places {
    pub(crate) fn of(sample: &SampleTrace) -> Self {
        let mut lanes: [Tracks; LANES] = Default::default();
        // Requests and spans are in order of their begin; legs of requests that overlap need not be.
        let requests = sample.requests.iter();
        let requests = requests.map(|request| lanes[0].place(request.arrival, request.ended_at())).collect();
        let mut ordered = Vec::new();
        for_each_leg(sample, |request, index, leg, times| {
            ordered.push((times, request as usize, index as usize, lane_of(leg.role)));
        });
        ordered.sort_unstable();
        let mut legs: Vec<Vec<u32>> =
            sample.requests.iter().map(|request| vec![0; request.legs.len()]).collect();
        for ((start, end), request, index, lane) in ordered {
            legs[request][index] = lanes[lane].place(start, end);
        }
        let spans = sample.spans.iter();
        let spans = spans
            .map(|span| lanes[LANES - 1].place(span.start, span.end.unwrap_or(NEVER).max(span.start)))
            .collect();
        Self { requests, legs, spans, counts: lanes.map(|lane| lane.count()) }
    }
}

/// Tracks of each lane of a sample's row.
pub(crate) fn track_counts(sample: &SampleTrace) -> [u32; LANES] {
    // As most are: one request, or none, with one leg of each role at most.
    let mut counts = [0; LANES];
    counts[0] = sample.requests.len() as u32;
    counts[LANES - 1] = sample.spans.len() as u32;
    for leg in sample.requests.iter().flat_map(|request| &request.legs) {
        counts[lane_of(leg.role)] += 1;
    }
    if counts.iter().all(|count| *count <= 1) { counts } else { Places::of(sample).counts }
}

/// The lane of a leg, within [`LANES`].
pub(crate) fn lane_of(role: LegRole) -> usize {
    match role {
        LegRole::Regular => 1,
        LegRole::Prefill => 2,
        LegRole::Decode => 3,
    }
}
