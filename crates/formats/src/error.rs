//! What can go wrong with a foreign file.

use std::io;
use std::path::{Path, PathBuf};

use crate::pickle::PickleError;
use crate::tree::Tree;

/// Why a file cannot be read or written. Offsets are from the file's begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The system does not read or write it.
    #[error("cannot read or write {path}")]
    Io {
        /// Why.
        source: io::Error,
        /// Which file.
        path: PathBuf,
    },
    /// It is none of the formats that are known.
    #[error("neither a file of torch.save with a rollout nor lines of JSON that are known: {path}")]
    Unknown {
        /// Which file.
        path: PathBuf,
    },
    /// It is cut, damaged, or made to do harm.
    #[error("{what}, at byte {offset} of {path}")]
    Damaged {
        /// What is wrong.
        what: String,
        /// Where.
        offset: u64,
        /// Which file.
        path: PathBuf,
    },
    /// It is a file of torch without what a rollout's dump holds.
    #[error("no dump of a rollout, it has no {missing}: {path}")]
    NoDump {
        /// What it lacks.
        missing: &'static str,
        /// Which file.
        path: PathBuf,
    },
    /// A line of it cannot be read.
    #[error("{what}, in line {line} (byte {offset}) of {path}")]
    Line {
        /// What is wrong.
        what: String,
        /// From 1.
        line: u64,
        /// Where in the file: where the line begins, or where in it JSON ends.
        offset: u64,
        /// Which file.
        path: PathBuf,
    },
    /// Whoever takes the records failed.
    #[error("cannot take what was read")]
    Sink {
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A member that is not what it must be; where it stands is told around it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` is {found}, and {wanted} is wanted")]
pub(crate) struct WrongField {
    field: String,
    found: String,
    wanted: &'static str,
}

/// So much of a value is shown.
const MAX_SHOWN_CHARS: usize = 40;

// === impl WrongField ===

impl WrongField {
    pub(crate) fn new(field: &str, found: &impl Tree, wanted: &'static str) -> Self {
        Self { field: field.to_owned(), found: shown(found), wanted }
    }
}

/// A value in an error's text.
fn shown(value: &impl Tree) -> String {
    if value.each_element(&mut |_| {}) {
        return "a list".to_owned();
    }
    if value.scalar().is_none() && value.each_member(&mut |_, _| {}) {
        return "a dictionary".to_owned();
    }
    let text = value.to_json().to_string();
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

// === impl FormatError ===

impl FormatError {
    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { source, path: path.to_owned() }
    }

    pub(crate) fn pickle(path: &Path, begin: u64, error: PickleError) -> Self {
        Self::damaged(path, begin + error.offset as u64, &error.fault)
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: &(impl ToString + ?Sized)) -> Self {
        Self::Damaged { what: what.to_string(), offset, path: path.to_owned() }
    }

    /// For a sink that fails.
    pub fn sink(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Sink { source: source.into() }
    }
}
