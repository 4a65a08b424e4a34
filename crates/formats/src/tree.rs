//! One way to look at a value, be it of a pickle or of JSON.
//!
//! The model's attributes are scalars. A value that is none is kept as the text of its JSON under the attribute's
//! name with `:json` behind it, and comes back from there. What JSON cannot say of a number is
//! `{"float":"NaN"}`, `{"float":"inf"}` or `{"float":"-inf"}`.

use std::rc::Rc;

use rollscope_trace::Attr;
use serde_json::{Map, Value as Json, json};

use crate::pickle::{Content, MAX_DEPTH, Value as Pickled, pairs};

/// Behind the name of an attribute that holds JSON.
pub(crate) const JSON_MARK: &str = ":json";
/// Values within values that are kept; deeper ones are cut off.
const MAX_KEPT_DEPTH: u32 = 24;
const _: () = assert!(MAX_KEPT_DEPTH < MAX_DEPTH);
/// Values that one attribute may hold; what a pickle shares may otherwise be written any number of times.
const MAX_KEPT: u32 = 100_000;

/// A value that is neither a list nor a dictionary.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
}

/// A value of a foreign file.
pub(crate) trait Tree: Sized {
    /// A member of a dictionary or an object.
    fn member(&self, name: &str) -> Option<Self>;
    /// Nothing when it is a list or a dictionary.
    fn scalar(&self) -> Option<Scalar>;
    /// Calls with each element of a list; false when it is none.
    fn each_element(&self, take: &mut dyn FnMut(&Self)) -> bool;
    /// Calls with each member of a dictionary; false when it is none.
    fn each_member(&self, take: &mut dyn FnMut(&Rc<str>, &Self)) -> bool;
    /// As JSON.
    fn to_json(&self) -> Json;

    fn number(&self) -> Option<f64> {
        match self.scalar()? {
            Scalar::Int(value) => Some(value as f64),
            Scalar::Float(value) => Some(value),
            _ => None,
        }
    }

    /// A number, or a truth as Python computes with it.
    fn number_or_truth(&self) -> Option<f64> {
        match self.scalar()? {
            Scalar::Bool(value) => Some(f64::from(u8::from(value))),
            _ => self.number(),
        }
    }

    fn text(&self) -> Option<Rc<str>> {
        match self.scalar()? {
            Scalar::Text(text) => Some(text),
            _ => None,
        }
    }

    /// As an attribute of that name.
    fn attr(&self, name: &str) -> (Box<str>, Attr) {
        let value = match self.scalar() {
            Some(Scalar::Bool(value)) => Attr::Bool(value),
            Some(Scalar::Int(value)) => Attr::Int(value),
            Some(Scalar::Float(value)) => Attr::Float(value),
            Some(Scalar::Text(text)) => Attr::from(&*text),
            Some(Scalar::Null) | None => {
                return (format!("{name}{JSON_MARK}").into(), Attr::from(self.to_json().to_string()));
            }
        };
        (name.into(), value)
    }
}

/// An attribute as JSON: what [`Tree::attr`] was made of.
pub(crate) fn attr_json(name: &str, value: &Attr) -> (String, Json) {
    if let (Some(plain), Attr::Text(text)) = (name.strip_suffix(JSON_MARK), value)
        && let Ok(json) = serde_json::from_str(text)
    {
        return (plain.to_owned(), json);
    }
    let json = match value {
        Attr::Bool(value) => json!(value),
        Attr::Int(value) => json!(value),
        Attr::Float(value) => float_json(*value),
        Attr::Text(value) => json!(value),
    };
    (name.to_owned(), json)
}

/// A number as JSON, be it finite or not.
pub(crate) fn float_json(value: f64) -> Json {
    if value.is_finite() { json!(value) } else { json!({ "float": value.to_string() }) }
}

/// Reads [`float_json`].
fn json_float(members: &Map<String, Json>) -> Option<f64> {
    let text = members.get("float").filter(|_| members.len() == 1)?.as_str()?;
    text.parse().ok().filter(|value: &f64| !value.is_finite())
}

// === impl Scalar ===

impl Scalar {
    /// What Python takes for true.
    pub(crate) fn is_truthy(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.is_empty(),
        }
    }
}

// === impl Tree for a pickle's value ===

