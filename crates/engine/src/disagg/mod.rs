//! Prefill/decode disaggregation: how the two servers find each other and what they send.

mod bootstrap;
pub(crate) mod frame;
mod link;
mod metadata;
mod peer;

pub(crate) use bootstrap::{BootstrapAddr, FAKE_BOOTSTRAP_HOST, RankAddress, Registry, bootstrap_router};
pub(crate) use frame::{Identity, MAX_PAGE_BYTES};
#[cfg(test)]
pub(crate) use link::Outbox;
pub(crate) use link::{End, Event, EventSender, Link, LinkId, What, pages_per_frame};
pub(crate) use metadata::{
    FirstToken, MAX_KEPT, MAX_TOP_LOGPROBS, MetadataBuffers, PrefillTiming, Slot, kept_that_fit, row_bytes,
};
pub(crate) use peer::{accept, connect, seek};
