//! The decode half: room is made for a request's keys and values, they come in, the request goes on from them.
//!
//! ```text
//! prealloc    not connected to its rank of its prefill server, or without pages and metadata slot
//! transfer    the prefill server knows of the allocation; pages and row come in
//! waiting, running   (as everywhere)
//! ```

pub(super) mod endings;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::core::{Core, Queue};
use super::late::{TimeLimit, take_late};
use super::occupation::WEIGHTS_REPLACED;
use super::prefills::{Connector, Peer, Prefill, asks_too_much, prefill_of};
use super::{Limits, take_for, take_where};
use crate::clock::Stamp;
use crate::disagg::frame::Frame;
use crate::disagg::{
    BootstrapAddr, End, Event, EventSender, FirstToken, Identity, LinkId, PrefillTiming, What,
};
use crate::output::Abort;
use crate::request::{Incoming, KvPoll, Pair, Request, Room};

#[derive(Debug)]
pub(super) struct DecodeSide {
    pub(super) prealloc: Queue,
    pub(super) transfer: Queue,
    prefills: BTreeMap<BootstrapAddr, Prefill>,
    connector: Connector,
}

/// Prefill servers that are looked for only to be told of what was given up, with all others.
const MAX_PREFILLS: usize = 1024;

// === impl DecodeSide ===

impl DecodeSide {
    pub(super) fn new(identity: Arc<Identity>, events: EventSender, runtime: Handle) -> Self {
        Self {
            prealloc: Queue::new(),
            transfer: Queue::new(),
            prefills: BTreeMap::new(),
            connector: Connector::new(identity, events, runtime),
        }
    }

    pub(super) fn submit(&mut self, core: &mut Core, mut request: Box<Request>) {
        let now = core.clock.now();
        request.stamps().prealloc_queue_entry = Some(now);
        (request.poll, request.queued) = (Some(KvPoll::Bootstrapping), core.active_now());
        if request.is_fake() {
            request.raise(KvPoll::WaitingForInput);
            request.stamps().bootstrap_done = Some(now);
            return self.prealloc.push_back(request);
        }
        if prefill_of(&request).is_none() {
            return core.fail(request, Abort::refused("bootstrap_host is missing"));
        }
        self.prealloc.push_back(request);
    }

    pub(super) fn handle(&mut self, core: &mut Core, Event { link, at, what }: Event) {
        if matches!(what, What::Frame(_))
            && let Some(peer) = self.peer(link)
        {
            peer.heard = Some(at);
        }
        match what {
            What::Found { dp_size } => {
                let found = self.prefills.values_mut().find(|prefill| prefill.id == link);
                let unheard = found.map(|prefill| prefill.found(dp_size)).unwrap_or_default();
                for (room, abort) in unheard {
                    self.tell(&room, abort);
                }
            }
            What::Opened { fingerprint, .. } if fingerprint != core.model.fingerprint() => {
                self.closed(core, link, &Abort::unavailable(WEIGHTS_REPLACED));
            }
            What::Opened { outbox, .. } => {
                if let Some(peer) = self.peer(link) {
                    peer.link.open(outbox);
                    peer.open_since = Some(at);
                }
            }
            What::Frame(Frame::Pages { room, first, data }) => {
                if let Err(why) = self.take_pages(core, link, (room, first), &data) {
                    self.closed(core, link, &Abort::failure(why));
                }
            }
            What::Frame(Frame::Row { room, data }) => {
                if let Err(why) = self.take_row(core, link, room, &data) {
                    self.closed(core, link, &Abort::failure(why));
                }
            }
            What::Frame(Frame::Abort { room, status, why, .. }) => {
                if let Some(peer) = self.peer(link)
                    && peer.ending.remove(&room)
                {
                    // Given up here as well, and nothing of it comes any more.
                    return;
                }
                let found = self.transfer.iter().position(|request| is_on(request, link, room));
                if let Some(request) = found.and_then(|index| self.transfer.remove(index)) {
                    core.fail(request, Abort { message: why, status: Some(status) });
                }
            }
            // The connection lets nothing else through.
            What::Frame(_) => {}
            What::Closed(End::Unfound(why)) => self.unfound(core, link, &Abort::failure(why)),
            What::Closed(end) => self.closed(core, link, &end.into()),
        }
    }

    /// Sends what did not fit before.
    pub(super) fn flush(&mut self) {
        for peer in self.prefills.values_mut().flat_map(Prefill::connections) {
            peer.link.flush();
        }
    }

    pub(super) fn advance(&mut self, core: &mut Core) {
        let now = core.clock.now();
        self.commit(core, now);
        self.meet(core);
        self.allocate(core, now);
    }

    /// Ends a request, and tells the prefill side if that is still at it.
    pub(super) fn give_up(&mut self, core: &mut Core, request: Box<Request>, why: Abort) {
        if let (Pair::Decode(incoming), Some(room)) = (&request.pair, &request.spec.room)
            && request.poll != Some(KvPoll::Success)
        {
            let (prepared, status, why) = (incoming.prepared, why.status_of_peer(), why.message.clone());
            let abort = Frame::Abort { room: room.number, prepared, status, why };
            match incoming.link {
                Some(link) => self.end_on(core, link, (room.number, prepared), abort),
                None => self.tell(room, abort),
            }
        }
        core.fail(request, why);
    }

