//! Of a tile with many spans those that can be seen in a window of time, at its zoom.
//!
//! Time is cut into cells whose length is a power of two nanoseconds. Of the spans of a run that end in one cell the first is
//! seen, and the first that bears a mark: an instant of the user's, what did not complete or has not ended, what cannot be
//! true. All others end in the cell that one before them ended in, and since spans of a run do not overlap they lie within it:
//! with cells no longer than a pixel, what is left out has no pixel of its own.
//!
//! So each span has a level, which is the number of bits of the longest cell that it is seen in. It is that of the highest bit
//! in which its end differs from the end before, and says for every zoom at once whether the span is seen. This needs a tile's
//! columns only, so that a tile that was kept when its step was sealed needs no step, and may be kept in pieces
//! (`pyramid.rs`).

use rollscope_trace::Outcome;
use serde::{Deserialize, Serialize};

use crate::columns::{Column, Columns, Table};
use crate::tile::Kind;

/// A tile of no more spans is sent whole, whatever window was asked for.
const REDUCED_OVER: usize = 60_000;
/// Of a span that is seen at every zoom, as the first of its run.
const ALWAYS: u8 = u8::MAX;

/// What a page can see: a range of time, and the length of a pixel. In nanoseconds from the origin.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct Window {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) pixel: f64,
}

/// What stands beside a tile's columns.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Meta {
    names: Vec<Box<str>>,
    left_out: usize,
}

/// A tile's columns, or those of some of its spans.
pub(crate) type Spans<'a> = Table<'a, Meta>;

/// Spans of a tile that can be read.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) spans: Spans<'a>,
    /// Their numbers in the tile.
    pub(crate) at: Vec<u32>,
    pub(crate) levels: Vec<u8>,
}

/// A span that is sent: its number in the tile, and the piece and the entry where it stands.
type Pick = (u32, usize, usize);

/// What can be seen of a tile in a window, as a tile; nothing where all of it is to be sent.
pub(crate) fn seen(tile: &[u8], window: Window) -> Option<Vec<u8>> {
    if is_sent_whole(tile) { None } else { reduced(Spans::of(tile)?, window) }
}

/// Whether a tile has so few spans that no window is looked at.
pub(crate) fn is_sent_whole(tile: &[u8]) -> bool {
    Spans::of(tile).and_then(|spans| spans.entries("start_ns")).is_some_and(|spans| spans <= REDUCED_OVER)
}

/// Nothing where it is no tile.
pub(crate) fn reduced(spans: Spans<'_>, window: Window) -> Option<Vec<u8>> {
    let levels = levels(&spans)?;
    let piece = Piece { at: (0..levels.len() as u32).collect(), levels, spans };
    let pieces = [piece];
    sent(&pieces[0].spans, &pieces, window)
}

/// Of those spans of a tile that were read, and among which are all that can be seen, what can be seen, as a tile. `runs` has
/// the tile's runs and names.
pub(crate) fn sent(runs: &Spans<'_>, pieces: &[Piece<'_>], window: Window) -> Option<Vec<u8>> {
    let mut picks: Vec<Pick> = Vec::new();
    for (number, piece) in pieces.iter().enumerate() {
        let seen = piece.seen(window)?;
        picks.extend(seen.into_iter().map(|entry| (piece.at[entry], number, entry)));
    }
    picks.sort_unstable();
    let tables: Vec<&Spans<'_>> = pieces.iter().map(|piece| &piece.spans).collect();
    let of_picks =
        |name: &str| Table::gathered(&tables, name, picks.iter().map(|(_, piece, entry)| (*piece, *entry)));
    let moved = |at: u32| picks.binary_search_by_key(&at, |(at, ..)| *at).ok().map(|at| at as u32);
    let mut columns = Columns::default();
    for name in tables.first()?.names() {
        let column = match name {
            _ if name.starts_with("run_") || name.starts_with("transfer_") => continue,
            "at" | "level" => continue,
            "parent" => match of_picks(name)? {
                Column::I32(parents) => {
                    let moved = |at: i32| u32::try_from(at).ok().and_then(moved);
                    Column::I32(parents.into_iter().map(|at| moved(at).map_or(-1, |at| at as i32)).collect())
                }
                _ => return None,
            },
            _ => of_picks(name)?,
        };
        columns.put(name, &column);
    }
    let all = put_runs(&mut columns, runs, &picks)?;
    let mut transfers: Vec<(u32, u32)> = Vec::new();
    for table in &tables {
        let moved = |(from, to): (u32, u32)| Some((moved(from)?, moved(to)?));
        transfers.extend(transfers_of(table)?.filter_map(moved));
    }
    transfers.sort_unstable();
    put_transfers(&mut columns, transfers);
    let left_out = all - picks.len();
    columns.into_bytes(&Meta { names: runs.meta().names.clone(), left_out }).ok()
}

