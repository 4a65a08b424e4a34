//! The messages of W&B's file that are written here, with the numbers of its fields.

use prost::Message;

use crate::error::TrackError;

/// One record; exactly one of its members but the number is there.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Record {
    #[prost(int64, tag = "1")]
    pub(super) num: i64,
    #[prost(message, optional, tag = "2")]
    pub(super) history: Option<History>,
    #[prost(message, optional, tag = "3")]
    pub(super) summary: Option<Summary>,
    #[prost(message, optional, tag = "12")]
    pub(super) metric: Option<Metric>,
    #[prost(message, optional, tag = "17")]
    pub(super) run: Option<RunInfo>,
    #[prost(message, optional, tag = "18")]
    pub(super) exit: Option<Exit>,
    #[prost(message, optional, tag = "21")]
    pub(super) header: Option<Header>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(message, optional, tag = "1")]
    version_info: Option<VersionInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct VersionInfo {
    #[prost(string, tag = "1")]
    producer: String,
    #[prost(string, tag = "2")]
    min_consumer: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RunInfo {
    #[prost(string, tag = "1")]
    pub(super) run_id: String,
    #[prost(string, tag = "2")]
    pub(super) entity: String,
    #[prost(string, tag = "3")]
    pub(super) project: String,
    #[prost(message, optional, tag = "4")]
    pub(super) config: Option<Config>,
    #[prost(string, tag = "8")]
    pub(super) display_name: String,
    #[prost(message, optional, tag = "17")]
    pub(super) start_time: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Config {
    #[prost(message, repeated, tag = "1")]
    pub(super) update: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
#[expect(clippy::struct_field_names, reason = "they are the format's")]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) glob_name: String,
    #[prost(string, tag = "4")]
    pub(super) step_metric: String,
    #[prost(message, optional, tag = "6")]
    pub(super) options: Option<MetricOptions>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct MetricOptions {
    #[prost(bool, tag = "1")]
    pub(super) step_sync: bool,
    #[prost(bool, tag = "2")]
    pub(super) hidden: bool,
    #[prost(bool, tag = "3")]
    pub(super) defined: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(super) update: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct History {
    #[prost(message, repeated, tag = "1")]
    pub(super) item: Vec<Item>,
    #[prost(message, optional, tag = "2")]
    pub(super) step: Option<HistoryStep>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct HistoryStep {
    #[prost(int64, tag = "1")]
    pub(super) num: i64,
}

/// A name and its value as JSON: of a row, a summary or a configuration, which number these alike.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Item {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "16")]
    pub(super) value_json: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Exit {
    #[prost(int32, tag = "1")]
    pub(super) exit_code: i32,
    /// Seconds.
    #[prost(int32, tag = "2")]
    pub(super) runtime: i32,
}

/// The version of wandb whose files these are like.
const PRODUCER: &str = "0.31.0";
/// The oldest program that reads them.
const MIN_CONSUMER: &str = "0.70.0";

// === impl Header ===

impl Header {
    pub(super) fn new() -> Self {
        let (producer, min_consumer) = (PRODUCER.to_owned(), MIN_CONSUMER.to_owned());
        Self { version_info: Some(VersionInfo { producer, min_consumer }) }
    }
}

// === impl Item ===

impl Item {
    pub(super) fn number(key: &str, value: f64) -> Result<Self, TrackError> {
        // Whole numbers as such: the step is compared with others' steps.
        let whole = value.fract() == 0.0 && value.abs() < 1e15;
        let value_json = if whole { format!("{value:.0}") } else { serde_json::to_string(&value)? };
        Ok(Self { key: key.to_owned(), value_json })
    }

    pub(super) fn text(key: &str, value: &str) -> Result<Self, TrackError> {
        Ok(Self { key: key.to_owned(), value_json: serde_json::to_string(value)? })
    }
}
