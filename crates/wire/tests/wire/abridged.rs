//! Replies that are read while they pass by: the same is read as from the whole.

use proptest::prelude::*;
use rollscope_wire::{Abridged, Chunks, Malformed, Problem, Reply, Summary, read_pairs};

use crate::json::{cut, cuts, list, member, name, object, scalar, spelled, text, value};
use crate::pairs_of;

fn summary(body: &Chunks) -> Summary {
    let mut abridged = Abridged::new(1 << 20);
    body.pieces().for_each(|piece| abridged.push(piece));
    abridged.finish()
}

fn abridged(body: &Chunks) -> Option<Chunks> {
    reply_of(summary(body))
}

fn reply_of(summary: Summary) -> Option<Chunks> {
    match summary {
        Summary::Reply(abridged) => Some(abridged),
        Summary::Unread | Summary::NoReply(_) => None,
    }
}

/// All that is read of a reply.
fn read(body: &Chunks) -> Vec<String> {
    let reply = Reply::scan(body).unwrap();
    let elements = reply.elements().iter();
    elements
        .map(|element| {
            let (index, pairs) = (element.index(), pairs_of(element));
            let flags = [element.is_finished(), element.is_aborted(), element.is_error()];
            format!("{pairs:?} {index:?} {flags:?}")
        })
        .collect()
}

fn pairs(body: &Chunks) -> Vec<String> {
    let mut samples = Vec::new();
    let count = read_pairs(body, |sample, name, scalar| samples.push(format!("{sample} {name} {scalar:?}")));
    samples.push(format!("{} samples", count.unwrap()));
    samples
}

fn pairs_of_elements(body: &Chunks) -> Vec<String> {
    let reply = Reply::scan(body).unwrap();
    let mut samples = Vec::new();
    for (sample, element) in reply.elements().iter().enumerate() {
        let pairs = pairs_of(element);
        samples.extend(pairs.iter().map(|(name, scalar)| format!("{sample} {name} {scalar:?}")));
    }
    samples.push(format!("{} samples", reply.elements().len()));
    samples
}

fn finish_reason() -> impl Strategy<Value = String> {
    let field = prop_oneof![
        member(name(&["type", "status_code", "message", "length"]), scalar()),
        member(name(&["type", "matched"]), value()),
        member(spelled("type"), Just("\"abort\"".to_owned())),
    ]
    .boxed();
    object(field)
}

fn choice() -> impl Strategy<Value = String> {
    let field = prop_oneof![
        member(name(&["index", "message", "finish_reason"]), value()),
        member(spelled("finish_reason"), Just("\"abort\"".to_owned())),
    ]
    .boxed();
    object(field)
}

fn reply() -> impl Strategy<Value = String> {
    let of_meta_info = prop_oneof![
        3 => member(name(&["id", "queue_time", "finish_reason"]), scalar()),
        2 => member(spelled("finish_reason"), finish_reason()),
        1 => member(name(&["id", "input_token_logprobs"]), value()),
    ]
    .boxed();
    let of_usage = prop_oneof![
        2 => member(name(&["prompt_tokens", "prompt_tokens_details"]), scalar()),
        1 => member(spelled("prompt_tokens_details"), object(member(name(&["cached_tokens"]), scalar()))),
        1 => member(spelled("completion_tokens_details"), value()),
    ]
    .boxed();
    let field = prop_oneof![
        2 => member(spelled("meta_info"), object(of_meta_info)),
        1 => member(spelled("usage"), object(of_usage)),
        1 => member(spelled("choices"), list(prop_oneof![3 => choice(), 1 => value()])),
        2 => member(name(&["text", "index", "error", "meta_info", "usage", "choices"]), value()),
    ]
    .boxed();
    object(field)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_same_is_read_as_from_the_whole(reply in reply(), cuts in cuts()) {
        let body = cut(&reply, &cuts);
        let abridged = abridged(&body).expect("a whole reply");
        prop_assert_eq!(read(&abridged), read(&body), "{}", text(&abridged));
        prop_assert_eq!(pairs(&abridged), pairs(&body));
        prop_assert_eq!(pairs(&body), pairs_of_elements(&body));
    }

    #[test]
    fn a_batch_is_read_alike(replies in list(reply()), cuts in cuts()) {
        let body = cut(&replies, &cuts);
        let abridged = abridged(&body).expect("a whole reply");
        prop_assert_eq!(read(&abridged), read(&body), "{}", text(&abridged));
        prop_assert_eq!(pairs(&body), pairs_of_elements(&body));
    }

    #[test]
    fn a_reply_that_is_cut_off_says_nothing(reply in reply(), place in any::<prop::sample::Index>()) {
        let body = Chunks::from(reply.as_bytes()[..place.index(reply.len())].to_vec());
        let cut = Malformed { offset: body.len(), problem: Problem::End };
        prop_assert_eq!(summary(&body), Summary::NoReply(cut));
        prop_assert_eq!(Reply::check(&body), Err(cut));
    }

    #[test]
    fn what_is_read_of_any_bytes_can_be_scanned_or_is_malformed_in_the_whole_too(
        reply in reply(), byte in any::<u8>(), place in any::<prop::sample::Index>()
    ) {
        let mut bytes = reply.into_bytes();
        let place = place.index(bytes.len());
        bytes[place] = byte;
        let body = Chunks::from(bytes);
        if Reply::scan(&body).is_ok() {
            prop_assert!(Reply::check(&body).is_ok());
            prop_assert!(abridged(&body).is_some_and(|abridged| Reply::scan(&abridged).is_ok()));
        }
    }

    #[test]
    fn what_is_malformed_is_judged_alike_however_it_is_cut(
        reply in prop_oneof![reply(), list(reply())],
        changes in prop::collection::vec((any::<prop::sample::Index>(), "[\\[\\]{}\"\\\\,:a ]{0,2}"), 1..4),
        behind in "[\\[\\]{}\"a ]{0,2}",
        cuts in cuts(),
    ) {
        let mut bytes = reply.into_bytes();
        for (place, instead) in changes {
            let place = place.index(bytes.len());
            bytes.splice(place..=place, instead.into_bytes());
            bytes.push(b' ');
        }
        bytes.extend_from_slice(behind.as_bytes());
        let Ok(reply) = String::from_utf8(bytes) else { return Ok(()) };
        let (whole, body) = (Chunks::from(reply.as_bytes().to_vec()), cut(&reply, &cuts));
        prop_assert_eq!(summary(&body), summary(&whole));
        prop_assert_eq!(Reply::check(&body), Reply::check(&whole));
        if let Err(why) = Reply::check(&whole) {
            prop_assert_eq!(summary(&whole), Summary::NoReply(why));
        }
    }

    #[test]
    fn nothing_may_stand_behind_a_reply(
        reply in prop_oneof![reply(), list(reply())], behind in "[^ \n\r\t]", cuts in cuts(),
    ) {
        let expected = Malformed { offset: reply.len(), problem: Problem::Trailing };
        let body = cut(&format!("{reply}{behind}"), &cuts);
        prop_assert_eq!(summary(&body), Summary::NoReply(expected));
        prop_assert_eq!(Reply::check(&body), Err(expected));
    }
}

