//! One request on its way: its place in the books, its legs, and at its end its profile.
//!
//! A flight ends exactly once: by [`Flight::land`], or when the last that holds it lets go, which is what happens when a
//! client leaves, or when the gateway ends before the client has taken the reply. Only then is it over and handed to who makes the profile, so that whatever way a
//! request ends, it leaves one.

use std::sync::Arc;
use std::time::Instant;

use http::HeaderMap;
use parking_lot::Mutex;
use rollscope_route::{Ending, RoomGuard, Ticket};
use rollscope_trace::{BatchSlot, Join, LegRole, Nanos, Outcome, Profile, Report, RequestId, UnixNs};
use rollscope_wire::Output;
use tokio::sync::watch;

use crate::called_off::Since;
use crate::choosing::Decided;
use crate::clock::Anchor;
use crate::core::Core;
use crate::facts::Facts;
use crate::fault::Refusal;
use crate::join::join;
use crate::limits::Place;
use crate::pool::{PooledWorker, profile_ref};
use crate::reading::Said;
use crate::texts::{self, Share, Texts};

/// A live request.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) core: Arc<Core>,
    arrival: Anchor,
    path: Box<str>,
    /// Aborts of before it came, which do not mean it.
    pub(crate) since: Since,
    /// Set while the request is planned, before anybody shares it.
    pub(crate) facts: Facts,
    /// Among those that are served at once.
    pub(crate) place: Place,
    state: Mutex<State>,
    /// Handed on when it is over.
    live: Option<watch::Receiver<()>>,
}

/// A request that is over, and of which its profiles are still to be made. Until they have been offered its step counts as
/// live, and so does it where the gateway's end waits for it.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) core: Arc<Core>,
    arrival: Anchor,
    path: Box<str>,
    facts: Facts,
    state: State,
    /// Held for its drop.
    _live: Option<watch::Receiver<()>>,
}

/// What becomes of it.
#[derive(Debug)]
struct State {
    ticket: Option<Ticket>,
    /// Why these workers: those of the last try.
    decided: Decided,
    rooms: Option<RoomGuard>,
    legs: Vec<LegLog>,
    retries: u32,
    status: Option<u16>,
    first_byte: Option<Nanos>,
    end: Nanos,
    outcome: Outcome,
    error: Option<String>,
}

/// What is known of a leg.
#[derive(Debug)]
pub(crate) struct LegLog {
    pub(crate) role: LegRole,
    pub(crate) worker: Arc<PooledWorker>,
    pub(crate) dispatch: Nanos,
    pub(crate) first_byte: Option<Nanos>,
    pub(crate) end: Option<Nanos>,
    pub(crate) status: Option<u16>,
    pub(crate) outcome: Outcome,
    pub(crate) error: Option<String>,
    pub(crate) said: Said,
}

// === impl Flight ===

impl Flight {
    /// Begins one. As long as nobody shares it, it is still to be completed.
    pub(crate) fn begin(core: &Arc<Core>, arrival: Anchor, path: &str, headers: &HeaderMap) -> Arc<Self> {
        let ticket = core.requests.open();
        let join = join(headers);
        core.steps.add(join.step.as_slice());
        Arc::new(Self {
            core: Arc::clone(core),
            arrival,
            path: path.into(),
            since: core.call_offs.until_now(),
            facts: Facts::new(join),
            place: Place::default(),
            state: Mutex::new(State::new(Some(ticket))),
            live: Some(core.flights.subscribe()),
        })
    }

    /// Takes note of the names that the client gave.
    pub(crate) fn name(&mut self, rids: Vec<String>) {
        self.core.rids.add(&rids);
        self.facts.join.rid = rids.first().filter(|_| rids.len() == 1).map(|rid| rid.as_str().into());
        self.facts.rids = rids;
    }

    /// Whether an abort means it. Only for as long as no worker has it that is for the gateway to see.
    pub(crate) fn is_called_off(&self) -> bool {
        self.facts.is_generation && self.core.call_offs.mean(self.since, &self.facts.rids)
    }

