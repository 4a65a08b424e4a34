//! Rooms that decode servers have announced to a prefill server before their requests have come.

use std::collections::BTreeMap;

use crate::clock::Stamp;
use crate::disagg::LinkId;

/// A room that the decode side waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    pub(super) link: LinkId,
    /// That the decode side has allocated.
    pub(super) pages: u32,
    pub(super) at: Stamp,
    /// The same, in time during which the scheduler was not paused.
    pub(super) queued: Stamp,
}

/// By room.
#[derive(Debug, Default)]
pub(super) struct Early {
    rooms: BTreeMap<u64, Announced>,
    /// How many a connection has of them.
    of_links: BTreeMap<LinkId, usize>,
}

/// Why an announcement is turned down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turned {
    /// The room was announced before.
    Twice,
    /// The connection has as many as one may have.
    Greedy,
    /// There are as many as there may be.
    Full,
}

/// Announced rooms of one connection, so that no decode server takes the place of the others: as many as one has slots for, if it
/// runs as many requests as it can be told to.
pub(super) const MAX_OF_LINK: usize = 8192;
/// Those of all.
const MAX_EARLY: usize = 65_536;

// === impl Early ===

impl Early {
    pub(super) fn announce(&mut self, room: u64, announced: Announced) -> Result<(), Turned> {
        if self.rooms.contains_key(&room) {
            return Err(Turned::Twice);
        }
        if self.rooms.len() >= MAX_EARLY {
            return Err(Turned::Full);
        }
        let of_link = self.of_links.entry(announced.link).or_default();
        if *of_link >= MAX_OF_LINK {
            return Err(Turned::Greedy);
        }
        *of_link += 1;
        self.rooms.insert(room, announced);
        Ok(())
    }

    pub(super) fn take(&mut self, room: u64) -> Option<Announced> {
        let announced = self.rooms.remove(&room)?;
        if let Some(of_link) = self.of_links.get_mut(&announced.link) {
            *of_link -= 1;
            if *of_link == 0 {
                self.of_links.remove(&announced.link);
            }
        }
        Some(announced)
    }

    /// Takes those for which there is a reason, each with it.
    pub(super) fn take_for<T>(
        &mut self,
        reason: impl Fn(u64, &Announced) -> Option<T>,
    ) -> Vec<(u64, Announced, T)> {
        let rooms =
            self.rooms.iter().filter_map(|(room, announced)| Some((*room, reason(*room, announced)?)));
        let rooms: Vec<_> = rooms.collect();
        rooms.into_iter().filter_map(|(room, reason)| Some((room, self.take(room)?, reason))).collect()
    }

    /// Whether a connection has announced a room.
    pub(super) fn is_of(&self, room: u64, link: LinkId) -> bool {
        self.rooms.get(&room).is_some_and(|announced| announced.link == link)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rooms.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn no_connection_takes_the_place_of_the_others() {
        let now = Clock::new().now();
        let of = |link: u64| Announced { link: LinkId(link), pages: 1, at: now, queued: now };
        let mut early = Early::default();
        let each = MAX_OF_LINK as u64;
        for room in 0..each {
            assert_eq!(early.announce(room, of(0)), Ok(()));
        }
        assert_eq!(early.announce(5, of(1)), Err(Turned::Twice));
        assert_eq!(early.announce(each, of(0)), Err(Turned::Greedy));
        assert_eq!(early.announce(each, of(1)), Ok(()));
        early.take(7).unwrap();
        assert_eq!(early.announce(7, of(0)), Ok(()));
        for room in each + 1..MAX_EARLY as u64 {
            assert_eq!(early.announce(room, of(1 + room / each)), Ok(()));
        }
        assert_eq!(early.announce(1 << 40, of(99)), Err(Turned::Full));
        assert_eq!(
            early.take_for(|_, announced| (announced.link == LinkId(0)).then_some(())).len(),
            MAX_OF_LINK
        );
        assert_eq!(early.announce(1 << 40, of(0)), Ok(()));
        assert!(early.is_of(1 << 40, LinkId(0)) && !early.is_of(1 << 40, LinkId(1)));
    }
}
