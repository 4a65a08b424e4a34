//! Forward passes into the run: endpoints are listened to, and what is heard is accounted for, timed and put in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollscope_fpm::{Account, Arrival, Endpoint, ForwardPassMetrics, Heard, Message, Subscription, What};
use rollscope_trace::{ForwardPass, Nanos, PassLoad, WorkerRef};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::{RecorderHandle, clock};

/// Where forward passes come from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PassSource {
    /// Where they are published.
    pub endpoint: Endpoint,
    /// The worker that said so; nothing for an address that somebody else gave.
    pub worker: Option<WorkerRef>,
}

/// Listens to sources and records what it hears, until it is dropped.
#[derive(Debug)]
pub struct PassListener {
    subscriptions: BTreeMap<PassSource, Subscription>,
    streams: Arc<Mutex<Streams>>,
    tell: mpsc::Sender<Heard<PassSource>>,
    recording: JoinHandle<()>,
}

/// What is known of the sources that are listened to, and of those that something may still wait of.
type Streams = BTreeMap<PassSource, PassStream>;

/// What is known of a source's stream: makes passes of its messages.
#[derive(Debug, Default)]
pub struct PassStream {
    account: Account,
    /// Messages of this life of the publisher lost since the last pass that was put in, here or before.
    lost: u64,
    /// Its publisher is not there, or not there any more.
    is_lost: bool,
}

/// Messages that may wait to be put in; beyond, publishers keep and at last drop them.
const QUEUE_MESSAGES: usize = 4096;
/// How long after its end a pass may be published: schedulers hand it to a thread, which may look every few
/// milliseconds, and a GPU's timing is read when its events are complete.
const PUBLISHED_WITHIN: Duration = Duration::from_millis(5);

// === impl PassListener ===

impl PassListener {
    /// Listens to nothing yet; to be called on a runtime.
    pub fn new(recorder: RecorderHandle) -> Self {
        Self::telling(recorder, |_, _| {})
    }

    /// The same, and tells of each record that is heard, heartbeats among them, as soon as it is; what is told must not
    /// take long.
    pub fn telling(
        recorder: RecorderHandle,
        told: impl Fn(&PassSource, &ForwardPassMetrics) + Send + 'static,
    ) -> Self {
        let (tell, heard) = mpsc::channel(QUEUE_MESSAGES);
        let streams = Arc::default();
        let recording = tokio::spawn(record(recorder, Arc::clone(&streams), heard, told));
        Self { subscriptions: BTreeMap::new(), streams, tell, recording }
    }

    /// Listens to these sources from now on, and to no others.
    pub fn follow(&mut self, sources: impl IntoIterator<Item = PassSource>) {
        let mut before = std::mem::take(&mut self.subscriptions);
        for source in sources {
            let subscription = before.remove(&source).unwrap_or_else(|| {
                Subscription::start(source.endpoint.clone(), source.clone(), self.tell.clone())
            });
            self.subscriptions.insert(source, subscription);
        }
        // What still waits of a source that was left goes on with its stream.
        let nothing_waits = self.tell.capacity() == self.tell.max_capacity();
        if nothing_waits {
            self.streams.lock().retain(|source, _| self.subscriptions.contains_key(source));
        }
    }

    /// Whether one of a worker's publishers is not there, or not there any more: it may have been started anew elsewhere.
    pub(crate) fn misses(&self, worker: &WorkerRef) -> bool {
        let streams = self.streams.lock();
        streams.iter().any(|(source, stream)| stream.is_lost && source.worker.as_ref() == Some(worker))
    }
}

impl Drop for PassListener {
    fn drop(&mut self) {
        self.recording.abort();
    }
}

async fn record(
    recorder: RecorderHandle,
    streams: Arc<Mutex<Streams>>,
    mut heard: mpsc::Receiver<Heard<PassSource>>,
    told: impl Fn(&PassSource, &ForwardPassMetrics) + Send,
) {
    while let Some(Heard { from, what }) = heard.recv().await {
        if let What::Message(Message { metrics: Ok(metrics), .. }) = &what {
            told(&from, metrics);
        }
        let mut streams = streams.lock();
        let stream = streams.entry(from.clone()).or_default();
        let message = match what {
            What::Message(message) => message,
            What::Connected | What::Lost(_) => {
                stream.is_lost = matches!(what, What::Lost(_));
                continue;
            }
        };
        if let Some(pass) = stream.take(from, message) {
            let lost = pass.lost_before;
            if recorder.inbox.put_pass(pass).is_err() {
                stream.lost = lost.saturating_add(1);
            }
        }
    }
}

// === impl PassStream ===

impl PassStream {
    /// The pass that a message tells of; nothing for a heartbeat, and for what is no record.
    pub fn take(&mut self, source: PassSource, message: Message) -> Option<ForwardPass> {
        let arrival = self.account.take(message.sequence);
        match arrival {
            Arrival::Gap(lost) => self.lost = self.lost.saturating_add(lost),
            // What was lost of the publisher before is not before a pass of this one.
            Arrival::Restart(_) => self.lost = 0,
            Arrival::First(_) | Arrival::Next => {}
        }
        // A time that no clock could show makes it no record either.
        let timed = message
            .metrics
            .ok()
            .and_then(|metrics| Some((Nanos::from_secs_f64(metrics.wall_time)?, metrics)));
        let Some((wall, metrics)) = timed else {
            self.account.malformed += 1;
            self.lost = self.lost.saturating_add(1);
            return None;
        };
        if metrics.is_heartbeat() {
            return None;
        }
        let life = u32::try_from(self.account.restarts).unwrap_or(u32::MAX);
        let uncertainty = nanos(PUBLISHED_WITHIN.saturating_add(message.waited));
        let ForwardPassMetrics { worker_id, dp_rank, scheduled, queued, .. } = metrics;
        Some(ForwardPass {
            step: None,
            endpoint: source.endpoint.to_string().into(),
            worker: source.worker,
            worker_id,
            dp_rank,
            life,
            counter_id: message.sequence,
            lost_before: std::mem::take(&mut self.lost),
            received: clock::at(message.received),
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
        // {"wall_time": 1}
        let pass = b"\x81\xa9wall_time\x01";
        let mut take = |sequence, payload: &[u8]| {
            let pass = stream.take(source.clone(), message(sequence, payload))?;
            Some((pass.counter_id, pass.life, pass.lost_before))
        };
        assert_eq!(take(5, pass), Some((5, 0, 0)));
        assert_eq!(take(6, b"\x80"), None, "a heartbeat");
        assert_eq!(take(9, b"\x90"), None, "no record");
        assert_eq!(take(10, pass), Some((10, 0, 3)));
        assert_eq!(take(13, b"\x80"), None, "a heartbeat after a gap");
        assert_eq!(take(0, pass), Some((0, 1, 0)), "the gap was of the life before");
        // {"wall_time": 1e300}
        let endless = [&b"\x81\xa9wall_time\xcb"[..], &1e300_f64.to_be_bytes()].concat();
        assert_eq!(take(3, &endless), None, "no time");
        assert_eq!(take(4, pass), Some((4, 1, 3)));
        let heard = stream.take(source, message(5, pass)).unwrap();
        assert_eq!((heard.wall, heard.uncertainty), (Nanos(1_000_000_000), Nanos(7_000_000)));
    }
}
