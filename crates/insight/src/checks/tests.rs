//! A healthy step, and one made ill in each way: each check finds its own illness, and nothing in the healthy one.

use rollscope_stats::{Part, step_numbers};
use rollscope_trace::{
    Attr, CloseReason, Join, Leg, LegRole, Measure, Nanos, Outcome, Profile, Record, Report, RequestId,
    SampleKey, SampleMark, Scalar, StepClose, StepNumber, StepTrace, UnixNs, UserSpan, WorkerRef,
};

use crate::{Finding, where_time_went};

const STEP: StepNumber = StepNumber(1);
const BEGIN: i64 = 1_700_000_000_000_000_000;
const SAMPLES: u32 = 40;

fn findings(trace: &StepTrace) -> Vec<Finding> {
    crate::findings(trace, &step_numbers(trace))
}

/// What a sample's one request is like; seconds.
#[derive(Clone)]
struct Ill {
    start: f64,
    queue: f64,
    prompt: f64,
    prealloc: f64,
    transfer: f64,
    forward: f64,
    reward: f64,
    tokens: f64,
    cached: f64,
    finish: &'static str,
    outcome: Outcome,
    worker: u32,
    silent: bool,
    /// What every worker tells by itself; else nothing.
    told: &'static [(&'static str, f64)],
}

fn healthy(number: u32) -> Ill {
    Ill {
        start: 0.0,
        queue: 0.01,
        prompt: 0.2,
        prealloc: 0.01,
        transfer: 0.02,
        forward: 2.0 + f64::from(number) * 0.001,
        reward: 0.001,
        tokens: 200.0,
        cached: 80.0,
        finish: "stop",
        outcome: Outcome::Completed,
        worker: number % 4,
        silent: false,
        told: &[],
    }
}

fn seconds(seconds: f64) -> Nanos {
    Nanos::from_secs_f64(seconds).unwrap()
}

fn leg(role: LegRole, worker: u32, end: Nanos, of: &Ill, pairs: &[(&str, f64)]) -> Leg {
    let pairs = if of.silent { of.told } else { pairs };
    let numbers = pairs.iter().map(|(name, value)| (*name, Scalar::Number(*value)));
    let url = format!("http://{}-{worker}:30000", role.name());
    Leg {
        outcome: of.outcome,
        report: Report::from_pairs(numbers.chain([("finish_reason.type", Scalar::Text(of.finish))])),
        ..Leg::new(role, WorkerRef { url: url.clone().into(), instance: url.into() }, Nanos(0), end)
    }
}

fn records(number: u32, of: &Ill) -> Vec<Record> {
    let (group, sample) = ((number / 8).to_string(), (number % 8).to_string());
    let wait = of.queue + of.prompt + of.transfer;
    let end = of.prealloc + wait + of.forward;
    let prefill = [
        ("queue_time", of.queue),
        ("pd_prefill_forward_duration", of.prompt + of.transfer),
        ("pd_prefill_transfer_queue_duration", of.transfer),
        ("prompt_tokens", 100.0),
        ("cached_tokens", of.cached),
    ];
    let decode = [
        ("pd_decode_prealloc_duration", of.prealloc),
        ("pd_decode_alloc_wait_duration", of.prealloc),
        ("pd_decode_transfer_duration", wait),
        ("pd_decode_forward_duration", of.forward),
        ("prompt_tokens", 100.0),
        ("completion_tokens", of.tokens),
    ];
    let start = UnixNs(BEGIN).after(seconds(of.start));
    let profile = Profile {
        join: Join {
            step: Some(STEP),
            group: Some(group.clone().into()),
            sample: Some(sample.clone().into()),
            ..Join::default()
        },
        outcome: of.outcome,
        error: (of.outcome == Outcome::Failed).then(|| "out of memory".into()),
        legs: vec![
            leg(LegRole::Prefill, of.worker % 2, seconds(of.prealloc + wait), of, &prefill),
            leg(LegRole::Decode, of.worker, seconds(end), of, &decode),
        ],
        ..Profile::new(RequestId(number.into()), start, seconds(end))
    };
    let key = SampleKey { step: STEP, group: Some(group.into()), sample: sample.into() };
    let done = start.after(seconds(end));
    let span = UserSpan {
        key: key.clone(),
        attempt: 0,
        name: "reward".into(),
        start: done,
        end: Some(done.after(seconds(of.reward))),
        attrs: Vec::new(),
    };
    let mark = SampleMark { reward: Some(1.0), ..SampleMark::new(key) };
    vec![Record::Profile(Box::new(profile)), Record::Span(span), Record::Sample(mark)]
}

