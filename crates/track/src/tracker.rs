//! A tracker of a run: which steps it has, and taking the others.
//!
//! The numbers of a step may change after they were sent, and are sent again then. A tracker has a step as often as it was sent
//! to it, and counts that by itself, by what it holds.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::TrackError;
use crate::jsonl::Jsonl;
use crate::mlflow::Mlflow;
use crate::target::Target;
use crate::tensorboard::TensorBoard;
use crate::wandb::Wandb;

/// Numbers of a step by name; all finite.
pub type Numbers = BTreeMap<String, f64>;

/// The run that numbers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its folder.
    pub dir: PathBuf,
    /// When it was made, since the Unix epoch.
    pub created: Duration,
}

/// A tracker of one run at one target.
#[derive(Debug)]
pub struct Tracker {
    kind: Kind,
    /// Of a tracker that is no file, which would be locked itself.
    _lock: Option<File>,
}

/// How often a tracker has each step.
#[derive(Debug, Default)]
pub(crate) struct Times(BTreeMap<u64, u64>);

#[derive(Debug)]
enum Kind {
    Wandb(Wandb),
    TensorBoard(TensorBoard),
    Mlflow(Mlflow),
    Jsonl(Jsonl),
    /// The run's own metrics.jsonl, which its recorder writes and nobody else.
    Own(PathBuf),
}

// === impl Tracker ===

impl Tracker {
    /// Opens a tracker and finds out which steps it has already. What a crash has cut off is taken away, so that
    /// the next step follows what is whole. While it is open nobody else can open it: of several that send the same, each would
    /// send each step.
    pub fn open(target: &Target, origin: &Origin) -> Result<Self, TrackError> {
        let mut lock = None;
        let kind = match target {
            Target::Wandb { project, name } => {
                Kind::Wandb(Wandb::open(origin, project.as_deref().unwrap_or("rollscope"), name.as_deref())?)
            }
            Target::TensorBoard { dir } => {
                let own = origin.dir.join("tensorboard");
                // What replaces steps in a folder would replace those of whoever else writes there too.
                let dir = match dir {
                    Some(dir) if !is_same(dir, &own) => {
                        dir.join(format!("rollscope-{}", origin.id("tensorboard")))
                    }
                    _ => own,
                };
                Kind::TensorBoard(TensorBoard::open(origin, &dir)?)
            }
            Target::Mlflow { url } => {
                lock = lock_for(target, origin)?;
                Kind::Mlflow(Mlflow::open(origin, url)?)
            }
            Target::Jsonl { path } => {
                let own = origin.dir.join("metrics.jsonl");
                match path {
                    Some(path) if !is_same(path, &own) => Kind::Jsonl(Jsonl::open(origin, path)?),
                    _ => Kind::Own(own),
                }
            }
        };
        Ok(Self { kind, _lock: lock })
    }

    /// How often it was sent a step.
    pub fn times(&self, step: u64) -> u64 {
        match &self.kind {
            Kind::Wandb(wandb) => wandb.times.of(step),
            Kind::TensorBoard(board) => board.times.of(step),
            Kind::Mlflow(mlflow) => mlflow.times.of(step),
            Kind::Jsonl(jsonl) => jsonl.times.of(step),
            Kind::Own(_) => u64::MAX,
        }
    }

