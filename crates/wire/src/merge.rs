//! The merge of a prefill reply into a decode reply.
//!
//! Both workers of a prefill/decode pair answer the same request. The decode reply has the tokens; the prefill
//! reply has what only the prefill worker could measure. Put into the decode reply's `meta_info`, where they replace
//! members of the same name, so that exactly one is left, are of the prefill's:
//!
//! - every member whose name begins with `pd_prefill_` or `pd_transfer_`;
//! - the timings that every worker reports under one name, under a name of their own ([`TIMINGS`]);
//! - what the prefix cache held of the prompt ([`CACHED`]);
//! - where log-probabilities are asked for, those of the prompt ([`LISTS`]): the prefill's list followed by the
//!   decode's;
//! - the routed experts of the prompt, in front of those of the tokens ([`PromptExperts`]).

use std::ops::Range;

use bytes::Bytes;

use crate::chunks::Chunks;
use crate::cursor::{Cursor, Kind};
use crate::error::Mismatch;
use crate::experts::PromptExperts;
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

/// What becomes of the lists of the prompt's log-probabilities.
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
    /// Members as they are written, and names that are not a part of them.
    text: Vec<u8>,
    members: Vec<SharedMember>,
    /// The members as they are put into each reply, with commas between.
    joined: Vec<u8>,
    /// By [`LISTS`]: the inside of a list that is not empty.
    lists: [Option<Chunks>; LISTS.len()],
    experts: Option<PromptExperts>,
}

/// A member that is copied, as places in the share's text.
#[derive(Clone, Debug)]
struct SharedMember {
    /// Unescaped.
    name: Range<usize>,
    /// Name and value as they are written; the value as the prefill worker spelled it.
    member: Range<usize>,
    /// The prefill worker calls it so itself.
    is_own_name: bool,
}

const MERGED_PREFIXES: [&[u8]; 2] = [b"pd_prefill_", b"pd_transfer_"];

/// What the prefix cache held of the prompt, which is the prefill worker's.
const CACHED: [&[u8]; 2] = [b"cached_tokens", b"cached_tokens_details"];

/// Timings that SGLang's workers report under one name whatever they do, and the prefill worker's name for them.
const TIMINGS: [(&[u8], &str); 12] = [
    (b"queue_time", "pd_prefill_queue_time"),
    (b"e2e_latency", "pd_prefill_e2e_latency"),
    (b"inference_time", "pd_prefill_inference_time"),
    (b"first_token_latency", "pd_prefill_first_token_latency"),
    (b"prefill_waiting_latency", "pd_prefill_waiting_latency"),
    (b"prefill_launch_latency", "pd_prefill_launch_latency"),
    (b"request_received_ts", "pd_prefill_request_received_ts"),
    (b"api_server_dispatch_finish_ts", "pd_prefill_api_server_dispatch_finish_ts"),
    (b"forward_entry_time", "pd_prefill_forward_entry_time"),
    (b"prefill_finished_time", "pd_prefill_finished_time"),
    (b"request_finished_ts", "pd_prefill_request_finished_ts"),
    (b"response_sent_to_client_ts", "pd_prefill_response_sent_to_client_ts"),
];

/// Lists with an entry for each token of the prompt.
const LISTS: [&[u8]; 3] = [INPUT_LOGPROBS, b"input_top_logprobs", b"input_token_ids_logprobs"];

/// Room for what most prefill workers contribute.
const USUAL_MEMBERS: usize = 24;
const USUAL_MEMBER_BYTES: usize = 48;

// === impl PrefillShare ===

impl PrefillShare {
    /// Takes what a reply, or an event of a streamed one, contributes. A later event's word replaces an
    /// earlier one's.
    pub fn add(&mut self, reply: &Reply<'_>) {
        self.is_batch |= reply.is_batch;
        // No room for more, since one sample takes much, and none for what is not to be believed.
        let count = reply.elements.len().min(MAX_SAMPLES);
        self.samples.reserve_exact(count.saturating_sub(self.samples.len()));
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
        let (source, Some(meta_info)) = (element.source, &element.meta_info) else { return };
        if self.members.is_empty() {
            self.members.reserve(USUAL_MEMBERS);
            self.text.reserve(USUAL_MEMBERS * USUAL_MEMBER_BYTES);
        }
        for field in &meta_info.fields {
            self.add_field(source, meta_info, field);
        }
        for (name, list) in LISTS.iter().zip(&mut self.lists) {
            if let Some(field) = meta_info.get(name)
                && let Some(inside) = list_inside(source, field)
            {
                *list = Some(on_one_line(source.slice(inside)));
            }
        }
        if let Some(experts) = PromptExperts::read(source, meta_info) {
            self.experts = Some(experts);
        }
        self.join();
    }

    /// Once for all events that they are merged into.
    fn join(&mut self) {
        self.joined.clear();
        self.joined.reserve(self.text.len() + self.members.len());
        for member in &self.members {
            if !self.joined.is_empty() {
                self.joined.push(b',');
            }
            self.joined.extend_from_slice(&self.text[member.member.clone()]);
        }
    }

