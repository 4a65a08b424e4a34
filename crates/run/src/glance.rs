//! `glance.bin`: what a viewer shows first of a step, made when the step was sealed, so that it need not be read for it.
//!
//! ```text
//! {"made_of": […], "closes": 1, "crc32": …}\n   a line of JSON: the parts that the step consisted of
//! …                                            what the viewer put there
//! ```
//!
//! It holds nothing that the parts do not hold, and nothing of forward passes, which are still heard of when a step has
//! ended. One that was made of other parts than those that the newest manifest names, or that a disk has changed, is as if
//! it were not there.

use std::path::PathBuf;

use rollscope_trace::StepNumber;
use serde::{Deserialize, Serialize};

use crate::error::RunError;
use crate::files;
use crate::manifest::{Manifest, Newest};
use crate::run::Run;

const NAME: &str = "glance.bin";

/// What is sealed of a step at one moment, but for its forward passes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedState {
    /// The parts, from the run's folder.
    made_of: Vec<String>,
    /// The words on its end.
    closes: usize,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Head {
    #[serde(flatten)]
    state: SealedState,
    /// Of what follows.
    crc32: u32,
}

// === impl Run ===

impl Run {
    /// What is sealed of a step now: taken before the step is read, it is never more than was read.
    pub fn sealed_state(&self, step: StepNumber) -> Result<SealedState, RunError> {
        Ok(SealedState::of(&Newest::read(self)?.manifest, step))
    }

    /// Keeps what a viewer shows first of a step.
    pub fn put_glance(&self, step: StepNumber, state: SealedState, glance: &[u8]) -> Result<(), RunError> {
        let head = Head { state, crc32: crc32fast::hash(glance) };
        let mut bytes =
            serde_json::to_vec(&head).map_err(|source| RunError::EncodeJson { what: NAME, source })?;
        bytes.push(b'\n');
        bytes.extend(glance);
        files::create_folders(&self.step_folder(step))?;
        files::replace(&self.glance_path(step), &bytes)
    }

    /// What was kept, if it is of all that is sealed of the step now.
    pub fn glance(&self, step: StepNumber) -> Result<Option<Vec<u8>>, RunError> {
        let Some(mut bytes) = files::read_if_there(&self.glance_path(step))? else {
            return Ok(None);
        };
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        let glance = bytes.split_off(end + 1);
        let Ok(head) = serde_json::from_slice::<Head>(&bytes) else {
            return Ok(None);
        };
        let is_whole = head.crc32 == crc32fast::hash(&glance) && head.state == self.sealed_state(step)?;
        Ok(is_whole.then_some(glance))
    }

    fn glance_path(&self, step: StepNumber) -> PathBuf {
        self.step_folder(step).join(NAME)
    }
}

// === impl SealedState ===

impl SealedState {
    fn of(manifest: &Manifest, step: StepNumber) -> Self {
        let sealed = manifest.seals().flat_map(|seal| &seal.steps).filter(|parts| parts.step == step.0);
        let parts = sealed.flat_map(|parts| &parts.parts).filter(|part| !part.is_of_passes());
        Self {
            made_of: parts.map(|part| part.path.clone()).collect(),
            closes: manifest.closes().filter(|close| close.step == step).count(),
        }
    }
}
