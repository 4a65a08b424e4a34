//! What is shown of a step without reading it, made when it is sealed.
//!
//! The first block is the first sight, as the API answers for it. Of a step that takes long to read every tile of spans
//! follows, one of many spans in pieces (`pyramid.rs`), so that what is looked at costs its tile and not the step; and of a
//! step that is too large to be read, what else is asked of its samples.
//!
//! ```text
//! block 0        {"version": 4, "answers": [["table", 123], …], "places": {"samples": [1, 2, 19, …], …}}\n
//!                the numbers, the table of samples and the first tile, one after the other
//! then           the tiles of samples and of workers, each whole or in pieces
//! then           the details, the texts and the calls of the samples of a tile, if they are kept
//! ```
//!
//! A block that could not be made, or would be too large, is empty, and what it is for is not kept; without the first nothing is.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use parking_lot::Mutex;
use rollscope_run::{Glance as Blocks, GlanceBlocks};
use rollscope_stats::StepNumbers;
use rollscope_trace::{SampleTrace, StepNumber, StepTrace, UnixNs};
use serde::{Deserialize, Serialize};

use crate::calls;
use crate::columns::Table;
use crate::details::SampleDetails;
use crate::latest::Latest;
use crate::pyramid;
use crate::search::{Matches, Texts};
use crate::sight::{self, Window};
use crate::step::{MAX_RECORDS, StepView, Wanted};
use crate::tile::{self, TILE_ROWS};
use crate::workers::Fleet;

/// Grows with every change of an answer that is kept; one of another version is not shown. No release has written one before 4.
const VERSION: u32 = 4;
/// Requests and spans of the user's of a step that is read in a few seconds: of one that has more, the tiles are kept.
const TILED_OVER: u64 = 50_000;
/// What the details of a step's samples may take on the disk; those of later samples are not kept.
const MAX_DETAILS_BYTES: usize = 1 << 30;
/// What their texts may take; those of later samples are not searched.
const MAX_TEXTS_BYTES: usize = 1 << 29;
/// Blocks that were asked for last are held as far as they fit into this.
const RECENT_BYTES: usize = 64 << 20;

/// What the first block holds, and by what name.
const FIRST: [(&str, Wanted); 3] =
    [("numbers", Wanted::Numbers), ("table", Wanted::Table), ("tile", Wanted::SampleTile(0))];

/// How much is kept of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    FirstSight,
    Tiles,
    Everything,
}

#[derive(Serialize, Deserialize)]
struct Head {
    version: u32,
    answers: Vec<(String, usize)>,
    places: Option<Places>,
}

/// The numbers of the blocks that follow the first: of each tile its only or its first block, and of each tile of samples what
/// else is kept of them.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Places {
    rows: usize,
    samples: Vec<usize>,
    workers: Vec<usize>,
    details: Vec<usize>,
    texts: Vec<usize>,
    calls: Vec<usize>,
}

/// Answers that were made when the step was sealed.
#[derive(Debug, Default)]
pub(crate) struct Glance {
    answers: Vec<(Wanted, Bytes)>,
    kept: Option<(Places, Blocks)>,
    /// Blocks that were asked for.
    recent: Mutex<Latest<usize, Bytes>>,
    fleet: OnceLock<Option<Arc<Fleet>>>,
}

/// Whether an answer was kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<T = Bytes> {
    Answer(T),
    /// There is no such thing in the step.
    Nothing,
    /// Only the step tells.
    NotKept,
}

/// Of the table, what tells where forward passes stand.
#[derive(Deserialize)]
struct TableMeta {
    origin_unix_ns: String,
    workers: Vec<WorkerMeta>,
}

#[derive(Deserialize)]
struct WorkerMeta {
    url: Box<str>,
    rank: Option<u32>,
}

/// What [`rollscope_run::Run::put_glance`] keeps of a step, made of its trace and the numbers of that; nothing where an
/// answer cannot be encoded.
pub fn glance(trace: StepTrace, numbers: StepNumbers) -> Option<GlanceBlocks> {
    let records = trace.samples.iter().map(|sample| sample.requests.len() + sample.spans.len());
    let keep = Keep::of(records.sum::<usize>() as u64);
    kept(&StepView::with_numbers(trace, numbers), keep)
}

/// So much of a step; nothing where its first sight cannot be kept.
pub(crate) fn kept(step: &StepView, keep: Keep) -> Option<GlanceBlocks> {
    let mut blocks = GlanceBlocks::default();
    let places = match keep {
        Keep::FirstSight => None,
        Keep::Tiles | Keep::Everything => Some(Places::put(step, keep, &mut blocks)?),
    };
    // What follows the first block cannot be found without it.
    blocks.push_first(&first_sight(step, places).ok()?).ok()?;
    Some(blocks)
}

