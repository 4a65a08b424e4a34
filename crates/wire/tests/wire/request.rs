//! Requests: their shape, and the bootstrap fields in them.

use proptest::prelude::*;
use rollscope_wire::{Bootstrap, Chunks, Dialect, GenerateRequest, Malformed, Problem, Ranks, Shape};
use serde_json::json;

use crate::json::{cut, cuts, member, name, object, occurrences, text, tree, value};

const REQUEST_NAMES: &[&str] =
    &["bootstrap_host", "bootstrap_port", "bootstrap_room", "text", "stream", "rid", "extra"];

fn scan(body: &'static str, dialect: Dialect) -> GenerateRequest<'static> {
    let body: &'static Chunks = Box::leak(Box::new(Chunks::from(body)));
    GenerateRequest::scan(body, dialect).unwrap()
}

fn bootstrapped(body: &str, rooms: &[u64]) -> String {
    let body = Chunks::from(body.as_bytes().to_vec());
    let request = GenerateRequest::scan(&body, Dialect::Generate).unwrap();
    text(&request.placed(Some(&Bootstrap { host: "p", port: Some(8998), rooms }), Ranks::default()))
}

#[test]
fn the_prompt_is_given_as_it_stands() {
    for (body, prompt) in [
        (r#"{"stream":true}"#, None),
        (r#"{"stream":true, "text": "a\n" }"#, Some(r#""a\n""#)),
        (r#"{"text":null,"input_ids":[1, 2]}"#, Some("[1, 2]")),
        (r#"{"prompt":["a","b"]}"#, Some(r#"["a","b"]"#)),
        (r#"{"x":{"text":"no"},"messages":[{"role":"user"}]}"#, Some(r#"[{"role":"user"}]"#)),
    ] {
        let found = scan(body, Dialect::Generate).prompt();
        assert_eq!(found.map(|prompt| text(&prompt)).as_deref(), prompt, "{body}");
    }
}

#[test]
fn the_shape_follows_the_fields_of_the_dialect() {
    use Dialect::{Chat, Completions, Generate};
    use Shape::{Batch, Single};
    for (dialect, body, shape) in [
        (Generate, r#"{"text":"a"}"#, Single),
        (Generate, r#"{"text":["a"]}"#, Batch(1)),
        (Generate, r#"{"text":["a","]","\"["], "stream" : true}"#, Batch(3)),
        (Generate, r#"{"text":[]}"#, Batch(0)),
        (Generate, r#"{"text":null,"input_ids":[1,2,3]}"#, Single),
        (Generate, r#"{"input_ids":[[1,2,3],[4], []],"text":null}"#, Batch(3)),
        (Generate, r#"{"input_ids":[ [ ] ]}"#, Batch(1)),
        (Generate, r#"{"input_embeds":[[0.1],[0.2]]}"#, Single),
        (Generate, r#"{"input_embeds":[[[0.1],[0.2]],[[1]]]}"#, Batch(2)),
        (Generate, r#"{"text":"a","sampling_params":{"n":4,"stop":["n"]}}"#, Batch(4)),
        (Generate, r#"{"sampling_params":[{"n":2},{"n":2}],"text":["a","b"]}"#, Batch(4)),
        (Generate, r#"{"text":"a","sampling_params":{"n":0}}"#, Single),
        (Generate, r#"{"te\u0078t":["a","b"]}"#, Batch(2)),
        (Generate, r#"{"text":["a","b"],"text":["a","b","c"]}"#, Batch(3)),
        (Generate, r#"{"text":["a","b"],"text":"a"}"#, Single),
        (Generate, r#"{"text":"a","sampling_params":[]}"#, Single),
        (Generate, r#"{"text":"a","sampling_params":null}"#, Single),
        (Generate, r#"{"text":"a","sampling_params":[{"stop":"x"},{"n":2}]}"#, Single),
        (Generate, r#"{"text":"a","n":3,"prompt":["a","b"],"nested":{"text":["a","b"]}}"#, Single),
        (Chat, r#"{"messages":[{"role":"user"},{"role":"user"}],"n":3}"#, Batch(3)),
        (Chat, r#"{"messages":[],"n":1}"#, Single),
        (Completions, r#"{"prompt":["a","b"],"n":2}"#, Batch(4)),
        (Completions, r#"{"prompt":[1,2,3]}"#, Single),
        (Completions, r#"{"prompt":[[1,2,3],[4]]}"#, Batch(2)),
        (Completions, r#"{"prompt":"a"}"#, Single),
    ] {
        assert_eq!(scan(body, dialect).shape, shape, "{body}");
    }
}

#[test]
fn flags_and_names_are_read() {
    let request =
        scan(r#"{"stream":true,"return_logprob":[false,true],"rid":["a","\u0062"]}"#, Dialect::Generate);
    assert_eq!((request.stream, request.return_logprob), (true, true));
    assert_eq!(request.rids, ["a", "b"]);
    let request = scan(r#"{"stream":"true","return_logprob":1,"rid":null}"#, Dialect::Generate);
    assert_eq!((request.stream, request.return_logprob, request.rids.len()), (false, false, 0));
}

#[test]
fn malformed_requests_are_refused_where_they_go_wrong() {
    let check = |body: &'static str, offset, problem| {
        let body = Chunks::from(body);
        let error = GenerateRequest::scan(&body, Dialect::Generate).unwrap_err();
        assert_eq!(error, Malformed { offset, problem }, "{}", text(&body));
    };
    check("", 0, Problem::End);
    check("  ", 2, Problem::End);
    check("[]", 0, Problem::NotAnObject);
    check(r#"{"text" "a"}"#, 8, Problem::Unexpected);
    check(r#"{"text":"a""#, 11, Problem::End);
    check(r#"{"text":"a",}"#, 12, Problem::Unexpected);
    check(r#"{"text":"a"} x"#, 13, Problem::Trailing);
    check(r#"{"text":hello}"#, 8, Problem::Literal);
    check(r#"{"te\xt":1}"#, 4, Problem::Escape);
    check(r#"{"input_ids":[1,2"#, 17, Problem::End);
    check(r#" {"text":"a","sampling_params":{"n":1000000000000}}"#, 1, Problem::Count);
    let sentence = GenerateRequest::scan(&Chunks::from("{"), Dialect::Chat).unwrap_err().to_string();
    assert_eq!(sentence, "unexpected end at byte 1");
}

#[test]
fn bootstrap_fields_are_scalars_or_lists_of_equal_length() {
    assert_eq!(
        bootstrapped(r#" { "text": "a", "x":1.50 }"#, &[7]),
        r#" {"bootstrap_host":"p","bootstrap_port":8998,"bootstrap_room":7, "text": "a", "x":1.50 }"#
    );
    assert_eq!(
        bootstrapped(r#"{"text":["a","b"]}"#, &[7, 8]),
        r#"{"bootstrap_host":["p","p"],"bootstrap_port":[8998,8998],"bootstrap_room":[7,8],"text":["a","b"]}"#
    );
    assert_eq!(
        bootstrapped(r#"{ "bootstrap_room" : 1 , "a":1 , "bootstrap_r\u006fom":2}"#, &[7]),
        r#"{"bootstrap_host":"p","bootstrap_port":8998,"bootstrap_room":7 , "a":1}"#
    );
    assert_eq!(
        bootstrapped(r#"{"bootstrap_port":null }"#, &[7]),
        r#"{"bootstrap_host":"p","bootstrap_port":8998,"bootstrap_room":7 }"#
    );
    let body = Chunks::from("{}");
    let request = GenerateRequest::scan(&body, Dialect::Generate).unwrap();
    let none = Bootstrap { host: "[::1]", port: None, rooms: &[(1 << 53) - 1] };
    assert_eq!(
        text(&request.placed(Some(&none), Ranks::default())),
        r#"{"bootstrap_host":"[::1]","bootstrap_port":null,"bootstrap_room":9007199254740991}"#
    );
}

fn request() -> impl Strategy<Value = String> {
    object(member(name(REQUEST_NAMES), value()))
}

proptest! {
    #[test]
    fn splicing_in_is_inserting_into_the_tree(body in request(), cuts in cuts()) {
        let chunks = cut(&body, &cuts);
        let request = GenerateRequest::scan(&chunks, Dialect::Generate).unwrap();
        let rooms: Vec<u64> = (1..=request.shape.samples() as u64).collect();
        let out = text(&request.placed(Some(&Bootstrap { host: "h:1", port: Some(9), rooms: &rooms }), Ranks::default()));

        let mut expected = tree(&body);
        let fields = expected.as_object_mut().unwrap();
        let (host, port, room) = match request.shape {
            Shape::Single => (json!("h:1"), json!(9), json!(1)),
            Shape::Batch(n) => (json!(vec!["h:1"; n]), json!(vec![9; n]), json!(rooms)),
        };
        fields.insert("bootstrap_host".to_owned(), host);
        fields.insert("bootstrap_port".to_owned(), port);
        fields.insert("bootstrap_room".to_owned(), room);
        prop_assert_eq!(tree(&out), expected);
        for name in ["bootstrap_host", "bootstrap_port", "bootstrap_room"] {
            prop_assert_eq!(occurrences(&out, name), 1);
        }
    }

    #[test]
    fn what_is_not_written_stays_byte_for_byte(
        body in object(member(name(&["text", "stream", "rid", "extra"]), value())), cuts in cuts()
    ) {
        let chunks = cut(&body, &cuts);
        let request = GenerateRequest::scan(&chunks, Dialect::Generate).unwrap();
        let rooms: Vec<u64> = (1..=request.shape.samples() as u64).collect();
        let out = text(&request.placed(Some(&Bootstrap { host: "h:1", port: Some(9), rooms: &rooms }), Ranks::default()));
        let fields = match request.shape {
            Shape::Single => json!({"bootstrap_host": "h:1", "bootstrap_port": 9, "bootstrap_room": 1}),
            Shape::Batch(n) => json!({"bootstrap_host": vec!["h:1"; n], "bootstrap_port": vec![9; n], "bootstrap_room": rooms}),
        };
        let fields = fields.to_string();
        let fields = fields.trim_matches(['{', '}']);
        prop_assert_eq!(out.matches(fields).count(), 1);
        prop_assert_eq!(out.replace(&format!("{fields},"), "").replace(fields, ""), body);
    }

    #[test]
    fn a_request_that_is_cut_off_is_malformed(body in request(), place in any::<prop::sample::Index>()) {
        let body = Chunks::from(body.as_bytes()[..place.index(body.len())].to_vec());
        prop_assert!(GenerateRequest::scan(&body, Dialect::Generate).is_err());
    }

    #[test]
    fn no_bytes_make_it_panic(mut body in request(), byte in any::<u8>(), place in any::<prop::sample::Index>()) {
        let place = place.index(body.len());
        let mut bytes = std::mem::take(&mut body).into_bytes();
        bytes[place] = byte;
        let body = Chunks::from(bytes);
        if let Ok(request) = GenerateRequest::scan(&body, Dialect::Completions) {
            let rooms = vec![1; request.shape.samples()];
            request.placed(Some(&Bootstrap { host: "h", port: None, rooms: &rooms }), Ranks::default());
        }
    }
}

#[test]
fn ranks_take_the_place_of_the_clients_own() {
    let placed = |body: &'static str, routed, prefill| {
        let body = Chunks::from(body);
        let request = GenerateRequest::scan(&body, Dialect::Generate).unwrap();
        text(&request.placed(None, Ranks { routed, prefill }))
    };
    for (body, routed, prefill, expected) in [
        (r#"{"text":"a"}"#, None, None, r#"{"text":"a"}"#),
        (r#"{"text":"a","routed_dp_rank":3}"#, None, None, r#"{"text":"a","routed_dp_rank":3}"#),
        (
            r#"{"text":"a","routed_dp_rank":3}"#,
            Some(1),
            None,
            r#"{"routed_dp_rank":1,"data_parallel_rank":1,"text":"a"}"#,
        ),
        (
            r#"{"data_parallel_rank":3,"text":"a" }"#,
            Some(0),
            Some(2),
            r#"{"routed_dp_rank":0,"data_parallel_rank":0,"disagg_prefill_dp_rank":2,"text":"a" }"#,
        ),
        ("{}", None, Some(2), r#"{"disagg_prefill_dp_rank":2}"#),
    ] {
        assert_eq!(placed(body, routed, prefill), expected);
    }
    for (body, rank) in [
        (r#"{"routed_dp_rank":3}"#, Some(3)),
        (r#"{"data_parallel_rank":0}"#, Some(0)),
        (r#"{"routed_dp_rank":-1}"#, None),
        (r#"{"routed_dp_rank":1.5}"#, None),
        (r#"{"routed_dp_rank":null,"data_parallel_rank":2}"#, Some(2)),
        (r#"{"routed_dp_rank":1,"data_parallel_rank":2}"#, Some(1)),
    ] {
        assert_eq!(scan(body, Dialect::Generate).routed_dp_rank, rank, "{body}");
    }
}
