//! What a reply says of each sample as (name, scalar) pairs, read without keeping where anything stands.

use crate::chunks::Chunks;
use crate::cursor::{Cursor, Kind};
use crate::error::{Malformed, Problem};
use crate::reply::{FINISH_REASON, PROMPT_DETAILS, USAGE};
use crate::scalar::Scalar;

/// Where the objects begin that say something of a sample; of several of a name the last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    pub(crate) meta_info: Option<usize>,
    pub(crate) usage: Option<usize>,
}

/// Reads a reply, an object or an array of objects: `take` gets the number of the sample with each of its pairs, which are
/// those of [`Element::read`](crate::Element::read). Gives how many samples there are. Within `meta_info` and `usage`
/// nothing more is read where something is malformed.
pub fn read_pairs<'a>(
    source: &'a Chunks,
    mut take: impl FnMut(usize, &str, Scalar<'a>),
) -> Result<usize, Malformed> {
    let mut cursor = Cursor::new(source);
    let mut count = 0;
    let mut sample = |cursor: &mut Cursor<'a>| {
        Places::find(cursor)?.read(source, |name, scalar| take(count, name, scalar));
        count += 1;
        Ok(())
    };
    if cursor.kind()? == Kind::Array {
        cursor.elements(sample)?;
    } else {
        sample(&mut cursor)?;
    }
    cursor.end()?;
    Ok(count)
}

// === impl Places ===

impl Places {
    /// Of the object at the cursor, which is passed over.
    fn find(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        if cursor.kind()? != Kind::Object {
            return Err(cursor.fail(Problem::NotAnObject));
        }
        let mut places = Self::default();
        cursor.members(|cursor, member| {
            let kind = cursor.kind()?;
            let start = cursor.offset();
            cursor.pass(kind)?;
            let place = (kind == Kind::Object).then_some(start);
            match &*member.name {
                b"meta_info" => places.meta_info = place,
                USAGE => places.usage = place,
                _ => {}
            }
            Ok(())
        })?;
        Ok(places)
    }

    /// Reads what stands there.
    pub(crate) fn read<'a>(self, source: &'a Chunks, mut take: impl FnMut(&str, Scalar<'a>)) {
        for (place, inner) in [(self.meta_info, FINISH_REASON), (self.usage, PROMPT_DETAILS)] {
            let Some(place) = place else { continue };
            let mut cursor = Cursor::at(source, place);
            let _malformed = cursor.members(|cursor, member| {
                if &*member.name == inner && cursor.kind()? == Kind::Object {
                    return read_inner(source, cursor, inner, &mut take);
                }
                read_member(source, cursor, &member.name, &mut take)
            });
        }
    }
}

/// The object within one of the two of which some is told too, under names of its own.
fn read_inner<'a>(
    source: &'a Chunks,
    cursor: &mut Cursor<'a>,
    inner: &[u8],
    take: &mut impl FnMut(&str, Scalar<'a>),
) -> Result<(), Malformed> {
    let walked = cursor.members(|cursor, member| {
        let name: &[u8] = match (inner, &*member.name) {
            (FINISH_REASON, b"type") => b"finish_reason.type",
            (FINISH_REASON, b"status_code") => b"finish_reason.status_code",
            (FINISH_REASON, b"message") => b"finish_reason.message",
            (PROMPT_DETAILS, b"cached_tokens") => b"cached_tokens",
            _ => return cursor.skip().map(drop),
        };
        read_member(source, cursor, name, take)
    });
    walked.map(drop)
}

/// A value, if it is a scalar and its name is text: another can be none that anybody asks for. A string with an invalid
/// escape is passed over.
fn read_member<'a>(
    source: &'a Chunks,
    cursor: &mut Cursor<'a>,
    name: &[u8],
    take: &mut impl FnMut(&str, Scalar<'a>),
) -> Result<(), Malformed> {
    let start = cursor.offset();
    match cursor.scalar() {
        Ok(Some(scalar)) => {
            if let Ok(name) = std::str::from_utf8(name) {
                take(name, scalar);
            }
        }
        Ok(None) => {}
        Err(_) => {
            *cursor = Cursor::at(source, start);
            cursor.skip()?;
        }
    }
    Ok(())
}
