//! The lines that the user's code sends: spans and what is known of samples.
//!
//! ```json
//! {"type": "span", "step": 7, "group": "12", "sample": "3", "name": "reward", "start": 1767225600.1, "end": 1767225600.4}
//! {"type": "sample", "step": 7, "group": "12", "sample": "3", "reward": 1.0, "truncated": false, "response_tokens": 212}
//! ```
//!
//! | of a sample | what |
//! |---|---|
//! | `reward` | a number |
//! | `truncated` | whether the limit of tokens cut it |
//! | `response_tokens`, `effective_response_tokens` | tokens of the response; those that its loss mask leaves |
//! | `non_generation_time` | seconds spent on anything but generation |
//! | `repetition` | whether its text repeats itself |
//! | `category` | the kind of failure or of reward that it counts under |
//! | `top_p_kept` | vocabulary entries that nucleus sampling kept, summed over the trained tokens |
//! | `evaluation`, `dataset` | it is no training sample; the data set that it is of |
//!
//! Times are seconds since the Unix epoch. `group`, `attempt`, `end`, `attrs` and everything that is known of a
//! sample may be missing; unknown members are passed over, an unknown type is an error.

use std::collections::BTreeMap;

use rollscope_trace::{Attr, Nanos, Record, SampleKey, SampleMark, StepNumber, UnixNs, UserSpan};
use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};

/// The year 2000. Smaller numbers are readings of a clock that counts from a machine's start, and would make a
/// sample last for half a century.
const EARLIEST_START_S: f64 = 946_684_800.0;

/// A line that was not taken.
#[derive(Debug, Serialize)]
pub(crate) struct Rejected {
    /// From 1.
    line: usize,
    /// What is wrong with it.
    error: String,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    Span(SpanLine),
    Sample(SampleLine),
}

#[derive(Deserialize)]
struct KeyMembers {
    #[serde(deserialize_with = "step")]
    step: u64,
    #[serde(default)]
    group: Option<Name>,
    sample: Name,
}

/// A name may be written as a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Name {
    Text(Box<str>),
    Number(i64),
}

#[derive(Deserialize)]
struct SpanLine {
    #[serde(flatten)]
    key: KeyMembers,
    #[serde(default)]
    attempt: u32,
    name: Box<str>,
    start: f64,
    #[serde(default)]
    end: Option<f64>,
    #[serde(default)]
    attrs: BTreeMap<Box<str>, Value>,
}

/// A value of an attribute: whatever is no scalar is an error.
#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Box<str>),
}

#[derive(Deserialize)]
struct SampleLine {
    #[serde(flatten)]
    key: KeyMembers,
    #[serde(default)]
    reward: Option<f64>,
    #[serde(default)]
    truncated: Option<bool>,
    #[serde(default)]
    response_tokens: Option<u64>,
    #[serde(default)]
    effective_response_tokens: Option<u64>,
    #[serde(default)]
    non_generation_time: Option<f64>,
    #[serde(default)]
    repetition: Option<bool>,
    #[serde(default)]
    category: Option<Name>,
    #[serde(default)]
    top_p_kept: Option<u64>,
    #[serde(default)]
    dataset: Option<Name>,
    #[serde(default)]
    evaluation: bool,
}

/// A span that has not been by so much has a time that is wrong: a day. One from long ago may be of a rollout that is
/// played again; of a sample's time it is only where the sample's requests are.
const FUTURE_NS: i64 = 86_400 * 1_000_000_000;

/// A step that can be: with one that cannot, all that come would be earlier ones.
fn step<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let step = u64::deserialize(deserializer)?;
    let refused = || D::Error::invalid_value(Unexpected::Unsigned(step), &"a step below 2^53");
    StepNumber::new(step).map(|step| step.0).ok_or_else(refused)
}

/// Reads a body of lines that was sent just now; blank ones are passed over.
pub(crate) fn parse(body: &[u8], now: UnixNs) -> (Vec<Record>, Vec<Rejected>) {
    let (mut records, mut rejected) = (Vec::new(), Vec::new());
    for (index, line) in body.split(|byte| *byte == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let is_to_come = |at: UnixNs| at > now.offset_by(FUTURE_NS);
        match read_line(line) {
            Ok(Record::Span(span)) if is_to_come(span.end.unwrap_or(span.start)) => {
                let error =
                    "a time that is yet to come by more than a day, by this machine's clock".to_owned();
                rejected.push(Rejected { line: index + 1, error });
            }
            Ok(record) => records.push(record),
            Err(error) => rejected.push(Rejected { line: index + 1, error: error.to_string() }),
        }
    }
    (records, rejected)
}

/// Reads a line of the user's.
pub fn read_line(line: &[u8]) -> Result<Record, serde_json::Error> {
    match serde_json::from_slice(line)? {
        Line::Span(span) => span.record().ok_or_else(|| {
            serde_json::Error::custom(
                "start and end are seconds since 1970, later than the year 2000, and the end is not before the start",
            )
        }),
        Line::Sample(sample) => sample
            .record()
            .ok_or_else(|| serde_json::Error::custom("non_generation_time is no number of seconds")),
    }
}

// === impl SpanLine ===

