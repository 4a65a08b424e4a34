//! Worker registry, load accounting and routing policies.
//!
//! A [`Registry`] holds the workers, each an instance with a name of its own, and gives out consistent
//! snapshots of the [`Fleet`]. A [`Policy`] chooses from one. [`Books`] count what was begun at a worker and
//! how it ended; an open [`Ticket`] is load. [`Rooms`] are where a prefill and a decode worker meet.
//!
//! Invariant: synchronous and deterministic; randomness is passed in, there is no clock, and no IO.

mod address;
mod books;
mod breaker;
mod error;
mod health;
mod leg;
mod load;
mod moment;
mod policy;
mod rank;
mod registry;
mod rooms;
mod standing;
mod worker;

pub use address::{WorkerAddress, WorkerUrl};
pub use books::{Books, Counts, Ending, Ticket};
pub use breaker::{BreakerConfig, BreakerState, Verdict};
pub use error::{RankError, UrlError};
pub use health::{HealthConfig, HealthState};
pub use leg::LegGuard;
pub use load::{Load, LoadBasis, ReportedLoad};
pub use moment::Moment;
pub use policy::{Choice, Policy, PolicyKind};
pub use rank::{DpRank, MAX_DP_SIZE};
pub use registry::{Fleet, Introduced, Registry};
pub use rooms::{ROOM_MAX, RoomGuard, Rooms};
pub use standing::Availability;
pub use worker::{Introduction, Role, RoleKind, Worker, WorkerId};
