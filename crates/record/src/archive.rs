//! The archive: what has been sealed is copied to another place, while the logs stay where they are written.
//!
//! Copied are the run's own description, the parts and the numbers of each step with what a viewer shows of it without reading
//! it, and at last the manifest that names them, so that a copy can be opened like any run.
//!
//! A thread of its own copies: neither a step's end nor recording waits for the place. One that is away is tried again, ever less
//! often, and retention spares the steps that wait for it, as many as [`MOST_SPARED`]. Which they are is kept in
//! `archive/` of the run, so that the next recorder copies what this one could not.
//!
//! A place is a folder (`file:///mnt/runs/r7`), such as a mounted bucket, or a bucket that speaks S3
//! (`s3://BUCKET/PREFIX`), into which large files go in pieces.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollscope_config::refused;
use rollscope_run::{Run, RunError, SealedFile};
use rollscope_trace::StepNumber;

use crate::s3::{Bucket, S3Error};
use crate::{OnTrouble, RecordError};

/// Where a run is copied to, as it is written on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchivePlace {
    /// `file://PATH`.
    Folder(PathBuf),
    /// `s3://BUCKET[/PREFIX]`; keys and endpoint are taken from the environment, or the keys from a role.
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

/// The thread that copies.
pub(crate) struct Archive {
    place: ArchivePlace,
    shared: Arc<Shared>,
    /// Nothing when it is to end.
    bell: Option<SyncSender<()>>,
    /// Hears nothing more when the thread has ended.
    ended: Receiver<()>,
    on_trouble: OnTrouble,
}

/// What the thread and its owner know.
struct Shared {
    run: Run,
    due: Mutex<Due>,
    /// Pieces of files that were copied.
    pieces: AtomicU64,
    /// Nobody waits for the thread any more.
    is_abandoned: AtomicBool,
}

/// Steps that are to be copied.
#[derive(Default)]
struct Due {
    waiting: BTreeSet<StepNumber>,
    /// Those that are at present.
    copying: BTreeSet<StepNumber>,
}

struct Copying {
    place: ArchivePlace,
    shared: Arc<Shared>,
    on_trouble: OnTrouble,
    /// Whether the last try failed, so that a place that is away is told of once.
    is_troubled: bool,
}

/// So many steps that wait to be copied are kept beyond what is to be kept; older ones go, which is told.
pub(crate) const MOST_SPARED: usize = 256;
/// After a failure it is tried again so much later, and twice as much later each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// But no later than this.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// So long the end waits for the next piece of a file to be copied.
const LAST_PIECE: Duration = Duration::from_secs(5);
/// And so long for all of them.
const LAST_OF_ALL: Duration = Duration::from_mins(1);

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
        let prefix = prefix.trim_matches('/');
        let is_path = object_store::path::Path::parse(prefix).is_ok();
        if bucket.is_empty() || !bucket.chars().all(is_name) || !is_path {
            return Err(not_a_place());
        }
        Ok(Self::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
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
    /// Begins with what a recorder before could not copy.
    pub(crate) fn spawn(run: &Run, place: ArchivePlace, on_trouble: &OnTrouble) -> Result<Self, RecordError> {
        let due = Due { waiting: run.archive_due()?, copying: BTreeSet::new() };
        let (pieces, is_abandoned) = Default::default();
        let shared = Arc::new(Shared { run: run.clone(), due: Mutex::new(due), pieces, is_abandoned });
        let copying = Copying {
            place: place.clone(),
            shared: Arc::clone(&shared),
            on_trouble: Arc::clone(on_trouble),
            is_troubled: false,
        };
        // One word is enough: whoever hears it copies all that is due.
        let (bell, heard) = sync_channel(1);
        let (at_end, ended) = sync_channel(0);
        let work = move || {
            let _at_end = at_end;
            copying.work(&heard);
        };
        let thread = std::thread::Builder::new().name("rollscope-archive".to_owned()).spawn(work);
        thread.map_err(RecordError::Thread)?;
        Ok(Self { place, shared, bell: Some(bell), ended, on_trouble: Arc::clone(on_trouble) })
    }

    /// Has steps copied, be it once more.
    pub(crate) fn bring(&self, steps: BTreeSet<StepNumber>) -> Result<(), RunError> {
        let kept = self.shared.change(|due| due.waiting.extend(steps));
        if let Some(bell) = &self.bell {
            // Full: it has been told and has not looked yet.
            let _told = bell.try_send(());
        }
        kept
    }

    /// The steps that are not there yet.
    pub(crate) fn due(&self) -> BTreeSet<StepNumber> {
        self.shared.due.lock().all()
    }

    /// These are gone and will not be copied.
    pub(crate) fn give_up(&self, steps: &BTreeSet<StepNumber>) -> Result<(), RunError> {
        self.shared.change(|due| due.waiting.retain(|step| !steps.contains(step)))
    }

    /// Waits for what is left to be copied, as long as that goes on; gives the steps that are not there.
    pub(crate) fn finish(mut self) -> BTreeSet<StepNumber> {
        self.bell = None;
        let deadline = Instant::now() + LAST_OF_ALL;
        let copied = || self.shared.pieces.load(Ordering::Relaxed);
        loop {
            let before = copied();
            let waited = self.ended.recv_timeout(LAST_PIECE);
            let is_over = waited == Err(RecvTimeoutError::Disconnected);
            if is_over || copied() == before || Instant::now() >= deadline {
                break;
            }
        }
        self.shared.is_abandoned.store(true, Ordering::Relaxed);
        let due = self.due();
        if let Some(first) = due.first().copied() {
            (self.on_trouble)(&RecordError::Uncopied { place: self.place, count: due.len(), first });
        }
        due
    }
}

