//! What a worker's reply says of itself: `meta_info` of one sample or of a batch, or `choices` and `usage` as OpenAI's
//! replies have them.

use crate::abridged::{Abridged, Summary};
use crate::chunks::Chunks;
use crate::cursor::{Cursor, Kind};
use crate::error::{Malformed, Problem};
use crate::object::Object;
use crate::pairs::Places;
use crate::scalar::Scalar;

/// A reply, or the payload of one event of a streamed reply.
#[derive(Debug)]
pub struct Reply<'a> {
    pub(crate) source: &'a Chunks,
    /// Whether it is an array.
    pub(crate) is_batch: bool,
    pub(crate) elements: Vec<Element<'a>>,
}

/// One sample's part of a reply.
#[derive(Debug)]
pub struct Element<'a> {
    pub(crate) source: &'a Chunks,
    pub(crate) meta_info: Option<Object<'a>>,
    /// Where OpenAI's `usage` stands, if it is an object.
    usage: Option<usize>,
    pub(crate) index: Option<usize>,
    finish: Option<Finish>,
    /// Whether one of OpenAI's `choices` has the finish reason of an abort.
    has_aborted_choice: bool,
    is_error: bool,
}

/// A finish reason that is not null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    Abort,
    Other,
}

pub(crate) const INPUT_LOGPROBS: &[u8] = b"input_token_logprobs";
pub(crate) const FINISH_REASON: &[u8] = b"finish_reason";
pub(crate) const USAGE: &[u8] = b"usage";
pub(crate) const CHOICES: &[u8] = b"choices";
/// The member of `usage` that tells the cached tokens.
pub(crate) const PROMPT_DETAILS: &[u8] = b"prompt_tokens_details";

// === impl Reply ===

impl<'a> Reply<'a> {
    /// Reads a reply: an object, or an array of objects.
    pub fn scan(source: &'a Chunks) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(source);
        let is_batch = cursor.kind()? == Kind::Array;
        let elements = if is_batch {
            let mut elements = Vec::new();
            cursor.elements(|cursor| {
                elements.push(Element::scan(source, cursor)?);
                Ok(())
            })?;
            elements
        } else {
            vec![Element::scan(source, &mut cursor)?]
        };
        cursor.end()?;
        Ok(Self { source, is_batch, elements })
    }

    /// Whether a body has the form of a reply: an object, or an array of objects, that ends with the body. What is in
    /// the objects is looked at only to find their ends: as a rule by their brackets alone, and where these do not balance
    /// as [`Abridged`] finds them.
    pub fn check(source: &'a Chunks) -> Result<(), Malformed> {
        if Self::check_brackets(source).is_ok() {
            return Ok(());
        }
        let mut abridged = Abridged::new(0);
        source.pieces().for_each(|piece| abridged.push(piece));
        match abridged.finish() {
            Summary::NoReply(why) => Err(why),
            Summary::Reply(_) | Summary::Unread => Ok(()),
        }
    }

    fn check_brackets(source: &Chunks) -> Result<(), Malformed> {
        let mut cursor = Cursor::new(source);
        let object = |cursor: &mut Cursor<'_>| match cursor.kind()? {
            Kind::Object => cursor.pass(Kind::Object),
            _ => Err(cursor.fail(Problem::NotAnObject)),
        };
        if cursor.kind()? == Kind::Array {
            cursor.elements(object)?;
        } else {
            object(&mut cursor)?;
        }
        cursor.end()
    }

    /// What it was read from.
    pub fn source(&self) -> &'a Chunks {
        self.source
    }

    /// The samples, in order; one unless it is a batch.
    pub fn elements(&self) -> &[Element<'a>] {
        &self.elements
    }
}

// === impl Element ===