    /// Tells the prefill side that a room was given up: now, or when it is found. One that nobody has asked for yet is looked for
    /// to that end, unless there are too many.
    fn tell(&mut self, room: &Room, abort: Frame) {
        let Self { prefills, connector, .. } = self;
        let Some(addr) = room.prefill.as_ref().filter(|_| room.number != 0) else { return };
        if !prefills.contains_key(addr) {
            if prefills.len() >= MAX_PREFILLS {
                return;
            }
            prefills.insert(addr.clone(), connector.seek(addr.clone()));
        }
        let Some(prefill) = prefills.get_mut(addr) else { return };
        match prefill.rank_of(room) {
            Some(rank) => connector.peer(prefill, (addr, rank)).link.send(abort),
            None => prefill.remember(room, abort),
        }
    }

    /// Those whose rank of their prefill server is connected have met it. Others have it looked for, or connected.
    fn meet(&mut self, core: &mut Core) {
        let Self { prealloc, prefills, .. } = self;
        for (request, why) in take_for(prealloc, |request| asks_too_much(request, prefills)) {
            self.give_up(core, request, Abort::refused(why));
        }
        let Self { prealloc, prefills, connector, .. } = self;
        for request in prealloc {
            if !matches!(request.pair, Pair::Decode(Incoming { link: None, .. })) {
                continue;
            }
            let Some(addr) = prefill_of(request) else { continue };
            if !prefills.contains_key(addr) {
                prefills.insert(addr.clone(), connector.seek(addr.clone()));
            }
            let Some(prefill) = prefills.get_mut(addr) else { continue };
            let Some(rank) = request.spec.room.as_ref().and_then(|room| prefill.rank_of(room)) else {
                continue;
            };
            let peer = connector.peer(prefill, (addr, rank));
            if peer.ending.contains(&request.room()) {
                continue;
            }
            let (Some(since), Pair::Decode(incoming)) = (peer.open_since, &mut request.pair) else {
                continue;
            };
            incoming.link = Some(peer.id);
            request.raise(KvPoll::WaitingForInput);
            let entry = request.spec.stamps.prealloc_queue_entry;
            request.stamps().bootstrap_done = entry.max(Some(since));
        }
    }

    /// Gives pages and slots to those who have met their prefill server, in order of arrival, and tells it.
    fn allocate(&mut self, core: &mut Core, now: Stamp) {
        if core.stillness.is_held() {
            return;
        }
        if !core.retracted.is_empty() {
            // They came earlier, and need the pages.
            return;
        }
        let mut index = 0;
        while let Some(request) = self.prealloc.get_mut(index) {
            let is_met = matches!(&request.pair, Pair::Decode(incoming) if incoming.link.is_some());
            if !is_met && !request.is_fake() {
                index += 1;
                continue;
            }
            if !core.slots.has_free() || !core.allocate(request) {
                return;
            }
            let Some(mut request) = self.prealloc.remove(index) else { return };
            request.stamps().transfer_queue_entry = Some(now);
            request.queued = core.active_now();
            if request.is_fake() {
                if let Pair::Decode(incoming) = &mut request.pair {
                    (incoming.slot, incoming.row_received) = (core.slots.alloc(), true);
                }
                // Nothing comes in, and what others have left there is nobody's business.
                for page in &request.pages {
                    core.kv.page_mut(*page).fill(0);
                }
                self.transfer.push_back(request);
                continue;
            }
            let pages = core.kv.pages_for(request.prompt_len()) as u32;
            let prepare = Frame::Prepare { room: request.room(), pages };
            if let Pair::Decode(Incoming { link: Some(link), slot, prepared, .. }) = &mut request.pair {
                (*slot, *prepared) = (core.slots.alloc(), true);
                self.send(*link, prepare);
            }
            self.transfer.push_back(request);
        }
    }

    /// Pages have come in. An error is the peer's fault.
    fn take_pages(
        &mut self,
        core: &mut Core,
        link: LinkId,
        (room, first): (u64, u32),
        data: &[u8],
    ) -> Result<(), String> {
        // A room that was given up meanwhile: the prefill server has not heard of it yet.
        let Some(request) = self.transfer.iter_mut().find(|request| is_on(request, link, room)) else {
            return Ok(());
        };
        let expected = core.kv.pages_for(request.prompt_len());
        let pages = &request.pages;
        let Pair::Decode(incoming) = &mut request.pair else { return Ok(()) };
        let page_bytes = core.kv.page_bytes();
        let count = data.len() / page_bytes;
        let fits = first as usize == incoming.received_pages
            && data.len() == count * page_bytes
            && incoming.received_pages + count <= expected;
        if !fits {
            return Err(format!("prefill server sent pages out of place, room {room}"));
        }
        for (page, bytes) in pages[incoming.received_pages..].iter().zip(data.chunks_exact(page_bytes)) {
            core.kv.page_mut(*page).copy_from_slice(bytes);
        }
        incoming.received_pages += count;
        request.raise(KvPoll::Transferring);
        Ok(())
    }

