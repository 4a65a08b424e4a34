//! Requests that have been in a queue of a transfer for too long.

use std::time::Duration;

use super::core::Queue;
use super::take_where;
use crate::clock::Stamp;
use crate::output::Abort;
use crate::request::{KvPoll, Request};

/// How long a request may be in a queue while its transfer is at one of some states, and how it ends then.
pub(super) struct TimeLimit {
    pub(super) polls: &'static [KvPoll],
    pub(super) limit: Duration,
    pub(super) end: fn(String) -> Abort,
}

/// Takes the requests that have been in a queue for longer than one of the limits, each with how it ends: by the limit that it
/// has reached first.
pub(super) fn take_late(queue: &mut Queue, now: Stamp, limits: &[TimeLimit]) -> Vec<(Box<Request>, Abort)> {
    let exceeded = |request: &Request| {
        let reached = limits.iter().filter(|each| {
            let is_at = request.poll.is_some_and(|state| each.polls.contains(&state));
            is_at && !request.is_fake() && now.since(request.queued) > each.limit
        });
        reached.min_by_key(|each| each.limit)
    };
    let mut late = Vec::new();
    for request in take_where(queue, |request| exceeded(request).is_some()) {
        let Some(TimeLimit { limit: exceeded, end, .. }) = exceeded(&request) else { continue };
        let (room, after_s) = (request.room(), exceeded.as_secs_f64());
        let state = request.poll.map_or("", KvPoll::name);
        let why = format!("Request {room} timed out after {after_s}s in KVPoll.{state}");
        late.push((request, end(why)));
    }
    late
}
