//! Text to tokens and back, whole or token by token.

use std::path::Path;

use tokenizers::DecoderWrapper;

use crate::error::ModelError;

/// The checkpoint's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Tokens are bytes, whatever is before and behind them.
    is_byte_level: bool,
}

/// Turns one sequence's tokens into text as they come, never showing part of a character.
///
/// The concatenation of what [`TextStream::push`] and [`TextStream::finish`] return is the decoded text of all tokens.
/// A character that is spread over several tokens appears with its last one. Bytes that are no UTF-8 appear as U+FFFD,
/// late by at most three of them: until more follows they may yet become a character.
///
/// The text of a token depends on its neighbours, so a window of the latest tokens is decoded on each push and what
/// is beyond the already returned text is new. Where tokens are bytes, the window begins anew after each whole character:
/// decoding a window costs far more than all else that a scheduler does for a token.
#[derive(Debug)]
pub struct TextStream {
    skip_special_tokens: bool,
    window: Vec<u32>,
    /// Bytes of the window's text that were returned before.
    returned_bytes: usize,
}

/// A character has at most four bytes, so at most three may wait for the rest.
const HELD_CHARS: usize = 3;
/// Tokens after which the window is cut.
const WINDOW_TOKENS: usize = 16;
/// What is kept of it. A U+FFFD stands for at most three tokens, so all that is held back lies in these.
const KEPT_TOKENS: usize = 3 * HELD_CHARS;

// === impl Tokenizer ===

impl Tokenizer {
    pub(crate) fn parse(json: &[u8], path: &Path) -> Result<Self, ModelError> {
        match tokenizers::Tokenizer::from_bytes(json) {
            Ok(inner) => {
                let is_byte_level = matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
                Ok(Self { inner, is_byte_level })
            }
            Err(source) => Err(ModelError::Tokenizer { path: path.to_owned(), source }),
        }
    }

    /// The tokens of a text, with the special tokens that the tokenizer adds (such as begin-of-sequence).
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let encoding = self.inner.encode_fast(text, true).map_err(ModelError::Encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The tokens of a text alone. Special tokens that are written in it count as such.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let encoding = self.inner.encode_fast(text, false).map_err(ModelError::Encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens. Ids beyond the vocabulary and bytes that are no UTF-8 are not errors: the former have no text,
    /// the latter become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, ModelError> {
        self.inner.decode(ids, skip_special_tokens).map_err(ModelError::Decode)
    }
}

// === impl TextStream ===

impl TextStream {
    /// A stream at its beginning.
    pub fn new(skip_special_tokens: bool) -> Self {
        Self { skip_special_tokens, window: Vec::new(), returned_bytes: 0 }
    }

    /// Takes the next token and returns the text that is now complete, often empty or longer than one character.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<String, ModelError> {
        // One without text would take the place of a byte where the window is cut.
        let is_cut = tokenizer.is_byte_level && !self.window.is_empty();
        if is_cut && tokenizer.decode(&[token], self.skip_special_tokens)?.is_empty() {
            return Ok(String::new());
        }
        self.window.push(token);
        let text = tokenizer.decode(&self.window, self.skip_special_tokens)?;
        let settled_bytes = settled(&text).len();
        let fresh = text.get(self.returned_bytes..settled_bytes).unwrap_or_default().to_owned();
        self.returned_bytes = self.returned_bytes.max(settled_bytes);
        if tokenizer.is_byte_level && settled_bytes == text.len() {
            self.window.clear();
            self.returned_bytes = 0;
        } else if self.window.len() >= WINDOW_TOKENS {
            self.window.drain(..WINDOW_TOKENS - KEPT_TOKENS);
            let kept = tokenizer.decode(&self.window, self.skip_special_tokens)?;
            self.returned_bytes = kept.len().saturating_sub(text.len() - settled_bytes);
        }
        Ok(fresh)
    }

    /// Ends the sequence and returns what was held back, as U+FFFD; the stream is at its beginning again.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, ModelError> {
        let text = tokenizer.decode(&self.window, self.skip_special_tokens)?;
        let rest = text.get(self.returned_bytes..).unwrap_or_default().to_owned();
        *self = Self::new(self.skip_special_tokens);
        Ok(rest)
    }
}

/// The part of a decoded text that more tokens will not change: all but up to three trailing U+FFFD.
fn settled(text: &str) -> &str {
    let mut rest = text;
    for _ in 0..HELD_CHARS {
        match rest.strip_suffix(char::REPLACEMENT_CHARACTER) {
            Some(shorter) => rest = shorter,
            None => break,
        }
    }
    rest
}
