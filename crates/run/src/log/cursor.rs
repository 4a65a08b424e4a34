//! A place in a writer's log that moves on as the log grows, over rotation and past damage.

use std::path::{Path, PathBuf};

use rollscope_trace::Record;

use crate::error::RunError;
use crate::files;
use crate::log::mirror::Content;
use crate::log::segment::{Next, SegmentReader};
use crate::log::{Damage, LogPosition, segment_name, segment_number};

/// Reads a writer's log record by record.
#[derive(Debug)]
pub(crate) struct LogCursor {
    folder: PathBuf,
    position: LogPosition,
    /// Nothing from here on is read.
    limit: Option<LogPosition>,
    reader: Option<SegmentReader>,
    /// A later segment exists, so nothing is appended to this one any more.
    complete: bool,
    ended: bool,
    unknown: u64,
    damage: Vec<Damage>,
    /// What cannot be read at the present place: not there yet, or never.
    tail: Option<Damage>,
}

// === impl LogCursor ===

impl LogCursor {
    /// A cursor in the log in `folder`.
    pub(crate) fn new(folder: PathBuf, position: LogPosition) -> Self {
        let (limit, reader, damage, tail) = (None, None, Vec::new(), None);
        Self { folder, position, limit, reader, complete: false, ended: false, unknown: 0, damage, tail }
    }

    /// The same, going no further than a position of the writer.
    pub(crate) fn up_to(self, limit: LogPosition) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// The next record; nothing when all that is there for now has been read.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, RunError> {
        let mut going_on = true;
        while going_on && !self.ended && self.limit.is_none_or(|limit| self.position < limit) {
            let Some(reader) = self.reader()? else { return Ok(None) };
            let next = reader.next()?;
            self.position.offset = reader.offset();
            match next {
                Next::Content(Content::Record(record)) => return Ok(Some(record)),
                Next::Content(Content::Measures(_)) => {}
                Next::Content(Content::End) => self.ended = true,
                Next::Content(Content::Unknown) => self.unknown += 1,
                Next::Exhausted => going_on = self.turn(None)?,
                Next::Unreadable(damage) => going_on = self.turn(Some(damage))?,
            }
        }
        Ok(None)
    }

    /// Everything before it has been read.
    pub(crate) fn position(&self) -> LogPosition {
        self.position
    }

    /// Whether the end mark has been read.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Records of later versions that were passed over.
    pub(crate) fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Damage passed over, and what could not be read at the end of what is there.
    pub(crate) fn damage(&self) -> impl Iterator<Item = &Damage> {
        self.damage.iter().chain(&self.tail)
    }

    /// Damage passed over.
    pub(crate) fn damage_passed(&self) -> &[Damage] {
        &self.damage
    }

    /// The segment at the present place, opened.
    fn reader(&mut self) -> Result<Option<&mut SegmentReader>, RunError> {
        if self.reader.is_none() {
            let path = self.folder.join(segment_name(self.position.segment));
            self.reader = SegmentReader::open(path, self.position.offset)?;
            if self.reader.is_none() {
                // Not made yet, or removed by a retention limit: then the oldest one that is left.
                let Some(number) = first_segment_after(&self.folder, self.position.segment)? else {
                    return Ok(None);
                };
                self.position = LogPosition { segment: number, offset: 0 };
                self.reader = SegmentReader::open(self.folder.join(segment_name(number)), 0)?;
            }
        }
        Ok(self.reader.as_mut())
    }

    /// Nothing more can be read of this segment for now. Says whether to try again, be it here or in the next.
    fn turn(&mut self, damage: Option<Damage>) -> Result<bool, RunError> {
        if self.complete {
            self.damage.extend(damage);
            self.tail = None;
            self.position = LogPosition { segment: self.position.segment + 1, offset: 0 };
            (self.reader, self.complete) = (None, false);
            return Ok(true);
        }
        self.tail = damage;
        if let Some(reader) = &mut self.reader {
            reader.reread()?;
        }
        // Only a segment that had a successor before it was read to its end has been read to its end: the
        // writer may have appended to it and gone on to the next in between.
        self.complete = has_later_segment(&self.folder, self.position.segment)?;
        Ok(self.complete)
    }
}

fn has_later_segment(folder: &Path, number: u32) -> Result<bool, RunError> {
    Ok(first_segment_after(folder, number)?.is_some())
}

fn first_segment_after(folder: &Path, number: u32) -> Result<Option<u32>, RunError> {
    let numbers = files::names_in(folder)?.into_iter().filter_map(|name| segment_number(&name));
    Ok(numbers.filter(|other| *other > number).min())
}
