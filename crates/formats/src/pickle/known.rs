//! Spellings of plain values: literals, and the few calls that only say how a value is written.

use std::rc::Rc;

use super::opcode::Op;
use super::value::Content;
use super::{PickleFault, Value};

/// What the calls of a pickle may still copy of what they are given, in values and bytes: in all no more than the
/// pickle has bytes, however often it refers to the same.
#[derive(Debug)]
pub(super) struct Copies(pub(super) usize);

/// Digits of a whole number written in decimal; more would be slow to read and fit nowhere.
const MAX_DIGITS: usize = 4096;

/// The value that a literal's opcode pushes.
pub(super) fn literal(op: Op<'_>) -> Option<Value> {
    let argument = op.argument;
    let text = || std::str::from_utf8(argument).ok().map(str::trim_end);
    Some(match op.code {
        b'N' => Value::None,
        0x88 => Value::Bool(true),
        0x89 => Value::Bool(false),
        b'J' => Value::Int(i64::from(i32::from_le_bytes(argument.try_into().ok()?))),
        b'K' => Value::Int(i64::from(argument[0])),
        b'M' => Value::Int(i64::from(u16::from_le_bytes(argument.try_into().ok()?))),
        b'G' => Value::Float(f64::from_be_bytes(argument.try_into().ok()?)),
        0x8a | 0x8b => whole(argument)?,
        b'X' | 0x8c | 0x8d => Value::Text(std::str::from_utf8(argument).map_or_else(
            // Lone surrogates, which Python passes through.
            |_| lossy(argument),
            Rc::from,
        )),
        // Strings of Python 2: text where they are, bytes where not.
        b'T' | b'U' => match std::str::from_utf8(argument) {
            Ok(text) => Value::Text(text.into()),
            Err(_) => Value::Bytes(argument.into()),
        },
        b'C' | b'B' | 0x8e | 0x96 => Value::Bytes(argument.into()),
        b'I' => match text()? {
            "00" => Value::Bool(false),
            "01" => Value::Bool(true),
            digits => decimal(digits)?,
        },
        b'L' => decimal(text()?.trim_end_matches('L'))?,
        b'F' => Value::Float(text()?.parse().ok()?),
        b'V' => Value::Text(unescape(std::str::from_utf8(argument).ok()?).into()),
        b'S' => Value::Text(unescape(unquote(text()?)?).into()),
        _ => return None,
    })
}

/// A whole number, little-endian in two's complement.
fn whole(bytes: &[u8]) -> Option<Value> {
    if bytes.len() > 8 {
        return Value::node(Content::BigInt);
    }
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut filled = [if negative { 0xff } else { 0 }; 8];
    filled[..bytes.len()].copy_from_slice(bytes);
    Some(Value::Int(i64::from_le_bytes(filled)))
}

fn decimal(digits: &str) -> Option<Value> {
    if let Ok(value) = digits.parse() {
        return Some(Value::Int(value));
    }
    let is_number =
        digits.len() <= MAX_DIGITS && digits.trim_start_matches('-').bytes().all(|b| b.is_ascii_digit());
    // Beyond 64 bits nothing that we read is a whole number any more.
    (is_number && !digits.is_empty()).then(|| digits.parse().ok().map(Value::Float))?
}

fn unquote(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text.strip_prefix(quote)?.strip_suffix(quote)
}

/// Undoes the backslashes of Python's literals; one that is not known stays.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, escaped)) = rest.split_once('\\') {
        plain.push_str(before);
        let digits = match escaped.as_bytes().first() {
            Some(b'x') => 2,
            Some(b'u') => 4,
            Some(b'U') => 8,
            _ => 0,
        };
        let code = escaped.get(1..1 + digits).filter(|_| digits > 0);
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32);
        let (meant, used) = match (code, escaped.chars().next()) {
            (Some(meant), _) => (meant, 1 + digits),
            (None, Some('n')) => ('\n', 1),
            (None, Some('t')) => ('\t', 1),
            (None, Some('r')) => ('\r', 1),
            (None, Some(same @ ('\\' | '\'' | '"'))) => (same, 1),
            (None, _) => ('\\', 0),
        };
        plain.push(meant);
        rest = &escaped[used..];
    }
    plain.push_str(rest);
    plain
}

pub(super) fn lossy(bytes: &[u8]) -> Rc<str> {
    String::from_utf8_lossy(bytes).into()
}

/// Module and name, on a line each.
pub(super) fn global_of(lines: &[u8]) -> Option<Content> {
    let (module, name) = std::str::from_utf8(lines).ok()?.split_once('\n')?;
    Some(Content::Global { module: module.trim_end().into(), name: name.trim_end().into() })
}

