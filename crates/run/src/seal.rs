//! Sealing: a stretch of a writer's log becomes parts of its steps.
//!
//! A stretch holds records of every step that was going on meanwhile, and each step gets a part of it, whether
//! it was closed or not; so one position per writer says what has been sealed. Sealing reads the log back and
//! touches nothing that the writer writes, so it can be done beside it in another thread.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use rollscope_trace::{StepClose, StepNumber, StepRecords, StepTrace};

use crate::contents::Contents;
use crate::error::RunError;
use crate::log::cursor::LogCursor;
use crate::log::mirror::{CloseMirror, DroppedMirror};
use crate::log::writer::LOCK_NAME;
use crate::log::{LogPosition, LogStretch};
use crate::manifest::{self, Newest, Seal};
use crate::parts::StepRows;
use crate::run::Run;
use crate::step_set::StepSet;

/// Seals the log of one writer. There is one for each writer, which alone names its parts.
///
/// It holds the records of steps of which a part was sealed while they went on, as far as there is room for them, so that such
/// a step need not be read again when it is closed.
#[derive(Debug)]
pub struct Sealer {
    run: Run,
    writer: Box<str>,
    /// All that was sealed of each of these steps.
    held: BTreeMap<StepNumber, StepRows>,
    /// What was published though an error came back.
    untold: Sealed,
}

/// What was sealed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sealed {
    /// Steps that got a part.
    pub steps: BTreeSet<StepNumber>,
    /// Those of them that had been closed before.
    pub late: BTreeSet<StepNumber>,
}

/// Records of steps that go on may come to no more than this in the log to be held. In memory they take about as much.
const HELD_BYTES: usize = 128 << 20;

// === impl Sealer ===

impl Run {
    /// For sealing the log of a writer of this name, as [`crate::LogWriter::name`] gives it.
    pub fn sealer(&self, writer: &str) -> Sealer {
        Sealer { run: self.clone(), writer: writer.into(), held: BTreeMap::new(), untold: Sealed::default() }
    }
}

impl Run {
    /// Seals what killed writers have left in their logs, and adds what that was to `sealed`, also where it then fails. A writer
    /// that lives holds its log locked, and is left to itself, and so is one that another process is sealing at present.
    pub fn seal_interrupted(&self, sealed: &mut Sealed) -> Result<(), RunError> {
        for writer in self.writer_names()? {
            let lock = File::open(self.log_folder(&writer).join(LOCK_NAME));
            // Locked for as long as it takes, so that nobody else seals it meanwhile.
            if !lock.as_ref().is_ok_and(|lock| lock.try_lock().is_ok()) {
                continue;
            }
            let everything = LogPosition { segment: u32::MAX, offset: u64::MAX };
            let mut by = self.sealer(&writer);
            let outcome = by.seal(everything);
            sealed.add(by.untold);
            sealed.add(outcome?);
        }
        Ok(())
    }
}

// === impl Sealed ===

impl Sealed {
    fn add(&mut self, more: Self) {
        self.steps.extend(more.steps);
        self.late.extend(more.late);
    }
}

impl Sealer {
    /// The writer's name.
    pub fn writer(&self) -> &str {
        &self.writer
    }

    /// Seals everything before `up_to`, a [`crate::LogWriter::position`], as it reads it from the log. What has been sealed before is left.
    /// After an error it may be tried again; what was sealed though an error came back is told then.
    pub fn seal(&mut self, up_to: LogPosition) -> Result<Sealed, RunError> {
        Ok(self.seal_and_gather(LogStretch::up_to(up_to), &BTreeSet::new())?.0)
    }

