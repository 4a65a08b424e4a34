//! What replies say of themselves: reports for the profile, and whether the sample failed.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use rollscope_trace::{Measure, Report, ReportReader, Scalar};
use rollscope_wire::{
    Chunks, Dialect, Element, Event, Malformed, Output, Reply, Scalar as WireScalar, read_pairs,
};

use crate::facts::Facts;
use crate::texts::{Hearing, Share};

/// What a reply says.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// For the profile.
    pub(crate) said: Said,
    /// Why it counts as failed although its status is good.
    pub(crate) failure: Option<String>,
}

/// What a worker says of each sample, as a rule not read yet: that is done when the request is over and its client has
/// gone on.
#[derive(Debug, Default)]
pub(crate) enum Said {
    #[default]
    Nothing,
    /// In a reply.
    Reply(Chunks),
    /// In the last event of each sample.
    Events(Vec<Option<Chunks>>),
    /// In a reply that was too large to be kept for it, or in events that belong together.
    Read(Vec<Report>, Vec<Output>),
}

/// What a stream of events has said so far: the last word on each sample.
#[derive(Debug)]
pub(crate) struct LastWords {
    /// By sample.
    words: Vec<Option<Word>>,
    /// `[DONE]` was seen.
    is_done: bool,
    /// An event that says something was seen. Comments, which keep a connection open, are no tokens.
    has_payload: bool,
    ends: Ends,
    /// Whether events have OpenAI's form, in which the last one is seldom the one that tells of a failure.
    is_openai: bool,
    /// The first failure that an event told of.
    failure: Option<String>,
    /// What is said in words, if that is recorded.
    hearing: Option<Hearing>,
}

/// Whether it is known of a batch which samples have not ended, where the stream has by its last mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// No event says whose it is.
    Unnamed,
    Named,
    /// The last event of a sample may not have been read.
    Unread,
}

/// The last word on a sample.
#[derive(Debug)]
struct Word {
    payload: Chunks,
    /// Nothing if it has not been read.
    end: Option<SampleEnd>,
}

/// What a word tells of its sample's end.
#[derive(Clone, Debug, Default)]
struct SampleEnd {
    /// It has a finish reason, or is an error.
    is_over: bool,
    /// It says itself that it has none.
    is_unfinished: bool,
    failure: Option<String>,
}

/// A larger reply is read at once instead of being kept to be read later.
const MAX_KEPT_BYTES: usize = 64 << 10;

// === impl Reading ===

impl Reading {
    /// Of a reply; with `texts`, what it says in words too.
    pub(crate) fn of(reply: &Reply<'_>, texts: Option<Share>) -> Self {
        let source = reply.source();
        let said = if source.len() > MAX_KEPT_BYTES {
            Said::Read(reports(reply), texts.map(|share| share.read(source)).unwrap_or_default())
        } else {
            Said::Reply(source.clone())
        };
        Self { said, failure: reply.elements().iter().find_map(failure) }
    }

    /// Of a body; one that has not the form of a reply is an error, and one that is malformed in its inside says nothing.
    pub(crate) fn of_body(body: &Chunks, texts: Option<Share>) -> Result<Self, Malformed> {
        if body.len() <= MAX_KEPT_BYTES && !may_tell_failure(body) {
            Reply::check(body)?;
            return Ok(Self { said: Said::Reply(body.clone()), failure: None });
        }
        match Reply::scan(body) {
            Ok(reply) => Ok(Self::of(&reply, texts)),
            Err(_) => Reply::check(body).map(|()| Self::default()),
        }
    }

    /// Adds what was said in words in a reply of which only the abridgement is kept.
    pub(crate) fn with_outputs(self, outputs: Vec<Output>) -> Self {
        let (reports, _) = self.said.read(None);
        Self { said: Said::Read(reports, outputs), failure: self.failure }
    }
}

