//! A dump of a rollout: `{"rollout_id": N, "samples": [...]}`, by `torch.save` or as a line of JSON.

use std::path::Path;

use rollscope_trace::{CloseReason, Nanos, Record, StepClose, StepNumber, StepTrace, UnixNs};
use serde_json::{Value as Json, json};

use super::mark::OURS;
use super::sample::{SampleOptions, has_unreadable_trace, read_sample, sample_json};
use crate::error::{FormatError, WrongField};
use crate::import::{ImportOptions, Sink};
use crate::pickle::{Elements, PickleError, Value, load_elements};
use crate::torch::{Tensors, TorchFile, numbers_of};
use crate::tree::{Scalar, Tree};

/// What slime puts before the step's number in the name of an evaluation's dump.
const EVALUATION: &str = "eval_";

/// Members of a dump.
const ROLLOUT_ID: &str = "rollout_id";
const SAMPLES: &str = "samples";

/// Members of ours; times in nanoseconds.
const CLOSED_AT: &str = "closed_at_ns";
const CLOSED: &str = "closed";
const ROLLOUT_TIME: &str = "rollout_time_ns";
const GPUS: &str = "gpus";

/// Values of samples that are walked through, for each byte of a pickle. One that is shared counts each time that it
/// is reached, so that a small file cannot stand for any number of large samples.
const WALKED_FOR_A_BYTE: usize = 16;

/// Reads samples, one after the other.
struct Samples<'a, 'b> {
    path: &'a Path,
    options: &'a ImportOptions,
    evaluation: bool,
    count: usize,
    /// Those whose trace cannot be read, be it in part.
    unreadable_traces: u64,
    /// What may still be walked through of a pickle.
    left: usize,
    sink: &'a mut Sink<'b>,
}

/// Why reading stopped.
pub(crate) enum Stop {
    Pickle(PickleError),
    Field(WrongField),
    Other(FormatError),
}

/// Reads a dump that torch wrote. Samples are handed on one by one, so that not all of them are held. Gives how many have
/// a trace that cannot be read.
pub(crate) fn import_torch(
    path: &Path,
    options: &ImportOptions,
    sink: &mut Sink<'_>,
) -> Result<u64, FormatError> {
    let mut file = TorchFile::open(path)?;
    let offset = file.offset();
    let mut samples = Samples::new(path, options, sink);
    let (bytes, begin, mut tensors) = file.parts();
    samples.left = bytes.len().saturating_mul(WALKED_FOR_A_BYTE);
    let missing = |missing| FormatError::NoDump { missing, path: path.to_owned() };
    let outcome = torch_samples(bytes, begin, options.step, &mut tensors, &mut samples).and_then(|step| {
        // The step stands before the samples, unless somebody else wrote the dump: then it is known only now.
        match step {
            Step::Read => Ok(Some(())),
            Step::Late(step) => {
                torch_samples(bytes, begin, Some(step), &mut tensors, &mut samples).map(|_| Some(()))
            }
            Step::Missing => Ok(None),
        }
    });
    match outcome {
        Ok(Some(())) if samples.count > 0 => Ok(samples.unreadable_traces),
        Ok(Some(())) => Err(missing(SAMPLES)),
        Ok(None) => Err(missing(ROLLOUT_ID)),
        Err(Stop::Pickle(error)) => Err(FormatError::pickle(path, offset, error)),
        Err(Stop::Field(wrong)) => Err(FormatError::damaged(path, offset + begin as u64, &wrong)),
        Err(Stop::Other(error)) => Err(error),
    }
}

/// What is known of the step after the samples.
enum Step {
    /// It was known before them.
    Read,
    /// It came behind them, and none was read.
    Late(StepNumber),
    /// There is none.
    Missing,
}

fn torch_samples(
    bytes: &[u8],
    begin: usize,
    step: Option<StepNumber>,
    tensors: &mut Tensors<'_>,
    samples: &mut Samples<'_, '_>,
) -> Result<Step, Stop> {
    let mut unread = false;
    let mut take = |head: &[Value], sample: &Value| {
        let step = match step {
            Some(step) => Some(step),
            None => step_of(head).transpose().map_err(Stop::Field)?,
        };
        let Some(step) = step else {
            unread = true;
            return Ok(());
        };
        samples.torch(sample, step, tensors)
    };
    let loaded = load_elements(bytes, begin, Elements { key: SAMPLES, take: &mut take })?;
    let at_end = match step {
        Some(_) => None,
        None => loaded.root.get(ROLLOUT_ID).map(|id| number(&id)).transpose().map_err(Stop::Field)?,
    };
    // What was not written in the usual way is still in the list.
    let left = match loaded.root.get(SAMPLES) {
        Some(list) => list.items().ok_or_else(|| no_list(&list))?,
        None => Vec::new(),
    };
    match step.or(at_end) {
        Some(step) if unread => return Ok(Step::Late(step)),
        Some(step) => {
            for sample in &left {
                samples.torch(sample, step, tensors)?;
            }
        }
        None if unread || !left.is_empty() => return Ok(Step::Missing),
        None => {}
    }
    Ok(Step::Read)
}

/// The step of a dictionary's keys and values in turn.
fn step_of(head: &[Value]) -> Option<Result<StepNumber, WrongField>> {
    let mut pairs =
        head.chunks_exact(2).filter(|pair| pair[0].text().is_some_and(|key| &**key == ROLLOUT_ID));
    pairs.next().map(|pair| number(&pair[1]))
}

