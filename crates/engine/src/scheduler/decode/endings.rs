//! Connections to prefill servers that end, or are as good as ended, and what becomes of the requests on them.

use super::super::core::{Core, Queue};
use super::super::occupation::WEIGHTS_REPLACED;
use super::super::prefills::{Prefill, prefill_of};
use super::super::take_where;
use super::{DecodeSide, is_at};
use crate::clock::Stamp;
use crate::disagg::LinkId;
use crate::disagg::frame::Frame;
use crate::output::Abort;
use crate::request::{Incoming, Pair, Request};

/// Rooms that were given up on one connection, without an answer: some times as many as may be prepared at once.
pub(in super::super) const MAX_ENDING: usize = 65_536;

// === impl DecodeSide ===

impl DecodeSide {
    /// Tells that a room was given up. Of one that was prepared something may be under way, which is not to be taken for that of
    /// another request with its room: that one meets its prefill server when this is answered, or crosses an abort of its own. The
    /// connection to one that answers none of them is given up.
    pub(super) fn end_on(
        &mut self,
        core: &mut Core,
        link: LinkId,
        (room, prepared): (u64, bool),
        abort: Frame,
    ) {
        let Some(peer) = self.peer(link) else { return };
        peer.link.send(abort);
        if prepared {
            peer.ending.insert(room);
            if peer.ending.len() > MAX_ENDING {
                let why = "prefill server does not answer when requests are given up";
                self.closed(core, link, &Abort::unavailable(why));
            }
        }
    }

    /// A connection is over, or has never been: so are the requests that wait for it.
    pub(super) fn closed(&mut self, core: &mut Core, link: LinkId, why: &Abort) {
        for request in self.drop_connection(link, |_, _| true) {
            core.fail(request, why.clone());
        }
    }

    /// Nobody was found however often it was tried, which ends those that have waited for all of that. Others have it begun anew.
    pub(super) fn unfound(&mut self, core: &mut Core, link: LinkId, why: &Abort) {
        let was_there = |request: &Request, since| request.spec.stamps.prealloc_queue_entry <= Some(since);
        for request in self.drop_connection(link, was_there) {
            core.fail(request, why.clone());
        }
    }

    /// Drops a connection or search, and takes the requests that wait for it and are to end with it; the condition is told when it
    /// began.
    fn drop_connection(&mut self, link: LinkId, ends: impl Fn(&Request, Stamp) -> bool) -> Queue {
        let mut all = self.prefills.iter_mut();
        let began = |prefill: &mut Prefill| {
            let peer = prefill.connections().find(|peer| peer.id == link).map(|peer| peer.since);
            peer.or((prefill.id == link).then_some(prefill.since))
        };
        let found = all.find_map(|(addr, prefill)| Some((addr.clone(), began(prefill)?)));
        let Some((addr, since)) = found else { return Queue::new() };
        let Some(mut prefill) = self.prefills.remove(&addr) else { return Queue::new() };
        let lost = |request: &Request| {
            let on = if let Pair::Decode(Incoming { link: Some(on), .. }) = &request.pair {
                *on
            } else {
                let rank = request.spec.room.as_ref().and_then(|room| prefill.rank_of(room));
                rank.and_then(|rank| prefill.peers.get(&rank)).map_or(prefill.id, |peer| peer.id)
            };
            prefill_of(request) == Some(&addr) && on == link && ends(request, since)
        };
        let mut taken = take_where(&mut self.prealloc, lost);
        taken.extend(take_where(&mut self.transfer, lost));
        prefill.peers.retain(|_, peer| peer.id != link);
        prefill.silent.retain(|peer| peer.id != link);
        // With its last connection it may have gone: whoever asks for it next looks for it anew.
        if prefill.is_connected() {
            self.prefills.insert(addr, prefill);
        }
        taken
    }

    /// Ends all connections: what was agreed on is no longer so, and the other halves learn of it. Where nothing was agreed on yet, it
    /// goes on, and what is to be told there stays.
    pub(in super::super) fn disconnect(&mut self, core: &mut Core) {
        let peers = self.prefills.values_mut().flat_map(Prefill::connections);
        let open: Vec<LinkId> = peers.filter(|peer| peer.open_since.is_some()).map(|peer| peer.id).collect();
        let is_agreed_on = |request: &Request| open.iter().any(|link| is_at(request, *link));
        let mut failed = take_where(&mut self.prealloc, is_agreed_on);
        failed.extend(take_where(&mut self.transfer, is_agreed_on));
        for request in failed {
            self.give_up(core, request, Abort::unavailable(WEIGHTS_REPLACED));
        }
        self.prefills.retain(|_, prefill| {
            for mut peer in prefill.take_open() {
                peer.link.send(Frame::Refuse(WEIGHTS_REPLACED.to_owned()));
            }
            prefill.is_needed()
        });
    }

    /// A room was given up. If nothing came on its connection since it was prepared, that may be frozen: others go over to a new one,
    /// and have met their prefill server all the same. Those that are prepared stay, as it may have had nothing to say.
    pub(super) fn doubt(&mut self, link: LinkId, since: Stamp) {
        let Self { prealloc, prefills, connector, .. } = self;
        let found = prefills.iter_mut().find_map(|(addr, prefill)| {
            let rank = prefill.doubt(link, since)?;
            Some((addr, prefill, rank))
        });
        let Some((addr, prefill, rank)) = found else { return };
        for request in prealloc.iter_mut().filter(|request| is_at(request, link)) {
            if let Pair::Decode(incoming) = &mut request.pair {
                incoming.link = Some(connector.peer(prefill, (addr, rank)).id);
            }
        }
    }
}
