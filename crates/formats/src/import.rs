//! Foreign files in: whatever the file is, out come records.

use std::collections::HashSet;
use std::error::Error;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use rollscope_trace::{Record, StepNumber, not_json};
use serde_json::Value as Json;

use crate::error::FormatError;
use crate::{sglang, slime, torch};

/// How to read a file.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The step that everything in it belongs to; what the file says where nothing is said here.
    pub step: Option<StepNumber>,
    /// Which of several rewards of a sample counts.
    pub reward_key: Option<String>,
    /// Which of them names the category of the sample.
    pub category_key: Option<String>,
    /// Its samples are an evaluation's; so are those of files that slime names as such.
    pub evaluation: bool,
}

/// What is to be told of a file beside its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportNotes {
    /// Lines that say what an earlier line says, which are passed over: dumps, requests and spans that are there twice.
    pub repeated_lines: u64,
    /// Samples whose trace cannot be read, wholly or in part.
    pub unreadable_traces: u64,
}

/// Takes what was read, record by record.
pub type Sink<'a> = dyn FnMut(Record) -> Result<(), FormatError> + 'a;

/// Reads a line of a file of lines that is of no format of others.
pub type OwnLine<'a> = dyn Fn(&[u8]) -> Result<Record, Box<dyn Error + Send + Sync>> + 'a;

/// Longest line that is read.
const MAX_LINE_BYTES: u64 = 1 << 30;

/// Reads a file of `torch.save`, or one with a line of JSON for each dump, request or record. `own_line` reads the
/// last kind.
pub fn import(
    path: &Path,
    options: &ImportOptions,
    own_line: &OwnLine<'_>,
    sink: &mut Sink<'_>,
) -> Result<ImportNotes, FormatError> {
    let mut head = Vec::new();
    let file = File::open(path).map_err(FormatError::io(path))?;
    file.take(64).read_to_end(&mut head).map_err(FormatError::io(path))?;
    if torch::is_torch(&head) {
        let unreadable_traces = slime::import_torch(path, options, sink)?;
        return Ok(ImportNotes { unreadable_traces, ..ImportNotes::default() });
    }
    match head.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => import_lines(path, options, own_line, sink),
        _ => Err(FormatError::Unknown { path: path.to_owned() }),
    }
}

/// What is wrong with a line, without the place: to the parser each line is the first.
fn json_fault(error: &serde_json::Error, line: &[u8]) -> String {
    let told = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let told = told.strip_suffix(&place).unwrap_or(&told);
    not_json(told, line, (error.line(), error.column().saturating_sub(1)))
}

fn import_lines(
    path: &Path,
    options: &ImportOptions,
    own_line: &OwnLine<'_>,
    sink: &mut Sink<'_>,
) -> Result<ImportNotes, FormatError> {
    let mut reader = BufReader::new(File::open(path).map_err(FormatError::io(path))?);
    let (mut line, mut number, mut offset) = (Vec::new(), 0, 0);
    let mut requests = sglang::Requests::new(options.step);
    let (mut notes, mut seen) = (ImportNotes::default(), HashSet::new());
    loop {
        line.clear();
        let read = (&mut reader).take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line);
        let length = read.map_err(FormatError::io(path))?;
        if length == 0 {
            return Ok(notes);
        }
        number += 1;
        let wrong = |what: String| FormatError::Line { what, line: number, offset, path: path.to_owned() };
        if length as u64 > MAX_LINE_BYTES {
            return Err(wrong(format!("longer than the {} MiB that a line may have", MAX_LINE_BYTES >> 20)));
        }
        if !line.trim_ascii().is_empty() {
            let value: Json = serde_json::from_slice(&line).map_err(|error| FormatError::Line {
                what: json_fault(&error, &line),
                line: number,
                offset: offset + (error.column() as u64).saturating_sub(1),
                path: path.to_owned(),
            })?;
            if !may_be_repeated(&value) && !seen.insert(hash_of(&value)) {
                notes.repeated_lines += 1;
            } else if let Some(unreadable) =
                slime::import_json(path, &&value, options, sink).map_err(|stop| stop.in_line(wrong))?
            {
                notes.unreadable_traces += unreadable;
            } else {
                let record = match requests.record(&value) {
                    Some(record) => record.map_err(|error| wrong(error.to_string())),
                    None => own_line(&line).map_err(|error| wrong(error.to_string())),
                };
                sink(record?)?;
            }
        }
        offset += length as u64;
    }
}

/// Whether a line may stand again with a meaning: what is known of a sample amends what an earlier line told.
fn may_be_repeated(line: &Json) -> bool {
    line.get("type").and_then(Json::as_str) == Some("sample")
}

/// The same for lines that say the same, however they are spaced and in whatever order their members are.
fn hash_of(line: &Json) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}