impl Tree for Pickled {
    fn member(&self, name: &str) -> Option<Self> {
        self.get(name)
    }

    fn scalar(&self) -> Option<Scalar> {
        Some(match self {
            Self::None => Scalar::Null,
            Self::Bool(value) => Scalar::Bool(*value),
            Self::Int(value) => Scalar::Int(*value),
            Self::Float(value) => Scalar::Float(*value),
            Self::Text(text) => Scalar::Text(text.clone()),
            Self::Bytes(_) => return None,
            // An enumeration's member is made of its value.
            Self::Node(node) => match &*node.content() {
                Content::Object(object) if object.state.is_none() => match &*object.args.items()? {
                    [Self::Text(text)] => Scalar::Text(text.clone()),
                    [Self::Int(value)] => Scalar::Int(*value),
                    _ => return None,
                },
                _ => return None,
            },
        })
    }

    fn each_element(&self, take: &mut dyn FnMut(&Self)) -> bool {
        let Self::Node(node) = self else {
            return false;
        };
        match &*node.content() {
            Content::List(items) | Content::Tuple(items) | Content::Set(items) => items.iter().for_each(take),
            _ => return false,
        }
        true
    }

    fn each_member(&self, take: &mut dyn FnMut(&Rc<str>, &Self)) -> bool {
        self.each_entry(|key, value| {
            if let Self::Text(key) = key {
                take(key, value);
            }
        })
    }

    fn to_json(&self) -> Json {
        pickled_json(self, 0, &mut 0)
    }
}

fn pickled_json(value: &Pickled, depth: u32, kept: &mut u32) -> Json {
    *kept += 1;
    if depth > MAX_KEPT_DEPTH || *kept > MAX_KEPT {
        return json!("…");
    }
    match value {
        Pickled::None => Json::Null,
        Pickled::Bool(value) => json!(value),
        Pickled::Int(value) => json!(value),
        Pickled::Float(value) => float_json(*value),
        Pickled::Text(text) => json!(&**text),
        Pickled::Bytes(bytes) => json!(format!("<{} bytes>", bytes.len())),
        Pickled::Node(node) => match &*node.content() {
            Content::Tuple(items) | Content::List(items) | Content::Set(items) => {
                items.iter().map(|item| pickled_json(item, depth + 1, kept)).collect()
            }
            Content::Dict(items) => {
                let member = |(key, value): (&Pickled, &Pickled)| {
                    let name = match pickled_json(key, depth + 1, kept) {
                        Json::String(name) => name,
                        other => other.to_string(),
                    };
                    (name, pickled_json(value, depth + 1, kept))
                };
                Json::Object(pairs(items).map(member).collect())
            }
            Content::Global { module, name } => json!(format!("<{module}.{name}>")),
            Content::Object(object) => match object.class.global() {
                Some((module, name)) => json!(format!("<{module}.{name} object>")),
                None => json!("<object>"),
            },
            Content::Persistent(_) => json!("<storage>"),
            Content::BigInt => json!("<large number>"),
        },
    }
}

// === impl Tree for JSON ===

impl Tree for &Json {
    fn member(&self, name: &str) -> Option<Self> {
        self.get(name)
    }

    fn scalar(&self) -> Option<Scalar> {
        Some(match self {
            Json::Null => Scalar::Null,
            Json::Bool(value) => Scalar::Bool(*value),
            Json::Number(number) => match number.as_i64() {
                Some(value) => Scalar::Int(value),
                // A whole number beyond 64 bits stays as it is written.
                None if number.is_u64() => return None,
                None => Scalar::Float(number.as_f64()?),
            },
            Json::String(text) => Scalar::Text(text.as_str().into()),
            Json::Object(members) => Scalar::Float(json_float(members)?),
            Json::Array(_) => return None,
        })
    }

    fn each_element(&self, take: &mut dyn FnMut(&Self)) -> bool {
        let Json::Array(items) = self else {
            return false;
        };
        for item in items {
            take(&item);
        }
        true
    }

    fn each_member(&self, take: &mut dyn FnMut(&Rc<str>, &Self)) -> bool {
        let Json::Object(members) = self else {
            return false;
        };
        for (name, value) in members {
            take(&name.as_str().into(), &value);
        }
        true
    }

    fn to_json(&self) -> Json {
        (*self).clone()
    }
}
