//! One upstream call made for a request.
//!
//! ```text
//! Leg::call → Answer (the reply's head) → LegBody::next … → LegBody::end(outcome)
//! ```
//! A leg that is dropped on the way is aborted: its connection is closed, and the worker is told to abort the
//! request if the client gave it a name.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use rollscope_route::{LegGuard, RoleKind, Verdict};
use rollscope_trace::{LegRole, Outcome};
use rollscope_wire::{Chunks, Malformed, Problem};

use crate::abort::abort_later;
use crate::choosing::Seat;
use crate::control::call;
use crate::deadline::Deadline;
use crate::exchange::{Exchange, UpstreamBody, exchange};
use crate::fault::{Refusal, UpstreamFault};
use crate::flight::{Flight, LegLog, ending};
use crate::http1::Next;
use crate::outbound::Outbound;
use crate::pool::PooledWorker;
use crate::reading::Said;
use crate::reply::WorkerReply;

/// A live leg.
#[derive(Debug)]
struct Leg {
    flight: Arc<Flight>,
    role: RoleKind,
    worker: Arc<PooledWorker>,
    /// Its number in the flight's log.
    number: usize,
    guard: Option<LegGuard>,
    /// What the status of the reply tells about the worker.
    verdict: Verdict,
    /// When the reply was there as a whole.
    ended: Option<Instant>,
}

/// A worker's reply, of which the head has come.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: http::response::Parts,
    pub(crate) body: LegBody,
}

/// The body of a worker's reply.
#[derive(Debug)]
pub(crate) struct LegBody {
    leg: Leg,
    upstream: UpstreamBody,
    deadline: Deadline,
    has_begun: bool,
}

/// A body that was read to keep it.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) bytes: Chunks,
    /// The body is larger than the limit, and `bytes` only its beginning.
    pub(crate) is_partial: bool,
}

/// More of a worker's error message is not passed on.
const MAX_REFUSAL_BYTES: usize = 16 << 20;

// === impl Leg ===

impl Leg {
    fn begin(flight: &Arc<Flight>, role: RoleKind, seat: Seat, now: Instant) -> Self {
        let Seat { worker, guard, .. } = seat;
        let number = flight.enter(LegLog {
            role: leg_role(role),
            worker: Arc::clone(&worker),
            dispatch: flight.elapsed(now),
            first_byte: None,
            end: None,
            status: None,
            outcome: Outcome::Aborted,
            error: None,
            said: Said::Nothing,
        });
        let flight = Arc::clone(flight);
        Self { flight, role, worker, number, guard: Some(guard), verdict: Verdict::Neutral, ended: None }
    }

    /// Ends it: in the log, then in the books.
    fn end(&mut self, outcome: Outcome, error: Option<String>, verdict: Verdict) {
        let Some(guard) = self.guard.take() else { return };
        let now = self.ended.unwrap_or_else(Instant::now);
        self.flight.log(self.number, |log| {
            log.end = Some(self.flight.elapsed(now));
            (log.outcome, log.error) = (outcome, error);
        });
        guard.end(ending(outcome), verdict, self.flight.core.clock.moment_of(now));
    }

    fn fail(&mut self, outcome: Outcome, fault: UpstreamFault) -> Refusal {
        self.end(outcome, Some(fault.to_string()), fault.verdict());
        if fault.is_break() {
            self.worker.link.doubt();
        }
        if fault.leaves_work() {
            self.tell_worker();
        }
        Refusal::Worker { role: self.role, url: self.worker.name.to_string(), fault }
    }

    /// It is no longer worked at, for a reason that is not the worker's.
    fn give_up(&mut self, refusal: Refusal) -> Refusal {
        self.end(Outcome::Aborted, Some(refusal.to_string()), Verdict::Neutral);
        self.tell_worker();
        refusal
    }

    /// The worker has not answered in time. One of a pair may only have waited for the other, so it is asked whether it
    /// is up: the one that is not is to blame.
    async fn time_out(&mut self, outcome: Outcome, limit: Duration) -> Refusal {
        // On the heap, as is all that is rare: requests that come to no harm need no room for it.
        let is_up = self.role != RoleKind::Regular && Box::pin(self.is_up()).await;
        let fault = if is_up { UpstreamFault::Waited { limit } } else { UpstreamFault::Timeout { limit } };
        self.fail(outcome, fault)
    }

    async fn is_up(&self) -> bool {
        let core = &self.flight.core;
        let health = Outbound::get(core.health_path.clone());
        call(core, &self.worker, &health, core.check_limit()).await.is_ok()
    }

