//! Routed experts: rows of the prompt joined with those of the tokens, against rows of bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use rollscope_wire::{Chunks, LogprobJoin, PrefillShare, Reply};
use serde_json::{Value, json};

use crate::json::{cut, cuts, occurrences, text, tree};

const FINISHED: &str = r#"{"type":"stop"}"#;

fn merge(decode: &Value, prefill: &Value, cuts: &[prop::sample::Index]) -> Value {
    let chunks = |meta_info: &Value| cut(&json!({"meta_info": meta_info}).to_string(), cuts);
    let (decode, prefill) = (chunks(decode), chunks(prefill));
    let mut share = PrefillShare::default();
    share.add(&Reply::scan(&prefill).unwrap());
    let merged: Option<Chunks> = Reply::scan(&decode).unwrap().merge(&share, LogprobJoin::Never).unwrap();
    tree(&text(&merged.unwrap_or(decode)))["meta_info"].clone()
}

fn rows(count: usize, row_bytes: usize, first: u8) -> Vec<u8> {
    (0..count * row_bytes).map(|at| first.wrapping_add((at % 89) as u8)).collect()
}

proptest! {
    #[test]
    fn rows_of_the_prompt_come_before_those_of_the_tokens(
        prompt in 1_usize..9, completion in 1_usize..9, start in 0_usize..9, row_bytes in 1_usize..14,
        has_prompts_rows: bool, says_start: bool, cuts in cuts(),
    ) {
        let start = start.min(prompt - 1);
        let (prompts, own) = (rows(prompt - start, row_bytes, 1), rows(completion - 1, row_bytes, 101));
        let expected = [&prompts[..], &own].concat();
        let decodes = if has_prompts_rows { [&vec![0; prompts.len()][..], &own].concat() } else { own };
        let mut decode = json!({
            "finish_reason": {"type": "stop"}, "prompt_tokens": prompt, "completion_tokens": completion,
            "routed_experts": STANDARD.encode(decodes),
        });
        if says_start {
            decode["routed_experts_start_len"] = if has_prompts_rows { json!(start) } else { json!(prompt) };
        }
        let prefill = json!({
            "prompt_tokens": prompt, "routed_experts": STANDARD.encode(prompts), "routed_experts_start_len": start,
        });
        let merged = merge(&decode, &prefill, &cuts);
        prop_assert_eq!(&merged["routed_experts"], &json!(STANDARD.encode(expected)));
        let told = if says_start { json!(start) } else { Value::Null };
        prop_assert_eq!(&merged["routed_experts_start_len"], &told);
    }
}

#[test]
fn of_what_is_written_one_occurrence_remains() {
    let (prompts, own) = (STANDARD.encode([1; 8]), STANDARD.encode([2; 4]));
    let prefill = Chunks::from(
        format!(r#"{{"meta_info":{{"prompt_tokens":2,"routed_experts":"{prompts}"}}}}"#).into_bytes(),
    );
    let experts = format!(r#""routed_experts":"x","routed_experts":null,"routed_expert\u0073":"{own}""#);
    let start = r#""routed_experts_start_len":7,"routed_experts_start_len":2"#;
    let counts = r#""completion_tokens":2,"finish_reason":"stop""#;
    let decode = Chunks::from(format!(r#"{{"meta_info":{{{experts},{start},{counts}}}}}"#).into_bytes());
    let mut share = PrefillShare::default();
    share.add(&Reply::scan(&prefill).unwrap());
    let merged = text(&Reply::scan(&decode).unwrap().merge(&share, LogprobJoin::Never).unwrap().unwrap());
    let meta_info = &merged[r#"{"meta_info":"#.len()..merged.len() - 1];
    for name in ["routed_experts", "routed_experts_start_len"] {
        assert_eq!(occurrences(meta_info, name), 1, "{merged}");
    }
    assert_eq!(tree(meta_info)["routed_experts"], json!(STANDARD.encode([[1; 4], [1; 4], [2; 4]].concat())));
}

#[test]
fn what_does_not_fit_stays_as_it_is() {
    let prefill = |experts: &str| json!({"prompt_tokens": 2, "routed_experts": experts});
    let (two, three) = (STANDARD.encode([1; 16]), STANDARD.encode([2; 24]));
    let decode = |experts: Value, completion: u32, finish: &str| json!({"finish_reason": tree(finish), "completion_tokens": completion, "routed_experts": experts});
    for (what, decode, prefill) in [
        ("rows of neither form", decode(json!(two), 2, FINISHED), prefill(&two)),
        ("no base64", decode(json!("abc"), 2, FINISHED), prefill(&two)),
        ("not base64 of the prefill's", decode(json!(three), 2, FINISHED), prefill("a,b!")),
        ("a list", decode(json!([1]), 2, FINISHED), prefill(&two)),
        ("no whole rows", decode(json!(three), 2, FINISHED), prefill(&STANDARD.encode([1; 15]))),
        ("no tokens", decode(json!(""), 0, FINISHED), prefill(&two)),
        ("rows are missing", decode(Value::Null, 2, FINISHED), prefill(&two)),
        ("more is to come", decode(Value::Null, 1, "null"), prefill(&two)),
        ("no rows of the prompt", decode(json!(three), 4, FINISHED), prefill("")),
    ] {
        assert_eq!(merge(&decode, &prefill, &[]), decode, "{what}");
    }
    let only_first = decode(Value::Null, 1, FINISHED);
    assert_eq!(merge(&only_first, &prefill(&two), &[])["routed_experts"], json!(two));
}
