//! Manifests: which parts there are, and which stretches of the logs they replace.
//!
//! ```text
//! manifest/N.json                     everything sealed: names of the files with earlier seals, the recent seals, and the
//!                                     steps that were forgotten
//! manifest/seals-N-WRITER.json        earlier seals, moved here when manifest N was published
//! ```
//!
//! A manifest is whole and final: it tells of everything sealed so far. A writer that has sealed takes the newest
//! one, adds to it, and creates the next number exclusively; where another writer was faster, it takes that
//! one and tries again. A reader takes the newest manifest that it can read, and of each log what follows the
//! stretches that are named there; so every row is seen exactly once, whenever it looks. Parts that no manifest
//! names were left by a crash, and nobody looks at them.
//!
//! So that a run may grow long, no manifest holds more than a bounded number of seals: when there are as many,
//! they move into a file of their own, which is written before the manifest that names it and never again.
//!
//! Of a step that was forgotten, as retention has it, no seal tells anything, be it published afterwards; so its numbers,
//! which are all that is left of it, stay those of all of its records.
//!
//! What stands in such a file is told in `file`.

mod file;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollscope_trace::{StepClose, StepNumber};
use serde::{Deserialize, Serialize};

use crate::error::RunError;
use crate::files;
use crate::log::mirror::{CloseMirror, DroppedMirror};
use crate::log::{Damage, DamageKind, LogPosition, segment_name};
use crate::manifest::file::ManifestFile;
use crate::parts::StepParts;
use crate::run::Run;
use crate::step_set::StepSet;

const FOLDER_NAME: &str = "manifest";
/// The manifest of a copy, where the run keeps it.
const ARCHIVED_NAME: &str = "manifest.json";

/// Manifests that are kept, for readers that have listed the folder and not yet opened the newest.
const KEPT: u64 = 8;

/// So often the folder is listed again when all manifests that it had are gone.
const MAX_ATTEMPTS: u32 = 100;

/// Seals that stand in a manifest itself at most; they take some 700 bytes each.
const MAX_RECENT: usize = 128;

/// Everything sealed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manifest {
    earlier: Vec<Earlier>,
    recent: Vec<Seal>,
    /// Steps that were closed, and of which only numbers are left.
    forgotten: StepSet,
}

/// Seals in a file of their own.
#[derive(Clone, Debug)]
struct Earlier {
    name: String,
    seals: Arc<[Seal]>,
}

/// What one writer made of a stretch of its log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seal {
    pub(crate) writer: String,
    pub(crate) from: LogPosition,
    pub(crate) to: LogPosition,
    #[serde(default)]
    pub(crate) steps: Vec<StepParts>,
    /// Steps closed in this stretch.
    #[serde(default)]
    pub(crate) closes: Vec<CloseMirror>,
    /// Losses in this stretch, summed.
    #[serde(default)]
    pub(crate) dropped: Option<DroppedMirror>,
    /// Records of later versions that were passed over.
    #[serde(default)]
    pub(crate) unknown: u64,
    #[serde(default)]
    pub(crate) damage: Vec<SealedDamage>,
}

/// Damage in a stretch that was sealed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SealedDamage {
    segment: u32,
    offset: u64,
    kind: String,
}

/// The newest manifest, and the number that the next will have.
pub(crate) struct Newest {
    pub(crate) manifest: Arc<Manifest>,
    next: u64,
}

/// The manifest that was read or published last, by its number: none changes, so that none is read twice.
#[derive(Debug, Default)]
pub(crate) struct LastManifest(Mutex<(u64, Arc<Manifest>)>);

// === impl Newest ===