    /// Tells the worker that nobody waits any more.
    fn tell_worker(&self) {
        abort_later(&self.flight.core, &self.worker, &self.flight.facts.rids);
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        if self.guard.is_some() {
            self.end(Outcome::Aborted, Some("given up before its end".to_owned()), Verdict::Neutral);
            self.tell_worker();
        }
    }
}

// === impl Answer ===

impl Answer {
    /// Calls a worker and waits for the head of its reply.
    pub(crate) async fn call(
        flight: Arc<Flight>,
        role: RoleKind,
        seat: Seat,
        outbound: Outbound,
    ) -> Result<Self, Refusal> {
        let now = Instant::now();
        let timer = seat.worker.link.take_timer();
        let mut deadline = Deadline::after(now, flight.core.request_limit()).with_timer(timer);
        let mut leg = Leg::begin(&flight, role, seat, now);
        let exchanged = {
            let is_wanted = || !flight.is_called_off();
            let exchanging =
                pin!(exchange(&leg.worker, &outbound, flight.core.connect_limit, now, is_wanted));
            let bound = pin!(deadline.bound(exchanging, None));
            flight.core.ending.bound(bound).await
        };
        let exchanged = exchanged.map_err(|refusal| leg.give_up(refusal))?;
        let Exchange { head, body, is_retry, is_new } = match exchanged {
            Ok(Ok(exchange)) => exchange,
            Ok(Err(UpstreamFault::CalledOff)) => return Err(leg.give_up(Refusal::CalledOff)),
            Ok(Err(fault)) => return Err(leg.fail(Outcome::Failed, fault)),
            Err(limit) => return Err(leg.time_out(Outcome::Failed, limit).await),
        };
        if is_retry {
            flight.count_retry();
        }
        // Nothing else would have shown that the worker's process has ended since it was called last.
        if is_new && leg.worker.load() <= 1 && !leg.worker.link.has_kept() {
            leg.worker.link.doubt();
        }
        leg.verdict = verdict(role, &head);
        flight.log(leg.number, |log| log.status = Some(head.status.as_u16()));
        let body = LegBody { leg, upstream: body, deadline, has_begun: false };
        Ok(Self { head, body })
    }

    pub(crate) fn is_success(&self) -> bool {
        self.head.status.is_success()
    }

    /// Whether it is a stream of events.
    pub(crate) fn is_event_stream(&self) -> bool {
        is_event_stream(&self.head.headers)
    }

    /// Whether its body is as the worker wrote it, so that it can be read.
    pub(crate) fn is_plain(&self) -> bool {
        is_plain(&self.head.headers)
    }

    /// Reads all of a reply that says no, and ends the leg.
    pub(crate) async fn into_refusal(mut self) -> Result<Refusal, Refusal> {
        let collected = self.body.collect(MAX_REFUSAL_BYTES).await?;
        let reply = WorkerReply { head: self.head, body: collected.bytes };
        if self.body.leg.role != RoleKind::Regular && tells_of_its_peer(&reply.body.to_bytes()) {
            self.body.leg.verdict = Verdict::Neutral;
        }
        self.body.end(Outcome::Failed, Some(reply.to_string()));
        Ok(Refusal::Reply(Box::new(reply)))
    }
}

// === impl LegBody ===