#[test]
fn every_split_point_gives_the_same() {
    let body = r#"[ {"text":"a\"]}","meta_info":{"i\u0064":"x\\\"y","n":-1.5e3,"l":[[1,"]"],{}],"finish_reason":{"type":"abort","matched":[1]}}} ,{"error":{"a":1},"index":7}]"#;
    let expected = read(&Chunks::from(body));
    for first in 0..body.len() {
        for second in first..body.len() {
            let mut abridged = Abridged::new(1000);
            for piece in [&body[..first], &body[first..second], &body[second..]] {
                abridged.push(piece.as_bytes());
            }
            assert_eq!(read(&reply_of(abridged.finish()).unwrap()), expected, "{first} and {second}");
        }
    }
}

#[test]
fn the_end_of_a_choice_is_read() {
    let check = |choices: &str, is_aborted: bool| {
        let body =
            Chunks::from(format!(r#"{{"choices":{choices},"usage":{{"prompt_tokens":5}}}}"#).into_bytes());
        for body in [&abridged(&body).unwrap(), &body] {
            let reply = Reply::scan(body).unwrap();
            let element = &reply.elements()[0];
            assert_eq!((element.is_aborted(), element.is_finished()), (is_aborted, false), "{}", text(body));
            assert_eq!(pairs_of(element).len(), 1, "{}", text(body));
        }
    };
    check(r#"[{"index":0,"message":{"finish_reason":"abort"},"finish_reason":"stop"}]"#, false);
    check(r#"[{"finish_reason":"stop"}, {"index":1,"finish_reason":"abort"} ]"#, true);
    check(r#"[{"finish_reason":"ab\u006frt"},{"finish_reason":null}]"#, true);
    check(r#"[1,"a",[{"finish_reason":"abort"}],{"delta":[],"finish_reason":"error"}, null]"#, true);
    check(r#"[{"finish_reason":"abort","finish_reason":"stop"}]"#, false);
    check(r#"[{"finish_reason":"abort"}],"choices":null"#, false);
    check(r#"{"finish_reason":"abort"}"#, false);
    check("[]", false);
}

#[test]
fn the_usage_of_openais_replies_is_read() {
    let body = Chunks::from(
        r#"{"id":"c","choices":[{"usage":{"prompt_tokens":9}}],
            "usage":{"prompt_tokens":5,"prompt_tokens_details":{"audio_tokens":1,"cached_tokens":3},"completion_tokens":8}}"#,
    );
    let number = |name: &str, value| format!("(\"{name}\", Number({value}))");
    let pairs =
        [number("prompt_tokens", "5.0"), number("cached_tokens", "3.0"), number("completion_tokens", "8.0")];
    for body in [&abridged(&body).unwrap(), &body] {
        let [read] = &read(body)[..] else { panic!("one element") };
        assert!(read.starts_with(&format!("[{}]", pairs.join(", "))), "{read}");
    }
}

#[test]
fn what_is_kept_is_bounded() {
    let long = "x".repeat(5000);
    let body =
        format!(r#"{{"text":"{long}","meta_info":{{"a":"{long}","{long}":1,"list":[{long}],"id":"r"}}}}"#);
    for size in [1, 100, 100_000] {
        let mut abridged = Abridged::new(5000);
        body.as_bytes().chunks(size).for_each(|piece| abridged.push(piece));
        assert_eq!(
            text(&reply_of(abridged.finish()).unwrap()),
            r#"{"meta_info":{"a":[],"list":[],"id":"r"}}"#,
            "pieces of {size}"
        );
    }
    let many = format!(r#"{{"meta_info":{{{}"z":1}}}}"#, "\"a\":1,".repeat(1000));
    let mut abridged = Abridged::new(5000);
    many.as_bytes().chunks(10).for_each(|piece| abridged.push(piece));
    assert_eq!(abridged.finish(), Summary::Unread);
}

#[test]
fn what_has_not_the_form_of_a_reply_is_known() {
    let not_an_object = |offset| Malformed { offset, problem: Problem::NotAnObject };
    let end = |offset| Malformed { offset, problem: Problem::End };
    let trailing = |offset| Malformed { offset, problem: Problem::Trailing };
    let unexpected = |offset| Malformed { offset, problem: Problem::Unexpected };
    for (body, expected) in [
        ("", end(0)),
        (" \r\n", end(3)),
        ("<html>", not_an_object(0)),
        (" 1", not_an_object(1)),
        ("\"{}\"", not_an_object(0)),
        ("null", not_an_object(0)),
        ("[1]", not_an_object(1)),
        ("[{},[]]", not_an_object(4)),
        ("[", end(1)),
        ("[{},", end(4)),
        ("{", end(1)),
        (r#"{"a":"}"#, end(7)),
        (r#"{"a":{}"#, end(7)),
        (r#"{"a":[1,{"b":"#, end(13)),
        ("{}<html>", trailing(2)),
        ("{}}", trailing(2)),
        ("{}\n{}", trailing(3)),
        ("[{}]]", trailing(4)),
        (r#"{"a" 1}}"#, trailing(7)),
        ("[{} {}]", unexpected(4)),
        (r#"[{"a":1,}x]"#, unexpected(9)),
        ("{'text': 'x','y':[", end(18)),
        (r#"{"a" 1,"b":""#, end(12)),
        (r#"{"meta_info":{"finish_reason":{,}}"#, end(34)),
        (r#"{"choices":[{,}]"#, end(16)),
    ] {
        let whole = Chunks::from(body);
        assert_eq!(Reply::check(&whole), Err(expected), "{body}");
        for split in 0..=body.len() {
            let mut abridged = Abridged::new(1000);
            let (first, second) = body.split_at(split);
            abridged.push(first.as_bytes());
            abridged.push(second.as_bytes());
            assert_eq!(
                abridged.no_reply(),
                Some(expected).filter(|why| why.problem != Problem::End),
                "{body}"
            );
            assert_eq!(abridged.finish(), Summary::NoReply(expected), "{body} split at {split}");
        }
    }
    // What is wrong in the inside is not looked for.
    for body in [
        r#"{"a" 1}"#,
        r#"{"a":nul}"#,
        "{]}",
        r#"[{"a":1,},{}]"#,
        r#"{"a":[{]}"#,
        r#"{"a" "}"}"#,
        r#"{"usage":{"prompt_tokens_details":{,}}}"#,
        r#"[{"choices":[{,}]},{"meta_info":{]}}]"#,
    ] {
        assert_eq!(Reply::check(&Chunks::from(body)), Ok(()), "{body}");
        assert!(!matches!(summary(&Chunks::from(body)), Summary::NoReply(_)), "{body}");
    }
}

#[test]
fn what_is_no_reply_says_nothing() {
    for body in [
        "",
        "1",
        "\"a\"",
        "[1]",
        "[[]]",
        "{}x",
        "{}{}",
        "{]",
        "[}",
        r#"{"a" 1}"#,
        r#"{"a":1,}"#,
        "[{},]",
        r#"{"choices":[{}}"#,
        r#"{"choices":[{}]]"#,
        r#"{"choices":[1,]}"#,
        r#"{"choices":[{},}]"#,
        r#"{"choices":[1 2]}"#,
        r#"{,"a":1}"#,
        r#"{"a":}"#,
        r#"{"a\x":1}"#,
    ] {
        assert_eq!(abridged(&Chunks::from(body)), None, "{body}");
        assert!(Reply::scan(&Chunks::from(body)).is_err(), "{body}");
    }
    for body in ["{}", " [ ] ", r#"{"text":""}"#] {
        assert_eq!(read(&abridged(&Chunks::from(body)).unwrap()), read(&Chunks::from(body)), "{body}");
    }
}
