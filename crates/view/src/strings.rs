//! Texts that many rows share, each once.

use std::collections::HashMap;

use serde::Serialize;

/// A text is cut after this many bytes: a page shows it in one line or a panel, and the whole is in the run.
const MAX_TEXT_BYTES: usize = 4096;

/// Texts by index. Serialised as the list.
#[derive(Debug, Default)]
pub(crate) struct Strings {
    list: Vec<Box<str>>,
    index: HashMap<Box<str>, u32>,
}

impl Strings {
    pub(crate) fn index(&mut self, text: &str) -> u32 {
        let text = cut(text);
        if let Some(index) = self.index.get(text) {
            return *index;
        }
        let index = self.list.len() as u32;
        self.list.push(text.into());
        self.index.insert(text.into(), index);
        index
    }
}

impl Serialize for Strings {
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