/// Whether a reply may say that it failed: that it does not is mostly certain without reading it.
fn may_tell_failure(body: &Chunks) -> bool {
    // A word can also be written with escapes, or lie in two pieces.
    static WORDS: LazyLock<[Finder<'static>; 3]> =
        LazyLock::new(|| [&b"abort"[..], b"error", b"\\u"].map(Finder::new));
    let is_one_piece = body.pieces().nth(1).is_none();
    !is_one_piece || body.pieces().any(|piece| WORDS.iter().any(|word| word.find(piece).is_some()))
}

/// Why a sample counts as failed.
fn failure(element: &Element<'_>) -> Option<String> {
    if element.is_error() {
        return Some("the reply is an error".to_owned());
    }
    element.is_aborted().then(|| match report(element).finish.and_then(|finish| finish.message) {
        Some(message) => format!("aborted: {message}"),
        None => "aborted".to_owned(),
    })
}

fn reports(reply: &Reply<'_>) -> Vec<Report> {
    reply.elements().iter().map(report).collect()
}

/// What a worker reports of a sample.
fn report(element: &Element<'_>) -> Report {
    let mut reader = ReportReader::default();
    element.read(|name, value| reader.take(name, scalar(&value)));
    reader.finish()
}

/// What a worker reports of each sample of a reply; nothing of what is none.
fn read_reports(body: &Chunks) -> Vec<Report> {
    let mut readers: Vec<ReportReader> = Vec::with_capacity(1);
    let read = read_pairs(body, |sample, name, value| {
        if readers.len() <= sample {
            readers.resize_with(sample + 1, ReportReader::default);
        }
        readers[sample].take(name, scalar(&value));
    });
    let Ok(samples) = read else { return Vec::new() };
    // Those of which nothing is said are samples too.
    readers.resize_with(samples, ReportReader::default);
    readers.into_iter().map(ReportReader::finish).collect()
}

// === impl Said ===

impl Said {
    /// Reads it: one report a sample, and, with `texts`, what is said of each in words.
    pub(crate) fn read(self, texts: Option<Share>) -> (Vec<Report>, Vec<Output>) {
        match self {
            Self::Nothing => (Vec::new(), Vec::new()),
            Self::Reply(body) => {
                (read_reports(&body), texts.map(|share| share.read(&body)).unwrap_or_default())
            }
            Self::Events(payloads) => {
                let report = |payload: &Chunks| read_reports(payload).into_iter().next();
                let report = |payload: &Option<Chunks>| payload.as_ref().and_then(report).unwrap_or_default();
                let output = |share: Share| {
                    let read = move |payload: &Option<Chunks>| {
                        payload.as_ref().map(|payload| share.read_one(payload))
                    };
                    payloads.iter().map(read).map(Option::unwrap_or_default).collect()
                };
                (payloads.iter().map(report).collect(), texts.map(output).unwrap_or_default())
            }
            Self::Read(reports, outputs) => (reports, outputs),
        }
    }

    /// How many tokens were generated for the first sample, if that is told.
    pub(crate) fn completion_tokens(&self) -> Option<f64> {
        let body = match self {
            Self::Nothing => return None,
            Self::Reply(body) => body,
            Self::Events(payloads) => payloads.first()?.as_ref()?,
            Self::Read(reports, _) => return reports.first()?.measures.good(Measure::CompletionTokens),
        };
        let mut tokens = None;
        let _malformed = read_pairs(body, |sample, name, value| {
            if let (0, "completion_tokens", WireScalar::Number(told)) = (sample, name, value) {
                tokens = Some(told);
            }
        });
        tokens.filter(|tokens| tokens.is_finite())
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Read(_, outputs) => {
                outputs.iter().map(|output| output.text.text.len() + output.logprobs.text.len()).sum()
            }
            Self::Reply(body) => body.len(),
            Self::Events(payloads) => payloads.iter().flatten().map(Chunks::len).sum(),
        }
    }
}

fn scalar<'a>(value: &'a WireScalar<'_>) -> Scalar<'a> {
    match value {
        WireScalar::Null => Scalar::Null,
        WireScalar::Bool(value) => Scalar::Bool(*value),
        WireScalar::Number(value) => Scalar::Number(*value),
        WireScalar::Text(value) => Scalar::Text(value),
    }
}

// === impl LastWords ===

impl LastWords {
    /// Of a reply to what was asked; with `texts`, what it says in words too.
    pub(crate) fn new(facts: &Facts, texts: Option<Share>) -> Self {
        let words = (0..facts.shape.samples().max(1)).map(|_| None).collect();
        let is_openai = facts.dialect != Some(Dialect::Generate);
        let hearing = texts.map(Hearing::new);
        Self {
            words,
            is_done: false,
            has_payload: false,
            ends: Ends::Unnamed,
            is_openai,
            failure: None,
            hearing,
        }
    }

    /// Whether an event must be read to tell whose it is.
    pub(crate) fn wants_index(&self) -> bool {
        self.words.len() > 1
    }