/// Puts a block behind the others, and an empty one where it is not to be had. Says which number it will have.
pub(crate) fn put(blocks: &mut GlanceBlocks, block: Option<Vec<u8>>) -> Option<usize> {
    let put = block.map(|block| blocks.push(&block));
    put.and_then(Result::ok).or_else(|| blocks.push(&[]).ok())?;
    Some(blocks.count())
}

/// The same of a tile, which is put in pieces where it has many spans.
fn put_tile(blocks: &mut GlanceBlocks, tile: Option<Vec<u8>>) -> Option<usize> {
    let number = blocks.count() + 1;
    let cut = tile.as_deref().and_then(|tile| pyramid::cut(tile, |block| blocks.push(block).ok()));
    cut.map_or_else(|| put(blocks, tile), |()| Some(number))
}

fn first_sight(step: &StepView, places: Option<Places>) -> Result<Vec<u8>, serde_json::Error> {
    let mut answers = Vec::new();
    for (name, wanted) in FIRST {
        // A step without samples has no tile.
        let Some(answer) = step.answer(wanted, None)? else { continue };
        // One of many spans is not read to be seen from afar.
        if places.is_some() && wanted.is_tile() && !sight::is_sent_whole(&answer) {
            continue;
        }
        answers.push((name, answer));
    }
    let lengths = answers.iter().map(|(name, answer)| ((*name).to_owned(), answer.len())).collect();
    let mut block = serde_json::to_vec(&Head { version: VERSION, answers: lengths, places })?;
    block.reserve_exact(1 + answers.iter().map(|(_, answer)| answer.len()).sum::<usize>());
    block.push(b'\n');
    for (_, answer) in &answers {
        block.extend_from_slice(answer);
    }
    Ok(block)
}

/// Of the samples of a tile, a line each.
fn details(step: &StepView, tile: u32) -> Option<Vec<u8>> {
    let mut lines = Vec::new();
    for sample in rows_of(tile).map_while(|row| step.sample(row)) {
        serde_json::to_writer(&mut lines, &SampleDetails::of(sample)).ok()?;
        lines.push(b'\n');
    }
    Some(lines)
}

// === impl Keep ===

impl Keep {
    /// Of a step of so many requests and spans of the user's.
    fn of(records: u64) -> Self {
        if records > MAX_RECORDS {
            Self::Everything
        } else if records > TILED_OVER {
            Self::Tiles
        } else {
            Self::FirstSight
        }
    }
}

// === impl Places ===

impl Places {
    /// Puts all that is kept of a step behind its first sight.
    fn put(step: &StepView, keep: Keep, blocks: &mut GlanceBlocks) -> Option<Self> {
        let rows = step.samples().len();
        let tiles = 0..(rows as u32).div_ceil(TILE_ROWS);
        let mut places = Self { rows, ..Self::default() };
        for number in tiles.clone() {
            places.samples.push(put_tile(blocks, tile::of_samples(step, number).ok().flatten())?);
        }
        for number in 0..step.workers().list.len() as u32 {
            places.workers.push(put_tile(blocks, tile::of_worker(step, number).ok().flatten())?);
        }
        if keep != Keep::Everything {
            return Some(places);
        }
        let mut put_all = |most_bytes: usize, make: &dyn Fn(u32) -> Option<Vec<u8>>| {
            let before = blocks.bytes();
            let mut put_one = |number| {
                let has_room = blocks.bytes() - before < most_bytes;
                put(blocks, if has_room { make(number) } else { None })
            };
            tiles.clone().map(&mut put_one).collect::<Option<Vec<usize>>>()
        };
        places.details = put_all(MAX_DETAILS_BYTES, &|tile| details(step, tile))?;
        places.texts = put_all(MAX_TEXTS_BYTES, &|tile| Texts::of(step, rows_of(tile)).into_bytes().ok())?;
        places.calls = put_all(usize::MAX, &|tile| calls::of_tile(step, tile).ok())?;
        Some(places)
    }
}

/// The rows of a tile, if they are there.
fn rows_of(tile: u32) -> Range<u32> {
    tile * TILE_ROWS..(tile + 1) * TILE_ROWS
}

// === impl Glance ===

impl Glance {
    /// Reads what [`glance`] made; nothing of what it does not know.
    pub(crate) fn open(blocks: Blocks) -> Option<Self> {
        Self::read(blocks.block(0)?, blocks)
    }

    fn read(first: Vec<u8>, blocks: Blocks) -> Option<Self> {
        let bytes = Bytes::from(first);
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
        if head.version != VERSION {
            return None;
        }
        let mut rest = bytes.slice(end + 1..);
        let mut answers = Vec::new();
        for (name, length) in &head.answers {
            let answer = (*length <= rest.len()).then(|| rest.split_to(*length))?;
            let (_, wanted) = FIRST.iter().find(|(known, _)| known == name)?;
            answers.push((*wanted, answer));
        }
        Some(Self { answers, kept: head.places.map(|places| (places, blocks)), ..Self::default() })
    }

