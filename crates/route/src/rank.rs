//! Data-parallel ranks.

use crate::error::RankError;
use crate::rooms::ROOM_MAX;

/// One of the data-parallel ranks of a server.
///
/// Invariant: the rank is below the number of ranks, which is at most [`MAX_DP_SIZE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DpRank {
    rank: u32,
    dp_size: u32,
}

/// More ranks than this no server has; the bound leaves 2^37 rooms to each.
pub const MAX_DP_SIZE: u32 = 1 << 16;

// === impl DpRank ===

impl DpRank {
    /// A rank of a server with so many. One that it does not have is refused: to fall back to another would send
    /// prefill and decode to different ranks.
    pub fn new(rank: u32, dp_size: u32) -> Result<Self, RankError> {
        if dp_size > MAX_DP_SIZE {
            return Err(RankError::Size { dp_size });
        }
        if rank >= dp_size {
            return Err(RankError::OutOfRange { rank, dp_size });
        }
        Ok(Self { rank, dp_size })
    }

    /// Its number, from 0.
    pub fn rank(self) -> u32 {
        self.rank
    }

    /// How many the server has.
    pub fn dp_size(self) -> u32 {
        self.dp_size
    }

    /// Whether a server that follows the room takes this room to this rank.
    pub fn has_room(self, room: u64) -> bool {
        room % u64::from(self.dp_size) == u64::from(self.rank)
    }

    /// The rooms of this rank are those from 0 up to here, times `dp_size`, plus the rank.
    pub(crate) fn last_turn(self) -> u64 {
        (ROOM_MAX - u64::from(self.rank)) / u64::from(self.dp_size)
    }
}