impl<'a> Element<'a> {
    /// Gives the numbers, strings, booleans and nulls of `meta_info`, in order. `type`, `status_code` and `message`
    /// of `finish_reason` come as `finish_reason.type` and so on; other containers, strings of more than 4 KiB and
    /// such with invalid escapes are passed over. Then the same of `usage`, with `cached_tokens` of its
    /// `prompt_tokens_details`.
    pub fn read(&self, take: impl FnMut(&str, Scalar<'a>)) {
        let meta_info = self.meta_info.as_ref().map(|meta_info| meta_info.range.start);
        Places { meta_info, usage: self.usage }.read(self.source, take);
    }

    /// `index`: whose sample an event of a streamed batch belongs to.
    pub fn index(&self) -> Option<usize> {
        self.index
    }

    /// Whether `meta_info` has a finish reason, so that it is the last word on its sample. A choice's is not: there may be
    /// more of them, and the usage comes behind.
    pub fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// Whether `meta_info` says that there is no finish reason yet.
    pub fn is_unfinished(&self) -> bool {
        let has_reason = |meta_info: &Object<'_>| meta_info.get(FINISH_REASON).is_some();
        self.finish.is_none() && self.meta_info.as_ref().is_some_and(has_reason)
    }

    /// Whether its finish reason, or that of one of its `choices`, is abort, or error as some workers have it.
    pub fn is_aborted(&self) -> bool {
        self.has_aborted_choice || self.finish == Some(Finish::Abort)
    }

    /// Whether it has an `error` instead of a result.
    pub fn is_error(&self) -> bool {
        self.is_error
    }

    /// Whether `meta_info` has a list `input_token_logprobs`, be it empty.
    pub fn has_input_logprobs(&self) -> bool {
        self.meta_info
            .as_ref()
            .and_then(|meta_info| meta_info.get(INPUT_LOGPROBS))
            .is_some_and(|field| field.kind == Kind::Array)
    }

    fn scan(source: &'a Chunks, cursor: &mut Cursor<'a>) -> Result<Self, Malformed> {
        let mut element = Self {
            source,
            meta_info: None,
            usage: None,
            index: None,
            finish: None,
            has_aborted_choice: false,
            is_error: false,
        };
        if cursor.kind()? != Kind::Object {
            return Err(cursor.fail(Problem::NotAnObject));
        }
        cursor.members(|cursor, member| {
            let kind = cursor.kind()?;
            match &*member.name {
                b"meta_info" if kind == Kind::Object => {
                    element.finish = None;
                    let finish = &mut element.finish;
                    element.meta_info = Some(Object::read(cursor, |cursor, name, kind| {
                        if name != FINISH_REASON {
                            return cursor.pass(kind);
                        }
                        *finish = scan_finish(cursor)?;
                        Ok(())
                    })?);
                }
                b"meta_info" => {
                    cursor.pass(kind)?;
                    (element.meta_info, element.finish) = (None, None);
                }
                USAGE if kind == Kind::Object => element.usage = Some(scan_usage(cursor)?),
                USAGE => {
                    cursor.pass(kind)?;
                    element.usage = None;
                }
                CHOICES if kind == Kind::Array => element.has_aborted_choice = scan_choices(cursor)?,
                CHOICES => {
                    cursor.pass(kind)?;
                    element.has_aborted_choice = false;
                }
                b"index" => {
                    let Some(Scalar::Number(index)) = cursor.scalar()? else { return Ok(()) };
                    element.index = (index >= 0.0).then_some(index as usize);
                }
                b"error" if kind != Kind::Literal => {
                    cursor.pass(kind)?;
                    element.is_error = true;
                }
                _ => cursor.pass(kind)?,
            }
            Ok(())
        })?;
        Ok(element)
    }
}

/// Passes over `usage` as what is read of it is read; gives where it begins.
fn scan_usage(cursor: &mut Cursor<'_>) -> Result<usize, Malformed> {
    let range = cursor.members(|cursor, member| {
        if &*member.name == PROMPT_DETAILS && cursor.kind()? == Kind::Object {
            return cursor.members(|cursor, _| cursor.skip().map(drop)).map(drop);
        }
        cursor.skip().map(drop)
    })?;
    Ok(range.start)
}

/// Passes over `choices`; tells whether one of them has the finish reason of an abort.
fn scan_choices(cursor: &mut Cursor<'_>) -> Result<bool, Malformed> {
    let mut has_aborted = false;
    cursor.elements(|cursor| {
        let kind = cursor.kind()?;
        if kind != Kind::Object {
            return cursor.pass(kind);
        }
        let mut is_aborted = false;
        cursor.members(|cursor, member| {
            if &*member.name != FINISH_REASON {
                return cursor.skip().map(drop);
            }
            is_aborted = scan_finish_kind(cursor)? == Some(Finish::Abort);
            Ok(())
        })?;
        has_aborted |= is_aborted;
        Ok(())
    })?;
    Ok(has_aborted)
}

/// Reads a finish reason only as far as is needed to tell what kind it is.
fn scan_finish(cursor: &mut Cursor<'_>) -> Result<Option<Finish>, Malformed> {
    if cursor.kind()? != Kind::Object {
        return scan_finish_kind(cursor);
    }
    let mut finish = Finish::Other;
    cursor.members(|cursor, member| {
        if &*member.name == b"type" {
            finish = scan_finish_kind(cursor)?.unwrap_or(Finish::Other);
            return Ok(());
        }
        cursor.skip().map(drop)
    })?;
    Ok(Some(finish))
}

/// Reads what kind a finish reason is; nothing if it is null.
fn scan_finish_kind(cursor: &mut Cursor<'_>) -> Result<Option<Finish>, Malformed> {
    if cursor.kind()? != Kind::Text {
        return Ok((cursor.scalar()? != Some(Scalar::Null)).then_some(Finish::Other));
    }
    let is_abort = matches!(&*cursor.text()?, b"abort" | b"error");
    Ok(Some(if is_abort { Finish::Abort } else { Finish::Other }))
}
