//! Manifests: which parts there are, and which stretches of the logs they replace.
//!
//! A manifest is whole and final: it names everything sealed so far. A writer that has sealed takes the newest
//! one, adds to it, and creates the next number exclusively; where another writer was faster, it takes that
//! one and tries again. A reader takes the newest manifest that it can read, and of each log what follows the
//! stretches that are named there; so every row is seen exactly once, whenever it looks. Parts that no manifest
//! names were left by a crash, and nobody looks at them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rollscope_trace::{Record, StepClose, StepNumber};
use serde::{Deserialize, Serialize};

use crate::error::RunError;
use crate::files;
use crate::log::mirror::{CloseMirror, DroppedMirror};
use crate::log::{Damage, DamageKind, LogPosition, segment_name};
use crate::parts::StepParts;
use crate::run::Run;
use crate::version::{FORMAT, Version};

/// Manifests that are kept, for readers that have listed the folder and not yet opened the newest.
const KEPT: u64 = 8;

/// So often the folder is listed again when all manifests that it had are gone.
const MAX_ATTEMPTS: u32 = 100;

/// Everything sealed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    version: Version,
    #[serde(default)]
    pub(crate) seals: Vec<Seal>,
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

/// What is read before anything else is believed.
#[derive(Deserialize)]
struct Preamble {
    version: Version,
}

/// The newest manifest, and the number that the next will have.
pub(crate) struct Newest {
    pub(crate) manifest: Manifest,
    next: u64,
}

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
            let mut gone = None;
            for number in numbers.into_iter().rev() {
                let path = path(run, number);
                match files::read_if_there(&path)?.map(|bytes| Manifest::parse(&path, &bytes)) {
                    Some(Ok(Some(manifest))) => return Ok(Self { manifest, next }),
                    Some(Err(error)) => return Err(error),
                    // Half written: the one before it holds.
                    Some(Ok(None)) => {}
                    None => gone = Some(path),
                }
            }
            let Some(path) = gone else {
                return Ok(Self { manifest: Manifest { version: FORMAT, seals: Vec::new() }, next });
            };
            // All that were listed have been removed since: there are newer ones by now.
            attempts += 1;
            if attempts == MAX_ATTEMPTS {
                return Err(RunError::io("read", &path)(io::ErrorKind::NotFound.into()));
            }
        }
    }
}

/// Publishes what was sealed.
pub(crate) fn publish(run: &Run, seal: &Seal) -> Result<(), RunError> {
    files::create_folders(&folder(run))?;
    loop {
        let Newest { mut manifest, next } = Newest::read(run)?;
        manifest.version = FORMAT;
        manifest.seals.push(seal.clone());
        let mut bytes = serde_json::to_vec(&manifest)
            .map_err(|source| RunError::EncodeJson { what: "a manifest", source })?;
        bytes.push(b'\n');
        if files::create_exclusive(&path(run, next), &bytes)? {
            remove_older_than(run, next.saturating_sub(KEPT));
            return Ok(());
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
    run.dir().join("manifest")
}

fn path(run: &Run, number: u64) -> PathBuf {
    folder(run).join(format!("{number}.json"))
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_suffix(".json")?.parse().ok()
}

// === impl Manifest ===

impl Manifest {
    /// Nothing when it is half written.
    fn parse(path: &Path, bytes: &[u8]) -> Result<Option<Self>, RunError> {
        if let Ok(preamble) = serde_json::from_slice::<Preamble>(bytes) {
            preamble.version.check(path)?;
        }
        Ok(serde_json::from_slice(bytes).ok())
    }

    /// The seals of a writer.
    pub(crate) fn seals_of<'a>(&'a self, writer: &'a str) -> impl Iterator<Item = &'a Seal> {
        self.seals.iter().filter(move |seal| seal.writer == writer)
    }

    /// Where the log of a writer goes on after what is sealed.
    pub(crate) fn sealed_up_to(&self, writer: &str) -> LogPosition {
        self.seals_of(writer).map(|seal| seal.to).max().unwrap_or(LogPosition::START)
    }

    /// The ends of steps, in order of time.
    pub(crate) fn closes(&self) -> Vec<StepClose> {
        let closes = self.seals.iter().flat_map(|seal| &seal.closes);
        let mut closes: Vec<_> = closes.filter_map(CloseMirror::close).collect();
        closes.sort_by_key(|close| close.at);
        closes
    }

    /// The steps that have been closed.
    pub(crate) fn closed_steps(&self) -> BTreeSet<StepNumber> {
        self.closes().into_iter().map(|close| close.step).collect()
    }
}

// === impl Seal ===

impl Seal {
    /// The records that the stretch held, those of each step in their order.
    pub(crate) fn read(&self, run: &Run) -> Result<Vec<Record>, RunError> {
        let mut records = Vec::new();
        for parts in &self.steps {
            records.extend(parts.read(run.dir())?);
        }
        records.extend(self.closes.iter().filter_map(CloseMirror::close).map(Record::Close));
        records.extend(self.dropped.map(|dropped| Record::Dropped(dropped.drop_count())));
        Ok(records)
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
