//! What a step has lost: parts that are damaged while the log that they were made from is gone, and stretches of logs
//! that cannot be read.

use rollscope_trace::StepNumber;

use crate::error::RunError;
use crate::log::cursor::LogCursor;
use crate::log::{Damage, DamageKind};
use crate::manifest::{Newest, Seal};
use crate::parts::{StepParts, path_of};
use crate::run::Run;

/// Damage with which something of a step is lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepLosses {
    /// Requests, spans or what is known of samples.
    pub records: Vec<Damage>,
    /// Forward passes alone.
    pub passes: Vec<Damage>,
}

// === impl StepLosses ===

impl StepLosses {
    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.passes.is_empty()
    }

    fn add_parts(&mut self, run: &Run, seal: &Seal, parts: &StepParts) -> Result<(), RunError> {
        if !parts.is_written_as(run.dir()) {
            // The log may have what the parts have not; where it has not, the run is told.
            seal.read_step(run, parts)?;
            seal.passes(run, parts)?;
        }
        let lost = run.lost_parts();
        for part in &parts.parts {
            let path = path_of(run.dir(), &part.path);
            let found = lost.iter().map(|(_, damage)| damage).find(|damage| damage.path == path);
            let of = if part.is_of_passes() { &mut self.passes } else { &mut self.records };
            of.extend(found.cloned());
        }
        Ok(())
    }
}

// === impl Run ===

impl Run {
    /// What is missing of a step. The checksums of its parts tell; parts of earlier versions have none, and what is wrong
    /// with them is known once this [`Run`] or a clone of it has read them. Which records a damaged log had nobody knows; they
    /// count as those of every step of the same stretch, and beyond what is sealed of every step that is open. A log that ends
    /// within a record has lost none that was written as a whole.
    pub fn losses(&self, step: StepNumber) -> Result<StepLosses, RunError> {
        let manifest = Newest::read(self)?.manifest;
        let mut losses = StepLosses::default();
        for seal in manifest.seals() {
            for parts in seal.steps.iter().filter(|parts| parts.step == step.0) {
                losses.add_parts(self, seal, parts)?;
                losses.records.extend(seal.damage(self).filter(is_loss));
            }
        }
        if !manifest.closed_steps().contains(&step) {
            for writer in self.writer_names()? {
                let mut cursor = LogCursor::new(self.log_folder(&writer), manifest.sealed_up_to(&writer));
                while cursor.next()?.is_some() {}
                losses.records.extend(cursor.damage().filter(|damage| is_loss(damage)).cloned());
            }
        }
        losses.records.dedup();
        Ok(losses)
    }
}

fn is_loss(damage: &Damage) -> bool {
    damage.kind != DamageKind::Torn
}
