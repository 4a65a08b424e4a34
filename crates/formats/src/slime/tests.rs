//! Carriers to the model and back, and what a dump of slime becomes.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rollscope_stats::step_numbers;
use rollscope_trace::{
    Attr, BatchSlot, Fault, Finish, FinishKind, Join, LeftOut, Leg, LegRole, MarkValue, Measure, Nanos,
    Outcome, PrefixCounts, Profile, Reading, Record, Report, RequestId, SampleKey, SampleMark, SampleTrace,
    SpecCounts, StepNumber, StepTrace, UnixNs, UserSpan, WorkerRef,
};
use serde_json::{Value as Json, json};

use super::sample::{SampleOptions, read_sample, sample_json};
use crate::import::{ImportOptions, import};
use crate::pickle::{Value, load};
use crate::torch::TorchFile;
use crate::tree::Tree as _;

const STEP: StepNumber = StepNumber(4);
const OPTIONS: SampleOptions<'_> =
    SampleOptions { step: STEP, reward_key: None, category_key: None, evaluation: false };

fn data(name: &str) -> PathBuf {
    // By real torch: tools/make_torch_dumps.py.
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn imported(name: &str, options: &ImportOptions) -> Vec<Record> {
    let mut records = Vec::new();
    let none = |_: &[u8]| Err("no line of ours".into());
    import(&data(name), options, &none, &mut |record| {
        records.push(record);
        Ok(())
    })
    .unwrap();
    records
}

fn gathered(records: Vec<Record>) -> SampleTrace {
    let step = records[0].step().unwrap();
    let mut trace = StepTrace::gather(step, records);
    assert_eq!(trace.samples.len(), 1);
    trace.samples.remove(0)
}

/// The carrier with the ids of made-up spans numbered in the order of their appearance.
fn renumbered(mut carrier: Json) -> Json {
    let mut numbers: HashMap<String, usize> = HashMap::new();
    for event in carrier["events"].as_array_mut().unwrap() {
        let is_made_up = event["name"].as_str().is_some_and(super::stages::is_stage);
        for member in ["span_id", "parent_span_id"] {
            let Some(id) = event.get(member).and_then(Json::as_str).map(str::to_owned) else {
                continue;
            };
            let known = numbers.len();
            if is_made_up && member == "span_id" {
                numbers.entry(id.clone()).or_insert(known);
            }
            if let Some(number) = numbers.get(&id) {
                event[member] = json!(number);
            }
        }
    }
    carrier
}

#[test]
fn the_carriers_of_dumps_come_back() {
    for name in ["turns.pt", "eval_3.pt"] {
        let mut file = TorchFile::open(&data(name)).unwrap();
        let (bytes, begin, _) = file.parts();
        let loaded = load(bytes, begin).unwrap();
        let samples = loaded.root.get("samples").unwrap().items().unwrap();
        for sample in &samples {
            let before = sample.get("trace").unwrap().to_json();
            let trace = gathered(read_sample(sample, OPTIONS, 0, &mut |_: &Value| None));
            let requests = trace.requests.iter().flat_map(|request| &request.attrs);
            let mut attrs = requests.chain(trace.spans.iter().flat_map(|span| &span.attrs));
            assert!(attrs.all(|(name, _)| **name != *super::element::CARRIER), "{name}: kept as it was");
            let after = sample_json(&trace)["trace"].clone();
            assert_eq!(renumbered(after), renumbered(before));
        }
    }
}

#[test]
fn a_dump_of_several_turns_and_attempts_becomes_requests_with_stages() {
    let trace = StepTrace::gather(StepNumber(0), imported("turns.pt", &ImportOptions::default()));
    assert_eq!(trace.samples.len(), 4);
    let requests: Vec<&Profile> = trace.requests().collect();
    assert!(requests.iter().all(|request| request.legs.len() == 2 && request.is_profiled()));

    let again = trace.samples.iter().find(|sample| &*sample.key.sample == "29").unwrap();
    assert_eq!(again.key.group.as_deref(), Some("3"));
    let request = again.requests.last().unwrap();
    assert_eq!(request.join.attempt, 1);
    assert_eq!(request.id.to_string(), "28aa61c710734cc4a7d71c5b3a7dd735");
    assert_eq!(request.arrival, UnixNs::from_secs_f64(1_790_000_004.447_952).unwrap());
    for (measure, wanted) in [
        (Measure::PrefillBootstrapQueue, 0.059_799_509_808_702_876),
        (Measure::PrefillForward, 0.189_725_011_949_527_93),
        (Measure::DecodeForward, 14.46),
        (Measure::TransferSpeed, 8.814_946_967_728_72),
        (Measure::TransferTotal, 177.05),
        (Measure::PrefillRetryCount, 0.0),
        (Measure::QueueTime, 0.160_980_042_206_576_05),
        (Measure::PromptTokens, 3541.0),
    ] {
        assert_eq!(request.measure(measure), Some(wanted), "{}", measure.name());
    }
    assert_eq!(request.weight_version(), Some("1"));
    let names: Vec<_> = again.spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["generate_and_rm", "generate_and_rm_group", "attempt_start", "reward_model"]);
    assert_eq!(again.mark.effective_response_tokens, again.mark.response_tokens);
}