impl Newest {
    /// The newest manifest that can be read; an empty one when there is none.
    pub(crate) fn read(run: &Run) -> Result<Self, RunError> {
        let mut attempts = 0;
        loop {
            let names = files::names_in(&folder(run))?;
            let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
            numbers.sort_unstable();
            let next = numbers.last().map_or(1, |last| last + 1);
            let (mut gone, mut damaged) = (None, Vec::new());
            for number in numbers.into_iter().rev() {
                let path = path(run, number);
                let (held, last) = run.last_manifest().get();
                if held == number {
                    run.note_lost_manifests(damaged);
                    return Ok(Self { manifest: last, next });
                }
                match files::read_if_there(&path)?.map(|bytes| ManifestFile::parse(&path, &bytes)) {
                    Some(Ok(file)) => {
                        let manifest = Arc::new(Manifest::of(run, file, &last)?);
                        run.last_manifest().put(number, &manifest);
                        run.note_lost_manifests(damaged);
                        return Ok(Self { manifest, next });
                    }
                    // Half written: the one before it holds.
                    Some(Err(RunError::DamagedManifest { .. })) => damaged.push(path),
                    Some(Err(error)) => return Err(error),
                    None => gone = Some(path),
                }
            }
            let Some(path) = gone else {
                run.note_lost_manifests(damaged);
                return Ok(Self { manifest: Arc::default(), next });
            };
            // All that were listed have been removed since: there are newer ones by now.
            attempts += 1;
            if attempts == MAX_ATTEMPTS {
                return Err(RunError::io("read", &path)(io::ErrorKind::NotFound.into()));
            }
        }
    }
}

// === impl LastManifest ===

impl LastManifest {
    /// Nothing was read yet where the number is 0.
    fn get(&self) -> (u64, Arc<Manifest>) {
        self.0.lock().clone()
    }

    fn put(&self, number: u64, manifest: &Arc<Manifest>) {
        *self.0.lock() = (number, Arc::clone(manifest));
    }
}

/// Publishes what was sealed, unless it has been. After an error it may have been all the same.
pub(crate) fn publish(run: &Run, seal: &Seal) -> Result<(), RunError> {
    files::create_folders(&folder(run))?;
    loop {
        let Newest { manifest, next } = Newest::read(run)?;
        // Nobody else seals this log: what one was told to have failed has come to be.
        if manifest.sealed_up_to(&seal.writer) >= seal.to {
            return Ok(());
        }
        let mut manifest = Manifest::clone(&manifest);
        if manifest.recent.len() >= MAX_RECENT {
            manifest.move_recent(run, format!("seals-{next}-{}.json", seal.writer))?;
        }
        let mut seal = seal.clone();
        // Another writer may have had a step forgotten since its parts were made.
        seal.forget(&manifest.forgotten);
        manifest.recent.push(seal);
        if manifest.publish(run, next)? {
            return Ok(());
        }
    }
}

/// Paths of the parts of a step.
pub(crate) fn parts_of(run: &Run, step: StepNumber) -> Result<Vec<PathBuf>, RunError> {
    let manifest = Newest::read(run)?.manifest;
    let parts = manifest.seals().flat_map(|seal| &seal.steps).filter(|parts| parts.step == step.0);
    Ok(parts.flat_map(|parts| &parts.parts).map(|part| run.dir().join(&part.path)).collect())
}

/// Brings the manifest of an archive, which is kept in a folder, up to date. Gives the files that it consists of and their names
/// in the archive, the manifest last; none before the first seal.
pub(crate) fn archived(run: &Run, kept: &Path) -> Result<Vec<(PathBuf, PathBuf)>, RunError> {
    let Newest { manifest, next } = Newest::read(run)?;
    if next == 1 {
        return Ok(Vec::new());
    }
    let own = kept.join(ARCHIVED_NAME);
    let file = files::read_if_there(&own)?.map(|bytes| ManifestFile::parse(&own, &bytes));
    let mut file = file.transpose()?.unwrap_or_else(|| ManifestFile::new(Vec::new(), Vec::new()));
    let mut earlier = Vec::new();
    for name in &file.earlier {
        earlier.extend(ManifestFile::read(&kept.join(name))?.seals);
    }
    let stretch = |seal: &Seal| (seal.writer.clone(), seal.from);
    let known: BTreeSet<_> = earlier.iter().chain(&file.seals).map(stretch).collect();
    // What is known stays as it was, whatever the run has forgotten of it since.
    file.seals.extend(manifest.seals().filter(|seal| !known.contains(&stretch(seal))).cloned());
    while file.seals.len() > MAX_RECENT {
        let rest = file.seals.split_off(MAX_RECENT);
        let seals = ManifestFile::new(Vec::new(), std::mem::replace(&mut file.seals, rest));
        let name = format!("seals-archive-{}.json", file.earlier.len() + 1);
        files::replace(&kept.join(&name), &seals.to_json()?)?;
        file.earlier.push(name);
    }
    files::replace(&own, &file.to_json()?)?;
    let folder = Path::new(FOLDER_NAME);
    let mut archived: Vec<_> = file.earlier.iter().map(|name| (kept.join(name), folder.join(name))).collect();
    archived.push((own, folder.join(format!("{}.json", next - 1))));
    Ok(archived)
}

