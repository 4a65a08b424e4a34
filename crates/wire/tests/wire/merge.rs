//! Replies: what is read from them, and the merge against an oracle.

use proptest::prelude::*;
use rollscope_wire::{Chunks, LogprobJoin, Mismatch, PrefillShare, Reply, Scalar};
use serde_json::{Value, json};

use crate::json::{
    cut, cuts, list, logprobs, member, name, object, occurrences, scalar, spelled, text, tree, value,
};
use crate::pairs_of;

const LISTS: [&str; 3] = ["input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"];
const META_NAMES: &[&str] = &[
    "id",
    "finish_reason",
    "pd_prefill_forward_duration",
    "pd_prefill_retry_count",
    "pd_transfer_total_mb",
    "pd_decode_forward_duration",
    "input_token_logprobs",
    "input_top_logprobs",
    "input_token_ids_logprobs",
    "cached_tokens",
    "cached_tokens_details",
    "queue_time",
    "pd_prefill_queue_time",
    "prefill_finished_time",
    "pd_prefill_finished_time",
];

/// Names of timings, and what the prefill worker's are called.
const TIMINGS: [(&str, &str); 12] = [
    ("queue_time", "pd_prefill_queue_time"),
    ("e2e_latency", "pd_prefill_e2e_latency"),
    ("inference_time", "pd_prefill_inference_time"),
    ("first_token_latency", "pd_prefill_first_token_latency"),
    ("prefill_waiting_latency", "pd_prefill_waiting_latency"),
    ("prefill_launch_latency", "pd_prefill_launch_latency"),
    ("request_received_ts", "pd_prefill_request_received_ts"),
    ("api_server_dispatch_finish_ts", "pd_prefill_api_server_dispatch_finish_ts"),
    ("forward_entry_time", "pd_prefill_forward_entry_time"),
    ("prefill_finished_time", "pd_prefill_finished_time"),
    ("request_finished_ts", "pd_prefill_request_finished_ts"),
    ("response_sent_to_client_ts", "pd_prefill_response_sent_to_client_ts"),
];

fn merge(decode: &str, prefill: &str, join: LogprobJoin) -> Result<String, Mismatch> {
    let (decode, prefill) =
        (Chunks::from(decode.as_bytes().to_vec()), Chunks::from(prefill.as_bytes().to_vec()));
    let mut share = PrefillShare::default();
    share.add(&Reply::scan(&prefill).unwrap());
    let merged = Reply::scan(&decode).unwrap().merge(&share, join)?;
    Ok(text(&merged.unwrap_or(decode)))
}

#[test]
fn prefill_members_replace_and_logprobs_are_joined() {
    let prefill = r#"{"text":"x","meta_info":{"id":"p","pd_prefill_forward_duration":0.10000000149,"input_token_logprobs":[[null,1,null],[-0.5,2,null]],"pd_transfer_total_mb":1.50}}"#;
    let decode = r#"{"text":"meta_info\":{","meta_info":{"id":"d", "pd_transfer_total_mb":9,"input_token_logprobs":[ ],"e2e_latency":1e0},"n":1.0}"#;
    assert_eq!(
        merge(decode, prefill, LogprobJoin::Always).unwrap(),
        r#"{"text":"meta_info\":{","meta_info":{"pd_prefill_forward_duration":0.10000000149,"pd_transfer_total_mb":1.50,"id":"d","input_token_logprobs":[[null,1,null],[-0.5,2,null] ],"e2e_latency":1e0},"n":1.0}"#
    );
    assert_eq!(
        merge(decode, prefill, LogprobJoin::Never).unwrap(),
        r#"{"text":"meta_info\":{","meta_info":{"pd_prefill_forward_duration":0.10000000149,"pd_transfer_total_mb":1.50,"id":"d","input_token_logprobs":[ ],"e2e_latency":1e0},"n":1.0}"#
    );
}

#[test]
fn a_missing_list_is_put_in_only_where_that_is_asked_for() {
    let prefill = r#"{"meta_info":{"input_token_logprobs":[[-1,1,null]]}}"#;
    for (decode, always, where_present) in [
        (
            r#"{"meta_info":{}}"#,
            r#"{"meta_info":{"input_token_logprobs":[[-1,1,null]]}}"#,
            r#"{"meta_info":{}}"#,
        ),
        (
            r#"{"meta_info":{"input_token_logprobs": null}}"#,
            r#"{"meta_info":{"input_token_logprobs": [[-1,1,null]]}}"#,
            r#"{"meta_info":{"input_token_logprobs": null}}"#,
        ),
        (
            r#"{"meta_info":{"a":1,"input_token_logprobs":[[-2,2,null]]}}"#,
            r#"{"meta_info":{"a":1,"input_token_logprobs":[[-1,1,null],[-2,2,null]]}}"#,
            r#"{"meta_info":{"a":1,"input_token_logprobs":[[-1,1,null],[-2,2,null]]}}"#,
        ),
    ] {
        assert_eq!(merge(decode, prefill, LogprobJoin::Always).unwrap(), always);
        assert_eq!(merge(decode, prefill, LogprobJoin::WherePresent).unwrap(), where_present);
        assert_eq!(merge(decode, prefill, LogprobJoin::Never).unwrap(), decode);
    }
}

