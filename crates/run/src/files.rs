//! Files that appear whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::RunError;

/// Distinguishes temporary files of one process.
static NEXT_TEMPORARY: AtomicU64 = AtomicU64::new(0);

/// Writes a file so that readers see the old or the new content and never a part of either; it survives a loss
/// of power once this has returned.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), RunError> {
    replace_with(path, [bytes])
}

/// The same of what lies in pieces.
pub(crate) fn replace_with<const N: usize>(path: &Path, pieces: [&[u8]; N]) -> Result<(), RunError> {
    let temporary = temporary_beside(path);
    let outcome = write_synced(&temporary, pieces).and_then(|()| fs::rename(&temporary, path));
    outcome.and_then(|()| sync_folder_of(path)).map_err(|source| {
        fs::remove_file(&temporary).ok();
        RunError::Io { action: "write", path: path.to_owned(), source }
    })
}

/// Writes a file that must not exist yet; says whether it is ours. Readers see it whole, except on file systems
/// without hard links, where a crash may leave a part of it: they must pass over what they cannot read. It may be there, and
/// be ours, though that is denied or an error comes back: a folder may fail to be synced, and the answer of a network's file
/// system be lost.
pub(crate) fn create_exclusive(path: &Path, bytes: &[u8]) -> Result<bool, RunError> {
    let temporary = temporary_beside(path);
    let outcome = write_synced(&temporary, [bytes]).and_then(|()| match link(&temporary, path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => write_synced(path, [bytes]),
        linked => linked,
    });
    fs::remove_file(&temporary).ok();
    let synced = outcome.and_then(|()| {
        #[cfg(test)]
        fault::hit(fault::Fault::Sync)?;
        sync_folder_of(path)
    });
    match synced {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(RunError::Io { action: "create", path: path.to_owned(), source }),
    }
}

/// A hidden name in the same folder, taken by no other writer of this machine.
pub(crate) fn temporary_beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let serial = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{name}.{}-{serial}.tmp", std::process::id()))
}

/// Makes a new, renamed or linked name in a folder survive a loss of power.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Creates a folder and those above it.
pub(crate) fn create_folders(path: &Path) -> Result<(), RunError> {
    fs::create_dir_all(path).map_err(RunError::io("create the folder", path))
}

/// The names in a folder, sorted; none when there is no such folder.
pub(crate) fn names_in(folder: &Path) -> Result<Vec<String>, RunError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(RunError::io("list", folder)(source)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(RunError::io("list", folder))?;
        // A name that is no text is none of ours.
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// The content of a file; nothing when there is none.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, RunError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RunError::io("read", path)(source)),
    }
}

fn link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)?;
    #[cfg(test)]
    fault::hit(fault::Fault::Link)?;
    Ok(())
}

fn write_synced<const N: usize>(path: &Path, pieces: [&[u8]; N]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    for piece in pieces {
        file.write_all(piece)?;
    }
    file.sync_all()
}

/// Errors that come back from what took effect.
#[cfg(test)]
pub(crate) mod fault {
    use std::cell::Cell;
    use std::io;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Fault {
        /// A file was linked.
        Link,
        /// And its folder cannot be synced.
        Sync,
    }

    thread_local! {
        static NEXT: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// The next time that this thread comes there.
    pub(crate) fn set(fault: Fault) {
        NEXT.set(Some(fault));
    }

    pub(super) fn hit(fault: Fault) -> io::Result<()> {
        if NEXT.get() != Some(fault) {
            return Ok(());
        }
        NEXT.set(None);
        Err(io::Error::other("a fault of the test"))
    }
}
