//! What a request asks for, and the bootstrap fields that a prefill/decode pair needs in it.

use crate::chunks::Chunks;
use crate::cursor::{Cursor, Kind};
use crate::error::{Malformed, Problem};
use crate::object::Object;
use crate::prompts::read_prompts;
use crate::scalar::Scalar;
use crate::splice::{Fate, Splicer};
use crate::texts::Words;

/// The body of a generation request, of whatever dialect.
#[derive(Debug)]
pub struct GenerateRequest<'a> {
    /// How many samples it asks for.
    pub shape: Shape,
    /// `stream`.
    pub stream: bool,
    /// `return_logprob`.
    pub return_logprob: bool,
    /// `rid`: one name, or one for each prompt of a batch.
    pub rids: Vec<String>,
    /// `routed_dp_rank`, or what it was called before, `data_parallel_rank`: the rank that the client asks for.
    pub routed_dp_rank: Option<u32>,
    /// Which of these fields holds something else than a rank or `null`.
    pub odd_rank: Option<&'static str>,
    source: &'a Chunks,
    object: Object<'a>,
}

/// Which fields say how many samples are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// SGLang's: a batch is a list of `text`, `input_ids` or `input_embeds`; `sampling_params.n`.
    Generate,
    /// OpenAI's chat completions: `n`.
    Chat,
    /// OpenAI's completions: a batch is a list of prompts; `n`.
    Completions,
}

/// How many samples a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One, answered by one object.
    Single,
    /// So many, answered by an array of as many.
    Batch(usize),
}

/// Where a prefill worker and a decode worker meet.
#[derive(Clone, Copy, Debug)]
pub struct Bootstrap<'a> {
    /// Host of the prefill worker; an IPv6 address in brackets. As in a URL, so it holds nothing to escape.
    pub host: &'a str,
    /// Port of its bootstrap server; nothing leaves the choice to the workers.
    pub port: Option<u16>,
    /// One for each sample.
    pub rooms: &'a [u64],
}

/// For which data-parallel ranks a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranks {
    /// Of the worker that it is sent to. It is written under both of its names: workers of before it was renamed know only
    /// `data_parallel_rank`, and later ones go by `routed_dp_rank` where both are there.
    pub routed: Option<u32>,
    /// Of the prefill worker.
    pub prefill: Option<u32>,
}

/// Larger batches are refused: each sample costs a room.
pub(crate) const MAX_SAMPLES: usize = 1 << 16;
/// Room for the bootstrap fields of one sample.
const USUAL_MEMBERS_BYTES: usize = 128;
const PROMPT_FIELDS: [&[u8]; 4] = [b"text", b"input_ids", b"prompt", b"messages"];
const BOOTSTRAP_FIELDS: [&[u8]; 3] = [b"bootstrap_host", b"bootstrap_port", b"bootstrap_room"];
const RANK_FIELDS: [&[u8]; 3] = [b"routed_dp_rank", b"data_parallel_rank", b"disagg_prefill_dp_rank"];

// === impl GenerateRequest ===

impl<'a> GenerateRequest<'a> {
    /// Reads a request; of fields that stand twice the last counts.
    pub fn scan(source: &'a Chunks, dialect: Dialect) -> Result<Self, Malformed> {
        let (mut stream, mut return_logprob, mut rids) = (false, false, Vec::new());
        // Prompts of a batch by the field that holds them: of a field that stands twice the last counts.
        let (mut prompts, mut n) = ([None; 3], 1);
        let (mut routed_dp_rank, mut data_parallel_rank) = (Ok(None), Ok(None));
        let mut cursor = Cursor::new(source);
        let object = Object::read(&mut cursor, |cursor, name, kind| {
            match (name, dialect) {
                (b"stream", _) => stream = cursor.scalar()? == Some(Scalar::Bool(true)),
                (b"return_logprob", _) => {
                    return_logprob = false;
                    each(cursor, |cursor| {
                        return_logprob |= cursor.scalar()? == Some(Scalar::Bool(true));
                        Ok(())
                    })?;
                }
                (b"rid", _) => rids = texts(cursor)?,
                (b"routed_dp_rank", _) => {
                    routed_dp_rank = rank(cursor.scalar()?.as_ref()).ok_or("routed_dp_rank");
                }
                (b"data_parallel_rank", _) => {
                    data_parallel_rank = rank(cursor.scalar()?.as_ref()).ok_or("data_parallel_rank");
                }
                (b"text", Dialect::Generate) | (b"prompt", Dialect::Completions) => {
                    prompts[0] = count_prompts(source, cursor, 1)?;
                }
                (b"input_ids", Dialect::Generate) => prompts[1] = count_prompts(source, cursor, 1)?,
                (b"input_embeds", Dialect::Generate) => prompts[2] = count_prompts(source, cursor, 2)?,
                (b"sampling_params", Dialect::Generate) => n = sampling_n(cursor)?,
                (b"n", Dialect::Chat | Dialect::Completions) => n = count(cursor.scalar()?.as_ref()),
                _ => cursor.pass(kind)?,
            }
            Ok(())
        })?;
        cursor.end()?;
        let shape = match (prompts.into_iter().flatten().next(), n) {
            (None, 1) => Shape::Single,
            (prompts, n) => Shape::Batch(prompts.unwrap_or(1).saturating_mul(n)),
        };
        if shape.samples() > MAX_SAMPLES {
            return Err(Malformed { offset: object.range.start, problem: Problem::Count });
        }
        let odd_rank = routed_dp_rank.err().or(data_parallel_rank.err());
        let routed_dp_rank = routed_dp_rank.ok().flatten().or(data_parallel_rank.ok().flatten());
        Ok(Self { shape, stream, return_logprob, rids, routed_dp_rank, odd_rank, source, object })
    }

