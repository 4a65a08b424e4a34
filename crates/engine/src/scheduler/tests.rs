//! The scheduler by itself, where no client could hold what is to be seen.

use std::sync::Arc;
use std::time::Duration;

use rollscope_config::{Options, Published};
use rollscope_model::{KvPool, Model};
use tokio::sync::mpsc;

use super::core::Core;
use super::decode::DecodeSide;
use super::decode::endings::MAX_ENDING;
use super::mailbox::{Command, Postbox, Waker};
use super::{Limits, Means, PauseMode, Rooms, SchedulerThread};
use crate::clock::Clock;
use crate::disagg::frame::Frame;
use crate::disagg::{BootstrapAddr, End, Event, EventSender, Identity, LinkId, Outbox, What};
use crate::error::EngineError;
use crate::options::{DisaggregationMode, EngineOptions};
use crate::output::{Abort, Listener, output};
use crate::ranks::Ranks;
use crate::request::{GenerateSpec, Incoming, KvPoll, Pair, Request, Room};
use crate::sim::CostModel;
use crate::warn::Warnings;

const TOKENS: usize = 100_000;

/// A server alone, of which each token takes a millisecond.
fn slow() -> SchedulerThread {
    slow_with(|_| ())
}

/// It with a KV cache that something was done to.
fn slow_with(prepare: impl FnOnce(&mut KvPool)) -> SchedulerThread {
    let (mut means, limits) = parts(DisaggregationMode::Null);
    prepare(&mut means.kv);
    SchedulerThread::start(means, limits).unwrap()
}

/// What such a server is made of.
fn parts(mode: DisaggregationMode) -> (Means, Limits) {
    let costs = r#"{"prefill": {"base_s": 0, "per_token_s": 0}, "context_length": 100000,
        "decode": {"base_s": 0.001, "per_request_s": 0, "per_kv_token_s": 0}}"#;
    let model = Arc::new(Model::simulated(TOKENS).unwrap());
    let kv = KvPool::new(model.config(), TOKENS / 16, 16).unwrap();
    let identity = Identity {
        model: Arc::clone(&model),
        dtype: "float32",
        page_tokens: 16,
        page_bytes: kv.page_bytes() as u64,
        row_bytes: 0,
    };
    let means = Means {
        model,
        kv,
        clock: Arc::new(Clock::new()),
        random_seed: 0,
        simulated: Some(serde_json::from_str::<CostModel>(costs).unwrap()),
        rooms: Rooms::default(),
        identity: Arc::new(identity),
        publisher: None,
        published: Published::publish(EngineOptions::from_args(["--model-path", "bundled"]).unwrap()),
        warnings: Warnings::start(),
    };
    let limits = Limits {
        mode,
        max_running: 4,
        max_queued: 4,
        request_waiting_timeout: None,
        chunk_tokens: 512,
        reserved_decode_tokens: 16,
        prefix_cache: false,
        bootstrap_timeout: Duration::MAX,
        waiting_timeout: Duration::MAX,
        transfer_timeout: Duration::MAX,
        prefill_timing: false,
    };
    (means, limits)
}

/// A request that takes a minute and a half.
pub(super) fn endless() -> GenerateSpec {
    GenerateSpec::greedy("endless".to_owned(), vec![49; 3], TOKENS - 10, Clock::new().now())
}

#[tokio::test]
async fn nothing_is_computed_while_weights_are_replaced() {
    let scheduler = slow();
    let postbox = &scheduler.postbox;
    let mut listener = postbox.reserve().await.unwrap().generate(vec![endless()]).pop().unwrap();
    listener.changed().await;
    postbox.pause(PauseMode::InPlace).await.unwrap();
    assert_eq!(postbox.quiesce().await.unwrap(), 1);
    // The end of the pause is not the end of that.
    postbox.go_on().await.unwrap();
    let made = listener.read(|progress| progress.output_ids.len());
    for _ in 0..3 {
        // Each of these is answered on a turn of its own.
        assert!(postbox.inspect(false).await.unwrap().stillness.is_still());
    }
    assert_eq!(listener.read(|progress| progress.output_ids.len()), made);
    postbox.proceed(false).await.unwrap();
    while listener.read(|progress| progress.output_ids.len()) == made {
        listener.changed().await;
    }
}