    /// Sends the numbers of a step; of one that it has they replace what it has as far as it can do so, with [`Self::flush`] at the
    /// latest. On an error the step may be there in part, and is sent again.
    pub fn send(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackError> {
        match &mut self.kind {
            Kind::Wandb(wandb) => wandb.send(step, numbers),
            Kind::TensorBoard(board) => board.send(step, numbers),
            Kind::Mlflow(mlflow) => mlflow.send(step, numbers),
            Kind::Jsonl(jsonl) => jsonl.send(step, numbers),
            // It was there before anybody else got it.
            Kind::Own(_) => Ok(()),
        }
    }

    /// Writes what is not written yet: replacing one step may cost as much as replacing them all. After an error, and without a
    /// flush, the tracker opened anew tells what it has.
    pub fn flush(&mut self) -> Result<(), TrackError> {
        match &mut self.kind {
            Kind::TensorBoard(board) => board.flush(),
            Kind::Wandb(_) | Kind::Mlflow(_) | Kind::Jsonl(_) | Kind::Own(_) => Ok(()),
        }
    }

    /// Tells the tracker that the run has ended, where it wants to know. Opened again, it goes on.
    pub fn finish(self) -> Result<(), TrackError> {
        match self.kind {
            Kind::Wandb(wandb) => wandb.finish(),
            Kind::Mlflow(mlflow) => mlflow.finish(),
            Kind::TensorBoard(_) | Kind::Jsonl(_) | Kind::Own(_) => Ok(()),
        }
    }

    /// Where the numbers are, for people.
    pub fn place(&self) -> String {
        match &self.kind {
            Kind::Wandb(wandb) => wandb.dir().display().to_string(),
            Kind::TensorBoard(board) => board.path().display().to_string(),
            Kind::Mlflow(mlflow) => mlflow.place(),
            Kind::Jsonl(jsonl) => jsonl.path().display().to_string(),
            Kind::Own(path) => path.display().to_string(),
        }
    }
}

/// A locked file in the run's folder. Some folders cannot be written to, and some file systems lock nothing: then nobody is
/// kept out.
fn lock_for(target: &Target, origin: &Origin) -> Result<Option<File>, TrackError> {
    let name = format!(".track-{}.lock", origin.id(&format!("lock:{target:?}")));
    let Ok(file) = File::create(origin.dir.join(name)) else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(TrackError::InUse { place: target.to_string() }),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

// === impl Times ===

impl Times {
    pub(crate) fn of(&self, step: u64) -> u64 {
        self.0.get(&step).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, step: u64) {
        *self.0.entry(step).or_default() += 1;
    }

    /// The steps from one on, in order.
    pub(crate) fn from(&self, step: u64) -> impl Iterator<Item = u64> {
        self.0.range(step..).map(|(step, _)| *step)
    }
}

impl FromIterator<u64> for Times {
    fn from_iter<I: IntoIterator<Item = u64>>(steps: I) -> Self {
        let mut times = Self::default();
        for step in steps {
            times.add(step);
        }
        times
    }
}

// === impl Origin ===

impl Origin {
    /// The name of the run's folder.
    pub(crate) fn name(&self) -> String {
        let dir = self.dir.canonicalize().unwrap_or_else(|_| self.dir.clone());
        dir.file_name().map_or_else(|| "run".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    /// Eight characters that stay the same for this run and this purpose, wherever the run is moved to: by FNV-1a
    /// (Fowler, Noll, Vo, 64 bits) over its time and the purpose, in base 36.
    pub(crate) fn id(&self, purpose: &str) -> String {
        let time = self.created.as_nanos().to_le_bytes();
        let hash = time.iter().chain(purpose.as_bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        let digit = |at: u32| {
            let digit = hash / 36u64.pow(at) % 36;
            char::from_digit(digit as u32, 36).unwrap_or('0')
        };
        (0..8).map(digit).collect()
    }
}

/// Whether two paths are of one file, be it there yet or not, as far as the system can tell.
fn is_same(one: &Path, other: &Path) -> bool {
    let in_folder = |path: &Path| {
        // The folder of a bare name is named by nothing.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    let real = |path: &Path| path.canonicalize().ok().or_else(|| in_folder(path));
    real(one).is_some_and(|one| real(other) == Some(one))
}

/// Seconds since the Unix epoch.
pub(crate) fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A folder for files of a tracker.
pub(crate) fn create_folder(path: &Path) -> Result<(), TrackError> {
    std::fs::create_dir_all(path).map_err(TrackError::io("create the folder", path))
}
