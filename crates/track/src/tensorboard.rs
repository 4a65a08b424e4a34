//! TensorBoard's event files: scalars, one event a step.
//!
//! A file is a row of records, each `length u64 · crc of it u32 · bytes · crc of them u32`, little-endian; the sums
//! are CRC-32C, masked as `TFRecord` does. The bytes are an `Event` of `tensorflow/core/util/event.proto`, of which the
//! first tells the version. Scalars are of single precision, as TensorBoard's are.

use std::collections::BTreeSet;
use std::path::Path;

use prost::Message;

use crate::STEP_NAME;
use crate::error::TrackError;
use crate::records::RecordFile;
use crate::tracker::{Numbers, Origin, create_folder, now_s};

#[derive(Debug)]
pub(crate) struct TensorBoard {
    pub(crate) steps: BTreeSet<u64>,
    file: RecordFile,
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

/// The first event of each file tells it.
const VERSION: &str = "brain.Event:2";

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
        let mut steps = BTreeSet::new();
        let file = RecordFile::open(&dir.join(name), |content| {
            let (whole, events) = read(content);
            steps
                .extend(events.iter().filter(|event| event.summary.is_some()).map(|event| event.step as u64));
            Ok(whole)
        })?;
        let mut board = Self { steps, file };
        if board.file.end() == 0 {
            let first =
                Event { wall_time: now_s(), file_version: Some(VERSION.to_owned()), ..Event::default() };
            board.file.append(&record(&first.encode_to_vec()))?;
        }
        Ok(board)
    }

    pub(crate) fn send(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackError> {
        let value =
            |(tag, value): (&String, &f64)| Value { tag: tag.clone(), simple_value: Some(*value as f32) };
        let mut values: Vec<Value> = numbers.iter().map(value).collect();
        values.push(Value { tag: STEP_NAME.to_owned(), simple_value: Some(step as f32) });
        let event = Event {
            wall_time: now_s(),
            step: i64::try_from(step).unwrap_or(i64::MAX),
            file_version: None,
            summary: Some(Summary { value: values }),
        };
        self.file.append(&record(&event.encode_to_vec()))?;
        self.steps.insert(step);
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
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

/// The whole records from the begin, and how far they reach.
fn read(content: &[u8]) -> (usize, Vec<Event>) {
    let (mut whole, mut events) = (0, Vec::new());
    while let Some(bytes) = next(&content[whole..]) {
        let Ok(event) = Event::decode(bytes) else { break };
        events.push(event);
        whole += bytes.len() + 16;
    }
    (whole, events)
}

fn next(content: &[u8]) -> Option<&[u8]> {
    let (length, rest) = content.split_first_chunk::<8>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (bytes, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    (*sum == masked(length) && rest.first_chunk::<4>()? == &masked(bytes)).then_some(bytes)
}
