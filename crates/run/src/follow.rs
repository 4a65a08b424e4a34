//! Following a run while it is being recorded.

use std::collections::BTreeMap;

use rollscope_trace::Record;

use crate::error::RunError;
use crate::log::cursor::LogCursor;
use crate::log::{Damage, LogPosition};
use crate::run::Run;

/// At most this many records in one poll.
const BATCH_RECORDS: usize = 16_384;

/// Reads a run from its begin and then whatever is added, every record exactly once.
#[derive(Debug)]
pub struct Follow {
    run: Run,
    cursors: BTreeMap<String, LogCursor>,
}

// === impl Follow ===

impl Run {
    /// A follower that has read nothing yet.
    pub fn follow(&self) -> Follow {
        Follow { run: self.clone(), cursors: BTreeMap::new() }
    }
}

impl Follow {
    /// What has been added since the last poll, in batches of bounded size; empty when there is nothing new.
    pub fn poll(&mut self) -> Result<Vec<Record>, RunError> {
        for writer in self.run.writer_names()? {
            let folder = self.run.log_folder(&writer);
            self.cursors.entry(writer).or_insert_with(|| LogCursor::new(folder, LogPosition::START));
        }
        let mut records = Vec::new();
        for cursor in self.cursors.values_mut() {
            while records.len() < BATCH_RECORDS
                && let Some(record) = cursor.next()?
            {
                records.push(record);
            }
        }
        Ok(records)
    }

    /// What could not be read so far.
    pub fn damage(&self) -> impl Iterator<Item = &Damage> {
        self.cursors.values().flat_map(LogCursor::damage)
    }
}