    /// Seals a stretch, and gives those of the wanted steps of which everything is at hand thereby, as [`Run::step`] would read
    /// them from their parts again.
    pub fn seal_and_gather(
        &mut self,
        stretch: LogStretch,
        wanted: &BTreeSet<StepNumber>,
    ) -> Result<(Sealed, BTreeMap<StepNumber, StepTrace>), RunError> {
        let manifest = Newest::read(&self.run)?.manifest;
        let from = manifest.sealed_up_to(&self.writer);
        let kept = stretch.contents.filter(|kept| kept.from == from);
        let was_kept = kept.is_some();
        let log = self.run.log_folder(&self.writer);
        let read = || Contents::read(LogCursor::new(log, from).up_to(stretch.up_to));
        let mut contents = kept.map_or_else(read, Ok)?;
        let mut sealed = Sealed::default();
        if contents.is_empty() {
            sealed.add(std::mem::take(&mut self.untold));
            return Ok((sealed, BTreeMap::new()));
        }
        contents.leave_out(manifest.forgotten());
        contents.flag_late(&manifest.closed_steps());
        let number = manifest.seals_of(&self.writer).count() + 1;
        let name = format!("{}-{number:06}", self.writer);
        let mut steps = Vec::new();
        for (step, rows) in &contents.steps {
            steps.push(rows.write(self.run.dir(), *step, &name)?);
            sealed.steps.insert(*step);
            if rows.late {
                sealed.late.insert(*step);
            }
        }
        let seal = Seal {
            writer: self.writer.to_string(),
            from,
            to: contents.to,
            steps,
            closes: std::mem::take(&mut contents.closes),
            dropped: contents.dropped.as_ref().map(DroppedMirror::of),
            unknown: contents.unknown,
            damage: std::mem::take(&mut contents.damage),
        };
        let is_alone = !wanted.is_empty() && self.run.writer_names()?.len() == 1;
        if let Err(error) = manifest::publish(&self.run, &seal) {
            // Where it is there all the same it is sealed, and what is held lacks it.
            self.held.clear();
            let there = Newest::read(&self.run).map(|newest| newest.manifest.sealed_up_to(&self.writer));
            if there.is_ok_and(|there| there >= seal.to) {
                self.untold.add(sealed);
            }
            return Err(error);
        }
        sealed.add(std::mem::take(&mut self.untold));
        let before = manifest.seals().flat_map(|seal| &seal.steps).map(|parts| StepNumber(parts.step));
        self.hold(contents.steps, &before.collect());
        let told = seal.closes.iter().filter_map(CloseMirror::close);
        let closes: Vec<StepClose> = manifest.closes().chain(told).collect();
        let over = self.let_go(&closes, manifest.forgotten()).into_iter();
        let traces = over.filter(|(step, _)| is_alone && wanted.contains(step)).map(|(step, rows)| {
            let closes = closes.iter().filter(|close| close.step == step).copied().collect();
            (step, StepTrace::of(step, StepRecords { closes, ..rows.records }))
        });
        let traces = traces.collect();
        if !was_kept {
            // What it takes is not known.
            self.held.clear();
        }
        Ok((sealed, traces))
    }

    /// Holds what was sealed of steps of which all that was sealed `before` is held.
    fn hold(&mut self, sealed: BTreeMap<StepNumber, StepRows>, before: &BTreeSet<StepNumber>) {
        for (step, rows) in sealed {
            match self.held.entry(step) {
                Entry::Occupied(mut held) => held.get_mut().append(rows),
                Entry::Vacant(none) if !before.contains(&step) => {
                    none.insert(StepRows { passes: Vec::new(), ..rows });
                }
                Entry::Vacant(_) => {}
            }
        }
    }

