//! What is shown of a step without reading it, made when it is sealed.
//!
//! The first block is the first sight, as the API answers for it. Of a step that takes long to read every tile of spans
//! follows, so that what is looked at costs its tile and not the step; and of one that is too large to be read, what is known
//! of its samples, a line for each.
//!
//! ```text
//! block 0        {"version": 2, "answers": [["table", 123], …], "tiles": {"samples": 160, …}}\n
//!                the numbers, the table of samples and the first tile, one after the other
//! then           the tiles of samples
//! then           the tiles of workers
//! then           the details of the samples of a tile, if they are kept
//! ```
//!
//! A block that could not be made, or would be too large, is empty, and what it is for is not kept; without the first nothing is.

use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use parking_lot::Mutex;
use rollscope_run::{Glance as Blocks, GlanceBlocks};
use rollscope_stats::StepNumbers;
use rollscope_trace::{StepTrace, UnixNs};
use serde::{Deserialize, Serialize};

use crate::columns::Table;
use crate::details::SampleDetails;
use crate::latest::Latest;
use crate::step::{MAX_RECORDS, StepView, Wanted};
use crate::tile::{self, TILE_ROWS};
use crate::workers::Fleet;

/// Grows with every change of an answer that is kept; one of another version is not shown.
const VERSION: u32 = 2;
/// Requests and spans of the user's of a step that is read in a few seconds: of one that has more, the tiles are kept.
const TILED_OVER: u64 = 50_000;
/// What the details of a step's samples may take on the disk; those of later samples are not kept.
const MAX_DETAILS_BYTES: usize = 1 << 30;
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
    tiles: Option<Tiles>,
}

/// Which blocks follow the first.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Tiles {
    samples: u32,
    workers: u32,
    has_details: bool,
}

/// Answers that were made when the step was sealed.
#[derive(Debug, Default)]
pub(crate) struct Glance {
    answers: Vec<(Wanted, Bytes)>,
    tiles: Option<(Tiles, Blocks)>,
    /// Blocks that were asked for.
    recent: Mutex<Latest<usize, Bytes>>,
    fleet: OnceLock<Option<Arc<Fleet>>>,
}

/// Whether an answer was kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Answer(Bytes),
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
    let tiles = (keep != Keep::FirstSight).then(|| Tiles {
        samples: (step.samples().len() as u32).div_ceil(TILE_ROWS),
        workers: step.workers().list.len() as u32,
        has_details: keep == Keep::Everything,
    });
    let mut blocks = GlanceBlocks::default();
    // What follows the first block cannot be found without it.
    blocks.push(&first_sight(step, tiles).ok()?).ok()?;
    let Some(Tiles { samples, workers, has_details }) = tiles else { return Some(blocks) };
    for number in 0..samples {
        put(&mut blocks, tile::of_samples(step, number).ok().flatten())?;
    }
    for number in 0..workers {
        put(&mut blocks, tile::of_worker(step, number).ok().flatten())?;
    }
    let before = blocks.bytes();
    for number in 0..if has_details { samples } else { 0 } {
        let has_room = blocks.bytes() - before < MAX_DETAILS_BYTES;
        put(&mut blocks, if has_room { details(step, number) } else { None })?;
    }
    Some(blocks)
}

/// Puts a block behind the first, and an empty one where it is not to be had, so that those behind it have their numbers.
pub(crate) fn put(blocks: &mut GlanceBlocks, block: Option<Vec<u8>>) -> Option<()> {
    let put = block.map(|block| blocks.push(&block));
    put.and_then(Result::ok).or_else(|| blocks.push(&[]).ok())
}

fn first_sight(step: &StepView, tiles: Option<Tiles>) -> Result<Vec<u8>, serde_json::Error> {
    let (mut answers, mut bytes) = (Vec::new(), Vec::new());
    for (name, wanted) in FIRST {
        // A step without samples has no tile.
        if let Some(answer) = step.answer(wanted, None)? {
            answers.push((name.to_owned(), answer.len()));
            bytes.extend(answer);
        }
    }
    let mut block = serde_json::to_vec(&Head { version: VERSION, answers, tiles })?;
    block.push(b'\n');
    block.extend(bytes);
    Ok(block)
}

/// Of the samples of a tile, a line each.
fn details(step: &StepView, tile: u32) -> Option<Vec<u8>> {
    let mut lines = Vec::new();
    let first = tile * TILE_ROWS;
    for sample in (first..first + TILE_ROWS).map_while(|row| step.sample(row)) {
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
        Some(Self { answers, tiles: head.tiles.map(|tiles| (tiles, blocks)), ..Self::default() })
    }

    /// What was kept for an answer.
    pub(crate) fn answer(&self, wanted: Wanted) -> Found {
        if let Some((_, answer)) = self.answers.iter().find(|(kept, _)| *kept == wanted) {
            return Found::Answer(answer.clone());
        }
        let Some((tiles, blocks)) = &self.tiles else { return Found::NotKept };
        let (samples, workers) = (tiles.samples as usize, tiles.workers as usize);
        let (number, of, first) = match wanted {
            Wanted::SampleTile(tile) => (tile, samples, 1),
            Wanted::WorkerTile(worker) => (worker, workers, 1 + samples),
            Wanted::Sample(row) if tiles.has_details => (row / TILE_ROWS, samples, 1 + samples + workers),
            Wanted::Sample(_) | Wanted::Numbers | Wanted::Table => return Found::NotKept,
        };
        if number as usize >= of {
            return Found::Nothing;
        }
        let block = self.block(blocks, first + number as usize).filter(|block| !block.is_empty());
        match (block, wanted) {
            (None, _) => Found::NotKept,
            (Some(block), Wanted::Sample(row)) => line(&block, row % TILE_ROWS),
            (Some(block), _) => Found::Answer(block),
        }
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
        let bytes = |held: &[(usize, Bytes)]| held.iter().map(|(_, block)| block.len()).sum::<usize>();
        self.recent.lock().put(number, block.clone(), |held| bytes(held) > RECENT_BYTES);
        Some(block)
    }
}

/// A line of a block.
fn line(block: &Bytes, number: u32) -> Found {
    let line = block.split(|byte| *byte == b'\n').nth(number as usize).filter(|line| !line.is_empty());
    line.map_or(Found::Nothing, |line| Found::Answer(block.slice_ref(line)))
}