#[test]
fn a_dump_before_torch_1_6_is_the_same() {
    assert_eq!(
        imported("turns.pt", &ImportOptions::default()),
        imported("turns_legacy.pt", &ImportOptions::default())
    );
}

#[test]
fn an_evaluation_is_told_by_its_name_and_tensors_are_read() {
    let records =
        imported("eval_3.pt", &ImportOptions { reward_key: Some("fmt".into()), ..Default::default() });
    let Record::Sample(mark) = &records[0] else { panic!("{records:?}") };
    assert_eq!((mark.evaluation, mark.reward, mark.top_p_kept), (true, Some(0.5), Some(64)));
    assert_eq!(mark.key.step, StepNumber(3));
}

#[test]
fn raw_samples_are_read_with_rewards_of_any_type() {
    let options = ImportOptions { category_key: Some("kind".into()), ..ImportOptions::default() };
    for name in ["raw_samples.pt", "raw_samples_legacy.pt"] {
        let trace = StepTrace::gather(StepNumber(7), imported(name, &options));
        let marks: Vec<_> = trace.samples.iter().map(|sample| (&*sample.key.sample, &sample.mark)).collect();
        for (index, reward) in [0.5, 0.25, 2.0, 2.0, 0.125, -1.5].into_iter().enumerate() {
            let (_, mark) = marks.iter().find(|(name, _)| **name == index.to_string()).unwrap();
            assert_eq!((mark.reward, mark.truncated), (Some(reward), Some(true)), "{name}, sample {index}");
            assert_eq!(mark.category.as_deref(), (index == 4).then_some("format"));
        }
        assert!(trace.requests().all(|request| request.measure(Measure::E2eLatency) == Some(1.25)));
    }
}

#[test]
fn every_protocol_and_a_step_behind_the_samples_are_read() {
    let first = imported("protocol_0.pt", &ImportOptions::default());
    assert_eq!(first.len(), 6);
    assert!(first.iter().all(|record| record.step() == Some(StepNumber(9))));
    for protocol in 1..6 {
        assert_eq!(
            imported(&format!("protocol_{protocol}.pt"), &ImportOptions::default()),
            first,
            "{protocol}"
        );
    }
}

/// A sample with a call for each of the counts of tokens, as slime dumps it.
fn dumped(index: u64, calls: &[u64], more: Json) -> Json {
    let head = json!({"trace_id": index.to_string(), "sample_id": index, "group_id": 0, "attempt": 0});
    let event = |kind: &str, call: usize, more: Json| {
        let ts = 1_790_000_000.0 + 10.0 * call as f64 + if kind == "span_end" { 8.0 } else { 0.0 };
        let own =
            json!({"type": kind, "name": "sglang_generate", "ts": ts, "span_id": format!("call {call}")});
        merged([head.clone(), own, more])
    };
    let events: Vec<Json> = calls
        .iter()
        .enumerate()
        .flat_map(|(call, tokens)| {
            let attrs = json!({"prompt_tokens": 100, "completion_tokens": tokens, "e2e_latency": 5.0});
            [event("span_start", call, json!({})), event("span_end", call, json!({"attrs": attrs}))]
        })
        .collect();
    let trace = merged([head.clone(), json!({"version": 1, "events": events})]);
    let of_all = json!({
        "index": index, "group_index": 0, "status": "completed", "response_length": calls.iter().sum::<u64>(),
        "trace": trace,
    });
    merged([of_all, more])
}

fn merged<const N: usize>(parts: [Json; N]) -> Json {
    let members = parts.into_iter().flat_map(|part| match part {
        Json::Object(members) => members,
        other => panic!("no members: {other}"),
    });
    Json::Object(members.collect())
}

