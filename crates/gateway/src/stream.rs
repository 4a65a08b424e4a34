//! A stream of events passed on as they come, with what the prefill worker measured merged in.
//!
//! The client's first event is decode's first event; the prefill's reply is awaited nowhere but in front of an
//! event that would otherwise be the last to carry it, or that carries a list which is to be joined, and there for
//! at most `--merge-wait-secs`. A failure after the reply's head is one event that says so, and a cut.
//!
//! ```text
//! // Open => (Open | Cutting | Over)
//! // Cutting => Over
//! ```

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::Response;
use http::header::CONTENT_LENGTH;
use rollscope_trace::Outcome;
use rollscope_wire::{Chunks, Element, Event, EventSplitter, LogprobJoin, Part, Reply};

use crate::body::{BoxError, ReplyBody, pieces};
use crate::fault::Refusal;
use crate::flight::Flight;
use crate::leg::{Answer, LegBody};
use crate::outbound::end_to_end;
use crate::prefill::Prefill;
use crate::reading::{LastWords, Reading};
use crate::reply::{error_body, response};

/// A stream on its way.
pub(crate) struct EventRelay {
    flight: Arc<Flight>,
    head: http::response::Parts,
    body: LegBody,
    splitter: EventSplitter,
    /// Received and not looked at.
    parts: VecDeque<Part>,
    /// Ready for the client.
    out: VecDeque<Bytes>,
    /// What went out last may be the middle of an event.
    is_mid_event: bool,
    words: LastWords,
    /// Whether payloads are read: for how a sample ended, and for what the profile is to hold.
    is_read: bool,
    merge: Option<Merge>,
    stage: Stage,
}

/// The merge of a prefill reply into a stream.
struct Merge {
    prefill: Prefill,
    joins_logprobs: bool,
    /// By sample: its list has been joined in an earlier event.
    joined: Vec<bool>,
    holds: Hold,
    is_merged: bool,
    wait: Duration,
}

/// Which events are held for the prefill's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// One with a list to be joined, and a sample's last.
    ListOrLast,
    /// One with a list has been held; from now on only a sample's last.
    Last,
    /// It was held in vain.
    Nothing,
}

#[derive(Debug)]
enum Stage {
    Open,
    /// The error event is out.
    Cutting(Refusal),
    Over,
}

/// More of comments, such as a worker sends to keep a connection open, is not held back for the first event.
const MAX_PREAMBLE_BYTES: usize = 64 << 10;
/// Pieces that are gathered before they go out, and bytes of them that are copied together: each piece for itself would
/// cost a chunk of the reply.
const MAX_READY: usize = 64;
const MAX_JOINED_BYTES: usize = 16 << 10;

// === impl EventRelay ===

impl EventRelay {
    /// A stream whose head has come. With `is_read`, what it says of itself goes into the profile.
    pub(crate) fn new(flight: Arc<Flight>, answer: Answer, is_read: bool) -> Self {
        let limit_bytes = flight.core.options.startup().max_merge_bytes;
        Self {
            words: LastWords::new(&flight.facts, flight.text_share()),
            flight,
            is_read,
            head: answer.head,
            body: answer.body,
            splitter: EventSplitter::new(limit_bytes),
            parts: VecDeque::new(),
            out: VecDeque::new(),
            is_mid_event: false,
            merge: None,
            stage: Stage::Open,
        }
    }

    /// Waits for the first event with a payload, before which nothing is promised to the client.
    pub(crate) async fn first_event(&mut self) -> Result<(), Refusal> {
        let is_payload =
            |part: &Part| !matches!(part, Part::Event(event) if event.is_done() || !event.has_data());
        let (mut seen, mut held_bytes) = (0, 0);
        while !self.parts.iter().skip(seen).any(is_payload) && held_bytes <= MAX_PREAMBLE_BYTES {
            seen = self.parts.len();
            match self.body.next().await? {
                Some(received) => {
                    held_bytes += received.len();
                    self.splitter.push(received);
                    self.parts.extend(std::iter::from_fn(|| self.splitter.next_part()));
                }
                None => return Err(self.body.unfinished()),
            }
        }
        Ok(())
    }

