//! TensorBoard's event files: scalars, one event a step.
//!
//! A file is a row of records, each `length u64 · crc of it u32 · bytes · crc of them u32`, little-endian; the sums
//! are CRC-32C, masked as `TFRecord` does. The bytes are an `Event` of `tensorflow/core/util/event.proto`, of which the
//! first tells the version. Scalars are of single precision, as TensorBoard's are.
//!
//! Steps that are sent again follow an event that says that a session starts at the first of them: TensorBoard then forgets what
//! it had from that step on of all files in the folder, which is why a run has a folder of its own, so that the others follow once
//! more. As this takes the rest of the file, all that are sent again in a row share one such event, which names them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use prost::Message;

use crate::STEP_NAME;
use crate::error::TrackError;
use crate::records::RecordFile;
use crate::tracker::{Numbers, Origin, Times, create_folder, now_s};

#[derive(Debug)]
pub(crate) struct TensorBoard {
    pub(crate) times: Times,
    file: RecordFile,
    /// What was sent again and is not written yet.
    again: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
    /// The steps that are sent again, with a comma between, each as often as it was. Without it only the event's own.
    #[prost(string, optional, tag = "3")]
    msg: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// What a file holds.
#[derive(Default)]
struct Content {
    /// Where the last event ends that is to stay.
    whole: usize,
    times: Times,
}

/// The first event of each file tells it.
const VERSION: &str = "brain.Event:2";
/// `SessionLog.SessionStatus.START`.
const START: i32 = 1;

// === impl TensorBoard ===

impl TensorBoard {
    pub(crate) fn open(origin: &Origin, dir: &Path) -> Result<Self, TrackError> {
        create_folder(dir)?;
        // TensorBoard takes any name with this in it, and reads them in their order.
        let name = format!(
            "events.out.tfevents.{}.rollscope.{}",
            origin.created.as_secs(),
            origin.id("tensorboard")
        );
        let mut times = Times::default();
        let file = RecordFile::open(&dir.join(name), |content| {
            let found = Content::of(content);
            times = found.times;
            Ok(found.whole)
        })?;
        let mut board = Self { times, file, again: Vec::new() };
        if board.file.end() == 0 {
            let first =
                Event { wall_time: now_s(), file_version: Some(VERSION.to_owned()), ..Event::default() };
            board.file.append(&record(&first.encode_to_vec()))?;
        }
        Ok(board)
    }

    /// Of a step that it has already nothing is written before [`Self::flush`].
    pub(crate) fn send(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackError> {
        let value =
            |(tag, value): (&String, &f64)| Value { tag: tag.clone(), simple_value: Some(*value as f32) };
        let mut values: Vec<Value> = numbers.iter().map(value).collect();
        values.push(Value { tag: STEP_NAME.to_owned(), simple_value: Some(step as f32) });
        let event = Event {
            wall_time: now_s(),
            step: i64::try_from(step).unwrap_or(i64::MAX),
            summary: Some(Summary { value: values }),
            ..Event::default()
        };
        if self.times.of(step) > 0 {
            self.again.push(event);
        } else {
            self.file.append(&record(&event.encode_to_vec()))?;
        }
        self.times.add(step);
        Ok(())
    }

    /// Writes what was sent again, of each step only the last.
    pub(crate) fn flush(&mut self) -> Result<(), TrackError> {
        let again = std::mem::take(&mut self.again);
        let Some(first) = again.iter().map(|event| event.step).min() else { return Ok(()) };
        let steps: Vec<String> = again.iter().map(|event| event.step.to_string()).collect();
        let session_log = Some(SessionLog { status: START, msg: Some(steps.join(",")) });
        let start = Event { wall_time: now_s(), step: first, session_log, ..Event::default() };
        let mut events = self.from(first)?;
        events.extend(again.into_iter().map(|event| (event.step, event)));
        // One write, so that what follows a start is there whole or not at all.
        let events = std::iter::once(&start).chain(events.values());
        let bytes: Vec<u8> = events.flat_map(|event| record(&event.encode_to_vec())).collect();
        self.file.append(&bytes)
    }

    /// What was written last of each step from one on.
    fn from(&self, step: i64) -> Result<BTreeMap<i64, Event>, TrackError> {
        let content = fs::read(self.file.path()).map_err(TrackError::io("read", self.file.path()))?;
        let written = events(&content).map(|(_, event)| event);
        let written = written.filter(|event| event.summary.is_some() && event.step >= step);
        Ok(written.map(|event| (event.step, event)).collect())
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

// === impl Content ===

impl Content {
    /// Of what follows a start nothing stays unless all of it is there.
    fn of(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        let (mut missing, mut again) = (BTreeSet::new(), Vec::new());
        for (end, event) in events(bytes) {
            let step = event.step as u64;
            if let Some(start) = event.session_log {
                missing = content.times.from(step).collect();
                again = start.msg.map_or(vec![step], |steps| steps.split(',').flat_map(str::parse).collect());
            } else if event.summary.is_some() && !missing.remove(&step) {
                content.times.add(step);
            }
            if missing.is_empty() {
                content.whole = end;
                again.drain(..).for_each(|step| content.times.add(step));
            }
        }
        content
    }
}

fn record(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = length.to_vec();
    record.extend(masked(&length));
    record.extend(bytes);
    record.extend(masked(bytes));
    record
}

/// The format's mask keeps a sum over bytes that hold a sum of their own from being weak.
fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// The whole events from the begin, and where each ends.
fn events(content: &[u8]) -> impl Iterator<Item = (usize, Event)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let bytes = next(content.get(at..)?)?;
        let event = Event::decode(bytes).ok()?;
        at += bytes.len() + 16;
        Some((at, event))
    })
}

fn next(content: &[u8]) -> Option<&[u8]> {
    let (length, rest) = content.split_first_chunk::<8>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (bytes, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    (*sum == masked(length) && rest.first_chunk::<4>()? == &masked(bytes)).then_some(bytes)
}
