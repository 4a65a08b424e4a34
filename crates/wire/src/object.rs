//! An object that may be edited: where its members stand.

use std::ops::Range;

use crate::cursor::{Cursor, Kind, Member};
use crate::error::Malformed;

/// An object and its members, in order.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    /// Where it stands, braces included.
    pub(crate) range: Range<usize>,
    pub(crate) fields: Vec<Field<'a>>,
}

/// A member of an object, and its value.
#[derive(Debug)]
pub(crate) struct Field<'a> {
    pub(crate) member: Member<'a>,
    /// Where the value stands.
    pub(crate) value: Range<usize>,
    pub(crate) kind: Kind,
}

/// Room for the members of a request, and of most workers' `meta_info`.
const USUAL_FIELDS: usize = 24;

// === impl Object ===

impl<'a> Object<'a> {
    /// Reads the object at the cursor. `visit` sees the name of each member and of what kind its value is, which it must
    /// consume.
    pub(crate) fn read(
        cursor: &mut Cursor<'a>,
        mut visit: impl FnMut(&mut Cursor<'a>, &[u8], Kind) -> Result<(), Malformed>,
    ) -> Result<Self, Malformed> {
        let mut fields = Vec::with_capacity(USUAL_FIELDS);
        let range = cursor.members(|cursor, member| {
            let kind = cursor.kind()?;
            let start = cursor.offset();
            visit(cursor, &member.name, kind)?;
            fields.push(Field { member, value: start..cursor.offset(), kind });
            Ok(())
        })?;
        Ok(Self { range, fields })
    }

    /// The member of that name; of several the last, as JSON readers have it.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Field<'a>> {
        self.fields.iter().rfind(|field| field.name() == name)
    }

    /// Whether a member is the last of its name, the one that counts.
    pub(crate) fn is_last(&self, field: &Field<'_>) -> bool {
        self.get(field.name()).is_some_and(|last| last.member.key == field.member.key)
    }
}

// === impl Field ===

impl Field<'_> {
    /// Unescaped.
    pub(crate) fn name(&self) -> &[u8] {
        &self.member.name
    }
}