fn drafts(accepted: u64, drafted: u64, verified: u64, generated: u64) -> Json {
    json!({"spec_info": {
        "spec_accept_token_num": accepted, "spec_draft_token_num": drafted, "spec_verify_ct": verified,
        "completion_token_num": generated,
    }})
}

fn numbers(samples: &[Json]) -> BTreeMap<String, f64> {
    let options = SampleOptions { category_key: Some("kind"), reward_key: Some("score"), ..OPTIONS };
    let read = |(at, sample): (usize, &Json)| read_sample(&sample, options, at, &mut |_: &&Json| None);
    let records: Vec<Record> = samples.iter().enumerate().flat_map(read).collect();
    step_numbers(&StepTrace::gather(STEP, records)).metrics
}

#[track_caller]
fn check(what: &str, samples: &[Json], expected: &[(&str, Option<f64>)]) {
    let found = numbers(samples);
    for (name, value) in expected {
        assert_eq!(found.get(*name), value.as_ref(), "{what}: {name}");
    }
}

#[test]
fn what_a_dump_says_of_samples_gives_slimes_numbers() {
    check(
        "a sample of which every draft was rejected counts",
        &[dumped(0, &[10], drafts(0, 10, 10, 10)), dumped(1, &[10], drafts(5, 10, 5, 10))],
        &[("rollout/spec_accept_rate", Some(0.25)), ("rollout/spec_accept_length", Some(1.5))],
    );
    check(
        "the tokens of all turns are divided by the verifications of all",
        &[dumped(0, &[40, 60], drafts(50, 100, 25, 100))],
        &[("rollout/spec_accept_rate", Some(0.5)), ("rollout/spec_accept_length", Some(4.0))],
    );
    check(
        "zeros are of a sample that drafted nothing",
        &[dumped(0, &[40], drafts(0, 0, 0, 0))],
        &[("rollout/spec_accept_rate", None)],
    );
    let status = |status: &str| json!({"status": status});
    check(
        "what ended otherwise did not hit the limit",
        &[
            dumped(0, &[10], status("truncated")),
            dumped(1, &[10], status("aborted")),
            dumped(2, &[10], status("failed")),
            dumped(3, &[10], status("completed")),
        ],
        &[("rollout/truncated_ratio", Some(0.25))],
    );
    let kept = |removed: bool, offsets: [u64; 4]| json!({"rollout_top_p_token_offsets": offsets, "remove_sample": removed});
    check(
        "a removed sample has no trained tokens",
        &[dumped(0, &[3], kept(false, [0, 10, 20, 30])), dumped(1, &[3], kept(true, [0, 100, 200, 300]))],
        &[("rollout/top_p_kept_vocab_per_token", Some(10.0))],
    );
    let told = merged([
        drafts(5, 10, 5, 10),
        json!({"prefix_cache_info": {"cached_tokens": 30, "total_prompt_tokens": 100}, "trace": null}),
    ]);
    let of_told = [
        ("rollout/spec_accept_rate", Some(0.5)),
        ("rollout/spec_accept_length", Some(2.0)),
        ("rollout/prefix_cache_hit_rate", Some(0.3)),
        ("rollout/avg_cached_tokens_per_sample", Some(30.0)),
    ];
    check("sums are of the sample, trace or not", &[dumped(0, &[40], told)], &of_told);
    let kind = |index, kind: Json| dumped(index, &[3], json!({"reward": {"score": 1.0, "kind": kind}}));
    check(
        "a category is whatever Python writes of it",
        &[
            kind(0, json!(0.5)),
            kind(1, json!(0.5)),
            kind(2, json!("x")),
            kind(3, json!(true)),
            kind(4, json!(null)),
        ],
        &[
            ("rollout/error_cat/0.5", Some(0.4)),
            ("rollout/error_cat/x", Some(0.2)),
            ("rollout/error_cat/True", Some(0.2)),
            ("rollout/error_cat/None", Some(0.2)),
        ],
    );
}

