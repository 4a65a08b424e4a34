//! Files that `torch.save` wrote: where the pickle is, and where the numbers of its tensors are.
//!
//! Since torch 1.6 such a file is a zip archive: `NAME/data.pkl` and the storages as `NAME/data/KEY`, stored and not
//! compressed. Before, it was a sequence of pickles (a magic number, a protocol, facts of the system, the object, the
//! keys of the storages), then each storage with its number of elements before it.

mod tensor;

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use zip::ZipArchive;
use zip::result::ZipError;

use crate::error::FormatError;
use crate::pickle::{self, Content, PickleError, Value};

pub(crate) use tensor::numbers_of;

/// A file of torch, its pickle in memory.
#[derive(Debug)]
pub(crate) struct TorchFile {
    bytes: Vec<u8>,
    /// Bytes of the whole file.
    length: u64,
    /// Where in `bytes` the object's pickle begins.
    pickle: usize,
    /// Where in the file `bytes` begins.
    offset: u64,
    storages: Storages,
    big_endian: bool,
}

#[derive(Debug)]
enum Storages {
    /// Members of the archive, by key.
    Zip { archive: Box<ZipArchive<File>>, folder: String },
    /// Stretches of the bytes, by key.
    Legacy(HashMap<String, Range<usize>>),
}

/// The data of a file's tensors. Many views may claim the same data, any number of times: what is read in all is
/// bounded by the file's length, and a file that asks for more is none that torch writes.
#[derive(Debug)]
pub(crate) struct Tensors<'a> {
    bytes: &'a [u8],
    storages: &'a mut Storages,
    big_endian: bool,
    /// Storages that were read last, for the next views of them.
    held: HashMap<Rc<str>, Rc<[u8]>>,
    held_bytes: usize,
    /// Elements and bytes of storages that may still be read.
    left: u64,
    is_exhausted: bool,
}

/// Bytes of storages that are held for the next view of one.
const HELD_BYTES: usize = 64 << 20;
/// Elements and bytes of storages that are read, for each byte of the file.
const READ_FOR_A_BYTE: u64 = 16;
/// And those of any file, however small: a view of one element as many may stand for a mask.
const READ_ANYWAY: u64 = 1 << 20;

/// The number that a file of torch before 1.6 begins with, as pickles spell it in bytes and in digits.
const LEGACY_MAGIC: [&[u8]; 2] =
    [b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", b"L119547037146038801333356L"];
/// It stands within as many bytes.
const LEGACY_HEAD: usize = 40;
/// A zip archive's first bytes.
const ZIP_MAGIC: &[u8] = b"PK\x03\x04";
/// The first byte of a pickle of protocol 2 and later.
const PICKLE_MAGIC: u8 = 0x80;

/// Whether a file that begins so is one of torch, or a pickle.
pub(crate) fn is_torch(head: &[u8]) -> bool {
    head.starts_with(ZIP_MAGIC) || head.first() == Some(&PICKLE_MAGIC) || is_legacy(head)
}

fn is_legacy(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(LEGACY_HEAD)];
    LEGACY_MAGIC.iter().any(|magic| head.windows(magic.len()).any(|window| window == *magic))
}

// === impl TorchFile ===

impl TorchFile {
    /// Opens a file; its pickle is read into memory, its tensors are not.
    pub(crate) fn open(path: &Path) -> Result<Self, FormatError> {
        let mut file = File::open(path).map_err(FormatError::io(path))?;
        let mut head = [0; 4];
        let is_zip = file.read_exact(&mut head).is_ok() && head == *ZIP_MAGIC;
        file.rewind().map_err(FormatError::io(path))?;
        if is_zip { Self::open_zip(file, path) } else { Self::open_legacy(file, path) }
    }

    fn open_zip(file: File, path: &Path) -> Result<Self, FormatError> {
        let length = file.metadata().map_err(FormatError::io(path))?.len();
        // What a reader of archives misses stands at their end.
        let broken = |error: ZipError| FormatError::damaged(path, length, &error);
        let mut archive = Box::new(ZipArchive::new(file).map_err(broken)?);
        let mut name = None;
        for member in archive.file_names() {
            let member = member.map_err(broken)?;
            if member.ends_with("/data.pkl") || member == "data.pkl" {
                name = Some(member.into_owned());
            }
        }
        let name = name.ok_or_else(|| FormatError::Unknown { path: path.to_owned() })?;
        let folder = name.trim_end_matches("data.pkl").to_owned();
        let mut read = |name: &str| -> Result<(Vec<u8>, u64), FormatError> {
            let mut member = archive.by_name(name).map_err(broken)?;
            // A member claims its size; there is never more of it than of the file.
            let mut bytes = Vec::with_capacity(usize::try_from(member.size().min(length)).unwrap_or(0));
            let begin = member.data_start().unwrap_or(0);
            // The archive has a checksum of every member.
            let read = member.read_to_end(&mut bytes);
            read.map_err(|error| FormatError::damaged(path, begin, &error))?;
            Ok((bytes, begin))
        };
        let (bytes, offset) = read(&name)?;
        let big_endian = read(&format!("{folder}byteorder")).is_ok_and(|(order, _)| order == b"big");
        let storages = Storages::Zip { archive, folder };
        Ok(Self { bytes, length, pickle: 0, offset, storages, big_endian })
    }

