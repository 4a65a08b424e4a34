//! What a dump says of a sample beside its trace.

use miniz_oxide::deflate::compress_to_vec_zlib;
use rollscope_trace::{Fault, LeftOut, MarkValue, Nanos, PrefixCounts, SampleKey, SampleMark, SpecCounts};
use serde_json::{Map, Value as Json, json};

use super::sample::SampleOptions;
use crate::tree::{Scalar, Tree, float_json};

/// The member of a sample that holds what only we say of it.
pub(super) const OURS: &str = "rollscope";
const EFFECTIVE: &str = "effective_response_tokens";
const REPETITION: &str = "repetition";
const CATEGORY: &str = "category";
const TOP_P_KEPT: &str = "top_p_kept";
const DATASET: &str = "dataset";
const LEFT_OUT: &str = "left_out";
const CARRIER: &str = "carrier";

/// What slime adds up over a sample's requests.
pub(super) const SPEC: &str = "spec_info";
pub(super) const PREFIX: &str = "prefix_cache_info";

/// Reads numbers, and notes what is wrong with those that are left out.
struct Judge<'a, T> {
    left_out: Vec<LeftOut>,
    /// Reads a tensor.
    numbers: &'a mut dyn FnMut(&T) -> Option<Vec<f64>>,
}

/// Characters at the end of a response by which it is judged; see [`repeats`].
const JUDGED_CHARS: usize = 10_000;
const REPETITIVE: usize = 10;
/// zlib's level.
const BEST_COMPRESSION: u8 = 9;

/// Reads the members of a sample. `numbers` reads a tensor.
pub(super) fn read<T: Tree>(
    tree: &T,
    key: SampleKey,
    options: SampleOptions<'_>,
    numbers: &mut dyn FnMut(&T) -> Option<Vec<f64>>,
) -> SampleMark {
    let scalar = |name: &str| tree.member(name).and_then(|value| value.scalar());
    let status = tree.member("status").and_then(|status| status.text());
    let reward = tree.member("reward");
    // A sample that we wrote says what slime has no member for, or only one that cannot be made from a sum.
    let ours = tree.member(OURS);
    let said = |name: &str| ours.as_ref().and_then(|said| said.member(name)?.scalar());
    let said_count = |name: &str| ours.as_ref().and_then(|said| said.member(name)?.number()).and_then(whole);
    let category = || match reward.as_ref()?.member(options.category_key?)?.scalar()? {
        // slime counts what has no category under Python's word for that.
        Scalar::Null => Some("None".into()),
        other => name(other),
    };
    let dataset = said(DATASET).and_then(name);
    let mut judge = Judge { left_out: Vec::new(), numbers };
    let trained = judge.list(MarkValue::EffectiveResponseTokens, tree.member("loss_mask").as_ref());
    let effective = trained
        .as_ref()
        .and_then(|mask| judge.whole(MarkValue::EffectiveResponseTokens, mask.iter().sum::<f64>().round()));
    let response_tokens = judge.count(MarkValue::ResponseTokens, tree.member("response_length").as_ref());
    // What a trainer has dropped trains nothing.
    let is_removed = scalar("remove_sample").is_some_and(|removed| removed.is_truthy());
    let offsets = tree.member("rollout_top_p_token_offsets").filter(|_| !is_removed);
    let top_p = judge.top_p_kept(offsets.as_ref(), trained.as_deref(), response_tokens);
    // In a sample that we wrote slime's members may be what its requests add up to.
    let told = ours.as_ref().unwrap_or(tree);
    let spec = told.member(SPEC).and_then(|info| judge.spec(&info));
    let prefix = told.member(PREFIX).and_then(|info| judge.prefix(&info));
    let reward = reward.as_ref().and_then(|reward| judge.reward(reward, options.reward_key));
    let mut mark = SampleMark {
        reward,
        truncated: match status.as_deref() {
            Some("truncated") => Some(true),
            Some("completed" | "aborted" | "failed") => Some(false),
            _ => None,
        },
        response_tokens,
        effective_response_tokens: said_count(EFFECTIVE).or(effective),
        non_generation_time: judge
            .time(MarkValue::NonGenerationTime, tree.member("non_generation_time").as_ref()),
        repetition: match said(REPETITION) {
            Some(Scalar::Bool(repeats)) => Some(repeats),
            _ => tree.member("response").and_then(|response| response.text()).map(|text| repeats(&text)),
        },
        category: said(CATEGORY).and_then(name).or_else(category),
        top_p_kept: said_count(TOP_P_KEPT).or(top_p),
        spec,
        prefix,
        carrier: said(CARRIER).and_then(name),
        evaluation: options.evaluation || scalar("evaluation") == Some(Scalar::Bool(true)),
        dataset,
        ..SampleMark::new(key)
    };
    let names = ours.as_ref().and_then(|said| said.member(LEFT_OUT));
    let mut known = |name: &T| judge.left_out.extend(name.text().and_then(|name| LeftOut::from_name(&name)));
    if let Some(names) = names {
        names.each_element(&mut known);
    }
    mark.left_out = judge.left_out.into();
    mark.leave_out_implausible();
    mark
}

