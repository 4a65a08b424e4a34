//! The part of a file before its tensors, read field by field.

use std::collections::BTreeMap;

/// A metadata value. Numbers of all kinds are one.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meta {
    Number(f64),
    Bool(bool),
    Text(String),
    List(Vec<Meta>),
}

/// Reads numbers one after the other.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The file is shorter than it says, or says what makes no sense.
pub(super) struct Malformed;

const MAGIC: &[u8] = b"GGUF";
/// Lists in lists are deeper in no file.
const MAX_DEPTH: usize = 4;

/// A tensor's name, shape (outermost first), type and offset.
pub(super) type Info = (String, Vec<usize>, u32, usize);

// === impl Reader ===

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// All that comes before the tensors.
    pub(super) fn head(&mut self) -> Result<(BTreeMap<String, Meta>, Vec<Info>), Malformed> {
        if self.take(MAGIC.len())? != MAGIC || !(2..=3).contains(&self.u32()?) {
            return Err(Malformed);
        }
        let (tensors, entries) = (self.size()?, self.size()?);
        let mut metadata = BTreeMap::new();
        for _ in 0..entries {
            let key = self.text()?;
            let kind = self.u32()?;
            metadata.insert(key, self.value(kind, 0)?);
        }
        let mut infos = Vec::new();
        for _ in 0..tensors {
            let name = self.text()?;
            let dimensions = self.u32()?;
            if !(1..=4).contains(&dimensions) {
                return Err(Malformed);
            }
            let mut shape = (0..dimensions).map(|_| self.size()).collect::<Result<Vec<_>, _>>()?;
            shape.reverse();
            infos.push((name, shape, self.u32()?, self.size()?));
        }
        Ok((metadata, infos))
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Meta, Malformed> {
        let number = match kind {
            0 => f64::from(self.array::<1>()?[0]),
            1 => f64::from(i8::from_le_bytes(self.array()?)),
            2 => f64::from(u16::from_le_bytes(self.array()?)),
            3 => f64::from(i16::from_le_bytes(self.array()?)),
            4 => f64::from(self.u32()?),
            5 => f64::from(i32::from_le_bytes(self.array()?)),
            6 => f64::from(f32::from_le_bytes(self.array()?)),
            7 => return Ok(Meta::Bool(self.array::<1>()?[0] != 0)),
            8 => return self.text().map(Meta::Text),
            9 if depth < MAX_DEPTH => {
                let (kind, len) = (self.u32()?, self.size()?);
                let mut list = Vec::new();
                for _ in 0..len {
                    list.push(self.value(kind, depth + 1)?);
                }
                return Ok(Meta::List(list));
            }
            10 => u64::from_le_bytes(self.array()?) as f64,
            11 => i64::from_le_bytes(self.array()?) as f64,
            12 => f64::from_le_bytes(self.array()?),
            _ => return Err(Malformed),
        };
        Ok(Meta::Number(number))
    }

    fn take(&mut self, len: usize) -> Result<&[u8], Malformed> {
        let end = self.at.checked_add(len).ok_or(Malformed)?;
        let bytes = self.bytes.get(self.at..end).ok_or(Malformed)?;
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn size(&mut self) -> Result<usize, Malformed> {
        usize::try_from(u64::from_le_bytes(self.array()?)).map_err(|_| Malformed)
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let len = self.size()?;
        String::from_utf8(self.take(len)?.to_vec()).map_err(|_| Malformed)
    }
}
