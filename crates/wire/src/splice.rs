//! Writing a changed body: slices of the original, and what is put between them.

use bytes::Bytes;

use crate::chunks::Chunks;
use crate::object::{Field, Object};

/// A copy of a body in the making. Offsets are of the original and only ever grow.
#[derive(Debug)]
pub(crate) struct Splicer<'a> {
    source: &'a Chunks,
    /// What is before has been copied or left out.
    at: usize,
    out: Chunks,
}

/// What becomes of a member.
#[derive(Debug)]
pub(crate) enum Fate {
    Keep,
    Drop,
    /// The name stays, the value is this.
    Replace(Chunks),
}

// === impl Splicer ===

impl<'a> Splicer<'a> {
    pub(crate) fn new(source: &'a Chunks) -> Self {
        Self { source, at: 0, out: Chunks::new() }
    }

    /// Copies everything up to the object, puts members at its front and decides on its own ones. Commas are
    /// set right; all other bytes of what is kept stay.
    pub(crate) fn edit(
        &mut self,
        object: &Object<'_>,
        members: &Chunks,
        mut fate: impl FnMut(&Field<'_>) -> Fate,
    ) {
        self.copy_to(object.range.start + 1);
        let mut has_members = !members.is_empty();
        self.out.append(members);
        for field in &object.fields {
            let fate = fate(field);
            if let Fate::Drop = fate {
                self.copy_to(field.member.separator);
                self.at = field.value.end;
                continue;
            }
            match field.member.comma {
                None if has_members => self.out.push(Bytes::from_static(b",")),
                Some(comma) if !has_members => {
                    self.copy_to(comma);
                    self.at = comma + 1;
                }
                _ => {}
            }
            has_members = true;
            if let Fate::Replace(value) = fate {
                self.copy_to(field.value.start);
                self.out.append(&value);
                self.at = field.value.end;
            }
        }
    }

    /// Copies the rest.
    pub(crate) fn finish(mut self) -> Chunks {
        self.copy_to(self.source.len());
        self.out
    }

    fn copy_to(&mut self, offset: usize) {
        self.source.copy_range_to(self.at..offset, &mut self.out);
        self.at = self.at.max(offset);
    }
}
