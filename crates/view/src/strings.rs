//! Texts that many rows share, each once.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde::Serialize;

/// A text is cut after this many bytes: a page shows it in one line or a panel, and the whole is in the run.
const MAX_TEXT_BYTES: usize = 4096;

/// Texts by index. Serialised as the list.
#[derive(Debug, Default)]
pub(crate) struct Strings<'a> {
    list: Vec<&'a str>,
    index: HashMap<&'a str, u32, RandomState>,
}

impl<'a> Strings<'a> {
    /// With room for so many.
    pub(crate) fn with_capacity(count: usize) -> Self {
        let index = HashMap::with_capacity_and_hasher(count, RandomState::default());
        Self { list: Vec::with_capacity(count), index }
    }

    pub(crate) fn index(&mut self, text: &'a str) -> u32 {
        let (text, next) = (cut(text), self.list.len() as u32);
        let index = *self.index.entry(text).or_insert(next);
        if index == next {
            self.list.push(text);
        }
        index
    }
}

impl Serialize for Strings<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.list.serialize(serializer)
    }
}

pub(crate) fn cut(text: &str) -> &str {
    cut_at(text, MAX_TEXT_BYTES)
}

pub(crate) fn cut_at(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}
