//! What is answered in words: the texts of replies and their tokens' log-probabilities, each cut at a limit.

use std::ops::Range;

use crate::chunks::Chunks;
use crate::cursor::{Cursor, Kind};
use crate::error::Malformed;
use crate::scalar::{Scalar, is_strict, unescape};

/// A text as far as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Its beginning, or all of it.
    pub text: String,
    /// There was more.
    pub is_cut: bool,
}

/// What a reply, or an event of a streamed one, says of one sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// `text`, or the text of OpenAI's choice.
    pub text: Words,
    /// Of each token `[logprob, id, text]` in JSON, with commas in between; `null` stands for what is not told.
    pub logprobs: Words,
    /// Tokens that stand here one by one.
    pub tokens: Option<usize>,
    /// `completion_tokens`: those of the sample so far.
    pub completion_tokens: Option<usize>,
    /// Whether it is OpenAI's choice.
    pub is_choice: bool,
}

/// Reads what a reply says of its samples, each with its number: its place in a batch, its `index` in a stream, or that
/// of OpenAI's choice. Of a reply that is malformed or was cut, what stands before is told; samples beyond so many are not.
pub fn read_outputs(source: &Chunks, limit_bytes: usize, samples: usize) -> Vec<(usize, Output)> {
    let mut reader = Reader { source, limit_bytes, samples, outputs: Vec::new() };
    let mut cursor = Cursor::new(source);
    let mut count = 0;
    let _malformed = match cursor.kind() {
        Ok(Kind::Array) => cursor.elements(|cursor| {
            count += 1;
            reader.element(cursor, count - 1)
        }),
        Ok(_) => reader.element(&mut cursor, 0).map(|()| 0..0),
        Err(malformed) => Err(malformed),
    };
    reader.outputs.retain(|(number, _)| *number < samples);
    reader.outputs
}

struct Reader<'a> {
    source: &'a Chunks,
    limit_bytes: usize,
    samples: usize,
    outputs: Vec<(usize, Output)>,
}

// === impl Words ===

impl Words {
    /// Puts more at its end, up to a limit of the whole.
    pub fn append(&mut self, more: &str, limit_bytes: usize) {
        if self.is_cut {
            return;
        }
        let kept = more.floor_char_boundary(limit_bytes.saturating_sub(self.text.len()));
        self.text.push_str(&more[..kept]);
        self.is_cut = kept < more.len();
    }

    /// The same with what may itself be cut.
    pub fn append_words(&mut self, more: &Self, limit_bytes: usize) {
        self.append(&more.text, limit_bytes);
        self.is_cut |= more.is_cut;
    }
}

// === impl Output ===

impl Output {
    /// Puts what a later event adds at its end.
    pub fn append(&mut self, more: &Self, limit_bytes: usize) {
        self.text.append_words(&more.text, limit_bytes);
        self.append_tokens(&more.logprobs.text, limit_bytes);
        self.logprobs.is_cut |= more.logprobs.is_cut;
    }

    /// Tokens are kept whole, or not at all.
    fn append_tokens(&mut self, entries: &str, limit_bytes: usize) {
        let Words { text, is_cut } = &mut self.logprobs;
        if *is_cut || entries.is_empty() {
            return;
        }
        if text.len() + usize::from(!text.is_empty()) + entries.len() > limit_bytes {
            *is_cut = true;
            return;
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(entries);
    }
}

// === impl Reader ===

impl<'a> Reader<'a> {
    /// A sample as SGLang has it; or OpenAI's reply, whose choices are samples.
    fn element(&mut self, cursor: &mut Cursor<'a>, number: usize) -> Result<(), Malformed> {
        let place = self.outputs.len();
        if place >= self.samples {
            return cursor.skip().map(drop);
        }
        self.outputs.push((number, Output::default()));
        let mut has_choices = false;
        let read = cursor.members(|cursor, member| {
            let kind = cursor.kind()?;
            match (&*member.name, kind) {
                (b"text", Kind::Text) => self.outputs[place].1.text = self.words(cursor)?,
                (b"output_ids", Kind::Array) => self.outputs[place].1.tokens = Some(count(cursor)?),
                (b"index", Kind::Literal) => self.number(cursor, place)?,
                (b"meta_info", Kind::Object) => self.meta_info(cursor, place)?,
                (b"choices", Kind::Array) => {
                    has_choices = true;
                    // Its own place is none of a choice's.
                    let most = place + 1 + self.samples;
                    cursor.elements(|cursor| self.choice(cursor, most))?;
                }
                _ => {
                    cursor.skip()?;
                }
            }
            Ok(())
        });
        if has_choices {
            self.outputs.remove(place);
        }
        read.map(drop)
    }

