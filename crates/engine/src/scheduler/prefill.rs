//! The prefill half: requests wait for the decode side, and their pages go out as they are computed.
//!
//! ```text
//! bootstrap   the decode side has not announced the room, or no metadata slot is free
//! waiting, running   (as everywhere; complete pages are sent after each chunk)
//! inflight    all computed; pages, row and the decode side's confirmation are outstanding
//! ```
//!
//! The two halves of a request come in either order, and either may be given up before the other has come. Rooms that the decode
//! side waits for are in [`PrefillSide::early`], those that a half was given up of are with the rooms of all ranks: the decode
//! side may come to another rank than the request.

use std::collections::BTreeMap;

use super::core::{Core, Queue};
use super::early::{Announced, Early, MAX_OF_LINK, Turned};
use super::late::{TimeLimit, take_late};
use super::occupation::WEIGHTS_REPLACED;
use super::pump::pump;
use super::{Limits, take_for, take_where};
use crate::clock::Stamp;
use crate::disagg::frame::Frame;
use crate::disagg::{Event, Link, LinkId, What};
use crate::output::{Abort, Finish};
use crate::request::{KvPoll, Outgoing, Pair, Request};

#[derive(Debug, Default)]
pub(super) struct PrefillSide {
    pub(super) bootstrap: Queue,
    pub(super) inflight: Queue,
    links: BTreeMap<LinkId, Link>,
    early: Early,
}

// === impl PrefillSide ===

impl PrefillSide {
    pub(super) fn submit(&mut self, core: &mut Core, mut request: Box<Request>) {
        let now = core.clock.now();
        request.stamps().bootstrap_queue_entry = Some(now);
        (request.poll, request.queued) = (Some(KvPoll::Bootstrapping), core.active_now());
        let room = request.room();
        if request.is_fake() {
            request.raise(KvPoll::WaitingForInput);
            request.stamps().bootstrap_done = Some(now);
            return self.bootstrap.push_back(request);
        }
        if let Some(why) = gone(core, room) {
            return core.fail(request, why);
        }
        self.bootstrap.push_back(request);
        if let Some(Announced { link, pages, at, .. }) = self.early.take(room) {
            self.announce(core, link, (room, pages), at);
        }
    }

    pub(super) fn handle(&mut self, core: &mut Core, Event { link, at, what }: Event) {
        match what {
            What::Opened { outbox, fingerprint } => {
                let mut opened = Link::default();
                opened.open(outbox);
                if fingerprint == core.model.fingerprint() {
                    self.links.insert(link, opened);
                } else {
                    // They agreed on other weights.
                    opened.send(Frame::Refuse(WEIGHTS_REPLACED.to_owned()));
                }
            }
            What::Frame(Frame::Prepare { room, pages }) => self.announce(core, link, (room, pages), at),
            What::Frame(Frame::Received { room, bytes }) => {
                if let Some(outgoing) = self.outgoing(core, link, room) {
                    outgoing.meter.confirmed(bytes, at);
                }
            }
            What::Frame(Frame::Done { room }) => self.done(core, link, (room, at)),
            What::Frame(Frame::Abort { room, prepared, status, why }) => {
                let message = format!("decode server gave the request up: {why}");
                self.abort(core, link, (room, prepared), Abort { message, status: Some(status) });
            }
            // The connection lets nothing else through, and only a decode server looks for others.
            What::Frame(_) | What::Found { .. } => {}
            What::Closed(end) => self.closed(core, link, &end.into()),
        }
    }

    /// Sends what did not fit before.
    pub(super) fn flush(&mut self) {
        self.links.values_mut().for_each(Link::flush);
    }

    /// Whether rooms were announced whose requests have not come.
    pub(super) fn expects(&self) -> bool {
        !self.early.is_empty()
    }

    pub(super) fn advance(&mut self, core: &mut Core) {
        let now = core.clock.now();
        for mut request in std::mem::take(&mut core.prefilled) {
            request.stamps().transfer_queue_entry = Some(now);
            request.queued = core.active_now();
            if request.is_fake() {
                request.raise(KvPoll::Success);
                core.complete(request, Finish::Length(0));
            } else {
                self.inflight.push_back(request);
            }
        }
        self.leave_bootstrap(core, now);
        for request in core.running.iter_mut().chain(&mut self.inflight) {
            pump(&mut self.links, (&core.kv, &core.slots), request, &core.clock);
        }
    }

