//! Generated JSON, spelled in every way that JSON allows, and readers of it.
//!
//! Strategies are boxed: nested as types, they would fill the stack of a test.

use bytes::Bytes;
use proptest::prelude::*;
use rollscope_wire::Chunks;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// Space between tokens.
pub(crate) fn space() -> impl Strategy<Value = &'static str> {
    prop_oneof![6 => Just(""), 1 => Just(" "), 1 => Just("\n\t"), 1 => Just("\r\n  ")]
}

/// A string with its quotes, spelled with and without escapes.
pub(crate) fn string() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop_oneof![
            4 => "[a-zA-Z0-9 {}\\[\\]:,'/]{1,8}",
            1 => Just("ü漢😀".to_owned()),
            1 => Just(r#"\"\\"#.to_owned()),
            1 => Just(r#"\\\" , \"meta_info\":{ "#.to_owned()),
            1 => Just(r"\u00e9\ud83d\ude00\n".to_owned()),
        ],
        0..4,
    )
    .prop_map(|parts| format!("\"{}\"", parts.concat()))
}

/// A name, each letter spelled as itself or as an escape.
pub(crate) fn spelled(name: &'static str) -> BoxedStrategy<String> {
    prop::collection::vec(prop::bool::weighted(0.1), name.len())
        .prop_map(move |escaped| {
            let letters = name.chars().zip(escaped).map(|(letter, escaped)| {
                if escaped { format!("\\u{:04x}", u32::from(letter)) } else { letter.to_string() }
            });
            format!("\"{}\"", letters.collect::<String>())
        })
        .boxed()
}

/// A name: one of these, or any.
pub(crate) fn name(special: &'static [&'static str]) -> BoxedStrategy<String> {
    prop_oneof![prop::sample::select(special).prop_flat_map(spelled), string()].boxed()
}

pub(crate) fn scalar() -> BoxedStrategy<String> {
    prop_oneof![
        string(),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f32>()
            .prop_filter("JSON has no other", |number| number.is_finite())
            .prop_map(|n| format!("{n:?}")),
        Just("123456789012345678901234567890".to_owned()),
        Just("-0.10000000149011612e-3".to_owned()),
        prop::sample::select(&["true", "false", "null"][..]).prop_map(str::to_owned),
    ]
    .boxed()
}

/// Any value.
pub(crate) fn value() -> BoxedStrategy<String> {
    scalar()
        .prop_recursive(5, 48, 6, |inner| {
            prop_oneof![list(inner.clone()), object(member(name(NAMES), inner))]
        })
        .boxed()
}

pub(crate) const NAMES: &[&str] =
    &["meta_info", "pd_prefill_retry_count", "input_token_logprobs", "bootstrap_room", "n", "text"];

/// A list of values.
pub(crate) fn list(element: impl Strategy<Value = String> + 'static) -> BoxedStrategy<String> {
    (prop::collection::vec((space(), element, space()), 0..6), space())
        .prop_map(|(elements, space)| {
            let elements =
                elements.into_iter().map(|(before, element, after)| [before, &element, after].concat());
            format!("[{}{space}]", elements.collect::<Vec<_>>().join(","))
        })
        .boxed()
}

/// `"name" : value`.
pub(crate) fn member(
    name: impl Strategy<Value = String> + 'static,
    value: impl Strategy<Value = String> + 'static,
) -> BoxedStrategy<String> {
    (name, space(), space(), value)
        .prop_map(|(name, before, after, value)| format!("{name}{before}:{after}{value}"))
        .boxed()
}

/// An object of such members, in which names may stand twice.
pub(crate) fn object(member: impl Strategy<Value = String> + 'static) -> BoxedStrategy<String> {
    (prop::collection::vec((space(), member, space()), 0..8), space())
        .prop_map(|(members, space)| {
            let members =
                members.into_iter().map(|(before, member, after)| [before, &member, after].concat());
            format!("{{{}{space}}}", members.collect::<Vec<_>>().join(","))
        })
        .boxed()
}

/// Lists of log-probabilities, as large replies have them.
pub(crate) fn logprobs() -> BoxedStrategy<String> {
    let triple = (any::<f32>(), any::<u16>(), prop_oneof![4 => Just("null".to_owned()), 1 => string()]);
    let separator = prop::sample::select(&[",", ", "][..]);
    (prop::collection::vec(triple, 0..60), separator)
        .prop_map(|(triples, separator)| {
            let triples = triples.into_iter().map(|(logprob, id, text)| {
                let logprob = if logprob.is_finite() { format!("{logprob:?}") } else { "null".to_owned() };
                format!("[{logprob}{separator}{id}{separator}{text}]")
            });
            format!("[{}]", triples.collect::<Vec<_>>().join(separator))
        })
        .boxed()
}

/// The text cut at these places.
pub(crate) fn cut(text: &str, places: &[prop::sample::Index]) -> Chunks {
    let mut places: Vec<usize> = places.iter().map(|place| place.index(text.len() + 1)).collect();
    places.sort_unstable();
    places.push(text.len());
    let whole = Bytes::copy_from_slice(text.as_bytes());
    let mut start = 0;
    places.into_iter().map(|place| whole.slice(std::mem::replace(&mut start, place)..place)).collect()
}

pub(crate) fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..4)
}

pub(crate) fn text(chunks: &Chunks) -> String {
    String::from_utf8(chunks.to_bytes().to_vec()).unwrap()
}

pub(crate) fn tree(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// How often a name stands in an object.
pub(crate) fn occurrences(object: &str, name: &str) -> usize {
    struct Names(Vec<String>);
    struct Reader;
    impl<'de> Visitor<'de> for Reader {
        type Value = Names;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
            let mut names = Vec::new();
            while let Some((name, _)) = map.next_entry::<String, serde::de::IgnoredAny>()? {
                names.push(name);
            }
            Ok(Names(names))
        }
    }
    impl<'de> Deserialize<'de> for Names {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(Reader)
        }
    }
    let names: Names = serde_json::from_str(object).unwrap();
    names.0.iter().filter(|other| *other == name).count()
}
