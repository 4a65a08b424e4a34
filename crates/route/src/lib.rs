//! Worker registry, load accounting and routing policies.
//!
//! A [`Registry`] holds the workers, each an instance with a name of its own, and gives out consistent
//! snapshots of the [`Fleet`]. A [`Policy`] chooses from one. [`Books`] count what was begun at a worker and
//! how it ended; an open [`Ticket`] is load. [`Rooms`] are where a prefill and a decode worker meet.
//!
//! Invariant: synchronous and deterministic; randomness is passed in, there is no clock, and no IO.

mod address;
mod books;
mod error;
mod moment;
mod policy;
mod rank;
mod registry;
mod rooms;
mod worker;

pub use address::{WorkerAddress, WorkerUrl};
pub use books::{Books, Counts, Ending, Ticket};
pub use error::{RankError, UrlError};
pub use moment::Moment;
pub use policy::{Choice, Policy, PolicyKind};
pub use rank::{DpRank, MAX_DP_SIZE};
pub use registry::{Fleet, Registry};
pub use rooms::{ROOM_MAX, RoomGuard, Rooms};
pub use worker::{Role, RoleKind, Worker, WorkerId};