#[test]
fn a_batch_is_merged_element_by_element() {
    let prefill =
        r#"[{"meta_info":{"pd_prefill_retry_count":0}},{"meta_info":{"pd_prefill_retry_count":1}}]"#;
    assert_eq!(
        merge(r#"[ {"meta_info":{"id":"a"}} , {"text":""} ]"#, prefill, LogprobJoin::Always).unwrap(),
        r#"[ {"meta_info":{"pd_prefill_retry_count":0,"id":"a"}} , {"text":""} ]"#
    );
    for (decode, samples) in [(r#"[{"meta_info":{}}]"#, 1), (r#"{"meta_info":{}}"#, 1), ("[]", 0)] {
        let mismatch = Mismatch { prefill: 2, decode: samples };
        assert_eq!(merge(decode, prefill, LogprobJoin::Always), Err(mismatch), "{decode}");
    }
    let mismatch = Mismatch { prefill: 1, decode: 1 };
    assert_eq!(merge("[{}]", "{}", LogprobJoin::Always), Err(mismatch));
    assert_eq!(merge("{}", "[{}]", LogprobJoin::Always), Err(mismatch));
}

#[test]
fn an_event_of_a_streamed_batch_gets_its_own_samples_share() {
    let events: Vec<Chunks> = [
        r#"{"index":1,"meta_info":{"pd_prefill_retry_count":1,"input_token_logprobs":[[-1,1,null]]}}"#,
        r#"{"index":0,"meta_info":{"pd_prefill_retry_count":0}}"#,
        r#"{"index":1,"meta_info":{"pd_prefill_retry_count":2,"input_token_logprobs":[]}}"#,
    ]
    .into_iter()
    .map(Chunks::from)
    .collect();
    let mut share = PrefillShare::default();
    for event in &events {
        share.add(&Reply::scan(event).unwrap());
    }
    let merged = |payload: &'static str| {
        let payload = Chunks::from(payload);
        let merged = Reply::scan(&payload).unwrap().merge(&share, LogprobJoin::WherePresent);
        merged.map(|merged| text(&merged.unwrap()))
    };
    assert_eq!(
        merged(r#"{"meta_info":{"input_token_logprobs":[]},"index":1}"#).unwrap(),
        r#"{"meta_info":{"pd_prefill_retry_count":2,"input_token_logprobs":[[-1,1,null]]},"index":1}"#
    );
    assert_eq!(
        merged(r#"{"meta_info":{},"index":0}"#).unwrap(),
        r#"{"meta_info":{"pd_prefill_retry_count":0},"index":0}"#
    );
    assert!(merged(r#"{"meta_info":{},"index":2}"#).is_err());
    assert!(merged(r#"{"meta_info":{}}"#).is_err());
}

#[test]
fn what_is_put_in_is_on_one_line() {
    let prefill =
        "{\"meta_info\":{\"pd_prefill_x\"\n :\r\n {\"a\":\n 1},\n\"input_token_logprobs\":[\n[1,\r\n2]\n]}}";
    let merged = merge(r#"{"meta_info":{}}"#, prefill, LogprobJoin::Always).unwrap();
    assert!(!merged.contains(['\n', '\r']), "{merged}");
    assert_eq!(
        tree(&merged),
        json!({"meta_info": {"pd_prefill_x": {"a": 1}, "input_token_logprobs": [[1, 2]]}})
    );
}

#[test]
fn a_malformed_reply_is_refused_where_it_goes_wrong() {
    let check = |body: &'static str, sentence: &str| {
        assert_eq!(Reply::scan(&Chunks::from(body)).unwrap_err().to_string(), sentence, "{body}");
    };
    check("{", "unexpected end at byte 1");
    check(r#"{"meta_info":{"#, "unexpected end at byte 14");
    check("[1]", "not an object at byte 1");
    check(r#"{"meta_info":{"finish_reason":{"type":"\x"}}}"#, "invalid escape at byte 39");
}

#[test]
fn a_text_with_an_invalid_escape_is_passed_over() {
    let body = Chunks::from(
        r#"{"meta_info":{"id":"\x","finish_reason":{"message":"\x","type":"stop"},"e2e_latency":1}}"#,
    );
    let pairs = pairs_of(&Reply::scan(&body).unwrap().elements()[0]);
    let names: Vec<&str> = pairs.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["finish_reason.type", "e2e_latency"]);
}

#[test]
fn meta_info_is_read_as_pairs() {
    let body = Chunks::from(
        r#"{"meta_info":{"id":"\u0061b","n":NaN,"i":-Infinity,"t":true,"z":null,"list":[1],
            "finish_reason":{"type":"abort","message":"no\nway","status_code":500,"err_type":null},"e2e_latency":0.25},
            "index": 3, "error": {"message":""}}"#,
    );
    let reply = Reply::scan(&body).unwrap();
    let [element] = reply.elements() else { panic!("one sample") };
    let pairs: Vec<String> =
        pairs_of(element).iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    assert_eq!(
        pairs,
        [
            r#"id=Text("ab")"#,
            "n=Number(NaN)",
            "i=Number(-inf)",
            "t=Bool(true)",
            "z=Null",
            r#"finish_reason.type=Text("abort")"#,
            r#"finish_reason.message=Text("no\nway")"#,
            "finish_reason.status_code=Number(500.0)",
            "e2e_latency=Number(0.25)",
        ]
    );
    assert_eq!(element.index(), Some(3));
    assert!(element.is_finished() && element.is_aborted() && element.is_error());
}

#[test]
fn an_unfinished_sample_is_told_from_a_finished_one() {
    for (finish, is_finished, is_aborted) in [
        ("null", false, false),
        (r#"{"type":"stop","matched":2}"#, true, false),
        (r#"{"length":0,"type":"length"}"#, true, false),
        (r#""length""#, true, false),
        (r#""abort""#, true, true),
        (r#"{"message":"x","type":"abort"}"#, true, true),
    ] {
        let body = Chunks::from(
            format!(r#"{{"meta_info":{{"finish_reason":{finish}}},"error":null}}"#).into_bytes(),
        );
        let reply = Reply::scan(&body).unwrap();
        let element = &reply.elements()[0];
        assert_eq!((element.is_finished(), element.is_aborted()), (is_finished, is_aborted), "{finish}");
        assert!(!element.is_error());
    }
    let body = Chunks::from(r#"{"text":""}"#);
    assert!(!Reply::scan(&body).unwrap().elements()[0].is_finished());
}

#[test]
fn timings_of_every_worker_are_kept_under_the_prefill_workers_name() {
    for (timing, shared) in TIMINGS {
        let prefill = format!(r#"{{"meta_info":{{"{timing}":1.50}}}}"#);
        let decode = format!(r#"{{"meta_info":{{"{timing}":2e0,"{shared}":3}}}}"#);
        let merged = merge(&decode, &prefill, LogprobJoin::Never).unwrap();
        assert_eq!(merged, format!(r#"{{"meta_info":{{"{shared}":1.50,"{timing}":2e0}}}}"#));
    }
    // A worker that has such a name itself has the last word, wherever it stands; what is null was not measured.
    for prefill in [
        r#"{"queue_time":1,"pd_prefill_queue_time":2,"e2e_latency":null}"#,
        r#"{"pd_prefill_queue_time":2,"queue_time":1,"e2e_latency":null}"#,
    ] {
        let prefill = format!(r#"{{"meta_info":{prefill}}}"#);
        let merged = merge(r#"{"meta_info":{}}"#, &prefill, LogprobJoin::Never).unwrap();
        assert_eq!(merged, r#"{"meta_info":{"pd_prefill_queue_time":2}}"#);
    }
}

#[test]
fn what_the_cache_held_of_the_prompt_is_the_prefill_workers() {
    let prefill = r#"{"meta_info":{"cached_tokens":8,"cached_tokens_details":{"device":8, "host":0}}}"#;
    let decode = r#"{"meta_info":{"id":"d","cached_tokens":0,"cached_tokens_details":null}}"#;
    assert_eq!(
        merge(decode, prefill, LogprobJoin::Never).unwrap(),
        r#"{"meta_info":{"cached_tokens":8,"cached_tokens_details":{"device":8, "host":0},"id":"d"}}"#
    );
    let none = r#"{"meta_info":{"cached_tokens_details":null}}"#;
    assert_eq!(merge(decode, none, LogprobJoin::Never).unwrap(), decode);
}

#[test]
fn all_lists_of_the_prompt_are_joined() {
    let prefill = r#"{"meta_info":{"input_top_logprobs":[null,[[-1,2,null]]],"input_token_ids_logprobs":[null],"input_token_logprobs":[[null,1,null]]}}"#;
    let decode = r#"{"meta_info":{"input_top_logprobs":null,"id":"d","input_token_ids_logprobs":[[3]]}}"#;
    assert_eq!(
        merge(decode, prefill, LogprobJoin::Always).unwrap(),
        r#"{"meta_info":{"input_token_logprobs":[[null,1,null]],"input_top_logprobs":[null,[[-1,2,null]]],"id":"d","input_token_ids_logprobs":[null,[3]]}}"#
    );
}

#[test]
fn depth_costs_nothing() {
    let depth = 200_000;
    let deep = format!("{}1{}", "[{\"a\":".repeat(depth), "}]".repeat(depth));
    let prefill = format!(r#"{{"x":{deep},"meta_info":{{"pd_prefill_x":{deep},"cached_tokens":3}}}}"#);
    let decode = format!(r#"{{"meta_info":{{"y":{deep}}},"x":{deep}}}"#);
    assert_eq!(
        merge(&decode, &prefill, LogprobJoin::Always).unwrap(),
        format!(r#"{{"meta_info":{{"pd_prefill_x":{deep},"cached_tokens":3,"y":{deep}}},"x":{deep}}}"#)
    );
}

/// The merge on trees.
fn oracle(decode: &mut Value, prefill: &Value, join: LogprobJoin) {
    if let (Value::Array(decode), Value::Array(prefill)) = (&mut *decode, prefill) {
        decode.iter_mut().zip(prefill).for_each(|(decode, prefill)| oracle(decode, prefill, join));
        return;
    }
    let Some(Value::Object(prefill)) = prefill.get("meta_info") else { return };
    let Some(Value::Object(decode)) = decode.get_mut("meta_info") else { return };
    for (name, value) in prefill {
        let is_merged = name.starts_with("pd_prefill_") || name.starts_with("pd_transfer_");
        let is_cached = name.starts_with("cached_tokens") && !value.is_null();
        if is_merged || is_cached {
            decode.insert(name.clone(), value.clone());
        }
        if let Some((_, shared)) = TIMINGS.iter().find(|(timing, _)| timing == name)
            && !value.is_null()
            && !prefill.contains_key(*shared)
        {
            decode.insert((*shared).to_owned(), value.clone());
        }
    }
    for list in LISTS {
        let Some(Value::Array(prompts)) = prefill.get(list) else { continue };
        if prompts.is_empty() || join == LogprobJoin::Never {
            continue;
        }
        match (decode.get_mut(list), join) {
            (Some(Value::Array(own)), _) => *own = [&prompts[..], own].concat(),
            (None | Some(Value::Null), LogprobJoin::Always) => {
                decode.insert(list.to_owned(), prompts.clone().into());
            }
            _ => {}
        }
    }
}

fn meta_info() -> impl Strategy<Value = String> {
    let field = prop_oneof![
        4 => member(name(META_NAMES), scalar()),
        1 => member(name(META_NAMES), value()),
        2 => member(name(&LISTS), logprobs()),
    ]
    .boxed();
    object(field)
}

fn reply() -> impl Strategy<Value = String> {
    let field = prop_oneof![
        2 => member(spelled("meta_info"), meta_info()),
        2 => member(name(&["text", "output_ids", "meta_info"]), value()),
    ]
    .boxed();
    object(field)
}

fn join() -> impl Strategy<Value = LogprobJoin> {
    prop::sample::select(&[LogprobJoin::Never, LogprobJoin::WherePresent, LogprobJoin::Always][..])
}

fn check(
    decode: &str,
    prefill: &str,
    cuts: &[prop::sample::Index],
    join: LogprobJoin,
) -> Result<(), TestCaseError> {
    let (chunks, prefill_chunks) = (cut(decode, cuts), cut(prefill, cuts));
    let mut share = PrefillShare::default();
    share.add(&Reply::scan(&prefill_chunks).unwrap());
    let reply = Reply::scan(&chunks).unwrap();
    let Ok(merged) = reply.merge(&share, join) else {
        prop_assert_ne!(tree(decode).as_array().map(Vec::len), tree(prefill).as_array().map(Vec::len));
        return Ok(());
    };
    let merged = merged.as_ref().map_or_else(|| decode.to_owned(), text);
    let (mut expected, prefill) = (tree(decode), tree(prefill));
    oracle(&mut expected, &prefill, join);
    prop_assert_eq!(tree(&merged), expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn splicing_equals_merging_trees(decode in reply(), prefill in reply(), cuts in cuts(), join in join()) {
        check(&decode, &prefill, &cuts, join)?;
    }

    #[test]
    fn splicing_a_batch_equals_merging_trees(
        decode in list(reply()), prefill in list(reply()), cuts in cuts(), join in join()
    ) {
        check(&decode, &prefill, &cuts, join)?;
    }

    #[test]
    fn of_what_is_written_one_occurrence_remains(decode in meta_info(), prefill in meta_info()) {
        let merged = merge(
            &format!(r#"{{"meta_info":{decode}}}"#),
            &format!(r#"{{"meta_info":{prefill}}}"#),
            LogprobJoin::Always,
        ).unwrap();
        let merged = &merged[r#"{"meta_info":"#.len()..merged.len() - 1];
        let (of_decode, of_prefill) = (tree(&decode), tree(&prefill));
        let is_told = |name: &str| of_prefill.get(name).is_some_and(|value| !value.is_null());
        let is_written = |name: &str| {
            if LISTS.contains(&name) {
                let own = of_decode.get(name).unwrap_or(&Value::Null);
                let is_list = of_prefill.get(name).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
                return is_list && (own.is_null() || own.is_array());
            }
            let is_of_prefill = name.starts_with("pd_prefill_") || name.starts_with("pd_transfer_");
            is_of_prefill && occurrences(&prefill, name) > 0
                || name.starts_with("cached_tokens") && is_told(name)
                || TIMINGS.iter().any(|(timing, shared)| *shared == name && is_told(timing))
        };
        for name in META_NAMES.iter().filter(|name| is_written(name)) {
            prop_assert_eq!(occurrences(merged, name), 1, "{}", name);
        }
    }

    #[test]
    fn what_is_not_written_stays_byte_for_byte(
        decode in prop_oneof![reply().boxed(), list(reply())], cuts in cuts(), join in join()
    ) {
        // No member of decode's has this name, so all that is written is put in.
        let (put, more) = (r#""pd_prefill_of_its_own":1"#, r#""pd_prefill_of_its_own":1,"#);
        let samples = tree(&decode).as_array().map(Vec::len);
        let prefill = |meta_info: &str| {
            let element = format!(r#"{{"meta_info":{{{meta_info}}}}}"#);
            samples.map_or(element.clone(), |samples| format!("[{}]", vec![element; samples].join(",")))
        };
        let chunks = cut(&decode, &cuts);
        let reply = Reply::scan(&chunks).unwrap();
        let merged = |meta_info: &str| {
            let prefill = Chunks::from(prefill(meta_info).into_bytes());
            let mut share = PrefillShare::default();
            share.add(&Reply::scan(&prefill).unwrap());
            reply.merge(&share, join).unwrap()
        };
        prop_assert_eq!(merged(""), None);
        let merged = merged(put).as_ref().map_or_else(|| decode.clone(), text);
        let puts = merged.matches(put).count();
        let has_place = |reply: &Value| usize::from(reply.get("meta_info").is_some_and(Value::is_object));
        let of_decode = tree(&decode);
        prop_assert_eq!(puts, of_decode.as_array().map_or(has_place(&of_decode), |all| all.iter().map(has_place).sum()));
        prop_assert_eq!(merged.replace(more, "").replace(put, ""), decode);
    }

    #[test]
    fn a_reply_that_is_cut_off_is_malformed(reply in reply(), place in any::<prop::sample::Index>()) {
        let body = Chunks::from(reply.as_bytes()[..place.index(reply.len())].to_vec());
        prop_assert!(Reply::scan(&body).is_err());
    }

    #[test]
    fn no_bytes_make_it_panic(reply in reply(), byte in any::<u8>(), place in any::<prop::sample::Index>()) {
        let mut bytes = reply.clone().into_bytes();
        bytes[place.index(reply.len())] = byte;
        let (body, whole) = (Chunks::from(bytes), Chunks::from(reply.into_bytes()));
        let mut share = PrefillShare::default();
        share.add(&Reply::scan(&whole).unwrap());
        if let Ok(reply) = Reply::scan(&body) {
            let _merged = reply.merge(&share, LogprobJoin::Always);
            reply.elements().iter().for_each(|element| element.read(|_, _| {}));
        }
    }
}

#[test]
fn pairs_of_a_text_with_invalid_utf8_are_readable() {
    let body = Chunks::from(b"{\"meta_info\":{\"id\":\"\xff\",\"\xfe\":1}}".to_vec());
    let pairs = pairs_of(&Reply::scan(&body).unwrap().elements()[0]);
    assert_eq!(pairs, [("id".into(), Scalar::Text("\u{FFFD}".into()))]);
}
