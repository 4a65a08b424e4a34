//! The prefill half: requests wait for the decode side, and their pages go out as they are computed.
//!
//! ```text
//! bootstrap   the decode side has not announced the room, or no metadata slot is free
//! waiting, running   (as everywhere; complete pages are sent after each chunk)
//! inflight    all computed; pages, row and the decode side's confirmation are outstanding
//! ```
//!
//! The two halves of a request come in either order, and either may be given up before the other has come. What is known of
//! a room without a request is kept in [`PrefillSide::early`].

use std::collections::BTreeMap;

use bytes::BytesMut;
use rollscope_model::KvPool;

use super::core::{Core, Queue};
use super::late::{TimeLimit, take_late};
use super::occupation::WEIGHTS_REPLACED;
use super::{Limits, take_where};
use crate::clock::{Clock, Stamp};
use crate::disagg::frame::Frame;
use crate::disagg::{Event, Link, LinkId, MetadataBuffers, What, pages_per_frame};
use crate::output::{Abort, Finish};
use crate::request::{KvPoll, Outgoing, Pair, Request};

#[derive(Debug, Default)]
pub(super) struct PrefillSide {
    pub(super) bootstrap: Queue,
    pub(super) inflight: Queue,
    links: BTreeMap<LinkId, Link>,
    /// By room.
    early: BTreeMap<u64, Early>,
}

/// What is known of a room whose request is not here.
#[derive(Debug)]
enum Early {
    /// The decode side waits for it.
    Announced { link: LinkId, pages: u32, at: Stamp },
    /// One half was given up before the other came.
    Gone { why: String, at: Stamp },
}

/// Rooms that may be known without a request. Beyond, those that are gone are forgotten, so that who still looks for one
/// waits for its timeout; then announcements are turned down.
const MAX_EARLY: usize = 65_536;

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
        match self.early.remove(&room) {
            Some(Early::Announced { link, pages, at }) => {
                self.bootstrap.push_back(request);
                self.announce(core, link, (room, pages), at);
            }
            Some(Early::Gone { why, .. }) => core.fail(request, Abort::failure(why)),
            None => self.bootstrap.push_back(request),
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
            What::Frame(Frame::Abort { room, prepared, why }) => {
                self.abort(core, link, (room, prepared), &why);
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
        let told = format!("prefill server gave the request up: {}", why.message);
        let announced = match self.early.remove(&room) {
            Some(Early::Announced { link, .. }) => Some(link),
            _ => None,
        };
        let link = match &request.pair {
            Pair::Prefill(Outgoing { link: Some(link), .. }) => Some(*link),
            _ => announced,
        };
        match link {
            Some(link) => self.tell_abort(link, room, told),
            None => self.remember(room, told, core.clock.now()),
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
                return self.tell_abort(link, room, format!("bootstrap_room was announced twice: {room}"));
            }
            outgoing.link = Some(link);
            request.raise(KvPoll::WaitingForInput);
            request.stamps().bootstrap_done = request.stamps().bootstrap_queue_entry.max(Some(at));
            return;
        }
        let why = format!(
            "the two halves of room {room} differ: its prompt takes {expected} pages, decode allocated {pages}"
        );
        self.tell_abort(link, room, why.clone());
        if let Some(request) = self.bootstrap.remove(index) {
            core.fail(request, Abort::failure(why));
        }
    }

    /// The decode side has allocated pages for a room whose request is not here, or has its decode side already.
    fn announce_early(&mut self, core: &Core, link: LinkId, (room, pages): (u64, u32), at: Stamp) {
        let why = match self.early.remove(&room) {
            _ if core.rooms.own().contains(&room) => format!("bootstrap_room is in use: {room}"),
            Some(announced @ Early::Announced { .. }) => {
                self.early.insert(room, announced);
                format!("bootstrap_room was announced twice: {room}")
            }
            Some(Early::Gone { why, .. }) => why,
            None if self.make_place() => {
                self.early.insert(room, Early::Announced { link, pages, at });
                return;
            }
            None => "too many rooms wait for their prefill half".to_owned(),
        };
        self.tell_abort(link, room, why);
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

    /// The decode side gives a room up.
    fn abort(&mut self, core: &mut Core, link: LinkId, (room, prepared): (u64, bool), why: &str) {
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
        let why = format!("decode server gave the request up: {why}");
        if let Some(request) = found {
            return core.fail(request, Abort::failure(why));
        }
        let was_announced =
            matches!(self.early.get(&room), Some(Early::Announced { link: of, .. }) if *of == link);
        // Otherwise it crosses the end of a transfer, or the other half's own abort.
        if was_announced || (!prepared && !core.rooms.own().contains(&room)) {
            self.early.remove(&room);
            self.remember(room, why, core.clock.now());
        }
    }

    /// A connection is over: so are its rooms.
    fn closed(&mut self, core: &mut Core, link: LinkId, why: &Abort) {
        self.links.remove(&link);
        self.early.retain(|_, early| !matches!(early, Early::Announced { link: of, .. } if *of == link));
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
        let now = core.clock.now();
        self.early.retain(|_, early| match early {
            // The decode side has its own limit and gives them up.
            Early::Announced { .. } => true,
            Early::Gone { at, .. } => now.since(*at) <= bootstrap_timeout,
        });
    }

    /// Keeps that a half of a room was given up, for the other one when it comes.
    fn remember(&mut self, room: u64, why: String, at: Stamp) {
        if self.make_place() {
            self.early.insert(room, Early::Gone { why, at });
        }
    }

    /// Whether there is a place for one more early room.
    fn make_place(&mut self) -> bool {
        if self.early.len() >= MAX_EARLY {
            self.early.retain(|_, early| matches!(early, Early::Announced { .. }));
        }
        self.early.len() < MAX_EARLY
    }

    fn tell_abort(&mut self, link: LinkId, room: u64, why: String) {
        if let Some(link) = self.links.get_mut(&link) {
            link.send(Frame::Abort { room, prepared: true, why });
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

/// Sends what is complete and was not sent, as far as the connection takes it.
fn pump(
    links: &mut BTreeMap<LinkId, Link>,
    (kv, slots): (&KvPool, &MetadataBuffers),
    request: &mut Request,
    clock: &Clock,
) {
    let is_computed = request.is_prompt_computed();
    let complete =
        if is_computed { kv.pages_for(request.prompt_len()) } else { request.computed / kv.page_tokens() };
    let room = request.room();
    let Pair::Prefill(outgoing) = &mut request.pair else { return };
    let Some(link) = outgoing.link.and_then(|link| links.get_mut(&link)) else { return };
    while outgoing.sent_pages < complete {
        let first = outgoing.sent_pages;
        let count = pages_per_frame(kv.page_bytes()).min(complete - first);
        let start = clock.now();
        let offered = link.offer(|| {
            let mut data = BytesMut::with_capacity(count * kv.page_bytes());
            for page in &request.pages[first..first + count] {
                data.extend_from_slice(kv.page(*page));
            }
            Frame::Pages { room, first: first as u32, data: data.freeze() }
        });
        if !offered {
            return;
        }
        outgoing.meter.sent(count * kv.page_bytes(), start);
        outgoing.sent_pages += count;
        request.poll = request.poll.max(Some(KvPoll::Transferring));
    }
    if is_computed
        && !outgoing.row_sent
        && let Some(slot) = &outgoing.slot
    {
        let row = slots.copy(slot);
        let (bytes, start) = (row.len(), clock.now());
        outgoing.row_sent = link.offer(|| Frame::Row { room, data: row });
        if outgoing.row_sent {
            outgoing.meter.sent(bytes, start);
        }
    }
}
