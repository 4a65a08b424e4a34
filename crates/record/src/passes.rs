//! Forward passes into the run: what is heard of endpoints is accounted for, timed and put in.

use std::collections::BTreeMap;
use std::time::Duration;

use rollscope_fpm::{Accounts, Arrival, Endpoint, ForwardPassMetrics, Heard, Message, Origin, What};
use rollscope_trace::{ForwardPass, Nanos, PassLoad, UnixNs, WorkerRef};
use tokio::sync::mpsc;

use crate::troubles::{PassTrouble, PassTroubles};
use crate::{RecorderHandle, clock};

/// Where forward passes come from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PassSource {
    /// Where they are published.
    pub endpoint: Endpoint,
    /// The worker that said so; nothing for an address that somebody else gave.
    pub worker: Option<WorkerRef>,
}

/// What is known of a source's stream: makes passes of its messages.
#[derive(Debug, Default)]
pub struct PassStream {
    accounts: Accounts<AtRest>,
}

/// Whether a publisher's latest record was a heartbeat.
#[derive(Debug, Default)]
struct AtRest(bool);

/// Messages that may wait to be put in; beyond, publishers keep and at last drop them.
pub const QUEUE_MESSAGES: usize = 4096;
/// How long after its end a pass may be published: schedulers hand it to a thread, which may look every few
/// milliseconds, and a GPU's timing is read when its events are complete.
const PUBLISHED_WITHIN: Duration = Duration::from_millis(5);

/// Records what is heard of sources, until nobody listens to them any more. `told` gets each record, heartbeats among them, as
/// soon as it is heard, and must not take long; what goes wrong is counted, and told, by `troubles`.
pub async fn record_passes(
    recorder: RecorderHandle,
    mut heard: mpsc::Receiver<Heard<Origin<PassSource>>>,
    troubles: PassTroubles,
    told: impl Fn(&PassSource, &ForwardPassMetrics) + Send,
) {
    let mut streams: BTreeMap<Origin<PassSource>, PassStream> = BTreeMap::new();
    while let Some(Heard { from, what }) = heard.recv().await {
        let message = match what {
            What::Message(message) => message,
            What::Lost(source) => {
                troubles.tell(&PassTrouble::Lost { endpoint: from.endpoint.clone(), source });
                continue;
            }
            What::Moved(_) => {
                streams.entry(from).or_default().begin_anew();
                continue;
            }
            What::Left => {
                streams.remove(&from);
                continue;
            }
            What::Connected => continue,
        };
        if let Ok(metrics) = &message.metrics {
            told(&from, metrics);
        }
        let stream = streams.entry(from.clone()).or_default();
        let received = recorder.timeline.at(message.received);
        let Some(pass) = stream.hear(&from, message, received, &troubles) else { continue };
        let (worker_id, dp_rank, lost) = (pass.worker_id.clone(), pass.dp_rank, pass.lost_before);
        let is_rest = pass.is_rest();
        if recorder.inbox.put_pass(pass).is_err() {
            let lost = if is_rest { 0 } else { lost.saturating_add(1) };
            stream.refused(&worker_id, dp_rank, lost);
            troubles.tell(&PassTrouble::Refused { endpoint: from.endpoint.clone() });
        }
    }
}

// === impl PassStream ===

impl PassStream {
    /// What comes next is of a publisher that was started anew: it is found elsewhere.
    pub fn begin_anew(&mut self) {
        self.accounts.begin_anew();
    }

    /// The pass that a message tells of, and of heartbeats in a row the first, as a rest; nothing for what is no record.
    pub fn take(&mut self, source: &PassSource, message: Message) -> Option<ForwardPass> {
        let received = clock::at(message.received);
        self.hear(source, message, received, &PassTroubles::default())
    }

    /// The latest pass of a publisher's was not taken, which is a loss of so many; after a rest the next heartbeat is one.
    fn refused(&mut self, worker_id: &str, dp_rank: u32, lost: u64) {
        if let Some(publisher) = self.accounts.entry(worker_id, dp_rank) {
            publisher.account.not_taken(lost);
            publisher.state.0 = false;
        }
    }