// === impl Shared ===

impl Shared {
    /// Changes what is due, and has the run keep it.
    fn change(&self, change: impl FnOnce(&mut Due)) -> Result<(), RunError> {
        let mut due = self.due.lock();
        let before = due.all();
        change(&mut due);
        let after = due.all();
        // Under the lock, so that the last change is what is kept.
        if before == after { Ok(()) } else { self.run.put_archive_due(&after) }
    }
}

// === impl Due ===

impl Due {
    fn all(&self) -> BTreeSet<StepNumber> {
        self.waiting.union(&self.copying).copied().collect()
    }
}

// === impl Copying ===

impl Copying {
    /// Until the bell is gone; then what is left, as long as the owner waits.
    fn work(mut self, bell: &Receiver<()>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let waited = if self.try_now() {
                pause = FIRST_PAUSE;
                bell.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                let waited = bell.recv_timeout(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
                waited
            };
            if waited == Err(RecvTimeoutError::Disconnected) {
                break;
            }
        }
        while !self.shared.is_abandoned.load(Ordering::Relaxed) && !self.try_now() {
            std::thread::sleep(FIRST_PAUSE);
        }
    }

    /// Whether all that was due is copied.
    fn try_now(&mut self) -> bool {
        let copying = {
            let mut due = self.shared.due.lock();
            due.copying = std::mem::take(&mut due.waiting);
            due.copying.clone()
        };
        let copied = self.copy(&copying);
        let kept = self.shared.change(|due| {
            let copying = std::mem::take(&mut due.copying);
            if copied.is_err() {
                due.waiting.extend(copying);
            }
        });
        let outcome = copied.and(kept.map_err(RecordError::from));
        let is_failed = outcome.is_err();
        if let Err(error) = outcome
            && !self.is_troubled
        {
            (self.on_trouble)(&error);
        }
        self.is_troubled = is_failed;
        !is_failed
    }

    fn copy(&self, steps: &BTreeSet<StepNumber>) -> Result<(), RecordError> {
        if steps.is_empty() {
            return Ok(());
        }
        let run = &self.shared.run;
        let bucket = match &self.place {
            ArchivePlace::Folder(_) => None,
            ArchivePlace::S3 { bucket, prefix } => {
                Some((Bucket::from_environment(bucket, variables())?, prefix))
            }
        };
        let has_progressed = || {
            self.shared.pieces.fetch_add(1, Ordering::Relaxed);
        };
        for SealedFile { path, name } in run.sealed_files(steps)? {
            match (&self.place, &bucket) {
                (_, Some((bucket, prefix))) => {
                    let name = name.to_string_lossy().replace('\\', "/");
                    let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
                    bucket.put(&name, &path, has_progressed)?;
                }
                (ArchivePlace::Folder(folder), None) => {
                    let bytes = fs::read(&path).map_err(|source| ArchiveError::Io { source, path })?;
                    put_file(&folder.join(name), &bytes)?;
                    has_progressed();
                }
                (ArchivePlace::S3 { .. }, None) => {}
            }
        }
        Ok(())
    }
}

/// The environment, but for what is no text.
fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
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
        for text in
            ["", "file://relative", "s3://", "s3:///x", "s3://Bucket/x", "s3://b/x//y", "gs://b", "/mnt"]
        {
            assert_eq!(text.parse::<ArchivePlace>(), Err(NotAPlace(text.to_owned())));
        }
        let told = NotAPlace("s3://<redacted>@bucket/x".to_owned());
        assert_eq!("s3://key:secret@bucket/x".parse::<ArchivePlace>(), Err(told));
    }
}