    /// Takes note that an event has come; gives its payload if it is to be read: that of the stream's last mark is not, and
    /// one that stands in several lines can not.
    pub(crate) fn see(&mut self, event: &Event) -> Option<Chunks> {
        if event.is_done() {
            self.is_done = true;
            return None;
        }
        let payload = event.payload();
        if payload.is_some() {
            self.has_payload = true;
        } else if event.has_data() {
            self.see_unread();
        }
        payload
    }

    /// Takes note of an event that can not be read, such as one that was too large to be held.
    pub(crate) fn see_unread(&mut self) {
        (self.has_payload, self.ends) = (true, Ends::Unread);
    }

    /// Whether there was more than comments and a last mark.
    pub(crate) fn has_payload(&self) -> bool {
        self.has_payload
    }

    /// Takes an event's payload, which belongs to this sample.
    pub(crate) fn note(&mut self, index: usize, payload: Chunks) {
        self.hear(&payload);
        if self.is_openai
            && may_tell_failure(&payload)
            && let Ok(reply) = Reply::scan(&payload)
        {
            self.note_failure(reply.elements().iter().find_map(failure));
        }
        self.put(index, Word { payload, end: None });
    }

    /// The same of a payload that has been read, so that it need not be once more.
    pub(crate) fn note_read(&mut self, element: &Element<'_>, payload: Chunks) {
        self.hear(&payload);
        let end = SampleEnd::by(element);
        self.note_failure(end.failure.clone());
        if self.ends == Ends::Unnamed && element.index().is_some() {
            self.ends = Ends::Named;
        }
        self.put(element.index().unwrap_or(0), Word { payload, end: Some(end) });
    }

    fn note_failure(&mut self, failure: Option<String>) {
        self.failure = self.failure.take().or(failure);
    }

    fn hear(&mut self, payload: &Chunks) {
        if let Some(hearing) = &mut self.hearing {
            hearing.event(payload);
        }
    }

    fn put(&mut self, index: usize, word: Word) {
        if let Some(last) = self.words.get_mut(index) {
            *last = Some(word);
        }
    }

    /// What the stream said in the end, and whether it said all it had to say: its last mark behind an event at least, or a
    /// finish reason or an error for each sample. One that ends by its mark without having finished a sample of a batch has
    /// failed. To be asked once.
    pub(crate) fn read(&mut self) -> (Reading, bool) {
        let (mut failed, mut is_finished) = (self.failure.take(), true);
        let mut unfinished = None;
        let (mut reports, mut outputs) = (Vec::new(), Vec::new());
        let share = self.hearing.as_ref().map(Hearing::share);
        let heard = self.hearing.take().and_then(Hearing::heard);
        // What was put together of all events is more than what the last one tells.
        let share = share.filter(|_| heard.is_none());
        let kept_bytes: usize = self.words.iter().flatten().map(|word| word.payload.len()).sum();
        let is_kept = kept_bytes <= MAX_KEPT_BYTES && heard.is_none();
        for (index, word) in self.words.iter().enumerate() {
            let word = word.as_ref();
            let known = word.and_then(|word| word.end.clone());
            let unread = word.filter(|_| !is_kept || known.is_none());
            let reply: Option<Result<Reply<'_>, Malformed>> = unread.map(|word| Reply::scan(&word.payload));
            let element = reply.as_ref().and_then(|reply| reply.as_ref().ok()?.elements().first());
            let end = known.or_else(|| element.map(SampleEnd::by)).unwrap_or_default();
            is_finished &= end.is_over;
            failed = failed.or(end.failure);
            unfinished = unfinished.or((end.is_unfinished || word.is_none()).then_some(index));
            if !is_kept {
                reports.push(element.map(report).unwrap_or_default());
                let output = share.zip(word).map(|(share, word)| share.read_one(&word.payload));
                outputs.push(output.unwrap_or_default());
            }
        }
        let payloads =
            || self.words.iter().map(|word| word.as_ref().map(|word| word.payload.clone())).collect();
        let said =
            if is_kept { Said::Events(payloads()) } else { Said::Read(reports, heard.unwrap_or(outputs)) };
        let is_ended = self.is_done && self.has_payload;
        if is_ended && self.ends == Ends::Named && self.wants_index() && !self.is_openai {
            let tell = |index| format!("the stream ended without the finish reason of sample {index}");
            failed = failed.or(unfinished.map(tell));
        }
        (Reading { said, failure: failed }, is_finished || is_ended)
    }
}

