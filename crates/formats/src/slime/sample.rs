//! A sample of a dump: its mark, and its trace.

use rollscope_trace::{
    Fault, LeftOut, MarkValue, Measure, PrefixCounts, Profile, Record, SampleKey, SampleMark, SampleTrace,
    SpecCounts, StepNumber,
};
use serde_json::{Value as Json, json};

use super::carrier::Carrier;
use super::element::{Element, Part};
use super::{mark, read, write};
use crate::tree::{Scalar, Tree};

/// What slime counts of speculative decoding, by sample.
pub(super) const DRAFTS: [Measure; 3] =
    [Measure::SpecAcceptTokens, Measure::SpecDraftTokens, Measure::SpecVerifyCount];

/// How samples are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleOptions<'a> {
    /// The step that they were sampled in.
    pub(crate) step: StepNumber,
    /// Which of several rewards counts.
    pub(crate) reward_key: Option<&'a str>,
    /// Which of several rewards names the sample's category.
    pub(crate) category_key: Option<&'a str>,
    /// They were sampled for an evaluation.
    pub(crate) evaluation: bool,
}

/// Reads a sample, the `position`-th of its dump: its mark, then its trace. `numbers` reads a tensor. A trace that cannot be
/// read stays with the mark as it was, and is left out there.
pub(crate) fn read_sample<T: Tree>(
    tree: &T,
    options: SampleOptions<'_>,
    position: usize,
    numbers: &mut dyn FnMut(&T) -> Option<Vec<f64>>,
) -> Vec<Record> {
    let trace = tree.member("trace");
    let carrier = trace.as_ref().and_then(|trace| Carrier::of(trace));
    let key = sample_key(tree, carrier.as_ref(), options.step, position);
    let mut mark = mark::read(tree, key.clone(), options, numbers);
    let Some(trace) = trace.filter(is_told) else {
        return vec![Record::Sample(mark)];
    };
    let (mut elements, is_whole) = match &carrier {
        Some(carrier) => read::elements(carrier, &key, || trace.to_json()),
        None => (Vec::new(), false),
    };
    set_weight_versions(tree, &mut elements);
    // A sample that we wrote says both itself.
    let is_ours = tree.member(mark::OURS).is_some();
    if elements.is_empty() && !is_ours {
        mark.carrier = Some(trace.to_json().to_string().into());
    }
    if !is_whole && !is_ours {
        let left_out = LeftOut { value: Some(MarkValue::Trace), fault: Fault::Unreadable };
        mark.left_out = mark.left_out.iter().copied().chain([left_out]).collect();
    }
    let elements = elements.into_iter().map(|element| match element {
        Element::Request(request) => Record::Profile(request),
        Element::Span(span) => Record::Span(span),
    });
    [Record::Sample(mark)].into_iter().chain(elements).collect()
}

/// Whether a sample was traced at all.
fn is_told(trace: &impl Tree) -> bool {
    let mut members = 0;
    let is_empty = trace.each_member(&mut |_, _| members += 1) && members == 0;
    !is_empty && trace.scalar() != Some(Scalar::Null)
}

/// Whether a sample's trace could not be read, be it in part.
pub(crate) fn has_unreadable_trace(mark: &SampleMark) -> bool {
    mark.left_out.iter().any(|left_out| left_out.value == Some(MarkValue::Trace))
}

fn sample_key(tree: &impl Tree, carrier: Option<&Carrier>, step: StepNumber, position: usize) -> SampleKey {
    let own = |name: &str| tree.member(name).and_then(|value| value.scalar());
    // A sample that we wrote says how it was named; slime numbers them.
    let said = tree.member(mark::OURS);
    let said = |name: &str| said.as_ref().and_then(|said| said.member(name)?.text());
    let name = |id: Option<Scalar>| match id {
        Some(Scalar::Int(id)) => Some(id.to_string().into()),
        Some(Scalar::Text(id)) => Some(Box::from(&*id)),
        _ => None,
    };
    let sample = carrier.map(|carrier| carrier.sample_id.clone());
    let group = said("group").map(|group| Box::from(&*group));
    let group = group.or_else(|| name(carrier.map(|carrier| carrier.group_id.clone())));
    let sample = said("sample").map(|sample| Box::from(&*sample)).or_else(|| name(sample));
    SampleKey {
        step,
        group: group.or_else(|| name(own("group_index"))),
        sample: sample.or_else(|| name(own("index"))).unwrap_or_else(|| position.to_string().into()),
    }
}

