//! Worker registry, load accounting and routing policies.
//!
//! A [`Registry`] holds the workers, each an instance with a name of its own, and gives out consistent
//! snapshots of the [`Fleet`]. A [`Policy`] chooses one for an [`Ask`] and tells why in a [`Decision`]. What is begun
//! at a worker is a [`LegGuard`]: load in its [`Books`] until it ends, and a witness for its circuit breaker.
//! [`Rooms`] are where a prefill and a decode worker meet.
//!
//! Invariant: synchronous and deterministic. Time and randomness are passed in, and there is no IO: the same calls
//! give the same choices, in every process.

mod address;
mod aged;
mod ask;
mod books;
mod breaker;
mod candidates;
mod decision;
mod error;
mod hash;
mod health;
mod leg;
mod load;
mod moment;
mod policy;
mod prefix_tree;
mod rank;
mod registry;
mod rooms;
mod standing;
mod worker;

pub use address::{WorkerAddress, WorkerUrl};
pub use ask::{Ask, KeyKind, Prompt};
pub use books::{Books, Counts, Ending, Ticket};
pub use breaker::{BreakerConfig, BreakerState, MAX_FAILURE_THRESHOLD, Verdict};
pub use decision::{Considered, Decision, Fallback, NoChoice, Why};
pub use error::{RankError, UrlError};
pub use health::{HealthConfig, HealthState};
pub use leg::LegGuard;
pub use load::{Load, LoadBasis, ReportedLoad};
pub use moment::Moment;
pub use policy::{AssignmentMode, Chosen, Policy, PolicyKind, PolicySettings};
pub use rank::{DpRank, MAX_DP_SIZE};
pub use registry::{Fleet, Introduced, Registry};
pub use rooms::{ROOM_MAX, RoomGuard, Rooms};
pub use standing::{Availability, Verdicts};
pub use worker::{Introduction, Role, RoleKind, Worker, WorkerId};