/// Whether a response repeats itself, as slime judges it: it has more characters than these, and the last of them are more than
/// so many times as long as what zlib makes of them.
fn repeats(response: &str) -> bool {
    let judged = response.char_indices().rev().nth(JUDGED_CHARS - 1).map_or(0, |(from, _)| from);
    let last = &response.as_bytes()[judged..];
    judged > 0 && last.len() > REPETITIVE * compress_to_vec_zlib(last, BEST_COMPRESSION).len()
}

// === impl Judge ===

impl<T: Tree> Judge<'_, T> {
    /// Nothing where nothing was told; what is no number that can be is left out.
    fn number(&mut self, of: MarkValue, told: Option<&T>) -> Option<f64> {
        let told = told?;
        if told.scalar() == Some(Scalar::Null) {
            return None;
        }
        match number_of(told, self.numbers) {
            None => self.leave_out(of, Fault::NotANumber),
            Some(value) => self.judged(of, value),
        }
    }

    fn judged(&mut self, of: MarkValue, value: f64) -> Option<f64> {
        match value {
            value if !value.is_finite() => self.leave_out(of, Fault::NotFinite),
            value if value < 0.0 => self.leave_out(of, Fault::Negative),
            value => Some(value),
        }
    }

    fn whole(&mut self, of: MarkValue, value: f64) -> Option<u64> {
        let value = self.judged(of, value)?;
        whole(value).or_else(|| self.leave_out(of, Fault::TooLarge))
    }

    fn count(&mut self, of: MarkValue, told: Option<&T>) -> Option<u64> {
        let value = self.number(of, told)?;
        self.whole(of, value)
    }

    /// The numbers of a list or a tensor, and truths; all of them, or it is left out.
    fn list(&mut self, of: MarkValue, told: Option<&T>) -> Option<Vec<f64>> {
        let told = told.filter(|told| told.scalar() != Some(Scalar::Null))?;
        let mut items = Vec::new();
        let is_list = told.each_element(&mut |item| {
            items.push(item.number_or_truth().or_else(|| number_of(item, self.numbers)));
        });
        let list = if is_list { items.into_iter().collect() } else { (self.numbers)(told) };
        list.or_else(|| self.leave_out(of, Fault::NotANumber))
    }

    /// Vocabulary entries that nucleus sampling kept for the tokens that are trained on: the offsets tell where each token's
    /// begin, and where the last one's end. Where these are not so many as the mask's, or the response's, whose they are is not
    /// known.
    fn top_p_kept(&mut self, offsets: Option<&T>, mask: Option<&[f64]>, tokens: Option<u64>) -> Option<u64> {
        let offsets = self.list(MarkValue::TopPKept, offsets)?;
        let count = offsets.len().checked_sub(1)?;
        if mask.map_or(tokens, |mask| Some(mask.len() as u64)).is_some_and(|tokens| tokens != count as u64) {
            return None;
        }
        let weight = |token: usize| mask.map_or(1.0, |mask| mask[token]);
        let kept = offsets.windows(2).enumerate().map(|(token, pair)| (pair[1] - pair[0]) * weight(token));
        self.whole(MarkValue::TopPKept, kept.sum::<f64>().round())
    }

    fn time(&mut self, of: MarkValue, told: Option<&T>) -> Option<Nanos> {
        let seconds = self.number(of, told)?;
        Nanos::from_secs_f64(seconds).or_else(|| self.leave_out(of, Fault::TooLarge))
    }

    fn reward(&mut self, told: &T, key: Option<&str>) -> Option<f64> {
        let reward = reward_of(told, key, self.numbers);
        let chosen = key.and_then(|key| told.member(key));
        if let (None, Some(Scalar::Bool(_) | Scalar::Text(_))) =
            (reward, chosen.as_ref().unwrap_or(told).scalar())
        {
            return self.leave_out(MarkValue::Reward, Fault::NotANumber);
        }
        reward
    }

    /// Zeros stand there for a sample that had none. One count that is left out takes the others with it: they are
    /// divided by each other.
    fn spec(&mut self, info: &T) -> Option<Box<SpecCounts>> {
        let mut count = |name| self.count(MarkValue::Spec, info.member(name).as_ref());
        let spec = SpecCounts {
            accepted: count("spec_accept_token_num")?,
            drafted: count("spec_draft_token_num")?,
            verified: count("spec_verify_ct")?,
            generated: count("completion_token_num")?,
        };
        (spec.drafted > 0 || spec.verified > 0).then(|| Box::new(spec))
    }

    /// As well.
    fn prefix(&mut self, info: &T) -> Option<Box<PrefixCounts>> {
        let mut count = |name| self.count(MarkValue::Prefix, info.member(name).as_ref());
        let prefix = PrefixCounts { prompt: count("total_prompt_tokens")?, cached: count("cached_tokens")? };
        (prefix != PrefixCounts::default()).then(|| Box::new(prefix))
    }

    fn leave_out<V>(&mut self, of: MarkValue, fault: Fault) -> Option<V> {
        self.left_out.push(LeftOut { value: Some(of), fault });
        None
    }
}

