//! A file that records are appended to: opened at the end of what is whole.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use crate::error::TrackError;

/// A file that only grows. It is locked while it is open: another that appends would write into what this one has written,
/// under whatever name and for whichever run it has opened it. Where the file system locks nothing, nobody is kept out.
#[derive(Debug)]
pub(crate) struct RecordFile {
    path: PathBuf,
    file: File,
    end: u64,
}

// === impl RecordFile ===

impl RecordFile {
    /// Opens a file, made if there is none; `whole` says how much of its content holds, which the rest is cut from.
    pub(crate) fn open(
        path: &Path,
        whole: impl FnOnce(&[u8]) -> Result<usize, TrackError>,
    ) -> Result<Self, TrackError> {
        // A device has no end that one could read to.
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(TrackError::Foreign { path: path.to_owned() });
        }
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.map_err(TrackError::io("open", path))?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(TrackError::InUse { place: path.display().to_string() });
        }
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(TrackError::io("read", path))?;
        let end = whole(&content)? as u64;
        let mut records = Self { path: path.to_owned(), file, end };
        records.cut()?;
        Ok(records)
    }

    /// Appends in one write and has it on the disk. On an error nothing stays of it.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), TrackError> {
        let written = self.file.write_all(bytes).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.end += bytes.len() as u64;
                Ok(())
            }
            Err(source) => {
                self.cut()?;
                Err(TrackError::io("write", &self.path)(source))
            }
        }
    }

    /// Its length.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn cut(&mut self) -> Result<(), TrackError> {
        let cut = self.file.set_len(self.end).and_then(|()| self.file.seek(SeekFrom::Start(self.end)));
        cut.map(drop).map_err(TrackError::io("cut", &self.path))
    }
}