#[tokio::test]
async fn what_is_held_without_a_request_is_told_at_the_end() {
    let scheduler = slow();
    drop(scheduler.postbox.reserve().await.unwrap().generate(vec![endless(), endless()]));
    assert!(scheduler.finish().is_ok());
    let leaking = slow_with(|kv| drop(kv.alloc(3).unwrap()));
    match leaking.finish() {
        Err(EngineError::Unbalanced(finding)) => {
            let free = TOKENS / 16 - 3;
            assert_eq!(finding, format!("0 pages are held and {free} free, of {}", TOKENS / 16));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_batch_is_handed_over_as_one() {
    let postbox = || {
        let (commands, taken) = mpsc::channel(4);
        (Postbox::new(commands, Waker::of_current_thread(), Arc::new(Clock::new())), taken)
    };
    let ((first, mut of_first), (second, mut of_second)) = (postbox(), postbox());
    let ranks = Ranks::new(vec![first, second]);
    let specs = [0, 1, 1, 0, 1].map(|rank| GenerateSpec { dp_rank: Some(rank), ..endless() });
    let started = ranks.generate(specs.to_vec()).await.unwrap();
    let found: Vec<_> = started.iter().map(|(rank, _)| *rank).collect();
    assert_eq!(found, [0, 1, 1, 0, 1]);
    for (taken, expected) in [(&mut of_first, 2), (&mut of_second, 3)] {
        assert!(matches!(taken.try_recv(), Ok(Command::Generate(batch)) if batch.len() == expected));
        assert!(taken.try_recv().is_err());
    }
}

#[test]
fn the_state_of_a_transfer_only_grows() {
    let all = [KvPoll::Bootstrapping, KvPoll::WaitingForInput, KvPoll::Transferring, KvPoll::Success];
    for (before, poll) in all.iter().enumerate() {
        for (after, next) in all.iter().enumerate() {
            let spec = endless();
            let (publisher, _) = output(spec.stamps.clone(), Waker::of_current_thread());
            let mut request = Request::new(spec, publisher, Pair::Alone);
            request.raise(*poll);
            request.raise(*next);
            assert_eq!(request.poll, Some(all[before.max(after)]));
        }
    }
}

/// The decode half, whose connections the test makes up.
struct Decode {
    core: Core,
    side: DecodeSide,
    clock: Arc<Clock>,
}

impl Decode {
    fn new(limit: impl FnOnce(&mut Limits)) -> Self {
        let (means, mut limits) = parts(DisaggregationMode::Decode);
        limit(&mut limits);
        let (identity, clock) = (Arc::clone(&means.identity), Arc::clone(&means.clock));
        let (events, _none) = mpsc::channel(64);
        let events = EventSender::new(events, Waker::of_current_thread(), Arc::clone(&clock));
        let core = Core::new(means, limits);
        Self { core, side: DecodeSide::new(identity, events, tokio::runtime::Handle::current()), clock }
    }

    /// A request of a prompt of so many tokens. Searches and connections have numbers that count up.
    fn submit(&mut self, room: u64, tokens: usize) -> Listener {
        let mut spec = GenerateSpec::greedy(String::new(), vec![49; tokens], 1, self.clock.now());
        // Nobody listens there.
        let prefill = BootstrapAddr::new("127.0.0.1", 1);
        spec.room = Some(Room { number: room, prefill, prefill_rank: None });
        assert!(self.core.rooms.take(room));
        let (publisher, listener) = output(spec.stamps.clone(), Waker::of_current_thread());
        let request = Request::new(spec, publisher, Pair::Decode(Incoming::default()));
        self.side.submit(&mut self.core, Box::new(request));
        self.side.advance(&mut self.core);
        listener
    }

    fn happens(&mut self, link: u64, what: What) {
        let event = Event { link: LinkId(link), at: self.clock.now(), what };
        self.side.handle(&mut self.core, event);
        self.side.advance(&mut self.core);
    }

    /// A connection is open; what is sent there.
    fn open(&mut self, link: u64) -> mpsc::Receiver<Frame> {
        let (outbox, sent) = Outbox::unconnected();
        let fingerprint = self.core.model.fingerprint();
        self.happens(link, What::Opened { outbox, fingerprint });
        sent
    }

    /// Rooms and states of those that are without pages.
    fn prealloc(&self) -> Vec<(u64, Option<KvPoll>)> {
        self.side.prealloc.iter().map(|request| (request.room(), request.poll)).collect()
    }
}

#[tokio::test]
async fn each_request_has_the_whole_search_for_its_prefill_server() {
    let mut decode = Decode::new(|_| ());
    let _first = decode.submit(1, 3);
    let _late = decode.submit(2, 3);
    decode.happens(1, What::Closed(End::Unfound("not found".to_owned())));
    // Who came while it went on has another one.
    assert_eq!(decode.prealloc(), [(2, Some(KvPoll::Bootstrapping))]);
    decode.happens(2, What::Closed(End::Unfound("not found".to_owned())));
    assert_eq!((decode.side.prealloc.len(), decode.core.rooms.own().len()), (0, 0));
}

#[tokio::test]
async fn a_check_has_no_limit_but_its_own() {
    let mut decode = Decode::new(|limits| limits.request_waiting_timeout = Some(Duration::ZERO));
    for is_probe in [true, false] {
        let spec = GenerateSpec { is_probe, ..endless() };
        let (publisher, _) = output(spec.stamps.clone(), Waker::of_current_thread());
        let mut request = Request::new(spec, publisher, Pair::Alone);
        request.queued = decode.core.active_now();
        decode.core.waiting.push_back(Box::new(request));
    }
    let now = decode.clock.now();
    while decode.clock.now() == now {}
    let overdue = decode.core.take_overdue();
    assert_eq!(overdue.iter().map(|request| request.spec.is_probe).collect::<Vec<_>>(), [false]);
    assert_eq!(decode.core.waiting.len(), 1);
}

#[tokio::test]
async fn other_weights_end_what_was_agreed_on_and_nothing_else() {
    let mut decode = Decode::new(|_| ());
    let _aborted = decode.submit(1, 3);
    let _waits = decode.submit(2, 3);
    let aborted = decode.side.prealloc.pop_front().unwrap();
    decode.side.give_up(&mut decode.core, aborted, Abort::asked_for());
    // In search of the server, then on the way to it: who waits goes on, and the server is told what it is to be told.
    decode.side.disconnect(&mut decode.core);
    decode.happens(1, What::Found { dp_size: 1 });
    decode.side.disconnect(&mut decode.core);
    assert_eq!(decode.prealloc(), [(2, Some(KvPoll::Bootstrapping))]);
    let mut sent = decode.open(2);
    assert!(matches!(sent.try_recv(), Ok(Frame::Abort { room: 1, prepared: false, .. })));
    assert_eq!(sent.try_recv().ok(), Some(Frame::Prepare { room: 2, pages: 1 }));
    decode.side.disconnect(&mut decode.core);
    assert!(matches!(sent.try_recv(), Ok(Frame::Abort { room: 2, prepared: true, .. })));
    assert!(matches!(sent.try_recv(), Ok(Frame::Refuse(_))));
    assert!(sent.is_closed() && decode.core.rooms.own().is_empty());
}

#[tokio::test]
async fn who_has_met_a_server_has_met_it_when_the_connection_is_doubted() {
    let mut decode = Decode::new(|limits| limits.waiting_timeout = Duration::ZERO);
    // There are pages for one of them.
    let _prepared = decode.submit(1, TOKENS / 2 + 1);
    let _met = decode.submit(2, TOKENS / 2 + 1);
    decode.happens(1, What::Found { dp_size: 1 });
    let mut sent = decode.open(2);
    assert!(matches!(sent.try_recv(), Ok(Frame::Prepare { room: 1, .. })));
    assert_eq!(decode.prealloc(), [(2, Some(KvPoll::WaitingForInput))]);
    let now = decode.clock.now();
    while decode.clock.now() == now {}
    decode.side.time_out(&mut decode.core);
    assert!(matches!(sent.try_recv(), Ok(Frame::Abort { room: 1, .. })));
    // It goes on over the next connection, of which nothing is agreed on yet.
    decode.side.disconnect(&mut decode.core);
    assert_eq!(decode.prealloc(), [(2, Some(KvPoll::WaitingForInput))]);
    decode.side.advance(&mut decode.core);
    let mut anew = decode.open(3);
    assert!(matches!(anew.try_recv(), Ok(Frame::Prepare { room: 2, .. })));
    assert!(sent.try_recv().is_err());
}

#[tokio::test]
async fn a_prefill_server_that_answers_no_abort_is_given_up() {
    let mut decode = Decode::new(|_| ());
    drop(decode.submit(1, 3));
    decode.happens(1, What::Found { dp_size: 1 });
    let mut sent = decode.open(2);
    for room in 2..MAX_ENDING as u64 + 3 {
        let prepared = decode.side.transfer.pop_front().unwrap();
        decode.side.give_up(&mut decode.core, prepared, Abort::asked_for());
        while sent.try_recv().is_ok() {}
        assert_eq!(sent.is_closed(), room == MAX_ENDING as u64 + 2);
        drop(decode.submit(room, 3));
    }
    // Whoever comes next has the server looked for anew.
    assert_eq!(decode.prealloc(), [(MAX_ENDING as u64 + 2, Some(KvPoll::Bootstrapping))]);
}
