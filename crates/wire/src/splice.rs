//! Writing a changed body: slices of the original, and what is put between them.

use std::ops::Range;

use crate::chunks::Chunks;
use crate::object::{Field, Object};

/// A copy of a body in the making. Offsets are of the original and only ever grow.
#[derive(Debug)]
pub(crate) struct Splicer<'a> {
    source: &'a Chunks,
    /// What is before has been copied or left out.
    at: usize,
    out: Chunks,
    /// What comes behind that.
    copied: Vec<u8>,
    /// Whether the object that was entered has a member by now.
    has_members: bool,
}

/// What becomes of a member.
#[derive(Debug)]
pub(crate) enum Fate {
    Keep,
    Drop,
    /// The name stays, the value is this.
    Replace(Chunks),
}

/// What is longer is shared; what is not takes less time to copy than to hold apart from what it stands between.
const MAX_COPIED_BYTES: usize = 2048;

// === impl Splicer ===

impl<'a> Splicer<'a> {
    pub(crate) fn new(source: &'a Chunks) -> Self {
        Self { source, at: 0, out: Chunks::new(), copied: Vec::new(), has_members: false }
    }

    /// Copies everything up to the inside of an object, where so many bytes of members are to be put.
    pub(crate) fn enter(&mut self, object: &Object<'_>, room_bytes: usize) {
        let rest_bytes = self.source.len() - self.at;
        let copied_bytes = if rest_bytes <= MAX_COPIED_BYTES { rest_bytes } else { 0 };
        self.copied.reserve(room_bytes + copied_bytes);
        self.copy_to(object.range.start + 1);
        self.has_members = false;
    }

    /// Puts members at the front of the object that was entered, or one's name and colon.
    pub(crate) fn put(&mut self, members: &[u8]) {
        if members.is_empty() {
            return;
        }
        if std::mem::replace(&mut self.has_members, true) {
            self.copied.push(b',');
        }
        self.copied.extend_from_slice(members);
    }

    /// Puts a value behind its name.
    pub(crate) fn put_value(&mut self, value: &Chunks) {
        self.take(value, 0..value.len());
    }

    /// Decides on the members of the object that was entered. Commas are set right; all other bytes of what is kept stay.
    pub(crate) fn edit(&mut self, object: &Object<'_>, mut fate: impl FnMut(&Field<'_>) -> Fate) {
        for field in &object.fields {
            let fate = fate(field);
            if let Fate::Drop = fate {
                self.copy_to(field.member.separator);
                self.at = field.value.end;
                continue;
            }
            match field.member.comma {
                None if self.has_members => self.copied.push(b','),
                Some(comma) if !self.has_members => {
                    self.copy_to(comma);
                    self.at = comma + 1;
                }
                _ => {}
            }
            self.has_members = true;
            if let Fate::Replace(value) = fate {
                self.copy_to(field.value.start);
                self.put_value(&value);
                self.at = field.value.end;
            }
        }
    }

    /// Copies the rest.
    pub(crate) fn finish(mut self) -> Chunks {
        self.copy_to(self.source.len());
        self.out.push(self.copied.into());
        self.out
    }

    fn copy_to(&mut self, offset: usize) {
        self.take(self.source, self.at..offset);
        self.at = self.at.max(offset);
    }

    fn take(&mut self, from: &Chunks, range: Range<usize>) {
        from.for_each_in(range, |piece, within| {
            if within.len() <= MAX_COPIED_BYTES {
                self.copied.extend_from_slice(&piece[within]);
                return;
            }
            if !self.copied.is_empty() {
                self.out.push(std::mem::take(&mut self.copied).into());
            }
            self.out.push(piece.slice(within));
        });
    }
}
