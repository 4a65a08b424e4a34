//! Of a tile with many spans those that can be seen in a window of time, at its zoom.
//!
//! A span is left out if it lies outside of the window, or if it ends so near to the one before it in its run that both fall
//! on one pixel. An instant of the user's is drawn as a mark, which only another mark hides. This is done on the tile's columns,
//! so that a tile that was kept when its step was sealed needs no step.

use serde::{Deserialize, Serialize};

use crate::columns::{Column, Columns, Table};
use crate::tile::Kind;

/// A tile of no more spans is sent whole, whatever window was asked for.
const REDUCED_OVER: usize = 60_000;

/// What a page can see: a range of time, and the length of a pixel. In nanoseconds from the origin.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct Window {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) pixel: f64,
}

/// What stands beside a tile's columns.
#[derive(Serialize, Deserialize)]
struct Meta {
    names: Vec<Box<str>>,
    left_out: usize,
}

/// What is left of a tile.
#[derive(Default)]
struct Kept {
    spans: Vec<u32>,
    runs: Vec<u32>,
    /// Of each run its first span among those that are left, and their number.
    first: Vec<u32>,
}

/// What can be seen of a tile in a window, as a tile; nothing where all of it is to be sent.
pub(crate) fn seen(tile: &[u8], window: Window) -> Option<Vec<u8>> {
    let table = Table::of(tile)?;
    if table.entries("start_ns")? <= REDUCED_OVER { None } else { reduced(table, window) }
}

/// Nothing where it is no tile.
fn reduced(table: Table<'_, Meta>, window: Window) -> Option<Vec<u8>> {
    let (count, first) = spans_of(&table)?;
    let kept = Kept::of(&table, &first, window)?;
    let mut moved = vec![-1; count];
    for (from, to) in kept.spans.iter().zip(0..) {
        *moved.get_mut(*from as usize)? = to;
    }
    let moved = |at: i32| usize::try_from(at).ok().and_then(|at| moved.get(at)).copied().unwrap_or(-1);
    let picked = |name: &str, at: &[u32]| table.picked(name, at.iter().map(|at| *at as usize));
    let mut columns = Columns::default();
    for name in table.names() {
        let column = match name {
            "run_first" | "transfer_from" | "transfer_to" => continue,
            "parent" => match picked(name, &kept.spans)? {
                Column::I32(parents) => Column::I32(parents.into_iter().map(moved).collect()),
                _ => return None,
            },
            _ if name.starts_with("run_") => picked(name, &kept.runs)?,
            _ => picked(name, &kept.spans)?,
        };
        columns.put(name, &column);
    }
    columns.put("run_first", &Column::U32(kept.first));
    let (Column::U32(from), Column::U32(to)) = (table.column("transfer_from")?, table.column("transfer_to")?)
    else {
        return None;
    };
    let both = from.into_iter().zip(to).map(|(from, to)| (moved(from as i32), moved(to as i32)));
    let both = both.filter(|(from, to)| *from >= 0 && *to >= 0);
    let (from, to) = both.map(|(from, to)| (from as u32, to as u32)).unzip();
    columns.put("transfer_from", &Column::U32(from));
    columns.put("transfer_to", &Column::U32(to));
    let left_out = count - kept.spans.len();
    let Meta { names, .. } = table.into_meta();
    columns.into_bytes(&Meta { names, left_out }).ok()
}

/// How many spans a tile has, and where each run of them begins; nothing where its columns are not of the same spans and runs,
/// as those of a damaged file may be.
fn spans_of(table: &Table<'_, Meta>) -> Option<(usize, Vec<u32>)> {
    let (spans, runs) = (table.entries("start_ns")?, table.entries("run_row")?);
    let fits = |name: &str| {
        let expected = match name {
            "run_first" => runs + 1,
            "transfer_from" | "transfer_to" => return true,
            _ if name.starts_with("run_") => runs,
            _ => spans,
        };
        table.entries(name) == Some(expected)
    };
    let Column::U32(first) = table.column("run_first")? else { return None };
    let are_runs = first.is_sorted() && first.last().is_some_and(|last| *last as usize <= spans);
    (are_runs && table.names().all(fits)).then_some((spans, first))
}

// === impl Kept ===

impl Kept {
    /// Of the runs that begin at `first`.
    fn of(table: &Table<'_, Meta>, first: &[u32], window: Window) -> Option<Self> {
        let (Column::F64(start), Column::F64(end)) = (table.column("start_ns")?, table.column("end_ns")?)
        else {
            return None;
        };
        let Column::U8(kinds) = table.column("run_kind")? else { return None };
        let mut kept = Self::default();
        for ((ends, kind), run) in first.windows(2).zip(kinds).zip(0..) {
            let begun = kept.spans.len();
            let mut before: Option<(f64, bool)> = None;
            for at in ends[0]..ends[1] {
                let (start, end) = (*start.get(at as usize)?, *end.get(at as usize)?);
                let end = if end.is_nan() { f64::INFINITY } else { end };
                let is_instant = kind == Kind::User as u8 && end <= start;
                let is_apart = before.is_none_or(|(reached, was_instant)| {
                    end >= reached + window.pixel || (is_instant && !was_instant)
                });
                if is_apart && end >= window.from && start <= window.to {
                    before = Some((end, is_instant));
                    kept.spans.push(at);
                }
            }
            if kept.spans.len() > begun {
                kept.runs.push(run);
                kept.first.push(begun as u32);
            }
        }
        kept.first.push(kept.spans.len() as u32);
        Some(kept)
    }
}

#[cfg(test)]
mod tests;
