//! The prefill servers that a decode server works with: found first, as where to connect depends on how many ranks they have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::clock::Stamp;
use crate::disagg::frame::Frame;
use crate::disagg::{BootstrapAddr, EventSender, Identity, Link, LinkId, connect, seek};
use crate::ranks::rank_of_room;
use crate::request::{Request, Room};

/// A prefill server: `sought → found → (gone)` or `sought → (gone)`.
#[derive(Debug)]
pub(super) struct Prefill {
    /// The search for it.
    pub(super) id: LinkId,
    /// When that began.
    pub(super) since: Stamp,
    /// How many ranks it has, once it is found.
    pub(super) dp_size: Option<usize>,
    /// Those that were needed.
    pub(super) peers: BTreeMap<usize, Peer>,
    /// Connections that no further room is given to, as nothing was heard of those that they have.
    pub(super) silent: Vec<Peer>,
    /// Aborts of rooms whose rank is not known yet.
    unheard: Vec<(Room, Frame)>,
}

/// A rank of a prefill server: `connecting → open → (gone)` or `connecting → (gone)`.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: LinkId,
    /// When it was begun to connect.
    pub(super) since: Stamp,
    pub(super) link: Link,
    pub(super) open_since: Option<Stamp>,
    /// When it last said anything.
    pub(super) heard: Option<Stamp>,
    /// Rooms that were prepared and given up here, of which it has not said that it knows.
    pub(super) ending: BTreeSet<u64>,
}

/// Looks for servers and connects to them.
#[derive(Debug)]
pub(super) struct Connector {
    next_link: u64,
    identity: Arc<Identity>,
    events: EventSender,
    runtime: Handle,
    /// One a search or peer. They end with this.
    tasks: JoinSet<()>,
}

/// Aborts that wait for one server to be found.
const MAX_UNHEARD: usize = 16_384;

// === impl Prefill ===

impl Prefill {
    /// The rank that has the other half of a room, once the server is found: the one that is asked for, if there is one of that
    /// number.
    pub(super) fn rank_of(&self, room: &Room) -> Option<usize> {
        let dp_size = self.dp_size?;
        let asked = room.prefill_rank.filter(|rank| *rank < dp_size);
        Some(asked.unwrap_or(rank_of_room(room.number, dp_size)))
    }

    /// Its connections, those that are silent too.
    pub(super) fn connections(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.peers.values_mut().chain(&mut self.silent)
    }

    pub(super) fn is_connected(&self) -> bool {
        !self.peers.is_empty() || !self.silent.is_empty()
    }

    /// Whether it is sought or connected. Else it may have gone: whoever asks for it next looks for it anew.
    pub(super) fn is_needed(&self) -> bool {
        self.dp_size.is_none() || self.is_connected()
    }

    /// Takes the connections on which the two have agreed.
    pub(super) fn take_open(&mut self) -> Vec<Peer> {
        let mut open: Vec<_> =
            self.peers.extract_if(.., |_, peer| peer.open_since.is_some()).map(|(_, peer)| peer).collect();
        open.extend(self.silent.extract_if(.., |peer| peer.open_since.is_some()));
        open
    }

    /// Gives a connection no more rooms if nothing was heard on it since a moment; whoever needs the rank next connects anew.
    /// Returns the rank if that is so.
    pub(super) fn doubt(&mut self, link: LinkId, since: Stamp) -> Option<usize> {
        let is_it = |peer: &Peer| peer.id == link && peer.heard.is_none_or(|heard| heard < since);
        let rank = self.peers.iter().find(|(_, peer)| is_it(peer)).map(|(rank, _)| *rank)?;
        self.silent.extend(self.peers.remove(&rank));
        Some(rank)
    }

    /// It is found. Returns what it is to be told.
    pub(super) fn found(&mut self, dp_size: usize) -> Vec<(Room, Frame)> {
        self.dp_size = Some(dp_size);
        std::mem::take(&mut self.unheard)
    }

    /// Keeps an abort until it is known which rank is to be told. Beyond the limit the prefill side waits for its own.
    pub(super) fn remember(&mut self, room: &Room, abort: Frame) {
        if self.unheard.len() < MAX_UNHEARD {
            self.unheard.push((room.clone(), abort));
        }
    }
}

// === impl Connector ===

impl Connector {
    pub(super) fn new(identity: Arc<Identity>, events: EventSender, runtime: Handle) -> Self {
        Self { next_link: 0, identity, events, runtime, tasks: JoinSet::new() }
    }

    pub(super) fn seek(&mut self, addr: BootstrapAddr) -> Prefill {
        let (id, since) = (self.fresh(), self.events.now());
        let search = seek(addr, id, Arc::clone(&self.identity), self.events.clone());
        self.tasks.spawn_on(search, &self.runtime);
        let (peers, silent, unheard) = (BTreeMap::new(), Vec::new(), Vec::new());
        Prefill { id, since, dp_size: None, peers, silent, unheard }
    }

    /// A rank of a server, which is connected to unless it is already.
    pub(super) fn peer<'a>(
        &mut self,
        prefill: &'a mut Prefill,
        (addr, rank): (&BootstrapAddr, usize),
    ) -> &'a mut Peer {
        prefill.peers.entry(rank).or_insert_with(|| {
            let id = self.fresh();
            let (identity, events) = (Arc::clone(&self.identity), self.events.clone());
            let ending = BTreeSet::new();
            self.tasks.spawn_on(connect((addr.clone(), rank), id, identity, events), &self.runtime);
            Peer {
                id,
                since: self.events.now(),
                link: Link::default(),
                open_since: None,
                heard: None,
                ending,
            }
        })
    }

    fn fresh(&mut self) -> LinkId {
        while self.tasks.try_join_next().is_some() {}
        self.next_link += 1;
        LinkId(self.next_link)
    }
}

/// Why a request cannot have the rank that it asks for, if so.
pub(super) fn asks_too_much(
    request: &Request,
    prefills: &BTreeMap<BootstrapAddr, Prefill>,
) -> Option<String> {
    let dp_size = prefills.get(prefill_of(request)?)?.dp_size?;
    let rank = request.spec.room.as_ref()?.prefill_rank.filter(|rank| *rank >= dp_size)?;
    Some(format!("disagg_prefill_dp_rank must be in 0..{dp_size}, got {rank}"))
}

/// Where a request's other half is looked for.
pub(super) fn prefill_of(request: &Request) -> Option<&BootstrapAddr> {
    request.spec.room.as_ref()?.prefill.as_ref()
}
