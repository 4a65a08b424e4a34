//! The prefill leg of a pair, which goes on beside the decode leg.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rollscope_route::RoleKind;
use rollscope_trace::Outcome;
use rollscope_wire::{Chunks, EventSplitter, Part, PrefillShare, Reply};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::choosing::Seat;
use crate::core::Core;
use crate::fault::Refusal;
use crate::flight::Flight;
use crate::leg::Answer;
use crate::outbound::Outbound;
use crate::reading::{LastWords, Reading};
use crate::reply::WorkerReply;

/// A prefill leg.
pub(crate) struct Prefill {
    /// Whether its reply is merged into decode's.
    is_merging: bool,
    /// When one of the pair has waited in vain, so long the other has to fail or to answer after all: its time is up at
    /// about the same moment, and then it is asked whether it is up.
    last_word: Duration,
    state: State,
}

enum State {
    Pending(BoxFuture<'static, Result<PrefillShare, Refusal>>),
    /// One task, which is ended when it is dropped.
    Free(JoinSet<Result<PrefillShare, Refusal>>),
    Done(PrefillShare),
    /// It failed when that no longer mattered.
    Lost,
}

// === impl Prefill ===

impl Prefill {
    /// Begins the leg, which proceeds while anything of this is awaited.
    pub(crate) fn begin(flight: &Arc<Flight>, seat: Seat, outbound: Outbound, is_merging: bool) -> Self {
        let run = run(Arc::clone(flight), seat, outbound, is_merging).boxed();
        let last_word = flight.core.last_word_limit();
        Self { is_merging, last_word, state: State::Pending(run) }
    }

    pub(crate) fn is_merging(&self) -> bool {
        self.is_merging
    }

    /// What it contributes, once its reply is there.
    pub(crate) fn share(&self) -> Option<&PrefillShare> {
        match &self.state {
            State::Done(share) if self.is_merging => Some(share),
            _ => None,
        }
    }

    /// Does some work of decode's that is in vain if the prefill fails meanwhile: then the prefill's refusal is the
    /// result, and the work is dropped.
    pub(crate) async fn or_refuse<T>(
        &mut self,
        mut work: Pin<&mut impl Future<Output = Result<T, Refusal>>>,
    ) -> Result<T, Refusal> {
        let State::Pending(run) = &mut self.state else { return work.await };
        let last_word = self.last_word;
        tokio::select! {
            biased;
            ended = &mut *run => match ended {
                Ok(share) => {
                    self.state = State::Done(share);
                    work.await
                }
                Err(refusal) => {
                    self.state = State::Lost;
                    if !refusal.has_waited() {
                        return Err(refusal);
                    }
                    match timeout(last_word, work).await {
                        Ok(done) => done.map_err(|other| blame(refusal, Some(other))),
                        Err(_) => Err(refusal),
                    }
                }
            },
            done = &mut work => match done {
                Err(refusal) if refusal.has_waited() => {
                    let other = timeout(last_word, run).await.ok().and_then(Result::err);
                    Err(blame(refusal, other))
                }
                done => done,
            },
        }
    }

    /// Does some work of decode's that no longer depends on the prefill.
    pub(crate) async fn alongside<T>(&mut self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        tokio::select! {
            biased;
            () = self.settled() => work.await,
            done = &mut work => done,
        }
    }

    /// Waits until the leg has ended. Dropping the future loses nothing.
    pub(crate) async fn settled(&mut self) {
        let ended = match &mut self.state {
            State::Pending(run) => Some(run.await),
            State::Free(task) => task.join_next().await.and_then(Result::ok),
            State::Done(_) | State::Lost => return,
        };
        self.state = ended.and_then(Result::ok).map_or(State::Lost, State::Done);
    }

    /// The same, but for no longer than this; whether it has ended.
    pub(crate) async fn settled_within(&mut self, limit: Duration) -> bool {
        // As a rule it has before decode does, and there is no need for a timer.
        !self.is_live() || timeout(limit, self.settled()).await.is_ok()
    }

