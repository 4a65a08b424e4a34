//! What a copy of a run is made of.
//!
//! The run forgets steps that its copy keeps, so the copy has a manifest of its own: every seal that there was when something
//! was copied, as it was then. It is kept in `archive/` of the run, and copied under the number of the run's newest.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rollscope_trace::StepNumber;

use crate::error::RunError;
use crate::files;
use crate::manifest;
use crate::presence::is_live;
use crate::run::Run;

/// `due-WRITER.json`: what a writer is to copy. Each has its own, so that none overwrites what another has to do.
const DUE_PREFIX: &str = "due-";
const DUE_SUFFIX: &str = ".json";
const LOCK_NAME: &str = ".lock";

/// A file that is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Where it is to be, from the copy's folder.
    pub name: PathBuf,
}

// === impl Run ===

impl Run {
    /// The files that make a copy of what has been sealed of a step: its parts, and its numbers with what a viewer shows of it
    /// without reading it.
    pub fn sealed_files(&self, step: StepNumber) -> Result<Vec<SealedFile>, RunError> {
        let mut paths = manifest::parts_of(self, step)?;
        paths.extend([self.stats_path(step), self.glance_path(step)]);
        Ok(self.files_there(paths))
    }

    /// The files that make a run of the copies of steps: what the run says of itself, the numbers of all steps, and at last a
    /// manifest of all that was ever copied with the files that it names. By one process at a time, see [`Self::lock_archive`].
    pub fn archive_files(&self) -> Result<Vec<SealedFile>, RunError> {
        let mut files = self.files_there(vec![self.info_path(), self.metrics_path()]);
        files::create_folders(&self.archive_folder())?;
        let manifests = manifest::archived(self, &self.archive_folder())?;
        files.extend(manifests.into_iter().map(|(path, name)| SealedFile { path, name }));
        Ok(files)
    }

    fn files_there(&self, mut paths: Vec<PathBuf>) -> Vec<SealedFile> {
        paths.retain(|path| path.is_file());
        let within = |path: PathBuf| {
            let name = path.strip_prefix(self.dir()).map_or_else(|_| path.clone(), Path::to_owned);
            SealedFile { path, name }
        };
        paths.into_iter().map(within).collect()
    }

    /// Waits until no other process copies files of this run, and keeps them from it until the file is dropped.
    pub fn lock_archive(&self) -> Result<File, RunError> {
        let path = self.archive_folder().join(LOCK_NAME);
        files::create_folders(&self.archive_folder())?;
        let lock = File::create(&path).map_err(RunError::io("create", &path))?;
        lock.lock().map_err(RunError::io("lock", &path))?;
        Ok(lock)
    }

    /// Steps that are to be copied elsewhere, by whichever writer.
    pub fn archive_due(&self) -> Result<BTreeSet<StepNumber>, RunError> {
        let mut due = BTreeSet::new();
        for name in files::names_in(&self.archive_folder())? {
            if writer_of(&name).is_some() {
                due.extend(self.read_due(&name)?);
            }
        }
        Ok(due)
    }

    /// Makes what writers that live no more had to copy the task of this one, and gives it.
    pub fn take_archive_due(&self, writer: &str) -> Result<BTreeSet<StepNumber>, RunError> {
        let (mut due, mut left) = (BTreeSet::new(), Vec::new());
        for name in files::names_in(&self.archive_folder())? {
            let Some(other) = writer_of(&name) else { continue };
            if other == writer || !is_live(&self.log_folder(other)) {
                due.extend(self.read_due(&name)?);
                left.extend((other != writer).then_some(name));
            }
        }
        // In this order, so that whoever reads all of them misses none.
        self.put_archive_due(writer, &due)?;
        left.iter().try_for_each(|name| self.remove_due(name))?;
        Ok(due)
    }

    /// Keeps which steps a writer is to copy elsewhere.
    pub fn put_archive_due(&self, writer: &str, steps: &BTreeSet<StepNumber>) -> Result<(), RunError> {
        let name = format!("{DUE_PREFIX}{writer}{DUE_SUFFIX}");
        if steps.is_empty() {
            return self.remove_due(&name);
        }
        let steps: Vec<u64> = steps.iter().map(|step| step.0).collect();
        let bytes = serde_json::to_vec(&steps)
            .map_err(|source| RunError::EncodeJson { what: "steps to be copied", source })?;
        files::create_folders(&self.archive_folder())?;
        files::replace(&self.archive_folder().join(name), &bytes)
    }

    fn read_due(&self, name: &str) -> Result<impl Iterator<Item = StepNumber> + use<>, RunError> {
        let bytes = files::read_if_there(&self.archive_folder().join(name))?.unwrap_or_default();
        let steps: Vec<u64> = serde_json::from_slice(&bytes).unwrap_or_default();
        Ok(steps.into_iter().map(StepNumber))
    }

    fn remove_due(&self, name: &str) -> Result<(), RunError> {
        let path = self.archive_folder().join(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(RunError::io("remove", &path)(e)),
            _ => Ok(()),
        }
    }

    fn archive_folder(&self) -> PathBuf {
        self.dir().join("archive")
    }
}

/// Whose steps a file tells.
fn writer_of(name: &str) -> Option<&str> {
    name.strip_prefix(DUE_PREFIX)?.strip_suffix(DUE_SUFFIX)
}