    /// The stream as a reply, with the share of a prefill worker that is asked for from now on.
    pub(crate) fn into_response(mut self, prefill: Option<(Prefill, bool)>) -> Response<ReplyBody> {
        self.merge = prefill.map(|(mut prefill, joins_logprobs)| Merge {
            prefill: {
                prefill.set_free();
                prefill
            },
            joins_logprobs,
            joined: vec![false; self.flight.facts.shape.samples().max(1)],
            holds: if joins_logprobs { Hold::ListOrLast } else { Hold::Last },
            is_merged: false,
            wait: Duration::from_secs_f64(self.flight.core.options.startup().merge_wait_secs),
        });
        self.flight.answer(self.head.status.as_u16());
        let status = self.head.status;
        let mut headers = end_to_end(std::mem::take(&mut self.head.headers));
        headers.remove(CONTENT_LENGTH);
        let stream = unfold(Box::new(self), |mut relay| async move {
            let piece = relay.next().await?;
            Some((piece, relay))
        });
        response(status, headers, pieces(stream))
    }

    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            if !self.has_more_at_once()
                && let Some(piece) = self.take_ready()
            {
                if self.words.has_payload() {
                    self.flight.stamp_first_byte();
                }
                return Some(Ok(piece));
            }
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Open => {
                    self.stage = Stage::Open;
                    self.step().await;
                }
                Stage::Cutting(refusal) => {
                    // The server drops what it has not written when a body fails: let it write first.
                    tokio::task::yield_now().await;
                    return Some(Err(refusal.into()));
                }
                Stage::Over => return None,
            }
        }
    }

    /// Whether a part is there that goes out with what is ready, since it waits for nothing: events that came together.
    fn has_more_at_once(&mut self) -> bool {
        let may_wait = self.merge.as_ref().is_some_and(|merge| merge.prefill.is_live());
        let is_full = self.out.len() >= MAX_READY;
        if may_wait || is_full || !matches!(self.stage, Stage::Open) {
            return false;
        }
        while !self.has_part() {
            let Some(received) = self.body.received_piece() else { return false };
            self.splitter.push(received);
        }
        true
    }

    /// Whether a part has been received as a whole.
    fn has_part(&mut self) -> bool {
        if self.parts.is_empty() {
            self.parts.extend(self.splitter.next_part());
        }
        !self.parts.is_empty()
    }

    /// What is ready, as one piece unless it is large.
    fn take_ready(&mut self) -> Option<Bytes> {
        let first = self.out.pop_front()?;
        let mut bytes = first.len();
        let is_joined = |next: &&Bytes| {
            bytes += next.len();
            bytes <= MAX_JOINED_BYTES
        };
        let count = self.out.iter().take_while(is_joined).count();
        if count == 0 {
            return Some(first);
        }
        let mut joined = Vec::with_capacity(MAX_JOINED_BYTES.min(bytes));
        joined.extend_from_slice(&first);
        for next in self.out.drain(..count) {
            joined.extend_from_slice(&next);
        }
        Some(joined.into())
    }

    async fn step(&mut self) {
        if self.has_part()
            && let Some(part) = self.parts.pop_front()
        {
            return self.take(part).await;
        }
        match self.receive().await {
            Ok(Some(received)) => self.splitter.push(received),
            Ok(None) => self.conclude().await,
            Err(refusal) => {
                let (reading, _) = self.words.read();
                self.body.report(reading.said);
                self.cut(refusal);
            }
        }
    }

    /// The next piece of the stream, while the prefill's reply comes in.
    async fn receive(&mut self) -> Result<Option<Bytes>, Refusal> {
        match &mut self.merge {
            Some(merge) => merge.prefill.alongside(pin!(self.body.next())).await,
            None => self.body.next().await,
        }
    }

    async fn take(&mut self, part: Part) {
        self.is_mid_event = matches!(part, Part::Piece(_));
        let Part::Event(event) = part else {
            self.words.see_unread();
            return self.out.extend(part.into_raw());
        };
        let payload = self.words.see(&event).filter(|_| self.is_read);
        let Some(payload) = payload else { return self.out.extend(event.raw) };
        let is_merging = self.merge.as_ref().is_some_and(|merge| merge.prefill.is_merging());
        if !is_merging && !self.words.wants_index() {
            self.words.note(0, payload);
            return self.out.extend(event.raw);
        }
        let merged = match Reply::scan(&payload).as_ref().map(|reply| (reply, reply.elements())) {
            Ok((reply, [element])) => {
                let merged = match &mut self.merge {
                    Some(merge) => merge.apply(&event, reply, element).await,
                    None => None,
                };
                // Noted only now: a client that leaves while an event is held has not had it.
                self.words.note_read(element, payload.clone());
                merged
            }
            _ => None,
        };
        self.out.extend(merged.unwrap_or(event.raw));
    }

    /// The worker has ended the stream.
    async fn conclude(&mut self) {
        let splitter = std::mem::replace(&mut self.splitter, EventSplitter::new(0));
        if let Some(part) = splitter.finish() {
            self.take(part).await;
        }
        let (reading, is_finished) = self.words.read();
        if is_finished {
            return self.complete(reading);
        }
        self.body.report(reading.said);
        let refusal = self.body.unfinished();
        self.cut(refusal);
    }

    /// The stream has said all it had to say.
    fn complete(&mut self, reading: Reading) {
        let outcome = if reading.failure.is_some() { Outcome::Failed } else { Outcome::Completed };
        self.body.report(reading.said);
        self.body.end(outcome, reading.failure.clone());
        self.flight.land(outcome, reading.failure);
        if let Some(merge) = self.settle()
            && outcome == Outcome::Completed
            && merge.holds != Hold::Nothing
        {
            merge.prefill.linger(merge.wait);
        }
    }

    /// The stream is broken: tells the client in a last event, then cuts.
    fn cut(&mut self, refusal: Refusal) {
        self.flight.land(Outcome::Truncated, Some(refusal.to_string()));
        let begin: &[u8] = if self.is_mid_event { b"\n\ndata: " } else { b"data: " };
        self.out.extend([
            Bytes::from_static(begin),
            error_body(&refusal).into(),
            Bytes::from_static(b"\n\n"),
        ]);
        drop(self.settle());
        self.stage = Stage::Cutting(refusal);
    }

    /// Nothing more will be merged.
    fn settle(&mut self) -> Option<Merge> {
        self.stage = Stage::Over;
        let merge = self.merge.take()?;
        merge.prefill.count(&self.flight.core, merge.is_merged);
        Some(merge)
    }
}

