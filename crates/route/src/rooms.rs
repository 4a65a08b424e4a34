//! Bootstrap rooms: the numbers under which a prefill and a decode worker meet.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::{Rng, RngExt as _};

use crate::rank::DpRank;

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
        self.draw_at(count, None, rng)
    }

    /// Draws rooms that a prefill server takes to one of its ranks: it follows the room, and decode asks the rank
    /// that the room tells.
    pub fn draw_at(&self, count: usize, rank: Option<DpRank>, rng: &mut impl Rng) -> RoomGuard {
        let mut in_use = self.0.lock();
        let mut rooms = Vec::with_capacity(count);
        while rooms.len() < count {
            // A turn is drawn, not a room that is then rounded, so that the largest stays within the bound
            // whatever the number of ranks.
            let room = match rank {
                Some(rank) => {
                    let turn = rng.random_range(0..=rank.last_turn());
                    turn * u64::from(rank.dp_size()) + u64::from(rank.rank())
                }
                None => rng.random_range(1..=ROOM_MAX),
            };
            if room != 0 && in_use.insert(room) {
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
    use crate::rank::MAX_DP_SIZE;

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

    proptest! {
        #[test]
        fn a_room_of_a_rank_leads_to_it(seed: u64, dp_size in 1..=MAX_DP_SIZE, rank: u32, count in 1_usize..20) {
            let rank = DpRank::new(rank % dp_size, dp_size).unwrap();
            let guard = Rooms::default().draw_at(count, Some(rank), &mut StdRng::seed_from_u64(seed));
            prop_assert_eq!(guard.rooms().len(), count);
            for room in guard.rooms() {
                prop_assert!((1..=ROOM_MAX).contains(room) && rank.has_room(*room));
            }
        }
    }

    /// Zero, and then ever more.
    struct Rising(u64);

    impl rand::TryRng for Rising {
        type Error = std::convert::Infallible;

        fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
            self.try_next_u64().map(|number| number as u32)
        }

        fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
            self.0 += 1 << 40;
            Ok(self.0 - (1 << 40))
        }

        fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
            bytes.fill(0);
            Ok(())
        }
    }

    #[test]
    fn room_zero_is_not_drawn() {
        let rank = DpRank::new(0, 4).unwrap();
        let guard = Rooms::default().draw_at(1, Some(rank), &mut Rising(0));
        assert!(guard.rooms()[0] > 0 && rank.has_room(guard.rooms()[0]));
        assert_eq!(Rising(0).random_range(0..=rank.last_turn()), 0, "it would have been drawn");
    }

    #[test]
    fn the_edges_of_a_rank_are_rooms() {
        for (rank, dp_size, last) in [(0, 1, ROOM_MAX), (2, 3, ROOM_MAX - 2), (0, 3, ROOM_MAX - 1)] {
            let rank = DpRank::new(rank, dp_size).unwrap();
            let room = rank.last_turn() * u64::from(dp_size) + u64::from(rank.rank());
            assert_eq!(room, last);
            assert!(rank.has_room(room) && room + u64::from(dp_size) > ROOM_MAX);
        }
        for (rank, dp_size, sentence) in [
            (4, 4, "below dp_size 4: 4"),
            (0, 0, "below dp_size 0: 0"),
            (0, MAX_DP_SIZE + 1, "at most 65536: 65537"),
        ] {
            let error = DpRank::new(rank, dp_size).unwrap_err().to_string();
            assert!(error.ends_with(sentence), "{error}");
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