/// Puts the runs that something is left of; says how many spans there are in all. Nothing where they are not of these spans, as
/// those of a damaged file may be.
fn put_runs(columns: &mut Columns, runs: &Spans<'_>, picks: &[Pick]) -> Option<usize> {
    let first = firsts(runs)?;
    let all = *first.last()?;
    if picks.last().is_some_and(|(last, ..)| *last >= all) || picks.windows(2).any(|of| of[0].0 == of[1].0) {
        return None;
    }
    let (mut kept, mut kept_first, mut taken) = (Vec::new(), Vec::new(), 0);
    for (run, end) in first.iter().skip(1).enumerate() {
        let of_run = picks[taken..].partition_point(|(at, ..)| at < end);
        if of_run > 0 {
            kept.push(run);
            kept_first.push(taken as u32);
            taken += of_run;
        }
    }
    kept_first.push(taken as u32);
    for name in ["run_row", "run_kind", "run_lane", "run_track"] {
        columns.put(name, &Table::gathered(&[runs], name, kept.iter().map(|run| (0, *run)))?);
    }
    columns.put("run_first", &Column::U32(kept_first));
    Some(all as usize)
}

/// Where the runs of a tile begin, and behind them the number of its spans.
fn firsts(runs: &Spans<'_>) -> Option<Vec<u32>> {
    let Column::U32(first) = runs.column("run_first")? else { return None };
    (first.first() == Some(&0) && first.is_sorted()).then_some(first)
}

/// From which span to which.
pub(crate) fn transfers_of(spans: &Spans<'_>) -> Option<impl Iterator<Item = (u32, u32)> + use<>> {
    match (spans.column("transfer_from")?, spans.column("transfer_to")?) {
        (Column::U32(from), Column::U32(to)) => Some(from.into_iter().zip(to)),
        _ => None,
    }
}

pub(crate) fn put_transfers(columns: &mut Columns, transfers: Vec<(u32, u32)>) {
    let (from, to) = transfers.into_iter().unzip();
    columns.put("transfer_from", &Column::U32(from));
    columns.put("transfer_to", &Column::U32(to));
}

/// The level of every span of a tile; nothing where its columns are not of the same spans and runs.
pub(crate) fn levels(spans: &Spans<'_>) -> Option<Vec<u8>> {
    let (start, end) = times(spans)?;
    let (Column::U8(kinds), Column::U8(outcomes), Column::U8(flags)) =
        (spans.column("run_kind")?, spans.column("outcome")?, spans.column("flags")?)
    else {
        return None;
    };
    let first = firsts(spans)?;
    if first.len() != kinds.len() + 1 || *first.last()? as usize != start.len() {
        return None;
    }
    let mut levels = Vec::with_capacity(start.len());
    for (ends, kind) in first.windows(2).zip(kinds) {
        let (mut before, mut mark_before) = (None, None);
        for at in ends[0] as usize..ends[1] as usize {
            let is_instant = kind == Kind::User as u8 && end[at] <= start[at];
            let is_mark =
                is_instant || *outcomes.get(at)? != Outcome::Completed as u8 || *flags.get(at)? != 0;
            let end = end[at] as i64;
            let mut level = apart(before.replace(end), end);
            if is_mark {
                level = level.max(apart(mark_before.replace(end), end));
            }
            levels.push(level);
        }
    }
    Some(levels)
}

/// The bits of the longest cell of which one has another end than the one before.
fn apart(before: Option<i64>, end: i64) -> u8 {
    before.map_or(ALWAYS, |before| (i64::BITS - (before ^ end).leading_zeros()) as u8)
}

/// Begins and ends; what has not ended ends never.
pub(crate) fn times(spans: &Spans<'_>) -> Option<(Vec<f64>, Vec<f64>)> {
    let (Column::F64(start), Column::F64(mut end)) = (spans.column("start_ns")?, spans.column("end_ns")?)
    else {
        return None;
    };
    end.iter_mut().filter(|end| end.is_nan()).for_each(|end| *end = f64::INFINITY);
    (start.len() == end.len()).then_some((start, end))
}

// === impl Window ===

impl Window {
    /// All of a tile.
    pub(crate) const ALL: Self = Self { from: f64::NEG_INFINITY, to: f64::INFINITY, pixel: 0.0 };

    /// The lowest level of what is seen: that of the longest cell that is no longer than a pixel.
    pub(crate) fn level(self) -> u8 {
        (self.pixel as u64).checked_ilog2().map_or(0, |bits| bits as u8 + 1)
    }

    /// Whether something can be seen in it, or what it stands for: that may end as much as a cell behind it.
    pub(crate) fn touches(self, start: f64, end: f64) -> bool {
        end >= self.from - self.pixel && start <= self.to
    }
}

// === impl Meta ===

impl Meta {
    /// Of the runs of this tile, without its spans.
    pub(crate) fn of_runs(&self) -> Self {
        Self { names: self.names.clone(), left_out: 0 }
    }
}

// === impl Piece ===

impl Piece<'_> {
    /// Entries of the spans that are seen in a window.
    fn seen(&self, window: Window) -> Option<Vec<usize>> {
        let (start, end) = times(&self.spans)?;
        if start.len() != self.at.len() || start.len() != self.levels.len() {
            return None;
        }
        let lowest = window.level();
        let is_seen = |at: &usize| self.levels[*at] >= lowest && window.touches(start[*at], end[*at]);
        Some((0..start.len()).filter(is_seen).collect())
    }
}

#[cfg(test)]
pub(crate) mod tests;