fn step(make_ill: impl Fn(u32, &mut Ill)) -> StepTrace {
    let of = |number| {
        let mut of = healthy(number);
        make_ill(number, &mut of);
        records(number, &of)
    };
    let close = StepClose {
        step: STEP,
        at: UnixNs(BEGIN),
        reason: CloseReason::Told,
        rollout_time: None,
        gpus: Some(8),
    };
    StepTrace::gather(STEP, (0..SAMPLES).flat_map(of).chain([Record::Close(close)]))
}

fn checks(found: &[Finding]) -> Vec<&'static str> {
    found.iter().map(|finding| finding.check).collect()
}

#[track_caller]
fn check(name: &str, said: &str, make_ill: impl Fn(u32, &mut Ill)) {
    let found = findings(&step(make_ill));
    let finding = found.iter().find(|finding| finding.check == name);
    let finding = finding.unwrap_or_else(|| panic!("{name} is not among {:?}", checks(&found)));
    assert!(finding.explain.contains(said), "{}", finding.explain);
    assert!(finding.explain.chars().any(|c| c.is_ascii_digit()), "it has its number: {}", finding.explain);
    let has = |wanted: &str| finding.evidence.iter().any(|(name, _)| name == wanted);
    assert!(has("sample") && has("start_unix_s") && has("time_at_stake_s"), "{finding:?}");
    // What is the user's own is on no worker.
    assert!(has("worker") || name == "user_code_slow", "{finding:?}");
}

#[test]
fn nothing_is_found_in_a_healthy_step() {
    let trace = step(|_, _| {});
    let found = findings(&trace);
    assert_eq!(checks(&found), ["where_time_went", "slowest_sample"], "{found:?}");
    assert!(where_time_went(&trace).part(Part::DecodeForward).0 > 0);
}

#[test]
fn each_illness_is_found_by_its_check() {
    check("queue_bound", "most of it in the prefill queue", |_, of| of.queue = 3.0);
    check("kv_transfer_slow", "the KV cache was on its way for", |_, of| of.transfer = 1.5);
    check("decode_memory", "mostly for room for their KV cache", |_, of| of.prealloc = 1.5);
    check("straggler_worker", "http://decode-3:30000", |_, of| {
        if of.worker == 3 {
            of.forward = 6.0;
        }
    });
    check("long_tail", "fewer than 4 samples were left, the last one 0/0", |number, of| {
        if number == 0 {
            (of.forward, of.tokens) = (20.0, 2000.0);
        }
    });
    check("prefix_cache_not_hit", "where 8 samples share a prompt", |_, of| {
        (of.cached, of.prompt) = (0.0, 1.0);
    });
    check("truncation", "25% of the responses hit the limit", |number, of| {
        if number % 4 == 0 {
            of.finish = "length";
        }
    });
    check("wasted_work", "10% of the tokens came to nothing, with 0 retries", |number, of| {
        if number % 10 == 0 {
            of.outcome = Outcome::Aborted;
        }
    });
    check("failed_requests", "4 of 40 requests failed (10%), with `out of memory`", |number, of| {
        if number % 10 == 0 {
            of.outcome = Outcome::Failed;
        }
    });
    check("no_timings", "of 5 workers report no timings", |number, of| {
        of.silent = number % 2 == 1;
        if of.silent {
            // The prefill workers are two; the odd one and two decode workers say nothing.
            of.worker = 1;
        }
    });
    check("no_timings", "of 5 workers report no timings, http://prefill-1:30000 first", |number, of| {
        of.silent = number % 2 == 1;
        of.told = &[("e2e_latency", 2.0), ("prompt_tokens", 100.0), ("completion_tokens", 200.0)];
        if of.silent {
            of.worker = 1;
        }
    });
    check("no_timings", "2 of 5 workers report no `pd_*` stages, http://prefill-1:30000 first", |_, of| {
        of.silent = of.worker == 1;
        of.told = &[("e2e_latency", 2.0), ("queue_time", 0.1)];
        if of.worker == 3 {
            of.worker = 0;
        }
    });
    check("user_code_slow", "`reward` with 2.0 s", |_, of| of.reward = 2.0);
    check("idle_workers", "http://decode-3:30000", |number, of| {
        of.worker = if number == 3 { 3 } else { number % 3 };
        of.start = f64::from(number);
    });
}

