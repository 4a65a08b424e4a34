//! Bootstrap rooms: the numbers under which a prefill and a decode worker meet.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::{Rng, RngExt as _};

/// The largest room: the last integer that every reader of JSON keeps, a double included.
pub const ROOM_MAX: u64 = (1 << 53) - 1;

/// The rooms in use.
#[derive(Clone, Debug, Default)]
pub struct Rooms(Arc<Mutex<HashSet<u64>>>);

/// Rooms in use by one request; free again when it is dropped.
#[derive(Debug)]
pub struct RoomGuard {
    rooms: Vec<u64>,
    of: Rooms,
}

// === impl Rooms ===

impl Rooms {
    /// Draws rooms, each from 1 to [`ROOM_MAX`] and different from all that are in use.
    pub fn draw(&self, count: usize, rng: &mut impl Rng) -> RoomGuard {
        let mut in_use = self.0.lock();
        let mut rooms = Vec::with_capacity(count);
        while rooms.len() < count {
            let room = rng.random_range(1..=ROOM_MAX);
            if in_use.insert(room) {
                rooms.push(room);
            }
        }
        RoomGuard { rooms, of: self.clone() }
    }

    /// How many are in use.
    pub fn in_use(&self) -> usize {
        self.0.lock().len()
    }
}

// === impl RoomGuard ===

impl RoomGuard {
    /// The rooms, in the order of the samples.
    pub fn rooms(&self) -> &[u64] {
        &self.rooms
    }
}

impl Drop for RoomGuard {
    fn drop(&mut self) {
        let mut in_use = self.of.0.lock();
        for room in &self.rooms {
            in_use.remove(room);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    proptest! {
        #[test]
        fn live_rooms_are_distinct_and_in_range(seed: u64, counts in prop::collection::vec(0_usize..40, 1..10)) {
            let (rooms, mut rng) = (Rooms::default(), StdRng::seed_from_u64(seed));
            let guards: Vec<RoomGuard> = counts.iter().map(|count| rooms.draw(*count, &mut rng)).collect();
            let all: HashSet<u64> = guards.iter().flat_map(RoomGuard::rooms).copied().collect();
            prop_assert_eq!(all.len(), counts.iter().sum::<usize>());
            prop_assert_eq!(rooms.in_use(), all.len());
            prop_assert!(all.iter().all(|room| (1..=ROOM_MAX).contains(room)));
            drop(guards);
            prop_assert_eq!(rooms.in_use(), 0);
        }
    }

    #[test]
    fn a_room_in_use_is_drawn_again() {
        let (rooms, seed) = (Rooms::default(), 5);
        let first = rooms.draw(1, &mut StdRng::seed_from_u64(seed));
        let second = rooms.draw(1, &mut StdRng::seed_from_u64(seed));
        assert_ne!(first.rooms(), second.rooms());
    }
}
