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

use rollscope_trace::{Attr, Nanos, Record, SampleKey, SampleMark, StepNumber, UnixNs, UserSpan, not_json};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::StepEnd;

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

/// Why a line was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// It cannot be read at all.
    #[error("{0}")]
    Json(String),
    /// It is JSON of another kind.
    #[error("no object")]
    NoObject,
    /// A member that it must have is missing.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A member that nobody reads, where none may be.
    #[error("`{0}` is not known")]
    Unknown(Box<str>),
    /// A member is not what it must be.
    #[error("`{field}` is {found}, and {wanted} is wanted")]
    Field {
        /// Which one.
        field: Box<str>,
        /// Its value, cut where it is long.
        found: String,
        /// What it must be.
        wanted: &'static str,
    },
}

/// The members of a line.
struct Members(Map<String, Value>);

/// What a duration must be.
const SECONDS: &str = "a number of seconds";

/// So much of a value is shown.
const MAX_SHOWN_CHARS: usize = 40;

/// A span that has not been by so much has a time that is wrong: a day. One from long ago may be of a rollout that is
/// played again; of a sample's time it is only where the sample's requests are.
const FUTURE_NS: i64 = 86_400 * 1_000_000_000;

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
                let field = if span.end.is_some() { "end" } else { "start" };
                let error = format!("`{field}` is yet to come by more than a day, by this machine's clock");
                rejected.push(Rejected { line: index + 1, error });
            }
            Ok(record) => records.push(record),
            Err(error) => rejected.push(Rejected { line: index + 1, error: error.to_string() }),
        }
    }
    (records, rejected)
}

/// Reads a line of the user's.
pub fn read_line(line: &[u8]) -> Result<Record, LineError> {
    let members = Members::of(line)?;
    match members.told("type").and_then(Value::as_str) {
        Some("span") => members.span().map(Record::Span),
        Some("sample") => members.sample().map(Record::Sample),
        _ => Err(members.wrong("type", "\"span\" or \"sample\"")),
    }
}

/// Reads what is told of the end of a step.
pub(crate) fn read_end(body: &[u8]) -> Result<StepEnd, LineError> {
    let members = Members::of(body)?;
    if let Some(name) = members.0.keys().find(|name| !["rollout_time", "num_gpus"].contains(&&***name)) {
        return Err(LineError::Unknown(name.as_str().into()));
    }
    let count = |value: &Value| value.as_u64()?.try_into().ok();
    Ok(StepEnd {
        rollout_time: members.may("rollout_time", SECONDS, seconds)?,
        gpus: members.may("num_gpus", "a whole number below 2^32", count)?,
    })
}

fn seconds(value: &Value) -> Option<Nanos> {
    Nanos::from_secs_f64(value.as_f64()?)
}

// === impl LineError ===

impl LineError {
    fn field(field: &str, found: &Value, wanted: &'static str) -> Self {
        let mut found = found.to_string();
        if let Some((end, _)) = found.char_indices().nth(MAX_SHOWN_CHARS) {
            found.truncate(end);
            found.push('…');
        }
        Self::Field { field: field.into(), found, wanted }
    }
}

// === impl Members ===

impl Members {
    fn of(line: &[u8]) -> Result<Self, LineError> {
        match serde_json::from_slice(line) {
            Ok(Value::Object(members)) => Ok(Self(members)),
            Ok(_) => Err(LineError::NoObject),
            Err(error) => {
                let place = (error.line(), error.column().saturating_sub(1));
                Err(LineError::Json(not_json(&error.to_string(), line, place)))
            }
        }
    }

    fn span(&self) -> Result<UserSpan, LineError> {
        let seconds = "seconds since 1970, later than the year 2000";
        let start_s =
            self.must("start", seconds, |value| value.as_f64().filter(|at| *at >= EARLIEST_START_S))?;
        let start = UnixNs::from_secs_f64(start_s).ok_or_else(|| self.wrong("start", seconds))?;
        let end = self.may("end", "a time that is not before the start", |value| {
            UnixNs::from_secs_f64(value.as_f64()?).filter(|end| *end >= start)
        })?;
        let attrs = match self.0.get("attrs") {
            None => Vec::new(),
            Some(Value::Object(attrs)) => attrs.iter().map(attr).collect::<Result<_, _>>()?,
            Some(_) => return Err(self.wrong("attrs", "an object")),
        };
        let name = self.must("name", "a text", Value::as_str)?.into();
        Ok(UserSpan { key: self.key()?, attempt: self.attempt()?, name, start, end, attrs })
    }

    fn sample(&self) -> Result<SampleMark, LineError> {
        let tokens = |name| self.may(name, "a whole number", Value::as_u64);
        let truth = |name| self.may(name, "true or false", Value::as_bool);
        let name = |field| self.may(field, "a text or a whole number", name);
        let mut mark = SampleMark {
            reward: self.may("reward", "a number", Value::as_f64)?,
            truncated: truth("truncated")?,
            response_tokens: tokens("response_tokens")?,
            effective_response_tokens: tokens("effective_response_tokens")?,
            non_generation_time: self.may("non_generation_time", SECONDS, seconds)?,
            repetition: truth("repetition")?,
            category: name("category")?,
            top_p_kept: tokens("top_p_kept")?,
            dataset: name("dataset")?,
            evaluation: truth("evaluation")?.unwrap_or(false),
            ..SampleMark::new(self.key()?)
        };
        mark.leave_out_implausible();
        Ok(mark)
    }