impl Drop for EventRelay {
    /// A client may leave as soon as it has the last event, without waiting for the end of the stream. Of one that leaves
    /// before, the profile tells what was generated until then.
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::Open) {
            return;
        }
        let (reading, is_finished) = self.words.read();
        if is_finished && self.parts.is_empty() && self.out.is_empty() {
            self.complete(reading);
        } else {
            self.body.report(reading.said);
        }
    }
}

// === impl Merge ===

impl Merge {
    /// The event with the prefill's share; nothing if it goes as it came.
    async fn apply(&mut self, event: &Event, reply: &Reply<'_>, element: &Element<'_>) -> Option<Chunks> {
        self.hold(element).await;
        let share = self.prefill.share()?;
        let joined = self.joined.get_mut(element.index().unwrap_or(0))?;
        let join = match (self.joins_logprobs, element.is_finished() && !*joined) {
            (false, _) => LogprobJoin::Never,
            (true, false) => LogprobJoin::WherePresent,
            (true, true) => LogprobJoin::Always,
        };
        let merged = reply.merge(share, join).ok()?;
        *joined |= element.has_input_logprobs();
        let merged = merged?;
        self.is_merged = true;
        Some(event.with_payload(&merged))
    }

    /// Waits for the prefill's reply where this event is the last chance.
    async fn hold(&mut self, element: &Element<'_>) {
        let is_held = match self.holds {
            Hold::ListOrLast => element.is_finished() || element.has_input_logprobs(),
            Hold::Last => element.is_finished(),
            Hold::Nothing => false,
        };
        // Where decode has failed there is nothing to wait for: the prefill is about to be cancelled.
        if !is_held || element.is_aborted() || element.is_error() {
            return;
        }
        let is_settled = self.prefill.settled_within(self.wait).await;
        let in_vain = element.is_finished() && !is_settled;
        self.holds = if in_vain { Hold::Nothing } else { Hold::Last };
    }
}