/// slime adds up a mask as it is, takes any weight that is not 0 for a kept token's, passes over offsets of no token, and drops
/// whatever Python takes for true.
#[test]
fn masks_and_offsets_are_read_as_python_computes_with_them() {
    let (length, kept) = ("rollout/response_len/mean", "rollout/top_p_kept_vocab_per_token");
    let offsets = json!([5, 15, 25, 55, 65]);
    let told = |mask: Json, offsets: &Json| json!({"response_length": 4, "loss_mask": mask, "rollout_top_p_token_offsets": offsets});
    let known = || dumped(9, &[4], told(json!([1, 1, 1, 1]), &json!([0, 7, 14, 21, 28])));
    for (what, told, expected) in [
        (
            "truths",
            told(json!([true, false, true, false]), &offsets),
            [(length, Some(2.0)), (kept, Some(20.0))],
        ),
        ("numbers", told(json!([0, 1, 1.0, 0]), &offsets), [(length, Some(2.0)), (kept, Some(20.0))]),
        // slime counts the first two whole in the second number, which is 50 / 3.
        ("weights", told(json!([0.5, 0.5, 1, 0]), &offsets), [(length, Some(2.0)), (kept, Some(20.0))]),
        ("of no token", told(json!([0, 0, 0, 0]), &offsets), [(length, Some(0.0)), (kept, None)]),
        ("no mask", told(json!(null), &offsets), [(length, Some(4.0)), (kept, Some(15.0))]),
        ("no offsets", told(json!(null), &json!([])), [(length, Some(4.0)), (kept, None)]),
        ("offsets of other tokens", told(json!(null), &json!([0, 10])), [(length, Some(4.0)), (kept, None)]),
    ] {
        check(what, &[dumped(0, &[4], told)], &expected);
    }
    let without = dumped(0, &[4], told(json!(null), &json!([])));
    check("a sample without offsets is in no mean", &[without, known()], &[(kept, Some(7.0))]);
    let odd = dumped(0, &[4], told(json!([1, "x", 1, 1]), &json!([0, null, 2, 3, 4])));
    let of_odd = [("perf/anomaly/not_a_number", Some(2.0)), (length, Some(4.0)), (kept, Some(7.0))];
    check("what is no number is left out", &[odd, known()], &of_odd);
    for (removed, of_all) in [
        (json!(1), 7.0),
        (json!(true), 7.0),
        (json!(0.5), 7.0),
        (json!("yes"), 7.0),
        (json!(0), 11.0),
        (json!(false), 11.0),
        (json!(""), 11.0),
        (json!(null), 11.0),
    ] {
        let sample = merged([told(json!(null), &offsets), json!({"remove_sample": removed})]);
        check(&format!("removed: {removed}"), &[dumped(0, &[4], sample), known()], &[(kept, Some(of_all))]);
    }
}

/// What a sample does not tell is in no mean; slime takes it for nothing, or for all right. The guides say so.
#[test]
fn where_slime_takes_what_is_not_known_for_zero_it_is_left_out() {
    let nothing = json!({"prefix_cache_info": {"cached_tokens": 0, "total_prompt_tokens": 0}, "trace": null});
    let something = json!({"prefix_cache_info": {"cached_tokens": 30, "total_prompt_tokens": 100}});
    check(
        "no drafts and no prompts",
        &[
            dumped(0, &[10], merged([drafts(0, 0, 0, 0), nothing])),
            dumped(1, &[10], merged([drafts(5, 10, 5, 10), something])),
        ],
        &[
            ("rollout/spec_accept_rate", Some(0.5)),
            ("rollout/spec_accept_length", Some(2.0)),
            ("rollout/prefix_cache_hit_rate", Some(0.3)),
            ("rollout/avg_cached_tokens_per_sample", Some(30.0)),
        ],
    );
    let status = |index, status: &str| dumped(index, &[10], json!({"status": status}));
    check(
        "how it ended",
        &[status(0, "truncated"), status(1, "completed"), status(2, "pending")],
        &[("rollout/truncated_ratio", Some(0.5))],
    );
    let rewarded = |index, group: Json, reward: f64| {
        let mut sample = dumped(index, &[10], json!({"group_index": group, "reward": reward, "trace": null}));
        sample["index"] = json!(index);
        sample
    };
    check(
        "whose prompt it is of",
        &[rewarded(0, json!(null), 1.0), rewarded(1, json!(null), 1.0), rewarded(2, json!(4), 1.0)],
        &[("rollout/groups", Some(1.0)), ("rollout/zero_std/count", Some(0.0)), ("rollout/pass@1", None)],
    );
    check(
        "whether a grade is right",
        &[rewarded(0, json!(4), 1.0), rewarded(1, json!(4), 0.5)],
        &[("rollout/pass@1", None), ("rollout/reward/mean", Some(0.75))],
    );
}