    /// How much of each text of its reply is kept, if any.
    pub(crate) fn text_share(&self) -> Option<Share> {
        self.facts.texts.as_ref().map(|texts| texts.share)
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Time from arrival to a moment.
    pub(crate) fn elapsed(&self, at: Instant) -> Nanos {
        self.arrival.elapsed(at)
    }

    /// Enters a leg; gives its number.
    pub(crate) fn enter(&self, leg: LegLog) -> usize {
        let mut state = self.state.lock();
        state.legs.push(leg);
        state.legs.len() - 1
    }

    /// Writes to a leg's log.
    pub(crate) fn log(&self, leg: usize, write: impl FnOnce(&mut LegLog)) {
        if let Some(leg) = self.state.lock().legs.get_mut(leg) {
            write(leg);
        }
    }

    /// Takes note of who is to serve it, and where they meet.
    pub(crate) fn decide(&self, decided: Decided, rooms: Option<RoomGuard>) {
        let mut state = self.state.lock();
        (state.decided, state.rooms) = (decided, rooms);
    }

    /// Why these workers; nothing if none were chosen.
    pub(crate) fn decision(&self) -> Option<String> {
        let state = self.state.lock();
        (!matches!(state.decided, Decided::Nothing)).then(|| state.decided.to_string())
    }

    pub(crate) fn count_retry(&self) {
        self.state.lock().retries += 1;
    }

    /// The client is being answered with this status.
    pub(crate) fn answer(&self, status: u16) {
        self.state.lock().status = Some(status);
    }

    /// The first byte of the reply's body goes to the client; of a stream that is read, the first of an event.
    pub(crate) fn stamp_first_byte(&self) {
        let first_byte = &mut self.state.lock().first_byte;
        if first_byte.is_none() {
            *first_byte = Some(self.elapsed(Instant::now()));
        }
    }

    /// Ends it. What was said first stands.
    pub(crate) fn land(&self, outcome: Outcome, error: Option<String>) {
        let mut state = self.state.lock();
        if let Some(ticket) = state.ticket.take() {
            let now = self.elapsed(Instant::now());
            (state.outcome, state.error, state.end) = (outcome, error, now);
            ticket.end(ending(outcome));
            let (durations, of) = (&self.core.durations, self.core.durations.of(&self.path));
            durations.observe(&of.request, now);
            let Some(first_byte) = state.first_byte.filter(|_| self.facts.stream && state.is_good()) else {
                return;
            };
            durations.observe(&of.first_token, first_byte);
            if outcome == Outcome::Completed
                && self.facts.batch_size().is_none()
                && let Some(per_token) = state.per_token(first_byte)
            {
                durations.observe(&of.per_token, per_token);
            }
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.state.get_mut().ticket.is_some() {
            let is_ending = self.core.ending.has_begun();
            let (outcome, why) = match self.state.get_mut().status {
                Some(_) if is_ending => (Outcome::Truncated, Refusal::Ending.to_string()),
                None if is_ending => (Outcome::Failed, Refusal::Ending.to_string()),
                _ => (Outcome::Aborted, "the client's connection ended before the reply did".to_owned()),
            };
            self.land(outcome, Some(why));
        }
        self.core.rids.remove(&self.facts.rids);
        self.state.get_mut().rooms = None;
        if self.facts.dialect.is_none() || !self.core.is_recording() {
            return self.core.steps.remove(self.facts.join.step.as_slice());
        }
        let over = Over {
            core: Arc::clone(&self.core),
            arrival: self.arrival,
            path: std::mem::take(&mut self.path),
            facts: std::mem::replace(&mut self.facts, Facts::new(Join::default())),
            state: std::mem::replace(self.state.get_mut(), State::new(None)),
            _live: self.live.take(),
        };
        self.core.profile(over);
    }
}

// === impl Over ===

impl Over {
    /// Bytes that it holds of replies, and of texts.
    pub(crate) fn kept_bytes(&self) -> usize {
        let said: usize = self.state.legs.iter().map(|leg| leg.said.bytes()).sum();
        said + self.facts.texts.as_ref().map_or(0, Texts::bytes)
    }

    /// Profiles that are to be made of it.
    pub(crate) fn samples(&self) -> usize {
        self.facts.shape.samples().max(1)
    }

    /// Makes the profiles, one a sample.
    pub(crate) fn profiles(&mut self) -> Vec<Profile> {
        let size = self.facts.batch_size();
        let (mut reports, outputs) = self.read();
        let mut profiles: Vec<_> =
            (0..size.unwrap_or(1)).map(|index| self.profile(&mut reports, (index, size))).collect();
        if let Some(texts) = &self.facts.texts {
            let mut outputs = outputs.into_iter();
            for (index, profile) in profiles.iter_mut().enumerate() {
                profile.attrs = texts::attrs(texts.prompt(index).cloned(), outputs.next());
            }
        }
        profiles
    }

    /// What the worker of each leg reports of each sample; and what the last one that answered says of each in words, if
    /// that is recorded.
    fn read(&mut self) -> (Vec<Vec<Report>>, Vec<Output>) {
        let legs = &mut self.state.legs;
        let answer = legs.iter().rposition(|leg| leg.role != LegRole::Prefill);
        let share = self.facts.texts.as_ref().map(|texts| texts.share);
        let (mut reports, mut outputs) = (Vec::with_capacity(legs.len()), Vec::new());
        for (number, leg) in legs.iter_mut().enumerate() {
            let is_answer = answer == Some(number);
            let (of_samples, said) = std::mem::take(&mut leg.said).read(share.filter(|_| is_answer));
            reports.push(of_samples);
            if is_answer {
                outputs = said;
            }
        }
        (reports, outputs)
    }

    /// The profile of one sample.
    fn profile(&self, reports: &mut [Vec<Report>], (index, size): (usize, Option<usize>)) -> Profile {
        let mut join = self.facts.join.clone();
        if let Some(rid) = self.facts.rids.get(index) {
            join.rid = Some(rid.as_str().into());
        }
        let index_32 = u32::try_from(index).unwrap_or(u32::MAX);
        Profile {
            id: RequestId(rand::random()),
            join,
            endpoint: self.path.clone(),
            stream: self.facts.stream,
            batch: size
                .map(|size| BatchSlot { index: index_32, size: u32::try_from(size).unwrap_or(u32::MAX) }),
            arrival: self.arrival.wall,
            first_byte: self.state.first_byte,
            end: self.state.end,
            status: self.state.status,
            outcome: self.state.outcome,
            error: self.state.error.as_deref().map(Into::into),
            decision: self.state.decided.to_string().into(),
            retries: self.state.retries,
            legs: self
                .state
                .legs
                .iter()
                .zip(reports)
                .map(|(leg, reports)| {
                    let report = reports.get_mut(index).map(std::mem::take).unwrap_or_default();
                    leg.of_sample(report, (self.arrival.wall, self.state.end))
                })
                .collect(),
            attrs: Vec::new(),
        }
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        // Only now: who sees that a step has no live request is to have seen all their profiles.
        self.core.steps.remove(self.facts.join.step.as_slice());
    }
}

// === impl State ===

impl State {
    /// Whether a worker has answered the client with what it asked for, whole or not.
    fn is_good(&self) -> bool {
        !self.legs.is_empty() && self.status.is_some_and(|status| (200..300).contains(&status))
    }

    /// Time for each token of a stream but the first, if the worker has said how many there were.
    fn per_token(&self, first_byte: Nanos) -> Option<Nanos> {
        let answer = self.legs.iter().rfind(|leg| leg.role != LegRole::Prefill)?;
        let tokens = answer.said.completion_tokens().filter(|tokens| *tokens >= 2.0)?;
        let streamed = self.end.0.checked_sub(first_byte.0)?;
        Some(Nanos((streamed as f64 / (tokens - 1.0)) as u64))
    }

    fn new(ticket: Option<Ticket>) -> Self {
        Self {
            ticket,
            decided: Decided::Nothing,
            rooms: None,
            // Those of a pair.
            legs: Vec::with_capacity(2),
            retries: 0,
            status: None,
            first_byte: None,
            end: Nanos::default(),
            outcome: Outcome::Aborted,
            error: None,
        }
    }
}

// === impl LegLog ===

impl LegLog {
    fn of_sample(&self, report: Report, (arrival, request_end): (UnixNs, Nanos)) -> rollscope_trace::Leg {
        let mut leg = rollscope_trace::Leg {
            role: self.role,
            worker: profile_ref(&self.worker),
            dispatch: self.dispatch,
            first_byte: self.first_byte,
            end: self.end.unwrap_or(request_end),
            status: self.status,
            outcome: self.outcome,
            error: self.error.as_deref().map(Into::into),
            clock: None,
            report,
        };
        leg.report.bound_by(leg.duration());
        leg.clock = self.worker.link.clock.learn(leg.exchange_offset(arrival), arrival.after(leg.end));
        leg
    }
}

/// An outcome, for the books.
pub(crate) fn ending(outcome: Outcome) -> Ending {
    match outcome {
        Outcome::Completed => Ending::Completed,
        Outcome::Truncated => Ending::Truncated,
        Outcome::Failed => Ending::Failed,
        Outcome::Aborted => Ending::Aborted,
    }
}
