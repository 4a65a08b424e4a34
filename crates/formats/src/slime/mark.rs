//! What a dump says of a sample beside its trace.

use rollscope_trace::{Nanos, SampleKey, SampleMark};
use serde_json::{Map, Value as Json, json};

use super::sample::SampleOptions;
use crate::tree::{Scalar, Tree, float_json};

/// Reads the members of a sample. `numbers` reads a tensor.
pub(super) fn read<T: Tree>(
    tree: &T,
    key: SampleKey,
    options: SampleOptions<'_>,
    numbers: &mut dyn FnMut(&T) -> Option<Vec<f64>>,
) -> SampleMark {
    let scalar = |name: &str| tree.member(name).and_then(|value| value.scalar());
    let count = |name: &str| tree.member(name).and_then(|value| value.number()).and_then(whole);
    let status = tree.member("status").and_then(|status| status.text());
    let mask = tree.member("loss_mask").and_then(|mask| list(&mask, numbers));
    let reward = tree.member("reward");
    let seconds = tree.member("non_generation_time").and_then(|time| time.number());
    SampleMark {
        reward: reward.as_ref().and_then(|reward| reward_of(reward, options.reward_key, numbers)),
        truncated: match status.as_deref() {
            Some("truncated") => Some(true),
            Some("completed") => Some(false),
            _ => None,
        },
        response_tokens: count("response_length"),
        effective_response_tokens: mask.as_ref().map(|mask| mask.iter().sum::<f64>()).and_then(whole),
        non_generation_time: seconds.and_then(Nanos::from_secs_f64),
        category: options.category_key.and_then(|key| name(reward?.member(key)?.scalar()?)),
        top_p_kept: top_p_kept(tree, mask.as_deref(), numbers),
        evaluation: options.evaluation || scalar("evaluation") == Some(Scalar::Bool(true)),
        ..SampleMark::new(key)
    }
}

/// A reward that is a number, or of several the one that was asked for; the only one where none was.
fn reward_of<T: Tree>(
    value: &T,
    key: Option<&str>,
    numbers: &mut dyn FnMut(&T) -> Option<Vec<f64>>,
) -> Option<f64> {
    let mut number = |value: &T| {
        value.number().or_else(|| match *numbers(value)? {
            [number] => Some(number),
            _ => None,
        })
    };
    if let Some(reward) = number(value) {
        return Some(reward);
    }
    if let Some(key) = key {
        return value.member(key).and_then(|value| number(&value));
    }
    let mut rewards = Vec::new();
    value.each_member(&mut |_, value| rewards.extend(number(value)));
    match *rewards {
        [reward] => Some(reward),
        _ => None,
    }
}

/// Vocabulary entries that nucleus sampling kept for the tokens that are trained on: the offsets tell where each
/// token's begin.
fn top_p_kept<T: Tree>(
    tree: &T,
    mask: Option<&[f64]>,
    numbers: &mut dyn FnMut(&T) -> Option<Vec<f64>>,
) -> Option<u64> {
    let offsets = list(&tree.member("rollout_top_p_token_offsets")?, numbers)?;
    let kept = offsets
        .windows(2)
        .enumerate()
        .filter(|(token, _)| mask.is_none_or(|mask| mask.get(*token).is_some_and(|weight| *weight != 0.0)));
    whole(kept.map(|(_, pair)| pair[1] - pair[0]).sum())
}

/// The numbers of a list or a tensor.
fn list<T: Tree>(value: &T, numbers: &mut dyn FnMut(&T) -> Option<Vec<f64>>) -> Option<Vec<f64>> {
    let mut list = Vec::new();
    let is_list = value.each_element(&mut |item| list.extend(item.number()));
    if is_list { Some(list) } else { numbers(value) }
}

fn whole(value: f64) -> Option<u64> {
    (value >= 0.0 && value < (1u64 << 53) as f64).then_some(value as u64)
}

fn name(value: Scalar) -> Option<Box<str>> {
    match value {
        Scalar::Text(text) => Some(Box::from(&*text)),
        Scalar::Int(number) => Some(number.to_string().into()),
        Scalar::Bool(value) => Some(value.to_string().into()),
        Scalar::Null | Scalar::Float(_) => None,
    }
}

/// The members of a sample that a mark says, by slime's names where it has them.
pub(super) fn write(mark: &SampleMark) -> Map<String, Json> {
    let mut members = Map::new();
    let mut put = |name: &str, value: Option<Json>| {
        members.extend(value.map(|value| (name.to_owned(), value)));
    };
    put("reward", mark.reward.map(float_json));
    put("status", mark.truncated.map(|cut| json!(if cut { "truncated" } else { "completed" })));
    put("response_length", mark.response_tokens.map(|tokens| json!(tokens)));
    put("non_generation_time", mark.non_generation_time.map(|time| json!(time.as_secs_f64())));
    put("evaluation", mark.evaluation.then_some(json!(true)));
    members
}