#[test]
fn workers_without_timings_are_not_counted_with_those_that_report_no_stages() {
    let trace = step(|_, of| {
        of.silent = of.worker == 1 || of.worker == 3;
        // The odd prefill worker is that of both.
        of.told = if of.worker == 3 { &[] } else { &[("e2e_latency", 2.0), ("queue_time", 0.1)] };
    });
    let found = findings(&trace);
    let finding = found.iter().find(|finding| finding.check == "no_timings").unwrap();
    let told = "1 of 6 workers report no timings, http://decode-3:30000 first";
    assert!(finding.explain.starts_with(told), "{}", finding.explain);
    let also = finding.evidence.iter().filter(|(name, _)| name == "also").map(|(_, url)| url.clone());
    let also: Vec<Attr> = also.collect();
    assert_eq!(also, ["http://prefill-1:30000", "http://decode-1:30000"].map(Attr::from));
}

/// Their times are those of the gateway alone, and nothing was generated that could have been lost.
#[test]
fn of_a_step_that_failed_as_a_whole_only_that_is_told() {
    let trace = step(|_, of| (of.outcome, of.silent, of.tokens) = (Outcome::Failed, true, 0.0));
    let found = findings(&trace);
    assert_eq!(checks(&found), ["all_failed"], "{found:?}");
    assert!(
        found[0].explain.starts_with("all 40 requests failed, with `out of memory`"),
        "{}",
        found[0].explain
    );
    let names: Vec<_> = found[0].evidence.iter().map(|(name, _)| &**name).collect();
    assert!(["sample", "request", "error", "requests_with_it"].iter().all(|name| names.contains(name)));
}

#[test]
fn a_worker_whose_calls_all_failed_is_not_told_to_be_without_timings() {
    let trace = step(|_, of| {
        if of.worker == 3 {
            (of.outcome, of.silent) = (Outcome::Failed, true);
        }
    });
    let found = findings(&trace);
    assert!(!checks(&found).contains(&"no_timings"), "{found:?}");
    assert!(checks(&found).contains(&"failed_requests"), "{found:?}");
}

#[test]
fn a_span_around_the_call_of_the_model_is_not_blamed_for_it() {
    let mut trace = step(|_, of| of.reward = 2.0);
    for sample in &mut trace.samples {
        let (start, end) = (sample.start().unwrap(), sample.end());
        let whole = UserSpan { name: "generate_and_rm".into(), start, end, ..sample.spans[0].clone() };
        sample.spans.push(whole);
    }
    let found = findings(&trace);
    let finding = found.iter().find(|finding| finding.check == "user_code_slow").unwrap();
    assert!(finding.explain.contains("`reward` with 2.0 s"), "{}", finding.explain);
}

#[test]
fn what_decode_waited_for_is_not_made_up() {
    let mut trace = step(|_, of| of.prealloc = 1.5);
    for leg in trace.samples.iter_mut().flat_map(|sample| &mut sample.requests).flat_map(|of| &mut of.legs) {
        let told = leg.report.measures.iter().filter(|(of, _)| *of != Measure::DecodeAllocWait);
        leg.report.measures = told.collect();
    }
    let found = findings(&trace);
    let finding = found.iter().find(|finding| finding.check == "decode_memory").unwrap();
    assert!(!finding.explain.contains("mostly"), "{}", finding.explain);
}

#[test]
fn what_costs_most_is_told_first() {
    let found = findings(&step(|_, of| (of.queue, of.transfer) = (3.0, 1.5)));
    assert_eq!(checks(&found)[2..4], ["queue_bound", "kv_transfer_slow"], "{found:?}");
}
