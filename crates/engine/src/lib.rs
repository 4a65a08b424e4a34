//! The embedded inference server: HTTP, scheduler, prefill/decode disaggregation.
//!
//! An [`Engine`] serves one checkpoint behind SGLang's HTTP interface, on one compute thread a data-parallel rank, alone or as one half
//! of a prefill/decode pair. Modules in the order of a request's way:
//!
//! - `api`: HTTP in, validated requests to the scheduler, replies out;
//! - `request`, `text`, `output`, `stamps`: what a request is, says, and measures;
//! - `ranks`: which scheduler a request goes to;
//! - `scheduler`: the thread that owns all requests, pages and computing of a rank;
//! - `disagg`: how a prefill and a decode server find each other, and the protocol that carries pages.
//!
//! Invariant: the scheduler's thread never waits for a client or a peer. Output is a record of which readers see the latest
//! state; what goes to a peer goes through a bounded queue that is tried again on the next turn.
//!
//! Invariant: every page, metadata slot and room belongs to one live request or is free (a page may be the prefix cache's); in debug builds an idle scheduler
//! proves it.
//!
//! Absent here: recording, routing, retries of requests.

mod options;

mod error;

mod server;

mod metrics;

mod api;

mod request;

mod text;

mod chat;

mod sim;

mod output;

mod stamps;

mod clock;

mod warn;

mod ranks;

mod scheduler;

mod disagg;

pub use error::EngineError;
pub use options::{DisaggregationMode, EngineOptions};
pub use rollscope_fpm::BindError;
pub use server::{Engine, serve};
pub use sim::CostModelError;
