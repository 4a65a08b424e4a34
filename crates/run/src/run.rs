//! A run directory: made, opened, and what it says of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rollscope_trace::{StepNumber, UnixNs};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::RunError;
use crate::files;
use crate::log::writer::{LogOptions, LogWriter, is_writer_name};
use crate::log::{Damage, DamageKind};
use crate::manifest::LastManifest;
use crate::parts::{STEPS_NAME, step_folder, step_of_folder};
use crate::version::{FORMAT, Version};

/// What makes a directory a run.
const INFO_NAME: &str = "run.json";
/// The folder of the writers' logs.
const LOG_NAME: &str = "log";
/// The member of run.json that tells it from any other file of that name.
const KIND: &str = "rollscope-run";

/// A run directory. Cheap to clone; every method reads or writes the disk, and may be called from any thread.
#[derive(Clone, Debug)]
pub struct Run {
    dir: Arc<Path>,
    info: Arc<RunInfo>,
    last_manifest: Arc<LastManifest>,
    /// Parts that were found damaged and whose log is gone, with the writer.
    lost_parts: Arc<Mutex<BTreeMap<PathBuf, Box<str>>>>,
    /// Manifests that could not be read when one looked last, newer than the one that was taken in their place.
    lost_manifests: Arc<Mutex<Vec<PathBuf>>>,
}

/// What a run says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct RunInfo {
    /// The program that made it, with its version.
    pub producer: String,
    /// When it was made.
    pub created: UnixNs,
    /// The configuration that it was recorded with, as resolved from flags, environment and defaults.
    pub config: Value,
}

/// run.json.
#[derive(Serialize, Deserialize)]
struct InfoFile {
    kind: String,
    version: Version,
    #[serde(default)]
    producer: String,
    #[serde(default)]
    created_ns: i64,
    #[serde(default)]
    config: Value,
}

/// The two members that are read before anything else is believed.
#[derive(Deserialize)]
struct Preamble {
    kind: String,
    version: Version,
}

// === impl Run ===

impl Run {
    /// Makes a run in an empty or a new directory, or opens the run that is there already; then `info` is not
    /// used.
    pub fn create(dir: &Path, info: &RunInfo) -> Result<Self, RunError> {
        files::create_folders(dir)?;
        let path = dir.join(INFO_NAME);
        if !path.exists() {
            // Another writer may be making the same run: its files come to be in any order after run.json.
            let foreign =
                files::names_in(dir)?.into_iter().any(|name| !name.starts_with(&format!(".{INFO_NAME}.")));
            if foreign && !path.exists() {
                return Err(RunError::Occupied { path: dir.to_owned() });
            }
            files::create_exclusive(&path, &info.to_json()?)?;
        }
        Self::open(dir)
    }

    /// Makes the run again where its folder was removed; what was in it is lost. A run that is there is left as it is.
    pub fn restore(&self) -> Result<(), RunError> {
        files::create_folders(&self.dir)?;
        files::create_exclusive(&self.dir.join(INFO_NAME), &self.info.to_json()?)?;
        Ok(())
    }

    /// Opens a run.
    pub fn open(dir: &Path) -> Result<Self, RunError> {
        let path = dir.join(INFO_NAME);
        let not_a_run = |why| RunError::NotARun { path: dir.to_owned(), why };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(if dir.is_dir() {
                    not_a_run("there is no run.json")
                } else {
                    RunError::Missing { path: dir.to_owned() }
                });
            }
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => return Err(not_a_run("it is a file")),
            Err(source) => return Err(RunError::io("read", &path)(source)),
        };
        let preamble: Preamble =
            serde_json::from_slice(&bytes).map_err(|_| not_a_run("its run.json is none of ours"))?;
        if preamble.kind != KIND {
            return Err(not_a_run("its run.json is none of ours"));
        }
        preamble.version.check(&path)?;
        let file: InfoFile =
            serde_json::from_slice(&bytes).map_err(|_| not_a_run("its run.json is damaged"))?;
        let info = RunInfo { producer: file.producer, created: UnixNs(file.created_ns), config: file.config };
        let (last_manifest, lost_parts, lost_manifests) = Default::default();
        Ok(Self { dir: dir.into(), info: Arc::new(info), last_manifest, lost_parts, lost_manifests })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it says of itself.
    pub fn info(&self) -> &RunInfo {
        &self.info
    }

    /// Adds a writer. Its name becomes a folder's; where it is taken, a number is put behind it.
    pub fn writer(&self, name: &str, options: LogOptions) -> Result<LogWriter, RunError> {
        LogWriter::create(&self.dir.join(LOG_NAME), name, options)
    }

    /// run.json.
    pub(crate) fn info_path(&self) -> PathBuf {
        self.dir.join(INFO_NAME)
    }

    pub(crate) fn last_manifest(&self) -> &LastManifest {
        &self.last_manifest
    }

    pub(crate) fn note_lost_manifests(&self, paths: Vec<PathBuf>) {
        *self.lost_manifests.lock() = paths;
    }

    /// Manifests that could not be read when one looked last: what they alone name is read from the logs, where these have it.
    pub fn lost_manifests(&self) -> Vec<Damage> {
        let damage = |path: &PathBuf| Damage { path: path.clone(), offset: 0, kind: DamageKind::Manifest };
        self.lost_manifests.lock().iter().map(damage).collect()
    }

    /// Keeps in mind that records are lost with a part.
    pub(crate) fn note_lost_part(&self, writer: &str, part: PathBuf) {
        self.lost_parts.lock().insert(part, writer.into());
    }

    /// The parts with which records are lost, as far as they have been read, with their writers.
    pub(crate) fn lost_parts(&self) -> Vec<(Box<str>, Damage)> {
        let damage = |path: &PathBuf| Damage { path: path.clone(), offset: 0, kind: DamageKind::Part };
        self.lost_parts.lock().iter().map(|(path, writer)| (writer.clone(), damage(path))).collect()
    }

    /// The folder of a writer's log.
    pub(crate) fn log_folder(&self, writer: &str) -> PathBuf {
        self.dir.join(LOG_NAME).join(writer)
    }

    /// The folder of a step.
    pub(crate) fn step_folder(&self, step: StepNumber) -> PathBuf {
        self.dir.join(step_folder(step))
    }

    /// The steps that have a folder.
    pub(crate) fn steps_with_folders(&self) -> Result<BTreeSet<StepNumber>, RunError> {
        let names = files::names_in(&self.dir.join(STEPS_NAME))?;
        Ok(names.iter().filter_map(|name| step_of_folder(name)).collect())
    }

    /// The names of all writers, sorted.
    pub(crate) fn writer_names(&self) -> Result<Vec<String>, RunError> {
        let mut names = files::names_in(&self.dir.join(LOG_NAME))?;
        names.retain(|name| is_writer_name(name) && self.log_folder(name).is_dir());
        Ok(names)
    }
}

// === impl RunInfo ===

impl RunInfo {
    fn to_json(&self) -> Result<Vec<u8>, RunError> {
        let file = InfoFile {
            kind: KIND.to_owned(),
            version: FORMAT,
            producer: self.producer.clone(),
            created_ns: self.created.0,
            config: self.config.clone(),
        };
        let mut bytes = serde_json::to_vec_pretty(&file)
            .map_err(|source| RunError::EncodeJson { what: INFO_NAME, source })?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}
