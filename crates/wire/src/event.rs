//! Server-sent events, cut out of a stream that the network cut anywhere.
//!
//! An event ends with an empty line; lines end with LF, CRLF or CR, as HTML's standard has it (9.2.6). Events keep their bytes
//! as they came: comments, unknown fields and line ends included. A CR ends its line at once, since nothing may follow it for
//! long; an LF that comes after it then stands in front of what comes next. A byte order mark at the stream's beginning is no
//! part of its first line. An event that is larger than the limit is passed on in pieces, unread, so that memory stays bounded
//! whatever a worker sends.

use std::ops::Range;

use bytes::Bytes;

use crate::chunks::Chunks;

/// Cuts a stream into events.
#[derive(Debug)]
pub struct EventSplitter {
    /// Received and not handed out.
    held: Chunks,
    /// Up to here `held` has been searched for line ends.
    searched: usize,
    /// Begin of the line that is being searched.
    line: usize,
    /// The line before it ended with a CR, to which an LF may still belong.
    is_after_cr: bool,
    /// No line has ended yet, and no byte has been handed out.
    is_at_begin: bool,
    data: Data,
    limit_bytes: usize,
    /// The event that `held` begins in was too large, and its beginning has been handed out.
    is_passing: bool,
}

/// What a stream is cut into. All parts in order make up the stream.
#[derive(Debug)]
pub enum Part {
    /// A whole event, or what the stream ended with.
    Event(Event),
    /// A piece of an event that is too large.
    Piece(Chunks),
}

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its bytes, the empty line included.
    pub raw: Chunks,
    data: Data,
}

/// The `data:` lines of an event so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Data {
    #[default]
    None,
    /// One, with its value here.
    One(Range<usize>),
    /// Several; their value is not put together, since nobody sends JSON so.
    Several,
}

/// A longer payload, which might have to be copied together, is not `[DONE]`, whatever space stands around it.
const MAX_DONE_BYTES: usize = 32;
const BYTE_ORDER_MARK: [u8; 3] = *b"\xef\xbb\xbf";

// === impl EventSplitter ===

impl EventSplitter {
    /// For events of at most so many bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            held: Chunks::new(),
            searched: 0,
            line: 0,
            is_after_cr: false,
            is_at_begin: true,
            data: Data::None,
            limit_bytes,
            is_passing: false,
        }
    }

    /// Takes what was received. [`Self::next_part`] must have given all it had, so that no more is held than
    /// one event's beginning.
    pub fn push(&mut self, received: Bytes) {
        self.held.push(received);
    }

    /// The next whole event, if it is there.
    pub fn next_part(&mut self) -> Option<Part> {
        while let Some(line_end) = self.find_line_end() {
            let line = self.line..line_end;
            self.line = self.searched;
            if self.take_line(line) {
                let raw = self.held.split_to(self.line);
                return Some(self.hand_out(raw));
            }
        }
        if self.held.len() <= self.limit_bytes && !self.is_passing {
            return None;
        }
        // Of the line that is being received a byte is kept: enough to tell at its end whether it is empty.
        (self.is_passing, self.is_at_begin) = (true, false);
        let passed = self.line.max(self.held.len().saturating_sub(1));
        let piece = self.held.split_to(passed);
        self.searched -= passed;
        self.line = self.line.saturating_sub(passed);
        Some(Part::Piece(piece)).filter(|_| passed > 0)
    }

    /// What is left when the stream has ended: an event without its empty line.
    pub fn finish(mut self) -> Option<Part> {
        if self.held.is_empty() {
            return None;
        }
        let end = self.held.len();
        self.take_line(self.line..end);
        let raw = std::mem::take(&mut self.held);
        Some(self.hand_out(raw))
    }

    /// Where the line ends; `searched` is behind what ends it.
    fn find_line_end(&mut self) -> Option<usize> {
        if self.is_after_cr && self.pass_line_feed() {
            self.line = self.searched;
        }
        let (mut base, mut found) = (0, None);
        for piece in self.held.pieces() {
            let from = self.searched.saturating_sub(base).min(piece.len());
            if let Some(distance) = memchr::memchr2(b'\n', b'\r', &piece[from..]) {
                found = Some((base + from + distance, piece[from + distance]));
                break;
            }
            base += piece.len();
        }
        let Some((end, byte)) = found else {
            self.searched = base;
            return None;
        };
        self.searched = end + 1;
        if byte == b'\r' {
            self.pass_line_feed();
        }
        Some(end)
    }

    /// Passes over the LF of a CRLF, if it is the next byte; whether it did.
    fn pass_line_feed(&mut self) -> bool {
        let next = self.held.gather(self.searched..self.searched + 1);
        let (is_there, is_line_feed) = (!next.is_empty(), *next == *b"\n");
        self.is_after_cr = !is_there;
        self.searched += usize::from(is_line_feed);
        is_line_feed
    }

    /// Takes note of a line; whether it is empty.
    fn take_line(&mut self, line: Range<usize>) -> bool {
        let Range { mut start, end } = line;
        let is_first = std::mem::take(&mut self.is_at_begin);
        if is_first && *self.held.gather(0..BYTE_ORDER_MARK.len()) == BYTE_ORDER_MARK {
            start = BYTE_ORDER_MARK.len();
        }
        let name = self.held.gather(start..end.min(start + b"data: ".len()));
        if let Some(rest) = name.strip_prefix(b"data:") {
            let space = usize::from(rest.first() == Some(&b' '));
            let value = start + b"data:".len() + space..end;
            self.data = match self.data {
                Data::None => Data::One(value),
                _ => Data::Several,
            };
        }
        end == start
    }

    fn hand_out(&mut self, raw: Chunks) -> Part {
        self.searched -= self.searched.min(raw.len());
        self.line = 0;
        let data = std::mem::take(&mut self.data);
        if std::mem::take(&mut self.is_passing) {
            return Part::Piece(raw);
        }
        Part::Event(Event { raw, data })
    }
}

// === impl Event ===

impl Event {
    /// The value of its `data:` line; nothing if it has none, or several.
    pub fn payload(&self) -> Option<Chunks> {
        self.value().map(|range| self.raw.slice(range))
    }

    /// Whether it says something: it is more than comments.
    pub fn has_data(&self) -> bool {
        self.data != Data::None
    }

    /// Whether it is `data: [DONE]`, which ends a stream.
    pub fn is_done(&self) -> bool {
        let short = self.value().filter(|value| value.len() <= MAX_DONE_BYTES);
        short.is_some_and(|value| *self.raw.gather(value).trim_ascii() == *b"[DONE]")
    }

    /// Its bytes with another payload, which must be one line.
    pub fn with_payload(&self, payload: &Chunks) -> Chunks {
        let Some(range) = self.value() else { return self.raw.clone() };
        let mut raw = self.raw.slice(0..range.start);
        raw.append(payload);
        raw.append(&self.raw.slice(range.end..self.raw.len()));
        raw
    }

    /// Where the value of its one `data:` line stands.
    fn value(&self) -> Option<Range<usize>> {
        match &self.data {
            Data::One(range) => Some(range.clone()),
            Data::None | Data::Several => None,
        }
    }
}

// === impl Part ===

impl Part {
    /// Its bytes as they came.
    pub fn into_raw(self) -> Chunks {
        match self {
            Self::Event(event) => event.raw,
            Self::Piece(piece) => piece,
        }
    }
}
