//! What a pickle holds.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use super::MAX_DEPTH;

/// An object. Containers are shared and may grow after others refer to them, and so may hold themselves: whoever
/// walks through them bounds the depth.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
    Bytes(Rc<[u8]>),
    Node(Rc<Node>),
}

/// An object that holds others.
pub(crate) struct Node {
    content: RefCell<Content>,
    /// How deep it nests, as far as it was known when something was put into it.
    depth: Cell<u32>,
}

#[derive(Debug)]
pub(crate) enum Content {
    Tuple(Vec<Value>),
    List(Vec<Value>),
    Set(Vec<Value>),
    /// Keys and values in turn.
    Dict(Vec<Value>),
    /// A class or a function, by name.
    Global {
        module: Rc<str>,
        name: Rc<str>,
    },
    /// What a class or function would have made.
    Object(Box<Object>),
    /// What lies outside of the pickle, by its name there.
    Persistent(Value),
    /// A whole number beyond 64 bits, which nothing that is read here is.
    BigInt,
}

/// What was to be made: by what, of what, and what was to be set on it.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) class: Value,
    pub(crate) args: Value,
    pub(crate) state: Option<Value>,
}

/// So many bytes of a text weigh as much as a value.
const WEIGHED_BYTES: usize = 16;

// === impl Value ===

impl Value {
    pub(super) fn node(content: Content) -> Option<Self> {
        let depth = 1 + match &content {
            Content::Tuple(items) | Content::List(items) | Content::Set(items) | Content::Dict(items) => {
                deepest(items.iter())
            }
            Content::Object(object) => {
                deepest([&object.class, &object.args].into_iter().chain(&object.state))
            }
            Content::Persistent(name) => name.depth(),
            Content::Global { .. } | Content::BigInt => 0,
        };
        let node = Node { content: RefCell::new(content), depth: Cell::new(depth) };
        (depth <= MAX_DEPTH).then(|| Self::Node(Rc::new(node)))
    }

    fn depth(&self) -> u32 {
        if let Self::Node(node) = self { node.depth.get() } else { 0 }
    }

    pub(crate) fn text(&self) -> Option<&Rc<str>> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(crate) fn int(&self) -> Option<i64> {
        if let Self::Int(value) = self { Some(*value) } else { None }
    }

    /// A member of a dictionary, or of an object's state.
    pub(crate) fn get(&self, name: &str) -> Option<Self> {
        let Self::Node(node) = self else {
            return None;
        };
        let state = match &*node.content() {
            Content::Dict(items) => return find(items, name),
            Content::Object(object) => object.state.clone()?,
            _ => return None,
        };
        match &state {
            Self::Node(state) => match &*state.content() {
                Content::Dict(items) => find(items, name),
                // Members, and those of an object with slots.
                Content::Tuple(parts) => parts.iter().find_map(|part| part.dict_member(name)),
                _ => None,
            },
            _ => None,
        }
    }

    fn dict_member(&self, name: &str) -> Option<Self> {
        match self {
            Self::Node(node) => match &*node.content() {
                Content::Dict(items) => find(items, name),
                _ => None,
            },
            _ => None,
        }
    }

    /// The items of a list, tuple or set.
    pub(crate) fn items(&self) -> Option<Vec<Self>> {
        self.with_items(<[Self]>::to_vec)
    }

    /// The items of a list, tuple or set, where they are: what is shared is as long as the file, and to copy it each
    /// time that it is referred to would take the file's length squared.
    pub(crate) fn with_items<R>(&self, look: impl FnOnce(&[Self]) -> R) -> Option<R> {
        let Self::Node(node) = self else {
            return None;
        };
        match &*node.content() {
            Content::Tuple(items) | Content::List(items) | Content::Set(items) => Some(look(items)),
            _ => None,
        }
    }

