//! What is asked and answered in words, kept for the profile where `--record-text` says so, and only then.
//!
//! Each kind of text has a limit for a request, which the samples of a batch share. What is beyond is left out, and the
//! profile says of which.

use rollscope_trace::Attr;
use rollscope_wire::{Chunks, Output, Words, read_outputs};

/// The prompts of a request, and how its reply is to be read.
#[derive(Debug)]
pub(crate) struct Texts {
    /// One, or one for each prompt of a batch; none where they are token ids.
    pub(crate) prompts: Vec<Words>,
    pub(crate) share: Share,
}

/// How much is kept of each text of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    limit_bytes: usize,
    /// Samples of the request.
    samples: usize,
}

/// What is heard of a stream of events. Workers send with each event of `/generate` all there is so far, or, if they
/// were told to, only what is new; OpenAI's routes always do the latter. What is new is put together; where the last event
/// has it all, nothing is kept.
#[derive(Debug)]
pub(crate) struct Hearing {
    share: Share,
    manner: Manner,
    samples: Vec<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    output: Output,
    tokens: usize,
}

/// What an event tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Not known: one event says nothing of it.
    Unknown,
    Everything,
    News,
}

// === impl Texts ===

impl Texts {
    /// Bytes that they hold.
    pub(crate) fn bytes(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.text.len()).sum()
    }

    /// The prompt of a sample: those of one prompt stand beside each other.
    pub(crate) fn prompt(&self, sample: usize) -> Option<&Words> {
        self.prompts.get(sample * self.prompts.len() / self.share.samples)
    }
}

// === impl Share ===

impl Share {
    pub(crate) fn new(limit_bytes: usize, samples: usize) -> Self {
        let samples = samples.max(1);
        Self { limit_bytes: limit_bytes / samples, samples }
    }

    pub(crate) fn limit_bytes(self) -> usize {
        self.limit_bytes
    }

    /// What a reply says of each sample.
    pub(crate) fn read(self, reply: &Chunks) -> Vec<Output> {
        let mut outputs = Vec::new();
        for (number, output) in read_outputs(reply, self.limit_bytes, self.samples) {
            if outputs.len() <= number {
                outputs.resize_with(number + 1, Output::default);
            }
            outputs[number] = output;
        }
        outputs
    }

    /// What a payload says of the one sample that it belongs to.
    pub(crate) fn read_one(self, payload: &Chunks) -> Output {
        read_outputs(payload, self.limit_bytes, self.samples)
            .pop()
            .map(|(_, output)| output)
            .unwrap_or_default()
    }
}

// === impl Hearing ===

impl Hearing {
    pub(crate) fn new(share: Share) -> Self {
        Self { share, manner: Manner::Unknown, samples: Vec::new() }
    }

    pub(crate) fn share(&self) -> Share {
        self.share
    }

    /// Takes an event's payload.
    pub(crate) fn event(&mut self, payload: &Chunks) {
        if self.manner == Manner::Everything {
            return;
        }
        let limit_bytes = self.share.limit_bytes;
        for (number, output) in read_outputs(payload, limit_bytes, self.share.samples) {
            if self.samples.len() <= number {
                self.samples.resize_with(number + 1, Heard::default);
            }
            let heard = &mut self.samples[number];
            if self.manner == Manner::Unknown {
                self.manner = heard.manner_by(&output);
            }
            if self.manner == Manner::Everything {
                self.samples = Vec::new();
                return;
            }
            heard.tokens += output.tokens.unwrap_or(0);
            heard.output.append(&output, limit_bytes);
        }
    }

    /// What it was altogether; nothing where the last event of each sample tells it.
    pub(crate) fn heard(self) -> Option<Vec<Output>> {
        let outputs = self.samples.into_iter().map(|heard| heard.output);
        (self.manner != Manner::Everything).then(|| outputs.collect())
    }
}

// === impl Heard ===

impl Heard {
    /// What a further event makes known.
    fn manner_by(&self, next: &Output) -> Manner {
        if next.is_choice {
            return Manner::News;
        }
        // Of the tokens so far either all stand in it, or those that were not told before.
        if let (Some(told), Some(so_far), 1..) = (next.tokens, next.completion_tokens, self.tokens) {
            let new = so_far.saturating_sub(self.tokens);
            return if told.abs_diff(so_far) < told.abs_diff(new) {
                Manner::Everything
            } else {
                Manner::News
            };
        }
        let (before, text) = (&self.output.text.text, &next.text.text);
        match text.strip_prefix(before.as_str()) {
            _ if before.is_empty() => Manner::Unknown,
            Some(_) => Manner::Everything,
            None => Manner::News,
        }
    }
}