#[test]
fn tensors_of_one_number_are_numbers() {
    let more = json!({"response_length": [7], "non_generation_time": [1.5], "reward": [0.5]});
    let tensor = |value: &Json| Some(value.as_array()?.iter().filter_map(Json::as_f64).collect());
    let records = read_sample(&&dumped(0, &[], more), OPTIONS, 0, &mut |value| tensor(value));
    let Record::Sample(mark) = &records[0] else { panic!("{records:?}") };
    let time = mark.non_generation_time.map(Nanos::as_secs_f64);
    assert_eq!((mark.response_tokens, time, mark.reward), (Some(7), Some(1.5), Some(0.5)), "{mark:?}");
    assert!(mark.left_out.is_empty(), "{mark:?}");
}

#[test]
fn of_prompts_those_are_written_whose_cached_tokens_are_known() {
    let mut sample = dumped(0, &[10, 10], json!({}));
    sample["trace"]["events"][1]["attrs"]["cached_tokens"] = json!(40);
    let sample = gathered(read_sample(&&sample, OPTIONS, 0, &mut |_| None));
    assert_eq!(sample.requests.len(), 2);
    let expected = json!({"cached_tokens": 40, "total_prompt_tokens": 100});
    assert_eq!(sample_json(&sample)["prefix_cache_info"], expected);
}

#[test]
fn what_cannot_be_true_of_a_sample_is_left_out_and_counted() {
    check(
        "beyond any bound",
        &[dumped(0, &[], json!({"response_length": 9e15, "non_generation_time": 8e9, "reward": 1e300}))],
        &[
            ("perf/anomaly/too_large", Some(3.0)),
            ("rollout/response_len/mean", None),
            ("rollout/reward/mean", None),
            ("perf/non_generation_time/mean", None),
        ],
    );
    check(
        "no numbers, or negative ones",
        &[
            dumped(0, &[], json!({"reward": true, "response_length": -5, "non_generation_time": -3})),
            dumped(1, &[], json!({"reward": {"score": "good"}, "non_generation_time": {"float": "NaN"}})),
            dumped(2, &[], json!({"reward": null, "response_length": null})),
        ],
        &[
            ("perf/anomaly/not_a_number", Some(2.0)),
            ("perf/anomaly/negative", Some(2.0)),
            ("perf/anomaly/not_finite", Some(1.0)),
            ("rollout/reward/count", None),
        ],
    );
    let prefix =
        json!({"prefix_cache_info": {"cached_tokens": 50, "total_prompt_tokens": 10}, "trace": null});
    let mut of_call = dumped(0, &[10], json!({}));
    of_call["trace"]["events"][1]["attrs"]["cached_tokens"] = json!(500);
    let of_none = [("perf/anomaly/more_than_prompt", Some(1.0)), ("rollout/prefix_cache_hit_rate", None)];
    check("of a sample more cached than its prompts have", &[dumped(0, &[10], prefix)], &of_none);
    let prefix = json!({"prefix_cache_info": {"cached_tokens": 50, "total_prompt_tokens": 0}, "trace": null});
    check("of a sample cached tokens and no prompt", &[dumped(0, &[10], prefix)], &of_none);
    let mut of_drafts = drafts(5, 10, 5, 10);
    of_drafts["spec_info"]["spec_accept_token_num"] = json!(-5);
    let prefix =
        json!({"prefix_cache_info": {"cached_tokens": -5, "total_prompt_tokens": 100}, "trace": null});
    check(
        "a count that is left out is not taken for zero",
        &[dumped(0, &[10], merged([of_drafts, prefix])), dumped(1, &[10], drafts(5, 10, 5, 10))],
        &[
            ("perf/anomaly/negative", Some(2.0)),
            ("rollout/spec_accept_rate", Some(0.5)),
            ("rollout/prefix_cache_hit_rate", None),
        ],
    );
    check("of a call more cached than its prompt has", &[of_call], &of_none);
}

/// A call's span of one of two names, with its numbers at its end.
fn check_call(name: &str, attrs: Json, expected: &[(Measure, f64)]) {
    let mut sample = dumped(0, &[10], json!({}));
    for event in sample["trace"]["events"].as_array_mut().unwrap() {
        event["name"] = json!(name);
    }
    sample["trace"]["events"][1]["attrs"] = attrs;
    let read = gathered(read_sample(&&sample, OPTIONS, 0, &mut |_: &&Json| None));
    let request = &read.requests[0];
    assert_eq!(request.stream, name.ends_with("_stream"));
    for (measure, value) in expected {
        assert_eq!(request.measure(*measure), Some(*value), "{name}: {}", measure.name());
    }
    assert_eq!(sample_json(&read)["trace"], sample["trace"], "{name}");
}