    /// Ends a request, and tells the decode side, or will when that comes.
    pub(super) fn give_up(&mut self, core: &mut Core, request: Box<Request>, why: Abort) {
        if request.is_fake() {
            return core.fail(request, why);
        }
        let room = request.room();
        let message = format!("prefill server gave the request up: {}", why.message);
        let told = Abort { message, status: Some(why.status_of_peer()) };
        let announced = self.early.take(room).map(|announced| announced.link);
        let link = match &request.pair {
            Pair::Prefill(Outgoing { link: Some(link), .. }) => Some(*link),
            _ => announced,
        };
        match link {
            Some(link) => self.tell_abort(link, room, told),
            None => remember(core, room, told),
        }
        core.fail(request, why);
    }

    /// The decode side has allocated pages for a room.
    fn announce(&mut self, core: &mut Core, link: LinkId, (room, pages): (u64, u32), at: Stamp) {
        let Some(index) = self.bootstrap.iter().position(|request| request.room() == room) else {
            return self.announce_early(core, link, (room, pages), at);
        };
        let expected = core.kv.pages_for(self.bootstrap[index].prompt_len());
        if expected == pages as usize {
            let request = &mut self.bootstrap[index];
            let Pair::Prefill(outgoing) = &mut request.pair else { return };
            if outgoing.link.is_some() {
                return self.tell_abort(link, room, announced_twice(room));
            }
            outgoing.link = Some(link);
            request.raise(KvPoll::WaitingForInput);
            request.stamps().bootstrap_done = request.stamps().bootstrap_queue_entry.max(Some(at));
            return;
        }
        let why = Abort::failure(format!(
            "the two halves of room {room} differ: its prompt takes {expected} pages, decode allocated {pages}"
        ));
        self.tell_abort(link, room, why.clone());
        if let Some(request) = self.bootstrap.remove(index) {
            core.fail(request, why);
        }
    }

    /// The decode side has allocated pages for a room whose request is not here, or has its decode side already.
    fn announce_early(&mut self, core: &mut Core, link: LinkId, (room, pages): (u64, u32), at: Stamp) {
        let why = if core.rooms.own().contains(&room) {
            Abort::failure(format!("bootstrap_room is in use: {room}"))
        } else if let Some((why, word)) = astray(core, room) {
            remember(core, room, word);
            why
        } else if let Some(why) = gone(core, room) {
            why
        } else {
            let announced = Announced { link, pages, at, queued: core.active_now() };
            match self.early.announce(room, announced) {
                Ok(()) => return,
                Err(Turned::Twice) => announced_twice(room),
                Err(Turned::Greedy) => return self.refuse_greedy(core, link, room),
                Err(Turned::Full) => {
                    let why = Abort::unavailable("too many rooms wait for their prefill half");
                    remember(core, room, why.clone());
                    why
                }
            }
        };
        self.tell_abort(link, room, why);
    }

    /// Ends the connection of a decode server that would take the place of the others.
    fn refuse_greedy(&mut self, core: &mut Core, link: LinkId, room: u64) {
        let why = format!("more than {MAX_OF_LINK} rooms of one decode server wait for their prefill half");
        if let Some(link) = self.links.get_mut(&link) {
            link.send(Frame::Refuse(why.clone()));
        }
        let why = Abort::unavailable(why);
        remember(core, room, why.clone());
        self.closed(core, link, &why);
    }

