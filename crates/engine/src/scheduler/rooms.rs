//! The rooms of live requests: no two of a server have the same, whichever rank they are at.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// Those of one rank, who knows of the others'. A clone is for a further rank and has none itself.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    own: BTreeSet<u64>,
    all: Arc<Mutex<BTreeSet<u64>>>,
}

// === impl Rooms ===

impl Rooms {
    /// Takes a room; `false` if another live request of the server has it. Room 0 is none, and anyone's.
    pub(super) fn take(&mut self, room: u64) -> bool {
        let is_free = room == 0 || self.all.lock().insert(room);
        if is_free && room != 0 {
            self.own.insert(room);
        }
        is_free
    }

    /// Gives a room back, if it is one of this rank's.
    pub(super) fn give_back(&mut self, room: u64) {
        if self.own.remove(&room) {
            self.all.lock().remove(&room);
        }
    }

    /// Those of this rank.
    pub(super) fn own(&self) -> &BTreeSet<u64> {
        &self.own
    }
}

impl Clone for Rooms {
    fn clone(&self) -> Self {
        Self { own: BTreeSet::new(), all: Arc::clone(&self.all) }
    }
}