#[test]
fn calls_are_read_streamed_or_not_and_an_older_spelling_never_replaces_the_current_one() {
    for name in ["sglang_generate", "sglang_generate_stream"] {
        let old = json!({"pd_bootstrap_duration": 0.5, "pd_decode_forward_duration": 2.0});
        check_call(name, old, &[(Measure::PrefillBootstrap, 0.5), (Measure::DecodeForward, 2.0)]);
        // Attributes are read in the order of their names here.
        let behind = json!({"total_retractions": 3, "num_retractions": 1});
        check_call(name, behind, &[(Measure::NumRetractions, 1.0)]);
    }
}

/// The client's clock was set back while it waited; the worker measured by one that is not.
#[test]
fn a_call_that_ends_before_it_begins_is_as_long_as_the_worker_tells() {
    let attrs = json!({"e2e_latency": 5.0, "queue_time": 0.5, "decode_throughput": 20.0});
    let (e2e, queue) = ("perf/request/e2e_latency/max", "perf/request/queue_time/max");
    let call = |attrs: &Json| {
        let mut sample = dumped(0, &[10], json!({}));
        let end = &mut sample["trace"]["events"][1];
        (end["ts"], end["attrs"]) = (json!(1_789_999_990.0), attrs.clone());
        sample
    };
    check(
        "a worker that tells its time",
        &[call(&attrs)],
        &[
            (e2e, Some(5.0)),
            (queue, Some(0.5)),
            ("perf/rollout_time", Some(5.0)),
            ("perf/anomaly/longer_than_leg", Some(0.0)),
        ],
    );
    check(
        "one that does not",
        &[call(&json!({"queue_time": 0.5}))],
        &[(queue, None), ("perf/anomaly/longer_than_leg", Some(1.0))],
    );
    let read = gathered(read_sample(&&call(&attrs), OPTIONS, 0, &mut |_: &&Json| None));
    assert_eq!(sample_json(&read)["trace"], call(&attrs)["trace"], "it goes out as it came");
}

#[test]
fn durations_that_still_sit_on_the_call_are_read() {
    let head = json!({"trace_id": "t", "sample_id": "s", "group_id": null, "attempt": 0});
    let event = |kind: &str, ts: f64, more: Json| {
        let mut event = head.clone();
        for part in [json!({"type": kind, "name": "sglang_generate", "ts": ts, "span_id": "a"}), more] {
            event.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        }
        event
    };
    let mut trace = head.clone();
    let attrs = json!({"pd_bootstrap_duration": 0.5, "pd_decode_forward_duration": 2.0, "queue_time": null});
    trace["version"] = json!(1);
    trace["events"] =
        json!([event("span_start", 10.0, json!({})), event("span_end", 14.0, json!({"attrs": attrs})),]);
    let sample = json!({"index": 3, "trace": trace});
    let read = gathered(read_sample(&&sample, OPTIONS, 0, &mut |_: &&Json| None));
    let request = &read.requests[0];
    assert_eq!(request.measure(Measure::PrefillBootstrap), Some(0.5));
    assert_eq!(request.measure(Measure::DecodeForward), Some(2.0));
    let queue = request.answer().unwrap().report.measures.get(Measure::QueueTime).unwrap();
    assert_eq!(queue.fault, Some(Fault::NotANumber));
    assert_eq!(sample_json(&read)["trace"], trace);
}

// === anything at all ===

fn text() -> impl Strategy<Value = Box<str>> {
    prop_oneof![Just(String::new()), "[a-z]{1,6}", ".{1,8}", "[0-9]{1,3}", Just("{\"a\":1}".to_owned())]
        .prop_map(Into::into)
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        Just(f64::NAN),
        Just(f64::INFINITY),
        (0u32..100).prop_map(f64::from),
        Just(-0.0)
    ]
    .prop_map(|number| if number.is_nan() { f64::NAN } else { number })
}

