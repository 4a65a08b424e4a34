//! Writing a log.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollscope_trace::Record;

use crate::contents::Contents;
use crate::error::RunError;
use crate::files;
use crate::log::{LogPosition, LogStretch, mirror, segment, segment_name};

/// Held locked as long as the writer lives, so that readers tell a live writer from a killed one.
pub(crate) const LOCK_NAME: &str = "lock";

/// No two writers of a run are told apart by a larger number than this.
const MAX_NAMESAKES: u32 = 10_000;

/// Sizes of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// A segment that has reached this size is followed by the next.
    pub segment_bytes: u64,
    /// Records are handed to the operating system when they have come to this size, or on
    /// [`LogWriter::flush`].
    pub buffer_bytes: usize,
    /// Records that come to no more than this are kept for [`LogWriter::stretch`].
    pub keep_bytes: usize,
}

/// Writes the log of one writer; by one thread of one process.
///
/// What has been flushed survives the end of the process, whatever way it ends. Each segment is synced to the
/// disk when it is complete, and the last by [`LogWriter::end`].
#[derive(Debug)]
pub struct LogWriter {
    name: Box<str>,
    folder: PathBuf,
    options: LogOptions,
    file: File,
    path: PathBuf,
    /// What the operating system has of this segment.
    position: LogPosition,
    /// Whole records that it does not have yet.
    buffer: Vec<u8>,
    kept: Kept,
    /// A write has left a part of a record that could not be taken back.
    broken: bool,
    ended: bool,
    /// Locked while it is open.
    lock: LogLock,
}

/// Keeps a log locked, so that nobody else seals it.
#[derive(Clone, Debug)]
pub struct LogLock {
    _file: Arc<File>,
}

/// Records since a position, for whoever seals them.
#[derive(Debug)]
struct Kept {
    from: LogPosition,
    /// Nothing where some were not kept.
    contents: Option<Contents>,
    /// What they take in the log.
    bytes: usize,
}

// === impl LogOptions ===

impl Default for LogOptions {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20, buffer_bytes: 256 << 10, keep_bytes: 0 }
    }
}

// === impl LogWriter ===

impl LogWriter {
    /// Begins a log in `logs/name`, or with a number behind the name where that is taken.
    pub(crate) fn create(logs: &Path, name: &str, options: LogOptions) -> Result<Self, RunError> {
        if !is_writer_name(name) {
            return Err(RunError::WriterName { name: name.to_owned() });
        }
        let (name, folder) = create_folder(logs, name)?;
        let lock_path = folder.join(LOCK_NAME);
        let lock = File::create(&lock_path).map_err(RunError::io("create", &lock_path))?;
        lock.lock().map_err(RunError::io("lock", &lock_path))?;
        let lock = LogLock { _file: Arc::new(lock) };
        let (file, path, position) = create_segment(&folder, 1)?;
        let (buffer, kept) = (Vec::new(), Kept::since(LogPosition::START));
        let (broken, ended) = (false, false);
        Ok(Self { name, folder, options, file, path, position, buffer, kept, broken, ended, lock })
    }

    /// The name of the writer, as its folder's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Keeps the log locked beyond its end, for whoever is still sealing it.
    pub fn lock(&self) -> LogLock {
        self.lock.clone()
    }

    /// Takes a record. On an error it has not been taken, and the log is as it was.
    pub fn append(&mut self, record: &Record) -> Result<(), RunError> {
        self.put(record)?;
        self.kept.contents = None;
        Ok(())
    }

    /// The same, and keeps it for [`Self::stretch`] if there is room.
    pub fn append_and_keep(&mut self, record: Record) -> Result<(), RunError> {
        let bytes = self.put(&record)?;
        self.kept.add(record, bytes, self.options.keep_bytes);
        Ok(())
    }

    /// Gives the bytes that the record takes.
    fn put(&mut self, record: &Record) -> Result<usize, RunError> {
        if self.buffer.len() >= self.options.buffer_bytes {
            self.flush()?;
        }
        let before = self.buffer.len();
        mirror::put_record(&mut self.buffer, record)?;
        Ok(self.buffer.len() - before)
    }

    /// Everything up to [`Self::position`], for sealing: with the records since the stretch before, if all were kept and the
    /// operating system has them.
    pub fn stretch(&mut self) -> LogStretch {
        let (up_to, is_flushed) = (self.position, self.buffer.is_empty());
        let Kept { from, mut contents, .. } = std::mem::replace(&mut self.kept, Kept::since(up_to));
        if !is_flushed {
            (contents, self.kept.contents) = (None, None);
        } else if contents.as_ref().is_some_and(Contents::is_empty) {
            // Nothing to be sealed: the next sealing begins here too.
            self.kept = Kept::since(from);
        }
        if let Some(contents) = &mut contents {
            contents.to = up_to;
        }
        LogStretch { up_to, contents }
    }