impl SpanLine {
    fn record(self) -> Option<Record> {
        let start = UnixNs::from_secs_f64(self.start).filter(|_| self.start >= EARLIEST_START_S)?;
        let end = match self.end {
            Some(end) => Some(UnixNs::from_secs_f64(end).filter(|end| *end >= start)?),
            None => None,
        };
        let attrs = self.attrs.into_iter().map(|(name, value)| (name, value.attr())).collect();
        let (key, attempt, name) = (self.key.key(), self.attempt, self.name);
        Some(Record::Span(UserSpan { key, attempt, name, start, end, attrs }))
    }
}

// === impl SampleLine ===

impl SampleLine {
    fn record(self) -> Option<Record> {
        let non_generation_time = match self.non_generation_time {
            Some(seconds) => Some(Nanos::from_secs_f64(seconds)?),
            None => None,
        };
        let mut mark = SampleMark {
            reward: self.reward,
            truncated: self.truncated,
            response_tokens: self.response_tokens,
            effective_response_tokens: self.effective_response_tokens,
            non_generation_time,
            repetition: self.repetition,
            category: self.category.map(Name::text),
            top_p_kept: self.top_p_kept,
            dataset: self.dataset.map(Name::text),
            evaluation: self.evaluation,
            ..SampleMark::new(self.key.key())
        };
        mark.leave_out_implausible();
        Some(Record::Sample(mark))
    }
}

// === impl KeyMembers ===

impl KeyMembers {
    fn key(self) -> SampleKey {
        SampleKey {
            step: StepNumber(self.step),
            group: self.group.map(Name::text),
            sample: self.sample.text(),
        }
    }
}

// === impl Name ===

impl Name {
    fn text(self) -> Box<str> {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string().into(),
        }
    }
}

// === impl Value ===

impl Value {
    fn attr(self) -> Attr {
        match self {
            Self::Bool(value) => Attr::Bool(value),
            Self::Int(value) => Attr::Int(value),
            Self::Float(value) => Attr::Float(value),
            Self::Text(value) => Attr::Text(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use rollscope_trace::{Fault, LeftOut, MarkValue};

    use super::*;

    #[test]
    fn good_lines_are_taken_and_bad_ones_named() {
        let body = br#"{"type":"span","step":1,"group":"g","sample":3,"name":"tool","start":1700000000.5,"end":null,"attrs":{"n":1,"x":0.5,"s":"t","b":true}}

{"type":"sample","step":1,"sample":"s","reward":-1,"category":404,"non_generation_time":0.5,"repetition":true,"later":"unknown"}
{"type":"span","step":1,"sample":"s","name":"n","start":1700000002,"end":1700000001}
{"type":"span","step":1,"sample":"s","name":"perf_counter","start":12345.6,"end":12345.7}
{"type":"span","step":1,"sample":"s","name":"milliseconds","start":1700000000000}
{"type":"sample","step":1,"sample":"t","reward":1e300,"response_tokens":18446744073709551615,"truncated":true}
{"type":"sample","step":1,"sample":"s","reward":NaN}
{"type":"event","step":1}
{"type":"sample","sample":"s"}
{"type":"sample","step":1,"sample":"s","non_generation_time":-1}
{"type":"span","step":1,"sample":"s","name":"next year","start":1700000000,"end":1732000000}
{"type":"sample","step":9007199254740993,"sample":"s"}
"#;
        let (records, rejected) = parse(body, UnixNs(1_700_000_100_000_000_000));
        let key = |group: Option<&str>, sample: &str| SampleKey {
            step: StepNumber(1),
            group: group.map(Into::into),
            sample: sample.into(),
        };
        let span = UserSpan {
            key: key(Some("g"), "3"),
            attempt: 0,
            name: "tool".into(),
            start: UnixNs(1_700_000_000_500_000_000),
            end: None,
            attrs: vec![
                ("b".into(), Attr::Bool(true)),
                ("n".into(), Attr::Int(1)),
                ("s".into(), Attr::Text("t".into())),
                ("x".into(), Attr::Float(0.5)),
            ],
        };
        let mark = SampleMark {
            reward: Some(-1.0),
            category: Some("404".into()),
            non_generation_time: Some(Nanos(500_000_000)),
            repetition: Some(true),
            ..SampleMark::new(key(None, "s"))
        };
        let implausible = SampleMark {
            truncated: Some(true),
            left_out: [MarkValue::Reward, MarkValue::ResponseTokens]
                .map(|value| LeftOut { value: Some(value), fault: Fault::TooLarge })
                .into(),
            ..SampleMark::new(key(None, "t"))
        };
        assert_eq!(records, [Record::Span(span), Record::Sample(mark), Record::Sample(implausible)]);
        let lines: Vec<_> = rejected.iter().map(|rejected| rejected.line).collect();
        assert_eq!(lines, [4, 5, 6, 8, 9, 10, 11, 12, 13]);
        assert!(rejected[8].error.contains("expected a step below 2^53"), "{rejected:?}");
        assert!(rejected[5].error.contains("missing field `step`"), "{rejected:?}");
        assert!(rejected[4].error.contains("unknown variant `event`"), "{rejected:?}");
    }
}
