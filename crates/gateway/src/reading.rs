//! What replies say of themselves: reports for the profile, and whether the sample failed.

use rollscope_trace::{Report, Scalar};
use rollscope_wire::{Chunks, Element, Malformed, Reply, Scalar as WireScalar};

/// What a reply says.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// One a sample.
    pub(crate) reports: Vec<Report>,
    /// Why it counts as failed although its status is good.
    pub(crate) failure: Option<String>,
}

/// What a stream of events has said so far: the last word on each sample.
#[derive(Debug)]
pub(crate) struct LastWords {
    /// By sample.
    payloads: Vec<Option<Chunks>>,
    /// `[DONE]` was seen.
    pub(crate) is_done: bool,
}

// === impl Reading ===

impl Reading {
    /// Of a reply.
    pub(crate) fn of(reply: &Reply<'_>) -> Self {
        let mut reading = Self::default();
        for element in reply.elements() {
            reading.add(element);
        }
        reading
    }

    /// Of a body; one that is no reply says nothing.
    pub(crate) fn of_body(body: &Chunks) -> Self {
        Reply::scan(body).map(|reply| Self::of(&reply)).unwrap_or_default()
    }

    fn add(&mut self, element: &Element<'_>) {
        let report = report(element);
        if element.is_error() {
            self.failure.get_or_insert_with(|| "the reply is an error".to_owned());
        } else if element.is_aborted() {
            let message = report.finish.as_ref().and_then(|finish| finish.message.as_deref());
            let sentence =
                message.map_or_else(|| "aborted".to_owned(), |message| format!("aborted: {message}"));
            self.failure.get_or_insert(sentence);
        }
        self.reports.push(report);
    }
}

/// What a worker reports of a sample.
fn report(element: &Element<'_>) -> Report {
    let pairs = element.pairs();
    Report::from_pairs(pairs.iter().map(|(name, value)| (&**name, scalar(value))))
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
    /// Of so many samples.
    pub(crate) fn new(samples: usize) -> Self {
        Self { payloads: vec![None; samples.max(1)], is_done: false }
    }

    /// Whether an event must be read to tell whose it is.
    pub(crate) fn wants_index(&self) -> bool {
        self.payloads.len() > 1
    }

    /// Takes an event's payload, which belongs to this sample.
    pub(crate) fn note(&mut self, index: usize, payload: Chunks) {
        if let Some(last) = self.payloads.get_mut(index) {
            *last = Some(payload);
        }
    }

    /// What the stream said in the end, and whether it said all it had to say: its last mark, or a finish reason or an
    /// error for each sample.
    pub(crate) fn read(&self) -> (Reading, bool) {
        let mut reading = Reading::default();
        let mut is_finished = true;
        for payload in &self.payloads {
            let reply: Option<Result<Reply<'_>, Malformed>> = payload.as_ref().map(Reply::scan);
            let element = reply.as_ref().and_then(|reply| reply.as_ref().ok()?.elements().first());
            is_finished &= element.is_some_and(|element| element.is_finished() || element.is_error());
            match element {
                Some(element) => reading.add(element),
                None => reading.reports.push(Report::default()),
            }
        }
        (reading, is_finished || self.is_done)
    }
}

#[cfg(test)]
mod tests {
    use rollscope_trace::FinishKind;

    use super::*;

    #[test]
    fn an_abort_is_a_failure_with_the_workers_words() {
        let body = Chunks::from(
            r#"[{"meta_info":{"finish_reason":{"type":"stop"},"prompt_tokens":3}},
                {"meta_info":{"finish_reason":{"type":"abort","message":"no room","status_code":500}}}]"#,
        );
        let reading = Reading::of_body(&body);
        assert_eq!(reading.failure.as_deref(), Some("aborted: no room"));
        let kinds: Vec<_> = reading
            .reports
            .iter()
            .map(|report| report.finish.as_ref().map(|finish| finish.kind.clone()))
            .collect();
        assert_eq!(kinds, [Some(FinishKind::Stop), Some(FinishKind::Abort)]);
        assert_eq!(Reading::of_body(&Chunks::from("no JSON")).reports, []);
    }

    #[test]
    fn a_stream_is_finished_by_its_mark_or_by_every_samples_finish() {
        let finished = r#"{"meta_info":{"finish_reason":{"type":"stop"}}}"#;
        let mut words = LastWords::new(2);
        assert!(!words.read().1);
        words.note(0, finished.into());
        words.note(7, finished.into());
        assert!(!words.read().1);
        words.note(1, r#"{"error":{"message":"x"}}"#.into());
        let (reading, is_finished) = words.read();
        assert!(is_finished);
        assert_eq!((reading.reports.len(), reading.failure.as_deref()), (2, Some("the reply is an error")));
        let mut words = LastWords::new(1);
        words.is_done = true;
        assert!(words.read().1);
    }
}