    /// The decode side has taken everything over.
    fn done(&mut self, core: &mut Core, link: LinkId, (room, at): (u64, Stamp)) {
        let is_it = |request: &Request| match &request.pair {
            Pair::Prefill(outgoing) => outgoing.link == Some(link) && outgoing.row_sent,
            _ => false,
        };
        let found = self.inflight.iter().position(|request| request.room() == room && is_it(request));
        let Some(mut request) = found.and_then(|index| self.inflight.remove(index)) else { return };
        if let Pair::Prefill(outgoing) = &mut request.pair {
            // Nothing is taken over that has not arrived, whatever else was confirmed.
            outgoing.meter.confirmed(u64::MAX, at);
            let transfer = outgoing.meter.transferred();
            core.last_transfer = transfer.speed_gib_s().map(|speed| (speed, transfer.busy_s));
            request.stamps().transfer = Some(transfer);
        }
        request.raise(KvPoll::Success);
        // The row was sent after this entry, so its confirmation is later.
        let entry = request.stamps().transfer_queue_entry;
        request.stamps().completion = entry.max(Some(at));
        core.observe(&request);
        core.retire(request, Finish::Length(0));
    }

    /// The decode side gives a room up. One that it had announced it does not announce anew before it knows that nothing more of it is
    /// under way.
    fn abort(&mut self, core: &mut Core, link: LinkId, (room, prepared): (u64, bool), why: Abort) {
        let is_it = |request: &Request| match &request.pair {
            Pair::Prefill(outgoing) if request.room() == room => {
                outgoing.link == Some(link) || (!prepared && outgoing.link.is_none())
            }
            _ => false,
        };
        let found = self.queues(core).into_iter().find_map(|queue| {
            let index = queue.iter().position(|request| is_it(request))?;
            queue.remove(index)
        });
        let was_announced = self.early.is_of(room, link);
        if prepared && (found.is_some() || was_announced) {
            self.tell_abort(link, room, why.clone());
        }
        if let Some(request) = found {
            return core.fail(request, why);
        }
        // Otherwise it crosses the end of a transfer, or the other half's own abort, which is as good as an answer.
        if was_announced || (!prepared && !core.rooms.own().contains(&room)) {
            if was_announced {
                self.early.take(room);
            }
            remember(core, room, why);
        }
    }

    /// A connection is over: so are its rooms.
    fn closed(&mut self, core: &mut Core, link: LinkId, why: &Abort) {
        self.links.remove(&link);
        for (room, _, ()) in self.early.take_for(|_, announced| (announced.link == link).then_some(())) {
            remember(core, room, why.clone());
        }
        let lost = |request: &Request| match &request.pair {
            Pair::Prefill(outgoing) => outgoing.link == Some(link),
            _ => false,
        };
        let mut failed = Vec::new();
        for queue in self.queues(core) {
            failed.extend(take_where(queue, lost));
        }
        for request in failed {
            core.fail(request, why.clone());
        }
    }

    /// Ends all connections: what was agreed on is no longer so.
    pub(super) fn disconnect(&mut self, core: &mut Core) {
        self.links.values_mut().for_each(|link| link.send(Frame::Refuse(WEIGHTS_REPLACED.to_owned())));
        let links: Vec<_> = self.links.keys().copied().collect();
        for link in links {
            self.closed(core, link, &Abort::unavailable(WEIGHTS_REPLACED));
        }
    }

    /// Those whose decode side is there go on as metadata slots are free.
    fn leave_bootstrap(&mut self, core: &mut Core, now: Stamp) {
        if core.stillness.is_held() {
            return;
        }
        let mut index = 0;
        while let Some(request) = self.bootstrap.get_mut(index) {
            if request.poll == Some(KvPoll::Bootstrapping) {
                index += 1;
                continue;
            }
            let Pair::Prefill(outgoing) = &mut request.pair else { return };
            let Some(slot) = core.slots.alloc() else { return };
            outgoing.slot = Some(slot);
            if let Some(mut request) = self.bootstrap.remove(index) {
                request.stamps().wait_queue_entry = Some(now);
                request.queued = core.active_now();
                core.waiting.push_back(request);
            }
        }
    }