    fn hear(
        &mut self,
        source: &PassSource,
        message: Message,
        received: UnixNs,
        troubles: &PassTroubles,
    ) -> Option<ForwardPass> {
        let endpoint = || source.endpoint.clone();
        let taken = self.accounts.take(&message);
        troubles.count_heard(taken.as_ref().map(|(arrival, _)| *arrival));
        if let Some((Arrival::Gap(messages), _)) = taken {
            troubles.tell(&PassTrouble::Missing { endpoint: endpoint(), messages });
        }
        let mut publisher = taken.map(|(_, publisher)| publisher);
        let mut no_pass = |trouble: &PassTrouble| {
            troubles.tell(trouble);
            if let Some(publisher) = &mut publisher {
                publisher.account.not_taken(1);
            }
        };
        let metrics = match message.metrics {
            Ok(metrics) => metrics,
            Err(source) => {
                no_pass(&PassTrouble::Malformed { endpoint: endpoint(), source });
                return None;
            }
        };
        // A time that no clock could show makes it no record either.
        let Some(wall) = Nanos::from_secs_f64(metrics.wall_time) else {
            no_pass(&PassTrouble::Endless { endpoint: endpoint(), seconds: metrics.wall_time });
            return None;
        };
        let publisher = publisher?;
        let is_rest = metrics.is_heartbeat();
        let was_at_rest = std::mem::replace(&mut publisher.state.0, is_rest);
        if is_rest && was_at_rest {
            return None;
        }
        // What was lost is told with a pass.
        let lost_before = if is_rest { 0 } else { publisher.account.take_unreported() };
        let life = u32::try_from(publisher.account.restarts).unwrap_or(u32::MAX);
        let uncertainty = nanos(PUBLISHED_WITHIN.saturating_add(message.waited));
        let ForwardPassMetrics { worker_id, dp_rank, scheduled, queued, .. } = metrics;
        let endpoint = source.endpoint.to_string();
        Some(ForwardPass {
            worker: source.worker.clone(),
            worker_id,
            dp_rank,
            life,
            lost_before,
            uncertainty,
            wall,
            scheduled: PassLoad {
                prefill_requests: scheduled.num_prefill_requests,
                prefill_tokens: scheduled.sum_prefill_tokens,
                prefill_length_variance: scheduled.var_prefill_length,
                prefill_kv_tokens: scheduled.sum_prefill_kv_tokens,
                decode_requests: scheduled.num_decode_requests,
                decode_kv_tokens: scheduled.sum_decode_kv_tokens,
                decode_kv_variance: scheduled.var_decode_kv_tokens,
            },
            queued: PassLoad {
                prefill_requests: queued.num_prefill_requests,
                prefill_tokens: queued.sum_prefill_tokens,
                prefill_length_variance: queued.var_prefill_length,
                prefill_kv_tokens: 0,
                decode_requests: queued.num_decode_requests,
                decode_kv_tokens: queued.sum_decode_kv_tokens,
                decode_kv_variance: queued.var_decode_kv_tokens,
            },
            ..ForwardPass::new(&endpoint, message.sequence, received)
        })
    }
}

fn nanos(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rollscope_fpm::decode;

    use super::*;

    fn message(sequence: u64, payload: &[u8]) -> Message {
        let waited = Duration::from_millis(2);
        Message { sequence, received: Instant::now(), waited, metrics: decode(payload) }
    }

    #[test]
    fn what_is_lost_is_told_with_the_next_pass() {
        let source = PassSource { endpoint: "ipc://a.0".parse().unwrap(), worker: None };
        let mut stream = PassStream::default();
        // {"wall_time": 1}, and {"wall_time": 1, "dp_rank": 1}
        let pass = b"\x81\xa9wall_time\x01";
        let other = b"\x82\xa9wall_time\x01\xa7dp_rank\x01";
        let rest = Some((0, true));
        let mut take = |sequence, payload: &[u8]| {
            let pass = stream.take(&source, message(sequence, payload))?;
            Some((pass.lost_before, pass.is_rest())).filter(|_| pass.counter_id == sequence)
        };
        assert_eq!(take(5, pass), Some((0, false)));
        assert_eq!(take(6, b"\x80"), rest, "the first heartbeat");
        assert_eq!(take(7, b"\x80"), None, "another");
        assert_eq!(take(9, b"\x90"), None, "no record");
        assert_eq!(take(10, pass), Some((2, false)));
        assert_eq!(take(13, b"\x80"), rest, "a heartbeat after a gap");
        assert_eq!(take(0, pass), Some((0, false)), "the gap was of the life before");
        // {"wall_time": 1e300}
        let endless = [&b"\x81\xa9wall_time\xcb"[..], &1e300_f64.to_be_bytes()].concat();
        assert_eq!(take(3, &endless), None, "no time");
        assert_eq!(take(4, pass), Some((3, false)));
        assert_eq!(take(70, other), Some((0, false)), "another rank has numbers of its own");
        assert_eq!(take(5, pass), Some((0, false)));
        let heard = stream.take(&source, message(6, pass)).unwrap();
        assert_eq!((heard.life, heard.dp_rank), (1, 0));
        assert_eq!((heard.wall, heard.uncertainty), (Nanos(1_000_000_000), Nanos(7_000_000)));
    }

    #[test]
    fn what_is_refused_is_told_with_the_next_pass_and_a_rest_is_told_again() {
        let source = PassSource { endpoint: "ipc://a.0".parse().unwrap(), worker: None };
        let mut stream = PassStream::default();
        let mut take = |sequence, payload: &[u8], is_refused: bool| {
            let pass = stream.take(&source, message(sequence, payload))?;
            if is_refused {
                stream.refused("", 0, if pass.is_rest() { 0 } else { pass.lost_before + 1 });
            }
            Some((pass.lost_before, pass.is_rest()))
        };
        let pass = b"\x81\xa9wall_time\x01";
        assert_eq!(take(0, pass, true), Some((0, false)));
        assert_eq!(take(1, b"\x80", true), Some((0, true)));
        assert_eq!(take(2, b"\x80", false), Some((0, true)), "it is not known yet that it rests");
        assert_eq!(take(3, b"\x80", false), None);
        assert_eq!(take(4, pass, true), Some((1, false)));
        assert_eq!(take(5, pass, false), Some((2, false)));
        assert_eq!(take(6, pass, false), Some((0, false)));
    }
}
