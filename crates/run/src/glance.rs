//! `glance.bin`: what a viewer shows of a step without reading it, made when the step was sealed.
//!
//! ```text
//! {"made_of": […], "closes": 1, "blocks": [[123, 456], …]}\n   a line of JSON: the parts that the step consisted of, and of
//!                                                              each block its length and the CRC-32 of it
//! …                                                            the blocks that the viewer put there, each compressed by Snappy
//! ```
//!
//! It holds nothing that the parts do not hold, and nothing of forward passes, which are still heard of when a step has
//! ended. One that was made of other parts than those that the newest manifest names is as if it were not there, and so is one
//! that cannot be read, and a block that a disk has changed. Whatever stands in it costs a reader bounded memory.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use rollscope_trace::StepNumber;
use serde::{Deserialize, Serialize};
use snap::raw::{Decoder, Encoder, decompress_len};

use crate::error::RunError;
use crate::files;
use crate::manifest::{Manifest, Newest};
use crate::run::Run;

const NAME: &str = "glance.bin";
/// The first line takes some 25 bytes a block and 60 a part.
const MAX_HEAD_BYTES: u64 = 16 << 20;
/// A block, before it is compressed: that of a worker of ten million spans takes half of it.
const MAX_BLOCK_BYTES: usize = 1 << 30;
/// Snappy's longest copy is of 64 bytes and takes three.
const MAX_RATIO: usize = 64 / 3 + 1;

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
        files::create_folders(&self.step_folder(step))?;
        files::replace_with(&self.glance_path(step), [&bytes, &blocks.compressed])
    }

    /// What was kept, if it can be read and is of all that is sealed of the step now.
    pub fn glance(&self, step: StepNumber) -> Result<Option<Glance>, RunError> {
        let path = self.glance_path(step);
        let Some((Head { state, blocks }, mut at)) = Head::read(&path) else { return Ok(None) };
        let place = |(bytes, crc32): (u64, u32)| {
            let first = at;
            at = at.saturating_add(bytes);
            (first, bytes, crc32)
        };
        let blocks = blocks.into_iter().map(place).collect();
        Ok((state == self.sealed_state(step)?).then_some(Glance { path, blocks }))
    }

    pub(crate) fn glance_path(&self, step: StepNumber) -> PathBuf {
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
        let (head, compressed) = compressed(block)?;
        self.blocks.push(head);
        self.compressed.extend(compressed);
        Ok(())
    }

    /// Puts a block before the others, of which each has a number one higher from then on.
    ///
    /// # Errors
    /// It is too large.
    pub fn push_first(&mut self, block: &[u8]) -> Result<(), RunError> {
        let (head, compressed) = compressed(block)?;
        self.blocks.insert(0, head);
        if self.compressed.is_empty() {
            self.compressed = compressed;
        } else {
            self.compressed.splice(0..0, compressed);
        }
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes that they take on disk.
    pub fn bytes(&self) -> usize {
        self.compressed.len()
    }
}

// === impl Glance ===

impl Glance {
    /// A block by its number; nothing where there is none, or it cannot be read as it was written.
    pub fn block(&self, number: usize) -> Option<Vec<u8>> {
        let (first, bytes, crc32) = self.blocks.get(number).copied()?;
        let mut file = File::open(&self.path).ok()?;
        file.seek(SeekFrom::Start(first)).ok()?;
        let mut compressed = Vec::new();
        // What cannot be compressed takes a little more.
        file.take(bytes.min(2 * MAX_BLOCK_BYTES as u64)).read_to_end(&mut compressed).ok()?;
        let is_whole = compressed.len() as u64 == bytes && crc32fast::hash(&compressed) == crc32;
        (is_whole && claims_what_it_may(&compressed))
            .then(|| Decoder::new().decompress_vec(&compressed).ok())?
    }
}

/// A block as it is written, with its length and CRC-32.
fn compressed(block: &[u8]) -> Result<((u64, u32), Vec<u8>), RunError> {
    let failed = RunError::io("compress", NAME.as_ref());
    if block.len() > MAX_BLOCK_BYTES {
        return Err(failed(io::ErrorKind::FileTooLarge.into()));
    }
    let compressed = Encoder::new().compress_vec(block).map_err(|error| failed(io::Error::other(error)))?;
    Ok(((compressed.len() as u64, crc32fast::hash(&compressed)), compressed))
}

/// Room is made for what a block claims to hold before it is looked at.
fn claims_what_it_may(compressed: &[u8]) -> bool {
    let most = compressed.len().saturating_mul(MAX_RATIO).min(MAX_BLOCK_BYTES);
    decompress_len(compressed).is_ok_and(|claimed| claimed <= most)
}

// === impl Head ===

impl Head {
    /// With the place where the blocks begin; nothing where it cannot be read.
    fn read(path: &Path) -> Option<(Self, u64)> {
        let mut line = Vec::new();
        let file = File::open(path).ok()?.take(MAX_HEAD_BYTES);
        BufReader::new(file).read_until(b'\n', &mut line).ok()?;
        Some((serde_json::from_slice(&line).ok()?, line.len() as u64))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_claims_no_more_than_it_can_hold() {
        let made = |block: &[u8]| Encoder::new().compress_vec(block).unwrap();
        for honest in [made(b""), made(b"some bytes"), made(&vec![7; 1_000_000])] {
            assert!(claims_what_it_may(&honest), "{}", honest.len());
        }
        // A claim stands before all else, seven bits a byte.
        let claiming = |claim: &[u8], length: usize| [claim, &vec![0; length][..]].concat();
        assert!(claims_what_it_may(&claiming(&[0x80, 0x01], 6)), "128 of eight bytes");
        for hostile in [
            claiming(&[0xff, 0xff, 0xff, 0xff, 0x0f], 100),
            claiming(&[0x80, 0x08], 6),
            claiming(&[0x81, 0x80, 0x80, 0x80, 0x04], 60 << 20),
        ] {
            assert!(!claims_what_it_may(&hostile), "{}", hostile.len());
        }
    }
}
