//! Forward-pass metrics: what a scheduler computed in one iteration, on the wire.
//!
//! A server's scheduler reports every forward pass of each data-parallel rank: which work was in it, how long it took,
//! what is still queued. The record, its encoding and its transport are those of SGLang and Dynamo, whose programs read what
//! [`Publisher`] sends and whose publishers [`Subscription`] reads: a ZeroMQ PUB socket binds an endpoint for each rank, and
//! each message is three frames, an empty topic, a sequence number and the record in MessagePack.

mod record;
mod statistics;

mod codec;
mod endpoint;
mod zmtp;

mod listener;
mod publisher;
mod sending;

mod account;
mod subscriber;

pub use account::{Account, Accounts, Arrival, Entry};
pub use codec::{DecodeError, decode, encode};
pub use endpoint::{Address, Base, Endpoint, EndpointError, MAX_RANKS};
pub use listener::BindError;
pub use publisher::{Pass, Publisher, QUEUE_RECORDS};
pub use record::{ForwardPassMetrics, MAX_WORKER_ID_BYTES, QueuedRequests, ScheduledRequests};
pub use statistics::Statistics;
pub use subscriber::{Heard, Message, Origin, Subscription, Subscriptions, What};
pub use zmtp::TransportError;
