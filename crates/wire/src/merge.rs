//! The merge of a prefill reply into a decode reply.
//!
//! Both workers of a prefill/decode pair answer the same request. The decode reply has the tokens; the prefill
//! reply has what only the prefill worker could measure. Every member of its `meta_info` whose name begins with
//! `pd_prefill_` or `pd_transfer_` is put into the decode reply's `meta_info`, where it replaces members of the
//! same name, so that exactly one is left. Where log-probabilities are asked for, `input_token_logprobs`
//! becomes the prefill's list followed by the decode's.

use std::ops::Range;

use bytes::Bytes;

use crate::chunks::Chunks;
use crate::cursor::{Cursor, Kind};
use crate::error::Mismatch;
use crate::object::{Field, Object};
use crate::reply::{Element, INPUT_LOGPROBS, Reply};
use crate::request::MAX_SAMPLES;
use crate::splice::{Fate, Splicer};

/// What a prefill reply contributes, sample by sample. It owns what is small and shares what is large.
#[derive(Clone, Debug, Default)]
pub struct PrefillShare {
    is_batch: bool,
    samples: Vec<SampleShare>,
}

/// What becomes of `input_token_logprobs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogprobJoin {
    /// The decode reply's stay as they are.
    Never,
    /// They are joined where the decode reply has such a list.
    WherePresent,
    /// They are joined, and put in where the decode reply has none.
    Always,
}

#[derive(Clone, Debug, Default)]
struct SampleShare {
    /// Members by unescaped name, spelled as the prefill worker did.
    members: Vec<(Vec<u8>, Vec<u8>)>,
    /// The inside of a list that is not empty.
    logprobs: Option<Chunks>,
}

const MERGED_PREFIXES: [&[u8]; 2] = [b"pd_prefill_", b"pd_transfer_"];

// === impl PrefillShare ===

impl PrefillShare {
    /// Takes what a reply, or an event of a streamed one, contributes. A later event's word replaces an
    /// earlier one's.
    pub fn add(&mut self, reply: &Reply<'_>) {
        self.is_batch |= reply.is_batch;
        for (position, element) in reply.elements.iter().enumerate() {
            let index = element.index.unwrap_or(position);
            if index >= MAX_SAMPLES {
                continue; // not to be believed
            }
            self.is_batch |= element.index.is_some();
            if self.samples.len() <= index {
                self.samples.resize_with(index + 1, SampleShare::default);
            }
            self.samples[index].add(element);
        }
    }

    fn of(&self, reply: &Reply<'_>) -> Result<&[SampleShare], Mismatch> {
        let mismatch = Mismatch { prefill: self.samples.len(), decode: reply.elements.len() };
        let samples = match reply.elements.first().and_then(|element| element.index) {
            _ if reply.is_batch => Some(&self.samples[..]).filter(|_| self.is_batch),
            Some(index) if self.is_batch => self.samples.get(index..=index),
            None if self.is_batch => None,
            _ => Some(&self.samples[..]),
        };
        samples.filter(|samples| samples.len() == reply.elements.len()).ok_or(mismatch)
    }
}

// === impl SampleShare ===

impl SampleShare {
    fn add(&mut self, element: &Element<'_>) {
        let Some(meta_info) = &element.meta_info else { return };
        for field in &meta_info.fields {
            if MERGED_PREFIXES.iter().any(|prefix| field.name().starts_with(prefix)) {
                let member = spell(element.source, field);
                match self.members.iter_mut().find(|(name, _)| name == field.name()) {
                    Some((_, earlier)) => *earlier = member,
                    None => self.members.push((field.name().to_vec(), member)),
                }
            }
        }
        if let Some(field) = meta_info.get(INPUT_LOGPROBS)
            && let Some(inside) = list_inside(element.source, field)
        {
            self.logprobs = Some(on_one_line(element.source.slice(inside)));
        }
    }