    fn key(&self) -> Result<SampleKey, LineError> {
        let step = |value: &Value| value.as_u64().and_then(StepNumber::new);
        Ok(SampleKey {
            step: self.must("step", "a step below 2^53", step)?,
            group: self.may("group", "a text or a whole number", name)?,
            sample: self.must("sample", "a text or a whole number", name)?,
        })
    }

    fn attempt(&self) -> Result<u32, LineError> {
        let attempt =
            self.may("attempt", "a whole number below 2^32", |value| value.as_u64()?.try_into().ok());
        Ok(attempt?.unwrap_or(0))
    }

    /// What is there and not null.
    fn told(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn may<'a, V>(
        &'a self,
        field: &'static str,
        wanted: &'static str,
        read: impl FnOnce(&'a Value) -> Option<V>,
    ) -> Result<Option<V>, LineError> {
        let Some(value) = self.told(field) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(field, wanted))
    }

    fn must<'a, V>(
        &'a self,
        field: &'static str,
        wanted: &'static str,
        read: impl FnOnce(&'a Value) -> Option<V>,
    ) -> Result<V, LineError> {
        self.may(field, wanted, read)?.ok_or_else(|| self.wrong(field, wanted))
    }

    fn wrong(&self, field: &'static str, wanted: &'static str) -> LineError {
        match self.0.get(field) {
            None => LineError::Missing(field),
            Some(found) => LineError::field(field, found, wanted),
        }
    }
}

/// A name may be written as a number.
fn name(value: &Value) -> Option<Box<str>> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Number(number) => number.as_i64().map(|number| number.to_string().into()),
        _ => None,
    }
}

/// Whatever is no scalar is an error.
fn attr((name, value): (&String, &Value)) -> Result<(Box<str>, Attr), LineError> {
    let attr = match value {
        Value::Bool(value) => Some(Attr::Bool(*value)),
        Value::Number(number) => number.as_i64().map(Attr::Int).or_else(|| number.as_f64().map(Attr::Float)),
        Value::String(text) => Some(Attr::Text(text.as_str().into())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    let wrong = || LineError::field(&format!("attrs.{name}"), value, "a number, a text or a truth");
    Ok((name.as_str().into(), attr.ok_or_else(wrong)?))
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
    }

    #[test]
    fn a_line_that_is_refused_is_told_by_its_member() {
        let span = r#""type":"span","step":1,"sample":"s","name":"n""#;
        for (line, told) in [
            ("[1]".to_owned(), "no object"),
            ("{\"step\":1}".to_owned(), "`type` is missing"),
            ("{\"type\":\"event\"}".to_owned(), "`type` is \"event\", and \"span\" or \"sample\" is wanted"),
            ("{\"type\":\"sample\",\"sample\":\"s\"}".to_owned(), "`step` is missing"),
            (
                "{\"type\":\"sample\",\"step\":-1,\"sample\":\"s\"}".to_owned(),
                "`step` is -1, and a step below 2^53",
            ),
            (
                "{\"type\":\"sample\",\"step\":9007199254740993,\"sample\":\"s\"}".to_owned(),
                "`step` is 9007199254740993, ",
            ),
            ("{\"type\":\"sample\",\"step\":1}".to_owned(), "`sample` is missing"),
            ("{\"type\":\"sample\",\"step\":1,\"sample\":0.5}".to_owned(), "`sample` is 0.5, "),
            ("{\"type\":\"sample\",\"step\":1,\"sample\":1,\"group\":[]}".to_owned(), "`group` is [], "),
            (
                "{\"type\":\"sample\",\"step\":1,\"sample\":1,\"reward\":\"high\"}".to_owned(),
                "`reward` is \"high\", ",
            ),
            ("{\"type\":\"sample\",\"step\":1,\"sample\":1,\"reward\":NaN}".to_owned(), "`reward` is NaN, "),
            (
                "{\"type\":\"sample\",\"step\":1,\"sample\":1,\"response_tokens\":1.5}".to_owned(),
                "`response_tokens` is 1.5, ",
            ),
            (
                "{\"type\":\"sample\",\"step\":1,\"sample\":1,\"evaluation\":1}".to_owned(),
                "`evaluation` is 1, ",
            ),
            (
                "{\"type\":\"sample\",\"step\":1,\"sample\":1,\"non_generation_time\":-1}".to_owned(),
                "`non_generation_time` is -1, ",
            ),
            (format!("{{{span}}}"), "`start` is missing"),
            (format!("{{{span},\"start\":5}}"), "`start` is 5, "),
            (format!("{{{span},\"start\":1e300}}"), "`start` is 1e+300, "),
            (format!("{{{span},\"start\":1700000002,\"end\":1}}"), "`end` is 1, "),
            (format!("{{{span},\"start\":1700000002,\"attempt\":-1}}"), "`attempt` is -1, "),
            (format!("{{{span},\"start\":1700000002,\"attrs\":1}}"), "`attrs` is 1, "),
            (format!("{{{span},\"start\":1700000002,\"attrs\":{{\"a\":[1]}}}}"), "`attrs.a` is [1], "),
        ] {
            let error = read_line(line.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(told) || error.contains(told), "{line}: {error}");
        }
    }
}