/// Publishes that steps are no longer there: no seal names parts of them any more.
pub(crate) fn forget(run: &Run, steps: &StepSet) -> Result<(), RunError> {
    loop {
        let Newest { manifest, next } = Newest::read(run)?;
        let mut manifest = Manifest::clone(&manifest);
        manifest.forgotten.insert_all(steps);
        for seal in &mut manifest.recent {
            seal.forget(steps);
        }
        for (index, earlier) in manifest.earlier.iter_mut().enumerate() {
            if !earlier.seals.iter().any(|seal| seal.knows(steps)) {
                continue;
            }
            // What is written never changes, so that whoever reads by an older manifest finds what it names.
            let mut seals = earlier.seals.to_vec();
            for seal in &mut seals {
                seal.forget(steps);
            }
            let name = format!("seals-{next}-kept-{index}.json");
            let file = ManifestFile::new(Vec::new(), seals);
            files::replace(&folder(run).join(&name), &file.to_json()?)?;
            *earlier = Earlier { name, seals: file.seals.into() };
        }
        if manifest.publish(run, next)? {
            remove_unnamed_seals(run);
            return Ok(());
        }
    }
}

/// A file of seals that no manifest names is this old before it is removed: a younger one may be about to be named.
const UNNAMED_FOR: Duration = Duration::from_mins(10);

/// Removes files of earlier seals that were replaced, once no manifest names them.
fn remove_unnamed_seals(run: &Run) {
    let names = files::names_in(&folder(run)).unwrap_or_default();
    let mut kept = BTreeSet::new();
    for path in names.iter().filter_map(|name| number_of(name)).map(|number| path(run, number)) {
        match fs::read(&path).map(|bytes| ManifestFile::parse(&path, &bytes)) {
            Ok(Ok(file)) => kept.extend(file.earlier),
            // Who knows what it names.
            Ok(Err(_)) => return,
            Err(_) => {}
        }
    }
    let is_replaced = |name: &&String| name.starts_with("seals-") && !kept.contains(*name);
    for name in names.iter().filter(is_replaced) {
        let path = folder(run).join(name);
        let age = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
        let age = age.and_then(|at| at.elapsed().ok());
        if age.is_some_and(|age| age >= UNNAMED_FOR) {
            fs::remove_file(path).ok();
        }
    }
}

/// One that cannot be removed costs nothing but its room.
fn remove_older_than(run: &Run, oldest: u64) {
    let names = files::names_in(&folder(run)).unwrap_or_default();
    for number in names.iter().filter_map(|name| number_of(name)).filter(|number| *number < oldest) {
        fs::remove_file(path(run, number)).ok();
    }
}

fn folder(run: &Run) -> PathBuf {
    run.dir().join(FOLDER_NAME)
}

fn path(run: &Run, number: u64) -> PathBuf {
    folder(run).join(format!("{number}.json"))
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_suffix(".json")?.parse().ok()
}

// === impl Manifest ===

impl Manifest {
    /// Takes the earlier seals from `known`, which has most of them, else from their files.
    fn of(run: &Run, file: ManifestFile, known: &Self) -> Result<Self, RunError> {
        let earlier = file.earlier.into_iter().map(|name| {
            let seals = match known.earlier.iter().find(|earlier| earlier.name == name) {
                Some(earlier) => Arc::clone(&earlier.seals),
                None => ManifestFile::read(&folder(run).join(&name))?.seals.into(),
            };
            Ok(Earlier { name, seals })
        });
        let earlier = earlier.collect::<Result<_, RunError>>()?;
        Ok(Self { earlier, recent: file.seals, forgotten: file.forgotten })
    }