/// What a call gives, where it only says how a plain value is spelled.
pub(super) fn made(class: &Value, args: &Value, copies: &mut Copies) -> Result<Option<Value>, PickleFault> {
    let Some((module, name)) = class.global() else {
        return Ok(None);
    };
    let made = match (&*module, &*name) {
        ("collections", "OrderedDict") => args.with_items(|args| ordered_dict(args, copies)),
        ("_codecs", "encode") => args.with_items(|args| latin1(args, copies)),
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => {
            args.with_items(|args| Ok(numpy_scalar(args)))
        }
        _ => None,
    };
    made.transpose().map(Option::flatten)
}

/// `OrderedDict()`, or of a list of pairs.
fn ordered_dict(args: &[Value], copies: &mut Copies) -> Result<Option<Value>, PickleFault> {
    let Some(list) = args.first() else {
        return Ok(Value::node(Content::Dict(Vec::new())));
    };
    let pair = |pair: &Value| {
        let of = |pair: &[Value]| match pair {
            [key, value] => Some([key.clone(), value.clone()]),
            _ => None,
        };
        pair.with_items(of).flatten()
    };
    let pairs = list.with_items(|list| {
        copies.take(list.len())?;
        Ok(list.iter().map(pair).collect::<Option<Vec<_>>>())
    });
    let pairs = pairs.transpose()?.flatten();
    Ok(pairs.and_then(|pairs| Value::node(Content::Dict(pairs.into_flattened()))))
}

/// Protocols before 3 have no bytes and write them as a text of the same code points.
fn latin1(args: &[Value], copies: &mut Copies) -> Result<Option<Value>, PickleFault> {
    let [Value::Text(text), Value::Text(encoding)] = args else {
        return Ok(None);
    };
    if !matches!(&**encoding, "latin1" | "latin-1") {
        return Ok(None);
    }
    copies.take(text.len())?;
    let bytes = text.chars().map(|c| u8::try_from(c).ok()).collect::<Option<Vec<u8>>>();
    Ok(bytes.map(|bytes| Value::Bytes(bytes.into())))
}

/// Bytes of the longest number that is read.
const MAX_NUMBER_BYTES: usize = 8;

/// A number of numpy, of its type and bytes.
fn numpy_scalar(args: &[Value]) -> Option<Value> {
    let [dtype, Value::Bytes(bytes)] = args else {
        return None;
    };
    let (kind, is_big_endian) = numpy_dtype(dtype)?;
    if bytes.len() > MAX_NUMBER_BYTES {
        return None;
    }
    let mut bytes = bytes.to_vec();
    if is_big_endian {
        bytes.reverse();
    }
    number(&kind, &bytes)
}

/// A type of numpy: its short name, and whether its bytes are big-endian.
pub(crate) fn numpy_dtype(dtype: &Value) -> Option<(Rc<str>, bool)> {
    let (_, name, args) = dtype.made_by()?;
    let kind = args.with_items(|args| args.first()?.text().cloned())??;
    let Value::Node(node) = dtype else {
        return None;
    };
    let order = match &*node.content() {
        Content::Object(object) => {
            let state = object.state.as_ref();
            state.and_then(|state| state.with_items(|state| state.get(1)?.text().cloned())?)
        }
        _ => None,
    };
    (&*name == "dtype").then(|| (kind, order.as_deref() == Some(">")))
}

/// A number of a type as numpy spells it (`f8`, `i4`, `b1` …) from its little-endian bytes.
pub(crate) fn number(kind: &str, bytes: &[u8]) -> Option<Value> {
    Some(match kind {
        "f8" => Value::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
        "f4" => Value::Float(f32::from_le_bytes(bytes.try_into().ok()?).into()),
        "f2" => Value::Float(half::f16::from_le_bytes(bytes.try_into().ok()?).into()),
        "bf16" => Value::Float(half::bf16::from_le_bytes(bytes.try_into().ok()?).into()),
        "i8" => Value::Int(i64::from_le_bytes(bytes.try_into().ok()?)),
        "i4" => Value::Int(i32::from_le_bytes(bytes.try_into().ok()?).into()),
        "i2" => Value::Int(i16::from_le_bytes(bytes.try_into().ok()?).into()),
        "i1" => Value::Int(i8::from_le_bytes(bytes.try_into().ok()?).into()),
        "u8" => match i64::try_from(u64::from_le_bytes(bytes.try_into().ok()?)) {
            Ok(value) => Value::Int(value),
            Err(_) => Value::Float(u64::from_le_bytes(bytes.try_into().ok()?) as f64),
        },
        "u4" => Value::Int(u32::from_le_bytes(bytes.try_into().ok()?).into()),
        "u2" => Value::Int(u16::from_le_bytes(bytes.try_into().ok()?).into()),
        "u1" => Value::Int(u8::from_le_bytes(bytes.try_into().ok()?).into()),
        "b1" => Value::Bool(<[u8; 1]>::try_from(bytes).ok()?[0] != 0),
        _ => return None,
    })
}

// === impl Copies ===

impl Copies {
    fn take(&mut self, count: usize) -> Result<(), PickleFault> {
        self.0 = self.0.checked_sub(count).ok_or(PickleFault::CopiesTooMuch)?;
        Ok(())
    }
}
