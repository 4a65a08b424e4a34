//! Routed experts: which experts of a mixture each token was sent to.
//!
//! `routed_experts` is a base64 text of rows of equal length, one for each token from `routed_experts_start_len` (0 if
//! it is not given) to the last but one: the last token has not been computed with yet. In a prefill/decode pair the
//! prefill worker has the rows of the prompt and the decode worker those of the tokens after the first. The decode
//! worker's text either has its own rows only, or rows of the prompt as well, which mean nothing there:
//!
//! ```text
//! prefill  p p p          rows = prompt - start
//! decode         d d      rows = completion - 1                      → p p p d d
//! decode   ? ? ? d d      rows = prompt - start + completion - 1     → p p p d d
//! ```
//! How long a row is follows from the prefill's text and the number of its rows. Where the lengths fit neither form the
//! decode worker's text stays as it is: a wrong row would be worse than none.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use crate::chunks::Chunks;
use crate::cursor::{Cursor, Kind};
use crate::object::Object;
use crate::scalar::Scalar;

/// The rows of the prompt.
#[derive(Clone, Debug)]
pub(crate) struct PromptExperts {
    rows: Encoded,
    /// `routed_experts_start_len`.
    start: usize,
    /// Tokens of the prompt, if the prefill worker says so.
    prompt_tokens: Option<usize>,
}

/// A base64 text.
#[derive(Clone, Debug, Default)]
struct Encoded {
    text: Chunks,
    /// Bytes that it stands for.
    len: usize,
}

const EXPERTS: &[u8] = b"routed_experts";
const START: &[u8] = b"routed_experts_start_len";
/// Characters that stand for three bytes.
const QUANTUM: usize = 4;

// === impl PromptExperts ===

impl PromptExperts {
    /// Those that a prefill worker's `meta_info` has.
    pub(crate) fn read(source: &Chunks, meta_info: &Object<'_>) -> Option<Self> {
        Some(Self {
            rows: Encoded::read(source, meta_info)?,
            start: count(source, meta_info, START).unwrap_or(0),
            prompt_tokens: count(source, meta_info, b"prompt_tokens"),
        })
    }

    /// What is to be written into a decode worker's `meta_info`: all rows, and where they start. Where it has no rows
    /// at all the prompt's are put in only when nothing follows.
    pub(crate) fn join(
        &self,
        source: &Chunks,
        meta_info: &Object<'_>,
        is_finished: bool,
    ) -> Option<impl Iterator<Item = (&'static [u8], Chunks)> + use<>> {
        let own = match meta_info.get(EXPERTS) {
            Some(field) if field.kind == Kind::Text => Encoded::read(source, meta_info)?,
            Some(field) if *source.gather(field.value.clone()) != *b"null" => return None,
            _ if is_finished => Encoded::default(),
            _ => return None,
        };
        let prompt_tokens = self.prompt_tokens.or_else(|| count(source, meta_info, b"prompt_tokens"))?;
        let rows = prompt_tokens.checked_sub(self.start).filter(|rows| *rows > 0)?;
        let own_rows = count(source, meta_info, b"completion_tokens")?.checked_sub(1)?;
        if self.rows.len == 0 || !self.rows.len.is_multiple_of(rows) {
            return None;
        }
        let row_bytes = self.rows.len / rows;
        let joined = if own.len == row_bytes.checked_mul(own_rows)? {
            self.rows.followed_by(&own)?
        } else if own.len == row_bytes.checked_mul(rows.checked_add(own_rows)?)? {
            self.rows.over(&own)?
        } else {
            return None;
        };
        let mut text = Chunks::from("\"");
        text.append(&joined);
        text.push(Bytes::from_static(b"\""));
        // Only where the decode worker says where its rows start.
        let start = meta_info.get(START).map(|_| (START, Chunks::from(self.start.to_string().into_bytes())));
        Some(std::iter::once((EXPERTS, text)).chain(start))
    }
}

// === impl Encoded ===

impl Encoded {
    fn read(source: &Chunks, meta_info: &Object<'_>) -> Option<Self> {
        let field = meta_info.get(EXPERTS).filter(|field| field.kind == Kind::Text)?;
        let text = source.slice(field.value.start + 1..field.value.end - 1);
        // An escape, which no writer of base64 needs, would shift all that follows it.
        if !text.len().is_multiple_of(QUANTUM)
            || text.pieces().any(|piece| memchr::memchr(b'\\', piece).is_some())
        {
            return None;
        }
        let end = text.gather(text.len().saturating_sub(2)..text.len());
        let padding = match &end[..] {
            b"==" => 2,
            [_, b'='] => 1,
            _ => 0,
        };
        let len = text.len() / QUANTUM * 3 - padding;
        Some(Self { text, len })
    }

    /// This and then another.
    fn followed_by(&self, other: &Self) -> Option<Chunks> {
        let (mut joined, rest) = self.split()?;
        if rest.is_empty() {
            joined.append(&other.text);
            return Some(joined);
        }
        let other = STANDARD.decode(other.text.gather(0..other.text.len())).ok()?;
        joined.push(STANDARD.encode([rest, other].concat()).into());
        Some(joined)
    }

    /// Another whose beginning is replaced by this.
    fn over(&self, other: &Self) -> Option<Chunks> {
        let (mut joined, mut rest) = self.split()?;
        if !rest.is_empty() {
            let mixed = other.text.gather(joined.len()..joined.len() + QUANTUM);
            rest.extend_from_slice(STANDARD.decode(mixed).ok()?.get(rest.len()..)?);
            joined.push(STANDARD.encode(rest).into());
        }
        joined.append(&other.text.slice(joined.len()..other.text.len()));
        Some(joined)
    }

    /// The bytes that fill whole quanta as text, and the one or two that are left.
    fn split(&self) -> Option<(Chunks, Vec<u8>)> {
        let whole = self.len / 3 * QUANTUM;
        let rest = STANDARD.decode(self.text.gather(whole..self.text.len())).ok()?;
        Some((self.text.slice(0..whole), rest))
    }
}

/// A count that `meta_info` has.
fn count(source: &Chunks, meta_info: &Object<'_>, name: &[u8]) -> Option<usize> {
    let field = meta_info.get(name)?;
    match Cursor::at(source, field.value.start).scalar() {
        Ok(Some(Scalar::Number(count))) if (0.0..1e15).contains(&count) => Some(count as usize),
        _ => None,
    }
}
