//! Where spans are drawn so that on each lane one lies within another or beside it, never across it.

use rollscope_trace::{Lane, Span, UnixNs};

/// A lane of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TrackName {
    pub(super) lane: Lane,
    /// Which of several lanes of that kind; from 0.
    pub(super) number: usize,
}

/// The lanes of a sample, and for each of its spans the lane's index.
#[derive(Debug)]
pub(super) struct Tracks {
    pub(super) names: Vec<TrackName>,
    pub(super) of_span: Vec<usize>,
}

/// The ends of the spans that are open on a lane at the moment, outermost first.
type Open = Vec<UnixNs>;

/// Puts each span on the first lane of its kind on which it fits.
pub(super) fn tracks(spans: &[Span]) -> Tracks {
    let mut names: Vec<TrackName> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let mut of_span = vec![0; spans.len()];
    for index in in_order(spans) {
        let span = &spans[index];
        let fits = |open: &mut Open| {
            while open.last().is_some_and(|end| *end <= span.start) {
                open.pop();
            }
            open.last().is_none_or(|outer| end(span) <= *outer)
        };
        let found = (0..names.len()).find(|track| names[*track].lane == span.lane && fits(&mut open[*track]));
        let track = found.unwrap_or_else(|| {
            let number = names.iter().filter(|name| name.lane == span.lane).count();
            names.push(TrackName { lane: span.lane, number });
            open.push(Vec::new());
            names.len() - 1
        });
        open[track].push(end(span));
        of_span[index] = track;
    }
    Tracks { names, of_span }
}

/// Indices of spans by their begin, what contains before what it contains.
pub(super) fn in_order(spans: &[Span]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|index| (spans[*index].start, std::cmp::Reverse(end(&spans[*index])), *index));
    order
}

/// One that is open lasts.
fn end(span: &Span) -> UnixNs {
    span.end.unwrap_or(UnixNs(i64::MAX)).max(span.start)
}

// === impl TrackName ===

impl TrackName {
    /// As it is shown.
    pub(super) fn text(self) -> String {
        match self.number {
            0 => self.lane.name().to_owned(),
            number => format!("{} {}", self.lane.name(), number + 1),
        }
    }
}