    /// The prompt as it stands in the body, whether text, token ids or messages.
    pub fn prompt(&self) -> Option<Chunks> {
        let fields = PROMPT_FIELDS.iter().filter_map(|name| self.object.get(name));
        let mut prompts = fields.filter(|field| matches!(field.kind, Kind::Text | Kind::Array));
        prompts.next().map(|field| self.source.slice(field.value.clone()))
    }

    /// `model`, if it is a text that is no longer than names are.
    pub fn model(&self) -> Option<String> {
        let field = self.object.get(b"model")?;
        match Cursor::at(self.source, field.value.start).scalar() {
            Ok(Some(Scalar::Text(model))) => Some(model.into_owned()),
            _ => None,
        }
    }

    /// The prompts in words, each up to a limit, a chat as one; none of token ids.
    pub fn prompts(&self, dialect: Dialect, limit_bytes: usize) -> Vec<Words> {
        let (name, is_chat): (&[u8], _) = match dialect {
            Dialect::Generate => (b"text", false),
            Dialect::Chat => (b"messages", true),
            Dialect::Completions => (b"prompt", false),
        };
        let field = self.object.get(name);
        let prompts = field.map(|field| read_prompts(self.source, field.value.start, limit_bytes, is_chat));
        prompts.unwrap_or_default()
    }

    /// The body with all that says where it is served, in place of the client's own: bootstrap fields, as scalars for a
    /// single request and as lists of one value a sample for a batch, and the ranks, if there are any.
    pub fn placed(&self, bootstrap: Option<&Bootstrap<'_>>, ranks: Ranks) -> Chunks {
        let mut members = bootstrap.map_or(Vec::new(), |bootstrap| bootstrap.members(self.shape));
        let (has_bootstrap, has_ranks) = (bootstrap.is_some(), ranks != Ranks::default());
        if has_ranks {
            members.extend(ranks.members(members.is_empty()).into_bytes());
        }
        let mut splicer = Splicer::new(self.source);
        splicer.enter(&self.object, members.len());
        splicer.put(&members);
        splicer.edit(&self.object, |field| {
            let is_written = (has_bootstrap && BOOTSTRAP_FIELDS.contains(&field.name()))
                || (has_ranks && RANK_FIELDS.contains(&field.name()));
            if is_written { Fate::Drop } else { Fate::Keep }
        });
        splicer.finish()
    }
}

// === impl Ranks ===

impl Ranks {
    fn members(self, is_first: bool) -> String {
        let ranks = [
            ("routed_dp_rank", self.routed),
            ("data_parallel_rank", self.routed),
            ("disagg_prefill_dp_rank", self.prefill),
        ];
        let members = ranks.into_iter().filter_map(|(name, rank)| Some(format!("\"{name}\":{}", rank?)));
        let members = members.collect::<Vec<_>>().join(",");
        if is_first || members.is_empty() { members } else { format!(",{members}") }
    }
}

// === impl Shape ===

impl Shape {
    /// Samples asked for.
    pub fn samples(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Batch(samples) => samples,
        }
    }
}

// === impl Bootstrap ===

