//! The rooms of a server: no two live requests have the same, whichever rank they are at, and of those that a half was given
//! up of, all ranks know.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
    /// Those, the oldest first.
    order: VecDeque<u64>,
    /// By which those are kept. Ranks stop one after the other, so that the clock of each is another one.
    active: ActiveTime,
}

#[derive(Debug)]
struct Gone {
    /// How the other half ends.
    why: Abort,
    at: Stamp,
}

/// Rooms that are remembered without a request. Beyond, the oldest is forgotten: who still looks for it waits for its timeout.
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
        let All { gone, order, active, .. } = &mut *self.all.lock();
        let Entry::Vacant(place) = gone.entry(room) else { return };
        place.insert(Gone { why, at: active.at(now) });
        order.push_back(room);
        if order.len() > MAX_GONE {
            order.pop_front().map(|oldest| gone.remove(&oldest));
        }
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
        let All { gone, order, active, .. } = &mut *self.all.lock();
        let now = active.at(now);
        while let Some(oldest) =
            order.pop_front_if(|room| gone.get(room).is_none_or(|gone| now.since(gone.at) > kept_for))
        {
            gone.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn what_is_oldest_is_forgotten_first() {
        let rooms = Rooms::default();
        let start = Clock::new().now();
        let at = |s: u64| start.after(Duration::from_secs(s));
        let kept_for = Duration::from_secs(10);
        let known = |room, now| rooms.gone(room, now, kept_for).map(|why| why.message);
        let most = MAX_GONE as u64;
        for room in 1..=most {
            rooms.remember(room, Abort::failure("first".to_owned()), at(room / (most / 2)));
        }
        // Who is told again is as old as before, and there is room for one more where the oldest was.
        rooms.remember(1, Abort::failure("again".to_owned()), at(2));
        assert_eq!(known(1, at(2)).as_deref(), Some("first"));
        rooms.remember(most + 1, Abort::failure("first".to_owned()), at(3));
        assert_eq!([1, 2, most + 1].map(|room| known(room, at(3)).is_some()), [false, true, true]);
        // What has expired makes place for what is told anew.
        rooms.expire(at(11), kept_for);
        assert_eq!([2, most - 1, most + 1].map(|room| known(room, at(11)).is_some()), [false, true, true]);
        rooms.remember(2, Abort::failure("anew".to_owned()), at(11));
        assert_eq!(known(2, at(12)).as_deref(), Some("anew"));
    }
}