    /// Lets go of the steps that are over, which it gives, of those that were forgotten, and of all others where they are too
    /// much.
    fn let_go(&mut self, closes: &[StepClose], forgotten: &StepSet) -> Vec<(StepNumber, StepRows)> {
        self.held.retain(|step, _| !forgotten.contains(step));
        let over: BTreeSet<StepNumber> = closes.iter().map(|close| close.step).collect();
        let over = self.held.extract_if(.., |step, _| over.contains(step)).collect();
        if self.held.values().map(|rows| rows.bytes).sum::<usize>() > HELD_BYTES {
            self.held.clear();
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use rollscope_trace::{CloseReason, Nanos, Profile, Record, RequestId, UnixNs};

    use super::*;
    use crate::files::fault::{self, Fault};
    use crate::{LogOptions, LogWriter, Retention, RunInfo};

    const STEP: StepNumber = StepNumber(1);

    fn recorded() -> (tempfile::TempDir, Run, LogWriter) {
        let dir = tempfile::tempdir().unwrap();
        let info = RunInfo { producer: "test".into(), created: UnixNs(0), config: serde_json::Value::Null };
        let run = Run::create(&dir.path().join("run"), &info).unwrap();
        let writer =
            run.writer("gateway", LogOptions { keep_bytes: 1 << 20, ..LogOptions::default() }).unwrap();
        (dir, run, writer)
    }

    fn append(writer: &mut LogWriter, id: u128) {
        let mut profile = Profile::new(RequestId(id), UnixNs(0), Nanos(1));
        profile.join.step = Some(STEP);
        writer.append_and_keep(Record::Profile(Box::new(profile))).unwrap();
        writer.flush().unwrap();
    }

    fn end(writer: &mut LogWriter) {
        let (at, reason) = (UnixNs(1), CloseReason::Told);
        let close = StepClose { step: STEP, at, reason, rollout_time: None, gpus: None };
        writer.append_and_keep(Record::Close(close)).unwrap();
        writer.flush().unwrap();
    }

    #[test]
    fn what_was_published_though_it_was_told_to_have_failed_is_sealed_once_and_missing_nowhere() {
        for (fault, is_told) in [(Fault::Link, false), (Fault::Sync, true)] {
            let (_dir, run, mut writer) = recorded();
            let mut sealer = run.sealer("gateway");
            for id in 1..=3 {
                append(&mut writer, id);
                if id == 2 {
                    fault::set(fault);
                }
                let outcome = sealer.seal_and_gather(writer.stretch(), &BTreeSet::new());
                assert_eq!(outcome.is_err(), id == 2 && is_told, "{fault:?}");
            }
            end(&mut writer);
            let (_, gathered) = sealer.seal_and_gather(writer.stretch(), &[STEP].into()).unwrap();
            let trace = run.step(STEP).unwrap();
            assert_eq!(trace.requests().count(), 3, "{fault:?}");
            for gathered in gathered.into_values() {
                assert_eq!(format!("{gathered:?}"), format!("{trace:?}"), "{fault:?}");
            }
        }
    }

    #[test]
    fn what_was_sealed_though_it_was_told_to_have_failed_is_told_afterwards() {
        let (_dir, run, mut writer) = recorded();
        end(&mut writer);
        run.sealer("gateway").seal(writer.position()).unwrap();
        append(&mut writer, 1);
        let mut sealer = run.sealer("gateway");
        fault::set(Fault::Sync);
        sealer.seal(writer.position()).unwrap_err();
        let late = Sealed { steps: [STEP].into(), late: [STEP].into() };
        assert_eq!(sealer.seal(writer.position()).unwrap(), late);
        assert_eq!(sealer.seal(writer.position()).unwrap(), Sealed::default());

        append(&mut writer, 2);
        drop(writer);
        let mut left = Sealed::default();
        fault::set(Fault::Sync);
        run.seal_interrupted(&mut left).unwrap_err();
        assert_eq!(left, late, "of a killed writer's log at once");
    }

    #[test]
    fn files_of_steps_that_were_forgotten_though_it_was_told_to_have_failed_are_removed() {
        let (_dir, run, mut writer) = recorded();
        append(&mut writer, 1);
        end(&mut writer);
        run.sealer("gateway").seal(writer.position()).unwrap();
        let parts = run.step_folder(STEP).join("requests");
        assert!(parts.exists());
        fault::set(Fault::Sync);
        let limits = Retention { steps: Some(0), log_bytes: None };
        run.retain(limits, &BTreeSet::new()).unwrap_err();
        assert!(run.step(STEP).is_err() && !parts.exists());
    }
}
