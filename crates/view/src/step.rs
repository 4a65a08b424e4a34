//! A step as the page asks for it: read once; each answer is made when it is first wanted, and kept.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use parking_lot::Mutex;
use rollscope_stats::{StepNumbers, step_numbers};
use rollscope_trace::{Nanos, SampleTrace, StepTrace, UnixNs};

use crate::details::SampleDetails;
use crate::latest::Latest;
use crate::numbers::NumbersAnswer;
use crate::search::{Matches, Texts};
use crate::sight::{self, Window};
use crate::table;
use crate::tile;
use crate::workers::{Fleet, Workers};

/// Requests and spans of the user's of a step that is read: it is read into memory, which takes six kilobytes and a tenth of a
/// millisecond for each request with its spans.
pub(crate) const MAX_RECORDS: u64 = 400_000;

/// Answers that were asked for last are held as far as they fit into this.
const ANSWERS_BYTES: usize = 256 << 20;

/// Spans of the user's that lie further from the step's requests than this, or than the step is long, do not
/// widen the range that is shown first: the clock that made them is off.
const FAR_OFF: Nanos = Nanos(60_000_000_000);

/// A step at one version, with the answers that were made of it.
#[derive(Debug)]
pub(crate) struct StepView {
    trace: StepTrace,
    /// The samples by row: those of one group side by side, groups in order of their first events.
    rows: Vec<u32>,
    /// What times are counted from.
    origin: UnixNs,
    /// First and last event; nothing when nothing has happened.
    extent: Option<(UnixNs, UnixNs)>,
    numbers: OnceLock<StepNumbers>,
    workers: OnceLock<Workers>,
    texts: OnceLock<Texts>,
    /// What was asked for last.
    answers: Mutex<Latest<Wanted, Bytes>>,
}

/// An answer about a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    /// The numbers, as JSON.
    Numbers,
    /// The samples, as columns.
    Table,
    /// Spans of the samples of a tile, as columns.
    SampleTile(u32),
    /// Spans of the legs on a worker, as columns.
    WorkerTile(u32),
    /// Attributes of the spans of a sample, as JSON.
    Sample(u32),
}

// === impl StepView ===

impl StepView {
    pub(crate) fn new(trace: StepTrace) -> Self {
        Self {
            rows: by_group(&trace),
            origin: origin(&trace),
            extent: extent(&trace),
            trace,
            numbers: OnceLock::new(),
            workers: OnceLock::new(),
            texts: OnceLock::new(),
            answers: Mutex::default(),
        }
    }

    /// The same of a step whose numbers have been computed.
    pub(crate) fn with_numbers(trace: StepTrace, numbers: StepNumbers) -> Self {
        Self { numbers: numbers.into(), ..Self::new(trace) }
    }

    pub(crate) fn trace(&self) -> &StepTrace {
        &self.trace
    }

    /// Nanoseconds from the origin, as are all times of the answers.
    pub(crate) fn since_origin(&self, at: UnixNs) -> f64 {
        at.0.saturating_sub(self.origin.0) as f64
    }

    pub(crate) fn origin(&self) -> UnixNs {
        self.origin
    }

    pub(crate) fn extent(&self) -> Option<(UnixNs, UnixNs)> {
        self.extent
    }

    /// The samples in the order of their rows.
    pub(crate) fn samples(&self) -> impl ExactSizeIterator<Item = &SampleTrace> {
        self.rows.iter().map(|index| &self.trace.samples[*index as usize])
    }

    pub(crate) fn sample(&self, row: u32) -> Option<&SampleTrace> {
        self.rows.get(row as usize).map(|index| &self.trace.samples[*index as usize])
    }

    pub(crate) fn workers(&self) -> &Workers {
        self.workers.get_or_init(|| Workers::of(self))
    }

    /// Where forward passes stand.
    pub(crate) fn fleet(&self) -> Fleet {
        Fleet::of(self.origin, self.workers().list.iter().map(|worker| (&*worker.url, worker.rank)))
    }

    /// The answer, made now unless it was made before; of a tile that is too large to be sent whole, what can be seen in
    /// a window. Nothing when there is no such thing in the step.
    pub(crate) fn answer(
        &self,
        wanted: Wanted,
        window: Option<Window>,
    ) -> Result<Option<Bytes>, serde_json::Error> {
        Ok(self.whole(wanted)?.map(|made| wanted.in_window(made, window)))
    }