    /// Gives up what has taken too long.
    pub(super) fn time_out(&mut self, core: &mut Core) {
        let Limits { bootstrap_timeout, transfer_timeout, .. } = core.limits;
        let polls = &[KvPoll::Bootstrapping];
        let of_bootstrap = [
            TimeLimit { polls, limit: bootstrap_timeout, end: Abort::failure },
            TimeLimit { polls, limit: transfer_timeout, end: Abort::timed_out },
        ];
        let polls = &[KvPoll::WaitingForInput, KvPoll::Transferring];
        let of_inflight = [TimeLimit { polls, limit: transfer_timeout, end: Abort::timed_out }];
        let active = core.active_now();
        let mut late = take_late(&mut self.bootstrap, active, &of_bootstrap);
        late.extend(take_late(&mut self.inflight, active, &of_inflight));
        for (request, why) in late {
            core.count_timeout(&request);
            self.give_up(core, request, why);
        }
        self.time_out_early(core);
    }

    /// Gives up the halves whose other half has gone, or is at another rank, or does not come.
    fn time_out_early(&mut self, core: &mut Core) {
        let Limits { bootstrap_timeout, waiting_timeout, transfer_timeout, .. } = core.limits;
        core.rooms.expire(core.clock.now(), bootstrap_timeout);
        let has_gone = |request: &Request| {
            request.poll.filter(|poll| *poll == KvPoll::Bootstrapping)?;
            gone(core, request.room())
        };
        for (request, why) in take_for(&mut self.bootstrap, has_gone) {
            core.fail(request, why);
        }
        // The decode side has a limit of its own; this one is for those that have gone without a word.
        let (limit, active) =
            (bootstrap_timeout.max(waiting_timeout).max(transfer_timeout), core.active_now());
        let lost = |room: u64, announced: &Announced| {
            let why = gone(core, room).or_else(|| {
                let is_late = active.since(announced.queued) > limit;
                let after_s = limit.as_secs_f64();
                is_late.then(|| {
                    Abort::failure(format!("the prefill half of room {room} has not come for {after_s}s"))
                })
            });
            astray(core, room).or_else(|| why.map(|why| (why.clone(), why)))
        };
        for (room, Announced { link, .. }, (why, word)) in self.early.take_for(lost) {
            remember(core, room, word);
            self.tell_abort(link, room, why);
        }
    }

    fn tell_abort(&mut self, link: LinkId, room: u64, why: Abort) {
        if let Some(link) = self.links.get_mut(&link) {
            let status = why.status_of_peer();
            link.send(Frame::Abort { room, prepared: true, status, why: why.message });
        }
    }

    /// All that hold requests.
    fn queues<'a>(&'a mut self, core: &'a mut Core) -> [&'a mut Queue; 6] {
        let Core { waiting, running, retracted, prefilled, .. } = core;
        [&mut self.bootstrap, &mut self.inflight, waiting, running, retracted, prefilled]
    }

    /// The sending half of a room that goes over this connection.
    fn outgoing<'a>(&'a mut self, core: &'a mut Core, link: LinkId, room: u64) -> Option<&'a mut Outgoing> {
        let queues = self.queues(core).into_iter();
        let request = queues.flatten().find(|request| request.room() == room)?;
        match &mut request.pair {
            Pair::Prefill(outgoing) if outgoing.link == Some(link) => Some(outgoing),
            _ => None,
        }
    }
}

fn announced_twice(room: u64) -> Abort {
    Abort::failure(format!("bootstrap_room was announced twice: {room}"))
}

/// How a half of a room ends whose other half was given up.
fn gone(core: &Core, room: u64) -> Option<Abort> {
    core.rooms.gone(room, core.clock.now(), core.limits.bootstrap_timeout)
}

/// Keeps how a half of a room is to end that has not come here.
fn remember(core: &Core, room: u64, why: Abort) {
    let now = core.clock.now();
    // What stands there for longer than it is kept says nothing of this one.
    core.rooms.expire(now, core.limits.bootstrap_timeout);
    core.rooms.remember(room, why, now);
}

/// How the decode half of a room ends whose request is at another rank, and how the request ends.
fn astray(core: &Core, room: u64) -> Option<(Abort, Abort)> {
    let (there, here) = (core.rooms.elsewhere(room)?, core.rooms.rank());
    let refused =
        |whose: &str, rank: usize| Abort::refused(format!("{whose} at another data-parallel rank: {rank}"));
    Some((refused("bootstrap_room is", there), refused("decode server announced bootstrap_room", here)))
}