impl Bootstrap<'_> {
    fn members(&self, shape: Shape) -> Vec<u8> {
        let (mut port, mut members) = (itoa::Buffer::new(), Vec::with_capacity(USUAL_MEMBERS_BYTES));
        let port = self.port.map_or("null", |number| port.format(number));
        let (open, close): (&[u8], &[u8]) = if shape == Shape::Single { (b"", b"") } else { (b"[", b"]") };
        let mut member = |name: &[u8], write: &dyn Fn(&mut Vec<u8>, u64)| {
            let separator: &[u8] = if members.is_empty() { b"\"" } else { b",\"" };
            members.extend_from_slice(separator);
            for part in [name, b"\":", open] {
                members.extend_from_slice(part);
            }
            for (number, room) in self.rooms.iter().enumerate() {
                if number > 0 {
                    members.push(b',');
                }
                write(&mut members, *room);
            }
            members.extend_from_slice(close);
        };
        let [host_name, port_name, room_name] = BOOTSTRAP_FIELDS;
        member(host_name, &|out, _| {
            for part in [b"\"", self.host.as_bytes(), b"\""] {
                out.extend_from_slice(part);
            }
        });
        member(port_name, &|out, _| out.extend_from_slice(port.as_bytes()));
        member(room_name, &|out, room| out.extend_from_slice(itoa::Buffer::new().format(room).as_bytes()));
        members
    }
}

/// How many prompts a list of them holds; nothing for a single prompt, be it a text or a list of numbers
/// nested `depth` deep.
fn count_prompts(source: &Chunks, cursor: &mut Cursor<'_>, depth: usize) -> Result<Option<usize>, Malformed> {
    let kind = cursor.kind()?;
    let list = cursor.skip()?;
    if kind != Kind::Array || is_numbers(source, list.start, depth) {
        return Ok(None);
    }
    let mut prompts = 0;
    Cursor::at(source, list.start).elements(|cursor| {
        prompts += 1;
        cursor.skip().map(drop)
    })?;
    Ok(Some(prompts))
}

/// Whether at an offset there are so many brackets and then a number.
fn is_numbers(source: &Chunks, offset: usize, depth: usize) -> bool {
    let mut cursor = Cursor::at(source, offset);
    (0..depth).all(|_| cursor.enter_list()) && cursor.kind() == Ok(Kind::Literal)
}

/// `n` of one set of sampling parameters, or of the first of a list of them.
fn sampling_n(cursor: &mut Cursor<'_>) -> Result<usize, Malformed> {
    let mut n = None;
    each(cursor, |cursor| {
        if n.is_some() || cursor.kind()? != Kind::Object {
            return cursor.skip().map(drop);
        }
        n = Some(1);
        cursor.members(|cursor, member| {
            if &*member.name == b"n" {
                n = Some(count(cursor.scalar()?.as_ref()));
                return Ok(());
            }
            cursor.skip().map(drop)
        })?;
        Ok(())
    })?;
    Ok(n.unwrap_or(1))
}

/// A count that is none is left for the worker to refuse.
fn count(scalar: Option<&Scalar<'_>>) -> usize {
    match scalar {
        Some(Scalar::Number(n)) if *n >= 1.0 => *n as usize,
        _ => 1,
    }
}

/// A rank, or that none is asked for; nothing if it is neither.
#[expect(clippy::option_option, reason = "what is no rank, and that there is none")]
fn rank(scalar: Option<&Scalar<'_>>) -> Option<Option<u32>> {
    match scalar {
        Some(Scalar::Null) => Some(None),
        Some(Scalar::Number(rank)) if *rank >= 0.0 && rank.fract() == 0.0 && *rank <= f64::from(u32::MAX) => {
            Some(Some(*rank as u32))
        }
        _ => None,
    }
}

/// A text, or those of a list.
fn texts(cursor: &mut Cursor<'_>) -> Result<Vec<String>, Malformed> {
    let mut texts = Vec::new();
    each(cursor, |cursor| {
        if let Some(Scalar::Text(text)) = cursor.scalar()? {
            texts.push(text.into_owned());
        }
        Ok(())
    })?;
    Ok(texts)
}

/// Visits the elements of a list, or the one value if it is none. `visit` must consume it.
fn each<'a>(
    cursor: &mut Cursor<'a>,
    mut visit: impl FnMut(&mut Cursor<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    match cursor.kind()? {
        Kind::Array => cursor.elements(visit).map(drop),
        _ => visit(cursor),
    }
}