    /// What was kept for an answer; of a tile of many spans, what can be seen in a window.
    pub(crate) fn answer(&self, wanted: Wanted, window: Option<Window>) -> Found {
        if let Some((_, answer)) = self.answers.iter().find(|(kept, _)| *kept == wanted) {
            return Found::Answer(wanted.in_window(answer.clone(), window));
        }
        let Some((places, blocks)) = &self.kept else { return Found::NotKept };
        let (list, number) = match wanted {
            Wanted::SampleTile(tile) => (&places.samples, tile),
            Wanted::WorkerTile(worker) => (&places.workers, worker),
            Wanted::Sample(row) if !places.details.is_empty() => (&places.details, row / TILE_ROWS),
            Wanted::Sample(_) | Wanted::Numbers | Wanted::Table => return Found::NotKept,
        };
        let Some(first) = list.get(number as usize) else { return Found::Nothing };
        let block = self.block(blocks, *first).filter(|block| !block.is_empty());
        match (block, wanted) {
            (None, _) => Found::NotKept,
            (Some(block), Wanted::Sample(row)) => line(&block, row % TILE_ROWS),
            (Some(block), _) if pyramid::is_cut(&block) => {
                let piece = |number: usize| self.block(blocks, first.checked_add(number)?.checked_add(1)?);
                let seen = pyramid::seen(&block, window.unwrap_or(Window::ALL), piece);
                seen.map_or(Found::NotKept, |seen| Found::Answer(seen.into()))
            }
            (Some(block), _) => Found::Answer(wanted.in_window(block, window)),
        }
    }

    /// Where a text is found; nothing where texts were not kept. They are read in turn, and none is held.
    pub(crate) fn find(&self, sought: &str) -> Option<Matches> {
        let (places, blocks) = self.kept.as_ref().filter(|(places, _)| !places.texts.is_empty())?;
        let mut matches = Matches::default();
        let sought = sought.to_lowercase();
        for (place, tile) in places.texts.iter().zip(0..).filter(|_| !sought.is_empty()) {
            if let Some(texts) = blocks.block(*place).and_then(|block| Texts::read(&block)) {
                texts.find(&sought, &mut matches);
            } else {
                let rows = rows_of(tile).len();
                matches.left_out += rows.min(places.rows.saturating_sub(tile as usize * rows));
            }
        }
        Some(matches)
    }

    /// The calls of all samples, tile by tile, none of which is held; nothing where they were not kept.
    pub(crate) fn calls(&self, step: StepNumber) -> Option<impl Iterator<Item = StepTrace>> {
        let tiles = 0..self.kept.as_ref()?.0.calls.len() as u32;
        (!tiles.is_empty()).then(|| tiles.filter_map(move |tile| self.calls_of(step, tile)))
    }

    /// The calls of a sample.
    pub(crate) fn sample_calls(&self, step: StepNumber, row: u32) -> Found<SampleTrace> {
        // A tile has as many rows as any, be they in the step or not.
        if let Some((places, _)) = &self.kept
            && row as usize >= places.rows
        {
            return Found::Nothing;
        }
        let tile = self.calls_of(step, row / TILE_ROWS);
        let sample = tile.and_then(|tile| tile.samples.into_iter().nth((row % TILE_ROWS) as usize));
        sample.map_or(Found::NotKept, Found::Answer)
    }

    fn calls_of(&self, step: StepNumber, tile: u32) -> Option<StepTrace> {
        let (places, blocks) = self.kept.as_ref()?;
        calls::read(&blocks.block(*places.calls.get(tile as usize)?)?, step, tile)
    }

    /// Where the forward passes of the step stand, as far as the table was kept.
    pub(crate) fn fleet(&self) -> Option<Arc<Fleet>> {
        let of_table = || {
            let (_, table) = self.answers.iter().find(|(kept, _)| *kept == Wanted::Table)?;
            let TableMeta { origin_unix_ns, workers } = Table::of(table)?.into_meta();
            let workers = workers.iter().map(|worker| (&*worker.url, worker.rank));
            Some(Arc::new(Fleet::of(UnixNs(origin_unix_ns.parse().ok()?), workers)))
        };
        self.fleet.get_or_init(of_table).clone()
    }

    fn block(&self, blocks: &Blocks, number: usize) -> Option<Bytes> {
        if let Some(block) = self.recent.lock().get(&number) {
            return Some(block);
        }
        let block = Bytes::from(blocks.block(number)?);
        self.recent.lock().put_within(RECENT_BYTES, number, block.clone());
        Some(block)
    }
}

/// A line of a block.
fn line(block: &Bytes, number: u32) -> Found {
    let line = block.split(|byte| *byte == b'\n').nth(number as usize).filter(|line| !line.is_empty());
    line.map_or(Found::Nothing, |line| Found::Answer(block.slice_ref(line)))
}

#[cfg(test)]
mod tests;
