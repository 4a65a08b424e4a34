//! The rooms of a server: no two live requests have the same, whichever rank they are at, and of those that a half was given
//! up of, all ranks know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{ActiveTime, Stamp};
use crate::output::Abort;

/// Those of one rank, who knows of the others'.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    rank: usize,
    own: BTreeSet<u64>,
    all: Arc<Mutex<All>>,
}

/// What the ranks share.
#[derive(Debug, Default)]
struct All {
    /// The ranks of live requests, by room.
    ranks: BTreeMap<u64, usize>,
    /// By room: one half was given up when the other could not be told.
    gone: BTreeMap<u64, Gone>,
    /// By which those are kept. Ranks stop one after the other, so that the clock of each is another one.
    active: ActiveTime,
}

#[derive(Debug)]
struct Gone {
    /// How the other half ends.
    why: Abort,
    at: Stamp,
}

/// Rooms that are remembered without a request. Beyond, all are forgotten, so that who still looks for one waits for its
/// timeout.
const MAX_GONE: usize = 65_536;

// === impl Rooms ===

impl Rooms {
    /// Those of another rank of the same server, which has none yet.
    pub(crate) fn of_rank(&self, rank: usize) -> Self {
        Self { rank, own: BTreeSet::new(), all: Arc::clone(&self.all) }
    }

    /// Takes a room; `false` if another live request of the server has it. Room 0 is none, and anyone's.
    pub(super) fn take(&mut self, room: u64) -> bool {
        if room == 0 {
            return true;
        }
        let mut all = self.all.lock();
        let is_free = !all.ranks.contains_key(&room);
        if is_free {
            all.ranks.insert(room, self.rank);
            self.own.insert(room);
        }
        is_free
    }

    /// Gives a room back, if it is one of this rank's.
    pub(super) fn give_back(&mut self, room: u64) {
        if self.own.remove(&room) {
            self.all.lock().ranks.remove(&room);
        }
    }

    /// Those of this rank.
    pub(super) fn own(&self) -> &BTreeSet<u64> {
        &self.own
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// The rank of the room's live request, if that is another than this.
    pub(super) fn elsewhere(&self, room: u64) -> Option<usize> {
        self.all.lock().ranks.get(&room).copied().filter(|rank| *rank != self.rank)
    }

    /// The ranks of the live requests that have these rooms.
    pub(crate) fn ranks_of(&self, rooms: &[u64]) -> BTreeMap<u64, usize> {
        let all = self.all.lock();
        rooms.iter().filter_map(|room| Some((*room, *all.ranks.get(room)?))).collect()
    }

    /// From now on nothing that is remembered gets older.
    pub(super) fn pause(&self, now: Stamp) {
        self.all.lock().active.pause(now);
    }

    pub(super) fn go_on(&self, now: Stamp) {
        self.all.lock().active.go_on(now);
    }

    /// Keeps that a half of a room was given up, for the other one: whenever it comes, and at whichever rank.
    pub(super) fn remember(&self, room: u64, why: Abort, now: Stamp) {
        let mut all = self.all.lock();
        if all.gone.len() >= MAX_GONE {
            all.gone.clear();
        }
        let at = all.active.at(now);
        all.gone.entry(room).or_insert(Gone { why, at });
    }

    /// Why the other half of a room was given up, if it was and that is no older than this. Asking does not keep it longer: else who
    /// tries again would keep himself from being served.
    pub(super) fn gone(&self, room: u64, now: Stamp, kept_for: Duration) -> Option<Abort> {
        let all = self.all.lock();
        let gone = all.gone.get(&room)?;
        (all.active.at(now).since(gone.at) <= kept_for).then(|| gone.why.clone())
    }

    /// Forgets what is older than this.
    pub(super) fn expire(&self, now: Stamp, kept_for: Duration) {
        let All { gone, active, .. } = &mut *self.all.lock();
        let now = active.at(now);
        gone.retain(|_, gone| now.since(gone.at) <= kept_for);
    }
}
