//! One upstream call made for a request.
//!
//! ```text
//! Leg::call → Answer (the reply's head) → LegBody::next … → LegBody::end(outcome)
//! ```
//! A leg that is dropped on the way is aborted: its connection is closed, and the worker is told to abort the
//! request if the client gave it a name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use rollscope_route::{LegGuard, RoleKind, Verdict};
use rollscope_trace::{LegRole, Outcome, Report, WorkerRef};
use rollscope_wire::Chunks;
use tokio::time::timeout_at;

use crate::abort::abort_later;
use crate::choosing::Seat;
use crate::exchange::{Exchange, UpstreamBody, exchange};
use crate::fault::{Refusal, UpstreamFault};
use crate::flight::{Flight, LegLog, ending};
use crate::outbound::Outbound;
use crate::pool::PooledWorker;
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
    deadline: Instant,
    limit: Duration,
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
    fn begin(flight: &Arc<Flight>, role: RoleKind, seat: Seat) -> Self {
        let Seat { worker, guard } = seat;
        let number = flight.enter(LegLog {
            role: leg_role(role),
            worker: WorkerRef { url: worker.url.as_str().into(), instance: worker.id.as_str().into() },
            dispatch: flight.elapsed(),
            first_byte: None,
            end: None,
            status: None,
            outcome: Outcome::Aborted,
            error: None,
            reports: Vec::new(),
        });
        let flight = Arc::clone(flight);
        Self { flight, role, worker, number, guard: Some(guard), verdict: Verdict::Neutral }
    }

    /// Ends it: in the log, then in the books.
    fn end(&mut self, outcome: Outcome, error: Option<String>, verdict: Verdict) {
        let Some(guard) = self.guard.take() else { return };
        let now = self.flight.elapsed();
        self.flight.log(self.number, |log| {
            log.end.get_or_insert(now);
            (log.outcome, log.error) = (outcome, error);
        });
        guard.end(ending(outcome), verdict, self.flight.core.clock.moment());
    }

    fn fail(&mut self, outcome: Outcome, fault: UpstreamFault) -> Refusal {
        self.end(outcome, Some(fault.to_string()), fault.verdict());
        if let UpstreamFault::Timeout { .. } = fault {
            self.tell_worker();
        }
        Refusal::Worker { role: self.role, url: self.worker.url.to_string(), fault }
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
        let limit = flight.core.request_limit();
        let deadline = Instant::now() + limit;
        let mut leg = Leg::begin(&flight, role, seat);
        let exchanged =
            timeout_at(deadline.into(), exchange(&leg.worker, &outbound, flight.core.connect_limit())).await;
        let Exchange { head, body, is_retry } = match exchanged {
            Ok(Ok(exchange)) => exchange,
            Ok(Err(fault)) => return Err(leg.fail(Outcome::Failed, fault)),
            Err(_) => return Err(leg.fail(Outcome::Failed, UpstreamFault::Timeout { limit })),
        };
        if is_retry {
            flight.count_retry();
        }
        leg.verdict = Verdict::of_status(head.status.as_u16(), retry_after(&head.headers));
        flight.log(leg.number, |log| log.status = Some(head.status.as_u16()));
        let body = LegBody { leg, upstream: body, deadline, limit, has_begun: false };
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
        let outcome = match timeout_at(self.deadline.into(), self.upstream.next_whole(limit_bytes)).await {
            Ok(Ok(piece)) => {
                self.stamp(piece.is_some());
                return Ok(piece);
            }
            Ok(Err(fault)) => fault,
            Err(_) => UpstreamFault::Timeout { limit: self.limit },
        };
        Err(self.leg.fail(Outcome::Truncated, outcome))
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

    /// Whether there is no byte in it, as in the reply to HEAD.
    pub(crate) fn is_empty(&self) -> bool {
        self.upstream.is_empty()
    }

    /// Takes what the worker says of each sample into the log.
    pub(crate) fn report(&self, reports: Vec<Report>) {
        self.leg.flight.log(self.leg.number, |log| log.reports = reports);
    }

    /// The worker said all it had to say, but its reply is not whole.
    pub(crate) fn unfinished(&mut self) -> Refusal {
        self.leg.fail(Outcome::Truncated, UpstreamFault::Unfinished)
    }

    /// Ends the leg.
    pub(crate) fn end(&mut self, outcome: Outcome, error: Option<String>) {
        // A good status with a bad reply may be the request's fault, or its abort by name.
        let is_telling = outcome == Outcome::Completed || self.leg.verdict != Verdict::Success;
        let verdict = if is_telling { self.leg.verdict } else { Verdict::Neutral };
        self.leg.end(outcome, error, verdict);
    }

    fn stamp(&mut self, is_piece: bool) {
        if is_piece && self.has_begun {
            return;
        }
        self.has_begun = true;
        if is_piece
            && self.leg.verdict == Verdict::Success
            && let Some(guard) = &mut self.leg.guard
        {
            guard.first_token(self.leg.flight.core.clock.moment());
        }
        let now = self.leg.flight.elapsed();
        self.leg.flight.log(self.leg.number, |log| {
            if is_piece {
                log.first_byte = Some(now);
            } else {
                log.end = Some(now);
            }
        });
    }
}

/// Whether headers announce a stream of events.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    content_type.to_ascii_lowercase().starts_with(b"text/event-stream")
}

/// Whether headers announce a body that is not encoded.
pub(crate) fn is_plain(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
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