    fn whole(&self, wanted: Wanted) -> Result<Option<Bytes>, serde_json::Error> {
        if let Some(made) = self.answers.lock().get(&wanted) {
            return Ok(Some(made));
        }
        let made = match wanted {
            Wanted::Numbers => {
                let numbers = self.numbers.get_or_init(|| step_numbers(&self.trace));
                Some(serde_json::to_vec(&NumbersAnswer::of(&self.trace, numbers))?)
            }
            Wanted::Table => Some(table::answer(self)?),
            Wanted::SampleTile(tile) => tile::of_samples(self, tile)?,
            Wanted::WorkerTile(worker) => tile::of_worker(self, worker)?,
            Wanted::Sample(row) => {
                self.sample(row).map(|sample| serde_json::to_vec(&SampleDetails::of(sample))).transpose()?
            }
        };
        let Some(made) = made.map(Bytes::from) else {
            return Ok(None);
        };
        // Attributes are asked for one sample at a time and cost nothing to make.
        if !matches!(wanted, Wanted::Sample(_)) {
            self.answers.lock().put_within(ANSWERS_BYTES, wanted, made.clone());
        }
        Ok(Some(made))
    }

    /// Where a text is found.
    pub(crate) fn find(&self, text: &str) -> Matches {
        let texts = self.texts.get_or_init(|| Texts::of(self, 0..self.rows.len() as u32));
        let mut matches = Matches::default();
        texts.find(&text.to_lowercase(), &mut matches);
        matches
    }
}

// === impl Wanted ===

impl Wanted {
    /// Of a tile that is too large to be sent whole, what can be seen in a window; anything else as it is.
    pub(crate) fn in_window(self, made: Bytes, window: Option<Window>) -> Bytes {
        let seen = window.filter(|_| self.is_tile()).and_then(|window| sight::seen(&made, window));
        seen.map_or(made, Bytes::from)
    }

    pub(crate) fn is_tile(self) -> bool {
        matches!(self, Self::SampleTile(_) | Self::WorkerTile(_))
    }
}

/// Rows of the samples.
fn by_group(trace: &StepTrace) -> Vec<u32> {
    let mut first: HashMap<&str, usize> = HashMap::new();
    let mut ranked: Vec<_> = trace
        .samples
        .iter()
        .enumerate()
        .map(|(index, sample)| {
            let group = sample.key.group.as_deref();
            (group.map_or(index, |group| *first.entry(group).or_insert(index)), index as u32)
        })
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, index)| index).collect()
}

/// The first request's arrival; without requests, the first event that is shown.
fn origin(trace: &StepTrace) -> UnixNs {
    let arrival = trace.requests().map(|request| request.arrival).min();
    arrival.or_else(|| extent(trace).map(|(start, _)| start)).unwrap_or_default()
}

/// From the first to the last event, without spans of a clock that is off: those far from the requests, or where there
/// are none from the middle half of the spans.
fn extent(trace: &StepTrace) -> Option<(UnixNs, UnixNs)> {
    let requests = trace.requests().map(|request| (request.arrival, request.ended_at())).reduce(hull);
    let spans = trace.samples.iter().flat_map(|sample| &sample.spans);
    let mut spans: Vec<_> = spans.map(|span| (span.start, span.end.unwrap_or(span.start))).collect();
    spans.sort_unstable();
    let half = spans.len() / 4..(spans.len() * 3).div_ceil(4);
    let (start, end) = requests.or_else(|| spans.get(half)?.iter().copied().reduce(hull))?;
    let margin = end.since(start).max(FAR_OFF);
    let near = |span: &(UnixNs, UnixNs)| start.since(span.0) <= margin && span.1.since(end) <= margin;
    Some(spans.into_iter().filter(near).fold((start, end), hull))
}

fn hull(a: (UnixNs, UnixNs), b: (UnixNs, UnixNs)) -> (UnixNs, UnixNs) {
    (a.0.min(b.0), a.1.max(b.1))
}

/// Shared by the requests that ask for the same step.
pub(crate) type SharedStep = Arc<StepView>;

#[cfg(test)]
mod tests;
