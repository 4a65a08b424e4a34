//! Attributes in a cell: a JSON object.
//!
//! A number without a fraction or an exponent is a whole number; what JSON cannot say is `{"float":"NaN"}`,
//! `{"float":"inf"}` or `{"float":"-inf"}`.

use std::fmt;

use rollscope_trace::Attr;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::error::RunError;
use crate::parts::rows::Rows;

/// Attributes in their order, doubles included.
struct AttrMap(Vec<(Box<str>, Attr)>);

struct AttrValue(Attr);

struct AttrRef<'a>(&'a Attr);

/// An object; nothing when there are no attributes.
pub(crate) fn to_json(attrs: &[(Box<str>, Attr)]) -> Option<String> {
    if attrs.is_empty() {
        return None;
    }
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::new(&mut bytes);
    // Writing text and numbers into memory does not fail.
    serializer.collect_map(attrs.iter().map(|(name, value)| (name, AttrRef(value)))).ok()?;
    String::from_utf8(bytes).ok()
}

/// Reads [`to_json`].
pub(crate) fn from_json(text: Option<&str>, rows: &Rows) -> Result<Vec<(Box<str>, Attr)>, RunError> {
    let attrs = text.map(serde_json::from_str::<AttrMap>).transpose();
    let attrs = attrs.map_err(|_| rows.damaged("attributes that cannot be read"))?;
    Ok(attrs.map(|map| map.0).unwrap_or_default())
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
