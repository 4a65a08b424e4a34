//! The prefill servers that a decode server works with: found first, as where to connect depends on how many ranks they have.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::clock::Stamp;
use crate::disagg::{BootstrapAddr, EventSender, Identity, Link, LinkId, connect, seek};
use crate::ranks::rank_of_room;
use crate::request::Request;

/// A prefill server: `sought → found → (gone)` or `sought → (gone)`.
#[derive(Debug)]
pub(super) struct Prefill {
    /// The search for it.
    pub(super) id: LinkId,
    /// How many ranks it has, once it is found.
    pub(super) dp_size: Option<usize>,
    /// Those that were needed.
    pub(super) peers: BTreeMap<usize, Peer>,
}

/// A rank of a prefill server: `connecting → open → (gone)` or `connecting → (gone)`.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: LinkId,
    pub(super) link: Link,
    pub(super) open_since: Option<Stamp>,
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

// === impl Prefill ===

impl Prefill {
    /// The rank that has a request's other half.
    pub(super) fn rank_of(&self, request: &Request) -> Option<usize> {
        let room = request.spec.room.as_ref()?;
        Some(room.prefill_rank.unwrap_or(rank_of_room(room.number, self.dp_size?)))
    }
}

// === impl Connector ===

impl Connector {
    pub(super) fn new(identity: Arc<Identity>, events: EventSender, runtime: Handle) -> Self {
        Self { next_link: 0, identity, events, runtime, tasks: JoinSet::new() }
    }

    pub(super) fn seek(&mut self, addr: BootstrapAddr) -> Prefill {
        let id = self.fresh();
        let search = seek(addr, id, Arc::clone(&self.identity), self.events.clone());
        self.tasks.spawn_on(search, &self.runtime);
        Prefill { id, dp_size: None, peers: BTreeMap::new() }
    }

    pub(super) fn connect(&mut self, rank: (BootstrapAddr, usize)) -> Peer {
        let id = self.fresh();
        let connection = connect(rank, id, Arc::clone(&self.identity), self.events.clone());
        self.tasks.spawn_on(connection, &self.runtime);
        Peer { id, link: Link::default(), open_since: None }
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