// === impl SampleEnd ===

impl SampleEnd {
    fn by(element: &Element<'_>) -> Self {
        let is_over = element.is_finished() || element.is_error();
        Self { is_over, is_unfinished: !is_over && element.is_unfinished(), failure: failure(element) }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rollscope_trace::{FinishKind, Join};
    use rollscope_wire::{EventSplitter, Part, Shape};

    use super::*;

    fn words_of(samples: usize) -> LastWords {
        let mut facts = Facts::new(Join::default());
        (facts.shape, facts.dialect) = (Shape::Batch(samples), Some(Dialect::Generate));
        LastWords::new(&facts, None)
    }

    #[test]
    fn an_abort_is_a_failure_with_the_workers_words() {
        let body = Chunks::from(
            r#"[{"meta_info":{"finish_reason":{"type":"stop"},"prompt_tokens":3}},
                {"meta_info":{"finish_reason":{"type":"abort","message":"no room","status_code":500}}}]"#,
        );
        let reading = Reading::of_body(&body, None).unwrap();
        assert_eq!(reading.failure.as_deref(), Some("aborted: no room"));
        let kinds: Vec<_> = reading
            .said
            .read(None)
            .0
            .iter()
            .map(|report| report.finish.as_ref().map(|finish| finish.kind.clone()))
            .collect();
        assert_eq!(kinds, [Some(FinishKind::Stop), Some(FinishKind::Abort)]);
        assert!(Reading::of_body(&Chunks::from("no JSON"), None).is_err());
        assert_eq!(Reading::of_body(&Chunks::from("{no JSON}"), None).unwrap().said.read(None).0, []);
        for failing in
            [r#"{"error":"x"}"#, r#"{"\u0065rror":"x"}"#, r#"{"meta_info":{"finish_reason":"ab\u006frt"}}"#]
        {
            let (begin, end) = failing.split_at(5);
            let pieces: Chunks = [begin, end].map(|part| Bytes::from(part.as_bytes())).into_iter().collect();
            assert!(Reading::of_body(&Chunks::from(failing), None).unwrap().failure.is_some(), "{failing}");
            assert!(Reading::of_body(&pieces, None).unwrap().failure.is_some(), "{failing} in two pieces");
        }
    }

    #[test]
    fn a_stream_is_finished_by_its_mark_or_by_every_samples_finish() {
        let finished = r#"{"meta_info":{"finish_reason":{"type":"stop"}}}"#;
        let mut words = words_of(2);
        assert!(!words.read().1);
        words.note(0, finished.into());
        words.note(7, finished.into());
        assert!(!words.read().1);
        words.note(1, r#"{"error":{"message":"x"}}"#.into());
        let (reading, is_finished) = words.read();
        assert!(is_finished);
        assert_eq!(
            (reading.said.read(None).0.len(), reading.failure.as_deref()),
            (2, Some("the reply is an error"))
        );
        for (stream, is_finished) in [
            (&b"data: {}\n\ndata: [DONE]\n\n"[..], true),
            (b"data: [DONE]\n\n", false),
            (b": alive\n\ndata: [DONE]\n\n", false),
            (b"data: {\ndata: }\n\ndata: [DONE]\n\n", true),
            (b"data: {\ndata: }\n\n", false),
            (b"data: {}\n\n", false),
            (b"", false),
        ] {
            let (mut words, mut splitter) = (words_of(1), EventSplitter::new(1000));
            splitter.push(Bytes::from_static(stream));
            while let Some(Part::Event(event)) = splitter.next_part() {
                words.see(&event);
            }
            assert_eq!(words.read().1, is_finished, "{}", String::from_utf8_lossy(stream));
        }
    }

    #[test]
    fn a_large_last_word_is_read_at_once_instead_of_being_kept() {
        let text = "x".repeat(MAX_KEPT_BYTES);
        let large = format!(r#"{{"text":"{text}","meta_info":{{"finish_reason":{{"type":"length"}}}}}}"#);
        let mut words = words_of(2);
        words.note(1, Chunks::from(large.into_bytes()));
        let said = words.read().0.said;
        assert_eq!(said.bytes(), 0);
        let (reports, _) = said.read(None);
        let finish = reports.last().and_then(|report| report.finish.clone());
        assert_eq!((reports.len(), finish.unwrap().kind), (2, FinishKind::Length));
    }
}
