//! The first sight of a step, made when it is sealed: the numbers, the table of samples and the first tile of spans, as the
//! API answers them. With it a page is drawn before the step has been read.
//!
//! ```text
//! {"version": 1, "answers": [["table", 123], …]}\n   a line of JSON: names and lengths
//! …                                                   the answers, one after the other
//! ```

use axum::body::Bytes;
use rollscope_trace::StepTrace;
use serde::{Deserialize, Serialize};

use crate::step::{StepView, Wanted};

/// Grows with every change of an answer that is kept; one of another version is not shown.
const VERSION: u32 = 1;

/// What is kept, and by what name.
const KEPT: [(&str, Wanted); 3] =
    [("numbers", Wanted::Numbers), ("table", Wanted::Table), ("tile", Wanted::SampleTile(0))];

#[derive(Serialize, Deserialize)]
struct Head {
    version: u32,
    answers: Vec<(String, usize)>,
}

/// Answers that were made when the step was sealed.
#[derive(Debug, Default)]
pub(crate) struct Glance {
    answers: Vec<(Wanted, Bytes)>,
}

/// What [`rollscope_run::Run::put_glance`] keeps of a step; nothing where an answer cannot be encoded.
pub fn glance(trace: StepTrace) -> Option<Vec<u8>> {
    let step = StepView::new(trace);
    let (mut answers, mut bytes) = (Vec::new(), Vec::new());
    for (name, wanted) in KEPT {
        // A step without samples has no tile.
        if let Some(answer) = step.answer(wanted, None).ok()? {
            answers.push((name.to_owned(), answer.len()));
            bytes.extend(answer);
        }
    }
    let mut glance = serde_json::to_vec(&Head { version: VERSION, answers }).ok()?;
    glance.push(b'\n');
    glance.extend(bytes);
    Some(glance)
}

// === impl Glance ===

impl Glance {
    /// Reads what [`glance`] made; nothing of what it does not know.
    pub(crate) fn read(bytes: Vec<u8>) -> Option<Self> {
        let bytes = Bytes::from(bytes);
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
        let mut rest = bytes.slice(end + 1..);
        let mut answers = Vec::new();
        for (name, length) in head.answers.iter().filter(|_| head.version == VERSION) {
            let answer = (*length <= rest.len()).then(|| rest.split_to(*length))?;
            let (_, wanted) = KEPT.iter().find(|(known, _)| known == name)?;
            answers.push((*wanted, answer));
        }
        Some(Self { answers })
    }

    /// Whether an answer is one of those that are kept.
    pub(crate) fn has(wanted: Wanted) -> bool {
        KEPT.iter().any(|(_, kept)| *kept == wanted)
    }

    pub(crate) fn answer(&self, wanted: Wanted) -> Option<Bytes> {
        self.answers.iter().find(|(kept, _)| *kept == wanted).map(|(_, answer)| answer.clone())
    }
}
