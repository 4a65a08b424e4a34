//! The workers of a step, and the legs that each served.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use rollscope_stats::reached;
use rollscope_trace::{Leg, LegRole, Measure, SampleTrace, UnixNs, WorkerRef};

use crate::step::StepView;
use crate::tracks::Tracks;

/// A worker, or one data-parallel rank of it where the worker names its ranks.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) url: Arc<str>,
    pub(crate) role: LegRole,
    pub(crate) rank: Option<u32>,
    /// In order of their begin.
    pub(crate) legs: Vec<LegPlace>,
    /// Tracks that the legs need.
    pub(crate) tracks: u32,
}

/// A leg, and where it stands among those of its worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LegPlace {
    pub(crate) row: u32,
    pub(crate) request: u32,
    pub(crate) leg: u32,
    pub(crate) track: u32,
    start: UnixNs,
    end: UnixNs,
}

/// All of them: those that do everything, then prefill, then decode, each by URL and rank.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(crate) list: Vec<Worker>,
    /// By URL.
    index: HashMap<Arc<str>, Numbers, RandomState>,
}

/// Where forward passes of a step stand, as they name their workers.
#[derive(Debug)]
pub(crate) struct Fleet {
    origin: UnixNs,
    /// By server.
    ranks: HashMap<Box<str>, Numbers>,
}

/// The ranks that are known at one place, each with its worker's number.
type Numbers = Vec<(Option<u32>, u32)>;

// === impl Workers ===

impl Workers {
    pub(crate) fn of(step: &StepView) -> Self {
        let mut numbers: HashMap<(LegRole, &str, Option<u32>), usize, RandomState> = HashMap::default();
        let mut list: Vec<Worker> = Vec::new();
        let samples: Vec<_> = step.samples().collect();
        for (row, sample) in reached(&samples).enumerate() {
            for_each_leg(sample, |request, index, leg, (start, end)| {
                let rank = rank_of(leg);
                let number = *numbers.entry((leg.role, &leg.worker.url, rank)).or_insert(list.len());
                if number == list.len() {
                    list.push(Worker::new(leg.worker.url.clone(), leg.role, rank));
                }
                let place = LegPlace { row: row as u32, request, leg: index, track: 0, start, end };
                list[number].legs.push(place);
            });
        }
        list.sort_by(|a, b| (a.role, &a.url, a.rank).cmp(&(b.role, &b.url, b.rank)));
        let mut index: HashMap<Arc<str>, Numbers, RandomState> = HashMap::default();
        for (worker, number) in list.iter_mut().zip(0..) {
            worker.place_legs();
            let ranks = index.entry(worker.url.clone()).or_default();
            ranks.retain(|(rank, _)| *rank != worker.rank);
            ranks.push((worker.rank, number));
        }
        Self { list, index }
    }

    /// The number of the worker of a leg; −1 for none, as in a column.
    pub(crate) fn number_of(&self, leg: Option<&Leg>) -> i32 {
        let number_of = |leg: &Leg| {
            let (ranks, own) = (self.index.get(&*leg.worker.url)?, rank_of(leg));
            ranks.iter().find(|(rank, _)| *rank == own).map(|(_, number)| *number as i32)
        };
        leg.and_then(number_of).unwrap_or(-1)
    }
}

// === impl Fleet ===

impl Fleet {
    /// Of the workers in order of their numbers: their URLs, and their ranks where they name them.
    pub(crate) fn of<'a>(origin: UnixNs, workers: impl Iterator<Item = (&'a str, Option<u32>)>) -> Self {
        let mut ranks: HashMap<Box<str>, Numbers> = HashMap::new();
        for ((url, rank), number) in workers.zip(0..) {
            let (server, own) = WorkerRef::server_and_rank(url);
            ranks.entry(server.into()).or_default().push((rank.or(own), number));
        }
        Self { origin, ranks }
    }

    /// The number of the worker at this server; of its rank, where its legs say which they ran on or ranks are workers of
    /// their own.
    pub(crate) fn number_at(&self, server: &str, rank: u32) -> Option<u32> {
        let ranks = self.ranks.get(server)?;
        let number_of = |rank| ranks.iter().find(|(of, _)| *of == rank).map(|(_, number)| *number);
        number_of(Some(rank)).or_else(|| number_of(None))
    }

    /// Nanoseconds from the origin, as are all times of the answers.
    pub(crate) fn since_origin(&self, at: UnixNs) -> f64 {
        at.0.saturating_sub(self.origin.0) as f64
    }
}

// === impl Worker ===

impl Worker {
    fn new(url: Arc<str>, role: LegRole, rank: Option<u32>) -> Self {
        Self { url, role, rank, legs: Vec::new(), tracks: 0 }
    }

    /// Orders its legs and says on which track each stands.
    fn place_legs(&mut self) {
        self.legs.sort_unstable_by_key(|leg| (leg.start, leg.end, leg.row, leg.request, leg.leg));
        let mut tracks = Tracks::default();
        for leg in &mut self.legs {
            leg.track = tracks.place(leg.start, leg.end);
        }
        self.tracks = tracks.count();
    }
}

/// Every leg of a sample with its request's and its own number, and when it was on the way.
pub(crate) fn for_each_leg<'a>(
    sample: &'a SampleTrace,
    mut take: impl FnMut(u32, u32, &'a Leg, (UnixNs, UnixNs)),
) {
    for (request, profile) in sample.requests.iter().enumerate() {
        for (index, leg) in profile.legs.iter().enumerate() {
            let start = profile.arrival.after(leg.dispatch);
            let end = profile.arrival.after(leg.end).max(start);
            take(request as u32, index as u32, leg, (start, end));
        }
    }
}

fn rank_of(leg: &Leg) -> Option<u32> {
    leg.report.measures.good(Measure::DpRank).map(|rank| rank as u32)
}