/// A sample's texts as attributes of its profile.
pub(crate) fn attrs(prompt: Option<Words>, output: Option<Output>) -> Vec<(Box<str>, Attr)> {
    let mut attrs: Vec<(Box<str>, Attr)> = Vec::new();
    let mut cut = Vec::new();
    let (output, logprobs) = output.map(|output| (output.text, output.logprobs)).unzip();
    for (name, words, [before, after], mark) in [
        ("prompt_text", prompt, ["", ""], "…"),
        ("output_text", output, ["", ""], "…"),
        // A list that ends early is a list all the same.
        ("output_token_logprobs", logprobs, ["[", "]"], ""),
    ] {
        let Some(Words { text, is_cut }) = words else { continue };
        if text.is_empty() && !is_cut {
            continue;
        }
        let mark = if is_cut { mark } else { "" };
        attrs.push((name.into(), format!("{before}{text}{mark}{after}").into()));
        if is_cut {
            cut.push(name);
        }
    }
    if !cut.is_empty() {
        attrs.push(("texts_cut".into(), cut.join(", ").into()));
    }
    attrs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(events: &[&str]) -> Option<(String, String)> {
        let mut hearing = Hearing::new(Share::new(100, 1));
        for event in events {
            hearing.event(&Chunks::from(event.as_bytes().to_vec()));
        }
        let output = hearing.heard()?.into_iter().next().unwrap_or_default();
        Some((output.text.text, output.logprobs.text))
    }

    #[test]
    fn news_is_put_together_and_the_whole_story_is_left_to_its_last_event() {
        let event = |text: &str, ids: &str, so_far: usize| {
            let list: Vec<_> = ids.split(',').map(|id| format!("[-1,{id},null]")).collect();
            let list = list.join(",");
            format!(
                r#"{{"text":"{text}","output_ids":[{ids}],"meta_info":{{"completion_tokens":{so_far},"output_token_logprobs":[{list}]}}}}"#
            )
        };
        let all = [event("1", "1", 1), event("11", "1,1", 2), event("111", "1,1,1", 3)];
        assert_eq!(heard(&all.each_ref().map(String::as_str)), None);
        let news = [event("1", "1", 1), event("1", "1", 2), event("12", "1,2", 4)];
        let expected = ("1112".to_owned(), "[-1,1,null],[-1,1,null],[-1,1,null],[-1,2,null]".to_owned());
        assert_eq!(heard(&news.each_ref().map(String::as_str)), Some(expected));
        // Without counts the texts themselves tell.
        assert_eq!(heard(&[r#"{"text":"a"}"#, r#"{"text":"ab"}"#, r#"{"text":"abc"}"#]), None);
        let told = heard(&[r#"{"text":""}"#, r#"{"text":"a"}"#, r#"{"text":"b"}"#, r#"{"text":""}"#]);
        assert_eq!(told.unwrap().0, "ab");
        let delta = |text| format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#);
        let deltas = [delta("a"), delta("a"), delta("ab"), r#"{"choices":[],"usage":{}}"#.to_owned()];
        assert_eq!(heard(&deltas.each_ref().map(String::as_str)).unwrap().0, "aaab");
    }

    #[test]
    fn a_batch_shares_the_limit_and_what_is_cut_says_so() {
        let share = Share::new(8, 2);
        let outputs = share.read(&Chunks::from(r#"[{"text":"abcdef"},{"text":"abc"},{"text":"no sample"}]"#));
        assert_eq!(outputs.len(), 2);
        let text = |text: &str| Attr::from(text);
        let prompt = Words { text: "p".to_owned(), is_cut: false };
        let expected =
            [("prompt_text", text("p")), ("output_text", text("abcd…")), ("texts_cut", text("output_text"))];
        assert_eq!(
            attrs(Some(prompt), Some(outputs[0].clone())),
            expected.map(|(name, value)| (name.into(), value))
        );
        assert_eq!(attrs(None, Some(outputs[1].clone())), [("output_text".into(), text("abc"))]);
        // A list without its end is one all the same, and nothing that was said is nothing.
        let logprobs = Words { text: "[-1,7,null]".to_owned(), is_cut: true };
        let cut = Output { logprobs, ..Output::default() };
        let name = "output_token_logprobs";
        let expected = [(name, text("[[-1,7,null]]")), ("texts_cut", text(name))];
        assert_eq!(attrs(None, Some(cut)), expected.map(|(name, value)| (name.into(), value)));
        assert_eq!(attrs(Some(Words::default()), Some(Output::default())), []);
        assert_eq!(attrs(None, None), []);
    }
}
