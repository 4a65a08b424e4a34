//! The log of one writer: a folder of segments, each a header and framed records.
//!
//! ```text
//! segment  magic (8 bytes) · major u16 · minor u16 · number u32 · frame*
//! frame    length u32 · crc32 u32 · kind u8 · version u8 · payload (length bytes, MessagePack)
//! ```
//!
//! Integers are little-endian. The checksum covers the length, the kind, the version and the payload. The
//! first frame of a segment names the measures, so that the readings of a profile refer to them by number and
//! a segment explains itself. A segment whose last frame is an end mark was closed in order.
//!
//! A frame is there when its last byte is: after a kill −9 a segment ends in a whole frame or in a torn one,
//! which is told by its offset and passed over. What follows a damaged frame in the same segment is not
//! guessed at; reading goes on with the next segment.

pub(crate) mod cursor;
pub(crate) mod frame;
pub(crate) mod mirror;
pub(crate) mod pack;
pub(crate) mod segment;
pub(crate) mod writer;

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::contents::Contents;

/// A place in a writer's log: everything before it has been written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogPosition {
    /// Number of the segment; the first is 1.
    pub segment: u32,
    /// Bytes from the segment's begin.
    pub offset: u64,
}

/// What is to be sealed of a writer's log: all before a position. Its writer may give the records too, so that they need
/// not be read again.
#[derive(Debug)]
pub struct LogStretch {
    pub(crate) up_to: LogPosition,
    /// All records from a position on.
    pub(crate) contents: Option<Contents>,
}

/// A place in a log from which on nothing can be read in that segment; a part that cannot be read, where the log that it
/// was made from is gone too; or a manifest that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment, the part or the manifest.
    pub path: PathBuf,
    /// Where the damage begins; 0 of a part and of a manifest.
    pub offset: u64,
    /// What is wrong.
    pub kind: DamageKind,
}

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// It ends within a record, or within its header: the writer was killed, or the disk was full.
    Torn,
    /// A record's checksum does not match.
    Checksum,
    /// A record claims to be longer than any is.
    TooLong,
    /// It does not begin as a segment does.
    Header,
    /// It was written by a later, incompatible version.
    Newer,
    /// It is a part that is gone or does not hold what was written.
    Part,
    /// It is a manifest that does not hold what was written.
    Manifest,
}

// === impl LogStretch ===

impl LogStretch {
    /// All before a [`LogWriter::position`](crate::LogWriter::position), to be read from the log.
    pub fn up_to(up_to: LogPosition) -> Self {
        Self { up_to, contents: None }
    }

    /// Where it ends.
    pub fn end(&self) -> LogPosition {
        self.up_to
    }
}

// === impl LogPosition ===

impl LogPosition {
    /// Before the first segment.
    pub(crate) const START: Self = Self { segment: 1, offset: 0 };
}

// === impl DamageKind ===

impl DamageKind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Torn, Self::Checksum, Self::TooLong, Self::Header, Self::Newer, Self::Part, Self::Manifest];

    /// As written in manifests and pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Torn => "torn",
            Self::Checksum => "checksum",
            Self::TooLong => "too_long",
            Self::Header => "header",
            Self::Newer => "newer",
            Self::Part => "part",
            Self::Manifest => "manifest",
        }
    }

    /// Reads [`Self::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

// === impl Damage ===

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            DamageKind::Torn => "ends within a record",
            DamageKind::Checksum => "a record's checksum does not match",
            DamageKind::TooLong => "a record claims an impossible length",
            DamageKind::Header => "does not begin as a segment does",
            DamageKind::Newer => "written by a newer version",
            DamageKind::Manifest => {
                "a manifest is damaged; what it alone names is missing where its log is gone"
            }
            // Nothing of a part is read once its checksum is another.
            DamageKind::Part => {
                return write!(f, "a part is damaged and its log is gone: {}", self.path.display());
            }
        };
        write!(f, "{what}, at byte {} of {}", self.offset, self.path.display())
    }
}

/// The name of a segment's file.
pub(crate) fn segment_name(number: u32) -> String {
    format!("{number:06}.seg")
}

/// Reads [`segment_name`].
pub(crate) fn segment_number(name: &str) -> Option<u32> {
    name.strip_suffix(".seg")?.parse().ok()
}