    /// What it costs to walk through all of it, each part as often as it is reached; more than `most` once it is
    /// known to be.
    pub(crate) fn weight(&self, most: usize) -> usize {
        let mut weight = 0;
        self.weigh(MAX_DEPTH, most, &mut weight);
        weight
    }

    fn weigh(&self, depth: u32, most: usize, weight: &mut usize) {
        *weight = weight.saturating_add(match self {
            Self::Text(text) => 1 + text.len() / WEIGHED_BYTES,
            Self::Bytes(bytes) => 1 + bytes.len() / WEIGHED_BYTES,
            _ => 1,
        });
        let Self::Node(node) = self else {
            return;
        };
        if *weight > most || depth == 0 {
            return;
        }
        let mut weigh = |value: &Self| {
            // Not even looked at one by one any more.
            let go_on = *weight <= most;
            if go_on {
                value.weigh(depth - 1, most, weight);
            }
            go_on
        };
        match &*node.content() {
            Content::Tuple(items) | Content::List(items) | Content::Set(items) | Content::Dict(items) => {
                items.iter().all(weigh);
            }
            Content::Object(object) => {
                [&object.class, &object.args].into_iter().chain(&object.state).all(weigh);
            }
            Content::Persistent(name) => {
                weigh(name);
            }
            Content::Global { .. } | Content::BigInt => {}
        }
    }

    /// Calls with each entry of a dictionary; false when it is none.
    pub(crate) fn each_entry(&self, mut take: impl FnMut(&Self, &Self)) -> bool {
        let Self::Node(node) = self else {
            return false;
        };
        let content = node.content();
        let Content::Dict(items) = &*content else {
            return false;
        };
        for (key, value) in pairs(items) {
            take(key, value);
        }
        true
    }

    /// Module and name of a class or function.
    pub(crate) fn global(&self) -> Option<(Rc<str>, Rc<str>)> {
        let Self::Node(node) = self else {
            return None;
        };
        match &*node.content() {
            Content::Global { module, name } => Some((module.clone(), name.clone())),
            _ => None,
        }
    }

    /// Module and name of what would have made an object, and its arguments.
    pub(crate) fn made_by(&self) -> Option<(Rc<str>, Rc<str>, Self)> {
        let Self::Node(node) = self else {
            return None;
        };
        match &*node.content() {
            Content::Object(object) => {
                object.class.global().map(|(module, name)| (module, name, object.args.clone()))
            }
            _ => None,
        }
    }
}

/// The keys of a dictionary's items with their values.
pub(crate) fn pairs(items: &[Value]) -> impl DoubleEndedIterator<Item = (&Value, &Value)> {
    items.as_chunks().0.iter().map(|[key, value]| (key, value))
}

fn find(items: &[Value], name: &str) -> Option<Value> {
    // The last one counts, as in Python.
    let found = pairs(items).rev().find(|(key, _)| key.text().is_some_and(|key| **key == *name));
    found.map(|(_, value)| value.clone())
}

/// The depth of the deepest.
pub(super) fn deepest<'a>(values: impl Iterator<Item = &'a Value>) -> u32 {
    values.map(Value::depth).max().unwrap_or(0)
}

// === impl Node ===

impl Node {
    pub(crate) fn content(&self) -> Ref<'_, Content> {
        self.content.borrow()
    }

    /// Changes the content, which then holds something of that depth too; false when it nests too deep.
    #[must_use]
    pub(super) fn change(&self, added: u32, change: impl FnOnce(&mut Content)) -> bool {
        let depth = self.depth.get().max(1 + added);
        self.depth.set(depth);
        change(&mut self.content.borrow_mut());
        depth <= MAX_DEPTH
    }

    /// Lets go of everything in it.
    pub(super) fn clear(&self) {
        drop(self.content.replace(Content::Tuple(Vec::new())));
    }
}

impl std::fmt::Debug for Node {
    /// Not what is in it, since that may be itself.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("depth", &self.depth).finish_non_exhaustive()
    }
}