/// The version of the weights that answered each call, where there is one for each.
fn set_weight_versions(tree: &impl Tree, elements: &mut [Element]) {
    let mut versions = Vec::new();
    if let Some(list) = tree.member("weight_versions") {
        list.each_element(&mut |version| {
            versions.push(match version.scalar() {
                Some(Scalar::Text(text)) => Some(Box::from(&*text)),
                Some(Scalar::Int(number)) => Some(number.to_string().into()),
                _ => None,
            });
        });
    }
    let requests: Vec<_> = requests(elements).collect();
    if requests.len() != versions.len() {
        return;
    }
    for (request, version) in requests.into_iter().zip(versions) {
        if let Some(leg) = request.legs.last_mut() {
            leg.report.weight_version = version;
        }
    }
}

fn requests(elements: &mut [Element]) -> impl Iterator<Item = &mut Profile> {
    elements.iter_mut().filter_map(|element| match element {
        // One that we wrote says it itself.
        Element::Request(request) if Part::Request(request).is_foreign() => Some(&mut **request),
        _ => None,
    })
}

/// A sample as a dump holds it, in JSON.
pub(crate) fn sample_json(sample: &SampleTrace) -> Json {
    let requests = sample.requests.iter().map(Part::Request);
    let parts: Vec<Part<'_>> = requests.chain(sample.spans.iter().map(Part::Span)).collect();
    let as_it_was = sample.mark.carrier.as_deref().filter(|_| parts.is_empty());
    let as_it_was = as_it_was.and_then(|carrier| serde_json::from_str(carrier).ok());
    let trace = as_it_was.unwrap_or_else(|| write::carrier_json(&sample.key, &parts));
    let mut members = mark::write(&sample.mark);
    let mut put = |name: &str, value: Json| members.insert(name.to_owned(), value);
    put("index", trace.get("sample_id").cloned().unwrap_or_default());
    put("group_index", trace.get("group_id").cloned().unwrap_or_default());
    let versions: Vec<_> = sample.requests.iter().filter_map(Profile::weight_version).collect();
    if versions.len() == sample.requests.len() {
        put("weight_versions", json!(versions));
    }
    // slime has them of the sample as a whole.
    let sum = |measure: Measure| {
        let counts = sample.requests.iter().filter_map(|request| request.measure(measure));
        counts.reduce(|sum, count| sum + count).map(|sum| sum as u64)
    };
    let summed = |measure: Measure| sum(measure).unwrap_or(0);
    let spec = sample.mark.spec.as_deref().copied().or_else(|| {
        DRAFTS.into_iter().any(|measure| sum(measure).is_some()).then(|| SpecCounts {
            accepted: summed(Measure::SpecAcceptTokens),
            drafted: summed(Measure::SpecDraftTokens),
            verified: summed(Measure::SpecVerifyCount),
            generated: summed(Measure::CompletionTokens),
        })
    });
    let prefix = sample.mark.prefix.as_deref().copied().or_else(|| {
        // Of requests that tell both: one is divided by the other.
        let both = |request: &Profile| {
            Some((request.measure(Measure::PromptTokens)?, request.measure(Measure::CachedTokens)?))
        };
        let all =
            sample.requests.iter().filter_map(both).reduce(|sum, more| (sum.0 + more.0, sum.1 + more.1));
        all.map(|(prompt, cached)| PrefixCounts { prompt: prompt as u64, cached: cached as u64 })
    });
    if let Some(spec) = &spec {
        put(mark::SPEC, mark::spec_json(spec));
    }
    if let Some(prefix) = &prefix {
        put(mark::PREFIX, mark::prefix_json(prefix));
    }
    put("trace", trace);
    Json::Object(members)
}