fn number(id: &impl Tree) -> Result<StepNumber, WrongField> {
    let number = match id.scalar() {
        Some(Scalar::Int(number)) => u64::try_from(number).ok().and_then(StepNumber::new),
        _ => None,
    };
    number.ok_or_else(|| WrongField::new(ROLLOUT_ID, id, "a whole number from 0 to 2^53 - 1"))
}

fn no_list(samples: &impl Tree) -> Stop {
    Stop::Field(WrongField::new(SAMPLES, samples, "a list"))
}

/// A step as a dump in JSON; what was told at its end, of which slime's says nothing, is a member of ours.
pub(crate) fn dump_json(trace: &StepTrace) -> Json {
    let samples: Vec<Json> = trace.samples.iter().map(sample_json).collect();
    let mut dump = json!({ "rollout_id": trace.step.0, "samples": samples });
    if let Some(close) = trace.close {
        dump[OURS] = json!({
            CLOSED_AT: close.at.0, CLOSED: close.reason.name(), GPUS: close.gpus,
            ROLLOUT_TIME: close.rollout_time.map(|time| time.0),
        });
    }
    dump
}

/// Reads what [`dump_json`] says of the end of a step.
fn close_of(dump: &impl Tree, step: StepNumber) -> Option<Record> {
    let ours = dump.member(OURS)?;
    let whole = |name: &str| match ours.member(name)?.scalar()? {
        Scalar::Int(value) => Some(value),
        _ => None,
    };
    Some(Record::Close(StepClose {
        step,
        at: UnixNs(whole(CLOSED_AT)?),
        reason: CloseReason::from_name(&ours.member(CLOSED)?.text()?)?,
        rollout_time: whole(ROLLOUT_TIME).and_then(|ns| u64::try_from(ns).ok()).map(Nanos),
        gpus: whole(GPUS).and_then(|gpus| u32::try_from(gpus).ok()),
    }))
}

/// Reads a dump that is JSON and gives how many of its samples have a trace that cannot be read; nothing when it is none.
pub(crate) fn import_json<T: Tree>(
    path: &Path,
    dump: &T,
    options: &ImportOptions,
    sink: &mut Sink<'_>,
) -> Result<Option<u64>, Stop> {
    let Some(list) = dump.member(SAMPLES) else {
        return Ok(None);
    };
    let step = match (options.step, dump.member(ROLLOUT_ID)) {
        (Some(step), _) => step,
        (None, Some(id)) => number(&id).map_err(Stop::Field)?,
        (None, None) => {
            return Err(Stop::Other(FormatError::NoDump { missing: ROLLOUT_ID, path: path.to_owned() }));
        }
    };
    let mut samples = Samples::new(path, options, sink);
    let mut outcome = Ok(());
    let is_list = list.each_element(&mut |sample| {
        if outcome.is_ok() {
            outcome = samples.take(sample, step, &mut |_| None);
        }
    });
    outcome?;
    if !is_list {
        return Err(no_list(&list));
    }
    if let Some(close) = close_of(dump, step) {
        (samples.sink)(close).map_err(Stop::Other)?;
    }
    Ok(Some(samples.unreadable_traces))
}

// === impl Samples ===

impl<'a, 'b> Samples<'a, 'b> {
    fn new(path: &'a Path, options: &'a ImportOptions, sink: &'a mut Sink<'b>) -> Self {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let evaluation = options.evaluation || name.starts_with(EVALUATION);
        Self { path, options, evaluation, count: 0, unreadable_traces: 0, left: 0, sink }
    }

    fn torch(&mut self, sample: &Value, step: StepNumber, tensors: &mut Tensors<'_>) -> Result<(), Stop> {
        let asks_too_much = |what: &str| Stop::Other(FormatError::damaged(self.path, 0, what));
        let left = self.left.checked_sub(sample.weight(self.left));
        self.left = left.ok_or_else(|| asks_too_much("its samples share more than the file can hold"))?;
        self.take(sample, step, &mut |value| numbers_of(value, tensors))?;
        if tensors.is_exhausted() {
            return Err(asks_too_much("its tensors share more than the file can hold"));
        }
        Ok(())
    }

    fn take<T: Tree>(
        &mut self,
        sample: &T,
        step: StepNumber,
        numbers: &mut dyn FnMut(&T) -> Option<Vec<f64>>,
    ) -> Result<(), Stop> {
        if sample.scalar().is_some() || sample.each_element(&mut |_| {}) {
            let field = format!("{SAMPLES}[{}]", self.count);
            return Err(Stop::Field(WrongField::new(&field, sample, "a sample's dictionary")));
        }
        let options = SampleOptions {
            step,
            reward_key: self.options.reward_key.as_deref(),
            category_key: self.options.category_key.as_deref(),
            evaluation: self.evaluation,
        };
        let records = read_sample(sample, options, self.count, numbers);
        self.count += 1;
        let is_unreadable =
            matches!(records.first(), Some(Record::Sample(mark)) if has_unreadable_trace(mark));
        self.unreadable_traces += u64::from(is_unreadable);
        records.into_iter().try_for_each(|record| (self.sink)(record)).map_err(Stop::Other)
    }
}

// === impl Stop ===

impl Stop {
    /// Of a line of JSON.
    pub(crate) fn in_line(self, wrong: impl Fn(String) -> FormatError) -> FormatError {
        match self {
            Self::Field(field) => wrong(field.to_string()),
            Self::Pickle(error) => wrong(error.to_string()),
            Self::Other(FormatError::NoDump { missing, .. }) => {
                wrong(format!("no dump of a rollout, it has no {missing}"))
            }
            Self::Other(error) => error,
        }
    }
}

impl From<PickleError> for Stop {
    fn from(error: PickleError) -> Self {
        Self::Pickle(error)
    }
}
