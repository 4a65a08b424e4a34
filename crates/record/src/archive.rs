//! The archive: what has been sealed is copied to another place, while the logs stay where they are written.
//!
//! Copied are the run's own description, the parts and the numbers of each step with what a viewer shows of it without reading
//! it, and at last the manifest that names them, so that a copy can be opened like any run. A place that is away is tried again
//! with the next step.
//!
//! A place is a folder (`file:///mnt/runs/r7`), such as a mounted bucket, or a bucket that speaks S3
//! (`s3://BUCKET/PREFIX`). The `object_store` crate does more, and with S3 brings a second HTTP client, its TLS and an XML
//! reader into a program that has one already: some 150 crates for one PUT, which is signed in eighty lines.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rollscope_config::refused;
use rollscope_run::Run;
use rollscope_trace::StepNumber;

use crate::RecordError;
use crate::s3::{Bucket, S3Error};

/// Where a run is copied to, as it is written on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchivePlace {
    /// `file://PATH`.
    Folder(PathBuf),
    /// `s3://BUCKET[/PREFIX]`; the keys and the endpoint are taken from the environment, as AWS's own tools do.
    S3 {
        /// The bucket.
        bucket: String,
        /// What names begin with; without a slash at its end.
        prefix: String,
    },
}

/// A text that is no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a place for copies, which is file:///PATH or s3://BUCKET[/PREFIX]: {0}")]
pub struct NotAPlace(String);

/// Why something could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The system does not read or write it.
    #[error("cannot copy to the archive: {}", path.display())]
    Io {
        /// Why.
        source: std::io::Error,
        /// Which file.
        path: PathBuf,
    },
    /// The bucket does not take it.
    #[error("cannot copy to the archive")]
    S3(#[from] S3Error),
}

/// An archive of one run.
#[derive(Debug)]
pub(crate) struct Archive {
    place: ArchivePlace,
    /// Steps that are to be copied.
    due: BTreeSet<StepNumber>,
}

// === impl ArchivePlace ===

impl FromStr for ArchivePlace {
    type Err = NotAPlace;

    fn from_str(text: &str) -> Result<Self, NotAPlace> {
        let not_a_place = || NotAPlace(refused(text));
        if let Some(path) = text.strip_prefix("file://") {
            return path.starts_with('/').then(|| Self::Folder(path.into())).ok_or_else(not_a_place);
        }
        let rest = text.strip_prefix("s3://").ok_or_else(not_a_place)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-');
        if bucket.is_empty() || !bucket.chars().all(is_name) {
            return Err(not_a_place());
        }
        Ok(Self::S3 { bucket: bucket.to_owned(), prefix: prefix.trim_matches('/').to_owned() })
    }
}

impl fmt::Display for ArchivePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "file://{}", path.display()),
            Self::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

// === impl Archive ===

impl Archive {
    pub(crate) fn new(place: ArchivePlace) -> Self {
        Self { place, due: BTreeSet::new() }
    }

    /// Copies what there is of steps, and of those that could not be copied before.
    pub(crate) fn bring(
        &mut self,
        run: &Run,
        steps: impl IntoIterator<Item = StepNumber>,
    ) -> Result<(), RecordError> {
        self.due.extend(steps);
        if self.due.is_empty() {
            return Ok(());
        }
        let files = run.sealed_files(&self.due)?;
        let bucket = match &self.place {
            ArchivePlace::Folder(_) => None,
            ArchivePlace::S3 { bucket, prefix } => {
                Some((Bucket::from_environment(bucket, |name| std::env::var(name).ok())?, prefix))
            }
        };
        for file in files {
            let path = run.dir().join(&file);
            let bytes = fs::read(&path).map_err(|source| ArchiveError::Io { source, path })?;
            match (&self.place, &bucket) {
                (_, Some((bucket, prefix))) => {
                    let name = file.to_string_lossy().replace('\\', "/");
                    let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
                    bucket.put(&name, &bytes).map_err(ArchiveError::from)?;
                }
                (ArchivePlace::Folder(folder), None) => put_file(&folder.join(file), &bytes)?,
                (ArchivePlace::S3 { .. }, None) => {}
            }
        }
        self.due.clear();
        Ok(())
    }
}

/// A reader sees the old file or the new one, and no half of either.
fn put_file(path: &Path, bytes: &[u8]) -> Result<(), ArchiveError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.tmp"));
    let folder = path.parent().unwrap_or(Path::new("/"));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&temporary, bytes));
    let renamed = written.and_then(|()| fs::rename(&temporary, path));
    renamed.map_err(|source| ArchiveError::Io { source, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        for text in ["file:///mnt/runs", "s3://bucket", "s3://a-b.c/runs/r7"] {
            assert_eq!(text.parse::<ArchivePlace>().unwrap().to_string(), text);
        }
        for text in ["", "file://relative", "s3://", "s3:///x", "s3://Bucket/x", "gs://b", "/mnt"] {
            assert_eq!(text.parse::<ArchivePlace>(), Err(NotAPlace(text.to_owned())));
        }
        let told = NotAPlace("s3://<redacted>@bucket/x".to_owned());
        assert_eq!("s3://key:secret@bucket/x".parse::<ArchivePlace>(), Err(told));
    }
}