    /// Merges into one `meta_info`, which the splicer has not passed yet.
    fn merge_into(
        &self,
        splicer: &mut Splicer<'_>,
        source: &Chunks,
        meta_info: &Object<'_>,
        join: LogprobJoin,
    ) {
        let mut members =
            self.members.iter().map(|(_, member)| &member[..]).collect::<Vec<_>>().join(&b","[..]);
        // Of several members of the name, readers see the last; the others go when it is written.
        let own = meta_info.get(INPUT_LOGPROBS);
        let list = self.logprobs.as_ref().and_then(|logprobs| joined_list(logprobs, source, own, join));
        let mut front = Chunks::new();
        if let (Some(list), None) = (&list, own) {
            let comma: &[u8] = if members.is_empty() { b"" } else { b"," };
            members.extend_from_slice(comma);
            members.extend_from_slice(b"\"input_token_logprobs\":");
            front.push(members.into());
            front.append(list);
        } else {
            front.push(members.into());
        }
        splicer.edit(meta_info, &front, |field| match (&list, own) {
            _ if self.members.iter().any(|(name, _)| name == field.name()) => Fate::Drop,
            (Some(list), Some(own)) if own.member.key == field.member.key => Fate::Replace(list.clone()),
            (Some(_), Some(own)) if own.name() == field.name() => Fate::Drop,
            _ => Fate::Keep,
        });
    }
}

// === impl Reply ===

impl Reply<'_> {
    /// The reply with what the prefill contributes. A sample without `meta_info` stays as it is.
    pub fn merge(&self, share: &PrefillShare, join: LogprobJoin) -> Result<Chunks, Mismatch> {
        let samples = share.of(self)?;
        let mut splicer = Splicer::new(self.source);
        for (element, sample) in self.elements.iter().zip(samples) {
            if let Some(meta_info) = &element.meta_info {
                sample.merge_into(&mut splicer, self.source, meta_info, join);
            }
        }
        Ok(splicer.finish())
    }
}

/// The value that `input_token_logprobs` gets: `[prefill's, decode's]`. Nothing where it is not written.
fn joined_list(
    logprobs: &Chunks,
    source: &Chunks,
    own: Option<&Field<'_>>,
    join: LogprobJoin,
) -> Option<Chunks> {
    let mut list = Chunks::from("[");
    list.append(logprobs);
    match (own, join) {
        (_, LogprobJoin::Never) => return None,
        (Some(own), _) if own.kind == Kind::Array => {
            if list_inside(source, own).is_some() {
                list.push(Bytes::from_static(b","));
            }
            list.append(&source.slice(own.value.start + 1..own.value.end));
        }
        (Some(own), LogprobJoin::Always) if *source.gather(own.value.clone()) == *b"null" => {
            list.push(Bytes::from_static(b"]"));
        }
        (None, LogprobJoin::Always) => list.push(Bytes::from_static(b"]")),
        _ => return None,
    }
    Some(list)
}

/// Where the elements of a list stand, if it is a list and has any.
fn list_inside(source: &Chunks, field: &Field<'_>) -> Option<Range<usize>> {
    let inside = field.value.start + 1..field.value.end.checked_sub(1)?;
    let first = Cursor::at(source, inside.start).token();
    (field.kind == Kind::Array && first != Ok(b']')).then_some(inside)
}

/// A member as it stands, but without space around its colon and on one line.
fn spell(source: &Chunks, field: &Field<'_>) -> Vec<u8> {
    let mut member = source.gather(field.member.key..field.value.start).trim_ascii_end().to_vec();
    if member.last() == Some(&b':') {
        member.pop();
        member.truncate(member.trim_ascii_end().len());
    }
    member.push(b':');
    let value = source.gather(field.value.clone());
    member.extend(value.iter().map(|byte| if is_line_end(*byte) { b' ' } else { *byte }));
    member
}

/// A line end within a value can only be space. It would end the line of an event that the value is put into.
fn on_one_line(text: Chunks) -> Chunks {
    if text.pieces().all(|piece| memchr::memchr2(b'\n', b'\r', piece).is_none()) {
        return text;
    }
    let line: Vec<u8> =
        text.pieces().flatten().map(|byte| if is_line_end(*byte) { b' ' } else { *byte }).collect();
    line.into()
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}
