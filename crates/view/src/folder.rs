//! Which folder a run is in: one that was removed and made again is another one at the same path.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

/// Of two at one path the later has another number, or another time of birth where that is known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Folder {
    device: u64,
    inode: u64,
    born: Option<SystemTime>,
}

// === impl Folder ===

impl Folder {
    /// The folder at a path now, if there is one.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let found = path.metadata().ok()?;
        Some(Self { device: found.dev(), inode: found.ino(), born: found.created().ok() })
    }
    /// What became of the folder at a path, if it is no longer the one that was there first.
    pub(crate) fn replaced(first: Option<&Self>, path: &Path) -> Option<String> {
        let now = Self::at(path);
        let what = match now.as_ref() {
            now if now == first => return None,
            None => "was removed",
            Some(_) => "was removed and made again",
        };
        let path = path.display();
        Some(format!(
            "the run's folder {what}: start the viewer anew, which shows no step of a folder that is no longer there ({path})"
        ))
    }
}