    fn open_legacy(mut file: File, path: &Path) -> Result<Self, FormatError> {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(FormatError::io(path))?;
        let at = |error: PickleError| FormatError::pickle(path, 0, error);
        let mut begin = 0;
        if is_legacy(&bytes) {
            // The magic number, the protocol and the system.
            for _ in 0..3 {
                begin = pickle::end_of(&bytes, begin).map_err(at)?;
            }
        }
        let end = pickle::end_of(&bytes, begin).map_err(at)?;
        let storages = if begin == 0 { HashMap::new() } else { legacy_storages(&bytes, begin, end, path)? };
        let (storages, length) = (Storages::Legacy(storages), bytes.len() as u64);
        Ok(Self { bytes, length, pickle: begin, offset: 0, storages, big_endian: false })
    }

    /// The bytes in which the object's pickle is, where it begins, and the data of its tensors.
    pub(crate) fn parts(&mut self) -> (&[u8], usize, Tensors<'_>) {
        let Self { bytes, length, pickle, storages, big_endian, .. } = self;
        let tensors = Tensors {
            bytes,
            storages,
            big_endian: *big_endian,
            held: HashMap::new(),
            held_bytes: 0,
            left: length.saturating_mul(READ_FOR_A_BYTE).saturating_add(READ_ANYWAY),
            is_exhausted: false,
        };
        (bytes, *pickle, tensors)
    }

    /// Where the bytes begin in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
}

// === impl Tensors ===

impl Tensors<'_> {
    /// Whether the tensors asked for more than the file can hold; the last of them were not read then.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }

    /// Reckons what is about to be read.
    fn spend(&mut self, count: u64) -> Option<()> {
        let left = self.left.checked_sub(count);
        self.is_exhausted |= left.is_none();
        self.left = left?;
        Some(())
    }

    /// A storage's bytes.
    fn storage(&mut self, key: &Rc<str>) -> Option<Rc<[u8]>> {
        if let Some(bytes) = self.held.get(key) {
            return Some(Rc::clone(bytes));
        }
        let bytes: Rc<[u8]> = match &mut self.storages {
            Storages::Legacy(places) => self.bytes.get(places.get(&**key)?.clone())?.into(),
            Storages::Zip { archive, folder } => {
                let mut member = archive.by_name(&format!("{folder}data/{key}")).ok()?;
                let mut bytes = Vec::new();
                member.read_to_end(&mut bytes).ok()?;
                bytes.into()
            }
        };
        self.spend(bytes.len() as u64)?;
        if self.held_bytes.saturating_add(bytes.len()) > HELD_BYTES {
            self.held.clear();
            self.held_bytes = 0;
        }
        self.held_bytes += bytes.len();
        self.held.insert(Rc::clone(key), Rc::clone(&bytes));
        Some(bytes)
    }
}

/// Where the storages of a file before torch 1.6 are: their keys follow the object.
fn legacy_storages(
    bytes: &[u8],
    begin: usize,
    end: usize,
    path: &Path,
) -> Result<HashMap<String, Range<usize>>, FormatError> {
    let at = |error| FormatError::pickle(path, 0, error);
    let widths = storage_widths(&pickle::load(bytes, begin).map_err(at)?.root);
    let keys = pickle::load(bytes, end).map_err(at)?;
    let mut next = pickle::end_of(bytes, end).map_err(at)?;
    let mut places = HashMap::new();
    for key in keys.root.items().unwrap_or_default() {
        let Some(key) = key.text().map(ToString::to_string) else {
            continue;
        };
        let cut = || FormatError::damaged(path, next as u64, "the file ends within a tensor");
        let count =
            bytes.get(next..next + 8).and_then(|digits| digits.try_into().ok()).map(u64::from_le_bytes);
        let width = widths.get(&key).copied().unwrap_or(0);
        let length = count.and_then(|count| usize::try_from(count).ok()?.checked_mul(width));
        let start = next + 8;
        let stop = length.and_then(|length| start.checked_add(length)).filter(|stop| *stop <= bytes.len());
        let stop = stop.ok_or_else(cut)?;
        places.insert(key, start..stop);
        next = stop;
    }
    Ok(places)
}

/// Bytes of an element, by the key of the storage.
fn storage_widths(root: &Value) -> HashMap<String, usize> {
    let mut widths = HashMap::new();
    let mut seen = 0;
    collect_widths(root, 0, &mut seen, &mut widths);
    widths
}

/// Objects that are looked at for storages; what a file shares may be reached by many ways.
const MAX_LOOKS: usize = 50_000_000;

fn collect_widths(value: &Value, depth: u32, seen: &mut usize, widths: &mut HashMap<String, usize>) {
    let Value::Node(node) = value else {
        return;
    };
    *seen += 1;
    if depth > pickle::MAX_DEPTH || *seen > MAX_LOOKS {
        return;
    }
    let mut look = |value: &Value| collect_widths(value, depth + 1, seen, widths);
    match &*node.content() {
        Content::Tuple(items) | Content::List(items) | Content::Set(items) => items.iter().for_each(look),
        Content::Dict(items) => pickle::pairs(items).for_each(|(_, value)| look(value)),
        Content::Object(object) => {
            look(&object.args);
            object.state.iter().for_each(look);
        }
        Content::Persistent(name) => {
            if let Some((key, kind)) = tensor::storage_of(name) {
                widths.insert(key.to_string(), tensor::width(kind));
            }
        }
        Content::Global { .. } | Content::BigInt => {}
    }
}
