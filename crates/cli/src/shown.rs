//! What the viewer shows of a path: the run in a folder, or a foreign file while it is being read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Context as _, anyhow};
use rollscope_formats::ImportOptions;
use rollscope_run::Run;
use rollscope_trace::{CloseReason, Record, StepClose, StepNumber, StepTrace, UnixNs, sentence};
use rollscope_view::{Given, Shown};
use tempfile::TempDir;

use crate::exit::Failure;
use crate::opened::{import_one, made_for, notes_of};
use crate::output;

/// A foreign file that is being read in a thread of its own.
struct Reading {
    records: BTreeMap<StepNumber, Vec<Record>>,
    count: usize,
    /// With so many records the steps are shown next.
    next: usize,
    given: Given,
    first: SyncSender<Result<(), Failure>>,
}

/// Records with which something is shown first: some hundred samples, read in a fraction of a second.
const FIRST_RECORDS: usize = 4096;
/// Times as many records are read before the steps are shown again: each time takes as long as there are records.
const GROWTH: usize = 8;

/// What the viewer shows of a path. A foreign file is read into memory, which is all that is wanted of it; the folder that
/// goes with it only has its name. Its first rows are there when this returns, and the others come.
pub(crate) fn shown_at(path: &Path) -> Result<(Shown, Option<TempDir>), Failure> {
    if !path.is_file() {
        return Ok((Run::open(path).map_err(anyhow::Error::from)?.into(), None));
    }
    let (run, folder) = made_for(path)?;
    let given = Given::reading();
    let (first, shown) = sync_channel(1);
    let reading =
        Reading { records: BTreeMap::new(), count: 0, next: FIRST_RECORDS, given: given.clone(), first };
    let path = path.to_owned();
    let thread = thread::Builder::new().name("read".to_owned());
    thread.spawn(move || reading.run(&path)).context("cannot start a thread")?;
    wait_for(&shown)?;
    Ok((Shown { run, given }, Some(folder)))
}

/// Until something is shown, or cannot be.
fn wait_for(shown: &Receiver<Result<(), Failure>>) -> Result<(), Failure> {
    shown.recv().map_err(|_| anyhow!("reading the file was broken off"))?
}

// === impl Reading ===

impl Reading {
    fn run(mut self, path: &Path) {
        let read = import_one(path, &ImportOptions::default(), |record| {
            self.put(record);
            Ok(())
        });
        match read {
            Ok(told) => {
                for note in notes_of(path, told) {
                    output::note(format_args!("rollscope: {note}"));
                }
            }
            Err(failure) => return self.fail(failure),
        }
        for (step, mut records) in std::mem::take(&mut self.records) {
            let (at, reason) = (UnixNs::default(), CloseReason::Told);
            records.push(Record::Close(StepClose { step, at, reason, rollout_time: None, gpus: None }));
            self.given.put(StepTrace::gather(step, records));
        }
        self.given.end(None);
        self.tell(Ok(()));
    }

    fn put(&mut self, record: Record) {
        let Some(step) = record.step() else { return };
        if self.count == self.next {
            self.next = self.count * GROWTH;
            for (step, records) in &self.records {
                self.given.put(StepTrace::gather(*step, records.clone()));
            }
            self.tell(Ok(()));
        }
        self.records.entry(step).or_default().push(record);
        self.count += 1;
    }

    /// Before anything is shown there is no reason to show anything; later the page says what is wrong.
    fn fail(&self, failure: Failure) {
        let (Failure::Usage(error) | Failure::Other(error)) = &failure;
        let why = sentence(error.as_ref());
        if self.next > FIRST_RECORDS {
            output::note(format_args!("rollscope: {why}"));
        }
        self.given.end(Some(why));
        self.tell(Err(failure));
    }

    /// Only the first time somebody waits for it.
    fn tell(&self, outcome: Result<(), Failure>) {
        drop(self.first.try_send(outcome));
    }
}
