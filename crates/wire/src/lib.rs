//! The bytes of request and reply bodies: what they say, and how they are changed without being parsed into a
//! tree.
//!
//! A body is held as it was received, in [`Chunks`]. A cursor walks over it and stops only at the names that
//! matter: those at depth 1 of a body, of an element of a top-level array, and of their `meta_info` and `usage`; where
//! texts are recorded, those of messages and choices too. All else is skipped by searching for the next quote or
//! bracket. What is written is spliced in between slices of the original, so every other byte stays, in order:
//!
//! - [`GenerateRequest`]: the shape of a request, its bootstrap fields, and what it asks in [`Words`];
//! - [`Reply`] and [`PrefillShare`]: how samples ended, and the merge of a prefill reply into a decode reply;
//! - [`read_pairs`]: what workers report of each sample, without keeping where it stands;
//! - [`Abridged`]: of a reply that passes by, what these read of it;
//! - [`read_outputs`]: what a reply says in words, as an [`Output`] for each sample;
//! - [`EventSplitter`]: a stream of server-sent events, cut at whatever places the network cut it.
//!
//! Invariant: no body becomes a tree; memory beyond the body itself does not depend on its depth.

mod abridged;
mod chunks;
mod cursor;
mod error;
mod event;
mod experts;
mod merge;
mod nesting;
mod object;
mod pairs;
mod prompts;
mod reply;
mod request;
mod scalar;
mod splice;
mod texts;

pub use abridged::{Abridged, Summary};
pub use chunks::Chunks;
pub use error::{Malformed, Mismatch, Problem};
pub use event::{Event, EventSplitter, Part};
pub use merge::{LogprobJoin, PrefillShare};
pub use pairs::read_pairs;
pub use reply::{Element, Reply};
pub use request::{Bootstrap, Dialect, GenerateRequest, Ranks, Shape};
pub use scalar::Scalar;
pub use texts::{Output, Words, read_outputs};
