//! What a copy of a run is made of.
//!
//! The run forgets steps that its copy keeps, so the copy has a manifest of its own: every seal that there was when something
//! was copied, as it was then. It is kept in `archive/` of the run, and copied under the number of the run's newest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rollscope_trace::StepNumber;

use crate::error::RunError;
use crate::files;
use crate::manifest;
use crate::run::Run;

const DUE_NAME: &str = "due.json";

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
    /// The files that make a copy of what has been sealed of steps: what the run says of itself, the parts and the numbers of
    /// the steps with what a viewer shows of each without reading it, the numbers of all, and at last a manifest of all that
    /// was ever copied with the files that it names. By one thread at a time.
    pub fn sealed_files(&self, steps: &BTreeSet<StepNumber>) -> Result<Vec<SealedFile>, RunError> {
        let mut paths = vec![self.info_path()];
        for step in steps {
            paths.extend(manifest::parts_of(self, *step)?);
            paths.extend([self.stats_path(*step), self.glance_path(*step)]);
        }
        paths.push(self.metrics_path());
        paths.retain(|path| path.is_file());
        let within = |path: PathBuf| {
            let name = path.strip_prefix(self.dir()).map_or_else(|_| path.clone(), Path::to_owned);
            SealedFile { path, name }
        };
        let mut sealed: Vec<SealedFile> = paths.into_iter().map(within).collect();
        files::create_folders(&self.archive_folder())?;
        let manifests = manifest::archived(self, &self.archive_folder())?;
        sealed.extend(manifests.into_iter().map(|(path, name)| SealedFile { path, name }));
        Ok(sealed)
    }

    /// Steps that are to be copied elsewhere, as a recorder left it.
    pub fn archive_due(&self) -> Result<BTreeSet<StepNumber>, RunError> {
        let bytes = files::read_if_there(&self.archive_folder().join(DUE_NAME))?.unwrap_or_default();
        let steps: Vec<u64> = serde_json::from_slice(&bytes).unwrap_or_default();
        Ok(steps.into_iter().map(StepNumber).collect())
    }

    /// Keeps which steps are to be copied elsewhere.
    pub fn put_archive_due(&self, steps: &BTreeSet<StepNumber>) -> Result<(), RunError> {
        let steps: Vec<u64> = steps.iter().map(|step| step.0).collect();
        let bytes =
            serde_json::to_vec(&steps).map_err(|source| RunError::EncodeJson { what: DUE_NAME, source })?;
        files::create_folders(&self.archive_folder())?;
        files::replace(&self.archive_folder().join(DUE_NAME), &bytes)
    }

    fn archive_folder(&self) -> PathBuf {
        self.dir().join("archive")
    }
}
