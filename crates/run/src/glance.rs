//! `glance.bin`: what a viewer shows of a step without reading it, made when the step was sealed.
//!
//! ```text
//! {"made_of": […], "closes": 1, "blocks": [[123, 456], …]}\n   a line of JSON: the parts that the step consisted of, and of
//!                                                              each block its length and the CRC-32 of it
//! …                                                            the blocks that the viewer put there, each compressed by Snappy
//! ```
//!
//! It holds nothing that the parts do not hold, and nothing of forward passes, which are still heard of when a step has
//! ended. One that was made of other parts than those that the newest manifest names is as if it were not there, and so is a
//! block that a disk has changed.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use rollscope_trace::StepNumber;
use serde::{Deserialize, Serialize};
use snap::raw::{Decoder, Encoder};

use crate::error::RunError;
use crate::files;
use crate::manifest::{Manifest, Newest};
use crate::run::Run;

const NAME: &str = "glance.bin";

/// What is sealed of a step at one moment, but for its forward passes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedState {
    /// The parts, from the run's folder.
    made_of: Vec<String>,
    /// The words on its end.
    closes: usize,
}

/// What is to be kept of a step, block by block; each can be read alone.
#[derive(Debug, Default)]
pub struct GlanceBlocks {
    blocks: Vec<(u64, u32)>,
    compressed: Vec<u8>,
}

/// What was kept of a step.
#[derive(Debug)]
pub struct Glance {
    path: PathBuf,
    /// Of each block where it begins, its length and its CRC-32.
    blocks: Vec<(u64, u64, u32)>,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Head {
    #[serde(flatten)]
    state: SealedState,
    blocks: Vec<(u64, u32)>,
}

// === impl Run ===

impl Run {
    /// What is sealed of a step now: taken before the step is read, it is never more than was read.
    pub fn sealed_state(&self, step: StepNumber) -> Result<SealedState, RunError> {
        Ok(SealedState::of(&Newest::read(self)?.manifest, step))
    }

    /// Keeps what a viewer shows of a step.
    pub fn put_glance(
        &self,
        step: StepNumber,
        state: SealedState,
        blocks: GlanceBlocks,
    ) -> Result<(), RunError> {
        let head = Head { state, blocks: blocks.blocks };
        let mut bytes =
            serde_json::to_vec(&head).map_err(|source| RunError::EncodeJson { what: NAME, source })?;
        bytes.push(b'\n');
        bytes.extend(blocks.compressed);
        files::create_folders(&self.step_folder(step))?;
        files::replace(&self.glance_path(step), &bytes)
    }

    /// What was kept, if it is of all that is sealed of the step now.
    pub fn glance(&self, step: StepNumber) -> Result<Option<Glance>, RunError> {
        let path = self.glance_path(step);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(RunError::io("read", &path))?,
        };
        let mut head = Vec::new();
        BufReader::new(file).read_until(b'\n', &mut head).map_err(RunError::io("read", &path))?;
        let Ok(Head { state, blocks }) = serde_json::from_slice(&head) else { return Ok(None) };
        let mut at = head.len() as u64;
        let place = |(bytes, crc32): (u64, u32)| {
            let first = at;
            at = at.saturating_add(bytes);
            (first, bytes, crc32)
        };
        let blocks = blocks.into_iter().map(place).collect();
        Ok((state == self.sealed_state(step)?).then_some(Glance { path, blocks }))
    }

    fn glance_path(&self, step: StepNumber) -> PathBuf {
        self.step_folder(step).join(NAME)
    }
}

// === impl GlanceBlocks ===

impl GlanceBlocks {
    /// Puts a block behind the others.
    ///
    /// # Errors
    /// It is too large.
    pub fn push(&mut self, block: &[u8]) -> Result<(), RunError> {
        let failed = |error| RunError::io("compress", NAME.as_ref())(io::Error::other(error));
        let compressed = Encoder::new().compress_vec(block).map_err(failed)?;
        self.blocks.push((compressed.len() as u64, crc32fast::hash(&compressed)));
        self.compressed.extend(compressed);
        Ok(())
    }

    /// Bytes that they take on disk.
    pub fn bytes(&self) -> usize {
        self.compressed.len()
    }
}

// === impl Glance ===

impl Glance {
    /// A block by its number; nothing where there is none, or it is not as it was written.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn block(&self, number: usize) -> Result<Option<Vec<u8>>, RunError> {
        let Some((first, bytes, crc32)) = self.blocks.get(number).copied() else { return Ok(None) };
        let failed = RunError::io("read", &self.path);
        let read = || {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(first))?;
            let mut compressed = Vec::new();
            file.take(bytes).read_to_end(&mut compressed)?;
            Ok(compressed)
        };
        let compressed = read().map_err(failed)?;
        if compressed.len() as u64 != bytes || crc32fast::hash(&compressed) != crc32 {
            return Ok(None);
        }
        Ok(Decoder::new().decompress_vec(&compressed).ok())
    }
}

// === impl SealedState ===

impl SealedState {
    fn of(manifest: &Manifest, step: StepNumber) -> Self {
        let sealed = manifest.seals().flat_map(|seal| &seal.steps).filter(|parts| parts.step == step.0);
        let parts = sealed.flat_map(|parts| &parts.parts).filter(|part| !part.is_of_passes());
        Self {
            made_of: parts.map(|part| part.path.clone()).collect(),
            closes: manifest.closes().filter(|close| close.step == step).count(),
        }
    }
}