    /// Lets the leg proceed by itself from now on: a client that reads slowly must not delay it and its stamps.
    pub(crate) fn set_free(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Pending(run) => {
                let mut task = JoinSet::new();
                task.spawn(run);
                State::Free(task)
            }
            state => state,
        };
    }

    /// Lets the leg end by itself, for so long, when the reply no longer needs it: workers are not told to abort what
    /// they have as good as done, and the profile waits for what the prefill worker measured.
    pub(crate) fn linger(mut self, limit: Duration) {
        if !self.is_live() {
            return;
        }
        // Without a runtime the program is ending, and the leg with it.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { drop(timeout(limit, self.settled()).await) });
        }
    }

    /// Whether it is not known yet how it ends.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state, State::Pending(_) | State::Free(_))
    }

    /// Counts a reply that went out with or without what the prefill worker measured, if that is merged at all.
    pub(crate) fn count(&self, core: &Core, is_merged: bool) {
        if self.is_merging {
            let counter = if is_merged { &core.counters.merged } else { &core.counters.unmerged };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Of two refusals the one that counts, where the first comes of a worker that is up and has only waited: if the time of
/// the other worker is up as well and it is down, it is to blame.
fn blame(waited: Refusal, other: Option<Refusal>) -> Refusal {
    other.filter(Refusal::is_silence).unwrap_or(waited)
}

/// The leg from begin to end.
async fn run(
    flight: Arc<Flight>,
    seat: Seat,
    outbound: Outbound,
    is_merging: bool,
) -> Result<PrefillShare, Refusal> {
    let limit_bytes = flight.core.options.startup().max_merge_bytes;
    let words = LastWords::new(&flight.facts, None);
    let mut answer = Answer::call(flight, RoleKind::Prefill, seat, outbound).await?;
    if !answer.is_success() {
        return Err(Box::pin(answer.into_refusal()).await?);
    }
    let (is_plain, is_events) = (answer.is_plain(), answer.is_event_stream());
    let collected = answer.body.collect(limit_bytes).await?;
    if collected.is_partial {
        while answer.body.next().await?.is_some() {}
    }
    let mut share = PrefillShare::default();
    let (mut reading, mut is_finished) = (Reading::default(), true);
    if is_plain && !collected.is_partial {
        if is_events {
            let share = is_merging.then_some(&mut share);
            (reading, is_finished) = read_events(&collected.bytes, words, share);
        } else {
            // What is no reply has not prefilled anything: decode would wait for it as long as it is let.
            let reply = Reply::scan(&collected.bytes).map_err(|why| answer.body.no_reply(why))?;
            if is_merging {
                share.add(&reply);
            }
            reading = Reading::of(&reply, None);
        }
    }
    answer.body.report(reading.said);
    if !is_finished {
        return Err(answer.body.unfinished());
    }
    if let Some(failure) = reading.failure {
        answer.body.end(Outcome::Failed, Some(failure));
        return Err(Refusal::Reply(Box::new(WorkerReply { head: answer.head, body: collected.bytes })));
    }
    answer.body.end(Outcome::Completed, None);
    Ok(share)
}

/// Reads a streamed reply that is there as a whole: what it says, and whether it said all it had to say. Its events are
/// read one by one only where they contribute to a share.
fn read_events(body: &Chunks, mut words: LastWords, mut share: Option<&mut PrefillShare>) -> (Reading, bool) {
    let mut splitter = EventSplitter::new(usize::MAX);
    for piece in body.pieces() {
        splitter.push(piece.clone());
    }
    let mut parts: Vec<Part> = std::iter::from_fn(|| splitter.next_part()).collect();
    parts.extend(splitter.finish());
    for part in parts {
        let Part::Event(event) = part else { continue };
        let Some(payload) = words.see(&event) else { continue };
        let Some(share) = &mut share else {
            words.note(0, payload);
            continue;
        };
        if let Ok(reply) = Reply::scan(&payload) {
            share.add(&reply);
            match reply.elements().first() {
                Some(element) => words.note_read(element, payload.clone()),
                None => words.note(0, payload.clone()),
            }
        }
    }
    words.read()
}
