//! Reading one segment, which its writer may still be appending to.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use crate::error::RunError;
use crate::log::frame::{self, FRAME_HEADER_BYTES, MAX_PAYLOAD_BYTES, Parsed};
use crate::log::mirror::{self, Content, MeasureNames};
use crate::log::{Damage, DamageKind};
use crate::texts::SharedTexts;
use crate::version::{FORMAT, Version};

/// Magic, version, number.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 16;

const MAGIC: [u8; 8] = *b"rollslog";

/// Read ahead by this much.
const CHUNK_BYTES: usize = 256 << 10;

/// A segment being read.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    path: PathBuf,
    file: File,
    names: MeasureNames,
    /// The names of workers.
    texts: SharedTexts,
    /// Bytes read ahead; those before `at` have been consumed.
    buffer: Vec<u8>,
    at: usize,
    /// Offset in the segment of `buffer[at]`.
    offset: u64,
}

/// What a segment gives next.
#[derive(Debug)]
pub(crate) enum Next {
    /// A frame.
    Content(Content),
    /// All that is there has been read.
    Exhausted,
    /// What follows is no frame, or not yet a whole one.
    Unreadable(Damage),
}

/// A segment's header.
pub(crate) fn header(number: u32) -> [u8; SEGMENT_HEADER_BYTES] {
    let mut header = [0; SEGMENT_HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&FORMAT.major.to_le_bytes());
    header[10..12].copy_from_slice(&FORMAT.minor.to_le_bytes());
    header[12..].copy_from_slice(&number.to_le_bytes());
    header
}

// === impl SegmentReader ===

impl SegmentReader {
    /// Opens a segment for reading from an offset; nothing when there is no such file.
    pub(crate) fn open(path: PathBuf, offset: u64) -> Result<Option<Self>, RunError> {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(RunError::io("open", &path)(source)),
        };
        let (names, texts, buffer) = (MeasureNames::default(), SharedTexts::default(), Vec::new());
        let mut reader = Self { path, file, names, texts, buffer, at: 0, offset: 0 };
        if offset > 0 {
            // The names of the measures stand at the begin, wherever one reads on.
            if let Next::Content(Content::Measures(names)) = reader.next()? {
                reader.names = names;
            }
            reader.seek(offset)?;
        }
        Ok(Some(reader))
    }

    /// Offset in the segment up to which it has been read.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next frame. After anything but content the same place is read again.
    pub(crate) fn next(&mut self) -> Result<Next, RunError> {
        if self.offset == 0 {
            if !self.fill(SEGMENT_HEADER_BYTES)? {
                return Ok(self.unreadable(DamageKind::Torn));
            }
            if let Some(kind) = wrong_header(&self.buffer[self.at..]) {
                return Ok(self.unreadable(kind));
            }
            self.consume(SEGMENT_HEADER_BYTES);
        }
        let mut needed = FRAME_HEADER_BYTES;
        loop {
            if !self.fill(needed)? {
                let exhausted = self.at == self.buffer.len();
                return Ok(if exhausted { Next::Exhausted } else { self.unreadable(DamageKind::Torn) });
            }
            match frame::parse(&self.buffer[self.at..]) {
                Parsed::Frame(frame) => {
                    let content = mirror::content(frame, &self.names, &mut self.texts);
                    let bytes = frame.bytes();
                    self.consume(bytes);
                    if let Content::Measures(names) = &content {
                        self.names = names.clone();
                    }
                    return Ok(Next::Content(content));
                }
                Parsed::Partial(more) => needed = more,
                Parsed::Bad(kind) => return Ok(self.unreadable(kind)),
            }
        }
    }

    /// Forgets what was read ahead, so that what has been written meanwhile is seen.
    pub(crate) fn reread(&mut self) -> Result<(), RunError> {
        self.seek(self.offset)
    }

    fn unreadable(&self, kind: DamageKind) -> Next {
        Next::Unreadable(Damage { path: self.path.clone(), offset: self.offset, kind })
    }

    fn seek(&mut self, offset: u64) -> Result<(), RunError> {
        self.file.seek(SeekFrom::Start(offset)).map_err(RunError::io("read", &self.path))?;
        self.buffer.clear();
        (self.at, self.offset) = (0, offset);
        Ok(())
    }

    fn consume(&mut self, bytes: usize) {
        self.at += bytes;
        self.offset += bytes as u64;
    }

    /// Reads ahead until `needed` bytes are there; says whether they are.
    fn fill(&mut self, needed: usize) -> Result<bool, RunError> {
        debug_assert!(needed <= FRAME_HEADER_BYTES + MAX_PAYLOAD_BYTES);
        if self.buffer.len() - self.at >= needed {
            return Ok(true);
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        while self.buffer.len() < needed {
            let wanted = CHUNK_BYTES.max(needed - self.buffer.len()) as u64;
            let read = (&mut self.file).take(wanted).read_to_end(&mut self.buffer);
            if read.map_err(RunError::io("read", &self.path))? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What is wrong with a segment's header.
fn wrong_header(bytes: &[u8]) -> Option<DamageKind> {
    let Some((&[magic @ .., m0, m1, n0, n1, _, _, _, _], _)) =
        bytes.split_first_chunk::<SEGMENT_HEADER_BYTES>()
    else {
        return Some(DamageKind::Torn);
    };
    if magic != MAGIC {
        return Some(DamageKind::Header);
    }
    let version = Version { major: u16::from_le_bytes([m0, m1]), minor: u16::from_le_bytes([n0, n1]) };
    (version.major > FORMAT.major).then_some(DamageKind::Newer)
}
