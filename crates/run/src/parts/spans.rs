//! The table of spans: the user's own, and for queries those that are derived from each request.
//!
//! The attributes of a user's span are a JSON object. A number without a fraction or an exponent is a whole number;
//! what JSON cannot say is `{"float":"NaN"}`, `{"float":"inf"}` or `{"float":"-inf"}`.

use std::fmt;

use rollscope_trace::{Attr, Lane, Record, SampleKey, StepNumber, UnixNs, UserSpan, profile_spans};
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::error::RunError;
use crate::parts::StepRows;
use crate::parts::rows::Rows;
use crate::parts::table::Table;

/// `source` of the user's own spans; the only ones that are read back.
const USER: &str = "user";
/// `source` of spans that follow from a request.
const DERIVED: &str = "derived";

/// A row.
struct SpanRow<'a> {
    source: &'static str,
    /// The request that it is derived from.
    request: Option<&'a str>,
    key: &'a SampleKey,
    attempt: u32,
    /// Its number and its parent's, within the request.
    ids: (Option<u32>, Option<u32>),
    name: &'a str,
    lane: Lane,
    start: UnixNs,
    end: Option<UnixNs>,
    bound_ns: u64,
    attrs: Option<String>,
}

pub(crate) fn table(step: StepNumber, rows: &StepRows) -> Table {
    let mut table = Table::default();
    for span in &rows.spans {
        let attrs = span.attrs.iter().map(|(name, value)| (&**name, value));
        put(
            &mut table,
            &SpanRow {
                source: USER,
                request: None,
                key: &span.key,
                attempt: span.attempt,
                ids: (None, None),
                name: &span.name,
                lane: Lane::User,
                start: span.start,
                end: span.end,
                bound_ns: 0,
                attrs: json(attrs),
            },
        );
    }
    for profile in &rows.profiles {
        let (key, id) = (profile.sample_key(step), profile.id.to_string());
        for span in profile_spans(profile) {
            put(
                &mut table,
                &SpanRow {
                    source: DERIVED,
                    request: Some(&id),
                    key: &key,
                    attempt: profile.join.attempt,
                    ids: (Some(span.id), span.parent),
                    name: &span.name,
                    lane: span.lane,
                    start: span.start,
                    end: span.end,
                    bound_ns: span.bound.0,
                    // They would say again what stands in the tables of requests and legs.
                    attrs: None,
                },
            );
        }
    }
    table
}

fn put(table: &mut Table, span: &SpanRow<'_>) {
    let mut row = table.row();
    row.text("source", span.source);
    row.text_or_none("request_id", span.request);
    row.text_or_none("group_id", span.key.group.as_deref());
    row.text("sample_id", &span.key.sample);
    row.int("attempt", span.attempt.into());
    row.int_or_none("span_id", span.ids.0.map(Into::into));
    row.int_or_none("parent_id", span.ids.1.map(Into::into));
    row.text("name", span.name);
    row.text("lane", span.lane.name());
    row.int("start_ns", span.start.0);
    row.int_or_none("end_ns", span.end.map(|end| end.0));
    row.int("bound_ns", span.bound_ns as i64);
    row.text_or_none("attrs", span.attrs.as_deref());
}

/// The user's spans of a part.
pub(crate) fn read(step: StepNumber, rows: &Rows) -> Result<Vec<Record>, RunError> {
    let (mut source, mut group) = (rows.texts("source")?, rows.texts("group_id")?);
    let (mut sample, mut attempt) = (rows.texts("sample_id")?, rows.ints("attempt")?);
    let (mut name, mut attrs) = (rows.texts("name")?, rows.texts("attrs")?);
    let (mut start, mut end) = (rows.ints("start_ns")?, rows.ints("end_ns")?);
    let mut records = Vec::new();
    for _ in 0..rows.len() {
        let (source, attrs) = (source.next_text_or_empty(), attrs.next_text());
        let key = SampleKey { step, group: group.next_text(), sample: sample.next_text_or_empty() };
        let (attempt, name) = (attempt.next_or_default() as u32, name.next_text_or_empty());
        let (start, end) = (UnixNs(start.next_or_default()), end.next().map(UnixNs));
        if *source == *USER {
            let attrs = attrs.map(|text| serde_json::from_str::<AttrMap>(&text)).transpose();
            let attrs = attrs.map_err(|_| rows.damaged("attributes that cannot be read"))?;
            let attrs = attrs.map(|map| map.0).unwrap_or_default();
            records.push(Record::Span(UserSpan { key, attempt, name, start, end, attrs }));
        }
    }
    Ok(records)
}

// === attributes ===

/// Attributes in their order, doubles included.
struct AttrMap(Vec<(Box<str>, Attr)>);

struct AttrValue(Attr);

struct AttrRef<'a>(&'a Attr);

/// An object; nothing when there are no attributes.
fn json<'a>(attrs: impl Iterator<Item = (&'a str, &'a Attr)>) -> Option<String> {
    let mut attrs = attrs.peekable();
    attrs.peek()?;
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::new(&mut bytes);
    // Writing text and numbers into memory does not fail.
    serializer.collect_map(attrs.map(|(name, value)| (name, AttrRef(value)))).ok()?;
    String::from_utf8(bytes).ok()
}

impl Serialize for AttrRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Attr::Bool(value) => serializer.serialize_bool(*value),
            Attr::Int(value) => serializer.serialize_i64(*value),
            Attr::Float(value) if value.is_finite() => serializer.serialize_f64(*value),
            Attr::Float(value) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("float", &value.to_string())?;
                map.end()
            }
            Attr::Text(value) => serializer.serialize_str(value),
        }
    }
}

impl<'de> Deserialize<'de> for AttrMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = AttrMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of scalars")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AttrMap, A::Error> {
                let mut attrs = Vec::new();
                while let Some((name, AttrValue(value))) = map.next_entry::<String, AttrValue>()? {
                    attrs.push((name.into(), value));
                }
                Ok(AttrMap(attrs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

impl<'de> Deserialize<'de> for AttrValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Scalar;
        impl<'de> Visitor<'de> for Scalar {
            type Value = AttrValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a scalar")
            }

            fn visit_bool<E>(self, value: bool) -> Result<AttrValue, E> {
                Ok(AttrValue(Attr::Bool(value)))
            }

            fn visit_i64<E>(self, value: i64) -> Result<AttrValue, E> {
                Ok(AttrValue(Attr::Int(value)))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<AttrValue, E> {
                i64::try_from(value).map(|value| AttrValue(Attr::Int(value))).map_err(E::custom)
            }

            fn visit_f64<E>(self, value: f64) -> Result<AttrValue, E> {
                Ok(AttrValue(Attr::Float(value)))
            }

            fn visit_str<E>(self, value: &str) -> Result<AttrValue, E> {
                Ok(AttrValue(Attr::from(value)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AttrValue, A::Error> {
                match map.next_entry::<String, String>()? {
                    Some((name, value)) if name == "float" => {
                        value.parse().map(|value| AttrValue(Attr::Float(value))).map_err(de::Error::custom)
                    }
                    _ => Err(de::Error::custom("neither a scalar nor a float")),
                }
            }
        }
        deserializer.deserialize_any(Scalar)
    }
}
