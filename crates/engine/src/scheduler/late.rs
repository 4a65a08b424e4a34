//! Requests that have been in a queue of a transfer for too long.

use std::time::Duration;

use super::core::Queue;
use super::take_for;
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
    take_for(queue, |request| {
        let state = request.poll.filter(|_| !request.is_fake())?;
        let is_exceeded =
            |each: &&TimeLimit| each.polls.contains(&state) && now.since(request.queued) > each.limit;
        let TimeLimit { limit, end, .. } = limits.iter().filter(is_exceeded).min_by_key(|each| each.limit)?;
        let (room, after_s, state) = (request.room(), limit.as_secs_f64(), state.name());
        Some(end(format!("Request {room} timed out after {after_s}s in KVPoll.{state}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::output::output;
    use crate::request::Pair;
    use crate::scheduler::Waker;
    use crate::scheduler::tests::endless;

    #[test]
    fn a_limit_is_reached_when_it_is_passed() {
        let both = &[KvPoll::Bootstrapping, KvPoll::Transferring];
        let limits = [
            TimeLimit { polls: both, limit: Duration::from_secs(5), end: Abort::failure },
            TimeLimit { polls: &both[..1], limit: Duration::from_secs(3), end: Abort::timed_out },
        ];
        let queued = Clock::new().now();
        for (poll, waited_ms, expected) in [
            (KvPoll::Bootstrapping, 3000, None),
            (KvPoll::Bootstrapping, 3001, Some((504, "after 3s in KVPoll.Bootstrapping"))),
            // The one that was reached first tells how it ends.
            (KvPoll::Bootstrapping, 9000, Some((504, "after 3s in KVPoll.Bootstrapping"))),
            (KvPoll::Transferring, 5000, None),
            (KvPoll::Transferring, 5001, Some((500, "after 5s in KVPoll.Transferring"))),
            (KvPoll::WaitingForInput, 9000, None),
        ] {
            let now = queued.after(Duration::from_millis(waited_ms));
            // Beside one that has just come.
            let mut queue: Queue = [queued, now]
                .into_iter()
                .map(|queued| {
                    let spec = endless();
                    let (publisher, _) = output(spec.stamps.clone(), Waker::of_current_thread());
                    let mut request = Request::new(spec, publisher, Pair::Alone);
                    (request.poll, request.queued) = (Some(poll), queued);
                    Box::new(request)
                })
                .collect();
            let late = take_late(&mut queue, now, &limits);
            let ended = late.first().map(|(_, why)| (why.status.unwrap(), why.message.as_str()));
            match (ended, expected) {
                (None, None) => {}
                (Some((status, message)), Some((expected, end))) => {
                    assert_eq!(status, expected);
                    assert!(message.ends_with(end), "{message}");
                }
                _ => panic!("{poll:?} for {waited_ms} ms: {ended:?}, expected {expected:?}"),
            }
            assert_eq!(queue.len() + late.len(), 2);
            assert!(queue.back().is_some_and(|last| last.queued == now));
        }
    }
}
