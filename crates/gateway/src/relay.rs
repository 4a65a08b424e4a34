//! A worker's reply passed on as it comes, whatever it is.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::Response;
use rollscope_trace::Outcome;
use rollscope_wire::{Abridged, Chunks, Malformed, Output, Problem, Summary};

use crate::body::{BoxError, ReplyBody, pieces, whole};
use crate::farewell::Farewell;
use crate::fault::Refusal;
use crate::flight::Flight;
use crate::leg::{Answer, LegBody};
use crate::outbound::end_to_end;
use crate::reading::Reading;
use crate::reply::{landing, refuse, response};

/// A reply on its way.
struct Relay {
    flight: Arc<Flight>,
    body: LegBody,
    /// Read before the relay began, and not passed on yet.
    ahead: std::vec::IntoIter<Bytes>,
    /// Why the reply counts as failed whatever it says: its status.
    refusal: Option<String>,
    /// What the reply says of itself so far, if its measurements are to be read.
    read: Option<Abridged>,
    /// The reply itself so far, if what it says in words is recorded.
    heard: Option<Chunks>,
    /// Of a stream that is not read, what its client is told if it breaks.
    farewell: Option<Farewell>,
    /// The client has been told.
    cutting: Option<Refusal>,
    is_over: bool,
}

/// Of a reply that is not received at once, so much is held to find its texts.
const MAX_HEARD_BYTES: usize = 16 << 20;

/// Passes a reply on. With `is_read`, what it says of itself goes into the profile.
pub(crate) async fn relay(flight: Arc<Flight>, mut answer: Answer, is_read: bool) -> Response<ReplyBody> {
    // Most replies come in one piece, and need no more than to be handed on.
    if answer.body.is_received() && !answer.body.is_empty() {
        return match answer.body.collect(usize::MAX).await {
            Ok(whole) => pass(flight, answer, whole.bytes, is_read),
            Err(refusal) => refuse(flight, refusal),
        };
    }
    let is_judged = is_read && answer.is_success();
    // Nothing is promised before there is something that may be a reply.
    let first = if is_judged { answer.body.next().await } else { Ok(None) };
    match first {
        Ok(None) if is_judged => {
            let why = Malformed { offset: 0, problem: Problem::End };
            refuse(flight, answer.body.no_reply(why))
        }
        Ok(first) => relay_with(flight, answer, first.map(Chunks::from).unwrap_or_default(), is_judged),
        Err(refusal) => refuse(flight, refusal),
    }
}

/// Passes on a reply that is there as a whole.
fn pass(flight: Arc<Flight>, mut answer: Answer, body: Chunks, is_read: bool) -> Response<ReplyBody> {
    let mut reading = Reading::default();
    if is_read && answer.is_success() {
        reading = match Reading::of_body(&body, flight.text_share()) {
            Ok(reading) => reading,
            Err(why) => return refuse(flight, answer.body.no_reply(why)),
        };
        answer.body.report(reading.said);
    }
    let refusal = (!answer.is_success()).then(|| format!("worker answered {}", answer.head.status));
    let failure = refusal.or(reading.failure);
    let outcome = if failure.is_some() { Outcome::Failed } else { Outcome::Completed };
    answer.body.end(outcome, failure.clone());
    landing(flight, answer.head, body, (outcome, failure))
}

/// Passes on a reply whose beginning has been read.
pub(crate) fn relay_with(
    flight: Arc<Flight>,
    answer: Answer,
    ahead: Chunks,
    is_read: bool,
) -> Response<ReplyBody> {
    let Answer { head, body } = answer;
    flight.answer(head.status.as_u16());
    let mut relay = Relay {
        refusal: (!head.status.is_success()).then(|| format!("worker answered {}", head.status)),
        read: (is_read && head.status.is_success())
            .then(|| Abridged::new(flight.core.options.startup().max_merge_bytes)),
        heard: flight.text_share().filter(|_| is_read && head.status.is_success()).map(|_| Chunks::new()),
        farewell: Farewell::to(flight.path(), &head.headers).filter(|_| head.status.is_success()),
        cutting: None,
        ahead: Vec::new().into_iter(),
        flight,
        body,
        is_over: false,
    };
    ahead.pieces().for_each(|piece| relay.read(piece));
    relay.ahead = ahead.into_iter().collect::<Vec<_>>().into_iter();
    let begun = match relay.read.as_ref().and_then(Abridged::no_reply) {
        Some(why) => Err(relay.refuse(why)),
        // The server does not ask for a body that has no bytes.
        None if relay.body.is_empty() && relay.ahead.len() == 0 => relay.conclude().map(|()| true),
        None => Ok(false),
    };
    let headers = end_to_end(head.headers);
    match begun {
        Ok(false) => {}
        Ok(true) => return response(head.status, headers, whole(Chunks::new())),
        Err(refusal) => return refuse(Arc::clone(&relay.flight), refusal),
    }
    let stream = unfold(Box::new(relay), |mut relay| async move {
        let piece = relay.next().await?;
        Some((piece, relay))
    });
    response(head.status, headers, pieces(stream))
}

