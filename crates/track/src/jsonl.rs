//! JSON lines: `{"step": N, "data": {…}}`, one a step, and one more when it is sent again.

use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::error::TrackError;
use crate::records::RecordFile;
use crate::tracker::{Numbers, Times, create_folder};

#[derive(Debug)]
pub(crate) struct Jsonl {
    pub(crate) times: Times,
    file: RecordFile,
}

#[derive(Serialize, Deserialize)]
struct Line<D> {
    step: u64,
    data: D,
}

/// What each line begins with.
const BEGIN: &[u8] = b"{\"step\":";

// === impl Jsonl ===

impl Jsonl {
    pub(crate) fn open(path: &Path) -> Result<Self, TrackError> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            create_folder(folder)?;
        }
        let mut times = Times::default();
        let file = RecordFile::open(path, |content| {
            let whole = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            let lines = content[..whole].split(|byte| *byte == b'\n');
            let read = lines.filter_map(|line| serde_json::from_slice::<Line<IgnoredAny>>(line).ok());
            times = read.map(|line| line.step).collect();
            let cut = &content[whole..];
            let is_ours =
                !times.is_empty() || whole == 0 && (cut.starts_with(BEGIN) || BEGIN.starts_with(cut));
            if is_ours { Ok(whole) } else { Err(TrackError::Foreign { path: path.to_owned() }) }
        })?;
        Ok(Self { times, file })
    }

    pub(crate) fn send(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackError> {
        let mut line = serde_json::to_vec(&Line { step, data: numbers })?;
        line.push(b'\n');
        self.file.append(&line)?;
        self.times.add(step);
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}