    /// Hands all records taken to the operating system. On an error they are kept, for the next time.
    pub fn flush(&mut self) -> Result<(), RunError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        if self.broken || self.position.offset >= self.options.segment_bytes {
            self.rotate()?;
        }
        match self.file.write_all(&self.buffer) {
            Ok(()) => {
                self.position.offset += self.buffer.len() as u64;
                self.buffer.clear();
                Ok(())
            }
            Err(source) => {
                // Half a record would hide all that is written after it.
                self.broken = self.file.set_len(self.position.offset).is_err();
                Err(RunError::io("write", &self.path)(source))
            }
        }
    }

    /// Everything before it can be read.
    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// Whether the file that it writes to can be found by its name. One that was removed takes records all the same, and
    /// nobody will ever read them.
    pub fn is_there(&self) -> bool {
        match (fs::metadata(&self.path), self.file.metadata()) {
            (Ok(named), Ok(own)) => is_same_file(&named, &own),
            _ => false,
        }
    }

    /// Takes the log away, with everything in it: it was not to be written after all.
    pub fn abandon(mut self) -> Result<(), RunError> {
        self.buffer.clear();
        self.ended = true;
        fs::remove_dir_all(&self.folder).map_err(RunError::io("remove", &self.folder))
    }

    /// Closes the log in order: flushes, sets the end mark, syncs.
    pub fn end(mut self) -> Result<(), RunError> {
        self.flush()?;
        mirror::put_end(&mut self.buffer)?;
        self.flush()?;
        self.ended = true;
        self.file.sync_all().map_err(RunError::io("sync", &self.path))
    }

    fn rotate(&mut self) -> Result<(), RunError> {
        self.file.sync_all().map_err(RunError::io("sync", &self.path))?;
        (self.file, self.path, self.position) = create_segment(&self.folder, self.position.segment + 1)?;
        self.broken = false;
        Ok(())
    }
}

impl Drop for LogWriter {
    /// Without an end mark the log shows as interrupted, but what was taken is handed over.
    fn drop(&mut self) {
        if !self.ended {
            self.flush().ok();
        }
    }
}

// === impl Kept ===

impl Kept {
    fn since(from: LogPosition) -> Self {
        Self { from, contents: Some(Contents::since(from)), bytes: 0 }
    }

    fn add(&mut self, record: Record, bytes: usize, limit_bytes: usize) {
        self.bytes += bytes;
        if self.bytes > limit_bytes {
            self.contents = None;
        } else if let Some(contents) = &mut self.contents {
            contents.add(record, bytes);
        }
    }
}

#[cfg(unix)]
fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// As far as it can be told.
#[cfg(not(unix))]
fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    one.len() == other.len()
}

/// Whether a writer, and so its folder, can have this name.
pub(crate) fn is_writer_name(name: &str) -> bool {
    let usable = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty() && !name.starts_with('.') && name.chars().all(usable)
}

/// Makes the folder of a writer, exclusively.
fn create_folder(logs: &Path, name: &str) -> Result<(Box<str>, PathBuf), RunError> {
    files::create_folders(logs)?;
    let mut number = 1;
    loop {
        let name = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
        let folder = logs.join(&name);
        match fs::create_dir(&folder) {
            Ok(()) => return Ok((name.into(), folder)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < MAX_NAMESAKES => number += 1,
            Err(source) => return Err(RunError::io("create the folder", &folder)(source)),
        }
    }
}

/// Begins a segment: its header and the names of the measures.
fn create_segment(folder: &Path, number: u32) -> Result<(File, PathBuf, LogPosition), RunError> {
    let path = folder.join(segment_name(number));
    let mut begin = segment::header(number).to_vec();
    mirror::put_measures(&mut begin)?;
    let create = || {
        // A segment whose begin could not be written is begun anew.
        let mut file = OpenOptions::new().append(true).create(true).open(&path)?;
        file.set_len(0)?;
        file.write_all(&begin)?;
        files::sync_folder_of(&path)?;
        Ok(file)
    };
    let file = create().map_err(RunError::io("begin", &path))?;
    Ok((file, path, LogPosition { segment: number, offset: begin.len() as u64 }))
}
