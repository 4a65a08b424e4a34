//! What the writers of a run tell each other while they live.
//!
//! Several recorders may write one run, each its own log. So that none ends a step of which another has requests under way,
//! each keeps `log/WRITER/present.json`, which counts for as long as its writer holds its lock:
//!
//! ```text
//! {"open": [12], "busy": [12, 13], "leaving": false}
//! ```
//!
//! Whoever ends says so and leaves its open steps to those who stay; the last one has nobody to leave them to. What one that
//! was killed told last says which steps it left behind. Of several that end at once one has to be the last: they say so one
//! after the other, by a lock over the whole folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use rollscope_trace::StepNumber;
use serde::{Deserialize, Serialize};

use crate::error::RunError;
use crate::files;
use crate::log::segment_name;
use crate::log::writer::{LOCK_NAME, LogWriter};
use crate::run::Run;

const PRESENT_NAME: &str = "present.json";
/// Locked by whoever says that it ends. No writer has such a name.
const LEAVING_NAME: &str = ".leaving";

/// What a writer tells the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// Steps that it would close.
    pub open: BTreeSet<StepNumber>,
    /// Steps that go on where it is: nobody is to close them.
    pub busy: BTreeSet<StepNumber>,
    /// It ends, and what it has open is for those who stay.
    pub leaving: bool,
}

/// The other writers of a run, as one of them sees them.
#[derive(Debug)]
pub struct Peers {
    run: Run,
    own: Box<str>,
    told: Option<Presence>,
    /// Those who stay.
    live: BTreeMap<String, Presence>,
    /// Those who end and hold their logs: they may be killed before these are sealed.
    leaving: BTreeSet<String>,
    /// Those who never come back.
    gone: BTreeSet<String>,
    has_looked: bool,
    has_met_any: bool,
}

/// present.json.
#[derive(Serialize, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct PresentFile {
    open: BTreeSet<u64>,
    busy: BTreeSet<u64>,
    leaving: bool,
}

// === impl Peers ===

impl Run {
    /// The others that write this run beside a writer, none of whom has been looked at yet.
    pub fn peers(&self, writer: &LogWriter) -> Peers {
        let (own, told) = (writer.name().into(), None);
        let (live, leaving, gone) = Default::default();
        Peers { run: self.clone(), own, told, live, leaving, gone, has_looked: false, has_met_any: false }
    }
}

impl Peers {
    /// Tells the others; nothing is written where they know.
    pub fn tell(&mut self, presence: Presence) -> Result<(), RunError> {
        if self.told.as_ref() == Some(&presence) {
            return Ok(());
        }
        // It is of no use after a loss of power.
        let path = self.run.log_folder(&self.own).join(PRESENT_NAME);
        let temporary = files::temporary_beside(&path);
        let bytes = PresentFile::of(&presence).to_json()?;
        match fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, &path)) {
            Ok(()) => self.told = Some(presence),
            // The run was removed, which its writer finds out and tells by itself.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                fs::remove_file(&temporary).ok();
                return Err(RunError::io("write", &path)(source));
            }
        }
        Ok(())
    }

    /// Looks who is there, and gives those who have gone since, with the steps that each left open; the first time those who
    /// had gone before, if nobody stays to whom they have left them. One that says that it ends is given then, and once more,
    /// without steps, when it holds its log no longer.
    pub fn look(&mut self) -> Result<BTreeMap<String, BTreeSet<StepNumber>>, RunError> {
        let mut left = BTreeMap::new();
        for name in self.run.writer_names()? {
            if *name == *self.own || self.gone.contains(&name) {
                continue;
            }
            let folder = self.run.log_folder(&name);
            // A log is begun when it is locked.
            let has_begun = folder.join(segment_name(1)).exists();
            // Asked before it is read: what one tells last is told while it lives.
            let is_live = is_live(&folder);
            // One that has told nothing has begun a moment ago, or ends no steps.
            let Some(presence) = read(&folder.join(PRESENT_NAME))? else {
                if has_begun && !is_live {
                    self.gone.insert(name);
                }
                continue;
            };
            self.has_met_any |= is_live;
            if is_live && !presence.leaving {
                self.live.insert(name, presence);
                continue;
            }
            self.live.remove(&name);
            let has_left = self.leaving.contains(&name);
            if is_live {
                self.leaving.insert(name.clone());
            } else {
                self.leaving.remove(&name);
                self.gone.insert(name.clone());
            }
            if !(has_left && is_live) {
                left.insert(name, if has_left { BTreeSet::new() } else { presence.open });
            }
        }
        self.has_met_any |= self.has_looked && !left.is_empty();
        if !std::mem::replace(&mut self.has_looked, true) && !self.live.is_empty() {
            left.clear();
        }
        Ok(left)
    }

    /// Whether there has been another since one looked first.
    pub fn has_met_any(&self) -> bool {
        self.has_met_any
    }

    /// What those tell who stay, as one looked last.
    pub fn live(&self) -> impl Iterator<Item = &Presence> {
        self.live.values()
    }

    /// Whether a step goes on at one of the others.
    pub fn is_busy(&self, step: StepNumber) -> bool {
        self.live().any(|presence| presence.busy.contains(&step))
    }

    /// Tells the others that this one ends, which has all of its records in its log. Says whether nobody stays, and gives
    /// what [`Self::look`] does.
    pub fn leave(
        &mut self,
        open: BTreeSet<StepNumber>,
    ) -> Result<(bool, BTreeMap<String, BTreeSet<StepNumber>>), RunError> {
        let path = self.run.log_folder(LEAVING_NAME);
        let lock = File::create(&path).map_err(RunError::io("create", &path))?;
        lock.lock().map_err(RunError::io("lock", &path))?;
        self.tell(Presence { open, busy: BTreeSet::new(), leaving: true })?;
        let left = self.look()?;
        Ok((self.live.is_empty(), left))
    }
}

/// Whether the writer whose folder this is holds its lock.
pub(crate) fn is_live(folder: &Path) -> bool {
    let lock = File::open(folder.join(LOCK_NAME)).map(|lock| lock.try_lock_shared());
    matches!(lock, Ok(Err(TryLockError::WouldBlock)))
}

/// What cannot be read tells nothing.
fn read(path: &Path) -> Result<Option<Presence>, RunError> {
    let file = files::read_if_there(path)?.map(|bytes| serde_json::from_slice::<PresentFile>(&bytes));
    Ok(file.map(|file| file.unwrap_or_default().presence()))
}

// === impl PresentFile ===

impl PresentFile {
    fn of(presence: &Presence) -> Self {
        let numbers = |steps: &BTreeSet<StepNumber>| steps.iter().map(|step| step.0).collect();
        Self { open: numbers(&presence.open), busy: numbers(&presence.busy), leaving: presence.leaving }
    }

    fn presence(self) -> Presence {
        let steps = |numbers: BTreeSet<u64>| numbers.into_iter().map(StepNumber).collect();
        Presence { open: steps(self.open), busy: steps(self.busy), leaving: self.leaving }
    }

    fn to_json(&self) -> Result<Vec<u8>, RunError> {
        serde_json::to_vec(self).map_err(|source| RunError::EncodeJson { what: PRESENT_NAME, source })
    }
}