impl LegBody {
    /// The next piece; nothing at the end. After an error the leg has ended. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        self.next_whole(0).await
    }

    /// The same, but what is left of a body is one piece if it is known to be no longer than this.
    async fn next_whole(&mut self, limit_bytes: usize) -> Result<Option<Bytes>, Refusal> {
        let limit_bytes = if self.has_begun { limit_bytes } else { 0 };
        let idle_limit = Some(self.leg.flight.core.idle_limit);
        loop {
            // Its own for each wait: a large body may take longer than any pause.
            let received = {
                let receiving = pin!(self.upstream.next(limit_bytes));
                let bound = pin!(self.deadline.bound(receiving, idle_limit));
                self.leg.flight.core.ending.bound(bound).await
            };
            let received = received.map_err(|refusal| self.leg.give_up(refusal))?;
            let piece = match received {
                Ok(Ok(Next::More)) => continue,
                Ok(Ok(Next::Piece(piece))) => Some(piece),
                Ok(Ok(Next::End)) => None,
                Ok(Err(fault)) => return Err(self.leg.fail(Outcome::Truncated, fault)),
                Err(limit) => return Err(self.leg.time_out(Outcome::Truncated, limit).await),
            };
            self.stamp(piece.is_some());
            return Ok(piece);
        }
    }

    /// Reads the rest, and keeps it up to a limit; the piece that goes beyond is still kept, what follows is left.
    pub(crate) async fn collect(&mut self, limit_bytes: usize) -> Result<Collected, Refusal> {
        let mut bytes = Chunks::new();
        while bytes.len() <= limit_bytes {
            match self.next_whole(limit_bytes - bytes.len()).await? {
                Some(piece) => bytes.push(piece),
                None => return Ok(Collected { bytes, is_partial: false }),
            }
        }
        Ok(Collected { bytes, is_partial: true })
    }

    /// The next piece, if the body has begun and more of it has been received.
    pub(crate) fn received_piece(&mut self) -> Option<Bytes> {
        if self.has_begun { self.upstream.received_piece() } else { None }
    }

    /// Whether all of it has been received, and can be had without waiting.
    pub(crate) fn is_received(&self) -> bool {
        self.upstream.is_received()
    }

    /// Whether there is no byte in it, as in the reply to HEAD.
    pub(crate) fn is_empty(&self) -> bool {
        self.upstream.is_empty()
    }

    /// Takes what the worker says of each sample into the log.
    pub(crate) fn report(&self, said: Said) {
        self.leg.flight.log(self.leg.number, |log| log.said = said);
    }

    /// The worker said all it had to say, but its reply is not whole.
    pub(crate) fn unfinished(&mut self) -> Refusal {
        self.leg.fail(Outcome::Truncated, UpstreamFault::Unfinished)
    }

    /// The worker's reply is none, though its status is good.
    pub(crate) fn no_reply(&mut self, why: Malformed) -> Refusal {
        let outcome = if why.problem == Problem::End { Outcome::Truncated } else { Outcome::Failed };
        self.leg.fail(outcome, UpstreamFault::NoReply(why))
    }

    /// Ends the leg.
    pub(crate) fn end(&mut self, outcome: Outcome, error: Option<String>) {
        // A good status with a bad reply may be the request's fault, or its abort by name.
        let is_telling = outcome == Outcome::Completed || self.leg.verdict != Verdict::Success;
        let verdict = if is_telling { self.leg.verdict } else { Verdict::Neutral };
        self.leg.end(outcome, error, verdict);
        if let Some(timer) = self.deadline.take_timer() {
            self.leg.worker.link.put_timer(timer);
        }
    }

    /// Takes the times at which the body begins and ends; one look at the clock does for a body that comes in one piece.
    fn stamp(&mut self, is_piece: bool) {
        let begins = is_piece && !self.has_begun;
        let ends = self.leg.ended.is_none() && (!is_piece || self.upstream.is_empty());
        self.has_begun = true;
        if !begins && !ends {
            return;
        }
        let (leg, now) = (&mut self.leg, Instant::now());
        if ends {
            leg.ended = Some(now);
        }
        if !begins {
            return;
        }
        if leg.verdict == Verdict::Success
            && let Some(guard) = &mut leg.guard
        {
            guard.first_token(leg.flight.core.clock.moment_of(now));
        }
        leg.flight.log(leg.number, |log| log.first_byte = Some(leg.flight.elapsed(now)));
    }
}

/// Whether headers announce a stream of events.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.as_bytes().get(..EVENTS.len()));
    content_type.is_some_and(|content_type| content_type.eq_ignore_ascii_case(EVENTS))
}

/// Whether headers announce a body that is not encoded.
pub(crate) fn is_plain(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// What a reply's head tells about the worker.
fn verdict(role: RoleKind, head: &http::response::Parts) -> Verdict {
    // One of a pair that has waited in vain for the other says so by this.
    if role != RoleKind::Regular && head.status == StatusCode::GATEWAY_TIMEOUT {
        return Verdict::Neutral;
    }
    let pause = if head.status.is_success() { None } else { retry_after(&head.headers) };
    Verdict::of_status(head.status.as_u16(), pause)
}

/// Whether one of a pair says that the transfer between the two has failed: by the words that SGLang has for it, since its
/// status is 500 as for any fault of its own. Which of the two is to blame that does not tell.
fn tells_of_its_peer(body: &[u8]) -> bool {
    [&b"KVPoll"[..], b"KVTransferError"].iter().any(|word| memchr::memmem::find(body, word).is_some())
}

/// How long a worker wants to be left alone.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn leg_role(role: RoleKind) -> LegRole {
    match role {
        RoleKind::Regular => LegRole::Regular,
        RoleKind::Prefill => LegRole::Prefill,
        RoleKind::Decode => LegRole::Decode,
    }
}
