//! The text of a request's output as it grows, and where a stop string ends it.

use std::sync::Arc;

use rollscope_model::{ModelError, TextStream, Tokenizer};

use crate::request::Sampling;

/// Decodes tokens as they come and looks for stop strings.
///
/// What is shown never shrinks: text that may be the beginning of a stop string, and would then be cut, is held back
/// until it is clear.
#[derive(Debug)]
pub(crate) struct Text {
    stream: TextStream,
    decoded: String,
    /// Bytes of `decoded` that were shown.
    shown_bytes: usize,
    stops: Arc<[String]>,
    /// The stop string is part of the output.
    keeps_stop: bool,
    stopped: bool,
}

// === impl Text ===

impl Text {
    pub(crate) fn new(sampling: &Sampling) -> Self {
        Self {
            stream: TextStream::new(sampling.skip_special_tokens),
            decoded: String::new(),
            shown_bytes: 0,
            stops: Arc::clone(&sampling.stop),
            keeps_stop: sampling.no_stop_trim,
            stopped: false,
        }
    }

    /// Takes the next token. Returns the stop string that it completes, if any.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<Option<String>, ModelError> {
        let fresh = self.stream.push(tokenizer, token)?;
        Ok(self.append(&fresh))
    }

    /// The text that may be shown and was not yet.
    pub(crate) fn show(&mut self) -> String {
        let end = if self.stopped || self.keeps_stop { self.decoded.len() } else { self.held_from() };
        let fresh = self.decoded.get(self.shown_bytes..end).unwrap_or_default().to_owned();
        self.shown_bytes = self.shown_bytes.max(end);
        fresh
    }

    /// Ends the text. Returns what was held back.
    pub(crate) fn finish(&mut self, tokenizer: &Tokenizer) -> String {
        if !self.stopped {
            // Only bytes of an unfinished character can be missing; a tokenizer that fails on them has none to add.
            let rest = self.stream.finish(tokenizer).unwrap_or_default();
            self.append(&rest);
            self.stopped = true;
        }
        self.show()
    }

    fn append(&mut self, fresh: &str) -> Option<String> {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.decoded.len().saturating_sub(longest.saturating_sub(1));
        self.decoded.push_str(fresh);
        let from = self.decoded.floor_char_boundary(from);
        let tail = &self.decoded[from..];
        let found = self.stops.iter().filter_map(|stop| Some((tail.find(stop.as_str())?, stop)));
        let (at, stop) = found.min_by_key(|(at, _)| *at)?;
        self.stopped = true;
        if !self.keeps_stop {
            self.decoded.truncate(from + at);
        }
        Some(stop.clone())
    }

    /// Where the longest end of the text begins that a stop string may yet begin with.
    fn held_from(&self) -> usize {
        let held = self.stops.iter().flat_map(|stop| {
            let lengths = stop.char_indices().map(|(index, _)| index).skip(1);
            lengths.filter(|length| self.decoded.ends_with(&stop[..*length]))
        });
        self.decoded.len() - held.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use rollscope_model::Model;
    use rollscope_model::sampling::SamplingParams;

    use super::*;

    /// Feeds text to a request with these stop strings, byte by byte as the bundled tokenizer has it: what was shown after
    /// each token, and what stopped it.
    fn feed(text: &str, stops: &[&str], no_stop_trim: bool) -> (Vec<String>, Option<String>) {
        let model = Model::bundled().unwrap();
        let sampling = Sampling {
            params: SamplingParams::default(),
            penalties: None,
            seeded: false,
            min_new_tokens: 0,
            stop: stops.iter().map(|stop| (*stop).to_owned()).collect(),
            stop_token_ids: Arc::default(),
            skip_special_tokens: true,
            no_stop_trim,
        };
        let mut output = Text::new(&sampling);
        let mut shown = Vec::new();
        for byte in text.bytes() {
            let stop = output.push(model.tokenizer(), u32::from(byte)).unwrap();
            shown.push(output.show());
            if stop.is_some() {
                return (shown, stop);
            }
        }
        shown.push(output.finish(model.tokenizer()));
        (shown, None)
    }

    fn check(text: &str, stops: &[&str], shown: &str, stop: Option<&str>) {
        let (pieces, found) = feed(text, stops, false);
        assert_eq!((pieces.concat().as_str(), found.as_deref()), (shown, stop), "{text:?} {stops:?}");
    }

    #[test]
    fn a_stop_string_ends_the_text_and_is_cut() {
        check("12+3=15", &[], "12+3=15", None);
        check("12+3=15", &["="], "12+3", Some("="));
        check("12+3=15", &["+4", "3=1"], "12+", Some("3=1"));
        check("abab!", &["ab!"], "ab", Some("ab!"));
        check("aä€b", &["€"], "aä", Some("€"));
        check("ab", &["bc"], "ab", None);
        check("xyz", &["yz", "xyz"], "", Some("xyz"));
    }

    #[test]
    fn what_may_be_a_stop_string_is_held_back() {
        let (shown, _) = feed("1\n\n2\n3", &["\n\n\n"], false);
        assert_eq!(shown, ["1", "", "", "\n\n2", "", "\n3", ""]);
    }

    #[test]
    fn a_kept_stop_string_is_shown() {
        assert_eq!(feed("12=5", &["="], true), (vec!["1".into(), "2".into(), "=".into()], Some("=".into())));
    }

    #[test]
    fn characters_of_many_bytes_come_whole() {
        let (shown, _) = feed("a€", &[], false);
        assert_eq!(shown, ["a", "", "", "€", ""]);
    }
}
