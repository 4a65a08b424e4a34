//! What is kept of a run that grows long.
//!
//! Only what has been sealed is ever removed: parts of steps that were closed, by a manifest that no longer names them,
//! and segments of logs that parts were made from. The numbers of a step (stats.json, metrics.jsonl) stay. What still comes
//! of a step whose parts were removed is not kept either: its numbers would become those of what came last. A part whose log
//! is gone cannot be made up for when it is damaged.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use rollscope_trace::StepNumber;

use crate::error::RunError;
use crate::files;
use crate::log::segment_number;
use crate::manifest::{self, Newest};
use crate::numbers::STATS_NAME;
use crate::run::Run;
use crate::step_set::StepSet;

/// Limits of a run; what has none is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Closed steps whose requests, spans and samples are kept, the last ones.
    pub steps: Option<u64>,
    /// Bytes of log that are kept of what has been sealed, over all writers.
    pub log_bytes: Option<u64>,
}

/// A segment of which everything has been sealed.
struct SealedSegment {
    written: SystemTime,
    path: PathBuf,
    bytes: u64,
}

impl Run {
    /// Removes what is beyond the limits but for some steps; gives those of which only numbers are left now. May be called
    /// beside writers and readers, by one thread at a time.
    pub fn retain(
        &self,
        limits: Retention,
        spared: &BTreeSet<StepNumber>,
    ) -> Result<BTreeSet<StepNumber>, RunError> {
        let forgotten = match limits.steps {
            Some(kept) => self.forget_steps_before_the_last(kept, spared)?,
            None => BTreeSet::new(),
        };
        if let Some(kept) = limits.log_bytes {
            self.remove_log_beyond(kept)?;
        }
        Ok(forgotten)
    }

    fn forget_steps_before_the_last(
        &self,
        kept: u64,
        spared: &BTreeSet<StepNumber>,
    ) -> Result<BTreeSet<StepNumber>, RunError> {
        let manifest = Newest::read(self)?.manifest;
        let closed: BTreeSet<StepNumber> = manifest.closes().map(|close| close.step).collect();
        let beyond = closed.len().saturating_sub(usize::try_from(kept).unwrap_or(usize::MAX));
        let forgotten: BTreeSet<StepNumber> =
            closed.into_iter().take(beyond).filter(|step| !spared.contains(step)).collect();
        if forgotten.is_empty() {
            return Ok(forgotten);
        }
        let outcome = manifest::forget(self, &forgotten.iter().copied().collect::<StepSet>());
        // Also where an error came back: what is published is not forgotten a second time.
        let published = self.forgotten_steps()?;
        for step in forgotten.iter().filter(|step| published.contains(step)) {
            let folder = self.step_folder(*step);
            for name in files::names_in(&folder)?.iter().filter(|name| *name != STATS_NAME) {
                let path = folder.join(name);
                // A reader that came by an older manifest may hold it open; what is left is named by no manifest.
                if path.is_dir() {
                    fs::remove_dir_all(path).ok()
                } else {
                    fs::remove_file(path).ok()
                };
            }
        }
        outcome.map(|()| forgotten)
    }

    /// Removes the oldest segments whose records are all in parts.
    fn remove_log_beyond(&self, kept: u64) -> Result<(), RunError> {
        let manifest = Newest::read(self)?.manifest;
        let mut segments = Vec::new();
        for writer in self.writer_names()? {
            let (folder, sealed) = (self.log_folder(&writer), manifest.sealed_up_to(&writer));
            for name in files::names_in(&folder)? {
                let Some(_) = segment_number(&name).filter(|number| *number < sealed.segment) else {
                    continue;
                };
                let path = folder.join(name);
                // One that is gone already takes no room.
                let Ok(metadata) = fs::metadata(&path) else { continue };
                let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                segments.push(SealedSegment { written, path, bytes: metadata.len() });
            }
        }
        segments.sort_by(|a, b| (a.written, &a.path).cmp(&(b.written, &b.path)));
        let mut bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
        for segment in segments {
            if bytes <= kept {
                break;
            }
            fs::remove_file(&segment.path).map_err(RunError::io("remove", &segment.path))?;
            bytes -= segment.bytes;
        }
        Ok(())
    }
}
