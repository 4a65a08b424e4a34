//! The archive: what has been sealed is copied to another place, while the logs stay where they are written.
//!
//! Copied are the run's own description, the parts and the numbers of each step with what a viewer shows of it without reading
//! it, and at last the manifest that names them, so that a copy can be opened like any run.
//!
//! A thread of its own copies: neither a step's end nor recording waits for the place; the recorder's own end does, for
//! [`LAST_OF_ALL`] at most. A place that is away is tried again, ever less often, and retention spares the steps that wait for it,
//! as many as [`MOST_SPARED`]. Which they are is kept in `archive/` of the run, by each recorder for itself: others spare
//! them too, and the next copies what this one could not. Of several recorders one copies at a time.
//!
//! A place is a folder (`file:///mnt/runs/r7`), such as a mounted bucket, or a bucket that speaks S3
//! (`s3://BUCKET/PREFIX`), into which large files go in pieces.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
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
    /// Under whose name what is due is kept.
    writer: Box<str>,
    due: Mutex<Due>,
    /// Pieces of files that were copied.
    pieces: AtomicU64,
    /// Nobody waits for the thread any more.
    is_abandoned: AtomicBool,
}

/// Steps that are to be copied.
#[derive(Default)]
struct Due {
    /// Those that are about to be sealed.
    coming: BTreeSet<StepNumber>,
    waiting: BTreeSet<StepNumber>,
    /// Those that are being copied, and those that are there and no manifest there names yet.
    unnamed: BTreeSet<StepNumber>,
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
/// A file goes into a folder in pieces of so many bytes.
const PIECE_BYTES: u64 = 1 << 20;
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
    pub(crate) fn spawn(
        run: &Run,
        writer: &str,
        place: ArchivePlace,
        on_trouble: &OnTrouble,
    ) -> Result<Self, RecordError> {
        let due = Due { waiting: run.take_archive_due(writer)?, ..Due::default() };
        let (pieces, is_abandoned) = Default::default();
        let shared = Arc::new(Shared {
            run: run.clone(),
            writer: writer.into(),
            due: Mutex::new(due),
            pieces,
            is_abandoned,
        });
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

    /// These are about to be sealed, and to be brought then: from now on all recorders spare them.
    pub(crate) fn announce(&self, steps: &BTreeSet<StepNumber>) -> Result<(), RunError> {
        self.shared.change(|due| due.coming.extend(steps))
    }

    /// Has steps copied, be it once more. Unless something is to be done again no other step is still to come of those that were
    /// announced.
    pub(crate) fn bring(&self, steps: BTreeSet<StepNumber>, is_to_go_on: bool) -> Result<(), RunError> {
        let is_new = !steps.is_empty();
        let kept = self.shared.change(|due| {
            due.coming.retain(|step| is_to_go_on && !steps.contains(step));
            due.waiting.extend(steps);
        });
        if let Some(bell) = self.bell.as_ref().filter(|_| is_new) {
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
        self.shared.change(|due| due.give_up(steps))
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
        if before == after { Ok(()) } else { self.run.put_archive_due(&self.writer, &after) }
    }
}

// === impl Due ===

impl Due {
    fn all(&self) -> BTreeSet<StepNumber> {
        [&self.coming, &self.waiting, &self.unnamed].into_iter().flatten().copied().collect()
    }

    /// Whether nothing can be copied now.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.unnamed.is_empty()
    }

    /// The step that is to be copied now. It may be brought again meanwhile.
    fn begin(&mut self) -> Option<StepNumber> {
        let step = self.waiting.pop_first()?;
        self.unnamed.insert(step);
        Some(step)
    }

    /// It could not be copied, and is to be unless it was given up meanwhile.
    fn put_back(&mut self, step: StepNumber) {
        if self.unnamed.remove(&step) {
            self.waiting.insert(step);
        }
    }

    fn give_up(&mut self, steps: &BTreeSet<StepNumber>) {
        for due in [&mut self.coming, &mut self.waiting, &mut self.unnamed] {
            due.retain(|step| !steps.contains(step));
        }
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
        let outcome = self.copy();
        let is_failed = outcome.is_err();
        if let Err(error) = outcome
            && !self.is_troubled
        {
            (self.on_trouble)(&error);
        }
        self.is_troubled = is_failed;
        !is_failed
    }

    /// What is copied stays so when a later step cannot be; the manifest that names it comes last.
    fn copy(&self) -> Result<(), RecordError> {
        let Shared { run, due, .. } = &*self.shared;
        if due.lock().is_idle() {
            return Ok(());
        }
        let bucket = match &self.place {
            ArchivePlace::Folder(_) => None,
            ArchivePlace::S3 { bucket, .. } => Some(Bucket::from_environment(bucket, variables())?),
        };
        loop {
            let Some(step) = due.lock().begin() else { break };
            let copied = self.put_locked(bucket.as_ref(), || run.sealed_files(step));
            if copied.is_err() {
                due.lock().put_back(step);
            }
            copied?;
        }
        self.put_locked(bucket.as_ref(), || run.archive_files())?;
        // Only this thread adds to them.
        Ok(self.shared.change(|due| due.unnamed.clear())?)
    }

    /// No other process reads or puts such files meanwhile, so that none replaces a newer one by an older one.
    fn put_locked(
        &self,
        bucket: Option<&Bucket>,
        files: impl FnOnce() -> Result<Vec<SealedFile>, RunError>,
    ) -> Result<(), RecordError> {
        let _lock = self.shared.run.lock_archive()?;
        let has_progressed = || {
            self.shared.pieces.fetch_add(1, Ordering::Relaxed);
        };
        for SealedFile { path, name } in files()? {
            match (&self.place, bucket) {
                (ArchivePlace::S3 { prefix, .. }, Some(bucket)) => {
                    let name = name.to_string_lossy().replace('\\', "/");
                    let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
                    bucket.put(&name, &path, has_progressed)?;
                }
                (ArchivePlace::Folder(folder), _) => put_file(&folder.join(name), &path, has_progressed)?,
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

/// A reader sees the old file or the new one, and no half of either. The temporary name is always the same, so that what a
/// killed process left there is replaced; the archive's lock keeps others from it.
fn put_file(to: &Path, from: &Path, has_progressed: impl Fn()) -> Result<(), ArchiveError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| ArchiveError::Io { source, path }
    };
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let temporary = to.with_file_name(format!(".{name}.tmp"));
    let from_file = File::open(from).map_err(failed(from))?;
    fs::create_dir_all(to.parent().unwrap_or(Path::new("/"))).map_err(failed(to))?;
    let mut to_file = File::create(&temporary).map_err(failed(to))?;
    let mut piece = Vec::new();
    loop {
        piece.clear();
        (&from_file).take(PIECE_BYTES).read_to_end(&mut piece).map_err(failed(from))?;
        if piece.is_empty() {
            break;
        }
        to_file.write_all(&piece).map_err(failed(to))?;
        has_progressed();
    }
    fs::rename(&temporary, to).map_err(failed(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_is_given_up_while_it_is_copied_is_not_copied_again() {
        let steps = [1, 2].map(StepNumber);
        let mut due = Due { waiting: steps.into(), ..Due::default() };
        assert_eq!(due.begin(), Some(steps[0]));
        assert_eq!(due.all(), steps.into(), "until it is there");
        due.give_up(&[steps[0]].into());
        due.put_back(steps[0]);
        assert_eq!(due.all(), [steps[1]].into());
        assert_eq!(due.begin(), Some(steps[1]));
        due.put_back(steps[1]);
        assert_eq!(due.begin(), Some(steps[1]), "once more");
    }

    #[test]
    fn a_large_file_that_goes_into_a_folder_is_progress_before_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("copies/to"));
        let bytes = vec![7; 2 * usize::try_from(PIECE_BYTES).unwrap() + 1];
        fs::write(&from, &bytes).unwrap();
        let pieces = AtomicU64::new(0);
        put_file(&to, &from, || {
            pieces.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(pieces.into_inner(), 3);
        assert!(fs::read(&to).unwrap() == bytes);
        assert_eq!(fs::read_dir(to.parent().unwrap()).unwrap().count(), 1, "nothing beside it");
    }

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
