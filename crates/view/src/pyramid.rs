//! A tile with many spans in pieces, so that a window costs what is seen in it.
//!
//! Each span stands in one piece. Pieces hold spans of like levels (`sight.rs`), those that are seen from afar before those
//! that are seen near by, and of one band of levels each a stretch of time. A window is answered from the pieces that lie in
//! it and are coarse enough: from afar these are few, and near by they are short. So the coarse levels take no room of their
//! own, and the whole tile is all of its pieces.
//!
//! ```text
//! first block    the names and runs of the tile, and of each piece its highest level, begin and end
//! then           the pieces: columns as a tile has them, with the number of each span in the tile and its level
//! ```
//!
//! Bars of what is too dense to be told apart would be no smaller than the spans that are seen in their places, and nothing
//! could be told of them.

use crate::columns::{Column, Columns, Table};
use crate::sight::{
    Meta, Piece, Spans, Window, is_sent_whole, levels, put_transfers, sent, times, transfers_of,
};

/// Spans of a piece, at most: some 900 kB.
const PIECE_SPANS: usize = 16_384;
/// What is read for one answer, at most, as much as a page can take; of more there is none. An answer takes several times as
/// much while it is made. A page that says how much of time is a pixel asks for far less.
const MAX_READ_BYTES: usize = 256 << 20;

/// A span before it is put into a piece: its band of levels from the coarsest, its begin and its number. In this order they
/// stand in pieces.
type Placed = (u8, i64, u32);

/// Cuts a tile into blocks, each of which is put in turn; nothing where it is small enough to be kept whole, or `put` failed.
pub(crate) fn cut(tile: &[u8], mut put: impl FnMut(&[u8]) -> Option<()>) -> Option<()> {
    if is_sent_whole(tile) { None } else { cut_in(&Spans::of(tile)?, PIECE_SPANS, &mut put) }
}

fn cut_in(spans: &Spans<'_>, piece_spans: usize, put: &mut impl FnMut(&[u8]) -> Option<()>) -> Option<()> {
    let levels = levels(spans)?;
    let (start, end) = times(spans)?;
    let bands = bands(&levels, piece_spans);
    let mut placed: Vec<Placed> = levels
        .iter()
        .zip(&start)
        .zip(0..)
        .map(|((level, start), at)| (bands[usize::from(*level)], *start as i64, at))
        .collect();
    placed.sort_unstable();
    let pieces: Vec<&[Placed]> =
        placed.chunk_by(|a, b| a.0 == b.0).flat_map(|band| band.chunks(piece_spans)).collect();
    let of_each = |value: &dyn Fn(usize) -> f64, pick: fn(f64, f64) -> f64| -> Vec<f64> {
        let of = |piece: &&[Placed]| piece.iter().map(|(.., at)| value(*at as usize)).reduce(pick);
        pieces.iter().filter_map(of).collect()
    };
    let highest = of_each(&|at| levels[at].into(), f64::max);
    let mut columns = Columns::default();
    for name in spans.names().filter(|name| name.starts_with("run_")) {
        columns.put(name, &spans.column(name)?);
    }
    columns.put("piece_level", &Column::U8(highest.into_iter().map(|level| level as u8).collect()));
    columns.put("piece_from", &Column::F64(of_each(&|at| start[at], f64::min)));
    columns.put("piece_to", &Column::F64(of_each(&|at| end[at], f64::max)));
    put(&columns.into_bytes(&spans.meta().of_runs()).ok()?)?;

    let mut transfers: Vec<(u32, u32)> = transfers_of(spans)?.collect();
    transfers.sort_unstable();
    for piece in pieces {
        let mut at: Vec<u32> = piece.iter().map(|(.., at)| *at).collect();
        at.sort_unstable();
        put(&piece_of(spans, &levels, at, &transfers)?)?;
    }
    Some(())
}

/// By level the number of its band. A band ends with the level that fills a piece.
fn bands(levels: &[u8], piece_spans: usize) -> [u8; 256] {
    let mut counts = [0; 256];
    for level in levels {
        counts[usize::from(*level)] += 1;
    }
    let (mut bands, mut band, mut held) = ([0; 256], 0, 0);
    for level in (0..256).rev() {
        bands[level] = band;
        held += counts[level];
        if held >= piece_spans {
            (band, held) = (band + 1, 0);
        }
    }
    bands
}

/// The spans at these places, and the transfers that begin with them.
fn piece_of(spans: &Spans<'_>, levels: &[u8], at: Vec<u32>, transfers: &[(u32, u32)]) -> Option<Vec<u8>> {
    let mut columns = Columns::default();
    for name in spans.names() {
        if !name.starts_with("run_") && !name.starts_with("transfer_") {
            let at = at.iter().map(|at| (0, *at as usize));
            columns.put(name, &Table::gathered(&[spans], name, at)?);
        }
    }
    let begun_with = |at: u32| {
        let begun = transfers.partition_point(|(from, _)| *from < at);
        transfers[begun..].iter().take_while(move |(from, _)| *from == at)
    };
    put_transfers(&mut columns, at.iter().copied().flat_map(begun_with).copied().collect());
    columns.put("level", &Column::U8(at.iter().map(|at| levels[*at as usize]).collect()));
    columns.put("at", &Column::U32(at));
    columns.into_bytes(&Meta::default()).ok()
}

/// Whether a block is the first of a tile that was cut.
pub(crate) fn is_cut(block: &[u8]) -> bool {
    Spans::of(block).is_some_and(|table| table.entries("piece_level").is_some())
}

/// What can be seen in a window of a tile that was cut, as a tile. `read` gives a piece by its number. Nothing where they
/// cannot be read.
pub(crate) fn seen<B: AsRef<[u8]>>(
    first: &[u8],
    window: Window,
    mut read: impl FnMut(usize) -> Option<B>,
) -> Option<Vec<u8>> {
    let runs = Spans::of(first)?;
    let (Column::U8(levels), Column::F64(from), Column::F64(to)) =
        (runs.column("piece_level")?, runs.column("piece_from")?, runs.column("piece_to")?)
    else {
        return None;
    };
    let lowest = window.level();
    let (mut blocks, mut bytes) = (Vec::new(), 0);
    for (number, ((level, from), to)) in levels.into_iter().zip(from).zip(to).enumerate() {
        // The first tells which columns there are, be nothing seen.
        if number > 0 && (level < lowest || !window.touches(from, to)) {
            continue;
        }
        let block = read(number)?;
        bytes += block.as_ref().len();
        if bytes > MAX_READ_BYTES {
            return None;
        }
        blocks.push(block);
    }
    let pieces: Option<Vec<Piece<'_>>> = blocks.iter().map(|block| piece(block.as_ref())).collect();
    sent(&runs, &pieces?, window)
}

fn piece(block: &[u8]) -> Option<Piece<'_>> {
    let spans = Spans::of(block)?;
    match (spans.column("at")?, spans.column("level")?) {
        (Column::U32(at), Column::U8(levels)) => Some(Piece { spans, at, levels }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