// === impl Relay ===

impl Relay {
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        if let Some(refusal) = self.cutting.take() {
            return Some(Err(cut_by(refusal).await));
        }
        let piece = match self.ahead.next() {
            Some(piece) => piece,
            None if self.is_over => return None,
            None => match self.body.next().await {
                Ok(Some(piece)) => {
                    self.read(&piece);
                    piece
                }
                Ok(None) => match self.conclude() {
                    Ok(()) => return None,
                    Err(refusal) => return Some(self.cut(refusal).await),
                },
                Err(refusal) => {
                    self.is_over = true;
                    self.tell_heard();
                    return Some(self.cut(refusal).await);
                }
            },
        };
        self.flight.stamp_first_byte();
        // The server counts the bytes of a reply of known length, and asks for no more after the last.
        let is_last = self.ahead.len() == 0 && self.body.is_empty();
        if is_last
            && matches!(self.body.next().await, Ok(None))
            && let Err(refusal) = self.conclude()
        {
            return Some(self.cut(refusal).await);
        }
        Some(Ok(piece))
    }

    /// Takes what has come of the reply.
    fn read(&mut self, piece: &Bytes) {
        self.read.iter_mut().for_each(|read| read.push(piece));
        self.farewell.iter_mut().for_each(|farewell| farewell.see(piece.clone()));
        if let Some(heard) = self.heard.as_mut().filter(|heard| heard.len() < MAX_HEARD_BYTES) {
            heard.push(piece.clone());
        }
    }

    /// Ends a reply that the client has the beginning of; first by an event that tells why, if it is a stream of such.
    async fn cut(&mut self, refusal: Refusal) -> Result<Bytes, BoxError> {
        self.flight.land(Outcome::Truncated, Some(refusal.to_string()));
        let Some(farewell) = self.farewell.take() else { return Err(cut_by(refusal).await) };
        let event = farewell.event(&refusal);
        self.cutting = Some(refusal);
        Ok(event)
    }

    /// It is none, or not a whole one.
    fn refuse(&mut self, why: Malformed) -> Refusal {
        self.is_over = true;
        self.tell_heard();
        self.body.no_reply(why)
    }

    /// What the reply says in words, as far as it has come.
    fn outputs(&mut self) -> Option<Vec<Output>> {
        let (share, heard) = self.flight.text_share().zip(self.heard.take())?;
        Some(share.read(&heard))
    }

    /// The rest of the reply will not come: its texts so far are all that there is.
    fn tell_heard(&mut self) {
        if let Some(outputs) = self.outputs() {
            self.body.report(Reading::default().with_outputs(outputs).said);
        }
    }

    /// All of the reply has come.
    fn conclude(&mut self) -> Result<(), Refusal> {
        let said = match self.read.take().map(Abridged::finish) {
            Some(Summary::NoReply(why)) => return Err(self.refuse(why)),
            Some(Summary::Reply(said)) => Some(said),
            Some(Summary::Unread) | None => None,
        };
        self.is_over = true;
        let mut reading = said.and_then(|said| Reading::of_body(&said, None).ok()).unwrap_or_default();
        if let Some(outputs) = self.outputs() {
            reading = reading.with_outputs(outputs);
        }
        self.body.report(reading.said);
        let failure = self.refusal.take().or(reading.failure);
        let outcome = if failure.is_some() { Outcome::Failed } else { Outcome::Completed };
        self.body.end(outcome, failure.clone());
        self.flight.land(outcome, failure);
        Ok(())
    }
}

/// The server drops what it has not written when a body fails: lets it write first.
async fn cut_by(refusal: Refusal) -> BoxError {
    tokio::task::yield_now().await;
    refusal.into()
}

impl Drop for Relay {
    /// A client may leave before it has the reply.
    fn drop(&mut self) {
        if !self.is_over {
            self.tell_heard();
        }
    }
}