fn attrs() -> impl Strategy<Value = Vec<(Box<str>, Attr)>> {
    let attr = prop_oneof![
        any::<bool>().prop_map(Attr::Bool),
        any::<i64>().prop_map(Attr::Int),
        number().prop_map(Attr::Float),
        text().prop_map(Attr::Text),
    ];
    prop::collection::vec((prop_oneof![text(), Just("queue_time".into()), Just("x:json".into())], attr), 0..4)
}

fn leg() -> impl Strategy<Value = Leg> {
    let measures = prop::collection::vec(
        (
            prop::sample::select(Measure::all().collect::<Vec<_>>()),
            number(),
            prop::option::of(prop::sample::select(&Fault::ALL[..])),
        ),
        0..8,
    );
    let finish = prop::option::of((text(), prop::option::of(text()), prop::option::of(any::<u16>())));
    let times = (any::<u64>(), prop::option::of(any::<u64>()), any::<u64>(), prop::option::of(any::<u16>()));
    let ending =
        (prop::sample::select(&Outcome::ALL[..]), prop::option::of(text()), prop::option::of(text()));
    (prop::sample::select(&LegRole::ALL[..]), (text(), text()), times, ending, (measures, finish)).prop_map(
        |(
            role,
            (url, instance),
            (dispatch, first_byte, end, status),
            (outcome, error, version),
            (measures, finish),
        )| Leg {
            role,
            worker: WorkerRef { url: url.into(), instance: instance.into() },
            dispatch: Nanos(dispatch),
            first_byte: first_byte.map(Nanos),
            end: Nanos(end),
            status,
            outcome,
            error,
            clock: None,
            report: Report {
                measures: measures
                    .into_iter()
                    .map(|(of, value, fault)| (of, Reading { value, fault }))
                    .collect(),
                finish: finish.map(|(kind, message, status_code)| Finish {
                    kind: FinishKind::from_name(&kind),
                    message,
                    status_code,
                }),
                weight_version: version.clone(),
                worker_request_id: version,
            },
        },
    )
}

fn profile(key: SampleKey) -> impl Strategy<Value = Profile> {
    let join = (any::<u32>(), prop::option::of(text()), prop::option::of(text()));
    let times = (any::<i64>(), any::<u64>(), prop::option::of((any::<u32>(), any::<u32>())));
    (any::<u128>(), join, times, (text(), any::<bool>(), text()), prop::collection::vec(leg(), 0..4), attrs())
        .prop_map(
            move |(
                id,
                (attempt, session, rid),
                (arrival, end, batch),
                (endpoint, stream, decision),
                legs,
                attrs,
            )| Profile {
                id: RequestId(id),
                join: Join {
                    step: Some(STEP),
                    group: key.group.clone(),
                    sample: Some(key.sample.clone()),
                    attempt,
                    traceparent: session.clone(),
                    session,
                    rid,
                },
                endpoint,
                stream,
                batch: batch.map(|(index, size)| BatchSlot { index, size }),
                arrival: UnixNs(arrival),
                first_byte: None,
                end: Nanos(end),
                status: Some(200),
                outcome: Outcome::Completed,
                error: None,
                decision,
                retries: attempt,
                legs,
                attrs,
            },
        )
}