    fn meta_info(&mut self, cursor: &mut Cursor<'a>, place: usize) -> Result<(), Malformed> {
        cursor.members(|cursor, member| {
            match (&*member.name, cursor.kind()?) {
                (b"output_token_logprobs", Kind::Array) => {
                    let mut tokens = 0;
                    self.outputs[place].1.logprobs = Words::default();
                    let listed = cursor.elements(|cursor| {
                        tokens += 1;
                        self.token(cursor, place)
                    });
                    self.outputs[place].1.logprobs.is_cut |= listed.is_err();
                    listed?;
                    let told = &mut self.outputs[place].1.tokens;
                    *told = told.or(Some(tokens));
                }
                (b"completion_tokens", Kind::Literal) => {
                    self.outputs[place].1.completion_tokens = whole_number(cursor)?;
                }
                _ => {
                    cursor.skip()?;
                }
            }
            Ok(())
        })?;
        Ok(())
    }

    /// A choice of OpenAI's, whole or by what an event adds to it.
    fn choice(&mut self, cursor: &mut Cursor<'a>, most: usize) -> Result<(), Malformed> {
        let place = self.outputs.len();
        if place >= most {
            return cursor.skip().map(drop);
        }
        self.outputs.push((0, Output { is_choice: true, ..Output::default() }));
        cursor.members(|cursor, member| {
            match (&*member.name, cursor.kind()?) {
                (b"index", Kind::Literal) => self.number(cursor, place)?,
                (b"text", Kind::Text) => self.outputs[place].1.text = self.words(cursor)?,
                (b"message" | b"delta", Kind::Object) => {
                    cursor.members(|cursor, member| {
                        match (&*member.name, cursor.kind()?) {
                            (b"content", Kind::Text) => self.outputs[place].1.text = self.words(cursor)?,
                            _ => {
                                cursor.skip()?;
                            }
                        }
                        Ok(())
                    })?;
                }
                (b"logprobs", Kind::Object) => self.choice_logprobs(cursor, place)?,
                _ => {
                    cursor.skip()?;
                }
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Chat completions have a list of objects, completions two lists beside each other.
    fn choice_logprobs(&mut self, cursor: &mut Cursor<'a>, place: usize) -> Result<(), Malformed> {
        let (mut texts, mut logprobs, limit_bytes) = (Vec::new(), Vec::new(), self.limit_bytes);
        let skip_into = |cursor: &mut Cursor<'a>, ranges: &mut Vec<Range<usize>>| {
            let value = cursor.skip()?;
            // Each takes more than a byte of what is kept.
            if ranges.len() <= limit_bytes {
                ranges.push(value);
            }
            Ok(())
        };
        cursor.members(|cursor, member| {
            match (&*member.name, cursor.kind()?) {
                (b"content", Kind::Array) => {
                    cursor.elements(|cursor| {
                        let (mut text, mut logprob) = (None, None);
                        cursor.members(|cursor, member| {
                            let value = cursor.skip()?;
                            match &*member.name {
                                b"token" => text = Some(value),
                                b"logprob" => logprob = Some(value),
                                _ => {}
                            }
                            Ok(())
                        })?;
                        self.entry(place, [logprob, None, text]);
                        Ok(())
                    })?;
                }
                (b"tokens", Kind::Array) => {
                    cursor.elements(|cursor| skip_into(cursor, &mut texts))?;
                }
                (b"token_logprobs", Kind::Array) => {
                    cursor.elements(|cursor| skip_into(cursor, &mut logprobs))?;
                }
                _ => {
                    cursor.skip()?;
                }
            }
            Ok(())
        })?;
        for (text, logprob) in texts.into_iter().zip(logprobs) {
            self.entry(place, [Some(logprob), None, Some(text)]);
        }
        Ok(())
    }

    /// An entry as SGLang has it: `[logprob, id, text]`.
    fn token(&mut self, cursor: &mut Cursor<'a>, place: usize) -> Result<(), Malformed> {
        if cursor.kind()? != Kind::Array || self.outputs[place].1.logprobs.is_cut {
            return cursor.skip().map(drop);
        }
        let (mut parts, mut part) = ([None, None, None], 0);
        cursor.elements(|cursor| {
            let value = cursor.skip()?;
            if let Some(known) = parts.get_mut(part) {
                *known = Some(value);
            }
            part += 1;
            Ok(())
        })?;
        self.entry(place, parts);
        Ok(())
    }

    fn entry(&mut self, place: usize, parts: [Option<Range<usize>>; 3]) {
        let mut entry = String::from("[");
        for (number, part) in parts.into_iter().enumerate() {
            if number > 0 {
                entry.push(',');
            }
            let raw = part.map(|range| self.source.gather(range)).unwrap_or_default();
            entry.push_str(strict_scalar(&raw).unwrap_or("null"));
        }
        entry.push(']');
        self.outputs[place].1.append_tokens(&entry, self.limit_bytes);
    }

    fn number(&mut self, cursor: &mut Cursor<'a>, place: usize) -> Result<(), Malformed> {
        if let Some(number) = whole_number(cursor)? {
            self.outputs[place].0 = number;
        }
        Ok(())
    }

    fn words(&self, cursor: &mut Cursor<'a>) -> Result<Words, Malformed> {
        Ok(read_words(cursor, self.limit_bytes)?.unwrap_or_default())
    }
}

/// A string, of which no more is unescaped than is kept; nothing of what is none.
pub(crate) fn read_words(cursor: &mut Cursor<'_>, limit_bytes: usize) -> Result<Option<Words>, Malformed> {
    /// The longest escape is a pair of surrogates.
    const ESCAPE_BYTES: usize = 12;
    if cursor.kind()? != Kind::Text {
        cursor.skip()?;
        return Ok(None);
    }
    let range = cursor.skip()?;
    let inside = range.start + 1..range.end - 1;
    // A cut may go through an escape or a character: what is left of it goes too.
    let first = inside.len().min(limit_bytes);
    for kept in (first.saturating_sub(ESCAPE_BYTES)..=first).rev() {
        let raw = cursor.source().gather(inside.start..inside.start + kept);
        let is_cut = kept < inside.len();
        let Ok(bytes) = unescape(raw, inside.start) else { continue };
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        if is_cut {
            text.truncate(text.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
        }
        return Ok(Some(Words { text, is_cut }));
    }
    Ok(Some(Words { text: String::new(), is_cut: true }))
}

fn count(cursor: &mut Cursor<'_>) -> Result<usize, Malformed> {
    let mut count = 0;
    cursor.elements(|cursor| {
        count += 1;
        cursor.skip().map(drop)
    })?;
    Ok(count)
}

fn whole_number(cursor: &mut Cursor<'_>) -> Result<Option<usize>, Malformed> {
    Ok(match cursor.scalar()? {
        Some(Scalar::Number(number)) if number >= 0.0 => Some(number as usize),
        _ => None,
    })
}

/// A number or a string as it stands, if it is what any JSON reader takes.
fn strict_scalar(raw: &[u8]) -> Option<&str> {
    std::str::from_utf8(raw).ok().filter(|text| is_strict(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(body: &str, limit_bytes: usize) -> Vec<(usize, Output)> {
        let whole = read_outputs(&Chunks::from(body.to_owned().into_bytes()), limit_bytes, 4);
        let bytes = body.as_bytes().iter().map(|byte| bytes::Bytes::copy_from_slice(&[*byte]));
        assert_eq!(read_outputs(&bytes.collect(), limit_bytes, 4), whole, "{body} byte by byte");
        whole
    }

    fn said(body: &str, limit_bytes: usize) -> Vec<(usize, String, String)> {
        let of = |(number, output): (usize, Output)| (number, output.text.text, output.logprobs.text);
        outputs(body, limit_bytes).into_iter().map(of).collect()
    }

    #[test]
    fn a_reply_says_a_text_and_its_tokens() {
        let one = r#"{"meta_info":{"completion_tokens":2,"queue_time":NaN,"output_token_logprobs":[[-0.5,7,"\n"],[NaN,8,null]]},"text":"a\u00e4\"","output_ids":[7,8]}"#;
        let entries = r#"[-0.5,7,"\n"],[null,8,null]"#;
        assert_eq!(said(one, 100), [(0, "aä\"".to_owned(), entries.to_owned())]);
        let [(_, output)] = &outputs(one, 100)[..] else { panic!("one sample") };
        assert_eq!((output.tokens, output.completion_tokens), (Some(2), Some(2)));
        assert!(!output.text.is_cut && !output.logprobs.is_cut);
        let batch = said(&format!(r#"[{{"text":"x"}},{one},{{"text":null}}]"#), 100);
        let numbers: Vec<_> = batch.iter().map(|(number, text, _)| (*number, text.as_str())).collect();
        assert_eq!(numbers, [(0, "x"), (1, "aä\""), (2, "")]);
        assert_eq!(said(r#"{"index":3,"text":"x"}"#, 9)[0].0, 3);
        // Of what was cut, what stands before.
        assert_eq!(
            said(r#"{"text":"x","meta_info":{"output_token_logprobs":[[-1,2,null],[-"#, 99)[0].2,
            "[-1,2,null]"
        );
        assert!(outputs(r#"{"meta_info":{"output_token_logprobs":[[-1,2,null],[-"#, 99)[0].1.logprobs.is_cut);
        assert_eq!(said("no reply", 9), [(0, String::new(), String::new())]);
    }

    #[test]
    fn openais_choices_are_samples() {
        let chat = r#"{"choices":[
            {"index":1,"message":{"role":"assistant","content":"b"},"logprobs":null},
            {"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.25,"top_logprobs":[]}]}}],"usage":{}}"#;
        let expected = [(1, "b", ""), (0, "a", r#"[-0.25,null,"a"]"#)];
        let told = said(chat, 100);
        assert_eq!(told.iter().map(|(n, text, list)| (*n, &**text, &**list)).collect::<Vec<_>>(), expected);
        let completion =
            r#"{"choices":[{"text":"ab","logprobs":{"token_logprobs":[null,-1e-3],"tokens":["a","b"]}}]}"#;
        assert_eq!(said(completion, 100)[0].2, r#"[null,null,"a"],[-1e-3,null,"b"]"#);
        assert_eq!(said(r#"{"choices":[],"usage":{}}"#, 9), []);
        // More than there can be.
        let many = |element| [element; 9].join(",");
        assert_eq!(said(&format!("[{}]", many("{}")), 9).len(), 4);
        assert_eq!(said(&format!(r#"{{"choices":[{}]}}"#, many("{}")), 9).len(), 4);
        assert_eq!(said(&format!(r#"{{"choices":[{}]}}"#, many(r#"{"index":7}"#)), 9), []);
    }

    #[test]
    fn texts_are_cut_between_characters_and_lists_between_tokens() {
        for (text, limit, kept) in [
            ("abcdef", 3, "abc"),
            ("abc", 3, "abc"),
            ("abä", 3, "ab"),
            (r"ab\nd", 3, "ab"),
            (r"ab\\\\", 3, "ab"),
            (r"\u0061\u0062", 7, "a"),
            (r"a\ud83d\ude00", 9, "a"),
            ("äöü", 1, ""),
        ] {
            let [(_, output)] = &outputs(&format!(r#"{{"text":"{text}"}}"#), limit)[..] else {
                panic!("{text}")
            };
            assert_eq!((&*output.text.text, output.text.is_cut), (kept, kept != text), "{text}");
        }
        let list = r#"{"meta_info":{"output_token_logprobs":[[-1,2,null],[-1,3,null],[-1,4,null]]}}"#;
        let [(_, output)] = &outputs(list, 25)[..] else { panic!("one sample") };
        assert_eq!(
            (&*output.logprobs.text, output.logprobs.is_cut, output.tokens),
            ("[-1,2,null],[-1,3,null]", true, Some(3))
        );
    }
}