    /// Makes it the manifest of that number; says whether nobody was faster.
    fn publish(self, run: &Run, number: u64) -> Result<bool, RunError> {
        let earlier = self.earlier.iter().map(|earlier| earlier.name.clone()).collect();
        let mut file = ManifestFile::new(earlier, self.recent.clone());
        file.forgotten = self.forgotten.clone();
        let is_ours = files::create_exclusive(&path(run, number), &file.to_json()?)?;
        if is_ours {
            run.last_manifest().put(number, &Arc::new(self));
            remove_older_than(run, number.saturating_sub(KEPT));
        }
        Ok(is_ours)
    }

    /// Moves the recent seals into a file of their own.
    fn move_recent(&mut self, run: &Run, name: String) -> Result<(), RunError> {
        let file = ManifestFile::new(Vec::new(), std::mem::take(&mut self.recent));
        files::replace(&folder(run).join(&name), &file.to_json()?)?;
        self.earlier.push(Earlier { name, seals: file.seals.into() });
        Ok(())
    }

    /// Every seal, in the order in which they were published.
    pub(crate) fn seals(&self) -> impl Iterator<Item = &Seal> {
        self.earlier.iter().flat_map(|earlier| &*earlier.seals).chain(&self.recent)
    }

    /// The seals of a writer.
    pub(crate) fn seals_of<'a>(&'a self, writer: &'a str) -> impl Iterator<Item = &'a Seal> {
        self.seals().filter(move |seal| seal.writer == writer)
    }

    /// What could not be read of the stretches that are sealed, over all writers.
    pub(crate) fn damage(&self, run: &Run) -> impl Iterator<Item = Damage> {
        self.seals().flat_map(|seal| seal.damage(run))
    }

    /// Where the log of a writer goes on after what is sealed.
    pub(crate) fn sealed_up_to(&self, writer: &str) -> LogPosition {
        self.seals_of(writer).map(|seal| seal.to).max().unwrap_or(LogPosition::START)
    }

    /// The ends of steps; of a step that was ended several times, all of them.
    pub(crate) fn closes(&self) -> impl Iterator<Item = StepClose> {
        self.seals().flat_map(|seal| &seal.closes).filter_map(CloseMirror::close)
    }

    /// The steps that have been closed, be they forgotten since.
    pub(crate) fn closed_steps(&self) -> StepSet {
        let mut closed = self.forgotten.clone();
        self.closes().for_each(|close| closed.insert(close.step));
        closed
    }

    /// The steps of which only numbers are left.
    pub(crate) fn forgotten(&self) -> &StepSet {
        &self.forgotten
    }
}

// === impl Seal ===

impl Seal {
    /// Whether it has anything of steps.
    fn knows(&self, steps: &StepSet) -> bool {
        let of_parts = self.steps.iter().any(|parts| steps.contains(&StepNumber(parts.step)));
        of_parts || self.closes.iter().any(|close| steps.contains(&close.step()))
    }

    /// Tells nothing of steps any more; the stretch of the log stays sealed.
    fn forget(&mut self, steps: &StepSet) {
        self.steps.retain(|parts| !steps.contains(&StepNumber(parts.step)));
        self.closes.retain(|close| !steps.contains(&close.step()));
    }

    /// What could not be read of the stretch.
    pub(crate) fn damage(&self, run: &Run) -> impl Iterator<Item = Damage> {
        self.damage.iter().map(|damage| damage.damage(run, &self.writer))
    }
}

// === impl SealedDamage ===

impl SealedDamage {
    pub(crate) fn of(damage: &Damage) -> Option<Self> {
        let name = damage.path.file_name()?.to_str()?;
        let (segment, kind) = (crate::log::segment_number(name)?, damage.kind.name().to_owned());
        Some(Self { segment, offset: damage.offset, kind })
    }

    pub(crate) fn damage(&self, run: &Run, writer: &str) -> Damage {
        Damage {
            path: run.log_folder(writer).join(segment_name(self.segment)),
            offset: self.offset,
            kind: DamageKind::from_name(&self.kind).unwrap_or(DamageKind::Checksum),
        }
    }
}