    /// Takes a member if it is to be copied.
    fn add_field(&mut self, source: &Chunks, meta_info: &Object<'_>, field: &Field<'_>) {
        let name = field.name();
        let mut timing = None;
        if !is_of_prefill(name) {
            timing = TIMINGS.iter().find(|(timing, _)| *timing == name);
            let is_copied = timing.is_some() || CACHED.contains(&name);
            if !is_copied || is_null(source, field) || !meta_info.is_last(field) {
                return;
            }
        }
        let member = match timing {
            Some((_, name)) => self.write(source, field, name.as_bytes()),
            None => self.spell(source, field),
        };
        let text = &self.text;
        let name = &text[member.name.clone()];
        let is_same = |earlier: &&mut SharedMember| {
            earlier.name.len() == name.len() && text[earlier.name.clone()] == *name
        };
        match self.members.iter_mut().find(is_same) {
            Some(earlier) if earlier.is_own_name && !member.is_own_name => {}
            Some(earlier) => *earlier = member,
            None => self.members.push(member),
        }
    }

    /// Writes a member under another name, which needs no escapes.
    fn write(&mut self, source: &Chunks, field: &Field<'_>, name: &[u8]) -> SharedMember {
        let start = self.text.len();
        self.text.push(b'"');
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(b"\":");
        self.write_value(source, field);
        SharedMember {
            name: start + 1..start + 1 + name.len(),
            member: start..self.text.len(),
            is_own_name: false,
        }
    }

    /// Writes a member as it stands, but without space around its colon and on one line.
    fn spell(&mut self, source: &Chunks, field: &Field<'_>) -> SharedMember {
        let start = self.text.len();
        let name_bytes = field.name().len();
        // As a rule there is nothing between but the quotes and the colon, and no escape that would be longer.
        if field.kind == Kind::Literal && field.value.start - field.member.key == name_bytes + 3 {
            self.text.extend_from_slice(&source.gather(field.member.key..field.value.end));
            let name = start + 1..start + 1 + name_bytes;
            return SharedMember { name, member: start..self.text.len(), is_own_name: true };
        }
        let written = source.gather(field.member.key..field.value.start);
        let written = written.trim_ascii_end();
        let written = written.strip_suffix(b":").unwrap_or(written).trim_ascii_end();
        self.text.extend_from_slice(written);
        let mut name = start + 1..self.text.len() - 1;
        self.text.push(b':');
        self.write_value(source, field);
        let member = start..self.text.len();
        if self.text[name.clone()] != *field.name() {
            // It is written with escapes.
            self.text.extend_from_slice(field.name());
            name = member.end..self.text.len();
        }
        SharedMember { name, member, is_own_name: true }
    }

    fn write_value(&mut self, source: &Chunks, field: &Field<'_>) {
        let value = source.gather(field.value.clone());
        if field.kind == Kind::Literal {
            return self.text.extend_from_slice(&value);
        }
        let spaced = |byte: &u8| if is_line_end(*byte) { b' ' } else { *byte };
        self.text.extend(value.iter().map(spaced));
    }

    /// Merges into one `meta_info`, which the splicer has not passed yet. Whether there was anything to merge.
    fn merge_into(
        &self,
        splicer: &mut Splicer<'_>,
        element: &Element<'_>,
        meta_info: &Object<'_>,
        join: LogprobJoin,
    ) -> bool {
        let source = element.source;
        // Of several members of the name, readers see the last; the others go when it is written.
        let joined = std::array::from_fn::<_, { LISTS.len() }, _>(|list| {
            joined_list(self.lists[list].as_ref()?, source, meta_info.get(LISTS[list]), join)
        });
        let mut written: Vec<(&[u8], Chunks)> =
            LISTS.into_iter().zip(joined).filter_map(|(name, list)| Some((name, list?))).collect();
        if let Some(experts) = &self.experts {
            written.extend(experts.join(source, meta_info, element.is_finished()).into_iter().flatten());
        }

        if self.members.is_empty() && written.is_empty() {
            return false;
        }
        splicer.enter(meta_info, self.joined.len() + 1);
        splicer.put(&self.joined);
        for (name, value) in written.iter().filter(|(name, _)| meta_info.get(name).is_none()) {
            splicer.put(&[b"\"", *name, b"\":"].concat());
            splicer.put_value(value);
        }
        splicer.edit(meta_info, |field| {
            let name = field.name();
            let may_be_shared = is_of_prefill(name) || CACHED.contains(&name);
            if may_be_shared && self.members.iter().any(|member| self.text[member.name.clone()] == *name) {
                return Fate::Drop;
            }
            let Some((_, value)) = written.iter().find(|(written, _)| *written == name) else {
                return Fate::Keep;
            };
            if meta_info.is_last(field) { Fate::Replace(value.clone()) } else { Fate::Drop }
        });
        true
    }
}

// === impl Reply ===

impl Reply<'_> {
    /// The reply with what the prefill contributes; nothing if there is nothing to put in. A sample without `meta_info`
    /// stays as it is.
    pub fn merge(&self, share: &PrefillShare, join: LogprobJoin) -> Result<Option<Chunks>, Mismatch> {
        let samples = share.of(self)?;
        let mut splicer = Splicer::new(self.source);
        let mut is_changed = false;
        for (element, sample) in self.elements.iter().zip(samples) {
            if let Some(meta_info) = &element.meta_info {
                is_changed |= sample.merge_into(&mut splicer, element, meta_info, join);
            }
        }
        Ok(is_changed.then(|| splicer.finish()))
    }
}

/// Whether a member is the prefill worker's by its name.
fn is_of_prefill(name: &[u8]) -> bool {
    // Most names are told by their first bytes.
    name.starts_with(b"pd_") && MERGED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The value that a list of the prompt's log-probabilities gets: `[prefill's, decode's]`. Nothing where it is not written.
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
        (Some(own), LogprobJoin::Always) if is_null(source, own) => {
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

fn is_null(source: &Chunks, field: &Field<'_>) -> bool {
    field.kind == Kind::Literal && *source.gather(field.value.clone()) == *b"null"
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
