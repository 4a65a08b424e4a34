//! Forward passes of a fleet, recorded with the steps that they belong to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollscope_fpm::{Address, Pass, Publisher, Subscriptions};
use rollscope_record::{
    PassSource, PassTroubles, QUEUE_MESSAGES, RecordOptions, Recorder, RecorderHandle, StepEnd, follow_fleet,
    record_passes,
};
use rollscope_trace::{Nanos, ProfileSink as _, StepNumber, UnixNs, WorkerRef};
use serde_json::json;

use super::{PATIENCE, Setup, of_sample, profile, setup, until};

/// Records what a source publishes for as long as the result lives.
fn listen(handle: &RecorderHandle, source: &PassSource) -> Subscriptions<(), PassSource> {
    let (mut subscriptions, heard) = Subscriptions::new(QUEUE_MESSAGES);
    tokio::spawn(record_passes(handle.clone(), heard, PassTroubles::default(), |_, _| {}));
    subscriptions.follow([((), source.clone(), source.endpoint.clone())]);
    subscriptions
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forward_passes_go_on_with_the_step_that_the_run_stands_at() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    recorder.handle().offer(profile(1, of_sample(7, "a"), "v7")).unwrap();
    recorder.shutdown().await.unwrap();
    let recorder = Recorder::start(run.clone(), &RecordOptions::default()).unwrap();
    let mut publisher = Publisher::bind(&"tcp://127.0.0.1:0".parse().unwrap(), "w", 0).unwrap();
    let source = PassSource { endpoint: publisher.endpoint().clone(), worker: None };
    let _listening = listen(&recorder.handle(), &source);
    let passes = |step| run.forward_passes(StepNumber(step)).unwrap().len();
    until("a pass is recorded", || {
        publisher.publish(Pass { wall_time: 0.25, ..Pass::default() });
        passes(0) + passes(7) > 0
    });
    assert_eq!(passes(0), 0, "there is no step 0");
    recorder.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forward_passes_are_placed_by_the_clock_of_the_profiles() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    let handle = recorder.handle();
    handle.offer(profile(1, of_sample(1, "a"), "v1")).unwrap();
    let begin = Instant::now();
    let since = move |at: Instant| i64::try_from(at.saturating_duration_since(begin).as_nanos()).unwrap();
    handle.go_by(move |at| UnixNs(5_000_000_000 + since(at)));
    let mut publisher = Publisher::bind(&"tcp://127.0.0.1:0".parse().unwrap(), "w", 0).unwrap();
    let source = PassSource { endpoint: publisher.endpoint().clone(), worker: None };
    let _listening = listen(&handle, &source);
    until("a pass is recorded", || {
        publisher.publish(Pass { wall_time: 0.25, ..Pass::default() });
        !run.forward_passes(StepNumber(1)).unwrap().is_empty()
    });
    let received = run.forward_passes(StepNumber(1)).unwrap()[0].received.0;
    assert!((5_000_000_000..=5_000_000_000 + since(Instant::now())).contains(&received), "{received}");
    recorder.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_is_asked_all_at_once_and_again() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    let handle = recorder.handle();
    handle.offer(profile(1, of_sample(1, "a"), "v1")).unwrap();
    let mut publisher = Publisher::bind(&"tcp://127.0.0.1:0".parse().unwrap(), "w", 0).unwrap();
    let base = publisher.endpoint().to_string();
    let worker = |url: &str| WorkerRef { url: url.into(), instance: url.into() };
    // The first never answers; the second tells at first that it publishes and not where.
    let fleet = vec![worker("http://silent"), worker("http://w")];
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let ask = move |worker: WorkerRef| {
        let (base, count) = (base.clone(), Arc::clone(&count));
        async move {
            if &*worker.url == "http://silent" {
                return std::future::pending().await;
            }
            let told = count.fetch_add(1, Ordering::SeqCst) > 0;
            let state = json!({"enable_forward_pass_metrics": true, "forward_pass_metrics_ipc_name": base});
            let states = if told { vec![state] } else { vec![] };
            Some(json!({"enable_forward_pass_metrics": true, "internal_states": states}))
        }
    };
    let of_fleet = fleet.clone();
    // The same endpoint was given as an address too.
    let further = vec![publisher.endpoint().to_string().parse::<Address>().unwrap()];
    let (subscriptions, heard) = Subscriptions::new(QUEUE_MESSAGES);
    let troubles = PassTroubles::default();
    tokio::spawn(record_passes(handle, heard, troubles.clone(), |_, _| {}));
    let workers = move || of_fleet.clone();
    let recording = tokio::spawn(follow_fleet(subscriptions, workers, further, ask, troubles));
    let recorded = || run.forward_passes(StepNumber(1)).unwrap();
    until("passes of the worker are recorded", || {
        publisher.publish(Pass { wall_time: 0.25, ..Pass::default() });
        recorded().iter().filter(|pass| pass.worker.is_some()).count() > 20
    });
    let passes = recorded();
    assert_eq!(passes[passes.len() - 1].worker.as_ref(), Some(&fleet[1]));
    let mut numbers: Vec<_> = passes.iter().map(|pass| pass.counter_id).collect();
    numbers.dedup();
    assert!(numbers.is_sorted() && numbers.len() == passes.len(), "a pass is recorded twice: {numbers:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 2, "one that has told is not asked again");
    recording.abort();
    recorder.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_publishes_elsewhere_is_found_again() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    let handle = recorder.handle();
    handle.offer(profile(1, of_sample(1, "a"), "v1")).unwrap();
    let bind = || Publisher::bind(&"tcp://127.0.0.1:0".parse().unwrap(), "w", 0).unwrap();
    let mut publisher = bind();
    let first = publisher.endpoint().to_string();
    let base = Arc::new(Mutex::new(first.clone()));
    let told = Arc::clone(&base);
    let ask = move |_| {
        let state =
            json!({"enable_forward_pass_metrics": true, "forward_pass_metrics_ipc_name": *told.lock()});
        std::future::ready(Some(json!({"internal_states": [state]})))
    };
    // The gateway names a worker anew that was started anew.
    let instance = Arc::new(Mutex::new("first"));
    let named = Arc::clone(&instance);
    let fleet = move || vec![WorkerRef { url: "http://w".into(), instance: (*named.lock()).into() }];
    let (subscriptions, heard) = Subscriptions::new(QUEUE_MESSAGES);
    let (tell, told_of) = std::sync::mpsc::sync_channel(64);
    let troubles = PassTroubles::new(move |text| tell.send(text.to_owned()).unwrap());
    tokio::spawn(record_passes(handle, heard, troubles.clone(), |_, _| {}));
    let recording = tokio::spawn(follow_fleet(subscriptions, fleet, Vec::new(), ask, troubles.clone()));
    let is_heard = |publisher: &mut Publisher| {
        publisher.publish(Pass { wall_time: 0.25, ..Pass::default() });
        let endpoint = publisher.endpoint().to_string();
        run.forward_passes(StepNumber(1)).unwrap().iter().any(|pass| *pass.endpoint == endpoint)
    };
    until("it is found", || is_heard(&mut publisher));
    // It has sent more than the one before by the time that it is found, and is no gap nevertheless.
    // The new one is there before the old one is gone, so that it cannot have the same port.
    let mut elsewhere = bind();
    for _ in 0..1000 {
        elsewhere.publish(Pass { wall_time: 0.25, ..Pass::default() });
    }
    drop(publisher);
    until("its end is told", || troubles.counts().connections_lost > 0);
    *base.lock() = elsewhere.endpoint().to_string();
    *instance.lock() = "second";
    until("it is found again", || is_heard(&mut elsewhere));
    let lives = run.forward_passes(StepNumber(1)).unwrap().into_iter().map(|pass| {
        let instance = pass.worker.map(|worker| worker.instance.to_string());
        (pass.endpoint.to_string(), instance, pass.life, pass.lost_before)
    });
    let mut lives: Vec<_> = lives.collect();
    lives.dedup();
    let life =
        |endpoint: &str, instance: &str, life| (endpoint.to_owned(), Some(instance.to_owned()), life, 0);
    assert_eq!(lives, [life(&first, "first", 0), life(&base.lock(), "second", 1)]);
    assert_eq!((troubles.counts().restarts, troubles.counts().missing), (1, 0));
    let lost = told_of.try_iter().collect::<Vec<_>>();
    assert!(lost[0].starts_with("no forward passes from tcp://127.0.0.1:"), "{lost:?}");
    assert!(troubles.counts().heard >= 2);
    recording.abort();
    recorder.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forward_passes_are_recorded_with_the_step_that_goes_on() {
    let Setup { _dir, run, recorder, .. } = setup(RecordOptions::default());
    let handle = recorder.handle();
    let mut publisher = Publisher::bind(&"tcp://127.0.0.1:0".parse().unwrap(), "w", 0).unwrap();
    let worker = Some(WorkerRef { url: "http://w".into(), instance: "w".into() });
    let source = PassSource { endpoint: publisher.endpoint().clone(), worker };
    let listening = listen(&handle, &source);
    let recorded = |step| run.forward_passes(StepNumber(step)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    // The first passes are heard of before any request of the step has ended.
    for number in 0..20 {
        publisher.publish(Pass { wall_time: 0.5, ..Pass::default() });
        handle.offer(profile(number, of_sample(3, "a"), "v1")).unwrap();
    }
    while recorded(3).last().is_none_or(|pass| pass.wall != Nanos(250_000_000)) {
        assert!(Instant::now() < deadline, "no pass was recorded");
        publisher.publish(Pass { wall_time: 0.25, ..Pass::default() });
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop((publisher, listening));
    let closed = handle.end_step(StepNumber(3), StepEnd::default()).unwrap();
    closed.await.unwrap().unwrap();
    let passes = recorded(3);
    let pass = passes.last().unwrap();
    assert_eq!((&pass.worker, &*pass.worker_id, pass.life), (&source.worker, "w", 0));
    assert_eq!(pass.wall, Nanos(250_000_000));
    assert!(pass.uncertainty >= Nanos(5_000_000));
    assert!(passes.windows(2).all(|two| two[0].counter_id < two[1].counter_id), "{passes:?}");
    assert!(!run.steps().unwrap()[0].late, "passes make no step late");
    recorder.shutdown().await.unwrap();
    assert_eq!(recorded(3), passes, "sealed, they read as they were logged");
}
