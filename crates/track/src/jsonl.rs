//! JSON lines: `{"step": N, "run": "…", "data": {…}}`, one a step, and one more when it is sent again. Several runs may share a
//! file; a line that does not tell its run, as none did before, may be of any.

use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::error::TrackError;
use crate::records::RecordFile;
use crate::tracker::{Numbers, Origin, Times, create_folder};

#[derive(Debug)]
pub(crate) struct Jsonl {
    pub(crate) times: Times,
    run: String,
    file: RecordFile,
}

#[derive(Serialize, Deserialize)]
struct Line<R, D> {
    step: u64,
    run: R,
    data: D,
}

/// What each line begins with.
const BEGIN: &[u8] = b"{\"step\":";

// === impl Jsonl ===

impl Jsonl {
    pub(crate) fn open(origin: &Origin, path: &Path) -> Result<Self, TrackError> {
        let run = origin.id("jsonl");
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            create_folder(folder)?;
        }
        let mut times = Times::default();
        let file = RecordFile::open(path, |content| {
            let whole = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            let lines = content[..whole].split(|byte| *byte == b'\n');
            let read = |line| serde_json::from_slice::<Line<Option<String>, IgnoredAny>>(line).ok();
            let read: Vec<_> = lines.filter_map(read).collect();
            let may_be_own = |of: &Option<String>| of.as_ref().is_none_or(|of| *of == run);
            times = read.iter().filter(|line| may_be_own(&line.run)).map(|line| line.step).collect();
            let cut = &content[whole..];
            let is_ours =
                !read.is_empty() || whole == 0 && (cut.starts_with(BEGIN) || BEGIN.starts_with(cut));
            if is_ours { Ok(whole) } else { Err(TrackError::Foreign { path: path.to_owned() }) }
        })?;
        Ok(Self { times, run, file })
    }

    pub(crate) fn send(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackError> {
        let mut line = serde_json::to_vec(&Line { step, run: &self.run, data: numbers })?;
        line.push(b'\n');
        self.file.append(&line)?;
        self.times.add(step);
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}