fn sample() -> impl Strategy<Value = SampleTrace> {
    let key = (prop::option::of(text()), text()).prop_map(|(group, sample)| SampleKey {
        step: STEP,
        group,
        sample,
    });
    key.prop_flat_map(|key| {
        let spans = (any::<u32>(), text(), any::<i64>(), prop::option::of(any::<i64>()), attrs());
        let of = key.clone();
        let spans = spans.prop_map(move |(attempt, name, start, end, attrs)| UserSpan {
            key: of.clone(),
            attempt,
            name,
            start: UnixNs(start),
            end: end.map(UnixNs),
            attrs,
        });
        let parts = (prop::collection::vec(profile(key.clone()), 0..4), prop::collection::vec(spans, 0..4));
        let count = || prop::option::of(0..1_000_000_000u64);
        let spec = prop::option::of((1..9u64, 0..9u64).prop_map(|(drafted, more)| {
            Box::new(SpecCounts { accepted: more, drafted, verified: more, generated: more })
        }));
        let prefix = prop::option::of(
            (1..9u64, 0..9u64)
                .prop_map(|(prompt, cached)| Box::new(PrefixCounts { prompt, cached: cached.min(prompt) })),
        );
        let value = prop::option::of(prop::sample::select(&MarkValue::ALL[..]));
        let left_out = (value, prop::sample::select(&Fault::ALL[..]));
        let left_out = left_out.prop_map(|(value, fault)| LeftOut { value, fault });
        let left_out = prop::collection::vec(left_out, 0..3);
        let more = (spec, prefix, left_out, prop::option::of(text()));
        let reward =
            number().prop_map(|reward| if reward.is_finite() { reward.clamp(-1e9, 1e9) } else { reward });
        let mark = (prop::option::of(reward), prop::option::of(any::<bool>()), count());
        let ours = (
            count(),
            prop::option::of(any::<bool>()),
            prop::option::of(text()),
            count(),
            prop::option::of(text()),
        );
        (parts, mark, ours, any::<bool>(), more).prop_map(
            move |(
                (requests, spans),
                (reward, truncated, tokens),
                (effective, repetition, category, top_p_kept, dataset),
                evaluation,
                (spec, prefix, left_out, carrier),
            )| {
                let mark = SampleMark {
                    key: key.clone(),
                    reward,
                    truncated,
                    response_tokens: tokens,
                    effective_response_tokens: effective,
                    non_generation_time: tokens.map(|tokens| Nanos(tokens % 600_000 * 1_000_000_000)),
                    repetition,
                    category,
                    top_p_kept,
                    spec,
                    prefix,
                    left_out: left_out.into(),
                    carrier,
                    dataset,
                    evaluation,
                };
                let records = requests.into_iter().map(|request| Record::Profile(Box::new(request)));
                let spans = spans.into_iter().map(Record::Span);
                gathered([Record::Sample(mark)].into_iter().chain(records).chain(spans).collect())
            },
        )
    })
}

/// Events as nobody would write them: of few names, ids and times, so that they meet.
fn events() -> impl Strategy<Value = Json> {
    let names =
        ["sglang_generate", "sglang_pd_prefill", "sglang_pd_decode_forward", "sglang_pd_summary", "tool", ""];
    let attrs = ["queue_time", "pd_decode_forward_duration", "finish_reason", "max_new_tokens", "rollscope"];
    let values = [
        json!(1),
        json!(0.5),
        json!("stop"),
        json!(null),
        json!([1, {"a": 2}]),
        json!(true),
        json!(1u64 << 63),
    ];
    let event = (
        prop::sample::select(&["span_start", "span_end", "event", "other"][..]),
        prop::sample::select(names.to_vec()),
        prop::sample::select(&[0.0, 1.5, 1_790_000_000.123_456_7, 1e-12][..]),
        prop::option::of(prop::sample::select(&["a", "b", "c"][..])),
        prop::option::of(prop::sample::select(&["a", "b"][..])),
        prop::collection::vec(
            (prop::sample::select(attrs.to_vec()), prop::sample::select(values.to_vec())),
            0..3,
        ),
        prop::sample::select(&[0, 1][..]),
    );
    let event = event.prop_map(|(kind, name, ts, span, parent, attrs, attempt)| {
        let mut event = json!({
            "type": kind, "name": name, "ts": ts, "trace_id": "t", "sample_id": 1, "group_id": 2, "attempt": attempt,
        });
        let members = event.as_object_mut().unwrap();
        members.extend(span.map(|id| ("span_id".to_owned(), json!(id))));
        members.extend(parent.map(|id| ("parent_span_id".to_owned(), json!(id))));
        if !attrs.is_empty() {
            let attrs = attrs.into_iter().map(|(name, value)| (name.to_owned(), value));
            members.insert("attrs".to_owned(), Json::Object(attrs.collect()));
        }
        event
    });
    prop::collection::vec(event, 0..10).prop_map(|events| {
        json!({"version": 1, "trace_id": "t", "sample_id": 1, "group_id": 2, "attempt": 0, "events": events})
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_model_comes_back_from_carriers(sample in sample()) {
        let written = sample_json(&sample).to_string();
        let written: Json = serde_json::from_str(&written).unwrap();
        let read = gathered(read_sample(&&written, OPTIONS, 0, &mut |_: &&Json| None));
        prop_assert_eq!(format!("{read:?}"), format!("{sample:?}"));
    }

    #[test]
    fn any_carrier_comes_back(trace in events()) {
        let sample = json!({"index": 1, "trace": trace.clone()});
        let read = gathered(read_sample(&&sample, OPTIONS, 0, &mut |_: &&Json| None));
        let written: Json = serde_json::from_str(&sample_json(&read).to_string()).unwrap();
        prop_assert_eq!(renumbered(written["trace"].clone()), renumbered(trace));
    }
}
