//! The carrier as slime writes it, version 1.

use std::collections::HashMap;
use std::rc::Rc;

use rollscope_trace::Attr;
use serde_json::{Map, Value as Json, json};

use crate::tree::{Scalar, Tree, attr_json, float_json};

/// The trace of a sample.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Carrier {
    pub(super) trace_id: Rc<str>,
    pub(super) sample_id: Scalar,
    pub(super) group_id: Scalar,
    pub(super) attempt: u32,
    pub(super) events: Vec<Event>,
    /// It holds something that these fields do not say.
    pub(super) odd: bool,
    /// Some of its events cannot be read.
    pub(super) is_cut: bool,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    pub(super) kind: EventKind,
    pub(super) name: Rc<str>,
    /// Seconds since the Unix epoch.
    pub(super) ts: f64,
    pub(super) attempt: u32,
    pub(super) span_id: Option<Rc<str>>,
    pub(super) parent: Option<Rc<str>>,
    pub(super) attrs: Vec<(Box<str>, Attr)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    Start,
    End,
    Point,
}

/// The version that is read and written.
const VERSION: i64 = 1;

// === impl Carrier ===

impl Carrier {
    /// Nothing when it is no carrier of this version.
    pub(super) fn of(tree: &impl Tree) -> Option<Self> {
        if tree.member("version")?.scalar()? != Scalar::Int(VERSION) {
            return None;
        }
        let scalar = |name: &str| tree.member(name).and_then(|value| value.scalar());
        let attempt = scalar("attempt");
        let mut carrier = Self {
            trace_id: tree.member("trace_id")?.text()?,
            sample_id: scalar("sample_id").unwrap_or(Scalar::Null),
            group_id: scalar("group_id").unwrap_or(Scalar::Null),
            attempt: attempt_of(attempt.as_ref()).unwrap_or(0),
            events: Vec::new(),
            odd: attempt_of(attempt.as_ref()).is_none(),
            is_cut: false,
        };
        let (mut events, mut odd, mut is_cut) = (Vec::new(), false, false);
        let is_list = tree.member("events")?.each_element(&mut |event| match Event::of(event, &carrier) {
            Some((event, event_odd)) => {
                events.push(event);
                odd |= event_odd;
            }
            None => is_cut = true,
        });
        (carrier.events, carrier.odd, carrier.is_cut) = (events, carrier.odd | odd | is_cut, is_cut);
        is_list.then_some(carrier)
    }

    pub(super) fn json(&self) -> Json {
        let events = self.events.iter().map(|event| event.json(self)).collect::<Vec<_>>();
        json!({
            "version": VERSION,
            "trace_id": &*self.trace_id,
            "events": events,
            "sample_id": id_json(&self.sample_id),
            "group_id": id_json(&self.group_id),
            "attempt": self.attempt,
        })
    }
}

fn attempt_of(value: Option<&Scalar>) -> Option<u32> {
    match value {
        Some(Scalar::Int(attempt)) => u32::try_from(*attempt).ok(),
        _ => None,
    }
}

/// An id as slime writes it.
fn id_json(id: &Scalar) -> Json {
    match id {
        Scalar::Null => Json::Null,
        Scalar::Bool(value) => json!(value),
        Scalar::Int(value) => json!(value),
        Scalar::Float(value) => float_json(*value),
        Scalar::Text(text) => json!(&**text),
    }
}

// === impl Event ===

impl Event {
    /// The event, and whether it holds more than its fields say.
    fn of<T: Tree>(tree: &T, carrier: &Carrier) -> Option<(Self, bool)> {
        let (mut kind, mut name, mut ts) = (None, None, None);
        let (mut attempt, mut span_id, mut parent, mut attrs) = (0, None, None, Vec::new());
        let (mut said, mut odd) = (0, false);
        tree.each_member(&mut |key, value: &T| match &**key {
            "type" => kind = value.text(),
            "name" => name = value.text(),
            "ts" => ts = value.number(),
            "span_id" => span_id = value.text(),
            "parent_span_id" => parent = value.text(),
            "attempt" => match attempt_of(value.scalar().as_ref()) {
                Some(number) => (attempt, said) = (number, said + 1),
                None => odd = true,
            },
            "attrs" => {
                value.each_member(&mut |name, value: &T| attrs.push(value.attr(name)));
            }
            "trace_id" => match value.text() {
                Some(id) if id == carrier.trace_id => said += 1,
                _ => odd = true,
            },
            "sample_id" if value.scalar().as_ref() == Some(&carrier.sample_id) => said += 1,
            "group_id" if value.scalar().as_ref() == Some(&carrier.group_id) => said += 1,
            _ => odd = true,
        });
        let kind = match &*kind? {
            "span_start" => EventKind::Start,
            "span_end" => EventKind::End,
            "event" => EventKind::Point,
            _ => return None,
        };
        let ts = ts.filter(|ts: &f64| ts.is_finite())?;
        let event = Self { kind, name: name?, ts, attempt, span_id, parent, attrs };
        Some((event, odd || said != 4))
    }

    fn json(&self, carrier: &Carrier) -> Json {
        let kind = match self.kind {
            EventKind::Start => "span_start",
            EventKind::End => "span_end",
            EventKind::Point => "event",
        };
        let mut members = Map::new();
        let mut put = |name: &str, value: Json| members.insert(name.to_owned(), value);
        put("type", json!(kind));
        put("name", json!(&*self.name));
        put("ts", json!(self.ts));
        put("trace_id", json!(&*carrier.trace_id));
        put("sample_id", id_json(&carrier.sample_id));
        put("group_id", id_json(&carrier.group_id));
        put("attempt", json!(self.attempt));
        if let Some(id) = &self.span_id {
            put("span_id", json!(&**id));
        }
        if let Some(id) = &self.parent {
            put("parent_span_id", json!(&**id));
        }
        if !self.attrs.is_empty() {
            let attrs = self.attrs.iter().map(|(name, value)| attr_json(name, value));
            put("attrs", Json::Object(attrs.collect()));
        }
        Json::Object(members)
    }

    /// The same, with ids of the one standing for ids of the other.
    pub(super) fn says_the_same(&self, other: &Self, ids: &HashMap<Rc<str>, Rc<str>>) -> bool {
        let stands_for = |id: &Option<Rc<str>>| id.as_ref().map(|id| ids.get(id).unwrap_or(id).clone());
        self.kind == other.kind
            && self.name == other.name
            && self.ts.to_bits() == other.ts.to_bits()
            && self.attempt == other.attempt
            && stands_for(&self.span_id) == other.span_id
            && stands_for(&self.parent) == other.parent
            && same_attrs(&self.attrs, &other.attrs)
    }
}

/// In whatever order; a whole number is the same as the fraction of its value.
fn same_attrs(one: &[(Box<str>, Attr)], other: &[(Box<str>, Attr)]) -> bool {
    let same = |(name, value): &(Box<str>, Attr)| {
        let found = other.iter().find(|(other, _)| other == name);
        found.is_some_and(|(_, other)| match (value, other) {
            (Attr::Float(a), Attr::Float(b)) => a.to_bits() == b.to_bits(),
            (Attr::Int(int), Attr::Float(float)) | (Attr::Float(float), Attr::Int(int)) => {
                (*int as f64).total_cmp(float).is_eq()
            }
            (a, b) => a == b,
        })
    };
    one.len() == other.len() && one.iter().all(same)
}