    /// The metadata row has come in, behind the last page. An error is the peer's fault.
    fn take_row(&mut self, core: &mut Core, link: LinkId, room: u64, data: &[u8]) -> Result<(), String> {
        let Some(request) = self.transfer.iter_mut().find(|request| is_on(request, link, room)) else {
            return Ok(());
        };
        let expected = core.kv.pages_for(request.prompt_len());
        let Pair::Decode(incoming) = &mut request.pair else { return Ok(()) };
        if incoming.received_pages != expected || incoming.row_received {
            return Err(format!("prefill server sent a metadata row out of place, room {room}"));
        }
        if let Some(slot) = &incoming.slot {
            core.slots.row_mut(slot).copy_from_slice(data);
            incoming.row_received = true;
        }
        Ok(())
    }

    /// Takes over the requests whose row has come in, if it is theirs.
    fn commit(&mut self, core: &mut Core, now: Stamp) {
        let arrived = take_where(
            &mut self.transfer,
            |request| matches!(&request.pair, Pair::Decode(incoming) if incoming.row_received),
        );
        for mut request in arrived {
            let room = request.room();
            let vocab_size = core.model.config().vocab_size;
            let Pair::Decode(incoming) = &mut request.pair else { continue };
            let row = incoming.slot.as_ref().and_then(|slot| FirstToken::read(core.slots.row_mut(slot)));
            match row {
                // The row of a fake transfer is as it was allocated: room 0, token 0.
                Some(first) if first.room == room && (first.token as usize) < vocab_size => {
                    let timing = Some(first.timing).filter(|timing| *timing != PrefillTiming::default());
                    incoming.first = Some(first);
                    if let Some(slot) = incoming.slot.take() {
                        core.slots.release(slot);
                    }
                    if let Some(link) = incoming.link {
                        self.send(link, Frame::Done { room });
                    }
                    request.computed = request.prompt_len();
                    request.raise(KvPoll::Success);
                    request.stamps().prefill = timing;
                    request.stamps().wait_queue_entry = Some(now);
                    request.queued = core.active_now();
                    core.waiting.push_back(request);
                }
                row => {
                    let found = row.map_or(0, |row| row.room);
                    let why = format!("Metadata corruption detected: row of room {found} for room {room}");
                    self.give_up(core, request, Abort::failure(why));
                }
            }
        }
    }

    /// Gives up what has taken too long.
    pub(super) fn time_out(&mut self, core: &mut Core) {
        let Limits { bootstrap_timeout, waiting_timeout, transfer_timeout, .. } = core.limits;
        let polls = &[KvPoll::Bootstrapping];
        let of_prealloc = [
            TimeLimit { polls, limit: bootstrap_timeout, end: Abort::failure },
            TimeLimit { polls, limit: transfer_timeout, end: Abort::timed_out },
        ];
        let of_transfer = [
            TimeLimit { polls: &[KvPoll::WaitingForInput], limit: waiting_timeout, end: Abort::failure },
            TimeLimit {
                polls: &[KvPoll::WaitingForInput, KvPoll::Transferring],
                limit: transfer_timeout,
                end: Abort::failure,
            },
        ];
        let active = core.active_now();
        let mut late = take_late(&mut self.prealloc, active, &of_prealloc);
        late.extend(take_late(&mut self.transfer, active, &of_transfer));
        for (request, why) in late {
            core.count_timeout(&request);
            let prepared = match &request.pair {
                Pair::Decode(Incoming { link: Some(link), prepared: true, .. }) => Some(*link),
                _ => None,
            };
            let since = request.spec.stamps.transfer_queue_entry;
            self.give_up(core, request, why);
            if let (Some(link), Some(since)) = (prepared, since) {
                self.doubt(link, since);
            }
        }
        let Self { transfer, prefills, .. } = self;
        prefills.retain(|_, prefill| {
            let was_silent = !prefill.silent.is_empty();
            prefill.silent.retain(|peer| transfer.iter().any(|request| is_at(request, peer.id)));
            !was_silent || prefill.is_connected()
        });
    }

    fn peer(&mut self, link: LinkId) -> Option<&mut Peer> {
        self.prefills.values_mut().flat_map(Prefill::connections).find(|peer| peer.id == link)
    }

    fn send(&mut self, link: LinkId, frame: Frame) {
        if let Some(peer) = self.peer(link) {
            peer.link.send(frame);
        }
    }
}

/// Whether a request goes over a connection.
fn is_at(request: &Request, link: LinkId) -> bool {
    matches!(&request.pair, Pair::Decode(incoming) if incoming.link == Some(link))
}

/// Whether a request is that of a room on a connection.
fn is_on(request: &Request, link: LinkId, room: u64) -> bool {
    request.room() == room && is_at(request, link)
}
