//! What is asked in words: the prompts of a request, each cut at a limit.

use crate::chunks::Chunks;
use crate::cursor::{Cursor, Kind};
use crate::error::Malformed;
use crate::scalar::Scalar;
use crate::texts::{Words, read_words};

/// Reads a prompt: a text, a list of texts, or a list of messages, which become one text that names who speaks. Token ids
/// are no text. What is malformed ends it.
pub(crate) fn read_prompts(source: &Chunks, at: usize, limit_bytes: usize, is_chat: bool) -> Vec<Words> {
    let (mut cursor, mut prompts) = (Cursor::at(source, at), Vec::new());
    let _malformed = match cursor.kind() {
        Ok(Kind::Text) => read_words(&mut cursor, limit_bytes).map(|words| prompts.extend(words)),
        Ok(Kind::Array) if is_chat => {
            let mut talk = Words::default();
            let read = cursor.elements(|cursor| read_message(cursor, &mut talk, limit_bytes));
            prompts.push(talk);
            read.map(drop)
        }
        Ok(Kind::Array) => {
            let read = cursor.elements(|cursor| {
                prompts.extend(read_words(cursor, limit_bytes)?);
                Ok(())
            });
            read.map(drop)
        }
        _ => Ok(()),
    };
    prompts
}

/// `{"role": …, "content": …}`, the content a text or a list of parts of which some are texts.
fn read_message(cursor: &mut Cursor<'_>, talk: &mut Words, limit_bytes: usize) -> Result<(), Malformed> {
    let (mut role, mut said) = (String::new(), Words::default());
    let read = cursor.members(|cursor, member| {
        match (&*member.name, cursor.kind()?) {
            (b"role", Kind::Text) => {
                if let Some(Scalar::Text(name)) = cursor.scalar()? {
                    role = name.into_owned();
                }
            }
            (b"content", Kind::Text) => said = read_words(cursor, limit_bytes)?.unwrap_or_default(),
            (b"content", Kind::Array) => {
                cursor.elements(|cursor| read_part(cursor, &mut said, limit_bytes))?;
            }
            _ => {
                cursor.skip()?;
            }
        }
        Ok(())
    });
    let separator = if talk.text.is_empty() { "" } else { "\n\n" };
    let said = Words { text: format!("{separator}{role}: {}", said.text), ..said };
    talk.append_words(&said, limit_bytes);
    read.map(drop)
}

fn read_part(cursor: &mut Cursor<'_>, said: &mut Words, limit_bytes: usize) -> Result<(), Malformed> {
    if cursor.kind()? != Kind::Object {
        return cursor.skip().map(drop);
    }
    cursor.members(|cursor, member| {
        match (&*member.name, cursor.kind()?) {
            (b"text", Kind::Text) => {
                let words = read_words(cursor, limit_bytes)?.unwrap_or_default();
                said.append_words(&words, limit_bytes);
            }
            _ => {
                cursor.skip()?;
            }
        }
        Ok(())
    })?;
    Ok(())
}