/// A number, or the only one of a tensor.
fn number_of<T: Tree>(value: &T, numbers: &mut dyn FnMut(&T) -> Option<Vec<f64>>) -> Option<f64> {
    value.number().or_else(|| match *numbers(value)? {
        [number] => Some(number),
        _ => None,
    })
}

/// A reward that is a number, or of several the one that was asked for; the only one where none was.
fn reward_of<T: Tree>(
    value: &T,
    key: Option<&str>,
    numbers: &mut dyn FnMut(&T) -> Option<Vec<f64>>,
) -> Option<f64> {
    let mut number = |value: &T| number_of(value, numbers);
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

fn whole(value: f64) -> Option<u64> {
    (value >= 0.0 && value < (1u64 << 53) as f64).then_some(value as u64)
}

fn name(value: Scalar) -> Option<Box<str>> {
    match value {
        Scalar::Text(text) => Some(Box::from(&*text)),
        Scalar::Int(number) => Some(number.to_string().into()),
        // As Python writes them.
        Scalar::Bool(value) => Some(if value { "True" } else { "False" }.into()),
        Scalar::Float(number) => Some(python_float(number).into()),
        Scalar::Null => None,
    }
}

/// A number as Python writes it: as Rust does, but for the exponent, which has a sign and two digits at least, and `nan`.
fn python_float(number: f64) -> String {
    let text = if number.is_nan() { "nan".to_owned() } else { format!("{number:?}") };
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// The members of a sample that a mark says, by slime's names where it has them; what it has none for, and the names
/// of the sample and its group, are members of one of ours.
pub(super) fn write(mark: &SampleMark) -> Map<String, Json> {
    let mut ours = json!({ "group": mark.key.group, "sample": mark.key.sample });
    for (name, value) in [
        (EFFECTIVE, mark.effective_response_tokens.map(|tokens| json!(tokens))),
        (REPETITION, mark.repetition.map(|repeats| json!(repeats))),
        (CATEGORY, mark.category.as_deref().map(|category| json!(category))),
        (TOP_P_KEPT, mark.top_p_kept.map(|kept| json!(kept))),
        (DATASET, mark.dataset.as_deref().map(|dataset| json!(dataset))),
        (SPEC, mark.spec.as_deref().map(spec_json)),
        (PREFIX, mark.prefix.as_deref().map(prefix_json)),
        (
            LEFT_OUT,
            (!mark.left_out.is_empty()).then(|| mark.left_out.iter().map(LeftOut::to_string).collect()),
        ),
        (CARRIER, mark.carrier.as_deref().map(|carrier| json!(carrier))),
    ] {
        if let Some(value) = value {
            ours[name] = value;
        }
    }
    let mut members = Map::from_iter([(OURS.to_owned(), ours)]);
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

pub(super) fn spec_json(spec: &SpecCounts) -> Json {
    json!({
        "spec_accept_token_num": spec.accepted, "spec_draft_token_num": spec.drafted,
        "spec_verify_ct": spec.verified, "completion_token_num": spec.generated,
    })
}

pub(super) fn prefix_json(prefix: &PrefixCounts) -> Json {
    json!({ "cached_tokens": prefix.cached, "total_prompt_tokens": prefix.prompt })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        for (number, expected) in [
            (0.5, "0.5"),
            (-2.0, "-2.0"),
            (0.0001, "0.0001"),
            (0.000_012, "1.2e-05"),
            (1e-300, "1e-300"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (-1.5e300, "-1.5e+300"),
            (f64::NAN, "nan"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(python_float(number), expected);
        }
    }

    #[test]
    fn a_long_response_that_zlib_makes_a_tenth_of_repeats_itself() {
        let counted = |to: u32| (0..to).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
        // Python: len(text) > 10000 and len(last := text[-10000:].encode()) / len(zlib.compress(last, 9)) > 10.
        for (text, expected) in [
            (String::new(), false),
            ("a".repeat(10_000), false),
            ("a".repeat(10_001), true),
            ("是".repeat(10_001), true),
            ("so on and so forth, ".repeat(600), true),
            (counted(3_000), false),
            // Only its end counts.
            ("a".repeat(20_000) + &counted(3_000), false),
            (counted(3_000) + &"a".repeat(10_000), true),
        ] {
            assert_eq!(repeats(&text), expected, "{} characters", text.chars().count());
        }
    }
}
